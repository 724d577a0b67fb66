//! See `fuzz/oracles/formats.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/formats.rs"]
#[allow(dead_code, reason = "each target uses one of them")]
mod oracles;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracles::model_open(data));
