//! See `fuzz/oracles/quant_blocks.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/quant_blocks.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::quant_blocks(data));
