//! NVFP4: blocks of 64 floating-point numbers of four bits (E2M1), a scale of eight bits (E4M3) for each 16, and one of f32.
//!
//! Layout    40 bytes: `scale` (f32), 4 of `scales`, 2 × 16 bytes of codes, each as in MXFP4.
//! Meaning   `weight = number · (scale of 16 · scale)`, each product rounded to f32, as the published decoders multiply.
//! Packing   `scale` makes the largest of the scales of 16 the largest number of E4M3 (448); these make the largest magnitude of
//!           their weights 6, rounded to E4M3. Files have one `scale` for a matrix: [`matrix_scale`], [`pack_group`].
//! Error     |w - weight| <= 1/6 of the largest magnitude of the 16, and up to 1/16 more of it for the rounding of their scale.
//! Source    NVIDIA's ModelOpt and compressed-tensors (`nvfp4-pack-quantized`), where scales lie in tensors of their own, that of
//!           f32 once for a matrix; the block is of this program. GGUF's type of that name leaves the scale of f32 to a tensor of
//!           its own, too, and has 36 bytes.

use bytemuck::{Pod, Zeroable};
use pulp::Simd;

use super::fit::{self, farthest, inverse};
use super::fp8::{E4M3_MAX, e4m3, to_e4m3};
use super::mxfp4::{DOUBLED, code_of};
use super::packed::{halves, nibbles};
use super::weighed::{Numbers, climb, with_signs};
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 64;

/// Weights that share a scale of E4M3.
pub const GROUP_LEN: usize = 16;

/// One block: as in memory, no file has it.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What all scales are multiplied by.
    pub scale: f32,
    /// The scale of each [`GROUP_LEN`] weights, as codes of E4M3.
    pub scales: [u8; BLOCK_LEN / GROUP_LEN],
    /// The codes of each 32 weights, two a byte: those of weights j and j + 16.
    pub codes: [[u8; 16]; 2],
}

const _: () = assert!(size_of::<Block>() == 40 && align_of::<Block>() == 4);

/// The block of these codes, in the order of the weights.
pub fn from_codes(scale: f32, scales: [u8; BLOCK_LEN / GROUP_LEN], codes: &[u8; BLOCK_LEN]) -> Block {
    let (codes, _) = codes.as_chunks::<32>();
    Block { scale, scales, codes: [0, 1].map(|half: usize| nibbles(&codes[half].map(|code| code & 15))) }
}

/// Packs [`BLOCK_LEN`] weights of a matrix with this scale. Importance is that of each of them.
pub fn pack(weights: &[f32], scale: f32, packing: Packing<'_>) -> Block {
    let inverse_scale = inverse(scale);
    let (mut scales, mut codes) = ([0; BLOCK_LEN / GROUP_LEN], [0; BLOCK_LEN]);
    let groups = weights.as_chunks::<GROUP_LEN>().0.iter().zip(codes.as_chunks_mut::<GROUP_LEN>().0);
    for (index, (group, codes)) in groups.enumerate() {
        let packing = packing.part(index * GROUP_LEN..(index + 1) * GROUP_LEN);
        (scales[index], *codes) = pack_group(group, scale, inverse_scale, packing);
    }
    from_codes(scale, scales, &codes)
}

/// Appends the blocks that the rows of a matrix are packed to, with one scale as files have it; importance is that of a row.
pub(crate) fn pack_matrix(weights: &[f32], row_len: usize, packing: Packing<'_>, bytes: &mut Vec<u8>) {
    let scale = matrix_scale(farthest(weights).abs());
    for row in weights.chunks_exact(row_len.max(1)) {
        for (block, column) in row.chunks_exact(BLOCK_LEN).zip((0..).step_by(BLOCK_LEN)) {
            let block = pack(block, scale, packing.part(column..column + BLOCK_LEN));
            bytes.extend_from_slice(bytemuck::bytes_of(&block));
        }
    }
}

/// The codes of a block, in the order of the weights: the inverse of [`from_codes`].
pub fn codes(block: &Block) -> [u8; BLOCK_LEN] {
    let mut codes = [0; BLOCK_LEN];
    codes.as_chunks_mut().0.iter_mut().zip(&block.codes).for_each(|(codes, half)| *codes = halves(half));
    codes
}

/// What all scales of 16 of a matrix are multiplied by, where `largest` is the largest magnitude of its weights: the least power
/// of two such that none of them is beyond the largest number of E4M3.
///
/// Published writers take the scale at which the largest is just that number. E4M3 has an exponent of its own, so a power of two
/// loses as little, and it is exact however a decoder computes: multiplying with it, or dividing by its reciprocal.
pub fn matrix_scale(largest: f32) -> f32 {
    let least = largest / (6.0 * E4M3_MAX);
    // Up to the next exponent where there is a mantissa; far enough from both ends for the reciprocal and the products.
    let exponent = least.to_bits().div_ceil(1 << 23).clamp(27, 253);
    if largest > 0.0 { f32::from_bits(exponent << 23) } else { 1.0 }
}

