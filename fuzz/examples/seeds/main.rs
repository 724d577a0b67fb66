//! Writes the seeds that are computed: `cargo run --example seeds`, in the folder `fuzz`. Those that are plain text (of
//! `stream`, `template` and `http`, and the small ones of `grammar`) are written by hand.

mod blocks;
mod grammar;
#[path = "../../oracles/formats.rs"]
#[allow(dead_code, reason = "only the names are used")]
mod oracles;
mod tokenizer;
#[path = "../../../crates/formats/tests/valid/mod.rs"]
mod valid;

use std::{fs, path::Path};

use bytes::Bytes;
use formats::gguf::{Array, GgmlType, GgufWriter, Value};

fn main() {
    save("gguf_header", "model", &valid::gguf_writer("llama").to_bytes());
    save("gguf_header", "vocabulary", &vocabulary().to_bytes());
    save("gguf_header", "every_type", &every_type().to_bytes());
    save("gguf_header", "empty", &GgufWriter::new().to_bytes());
    for (name, bytes) in valid::folder().into_iter().chain(valid::sharded_folder()) {
        if name.ends_with(".safetensors") {
            save("safetensors_header", name, &bytes);
        }
    }
    let header = br#"{"__metadata__":{"a":"b"},"x":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]},"s":{"dtype":"I64","shape":[],"data_offsets":[1,9]}}"#;
    let mut small = (header.len() as u64).to_le_bytes().to_vec();
    small.extend_from_slice(header);
    small.extend_from_slice(&[7; 9]);
    save("safetensors_header", "small", &small);
    save("model_open", "single", &pack(&valid::folder()));
    let index = r#"{"metadata":{"total_size":1},"weight_map":{"x":"model-00001-of-00001.safetensors","s":"model-00001-of-00001.safetensors"}}"#;
    save(
        "model_open",
        "sharded",
        &pack(&[
            ("config.json", "{}".into()),
            ("model.safetensors.index.json", index.into()),
            ("model-00001-of-00001.safetensors", small.into()),
            ("generation_config.json", r#"{"eos_token_id":[1,2]}"#.into()),
            ("tokenizer.json", "{}".into()),
            ("tokenizer_config.json", r#"{"chat_template":[{"name":"default","template":"x"}]}"#.into()),
            ("chat_template.jinja", "{{ x }}".into()),
            ("chat_template.json", r#"{"chat_template":"y"}"#.into()),
        ]),
    );
    save("model_open", "gguf", &pack(&[("model.gguf", valid::gguf_writer("llama").to_bytes())]));
    save("model_open", "vocabulary", &pack(&[("model.gguf", vocabulary().to_bytes())]));
    grammar::save_all();
    tokenizer::save_all();
    blocks::save_all();
}

fn vocabulary() -> GgufWriter {
    let mut writer = GgufWriter::new();
    let nested = Array::of_arrays([&Array::of_i32(&[1, 2]), &Array::of_strings(["a", ""])]);
    writer
        .metadata("general.architecture", Value::String("llama".into()))
        .metadata("general.alignment", Value::U32(8))
        .metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
        .metadata("tokenizer.ggml.pre", Value::String("llama-bpe".into()))
        .metadata("tokenizer.ggml.tokens", Value::Array(Array::of_strings(["a", "b", "ab"])))
        .metadata("tokenizer.ggml.merges", Value::Array(Array::of_strings(["a b"])))
        .metadata("tokenizer.ggml.eot_token_id", Value::U8(2))
        .metadata("llama.attention.head_count", Value::Array(Array::of_i32(&[2, 2])))
        .metadata("llama.rope.scaling.type", Value::String("linear".into()))
        .metadata("llama.rope.scaling.factor", Value::F64(2.0))
        .metadata("x.nested", Value::Array(nested))
        .metadata("x.i8", Value::I8(-1))
        .metadata("x.i16", Value::I16(-1))
        .metadata("x.bool", Value::Bool(false));
    writer
}

/// One block of every tensor type.
fn every_type() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.alignment", Value::U32(1));
    for ggml_type in GgmlType::all() {
        let data = Bytes::from(vec![ggml_type.id() as u8; ggml_type.block_bytes() as usize]);
        writer.raw_tensor(ggml_type.name(), ggml_type, &[ggml_type.block_len()], data);
    }
    writer
}

/// The form that `model_open` reads.
fn pack(files: &[(&str, Bytes)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        out.push(oracles::NAMES.iter().position(|known| known == name).expect("a name the target knows") as u8);
        out.extend((bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

fn save(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    fs::create_dir_all(&folder).expect("the seeds folder can be made");
    fs::write(folder.join(name), bytes).expect("a seed can be written");
}
