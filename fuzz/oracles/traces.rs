//! The oracle of `traces`, over the worlds of the engine's tests.

use super::world::{Random, run_world};

/// A world of requests: bytes say its sizes, who comes when with what prompt and sampling, who is cancelled, and which
/// step fails. Each request gets the text that it gets alone, every block is owned as it is counted after every step,
/// nobody starves, and all blocks come back.
pub(crate) fn traces(data: &[u8]) {
    if let Err(what) = run_world(&mut Random::written(data), 400) {
        panic!("{what}");
    }
}
