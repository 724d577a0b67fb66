//! Q8_0: blocks of 32 weights, each a signed byte times the block's binary16 scale.
//!
//! Layout    34 bytes: `scale` (f16, little endian), then 32 codes (i8). Weight j is `scale * codes[j]`.
//! Packing   `scale = max|w| / 127` rounded to f16; `code = round(w / scale)`, halves away from zero.
//! Error     |w - scale * code| <= scale / 2 for every weight, up to the rounding of the scale itself.
//! Source    the GGUF specification (ggml `block_q8_0`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::INTEGERS;
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every code is multiplied by.
    pub scale: f16,
    /// The weights, in units of `scale`.
    pub codes: [i8; BLOCK_LEN],
}

const _: () = assert!(size_of::<Block>() == 34 && align_of::<Block>() == 2);

impl Block {
    /// Writes the weights that the block stands for to the first 32 of `weights`.
    pub(super) fn write(&self, weights: &mut [f32]) {
        weights[..BLOCK_LEN].copy_from_slice(&unpack(self));
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    /// There is nothing to search for: at eight bits the largest weight decides.
    fn pack(weights: &[f32], _: Packing<'_>) -> Self {
        pack(weights.first_chunk().expect("whole blocks"))
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        self.write(weights);
    }

    fn to_q8_0(&self, blocks: &mut [Self]) {
        blocks[0] = *self;
    }
}

/// Packs 32 weights. Non-finite weights have no meaning here: they pack to an undefined (but valid) block.
pub fn pack(weights: &[f32; BLOCK_LEN]) -> Block {
    let max = weights.iter().fold(0f32, |max, w| max.max(w.abs()));
    let scale = max / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    Block { scale: f16::from_f32(scale), codes: weights.map(|w| rounded(w * inverse)) }
}

/// The nearest integer, halves away from zero, of a number that fits a byte. As `round`, which is a call on the processors that
/// compilers assume, and so is not done for many weights at once. (Twice as fast as by way of the number that
/// [`super::fit::nearest`] gives.)
fn rounded(value: f32) -> i8 {
    let magnitude = value.abs();
    // Rounds halves to even; those that went down go up.
    let sum = magnitude + INTEGERS;
    let code = (sum.to_bits() as i8).wrapping_add(i8::from(magnitude - (sum - INTEGERS) >= 0.5));
    if value < 0.0 { code.wrapping_neg() } else { code }
}

/// The 32 weights that `block` stands for, exactly.
pub fn unpack(block: &Block) -> [f32; BLOCK_LEN] {
    let scale = block.scale.to_f32();
    block.codes.map(|code| scale * f32::from(code))
}

/// Packs a row; `None` when its length is not a multiple of [`BLOCK_LEN`].
pub fn pack_row(row: &[f32]) -> Option<Vec<Block>> {
    let (blocks, rest) = row.as_chunks::<BLOCK_LEN>();
    rest.is_empty().then(|| blocks.iter().map(pack).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_rounded_as_the_standard_library_does() {
        for i in -127 * 64..=127 * 64 {
            // Halves among them, and what is next to them.
            let exact = i as f32 / 64.0;
            for value in [exact.next_down(), exact, exact.next_up()] {
                assert_eq!(rounded(value), value.round() as i8, "{value}");
            }
        }
    }
}
