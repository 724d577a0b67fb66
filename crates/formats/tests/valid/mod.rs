//! Small valid files, made by the writers under test.
#![allow(dead_code, reason = "each test binary uses some of it")]

pub(crate) mod mixtures;

use bytes::Bytes;
use formats::{
    gguf::{Array, GgufWriter, Value},
    gguf_names::Architecture,
    safetensors,
};
use serde_json::json;
use tensor::{Tensor, WeightFormat};

/// Numbers that are different everywhere and exact in every format but Q8_0.
pub(crate) fn ramp(format: WeightFormat, shape: &[usize], start: i32) -> Tensor {
    let len: usize = shape.iter().product();
    let values: Vec<f32> = (0..len as i32).map(|i| ((start + i * 7) % 64) as f32 * 0.25 - 8.0).collect();
    Tensor::from_f32(format, shape.to_vec(), &values).unwrap()
}

pub(crate) const HIDDEN: usize = 32;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 8;

/// What the program says of some models, whose files are written here.
pub(crate) static ARCHITECTURES: [Architecture; 4] = [
    Architecture {
        model_type: "mixtral",
        class: "MixtralForCausalLM",
        names: &[("llama", Some("expert_count"))],
        pairs_rows: true,
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "llama",
        class: "LlamaForCausalLM",
        names: &[("llama", None)],
        pairs_rows: true,
        ..Architecture::SHARED
    },
    Architecture {
        model_type: "mistral",
        class: "MistralForCausalLM",
        names: &[("llama", Some("attention.sliding_window")), ("mistral", None)],
        implied: || json!({ "sliding_window": null }),
        pairs_rows: true,
        ..Architecture::SHARED
    },
    Architecture { model_type: "qwen2", class: "Qwen2ForCausalLM", names: &[("qwen2", None)], ..Architecture::SHARED },
];

/// A model of one layer, architecture `architecture`, with a vocabulary of three tokens and every kind of metadata.
pub(crate) fn gguf_writer(architecture: &str) -> GgufWriter {
    let mut writer = GgufWriter::new();
    let key = |name: &str| format!("{architecture}.{name}");
    writer
        .metadata("general.architecture", Value::String(architecture.into()))
        .metadata(&key("block_count"), Value::U32(1))
        .metadata(&key("embedding_length"), Value::U32(HIDDEN as u32))
        .metadata(&key("feed_forward_length"), Value::U16(64))
        .metadata(&key("attention.head_count"), Value::U32(HEADS as u32))
        .metadata(&key("attention.head_count_kv"), Value::I32(KV_HEADS as i32))
        .metadata(&key("attention.key_length"), Value::U64(HEAD_DIM as u64))
        .metadata(&key("attention.layer_norm_rms_epsilon"), Value::F32(1e-5))
        .metadata(&key("rope.freq_base"), Value::F64(500_000.0))
        .metadata(&key("context_length"), Value::I64(512))
        .metadata("tokenizer.ggml.model", Value::String("llama".into()))
        .metadata("tokenizer.ggml.tokens", Value::Array(Array::of_strings(["<unk>", "<s>", "é"])))
        .metadata("tokenizer.ggml.scores", Value::Array(Array::of_f32(&[0.0, -1.0, -2.5])))
        .metadata("tokenizer.ggml.token_type", Value::Array(Array::of_i32(&[2, 3, 1])))
        .metadata("tokenizer.ggml.bos_token_id", Value::U32(1))
        .metadata("tokenizer.ggml.eos_token_id", Value::U32(2))
        .metadata("tokenizer.ggml.add_bos_token", Value::Bool(true))
        .metadata("tokenizer.chat_template", Value::String("{{ messages }}".into()));
    for (name, tensor) in tensors() {
        writer.tensor(gguf_name(&name), &tensor);
    }
    writer
}

/// The tensors of that model, under the checkpoint's names, as the file stores them.
pub(crate) fn tensors() -> Vec<(String, Tensor)> {
    use WeightFormat::{BF16, F16, F32};
    [
        ("model.embed_tokens.weight", F16, &[3, HIDDEN][..]),
        ("model.layers.0.input_layernorm.weight", F32, &[HIDDEN]),
        ("model.layers.0.self_attn.q_proj.weight", F16, &[HEADS * HEAD_DIM, HIDDEN]),
        ("model.layers.0.self_attn.k_proj.weight", BF16, &[KV_HEADS * HEAD_DIM, HIDDEN]),
        ("model.layers.0.self_attn.k_proj.bias", F32, &[KV_HEADS * HEAD_DIM]),
        ("model.norm.weight", F32, &[HIDDEN]),
    ]
    .iter()
    .enumerate()
    .map(|(i, (name, format, shape))| ((*name).to_string(), ramp(*format, shape, i as i32 * 11)))
    .collect()
}

pub(crate) fn gguf_name(name: &str) -> &str {
    match name {
        "model.embed_tokens.weight" => "token_embd.weight",
        "model.layers.0.input_layernorm.weight" => "blk.0.attn_norm.weight",
        "model.layers.0.self_attn.q_proj.weight" => "blk.0.attn_q.weight",
        "model.layers.0.self_attn.k_proj.weight" => "blk.0.attn_k.weight",
        "model.layers.0.self_attn.k_proj.bias" => "blk.0.attn_k.bias",
        "model.norm.weight" => "output_norm.weight",
        other => panic!("no GGUF name for {other}"),
    }
}

pub(crate) const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "eos_token_id": [2, 1], "tie_word_embeddings": true}"#;

/// A folder with one safetensors file.
pub(crate) fn folder() -> Vec<(&'static str, Bytes)> {
    let metadata = [("format".to_string(), "pt".to_string())];
    vec![
        ("config.json", Bytes::from_static(CONFIG.as_bytes())),
        ("model.safetensors", safetensors::write(&tensors(), &metadata).unwrap()),
        ("tokenizer.json", Bytes::from_static(b"{}")),
        ("tokenizer_config.json", Bytes::from_static(br#"{"chat_template": "{{ messages }}", "eos_token": "</s>"}"#)),
    ]
}

/// The same checkpoint in two shards with an index.
pub(crate) fn sharded_folder() -> Vec<(&'static str, Bytes)> {
    let all = tensors();
    let (first, second) = all.split_at(3);
    const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut weight_map = serde_json::Map::new();
    for (shard, tensors) in SHARDS.into_iter().zip([first, second]) {
        for (name, _) in tensors {
            weight_map.insert(name.clone(), shard.into());
        }
    }
    let index = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": weight_map}).to_string();
    vec![
        ("config.json", Bytes::from_static(CONFIG.as_bytes())),
        ("model.safetensors.index.json", index.into()),
        (SHARDS[0], safetensors::write(first, &[]).unwrap()),
        (SHARDS[1], safetensors::write(second, &[]).unwrap()),
    ]
}
