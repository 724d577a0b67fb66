//! One file for each model architecture: what a checkpoint computes, as a plan of textbook ops under the checkpoint's
//! own names, from its `config.json`.
//!
//! Knows nothing of devices, file formats or weight dtypes. Fusion, paging and quantization are passes over the plan or
//! the backend's business.

#![forbid(unsafe_code)]

mod blocks;
mod config;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod registry;
mod rope;
mod smollm3;

pub use config::ConfigError;
pub use registry::{ModelError, SUPPORTED, build_plan, unread};
pub use rope::{CTX_SIZE, yarn_attention_factor};
