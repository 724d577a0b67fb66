//! Qwen2-MoE (Qwen1.5-MoE, Qwen2-57B): Qwen2 with experts in the place of the gated MLP, and a shared expert that every
//! token takes, times the sigmoid of a gate of its own. Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames, MLP_EXPERTS};
use crate::config::{Decoder, Fields, HeadSizes, Mlp, WIDTH_MAX, Windows};
use crate::experts::{Experts, SparseLayers, check_router};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "qwen2_moe",
    class: "Qwen2MoeForCausalLM",
    gguf: GgufNames {
        architectures: &[("qwen2moe", None)],
        keys: &[
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
        ],
        layer_tensors: &[
            ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
            ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
            ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
            ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ],
        expert_tensors: MLP_EXPERTS,
        // llama.cpp does not normalise, and its converter writes no key for it.
        implied: || json!({ "norm_topk_prob": false }),
        ..GgufNames::SHARED
    },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    /// Of layers without experts.
    mlp: Mlp,
    experts: Experts,
    /// The expert that every token takes.
    shared: Mlp,
    norm_topk_prob: bool,
    sparse: SparseLayers,
    rotary: Rotary,
    qkv_bias: bool,
    windows: Windows,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 16, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
            "sliding_window": 4096, "max_window_layers": 28, "intermediate_size": 5632, "qkv_bias": true,
            "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        });
        let fields = Fields::new(config, &defaults)?;
        check_router(&fields, "softmax", false)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        let mlp = Mlp::read(&fields, false)?;
        let intermediate_size = fields.required("shared_expert_intermediate_size", 1..=WIDTH_MAX)?;
        Ok(Self {
            shared: Mlp { intermediate_size, ..mlp },
            mlp,
            experts: Experts::read(&fields, "num_experts", "moe_intermediate_size")?,
            norm_topk_prob: fields.flag("norm_topk_prob")?,
            sparse: SparseLayers::read(&fields)?,
            rotary: Rotary::read(&fields, heads.head_dim)?,
            qkv_bias: fields.flag("qkv_bias")?,
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
    let Config { heads, rotary, qkv_bias, .. } = cfg;
    let (hidden, q_width, kv_width) = (cfg.decoder.hidden_size, heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, *qkv_bias)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, *qkv_bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, *qkv_bias)?, kv_width);
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let o = g.attention(q, k, v, heads.attention(cfg.windows.of_layer(index)?));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, false)?, hidden))
}

fn moe(g: &mut Graph, w: &Weights<'_>, cfg: &Config, [x, h]: [Value; 2]) -> Result<Value, ModelError> {
    let Config { experts, decoder, .. } = cfg;
    let hidden = decoder.hidden_size;
    let shared = blocks::gated_mlp(g, &w.at("shared_expert"), &cfg.shared, hidden, h)?;
    let gate = g.linear(h, w.linear("shared_expert_gate", 1, hidden, false)?, 1);
    let shared = g.gate_rows(shared, gate);
    let x = g.add(x, shared);
    let router = experts.softmax_router(cfg.norm_topk_prob);
    let gate = w.linear("gate", experts.count, hidden, false)?;
    Ok(experts.add_to(g, w, (gate, router), ["gate_proj", "up_proj", "down_proj"], hidden, [x, h])?)
}
