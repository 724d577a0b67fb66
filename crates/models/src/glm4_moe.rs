//! GLM-4.5, GLM-4.5-Air and GLM-4.6: experts that are chosen by the sigmoids of their logits plus a correction, from the best
//! groups of them, beside a shared expert; the first layers are dense. A part of each head is turned by its position
//! (`partial_rotary_factor`), and q and k may be normalised. Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames, MLP_EXPERTS};
use crate::config::{Decoder, Fields, HeadSizes};
use crate::experts::SharedExperts;
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "glm4_moe",
    class: "Glm4MoeForCausalLM",
    gguf: GgufNames {
        architectures: &[("glm4moe", None)],
        keys: &[
            ("expert_count", "n_routed_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_count", "n_shared_experts"),
            ("leading_dense_block_count", "first_k_dense_replace"),
            ("expert_weights_norm", "norm_topk_prob"),
            ("expert_group_count", "n_group"),
            ("expert_group_used_count", "topk_group"),
        ],
        layer_tensors: &[
            ("attn_q_norm", "self_attn.q_norm"),
            ("attn_k_norm", "self_attn.k_norm"),
            ("post_attention_norm", "post_attention_layernorm"),
            ("exp_probs_b.bias", "mlp.gate.e_score_correction_bias"),
            ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
            ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ],
        expert_tensors: MLP_EXPERTS,
        tensor_flags: &[("attn_q_norm.weight", "use_qk_norm")],
        implied: || json!({ "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1 }),
        ..GgufNames::SHARED
    },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    feed_forward: SharedExperts,
    rotary: Rotary,
    attention_bias: bool,
    use_qk_norm: bool,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5, "intermediate_size": 10_944, "n_routed_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 1408, "n_shared_experts": 1, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
        });
        let fields = Fields::with_own(config, &defaults, &["use_qk_norm"])?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            feed_forward: SharedExperts::by_sigmoid(&fields)?,
            rotary: Rotary::read_partial(&fields, heads.head_dim)?,
            attention_bias: fields.flag("attention_bias")?,
            use_qk_norm: fields.flag("use_qk_norm")?,
            decoder,
            heads,
        })
    }
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let cfg = Config::read(config)?;
    Graph::build(ARCHITECTURE.model_type, cfg.rotary.context_len, source, |g, w| {
        blocks::decoder(g, w, &cfg.decoder, |g, w, index, x| {
            let attention = |g: &mut Graph, w: &Weights<'_>, h| attention(g, w, &cfg, h);
            cfg.feed_forward.layer(g, w, &cfg.decoder, index, x, attention)
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, x: Value) -> Result<Value, ModelError> {
    let Config { heads, rotary, attention_bias: bias, .. } = cfg;
    let (hidden, eps) = (cfg.decoder.hidden_size, cfg.decoder.rms_norm_eps);
    let (q_width, kv_width) = (heads.q_width(), heads.kv_width());
    let mut q = g.linear(x, w.linear("q_proj", q_width, hidden, *bias)?, q_width);
    let mut k = g.linear(x, w.linear("k_proj", kv_width, hidden, *bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, *bias)?, kv_width);
    if cfg.use_qk_norm {
        q = g.rms_norm(q, w.norm("q_norm", heads.head_dim, eps)?);
        k = g.rms_norm(k, w.norm("k_norm", heads.head_dim, eps)?);
    }
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let o = g.attention(q, k, v, heads.attention(None));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, false)?, hidden))
}
