//! See `fuzz/oracles/stream.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;

libfuzzer_sys::fuzz_target!(|data: &[u8]| server::fuzzing::stream(data));
