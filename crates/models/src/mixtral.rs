//! Mixtral: Mistral with eight experts in the place of the gated MLP, of which a token takes two, weighed by the softmax
//! over all of them and normalised. Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Decoder, Fields, HeadSizes};
use crate::experts::{Experts, check_router};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

/// Its GGUF files name Llama, too, and have experts.
pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    gguf: GgufNames {
        architectures: &[("llama", Some("expert_count"))],
        keys: &[("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")],
        layer_tensors: &[("ffn_gate_inp", "block_sparse_moe.gate")],
        expert_tensors: &[
            ("ffn_gate_exps", "block_sparse_moe.experts.{}.w1"),
            ("ffn_up_exps", "block_sparse_moe.experts.{}.w3"),
            ("ffn_down_exps", "block_sparse_moe.experts.{}.w2"),
        ],
        pairs_rows: true,
        ..GgufNames::SHARED
    },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    experts: Experts,
    rotary: Rotary,
    sliding_window: Option<usize>,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
            "rope_theta": 1_000_000.0, "num_local_experts": 8, "num_experts_per_tok": 2,
        });
        let fields = Fields::new(config, &defaults)?;
        check_router(&fields, "softmax", false)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            experts: Experts::read(&fields, "num_local_experts", "intermediate_size")?,
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
            let attention = |g: &mut Graph, w: &Weights<'_>, h| attention(g, w, &cfg, h);
            blocks::layer(g, w, &cfg.decoder, x, attention, |g, x, h| moe(g, &w.at("block_sparse_moe"), &cfg, [x, h]))
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

fn moe(g: &mut Graph, w: &Weights<'_>, cfg: &Config, [x, h]: [Value; 2]) -> Result<Value, ModelError> {
    let Config { experts, decoder, .. } = cfg;
    let router = experts.softmax_router(true);
    let gate = w.linear("gate", experts.count, decoder.hidden_size, false)?;
    Ok(experts.add_to(g, w, (gate, router), ["w1", "w3", "w2"], decoder.hidden_size, [x, h])?)
}
