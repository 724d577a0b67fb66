//! What every block format does.

use bytemuck::Pod;
use half::f16;

use super::weighed::Numbers;
use super::{Packing, fit, q8_0};

/// A block of a format: its weights, how it is packed, and the blocks of Q8_0 that come nearest.
pub trait PackedBlock: Pod {
    /// Weights in a block, a multiple of [`q8_0::BLOCK_LEN`].
    const LEN: usize;

    /// Packs [`PackedBlock::LEN`] finite weights; importance is that of each of them.
    fn pack(weights: &[f32], packing: Packing<'_>) -> Self;

    /// The sum of its scales: not finite where one of them is not, or where a code is no number.
    fn scale_sum(&self) -> f32;

    /// The weights, as the format defines them in f32.
    fn unpack(&self, weights: &mut [f32]);

    /// The same as Q8_0. Exact where a format's codes fit a signed byte and 32 of them share a scale; elsewhere rounded
    /// once more, by at most 1/254 of the largest weight of each 32.
    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        let mut weights = [0f32; 256];
        let weights = &mut weights[..Self::LEN];
        self.unpack(weights);
        for (block, weights) in blocks.iter_mut().zip(weights.as_chunks::<{ q8_0::BLOCK_LEN }>().0) {
            // All of them, as that is faster than to stop.
            let is_finite = weights.iter().fold(true, |all, weight| all & weight.is_finite());
            // A damaged block must not become one of zeros.
            *block = if is_finite { q8_0::pack(weights) } else { q8_0::Block { scale: f16::NAN, codes: [0; 32] } };
        }
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

/// Appends the blocks that whole blocks of weights are packed to; importance is that of a row of them.
pub(crate) fn pack_blocks<B: PackedBlock>(weights: &[f32], packing: Packing<'_>, bytes: &mut Vec<u8>) {
    let blocks = weights.chunks_exact(B::LEN);
    match packing {
        Packing::Weighted(importance) => {
            let importance = importance.chunks_exact(B::LEN).cycle();
            blocks.zip(importance).for_each(|(block, importance)| {
                bytes.extend_from_slice(bytemuck::bytes_of(&pack_weighted::<B>(block, importance)));
            });
        }
        _ => blocks.for_each(|block| bytes.extend_from_slice(bytemuck::bytes_of(&B::pack(block, packing)))),
    }
}

/// The better of the blocks that a search finds with importance and without: where parts of a block share units, what is
/// best for each part may be worse for all of them, and importance must never cost anything by its own measure.
fn pack_weighted<B: PackedBlock>(weights: &[f32], importance: &[f32]) -> B {
    let lost = |block: &B| -> f32 {
        let mut back = [0f32; 256];
        let back = &mut back[..B::LEN];
        block.unpack(back);
        let lost = |((weight, back), counts): ((&f32, &f32), &f32)| counts * (weight - back).powi(2);
        weights.iter().zip(back.iter()).zip(importance).map(lost).sum()
    };
    let (without, with) = (B::pack(weights, Packing::Searched), B::pack(weights, Packing::Weighted(importance)));
    if lost(&with) < lost(&without) { with } else { without }
}

/// Whole blocks as Q8_0.
pub(crate) fn to_q8_0<B: PackedBlock>(blocks: &[u8], expanded: &mut [q8_0::Block]) {
    let each = B::LEN / q8_0::BLOCK_LEN;
    read::<B>(blocks).zip(expanded.chunks_exact_mut(each)).for_each(|(block, expanded)| block.to_q8_0(expanded));
}

/// The first block with a scale that is not finite or a code that is no number, and the sum of its scales.
pub(crate) fn first_not_finite<B: PackedBlock>(blocks: &[u8]) -> Option<(usize, f32)> {
    read::<B>(blocks).map(|block| block.scale_sum()).enumerate().find(|(_, sum)| !sum.is_finite())
}

/// The codes of 32 weights of which a byte holds j and j + 16: the lower and the upper four bits.
pub(super) fn halves(nibbles: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|j| if j < 16 { nibbles[j] & 15 } else { nibbles[j - 16] >> 4 })
}

/// The inverse of [`halves`].
pub(super) fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] | codes[j + 16] << 4)
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

