//! MXFP4: blocks of 32 floating-point numbers of four bits (E2M1) and a power of two (E8M0).
//!
//! Layout    17 bytes: the exponent, 16 bytes of codes as in Q4_0: sign, two bits of exponent, one of mantissa.
//! Meaning   `weight = 2^(exponent - 128) · DOUBLED[code]`.
//! Source    OCP Microscaling Formats (MX) 1.0; the order of the codes is that of GGUF (ggml `block_mxfp4`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::packed::{halves, nibbles};
use super::{PackedBlock, Packing, q8_0};

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

/// The code that is nearest to half of `doubled`; of two as near, the one without mantissa.
pub fn code_of(doubled: f32) -> u8 {
    // Halfway between the magnitudes.
    const ENDS: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];
    let magnitude = doubled.abs();
    let passed = |(i, &end): (usize, &f32)| u8::from(if i % 2 == 1 { magnitude >= end } else { magnitude > end });
    let code: u8 = ENDS.iter().enumerate().map(passed).sum();
    if doubled < 0.0 { code | 8 } else { code }
}

/// The block of these codes, in the order of the weights.
pub fn from_codes(exponent: u8, codes: &[u8; BLOCK_LEN]) -> Block {
    Block { exponent, codes: nibbles(&codes.map(|code| code & 15)) }
}

impl Block {
    /// Half of the power of two; the two smallest are no normal numbers.
    pub fn scale(&self) -> f32 {
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

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
        // The largest number is 6, of exponent 2: 2^floor(log2(largest)) becomes 4.
        let plain = (largest.to_bits() >> 23).saturating_sub(2).min(254) as u8;
        let pack = |exponent: u8| {
            let inverse = 1.0 / Self { exponent, codes: [0; 16] }.scale();
            from_codes(exponent, &std::array::from_fn(|j| code_of(weights[j] * inverse)))
        };
        let lost = |block: &Self| -> f32 {
            let mut back = [0f32; BLOCK_LEN];
            block.unpack(&mut back);
            let importance = packing.importance(BLOCK_LEN);
            let lost = |((weight, back), counts): ((&f32, f32), &f32)| counts * (weight - back).powi(2);
            weights.iter().zip(back).zip(importance).map(lost).sum()
        };
        match packing {
            Packing::Plain => pack(plain),
            Packing::Searched | Packing::Weighted(_) => {
                let tried = [plain, plain.saturating_add(1).min(254)].map(pack);
                if lost(&tried[1]) < lost(&tried[0]) { tried[1] } else { tried[0] }
            }
        }
    }

    /// The largest weight that a block of this exponent may hold: from 253 on it is infinite, and 255 means no number.
    fn scale_sum(&self) -> f32 {
        self.scale() * 12.0
    }

    fn unpack(&self, weights: &mut [f32]) {
        for (weight, doubled) in weights.iter_mut().zip(self.doubled()) {
            *weight = self.scale() * f32::from(doubled);
        }
    }

    /// Exact where f16 has the scale; a smaller one becomes the smallest of f16 or zero, a larger one the largest power,
    /// and one that is not finite stays so.
    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        let scale = if self.scale_sum().is_finite() { self.scale().min(32_768.0) } else { f32::NAN };
        let scale = f16::from_f32(scale);
        blocks[0] = q8_0::Block { scale, codes: self.doubled() };
    }
}
