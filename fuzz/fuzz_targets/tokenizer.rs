//! See `fuzz/oracles/tokenizer.rs`.
#![no_main]

#[path = "../oracles/tokenizer.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::tokenizer(data));
