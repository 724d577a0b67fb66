//! IQ4_XS: blocks of 256 weights of four bits that name one of 16 levels; each 32 have a scale of six bits.
//!
//! Layout    136 bytes: `scale` (f16), 2 bytes with the upper two bits of the eight scales, 4 with the lower four, 128 bytes of
//!           codes: of each 32 weights 16 bytes as in Q4_0.
//! Meaning   `weight = scale · (scales[i] - 32) · LEVELS[code]`, with the levels of IQ4_NL.
//! Source    the GGUF specification (ggml `block_iq4_xs`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::inverse;
use super::iq4_nl::{LEVELS, Levels, code_of};
use super::packed::{halves, nibbles, signed_scales};
use super::{PackedBlock, Packing, q8_0};

/// Weights in one block.
pub const BLOCK_LEN: usize = 256;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What scales are multiplied by.
    pub scale: f16,
    /// The upper two bits of the scale of each 32 weights.
    pub scales_high: [u8; 2],
    /// The lower four bits.
    pub scales_low: [u8; 4],
    /// The codes of each 32 weights, two a byte.
    pub codes: [[u8; 16]; 8],
}

const _: () = assert!(size_of::<Block>() == 136 && align_of::<Block>() <= 2);

impl Block {
    /// The scale of each 32 weights, in units of [`Block::scale`].
    pub fn scales(&self) -> [i8; 8] {
        std::array::from_fn(|i| {
            let low = self.scales_low[i / 2] >> (i % 2 * 4) & 15;
            let high = (u16::from_le_bytes(self.scales_high) >> (2 * i) & 3) as u8;
            (low | high << 4) as i8 - 32
        })
    }

    /// The scale of the `i`-th 32 weights, and their levels.
    fn part(&self, i: usize) -> (f32, [i8; 32]) {
        let scale = self.scale.to_f32() * f32::from(self.scales()[i]);
        (scale, halves(&self.codes[i]).map(|code| LEVELS[usize::from(code)]))
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let (parts, _) = weights.as_chunks::<32>();
        let (scale, of) = signed_scales::<32, 8>(parts, -127.0, Levels, 32.0, packing);
        let (mut high, mut scales_low, mut codes) = (0u16, [0; 4], [[0; 16]; 8]);
        for (i, (part, of)) in parts.iter().zip(of).enumerate() {
            let stored = (of + 32).cast_unsigned();
            scales_low[i / 2] |= (stored & 15) << (i % 2 * 4);
            high |= u16::from(stored >> 4) << (2 * i);
            let inverse = inverse(scale.to_f32() * f32::from(of));
            codes[i] = nibbles(&part.map(|weight| code_of(weight * inverse)));
        }
        Self { scale, scales_high: high.to_le_bytes(), scales_low, codes }
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        for (i, part) in weights.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, levels) = self.part(i);
            *part = levels.map(|level| scale * f32::from(level));
        }
    }

    /// The levels are kept, and the scale is rounded to f16.
    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        for (i, block) in blocks.iter_mut().enumerate() {
            let (scale, codes) = self.part(i);
            *block = q8_0::Block { scale: f16::from_f32(scale), codes };
        }
    }
}
