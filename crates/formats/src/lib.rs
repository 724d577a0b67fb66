//! Model files: GGUF, safetensors and their configuration, from bytes to named tensors.
//!
//! Any bytes give a value or a [`FormatError`], never a panic, and memory and time stay in proportion to the file
//! ([`limits`]). Tensors are views of the bytes that were given, which are usually a mapped file.
//!
//! Knows nothing of what a model computes, of devices or of how to map a file. The names of tensors and configuration
//! keys are those of Hugging Face checkpoints, whatever the file ([`gguf_names`]).

#![forbid(unsafe_code)]

mod checkpoint;
mod config;
mod embedding;
mod error;
mod experts;
pub mod gguf;
pub mod gguf_names;
mod gguf_parts;
mod heads;
mod imatrix;
mod json;
pub mod limits;
mod made;
mod quantized;
pub mod safetensors;
mod shards;

pub use checkpoint::{Checkpoint, OpenFile, TensorInfo, TokenizerFiles, TokenizerSource};
pub use config::{ChatTemplates, ModelConfig};
pub use embedding::EmbeddingConfig;
pub use error::FormatError;
pub use gguf_parts::{Parts as GgufParts, name_parts as gguf_name_parts};
pub use imatrix::{Imatrix, Importance};
pub use quantized::{PackedLayout, PackedPart, PackedRows, PackedTensor};
pub use safetensors::SafetensorsWriter;

/// How much of a file there must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// All of it: every tensor lies inside the file.
    Whole,
    /// The header; the data may end anywhere.
    HeaderOnly,
}
