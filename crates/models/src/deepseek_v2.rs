//! DeepSeek-V2, V2.5 and V2-Lite: latent attention, with queries from a latent space of their own or not; experts that
//! are chosen by a softmax, from the best groups of them where the model is large, beside shared ones; the first layers
//! are dense. Reference: the checkpoint's published modelling code, as transformers has it.

use plan::{Plan, WeightSource};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Fields, Neutral};
use crate::experts::SharedExperts;
use crate::latent::{self, LatentModel};
use crate::{ConfigError, ModelError};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "deepseek_v2",
    class: "DeepseekV2ForCausalLM",
    gguf: GgufNames {
        architectures: &[("deepseek2", None)],
        implied: || {
            json!({
                "first_k_dense_replace": 0, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
                "topk_method": "group_limited_greedy", "q_lora_rank": null,
            })
        },
        ..latent::GGUF
    },
};

fn read(config: &serde_json::Value) -> Result<LatentModel, ConfigError> {
    let defaults = json!({
        "vocab_size": 102_400, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
    });
    let fields = Fields::new(config, &defaults)?;
    // transformers does not look at them here.
    fields.refuse_unless_neutral(&[("rope_interleave", Neutral::Flag(true)), ("mlp_bias", Neutral::Flag(false))])?;
    LatentModel::read(&fields, SharedExperts::by_softmax)
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    read(config)?.plan(ARCHITECTURE.model_type, source)
}
