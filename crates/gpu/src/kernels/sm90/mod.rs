//! Kernels of compute capability 9.0 alone.

pub(crate) mod activations;
pub(crate) mod attention_cluster;
pub(crate) mod expanded_attention;
pub(crate) mod experts_mma;
pub(crate) mod gemm;
pub(crate) mod gemm_experts;
pub(crate) mod gemm_narrow;
pub(crate) mod mla_cluster;
pub(crate) mod prompt_attention;
