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

use super::PackedBlock;
use super::packed::{inverse, pack_scales_and_minima, scales_and_minima};

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

/// Packs 256 finite weights.
pub fn pack(weights: &[f32; BLOCK_LEN]) -> Block {
    let (parts, _) = weights.as_chunks::<32>();
    let exact: [(f32, f32); 8] = std::array::from_fn(|i| {
        let (least, most) = parts[i].iter().fold((0f32, f32::MIN), |(least, most), &w| (least.min(w), most.max(w)));
        ((most - least) / 15.0, -least)
    });
    let unit = |of: fn(&(f32, f32)) -> f32| f16::from_f32(exact.iter().map(of).fold(0.0, f32::max) / 63.0);
    let (scale, minimum) = (unit(|pair| pair.0), unit(|pair| pair.1));
    let (scale_unit, minimum_unit) = (scale.to_f32(), minimum.to_f32());
    let six_bits = |value: f32, unit: f32| (value * inverse(unit)).round().min(63.0) as u8;
    let pairs = exact.map(|(scale, minimum)| (six_bits(scale, scale_unit), six_bits(minimum, minimum_unit)));
    let mut codes = [0; 128];
    for (i, (part, (of_scale, of_minimum))) in parts.iter().zip(pairs).enumerate() {
        let inverse = inverse(scale_unit * f32::from(of_scale));
        let minimum = minimum_unit * f32::from(of_minimum);
        for (byte, weight) in codes[i / 2 * 32..].iter_mut().zip(part) {
            *byte |= (((weight + minimum) * inverse).round().clamp(0.0, 15.0) as u8) << (i % 2 * 4);
        }
    }
    Block { scale, minimum, scales: pack_scales_and_minima(&pairs), codes }
}
