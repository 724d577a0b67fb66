//! Q3_K: blocks of 256 weights of three bits; each 16 have a scale of six bits.
//!
//! Layout    110 bytes: 32 bytes of third bits (bit i of byte j is of weight 32 · i + j), 64 bytes of the lower two as in Q2_K,
//!           12 bytes of scales, `scale` (f16). Scale i has its lower four bits in byte i % 8, in the upper half from the eighth
//!           on, and its upper two in byte 8 + i % 4, at bit i / 4 · 2.
//! Meaning   `weight = scale · (scales[i] - 32) · (code - 4)`, the code with its third bit.
//! Source    the GGUF specification (ggml `block_q3_K`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{inverse, nearest};
use super::packed::signed_scales;
use super::weighed::Integers;
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 256;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// The third bit of each code.
    pub high: [u8; 32],
    /// The lower two bits, four a byte.
    pub codes: [u8; 64],
    /// The scales of each 16 weights.
    pub scales: [u8; 12],
    /// What scales are multiplied by.
    pub scale: f16,
}

const _: () = assert!(size_of::<Block>() == 110 && align_of::<Block>() <= 2);

impl Block {
    /// The scale of each 16 weights, in units of [`Block::scale`].
    pub fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|i| {
            let low = self.scales[i % 8] >> (i / 8 * 4) & 15;
            let high = self.scales[8 + i % 4] >> (i / 4 * 2) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let (sixteens, _) = weights.as_chunks::<16>();
        let code = nearest(-4.0, 3.0);
        let (scale, of) = signed_scales::<16, 16>(sixteens, -4.0, Integers { least: -4.0, most: 3.0 }, 32.0, packing);
        let (mut codes, mut high, mut scales) = ([0; 64], [0; 32], [0; 12]);
        for (i, (sixteen, of)) in sixteens.iter().zip(of).enumerate() {
            let stored = (of + 32).cast_unsigned();
            scales[i % 8] |= (stored & 15) << (i / 8 * 4);
            scales[8 + i % 4] |= (stored >> 4) << (i / 4 * 2);
            let inverse = inverse(scale.to_f32() * f32::from(of));
            let (first, shift) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2);
            for (j, weight) in sixteen.iter().enumerate() {
                let code = (code(weight * inverse) + 4).cast_unsigned();
                codes[first + j] |= (code & 3) << shift;
                high[i % 2 * 16 + j] |= (code >> 2) << (i / 2);
            }
        }
        Self { high, codes, scales, scale }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let scale = self.scale.to_f32();
        for (i, (sixteen, of)) in weights.as_chunks_mut::<16>().0.iter_mut().zip(self.scales()).enumerate() {
            let scale = scale * f32::from(of);
            let (first, shift) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2);
            for (j, weight) in sixteen.iter_mut().enumerate() {
                let low = self.codes[first + j] >> shift & 3;
                let high = self.high[i % 2 * 16 + j] >> (i / 2) & 1;
                *weight = scale * f32::from((low | high << 2) as i8 - 4);
            }
        }
    }
}
