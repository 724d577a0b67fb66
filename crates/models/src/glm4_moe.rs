//! GLM-4.5, GLM-4.5-Air and GLM-4.6: experts that are chosen by the sigmoids of their logits plus a correction, from the best
//! groups of them, beside a shared expert; the first layers are dense. A part of each head is turned by its position
//! (`partial_rotary_factor`), and q and k may be normalised. Reference: the checkpoint's published modelling code.

use plan::{ExpertGroups, Graph, GroupScore, Plan, RouteWeights, Router, Scores, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames, MLP_EXPERTS};
use crate::config::{Decoder, Fields, HeadSizes, Mlp, WIDTH_MAX, invalid};
use crate::experts::{EXPERTS_MAX, Experts, check_router};
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
    /// Of the first layers.
    mlp: Mlp,
    dense_layers: usize,
    experts: Experts,
    /// The expert that every token takes.
    shared: Mlp,
    groups: Option<ExpertGroups>,
    norm_topk_prob: bool,
    routed_scaling_factor: f32,
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
        check_router(&fields, "sigmoid", true)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        let mlp = Mlp::read(&fields, false)?;
        let experts = Experts::read(&fields, "n_routed_experts", "moe_intermediate_size")?;
        let shared = fields.required("n_shared_experts", 1..=EXPERTS_MAX)?;
        Ok(Self {
            shared: Mlp { intermediate_size: shared * experts.intermediate_size, ..mlp },
            mlp,
            dense_layers: fields.required("first_k_dense_replace", 0..=WIDTH_MAX)?,
            groups: groups(&fields, &experts)?,
            norm_topk_prob: fields.flag("norm_topk_prob")?,
            routed_scaling_factor: fields.positive("routed_scaling_factor")?,
            rotary: Rotary::read_partial(&fields, heads.head_dim)?,
            attention_bias: fields.flag("attention_bias")?,
            use_qk_norm: fields.flag("use_qk_norm")?,
            experts,
            decoder,
            heads,
        })
    }
}

/// The groups that experts are chosen from, where there is more than one.
fn groups(fields: &Fields<'_>, experts: &Experts) -> Result<Option<ExpertGroups>, ConfigError> {
    let count = fields.required("n_group", 1..=EXPERTS_MAX)?;
    let chosen = fields.required("topk_group", 1..=EXPERTS_MAX)?;
    if count == 1 {
        return Ok(None);
    }
    if !experts.count.is_multiple_of(count) || experts.count < 2 * count {
        let expected = format!("a divisor of `n_routed_experts`, {}, of groups of two experts or more", experts.count);
        return Err(invalid("n_group", count, expected));
    }
    if chosen > count || experts.top_k > chosen * (experts.count / count) {
        let expected = format!("at most `n_group`, {count}, and groups enough for {} experts", experts.top_k);
        return Err(invalid("topk_group", chosen, expected));
    }
    Ok(Some(ExpertGroups { count, chosen, score: GroupScore::SumOfTwo }))
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let cfg = Config::read(config)?;
    Graph::build(ARCHITECTURE.model_type, cfg.rotary.context_len, source, |g, w| {
        blocks::decoder(g, w, &cfg.decoder, |g, w, index, x| {
            let attention = |g: &mut Graph, w: &Weights<'_>, h| attention(g, w, &cfg, h);
            if index < cfg.dense_layers {
                return blocks::pre_norm_layer(g, w, &cfg.decoder, &cfg.mlp, x, attention);
            }
            blocks::layer(g, w, &cfg.decoder, x, attention, |g, x, h| moe(g, &w.at("mlp"), &cfg, [x, h]))
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

fn moe(g: &mut Graph, w: &Weights<'_>, cfg: &Config, [x, h]: [Value; 2]) -> Result<Value, ModelError> {
    let Config { experts, decoder, groups, .. } = cfg;
    let hidden = decoder.hidden_size;
    let shared = blocks::gated_mlp(g, &w.at("shared_experts"), &cfg.shared, hidden, h)?;
    let x = g.add(x, shared);
    let router = Router {
        top_k: experts.top_k,
        scores: Scores::Sigmoid,
        correction: Some(w.get("gate.e_score_correction_bias", [experts.count])?),
        groups: *groups,
        weights: if cfg.norm_topk_prob { RouteWeights::Normalised { eps: 1e-20 } } else { RouteWeights::Scores },
        scale: cfg.routed_scaling_factor,
    };
    let gate = w.linear("gate", experts.count, hidden, false)?;
    Ok(experts.add_to(g, w, (gate, router), ["gate_proj", "up_proj", "down_proj"], hidden, [x, h])?)
}
