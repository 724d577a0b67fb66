//! See `fuzz/oracles/http.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/http.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::http(data));
