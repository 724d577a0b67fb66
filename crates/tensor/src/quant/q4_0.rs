//! Q4_0: blocks of 32 weights of four bits and one scale.
//!
//! Layout    18 bytes: `scale` (f16), 16 bytes of codes; byte j has weight j in its lower and weight j + 16 in its upper half.
//! Meaning   `weight = scale · (code - 8)`.
//! Packing   the weight of the largest magnitude is code 0: `scale = w / -8` rounded to f16; others to the nearest code.
//! Error     |w - scale · (code - 8)| <= |scale| / 2, and up to |scale| opposite the largest, where codes end at 7.
//! Source    the GGUF specification (ggml `block_q4_0`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{self, farthest, inverse, nearest};
use super::packed::{halves, nibbles};
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
    /// The codes, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18 && align_of::<Block>() <= 2);

impl Block {
    fn codes(&self) -> [i8; BLOCK_LEN] {
        halves(&self.codes).map(|code| code as i8 - 8)
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let (code, round) = (nearest(-8.0, 7.0), |scale| f16::from_f32(scale).to_f32());
        let scale = fit::scale(weights, farthest(weights) / -8.0, Integers { least: -8.0, most: 7.0 }, round, packing);
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

/// The block of these codes, each from -8 to 7: weight j is `scale · codes[j]`.
pub fn from_codes(scale: f16, codes: &[i8; BLOCK_LEN]) -> Block {
    Block { scale, codes: nibbles(&codes.map(|code| (code + 8).cast_unsigned() & 15)) }
}
