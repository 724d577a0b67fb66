//! See `oracles::model_open`.
#![no_main]

#[path = "../oracles.rs"]
#[allow(dead_code, reason = "each target uses one of them")]
mod oracles;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracles::model_open(data));
