//! The architectures by name, and the one way from a `config.json` to a verified plan.

use plan::{BuildError, Plan, VerifyError, WeightSource, verify};
use serde_json::Value;

use crate::{Architecture, ConfigError};

/// Why a checkpoint has no plan.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// An architecture that no file here covers.
    #[error("architecture `{found}` is not supported; supported: {}", SUPPORTED.join(", "))]
    UnknownArchitecture {
        /// `model_type`, or the class in `architectures`.
        found: String,
    },
    /// Neither `model_type` nor `architectures`.
    #[error("config.json names no architecture: `model_type` is missing, expected one of {}", SUPPORTED.join(", "))]
    NoArchitecture,
    /// A field of config.json.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A weight that is missing or has another shape.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A model file wrote a plan that does not verify: a bug here, not in the checkpoint.
    #[error("the plan of this model is inconsistent (please report it): {0}")]
    Verify(#[from] VerifyError),
}

type Build = fn(&Value, &dyn WeightSource) -> Result<Plan, ModelError>;

/// Each architecture with its file. The one list of them.
const ARCHITECTURES: &[(Architecture, Build)] = &[
    // Before DeepSeek-V3: a GGUF file of that name with GLM's vocabulary is GLM-4.7-Flash's.
    (crate::glm4_moe_lite::ARCHITECTURE, crate::glm4_moe_lite::plan),
    (crate::deepseek_v2::ARCHITECTURE, crate::deepseek_v2::plan),
    (crate::deepseek_v3::ARCHITECTURE, crate::deepseek_v3::plan),
    (crate::glm4_moe::ARCHITECTURE, crate::glm4_moe::plan),
    (crate::gpt_oss::ARCHITECTURE, crate::gpt_oss::plan),
    (crate::llama::ARCHITECTURE, crate::llama::plan),
    // Before Mistral: a GGUF file of Llama's name with experts and a window is Mixtral's.
    (crate::mixtral::ARCHITECTURE, crate::mixtral::plan),
    (crate::mistral::ARCHITECTURE, crate::mistral::plan),
    (crate::qwen2::ARCHITECTURE, crate::qwen2::plan),
    (crate::qwen2_moe::ARCHITECTURE, crate::qwen2_moe::plan),
    (crate::qwen3::ARCHITECTURE, crate::qwen3::plan),
    (crate::qwen3_moe::ARCHITECTURE, crate::qwen3_moe::plan),
    (crate::smollm3::ARCHITECTURE, crate::smollm3::plan),
];

/// Every `model_type` that [`build_plan`] covers.
pub const SUPPORTED: [&str; ARCHITECTURES.len()] = {
    let mut names = [""; ARCHITECTURES.len()];
    let mut index = 0;
    while index < names.len() {
        names[index] = ARCHITECTURES[index].0.model_type;
        index += 1;
    }
    names
};

/// The supported architectures, as files name them.
pub fn architectures() -> impl Iterator<Item = Architecture> {
    ARCHITECTURES.iter().map(|(architecture, _)| *architecture)
}

/// The plan of the model that `config`, a `config.json`, describes, in textbook ops. Every weight is asked of `source`
/// by name and shape.
pub fn build_plan(config: &Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let model_type = config.get("model_type").and_then(Value::as_str);
    let class = config.pointer("/architectures/0").and_then(Value::as_str);
    let known = ARCHITECTURES.iter().find(|(architecture, _)| match model_type {
        Some(model_type) => model_type == architecture.model_type,
        None => class == Some(architecture.class),
    });
    let Some((_, build)) = known else {
        return Err(match model_type.or(class) {
            Some(found) => ModelError::UnknownArchitecture { found: found.to_owned() },
            None => ModelError::NoArchitecture,
        });
    };
    let plan = build(config, source)?;
    verify(&plan)?;
    Ok(plan)
}

