//! Q5_K: blocks of 256 weights of five bits; each 32 have a scale and a minimum of six bits.
//!
//! Layout    176 bytes: `scale` and `minimum` (f16), 12 bytes of scales and minima, 32 bytes of fifth bits (bit i of byte j is of
//!           weight 32 · i + j), 128 bytes of the lower four as in Q4_K.
//! Meaning   `weight = scale · scales[i] · code - minimum · minima[i]`.
//! Source    the GGUF specification (ggml `block_q5_K`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{inverse, nearest};
use super::packed::{Ranges, pack_scales_and_minima, scales_and_minima};
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 256;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What scales are multiplied by.
    pub scale: f16,
    /// What minima are multiplied by.
    pub minimum: f16,
    /// Scales and minima of each 32 weights.
    pub scales: [u8; 12],
    /// The fifth bit of each code.
    pub high: [u8; 32],
    /// The lower four bits, two a byte.
    pub codes: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 176 && align_of::<Block>() <= 2);

impl Block {
    /// The scale and the minimum of each 32 weights, in units of [`Block::scale`] and [`Block::minimum`].
    pub fn scales_and_minima(&self) -> [(u8, u8); 8] {
        scales_and_minima(&self.scales)
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let nearest = nearest(0.0, 31.0);
        let ranges = Ranges::<8>::of(weights, 31.0, 63, packing);
        let (mut codes, mut high) = ([0; 128], [0; 32]);
        for (i, (part, (scale, minimum))) in weights.as_chunks::<32>().0.iter().zip(ranges.parts()).enumerate() {
            let inverse = inverse(scale);
            for (j, weight) in part.iter().enumerate() {
                let code = nearest((weight + minimum) * inverse) as u8;
                codes[i / 2 * 32 + j] |= (code & 15) << (i % 2 * 4);
                high[j] |= (code >> 4) << i;
            }
        }
        let Ranges { scale, minimum, pairs } = ranges;
        Self { scale, minimum, scales: pack_scales_and_minima(&pairs), high, codes }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32() + self.minimum.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        let parts = weights.as_chunks_mut::<32>().0.iter_mut().zip(self.scales_and_minima());
        for (i, (part, (of_scale, of_minimum))) in parts.enumerate() {
            let (scale, minimum) = (scale * f32::from(of_scale), minimum * f32::from(of_minimum));
            for (j, weight) in part.iter_mut().enumerate() {
                let low = self.codes[i / 2 * 32 + j] >> (i % 2 * 4) & 15;
                *weight = scale * f32::from(low | (self.high[j] >> i & 1) << 4) - minimum;
            }
        }
    }
}
