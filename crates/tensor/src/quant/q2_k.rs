//! Q2_K: blocks of 256 weights of two bits; each 16 have a scale and a minimum of four bits.
//!
//! Layout    84 bytes: 16 bytes with the scale of each 16 weights in the lower and their minimum in the upper half, 64 bytes of
//!           codes, `scale` and `minimum` (f16). Of each 128 weights, 32 bytes have weights j, j + 32, j + 64 and j + 96, lowest
//!           bits first.
//! Meaning   `weight = scale · scales[i] · code - minimum · minima[i]`.
//! Source    the GGUF specification (ggml `block_q2_K`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{inverse, nearest};
use super::packed::Ranges;
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 256;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// Scale and minimum of each 16 weights.
    pub scales: [u8; 16],
    /// The codes, four a byte.
    pub codes: [u8; 64],
    /// What scales are multiplied by.
    pub scale: f16,
    /// What minima are multiplied by.
    pub minimum: f16,
}

const _: () = assert!(size_of::<Block>() == 84 && align_of::<Block>() <= 2);

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let nearest = nearest(0.0, 3.0);
        let ranges = Ranges::<16>::of(weights, 3.0, 15, packing);
        let mut codes = [0; 64];
        for (i, (sixteen, (scale, minimum))) in weights.as_chunks::<16>().0.iter().zip(ranges.parts()).enumerate() {
            let inverse = inverse(scale);
            let (first, shift) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2);
            for (byte, weight) in codes[first..].iter_mut().zip(sixteen) {
                *byte |= (nearest((weight + minimum) * inverse) as u8) << shift;
            }
        }
        let scales = ranges.pairs.map(|(scale, minimum)| scale | minimum << 4);
        Self { scales, codes, scale: ranges.scale, minimum: ranges.minimum }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32() + self.minimum.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        for (i, (sixteen, &both)) in weights.as_chunks_mut::<16>().0.iter_mut().zip(&self.scales).enumerate() {
            let (scale, minimum) = (scale * f32::from(both & 15), minimum * f32::from(both >> 4));
            let (first, shift) = (i / 8 * 32 + i % 2 * 16, i % 8 / 2 * 2);
            for (weight, code) in sixteen.iter_mut().zip(&self.codes[first..]) {
                *weight = scale * f32::from(code >> shift & 3) - minimum;
            }
        }
    }
}
