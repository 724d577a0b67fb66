//! Block formats, one file each: the block as a type, its packer, and its exact meaning.

mod fit;
mod packed;
mod weighed;

pub mod fp8;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

pub use fit::Packing;
pub use packed::PackedBlock;
pub(crate) use packed::{first_not_finite, pack_blocks, to_q8_0, unpack_blocks};
