//! Q4_K: blocks of 256 weights of four bits; each 32 have a scale and a minimum of six bits.
//!
//! Layout    144 bytes: `scale` and `minimum` (f16), 12 bytes of scales and minima, 128 bytes of codes. Of each 64 weights, 32
//!           bytes have weight j in the lower and weight j + 32 in the upper half.
//! Meaning   `weight = scale · scales[i] · code - minimum · minima[i]`.
//! Packing   of each 32 weights the codes span what lies between the least (or zero) and the largest; scales and minima are
//!           rounded to units of a 63rd of the block's largest.
//! Source    the GGUF specification (ggml `block_q4_K`).

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
    /// The codes, two a byte.
    pub codes: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 144 && align_of::<Block>() <= 2);

impl Block {
    /// The scale and the minimum of each 32 weights, in units of [`Block::scale`] and [`Block::minimum`].
    pub fn scales_and_minima(&self) -> [(u8, u8); 8] {
        scales_and_minima(&self.scales)
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let nearest = nearest(0.0, 15.0);
        let ranges = Ranges::<8>::of(weights, 15.0, 63, packing);
        let mut codes = [0; 128];
        for (i, (part, (scale, minimum))) in weights.as_chunks::<32>().0.iter().zip(ranges.parts()).enumerate() {
            let inverse = inverse(scale);
            for (byte, weight) in codes[i / 2 * 32..].iter_mut().zip(part) {
                *byte |= (nearest((weight + minimum) * inverse) as u8) << (i % 2 * 4);
            }
        }
        let Ranges { scale, minimum, pairs } = ranges;
        Self { scale, minimum, scales: pack_scales_and_minima(&pairs), codes }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32() + self.minimum.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let (scale, minimum) = (self.scale.to_f32(), self.minimum.to_f32());
        let parts = weights.as_chunks_mut::<32>().0.iter_mut().zip(self.scales_and_minima());
        for (i, (part, (of_scale, of_minimum))) in parts.enumerate() {
            let (scale, minimum) = (scale * f32::from(of_scale), minimum * f32::from(of_minimum));
            for (weight, code) in part.iter_mut().zip(&self.codes[i / 2 * 32..]) {
                *weight = scale * f32::from(code >> (i % 2 * 4) & 15) - minimum;
            }
        }
    }
}
