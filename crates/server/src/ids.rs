//! Ids of answers and of requests.

/// `chatcmpl-…`: an id for an answer, unlike any other.
pub(crate) fn random_id(prefix: &str) -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = || std::collections::hash_map::RandomState::new().build_hasher().finish();
    format!("{prefix}-{:016x}{:016x}", random(), random())
}
