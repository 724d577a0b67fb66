//! Llama (1 to 3.x and the many models of the same shape): RMSNorm before attention and before a gated MLP, rotary
//! positions, grouped-query attention; biases where `attention_bias` and `mlp_bias` say so. Llama 3.1 stretches the
//! rotary frequencies (`rope_type: llama3`). Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Decoder, Fields, HeadSizes, Mlp};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "llama",
    class: "LlamaForCausalLM",
    gguf: GgufNames { architectures: &[("llama", None)], pairs_rows: true, ..GgufNames::SHARED },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    mlp: Mlp,
    rotary: Rotary,
    attention_bias: bool,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({ "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0 });
        let fields = Fields::new(config, &defaults)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            mlp: Mlp::read(&fields, fields.flag("mlp_bias")?)?,
            rotary: Rotary::read(&fields, heads.head_dim)?,
            attention_bias: fields.flag("attention_bias")?,
            decoder,
            heads,
        })
    }
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let cfg = Config::read(config)?;
    Graph::build(ARCHITECTURE.model_type, cfg.rotary.context_len, source, |g, w| {
        blocks::decoder(g, w, &cfg.decoder, |g, w, _, x| {
            blocks::pre_norm_layer(g, w, &cfg.decoder, &cfg.mlp, x, |g, w, h| attention(g, w, &cfg, h))
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, x: Value) -> Result<Value, ModelError> {
    let Config { heads, rotary, .. } = cfg;
    let (hidden, bias) = (cfg.decoder.hidden_size, cfg.attention_bias);
    let (q_width, kv_width) = (heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, bias)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, bias)?, kv_width);
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let o = g.attention(q, k, v, heads.attention(None));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, bias)?, hidden))
}