/// The tensors among `names` that `plan` does not read: each is a part of the model that would be silently left out, so
/// a loader refuses them.
///
/// Two kinds are harmless and not reported: the head of a model whose head is tied to the embedding, which some
/// checkpoints store a second time, and `rotary_emb.inv_freq`, which old ones store although it follows from the
/// configuration.
pub fn unread<'a>(plan: &Plan, names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let read: std::collections::HashSet<_> = plan.weights.iter().map(|weight| weight.name.as_str()).collect();
    let harmless = |name: &str| name == "lm_head.weight" || name.ends_with("rotary_emb.inv_freq");
    names.into_iter().filter(|name| !read.contains(name) && !harmless(name)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use plan::AnyShape;
    use serde_json::json;

    use super::*;

    fn tiny() -> Value {
        json!({
            "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2,
        })
    }

    #[test]
    fn an_unknown_architecture_is_refused_with_the_list_of_known_ones() {
        let error = build_plan(&json!({ "model_type": "mamba" }), &AnyShape).unwrap_err().to_string();
        assert_eq!(
            error,
            "architecture `mamba` is not supported; supported: glm4_moe_lite, deepseek_v2, deepseek_v3, glm4_moe, gpt_oss, \
                          llama, mixtral, mistral, qwen2, qwen2_moe, qwen3, qwen3_moe, smollm3"
        );
        let error = build_plan(&json!({ "architectures": ["GPT2LMHeadModel"] }), &AnyShape).unwrap_err().to_string();
        assert!(error.starts_with("architecture `GPT2LMHeadModel` is not supported"), "{error}");
        let error = build_plan(&json!([]), &AnyShape).unwrap_err().to_string();
        assert!(error.starts_with("config.json names no architecture"), "{error}");
    }

    /// Every file finds one architecture, and every field that a file implies is one.
    #[test]
    fn no_two_architectures_are_one_to_gguf_files() {
        let mut names: Vec<_> = architectures().flat_map(|found| found.gguf.architectures).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for architecture in architectures() {
            let implied = (architecture.gguf.implied)();
            assert!(implied.is_null() || implied.is_object(), "{}: {implied}", architecture.model_type);
            assert!(!architecture.gguf.architectures.is_empty(), "{}", architecture.model_type);
        }
    }

    #[test]
    fn the_class_stands_in_for_a_missing_model_type() {
        let mut config = tiny();
        config.as_object_mut().unwrap().remove("model_type");
        config["architectures"] = json!(["LlamaForCausalLM"]);
        assert_eq!(build_plan(&config, &AnyShape).unwrap().model_type, "llama");
    }

    /// As deep as a configuration may be: work grows with the layers, not with their square.
    #[test]
    fn the_deepest_plan_is_built_and_fused_at_once() {
        let mut config = tiny();
        config["num_hidden_layers"] = json!(1024);
        let start = std::time::Instant::now();
        let plan = plan::fuse(build_plan(&config, &AnyShape).unwrap());
        assert_eq!(plan.kv_layers.len(), 1024);
        let elapsed = start.elapsed();
        assert!(elapsed.as_secs() < 5, "{elapsed:?}");
    }

    #[test]
    fn tensors_that_nobody_reads_are_named() {
        let mut config = tiny();
        config["tie_word_embeddings"] = json!(true);
        let plan = build_plan(&config, &AnyShape).unwrap();
        let extra = "model.layers.0.self_attn.q_proj.bias";
        let inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq";
        let names = plan.weights.iter().map(|weight| weight.name.as_str());
        assert_eq!(unread(&plan, names.chain(["lm_head.weight", inv_freq, extra])), [extra]);
    }

    #[test]
    fn a_missing_or_misshapen_tensor_is_named_with_both_shapes() {
        let plan = build_plan(&tiny(), &AnyShape).unwrap();
        let all = || plan.weights.iter().map(|weight| (weight.name.clone(), weight.shape.clone()));
        let mut shapes: std::collections::HashMap<_, _> = all().collect();
        assert_eq!(build_plan(&tiny(), &shapes).unwrap(), plan);
        shapes.insert("model.layers.0.mlp.up_proj.weight".to_owned(), vec![12, 9]);
        let error = build_plan(&tiny(), &shapes).unwrap_err().to_string();
        let expected =
            "tensor `model.layers.0.mlp.up_proj.weight` has shape [12, 9], but the configuration implies [12, 8]";
        assert_eq!(error, expected);
        shapes.remove("model.layers.0.mlp.up_proj.weight");
        let error = build_plan(&tiny(), &shapes).unwrap_err().to_string();
        assert!(error.starts_with("the checkpoint has no tensor `model.layers.0.mlp.up_proj.weight`"), "{error}");
    }
}
