//! MXFP4: blocks of 32 floating-point numbers of four bits (E2M1) and a power of two (E8M0).
//!
//! Layout    17 bytes: the exponent, 16 bytes of codes as in Q4_0: sign, two bits of exponent, one of mantissa.
//! Meaning   `weight = 2^(exponent - 128) · DOUBLED[code]`.
//! Source    OCP Microscaling Formats (MX) 1.0; the order of the codes is that of GGUF (ggml `block_mxfp4`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::{PackedBlock, packed::halves, q8_0};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// The power of two that all share, 127 for one.
    pub exponent: u8,
    /// The codes, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 17 && align_of::<Block>() <= 2);

/// Twice what codes stand for: whole numbers.
pub const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Block {
    /// Half of the power of two; the two smallest are no normal numbers.
    fn scale(&self) -> f32 {
        f32::from_bits(match self.exponent {
            0 => 0x0020_0000,
            1 => 0x0040_0000,
            exponent => u32::from(exponent - 1) << 23,
        })
    }

    fn doubled(&self) -> [i8; BLOCK_LEN] {
        halves(&self.codes).map(|code| DOUBLED[usize::from(code)])
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn unpack(&self, weights: &mut [f32]) {
        for (weight, doubled) in weights.iter_mut().zip(self.doubled()) {
            *weight = self.scale() * f32::from(doubled);
        }
    }

    /// Exact where f16 has the scale; a smaller one becomes the smallest of f16 or zero, a larger one the largest power.
    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        let scale = f16::from_f32(self.scale().min(32_768.0));
        blocks[0] = q8_0::Block { scale, codes: self.doubled() };
    }
}
