//! What tests of several crates share: deterministic generators of tensors, models and steps; derived tolerances; golden
//! files.
//!
//! Knows nothing of backends: they bring themselves, and are compared with `plan::reference`.

#![forbid(unsafe_code)]

pub mod golden;
pub mod random;
pub mod sample;
pub mod steps;
pub mod tiny;
pub mod tolerance;

pub use golden::{GOLDEN_KV, Golden, golden_step, goldens};
pub use random::Rng;
pub use sample::Sample;
pub use steps::{BlockPool, Sequence};
pub use tiny::{MODEL_TYPES, tiny_model, tiny_plan};
pub use tolerance::ErrorAnalysis;

/// Whether this program was built with the address sanitizer; `.ci/run` sets the variable where it builds so.
pub fn has_address_sanitizer() -> bool {
    std::env::var_os("HOTMETAL_ADDRESS_SANITIZER").is_some()
}
