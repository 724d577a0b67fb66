//! Qwen3: a Llama-style decoder with RMSNorm on each q and k head before RoPE; `head_dim` is its own field, not
//! hidden_size / num_attention_heads. Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Decoder, Fields, HeadSizes, Mlp, Windows};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    gguf: GgufNames {
        architectures: &[("qwen3", None)],
        layer_tensors: &[("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")],
        ..GgufNames::SHARED
    },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    mlp: Mlp,
    rotary: Rotary,
    attention_bias: bool,
    windows: Windows,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "sliding_window": 4096, "max_window_layers": 28,
        });
        let fields = Fields::new(config, &defaults)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            mlp: Mlp::read(&fields, false)?,
            rotary: Rotary::read(&fields, heads.head_dim)?,
            attention_bias: fields.flag("attention_bias")?,
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
    let (hidden, eps, bias) = (cfg.decoder.hidden_size, cfg.decoder.rms_norm_eps, cfg.attention_bias);
    let (q_width, kv_width) = (heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, bias)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, bias)?, kv_width);
    let q = g.rms_norm(q, w.norm("q_norm", heads.head_dim, eps)?);
    let k = g.rms_norm(k, w.norm("k_norm", heads.head_dim, eps)?);
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let o = g.attention(q, k, v, heads.attention(cfg.windows.of_layer(index)?));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, bias)?, hidden))
}
