//! See `fuzz/oracles/template.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/template.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::template(data));
