//! The seeds and past crashes of the fuzz targets, replayed through the same oracles with the stable compiler.

#[path = "../../../fuzz/oracles/formats.rs"]
mod oracles;
#[path = "../../../fuzz/replay.rs"]
mod replay;

use replay::replay;

#[test]
fn seeds_of_gguf_header() {
    replay("gguf_header", oracles::gguf_header, 4);
}

#[test]
fn seeds_of_safetensors_header() {
    replay("safetensors_header", oracles::safetensors_header, 4);
}

#[test]
fn seeds_of_model_open() {
    replay("model_open", oracles::model_open, 4);
}