/// Packs weights that share a scale of E4M3, as a multiple of `unit`: that scale, never negative, and their codes.
pub fn pack_group(
    weights: &[f32; GROUP_LEN],
    unit: f32,
    inverse_unit: f32,
    packing: Packing<'_>,
) -> (u8, [u8; GROUP_LEN]) {
    let to_scale = |scale: f32| to_e4m3((scale * inverse_unit).max(0.0));
    let scale = to_scale(fit::scale(weights, fitting(weights), E2m1, |scale| e4m3(to_scale(scale)) * unit, packing));
    let inverse = inverse(e4m3(scale) * unit);
    (scale, weights.map(|weight| code_of(2.0 * weight * inverse)))
}

/// The numbers that codes of E2M1 stand for.
#[derive(Clone, Copy)]
pub(super) struct E2m1;

impl Numbers for E2m1 {
    #[inline(always)]
    fn nearest<S: Simd>(self, s: S, values: S::f32s) -> S::f32s {
        let step = |&[low, high]: &[i8; 2]| (f32::from(low + high) / 4.0, f32::from(high - low) / 2.0);
        with_signs(s, climb(s, s.abs_f32s(values), 0.0, DOUBLED[..8].array_windows().map(step)), values)
    }

    fn have_sides(self) -> bool {
        false
    }
}

/// The scale that makes the largest magnitude the largest number.
fn fitting(group: &[f32]) -> f32 {
    farthest(group).abs() / 6.0
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let unit = fitting(weights) / E4M3_MAX;
        pack(weights, unit, packing)
    }

    /// The largest weights that the groups may hold: a product with a finite scale may be infinite.
    fn scale_sum(&self) -> f32 {
        self.scales.iter().map(|&code| (e4m3(code) * self.scale).abs() * 6.0).sum()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let codes = self.codes.map(|codes| halves(&codes));
        for (index, (weight, &code)) in weights.iter_mut().zip(codes.as_flattened()).enumerate() {
            let number = f32::from(DOUBLED[usize::from(code)]) * 0.5;
            *weight = number * (e4m3(self.scales[index / GROUP_LEN]) * self.scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_within_the_bound() {
        let mut state = 3u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        for size in [1e-20, 1e-4, 0.02, 1.0, 300.0] {
            let weights: [f32; BLOCK_LEN] = std::array::from_fn(|i| random() * size * [1.0, 0.3, 0.1, 0.7][i / 16]);
            let block = Block::pack(&weights, Packing::Plain);
            let mut found = [0f32; BLOCK_LEN];
            block.unpack(&mut found);
            for (found, weights) in found.chunks(GROUP_LEN).zip(weights.chunks(GROUP_LEN)) {
                let largest = farthest(weights).abs();
                for (found, weight) in found.iter().zip(weights) {
                    assert!(
                        (found - weight).abs() <= largest * (1.0 / 6.0 + 1.0 / 16.0),
                        "{size}: {found} for {weight}"
                    );
                }
            }
        }
        assert_eq!(Block::pack(&[0.0; BLOCK_LEN], Packing::Searched), Block::zeroed());
    }

    #[test]
    fn the_scale_of_a_matrix_is_the_least_power_of_two_that_holds_its_largest_weight() {
        assert_eq!([0.0, 2688.0, 2689.0, 1344.0, 0.07].map(matrix_scale), [1.0, 1.0, 2.0, 0.5, 2f32.powi(-15)]);
        for largest in [f32::MAX, 3e-5, 1e-38, 1e-45] {
            let scale = matrix_scale(largest);
            assert!(scale.is_normal() && (1.0 / scale).is_normal() && largest / scale <= 2688.0, "{largest}: {scale}");
            assert_eq!(scale.to_bits() & 0x7f_ffff, 0);
        }
        // Packed with it, the largest stays, and a weight a thousandth as large is as near as it would be alone.
        let mut weights = [0.001 * 0.07; BLOCK_LEN];
        weights[3] = -0.07;
        let block = pack(&weights, matrix_scale(0.07), Packing::Plain);
        let mut found = [0f32; BLOCK_LEN];
        block.unpack(&mut found);
        assert!((found[3] + 0.07).abs() <= 0.07 / 16.0 && (found[20] / weights[20] - 1.0).abs() <= 1.0 / 16.0);
        assert_eq!(from_codes(block.scale, block.scales, &codes(&block)), block);
    }

    #[test]
    fn scales_that_are_no_numbers_are_found() {
        let block = Block::pack(&[0.5; BLOCK_LEN], Packing::Plain);
        assert!(block.scale_sum().is_finite());
        assert!(Block { scale: f32::INFINITY, ..block }.scale_sum().is_infinite());
        for code in [0x7f, 0xff] {
            assert!(Block { scales: [56, 56, code, 56], ..block }.scale_sum().is_nan());
        }
    }
}
