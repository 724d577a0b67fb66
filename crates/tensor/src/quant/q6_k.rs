//! Q6_K: blocks of 256 weights of six bits; each 16 have a scale of eight.
//!
//! Layout    210 bytes: 128 bytes of the lower four bits, 64 of the upper two, 16 scales (i8), `scale` (f16). Of each 128 weights,
//!           64 bytes have the lower bits of weight j in the lower and of j + 64 in the upper half, and 32 bytes the upper
//!           bits of j, j + 32, j + 64 and j + 96, lowest first.
//! Meaning   `weight = scale · scales[i] · (code - 32)`.
//! Packing   of each 16 weights that of the largest magnitude is code 0; scales are rounded to units of a 128th of the
//!           block's largest.
//! Source    the GGUF specification (ggml `block_q6_K`).

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
    /// The lower four bits, two a byte.
    pub codes: [u8; 128],
    /// The upper two bits, four a byte.
    pub high: [u8; 64],
    /// The scales of each 16 weights.
    pub scales: [i8; 16],
    /// What scales are multiplied by.
    pub scale: f16,
}

const _: () = assert!(size_of::<Block>() == 210 && align_of::<Block>() <= 2);

impl Block {
    /// The codes, 0 to 63, of the weights one after another.
    #[must_use]
    pub fn codes_in_order(&self) -> [u8; BLOCK_LEN] {
        std::array::from_fn(|i| {
            // Of each 128, as the layout says.
            let (half, at) = (i / 128, i % 128);
            let low = self.codes[half * 64 + at % 64] >> (at / 64 * 4) & 15;
            let high = self.high[half * 32 + at % 32] >> (at / 32 * 2) & 3;
            low | high << 4
        })
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let (sixteens, _) = weights.as_chunks::<16>();
        let code = nearest(-32.0, 31.0);
        let (scale, scales) =
            signed_scales::<16, 16>(sixteens, -32.0, Integers { least: -32.0, most: 31.0 }, 128.0, packing);
        let (mut codes, mut high) = ([0; 128], [0; 64]);
        for (i, (sixteen, of)) in sixteens.iter().zip(scales).enumerate() {
            let inverse = inverse(scale.to_f32() * f32::from(of));
            let (half, first) = (i / 8, i % 8 * 16);
            for (j, weight) in sixteen.iter().enumerate() {
                let at = first + j;
                let code = (code(weight * inverse) + 32).cast_unsigned();
                codes[half * 64 + at % 64] |= (code & 15) << (at / 64 * 4);
                high[half * 32 + at % 32] |= (code >> 4) << (at / 32 * 2);
            }
        }
        Self { codes, high, scales, scale }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        let scale = self.scale.to_f32();
        let codes = self.codes_in_order();
        let sixteens = weights.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
        for ((weights, codes), &of) in sixteens.zip(&self.scales) {
            let scale = scale * f32::from(of);
            for (weight, &code) in weights.iter_mut().zip(codes) {
                *weight = scale * f32::from(code as i8 - 32);
            }
        }
    }
}
