//! Qwen2 and Qwen2.5: a Llama-style decoder with biases on q, k and v only; small releases tie the head to the
//! embedding. Layers may slide (`use_sliding_window`, `layer_types` or `max_window_layers`). Reference: the checkpoint's
//! published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::{Config, ModelError, blocks};

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let defaults = json!({
        "num_key_value_heads": 32, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "sliding_window": 4096, "max_window_layers": 28,
    });
    let cfg = Config::read(config, &defaults)?;
    Graph::build("qwen2", cfg.max_position_embeddings, source, |g, w| {
        blocks::decoder(g, w, &cfg, |g, w, index, x| {
            blocks::pre_norm_layer(g, w, &cfg, false, x, |g, w, h| attention(g, w, &cfg, index, h))
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, index: usize, x: Value) -> Result<Value, ModelError> {
    let &Config { hidden_size: hidden, head_dim, .. } = cfg;
    let (q_width, kv_width) = (cfg.num_attention_heads * head_dim, cfg.num_key_value_heads * head_dim);
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, true)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, true)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, true)?, kv_width);
    let (q, k) = (g.rope(q, &cfg.rope), g.rope(k, &cfg.rope));
    let o = g.attention(q, k, v, cfg.heads(cfg.window_of_layer(index)?));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, false)?, hidden))
}
