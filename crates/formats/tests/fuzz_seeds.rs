//! The seeds and past crashes of the fuzz targets, replayed through the same oracles with the stable compiler.

#[path = "../../../fuzz/oracles.rs"]
mod oracles;

use std::{fs, path::Path};

fn replay(target: &str, oracle: fn(&[u8]), files_min: usize) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut files = 0;
    for folder in ["seeds", "crashes"].map(|folder| fuzz.join(folder).join(target)) {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        for entry in entries {
            oracle(&fs::read(entry.unwrap().path()).unwrap());
            files += 1;
        }
    }
    assert!(files >= files_min, "{target}: only {files} inputs found");
}

#[test]
fn gguf_header() {
    replay("gguf_header", oracles::gguf_header, 4);
}

#[test]
fn safetensors_header() {
    replay("safetensors_header", oracles::safetensors_header, 4);
}

#[test]
fn model_open() {
    replay("model_open", oracles::model_open, 4);
}
