//! The Hugging Face hub and its cache: finding models on this disk, bringing them here, and removing them.
//!
//! The cache is laid out as `huggingface_hub` lays it out, so that both see each other's files; `cache` describes it.
//! Nothing in here knows what is inside a model file.
//!
//! What a pull promises, whatever the server, the network or the disk do (`store`, `download`): a file under its final
//! name is complete and has the hash that the hub announced; a pull that ended in any way is resumed by the next one;
//! the token is seen by the endpoint's own host only; no name from a server leads outside the cache.

mod cache;
mod checksum;
mod client;
mod disk;
mod download;
mod error;
#[cfg(test)]
mod fault_tests;
mod names;
mod progress;
mod select;
mod settings;
mod store;

use std::path::PathBuf;

pub(crate) use cache::{Cache, CachedRepo, CachedRevision};
pub(crate) use download::{Look, pull};
use error::HubError;
pub(crate) use names::ModelRef;
pub(crate) use select::quantization;
pub(crate) use settings::Settings;

/// The path of a cached model for an argument such as `ORG/REPO` or `ORG/REPO:Q8_0`, at its `main` revision.
///
/// A folder for a safetensors checkpoint, a file for GGUF (its first part, if it has several) or a file by name.
/// `None` when the argument has not that form or nothing of the repository is cached; an error when it is cached but
/// incomplete, or holds several models to choose from.
pub(crate) fn resolve(model: &str) -> Result<Option<PathBuf>, HubError> {
    let Ok(model) = model.parse::<ModelRef>() else { return Ok(None) };
    Cache::new(&Settings::from_env()?.cache).resolve(&model, None)
}
