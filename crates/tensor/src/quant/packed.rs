//! Block formats that are read from files and computed with as Q8_0.

use bytemuck::Pod;
use half::f16;

use super::{iq4_nl, iq4_xs, mxfp4, q2_k, q3_k, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0};

/// A block of a format that has no kernels of its own: what it stands for, and the blocks of Q8_0 that come nearest.
pub trait PackedBlock: Pod {
    /// Weights in a block, a multiple of [`q8_0::BLOCK_LEN`].
    const LEN: usize;

    /// The weights, as the format defines them in f32.
    fn unpack(&self, weights: &mut [f32]);

    /// The same as Q8_0. Exact where a format's codes fit a signed byte and 32 of them share a scale; elsewhere rounded
    /// once more, by at most 1/254 of the largest weight of each 32.
    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        let mut weights = [0f32; 256];
        let weights = &mut weights[..Self::LEN];
        self.unpack(weights);
        for (block, weights) in blocks.iter_mut().zip(weights.as_chunks::<{ q8_0::BLOCK_LEN }>().0) {
            let is_finite = weights.iter().all(|weight| weight.is_finite());
            // A damaged block must not become one of zeros.
            *block = if is_finite { q8_0::pack(weights) } else { q8_0::Block { scale: f16::NAN, codes: [0; 32] } };
        }
    }
}

/// Declares the formats: one line each.
macro_rules! packed_formats {
    ($($name:ident $text:literal $block:ty;)*) => {
        /// A block format that files hold and that is expanded to [`crate::WeightFormat::Q8_0`].
        #[expect(non_camel_case_types, reason = "these are the published names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PackedFormat { $(#[doc = concat!("`", $text, "` of GGUF.")] $name,)* }

        impl PackedFormat {
            /// Every format.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The published name.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Weights in a block.
            pub fn block_len(self) -> usize {
                match self { $(Self::$name => <$block as PackedBlock>::LEN,)* }
            }

            /// Bytes of a block.
            pub fn block_bytes(self) -> usize {
                match self { $(Self::$name => size_of::<$block>(),)* }
            }

            /// The weights of whole blocks, exactly. `weights` is as long as they are.
            pub fn unpack(self, blocks: &[u8], weights: &mut [f32]) {
                match self { $(Self::$name => unpack_blocks::<$block>(blocks, weights),)* }
            }

            /// Whole blocks as Q8_0 ([`PackedBlock::to_q8_0`]). `expanded` has room for as many weights.
            pub fn to_q8_0(self, blocks: &[u8], expanded: &mut [q8_0::Block]) {
                match self { $(Self::$name => to_q8_0::<$block>(blocks, expanded),)* }
            }
        }
    };
}

packed_formats! {
    Q4_0 "Q4_0" q4_0::Block;
    Q4_1 "Q4_1" q4_1::Block;
    Q5_0 "Q5_0" q5_0::Block;
    Q5_1 "Q5_1" q5_1::Block;
    Q2_K "Q2_K" q2_k::Block;
    Q3_K "Q3_K" q3_k::Block;
    Q4_K "Q4_K" q4_k::Block;
    Q5_K "Q5_K" q5_k::Block;
    Q6_K "Q6_K" q6_k::Block;
    IQ4_NL "IQ4_NL" iq4_nl::Block;
    IQ4_XS "IQ4_XS" iq4_xs::Block;
    MXFP4 "MXFP4" mxfp4::Block;
}

impl PackedFormat {
    /// The format of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|format| format.name() == name)
    }
}

/// The blocks in `bytes`, wherever these lie.
fn read<B: PackedBlock>(bytes: &[u8]) -> impl Iterator<Item = B> {
    bytes.chunks_exact(size_of::<B>()).map(bytemuck::pod_read_unaligned)
}

/// The weights of whole blocks.
pub(crate) fn unpack_blocks<B: PackedBlock>(blocks: &[u8], weights: &mut [f32]) {
    read::<B>(blocks).zip(weights.chunks_exact_mut(B::LEN)).for_each(|(block, weights)| block.unpack(weights));
}

/// Appends the blocks that `pack` makes of each `LEN` weights.
pub(crate) fn pack_blocks<B: PackedBlock, const LEN: usize>(
    weights: &[f32],
    pack: impl Fn(&[f32; LEN]) -> B,
    bytes: &mut Vec<u8>,
) {
    weights.as_chunks().0.iter().for_each(|block| bytes.extend_from_slice(bytemuck::bytes_of(&pack(block))));
}

fn to_q8_0<B: PackedBlock>(blocks: &[u8], expanded: &mut [q8_0::Block]) {
    let each = B::LEN / q8_0::BLOCK_LEN;
    read::<B>(blocks).zip(expanded.chunks_exact_mut(each)).for_each(|(block, expanded)| block.to_q8_0(expanded));
}

/// The codes of 32 weights of which a byte holds j and j + 16: the lower and the upper four bits.
pub(super) fn halves(nibbles: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|j| if j < 16 { nibbles[j] & 15 } else { nibbles[j - 16] >> 4 })
}

/// The inverse of [`halves`].
pub(super) fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] | codes[j + 16] << 4)
}

/// 1 / `step`; 0 where there is no step, so that all codes are those of zero.
pub(super) fn inverse(step: f32) -> f32 {
    if step == 0.0 { 0.0 } else { 1.0 / step }
}

/// The weight of the largest magnitude, the first of equals.
pub(super) fn farthest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |farthest: f32, &weight| if weight.abs() > farthest.abs() { weight } else { farthest })
}

/// The eight six-bit scales and the eight six-bit minima that Q4_K and Q5_K keep in 12 bytes: of the first four the lower
/// six bits of bytes 0 to 3 and 4 to 7; of the last four the nibbles of bytes 8 to 11, with the upper two bits of the
/// bytes before.
pub(super) fn scales_and_minima(packed: &[u8; 12]) -> [(u8, u8); 8] {
    std::array::from_fn(|i| match i {
        0..4 => (packed[i] & 63, packed[i + 4] & 63),
        _ => {
            let low = packed[i + 4];
            (low & 15 | packed[i - 4] >> 6 << 4, low >> 4 | packed[i] >> 6 << 4)
        }
    })
}

/// The inverse of [`scales_and_minima`].
pub(super) fn pack_scales_and_minima(pairs: &[(u8, u8); 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => pairs[i].0 | pairs[i + 4].0 >> 4 << 6,
        4..8 => pairs[i - 4].1 | pairs[i].1 >> 4 << 6,
        _ => pairs[i - 4].0 & 15 | (pairs[i - 4].1 & 15) << 4,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_and_minima_keep_their_six_bits() {
        for seed in 0..64u8 {
            let pairs =
                std::array::from_fn(|i| (seed.wrapping_mul(7 + i as u8) & 63, seed.wrapping_add(9 * i as u8) & 63));
            assert_eq!(scales_and_minima(&pack_scales_and_minima(&pairs)), pairs);
        }
    }
}
