//! IQ4_NL: blocks of 32 weights of four bits that name one of 16 levels, and one scale.
//!
//! Layout    18 bytes: `scale` (f16), 16 bytes of codes as in Q4_0.
//! Meaning   `weight = scale · LEVELS[code]`.
//! Source    the GGUF specification (ggml `block_iq4_nl`).

use bytemuck::{Pod, Zeroable};
use half::f16;
use pulp::Simd;

use super::fit::{self, farthest, inverse};
use super::packed::{halves, nibbles};
use super::weighed::{Numbers, climb};
use super::{PackedBlock, Packing, q8_0};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every level is multiplied by.
    pub scale: f16,
    /// The codes, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18 && align_of::<Block>() <= 2);

/// What codes stand for: closer together around zero, where weights are.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The code of the level that is nearest to `value`, the higher of two.
pub(super) fn code_of(value: f32) -> u8 {
    LEVELS.array_windows().map(|&[low, high]| u8::from(value * 2.0 >= f32::from(low) + f32::from(high))).sum()
}

/// [`LEVELS`], as numbers.
#[derive(Clone, Copy)]
pub(super) struct Levels;

impl Numbers for Levels {
    #[inline(always)]
    fn nearest<S: Simd>(self, s: S, values: S::f32s) -> S::f32s {
        let step = |&[low, high]: &[i8; 2]| ((f32::from(low) + f32::from(high)) / 2.0, f32::from(high - low));
        climb(s, values, f32::from(LEVELS[0]), LEVELS.array_windows().map(step))
    }

    fn have_sides(self) -> bool {
        true
    }
}

impl Block {
    fn levels(&self) -> [i8; BLOCK_LEN] {
        halves(&self.codes).map(|code| LEVELS[usize::from(code)])
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let round = |scale| f16::from_f32(scale).to_f32();
        let scale = fit::scale(weights, farthest(weights) / -127.0, Levels, round, packing);
        let inverse = inverse(scale);
        let codes = nibbles(&std::array::from_fn(|j| code_of(weights[j] * inverse)));
        Self { scale: f16::from_f32(scale), codes }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        q8_0::Block { scale: self.scale, codes: self.levels() }.write(weights);
    }

    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        blocks[0] = q8_0::Block { scale: self.scale, codes: self.levels() };
    }
}
