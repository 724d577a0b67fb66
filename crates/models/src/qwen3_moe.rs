//! Qwen3-MoE: Qwen3 with experts in the place of the gated MLP, weighed by the softmax over all of them, and normalised
//! where `norm_topk_prob` says so; some layers may stay dense (`mlp_only_layers`, `decoder_sparse_step`). Reference: the
//! checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames, MLP_EXPERTS};
use crate::config::{Decoder, Fields, HeadSizes, Mlp, Windows};
use crate::experts::{Experts, SparseLayers, check_router};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    gguf: GgufNames {
        architectures: &[("qwen3moe", None)],
        keys: &[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ],
        layer_tensors: &[("attn_q_norm", "self_attn.q_norm"), ("attn_k_norm", "self_attn.k_norm")],
        expert_tensors: MLP_EXPERTS,
        // llama.cpp normalises, and its converter writes no key for it.
        implied: || json!({ "norm_topk_prob": true }),
        ..GgufNames::SHARED
    },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    /// Of layers without experts.
    mlp: Mlp,
    experts: Experts,
    norm_topk_prob: bool,
    sparse: SparseLayers,
    rotary: Rotary,
    attention_bias: bool,
    windows: Windows,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 4, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "sliding_window": 4096, "max_window_layers": 28, "intermediate_size": 6144,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
        });
        let fields = Fields::new(config, &defaults)?;
        check_router(&fields, "softmax", false)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            mlp: Mlp::read(&fields, false)?,
            experts: Experts::read(&fields, "num_experts", "moe_intermediate_size")?,
            norm_topk_prob: fields.flag("norm_topk_prob")?,
            sparse: SparseLayers::read(&fields)?,
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
            let attention = |g: &mut Graph, w: &Weights<'_>, h| attention(g, w, &cfg, index, h);
            if !cfg.sparse.is_sparse(index) {
                return blocks::pre_norm_layer(g, w, &cfg.decoder, &cfg.mlp, x, attention);
            }
            blocks::layer(g, w, &cfg.decoder, x, attention, |g, x, h| moe(g, &w.at("mlp"), &cfg, [x, h]))
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

fn moe(g: &mut Graph, w: &Weights<'_>, cfg: &Config, [x, h]: [Value; 2]) -> Result<Value, ModelError> {
    let Config { experts, decoder, .. } = cfg;
    let router = experts.softmax_router(cfg.norm_topk_prob);
    let gate = w.linear("gate", experts.count, decoder.hidden_size, false)?;
    let names = ["gate_proj", "up_proj", "down_proj"];
    Ok(experts.add_to(g, w, (gate, router), names, decoder.hidden_size, [x, h])?)
}
