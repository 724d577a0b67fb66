//! gpt-oss: experts with biases and a clamped activation in every layer, chosen by their logits and weighed by the softmax
//! over the chosen ones; attention with biases, a sink for each head, and a window on every second layer. Reference: the
//! checkpoint's published modelling code.

use plan::{Activation, Graph, Linear, Plan, RouteWeights, Router, Scores, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames, MLP_EXPERTS};
use crate::config::{Decoder, Fields, HeadSizes, Neutral, Windows};
use crate::experts::{Experts, check_router};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    gguf: GgufNames {
        architectures: &[("gpt-oss", None)],
        keys: &[
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "intermediate_size"),
        ],
        layer_tensors: &[
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_gate_inp", "mlp.router"),
            ("attn_sinks.weight", "self_attn.sinks"),
        ],
        expert_tensors: MLP_EXPERTS,
        alternates_experts: true,
        implied: || json!({ "swiglu_limit": 7.0, "rope_scaling": { "truncate": false } }),
        ..GgufNames::SHARED
    },
};

/// Fields of its activation, with the values that [`Activation::ClampedSwiglu`] has.
const ACTIVATION: [(&str, Neutral); 2] =
    [("swiglu_limit", Neutral::Number(Activation::SWIGLU_LIMIT as f64)), ("swiglu_alpha", Neutral::Number(1.702))];

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    experts: Experts,
    rotary: Rotary,
    attention_bias: bool,
    windows: Windows,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
            "rope_theta": 150_000.0, "sliding_window": 128, "use_sliding_window": true, "attention_bias": true,
            "num_local_experts": 128, "num_experts_per_tok": 4,
            "rope_scaling": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096,
            },
        });
        let fields = Fields::new(config, &defaults)?;
        check_router(&fields, "softmax_weight", false)?;
        fields.refuse_unless_neutral(&ACTIVATION)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        let experts = Experts::read(&fields, "num_local_experts", "intermediate_size")?;
        let mut windows = Windows::read(&fields, decoder.num_hidden_layers)?;
        // Every second layer sees all, the first does not.
        let alternating = || (0..decoder.num_hidden_layers).map(|layer| layer % 2 == 0).collect();
        windows.layer_types.get_or_insert_with(alternating);
        Ok(Self {
            experts: Experts { activation: Activation::ClampedSwiglu, bias: true, ..experts },
            rotary: Rotary::read(&fields, heads.head_dim)?,
            attention_bias: fields.flag("attention_bias")?,
            windows,
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
            blocks::layer(g, w, &cfg.decoder, x, attention, |g, x, h| moe(g, &w.at("mlp"), &cfg, [x, h]))
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, index: usize, x: Value) -> Result<Value, ModelError> {
    let Config { heads, rotary, .. } = cfg;
    let (hidden, bias) = (cfg.decoder.hidden_size, cfg.attention_bias);
    let (q_width, kv_width) = (heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, bias)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, bias)?, kv_width);
    let (q, k) = (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope));
    let sinks = Some(w.get("sinks", [heads.num_attention_heads])?);
    let o = g.attention(q, k, v, plan::Heads { sinks, ..heads.attention(cfg.windows.of_layer(index)?) });
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, bias)?, hidden))
}

fn moe(g: &mut Graph, w: &Weights<'_>, cfg: &Config, [x, h]: [Value; 2]) -> Result<Value, ModelError> {
    let Config { experts, decoder, .. } = cfg;
    let router = Router::new(experts.top_k, Scores::Logits, RouteWeights::Softmax);
    let gate: Linear = w.linear("router", experts.count, decoder.hidden_size, true)?;
    let names = ["gate_proj", "up_proj", "down_proj"];
    Ok(experts.add_to(g, w, (gate, router), names, decoder.hidden_size, [x, h])?)
}
