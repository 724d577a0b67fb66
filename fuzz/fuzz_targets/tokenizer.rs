//! See `fuzz/oracles/tokenizer.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/tokenizer.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::tokenizer(data));
