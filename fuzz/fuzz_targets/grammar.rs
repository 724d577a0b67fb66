//! See `fuzz/oracles/grammar.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| server::fuzzing::grammar(data));
