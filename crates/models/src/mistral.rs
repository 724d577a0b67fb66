//! Mistral: a Llama-style decoder without biases, whose every layer sees a sliding window of `sliding_window` positions
//! (null in later releases: all of them). `head_dim` may differ from hidden_size / num_attention_heads. Reference: the
//! checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Decoder, Fields, HeadSizes, Mlp};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "mistral",
    class: "MistralForCausalLM",
    gguf: GgufNames {
        // Converted as Llama; the window tells them apart.
        architectures: &[("llama", Some("attention.sliding_window")), ("mistral", None)],
        // Left out, it would mean the default window; a file that names none has none.
        implied: || json!({ "sliding_window": null }),
        pairs_rows: true,
        ..GgufNames::SHARED
    },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    mlp: Mlp,
    rotary: Rotary,
    /// Of every layer.
    sliding_window: Option<usize>,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "sliding_window": 4096,
        });
        let fields = Fields::new(config, &defaults)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            mlp: Mlp::read(&fields, false)?,
            rotary: Rotary::read(&fields, heads.head_dim)?,
            sliding_window: fields.sliding_window()?,
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
    let (hidden, q_width, kv_width) = (cfg.decoder.hidden_size, heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, false)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, false)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, false)?, kv_width);
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let o = g.attention(q, k, v, heads.attention(cfg.sliding_window));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, false)?, hidden))
}
