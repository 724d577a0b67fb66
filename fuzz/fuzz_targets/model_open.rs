//! A whole folder from bytes: configuration, index, shards, templates, GGUF. Every tensor that is listed is read or
//! refused with an error.
//!
//! The input is a sequence of files: an index into `NAMES`, a length (u16, little-endian), that many bytes.
#![no_main]

use bytes::Bytes;
use formats::Checkpoint;
use libfuzzer_sys::fuzz_target;

const NAMES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-00001-of-00001.safetensors",
    "model.gguf",
];

fuzz_target!(|data: &[u8]| {
    let mut files = Vec::new();
    let mut rest = data;
    while let [name, low, high, tail @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        let (file, tail) = tail.split_at(len);
        files.push((NAMES[usize::from(*name) % NAMES.len()], Bytes::copy_from_slice(file)));
        rest = tail;
    }
    let Ok(checkpoint) = Checkpoint::from_bytes(&files) else { return };
    assert!(checkpoint.config.is_object() && checkpoint.generation_config.is_object());
    let _ = checkpoint.eos_token_ids();
    let mut total = 0;
    for info in checkpoint.tensor_infos() {
        total += info.bytes;
        let finite = checkpoint.check_finite(&info.name);
        match checkpoint.tensor(&info.name) {
            Ok(tensor) => {
                assert_eq!(Some(tensor.format()), info.format);
                assert_eq!(tensor.bytes().len() as u64, info.bytes);
                assert!(tensor.shape().iter().map(|&d| d as u64).eq(info.shape.iter().copied()));
            }
            Err(_) => assert!(finite.is_err(), "refused for its type, its heads or its numbers"),
        }
    }
    assert_eq!(total, checkpoint.total_bytes());
});
