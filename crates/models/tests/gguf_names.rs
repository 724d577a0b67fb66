//! What GGUF files call each architecture, through the reader: which model a file is of, and what is in it under other
//! names or in another order.

use formats::Checkpoint;
use formats::gguf::{GgufWriter, Value};
use serde_json::json;

#[path = "../../cli/src/gguf_architectures.rs"]
mod gguf_architectures;

/// The `config.json` of a file that says this.
fn config(architecture: &str, keys: &[(&str, u32)]) -> serde_json::Value {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String(architecture.to_owned()));
    for (key, value) in keys {
        writer.metadata(&format!("{architecture}.{key}"), Value::U32(*value));
    }
    Checkpoint::config_of_gguf_header(writer.to_bytes(), gguf_architectures::all()).unwrap()
}

#[test]
fn a_file_is_of_the_model_that_its_keys_tell() {
    let (window, experts) = (("attention.sliding_window", 7), ("expert_count", 8));
    let sigmoid = ("expert_gating_func", 2);
    for (architecture, keys, model_type, class) in [
        ("llama", &[][..], "llama", json!(["LlamaForCausalLM"])),
        ("llama", &[("attention.sliding_window", 0), ("expert_count", 0)], "llama", json!(["LlamaForCausalLM"])),
        ("llama", &[window], "mistral", json!(["MistralForCausalLM"])),
        ("mistral", &[], "mistral", json!(["MistralForCausalLM"])),
        ("llama", &[window, experts], "mixtral", json!(["MixtralForCausalLM"])),
        ("qwen2", &[window, experts], "qwen2", json!(["Qwen2ForCausalLM"])),
        ("qwen3", &[], "qwen3", json!(["Qwen3ForCausalLM"])),
        ("smollm3", &[], "smollm3", json!(["SmolLM3ForCausalLM"])),
        ("qwen3moe", &[experts], "qwen3_moe", json!(["Qwen3MoeForCausalLM"])),
        ("qwen2moe", &[experts], "qwen2_moe", json!(["Qwen2MoeForCausalLM"])),
        ("gpt-oss", &[window, experts], "gpt_oss", json!(["GptOssForCausalLM"])),
        ("glm4moe", &[experts], "glm4_moe", json!(["Glm4MoeForCausalLM"])),
        ("deepseek2", &[experts], "deepseek_v2", json!(["DeepseekV2ForCausalLM"])),
        ("deepseek2", &[experts, ("expert_gating_func", 1)], "deepseek_v2", json!(["DeepseekV2ForCausalLM"])),
        ("deepseek2", &[experts, sigmoid], "deepseek_v3", json!(["DeepseekV3ForCausalLM"])),
        ("deepseek2", &[("vocab_size", 154_880), sigmoid], "glm4_moe_lite", json!(["Glm4MoeLiteForCausalLM"])),
    ] {
        let config = config(architecture, keys);
        assert_eq!((&config["model_type"], &config["architectures"]), (&json!(model_type), &class), "{config}");
        let number = |name| keys.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let count = match model_type {
            "qwen2_moe" | "qwen3_moe" => "num_experts",
            "glm4_moe" | "glm4_moe_lite" | "deepseek_v2" | "deepseek_v3" => "n_routed_experts",
            _ => "num_local_experts",
        };
        assert_eq!(config[count], json!(number("expert_count")), "{config}");
        assert_eq!(config["sliding_window"], json!(number("attention.sliding_window")), "{config}");
    }
    // A null, where a lack would be the default.
    assert!(config("mistral", &[]).as_object().unwrap().contains_key("sliding_window"));
    assert!(!config("llama", &[]).as_object().unwrap().contains_key("sliding_window"));
}

#[test]
fn tensors_have_their_names_and_rows_their_order() {
    let config = json!({ "num_attention_heads": 4, "num_key_value_heads": 2 });
    for model_type in models::SUPPORTED {
        let names = gguf_architectures::names(model_type);
        let written = match model_type {
            "mistral" | "mixtral" => "llama",
            "gpt_oss" => "gpt-oss",
            "deepseek_v2" | "deepseek_v3" | "glm4_moe_lite" => "deepseek2",
            "glm4_moe" => "glm4moe",
            "qwen2_moe" => "qwen2moe",
            "qwen3_moe" => "qwen3moe",
            same => same,
        };
        assert_eq!(names.architecture(), Some(written));
        let heads = |tensor: &str| names.reordered_heads(tensor, config.as_object().unwrap());
        let found = ["blk.0.attn_q.weight", "blk.0.attn_k.bias", "blk.0.attn_v.weight", "token_embd.weight"].map(heads);
        let is_reordered = ["llama", "mistral", "mixtral", "smollm3"].contains(&model_type);
        assert_eq!(found, if is_reordered { [Some(4), Some(2), None, None] } else { [None; 4] }, "{model_type}");
        let q_norm = "model.layers.0.self_attn.q_norm.weight";
        assert_eq!(names.checkpoint_name("blk.0.attn_q_norm.weight"), q_norm);
        assert_eq!(names.gguf_name(q_norm).as_deref(), Some("blk.0.attn_q_norm.weight"));
    }
}

/// Latent attention has widths of its own: keys of a head are not what the cache has, and a part of them is turned.
#[test]
fn latent_attention_has_the_sizes_of_its_keys() {
    let new = [
        ("attention.head_count", 5),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 24),
        ("attention.value_length", 18),
        ("attention.key_length_mla", 16),
        ("attention.value_length_mla", 14),
        ("attention.kv_lora_rank", 18),
        ("rope.dimension_count", 6),
    ];
    let config_of_new = config("deepseek2", &new);
    let found = ["qk_head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim"].map(|field| &config_of_new[field]);
    assert_eq!(found, [16, 14, 18, 6].map(|n| json!(n)).each_ref());
    assert_eq!(config_of_new.get("partial_rotary_factor"), None);
    // Files from before heads shared a row.
    let old = [("attention.key_length", 16), ("attention.value_length", 14), ("rope.dimension_count", 6)];
    let config_of_old = config("deepseek2", &old);
    let found = ["head_dim", "v_head_dim", "qk_rope_head_dim"].map(|field| &config_of_old[field]);
    assert_eq!(found, [16, 14, 6].map(|n| json!(n)).each_ref());
}
