//! Plain data: weight formats, tensors as named-shape views of bytes, and the exact meaning of each format.
//!
//! Knows nothing of files, threads or devices. A format is one file in [`quant`], with its packer, its exact inverse
//! and its block layout as a type; everything else here is size arithmetic, checked.

#![forbid(unsafe_code)]

mod activation;
mod format;
pub mod quant;
mod weight;

pub use activation::ActivationRounding;
pub use format::WeightFormat;
pub use weight::{Tensor, TensorError};
