//! Q5_0: blocks of 32 weights of five bits and one scale.
//!
//! Layout    22 bytes: `scale` (f16), 4 bytes of fifth bits (bit j of the little-endian word is of weight j), 16 bytes of the
//!           lower four as in Q4_0.
//! Meaning   `weight = scale · (code - 16)`.
//! Source    the GGUF specification (ggml `block_q5_0`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{self, farthest, inverse, nearest};
use super::packed::{five_bits, pack_five_bits};
use super::weighed::Integers;
use super::{PackedBlock, Packing, q8_0};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every code is multiplied by.
    pub scale: f16,
    /// The fifth bit of each code.
    pub high: [u8; 4],
    /// The lower four bits, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 22 && align_of::<Block>() <= 2);

impl Block {
    /// What the scale is multiplied by for each weight, -16 to 15.
    pub fn codes(&self) -> [i8; BLOCK_LEN] {
        five_bits(&self.codes, self.high).map(|code| code as i8 - 16)
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let (code, round) = (nearest(-16.0, 15.0), |scale| f16::from_f32(scale).to_f32());
        let scale =
            fit::scale(weights, farthest(weights) / -16.0, Integers { least: -16.0, most: 15.0 }, round, packing);
        let inverse = inverse(scale);
        from_codes(f16::from_f32(scale), &std::array::from_fn(|j| code(weights[j] * inverse)))
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        q8_0::Block { scale: self.scale, codes: self.codes() }.write(weights);
    }

    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        blocks[0] = q8_0::Block { scale: self.scale, codes: self.codes() };
    }
}

/// Makes of blocks a group of INT4 with a zero point, as it is read from files: all have the scale of the first, and codes of
/// four bits less `zero`, which are the lower four bits of those before.
pub fn share_zero_point(blocks: &mut [Block], zero: i8) {
    let Some(&Block { scale, .. }) = blocks.first() else { return };
    for block in blocks {
        *block = from_codes(scale, &block.codes().map(|code| (code & 15) - zero));
    }
}

/// The block of these codes, each from -16 to 15: weight j is `scale · codes[j]`.
pub fn from_codes(scale: f16, codes: &[i8; BLOCK_LEN]) -> Block {
    let (codes, high) = pack_five_bits(&codes.map(|code| (code + 16).cast_unsigned() & 31));
    Block { scale, high, codes }
}
