//! DeepSeek-V3, V3.1 and R1: latent attention; experts that are chosen by the sigmoids of their logits plus a
//! correction, from the best groups of them, beside a shared one; the first layers are dense. Reference: the
//! checkpoint's published modelling code, as transformers has it.

use plan::{Plan, WeightSource};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::Fields;
use crate::experts::SharedExperts;
use crate::latent::{self, LatentModel};
use crate::{ConfigError, ModelError};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "deepseek_v3",
    class: "DeepseekV3ForCausalLM",
    gguf: GgufNames {
        architectures: &[("deepseek2", Some("expert_gating_func=2"))],
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
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "kv_lora_rank": 512,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048,
        "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5,
    });
    let fields = Fields::new(config, &defaults)?;
    LatentModel::read(&fields, SharedExperts::by_sigmoid)
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    read(config)?.plan(ARCHITECTURE.model_type, source)
}
