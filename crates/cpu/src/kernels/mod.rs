//! The kernels, each written once over the vector vocabulary of [`crate::simd`].
//!
//! # One order of accumulation
//!
//! An element of a result is always computed by the same operations in the same order, whatever else is in the step,
//! however it is split over threads, and at every instruction set:
//!
//! - A dot product of floats has sixteen accumulators; number l takes the products k = l, l + 16, … in order, each by one
//!   fused multiply-add, and the sixteen are summed by halves. One row or sixty-four, the tile only decides how many
//!   outputs are under way at once.
//! - A dot product with weights in blocks is exact in integers within each 32, and takes these in order with one fused
//!   multiply-add each, or one more where there is a minimum.
//! - A dot product of BF16 weights in tiles takes 32 products after another: the even and the odd ones are each a chain of
//!   fused multiply-adds from zero, and their sum is added.
//! - Attention treats positions in groups of [`attention::SPLIT`] that begin at multiples of it, and merges the groups in
//!   order, whether one thread did them all or each another.
//!
//! # What it costs
//!
//! - AVX2 and NEON need two and four registers for an accumulator, which leaves smaller register tiles (3 × 2 outputs
//!   instead of 6 × 4): prefill there is bound by loads before multiplications.
//! - The scalar level needs a fused multiply-add, which is a library call where the baseline has none (x86-64).
//! - A float GEMM reads weights along k and sums across lanes at the end of each output: about 10 % at k = 896, less
//!   above.
//! - A dot product is never split over threads along k, so a projection with fewer than sixteen outputs a thread leaves
//!   threads idle.
//!
//! Decode loses nothing: it waits for memory.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod linear;
pub(crate) mod linear_blocks;
pub(crate) mod linear_tiles;
pub(crate) mod math;
pub(crate) mod mla_attention;
pub(crate) mod quantize;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod route;