/// The codes of 32 weights in five bits: the lower four as in [`halves`], the fifth of weight j in bit j of `high`.
pub(super) fn five_bits(low: &[u8; 16], high: [u8; 4]) -> [u8; 32] {
    let (low, high) = (halves(low), u32::from_le_bytes(high));
    std::array::from_fn(|j| low[j] | ((high >> j & 1) as u8) << 4)
}

/// The inverse of [`five_bits`].
pub(super) fn pack_five_bits(codes: &[u8; 32]) -> ([u8; 16], [u8; 4]) {
    let high = codes.iter().enumerate().fold(0u32, |high, (j, code)| high | u32::from(code >> 4 & 1) << j);
    (nibbles(&codes.map(|code| code & 15)), high.to_le_bytes())
}

/// The inverse of [`scales_and_minima`].
pub(super) fn pack_scales_and_minima(pairs: &[(u8, u8); 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => pairs[i].0 | pairs[i + 4].0 >> 4 << 6,
        4..8 => pairs[i - 4].1 | pairs[i].1 >> 4 << 6,
        _ => pairs[i - 4].0 & 15 | (pairs[i - 4].1 & 15) << 4,
    })
}

/// The ranges of `PARTS` parts of 256 weights: scale and minimum of each, as integers of two units that all share.
pub(super) struct Ranges<const PARTS: usize> {
    /// The unit of scales.
    pub(super) scale: f16,
    /// The unit of minima, which are subtracted.
    pub(super) minimum: f16,
    /// Scale and minimum of each part.
    pub(super) pairs: [(u8, u8); PARTS],
}

impl<const PARTS: usize> Ranges<PARTS> {
    /// For codes from 0 to `most`, and integers up to `largest`.
    pub(super) fn of(weights: &[f32], most: f32, largest: u8, packing: Packing<'_>) -> Self {
        let range = |i: usize| i * weights.len() / PARTS..(i + 1) * weights.len() / PARTS;
        let (part, packing) = (|i: usize| &weights[range(i)], |i: usize| packing.part(range(i)));
        let exact: [(f32, f32); PARTS] = std::array::from_fn(|i| fit::range(part(i), most, true, packing(i)));
        let unit = |values: [f32; PARTS]| f16::from_f32(values.into_iter().fold(0.0, f32::max) / f32::from(largest));
        let (scale, minimum) = (unit(exact.map(|pair| pair.0)), unit(exact.map(|pair| -pair.1)));
        let units = (scale.to_f32(), minimum.to_f32());
        let pairs = std::array::from_fn(|i| fit::units(part(i), exact[i], units, (largest, most), packing(i)));
        Self { scale, minimum, pairs }
    }

    /// Scale and minimum of each part.
    pub(super) fn parts(&self) -> [(f32, f32); PARTS] {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        self.pairs.map(|pair| (scale * f32::from(pair.0), minimum * f32::from(pair.1)))
    }
}

/// The scales of `PARTS` parts of `LEN` weights as signed integers of a unit that all share, from `-range` to
/// `range - 1`; `first` is the code of the weight of the largest magnitude.
pub(super) fn signed_scales<const LEN: usize, const PARTS: usize>(
    parts: &[[f32; LEN]],
    first: f32,
    numbers: impl Numbers,
    range: f32,
    packing: Packing<'_>,
) -> (f16, [i8; PARTS]) {
    let exact: [f32; PARTS] = std::array::from_fn(|i| {
        let packing = packing.part(i * LEN..(i + 1) * LEN);
        fit::scale(&parts[i], fit::farthest(&parts[i]) / first, numbers, |scale| scale, packing)
    });
    let unit = f16::from_f32(fit::farthest(&exact) / -range);
    let (inverse, nearest) = (fit::inverse(unit.to_f32()), fit::nearest(-range, range - 1.0));
    (unit, exact.map(|exact| nearest(exact * inverse)))
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
