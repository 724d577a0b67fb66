//! See `fuzz/oracles/traces.rs`.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/traces.rs"]
mod oracle;
#[path = "../../crates/engine/tests/engine/watched.rs"]
#[allow(dead_code, reason = "the engine's tests use all of it")]
mod watched;
#[path = "../../crates/engine/tests/engine/world.rs"]
#[allow(dead_code, reason = "the engine's tests use all of it")]
mod world;

libfuzzer_sys::fuzz_target!(|data: &[u8]| oracle::traces(data));
