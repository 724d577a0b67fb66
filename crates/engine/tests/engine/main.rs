//! Tests of the engine from outside, on the null device.

mod fuzz_seeds;
mod pace;
mod requests;
mod simulation;
#[path = "../../../../fuzz/oracles/traces.rs"]
mod traces_oracle;
mod watched;
mod world;
