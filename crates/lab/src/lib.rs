//! What the commands that measure and prove kernels share (`bench kernels`, `tune`): single ops with their shapes, the
//! time of one, comparison with the reference and with exact arithmetic, and what samples say.
//!
//! An op is taken out of a model as a [`cases::Case`], which makes plans of it: with many copies, whose weights no cache
//! holds, to take the time ([`measure`]), or with one, to hold every way to launch it to its error bound ([`check`]).
#![forbid(unsafe_code)]

pub mod cases;
pub mod check;
pub mod measure;
pub mod patterns;
pub mod statistics;

/// Tokens in a block of the KV cache, as the program has them.
pub const KV_BLOCK_LEN: usize = 32;
