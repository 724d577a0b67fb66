//! Qwen2 and Qwen2.5: a Llama-style decoder with biases on q, k and v only; small releases tie the head to the
//! embedding. Layers may slide (`use_sliding_window`, `layer_types` or `max_window_layers`). Reference: the checkpoint's
//! published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Decoder, Fields, HeadSizes, Mlp, Windows};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    gguf: GgufNames { architectures: &[("qwen2", None)], ..GgufNames::SHARED },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    mlp: Mlp,
    rotary: Rotary,
    windows: Windows,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 32, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "sliding_window": 4096, "max_window_layers": 28,
        });
        let fields = Fields::new(config, &defaults)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            mlp: Mlp::read(&fields, false)?,
            rotary: Rotary::read(&fields, heads.head_dim)?,
            windows: Windows::read(&fields, decoder.num_hidden_layers)?,
            decoder,
            heads,
        })
    }
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let cfg = Config::read(config)?;
    Graph::build(ARCHITECTURE.model_type, cfg.rotary.context_len, source, |g, w| {
        blocks::decoder(g, w, &cfg.decoder, |g, w, index, x| {
            blocks::pre_norm_layer(g, w, &cfg.decoder, &cfg.mlp, x, |g, w, h| attention(g, w, &cfg, index, h))
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, index: usize, x: Value) -> Result<Value, ModelError> {
    let Config { heads, rotary, .. } = cfg;
    let (hidden, q_width, kv_width) = (cfg.decoder.hidden_size, heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, true)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, true)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, true)?, kv_width);
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let o = g.attention(q, k, v, heads.attention(cfg.windows.of_layer(index)?));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, false)?, hidden))
}
