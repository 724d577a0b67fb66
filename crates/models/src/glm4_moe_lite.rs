//! GLM-4.7-Flash: latent attention; experts that are chosen by the sigmoids of their logits plus a correction, beside a
//! shared one; the first layer is dense. Reference: the checkpoint's published modelling code, as transformers has it.
//!
//! GGUF files call it as they call DeepSeek-V3, which computes the same; a file is known by the size of the vocabulary.

use plan::{Plan, WeightSource};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::Fields;
use crate::experts::SharedExperts;
use crate::latent::{self, LatentModel};
use crate::{ConfigError, ModelError};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "glm4_moe_lite",
    class: "Glm4MoeLiteForCausalLM",
    gguf: GgufNames {
        architectures: &[("deepseek2", Some("vocab_size=154880"))],
        implied: || {
            json!({
                "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
                "q_lora_rank": null,
            })
        },
        ..latent::GGUF
    },
};

fn read(config: &serde_json::Value) -> Result<LatentModel, ConfigError> {
    let defaults = json!({
        "max_position_embeddings": 202_752, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "kv_lora_rank": 512,
        "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256,
        "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "moe_intermediate_size": 1536,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 1.8,
    });
    let fields = Fields::new(config, &defaults)?;
    LatentModel::read(&fields, SharedExperts::by_sigmoid)
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    read(config)?.plan(ARCHITECTURE.model_type, source)
}
