//! Llama (1 to 3.x and the many models of the same shape): RMSNorm before attention and before a gated MLP, rotary
//! positions, grouped-query attention; biases where `attention_bias` and `mlp_bias` say so. Llama 3.1 stretches the
//! rotary frequencies (`rope_type: llama3`). Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::{Config, ModelError, blocks};

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let defaults = json!({ "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0 });
    let cfg = Config::read(config, &defaults)?;
    Graph::build("llama", cfg.max_position_embeddings, source, |g, w| {
        blocks::decoder(g, w, &cfg, |g, w, _, x| {
            blocks::pre_norm_layer(g, w, &cfg, cfg.mlp_bias, x, |g, w, h| attention(g, w, &cfg, h))
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, x: Value) -> Result<Value, ModelError> {
    let &Config { hidden_size: hidden, attention_bias: bias, head_dim, .. } = cfg;
    let (q_width, kv_width) = (cfg.num_attention_heads * head_dim, cfg.num_key_value_heads * head_dim);
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, bias)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, bias)?, kv_width);
    let (q, k) = (g.rope(q, &cfg.rope), g.rope(k, &cfg.rope));
    let o = g.attention(q, k, v, cfg.heads(None));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, bias)?, hidden))
}
