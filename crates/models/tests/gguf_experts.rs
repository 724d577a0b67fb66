//! Models with experts as GGUF files: what a file says gives the plan of the checkpoint that it was made of.

use std::collections::HashMap;

use formats::Checkpoint;
use formats::gguf::{GgufWriter, Value};
use models::{build_plan, unread};
use plan::AnyShape;
use serde_json::{Value as Json, json};
use tensor::{Tensor, WeightFormat};

#[path = "../../cli/src/gguf_architectures.rs"]
mod gguf_architectures;

/// A small model of each kind with experts, but for its `model_type`.
fn config(model_type: &str) -> Json {
    let mut config = json!({
        "model_type": model_type, "vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "num_experts_per_tok": 2,
        "norm_topk_prob": model_type != "qwen2_moe",
    });
    let more = match model_type {
        "mixtral" => json!({ "num_local_experts": 3 }),
        "qwen2_moe" => json!({ "num_experts": 3, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12 }),
        "qwen3_moe" => json!({ "num_experts": 3, "moe_intermediate_size": 8 }),
        other => panic!("no configuration of {other}"),
    };
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn a_gguf_file_gives_the_plan_and_the_weights_of_its_checkpoint() {
    for model_type in ["mixtral", "qwen2_moe", "qwen3_moe"] {
        let config = config(model_type);
        let expected = build_plan(&config, &AnyShape).unwrap();
        let names = gguf_architectures::names(model_type);
        let architecture = names.architecture().unwrap();
        let own = gguf_architectures::all().iter().find(|own| own.model_type == model_type).unwrap();
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", Value::String(architecture.into()));
        let keys = [
            ("block_count", "num_hidden_layers"),
            ("embedding_length", "hidden_size"),
            ("feed_forward_length", "intermediate_size"),
            ("context_length", "max_position_embeddings"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
        ];
        for (key, field) in keys.iter().chain(own.keys) {
            writer.metadata(&format!("{architecture}.{key}"), Value::U32(config[field].as_u64().unwrap() as u32));
        }
        writer.metadata(&format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
        let weights: Vec<&str> = expected.weights.iter().map(|weight| weight.name.as_str()).collect();
        let mut tensors = HashMap::new();
        for (index, weight) in expected.weights.iter().enumerate() {
            let len: usize = weight.shape.iter().product();
            let values: Vec<f32> = (0..len).map(|at| (index * 1000 + at) as f32).collect();
            let tensor = Tensor::from_f32(WeightFormat::F32, weight.shape.clone(), &values).unwrap();
            tensors.insert(weight.name.as_str(), tensor);
        }
        for (name, parts) in names.gguf_tensors(&weights).unwrap() {
            let bytes = parts.iter().map(|&part| {
                let tensor = &tensors[weights[part]];
                match names.reordered_heads(&name, config.as_object().unwrap()) {
                    Some(heads) => formats::gguf_names::in_file_order(&name, tensor, heads).unwrap(),
                    None => tensor.clone(),
                }
            });
            let bytes: Vec<u8> = bytes.flat_map(|tensor| tensor.bytes().to_vec()).collect();
            let shape: Vec<u64> = tensors[weights[parts[0]]].shape().iter().map(|&dim| dim as u64).collect();
            let mut dims: Vec<u64> = names.shape_in_file(&name, &shape).into_iter().rev().collect();
            if name.contains("_exps.") {
                dims.push(parts.len() as u64);
            }
            let f32_type = formats::gguf::GgmlType::of(WeightFormat::F32).unwrap();
            writer.raw_tensor(&name, f32_type, &dims, bytes.into());
        }
        let file = [("model.gguf", writer.to_bytes())];
        let checkpoint = Checkpoint::from_bytes(&file, gguf_architectures::all()).unwrap();
        let shapes: HashMap<String, Vec<usize>> = checkpoint
            .tensor_infos()
            .map(|info| (info.name, info.shape.iter().map(|&dim| dim as usize).collect()))
            .collect();
        let found = build_plan(&checkpoint.config, &shapes).unwrap();
        assert_eq!(found, expected, "{model_type}");
        assert!(unread(&found, checkpoint.tensor_names()).is_empty());
        for (name, expected) in tensors {
            let found = checkpoint.tensor(name).unwrap();
            assert_eq!((found.shape(), found.bytes()), (expected.shape(), expected.bytes()), "{name}");
        }
    }
}
