//! Q4_1: blocks of 32 weights of four bits, a scale and a minimum.
//!
//! Layout    20 bytes: `scale` and `minimum` (f16), 16 bytes of codes as in Q4_0.
//! Meaning   `weight = scale · code + minimum`.
//! Source    the GGUF specification (ggml `block_q4_1`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{self, inverse, nearest};
use super::packed::{halves, nibbles};
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every code is multiplied by.
    pub scale: f16,
    /// What is added.
    pub minimum: f16,
    /// The codes, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 20 && align_of::<Block>() <= 2);

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let nearest = nearest(0.0, 15.0);
        let (scale, minimum) = fit::range(weights, 15.0, false, packing);
        let (scale, minimum) = (f16::from_f32(scale), f16::from_f32(minimum));
        let (inverse, of_minimum) = (inverse(scale.to_f32()), minimum.to_f32());
        let codes = std::array::from_fn(|j| nearest((weights[j] - of_minimum) * inverse) as u8);
        Self { scale, minimum, codes: nibbles(&codes) }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32() + self.minimum.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        for (weight, code) in weights.iter_mut().zip(halves(&self.codes)) {
            *weight = scale * f32::from(code) + minimum;
        }
    }
}
