//! One file for each model architecture: what a checkpoint computes, as a plan of textbook ops under the checkpoint's
//! own names, from its `config.json`.
//!
//! Knows nothing of devices, of how files are read, or of weight dtypes; of GGUF it knows each architecture's own names
//! ([`GgufNames`]). Fusion, paging and quantization are passes over the plan or
//! the backend's business.

#![forbid(unsafe_code)]

mod architecture;
mod blocks;
mod config;
mod deepseek_v2;
mod deepseek_v3;
mod experts;
mod glm4_moe;
mod glm4_moe_lite;
mod gpt_oss;
mod latent;
mod llama;
mod mistral;
mod mixtral;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_moe;
mod registry;
mod rope;
mod smollm3;

pub use architecture::{Architecture, GgufNames};
pub use config::ConfigError;
pub use registry::{ModelError, SUPPORTED, architectures, build_plan, unread};
pub use rope::{CTX_SIZE, yarn_attention_factor};
