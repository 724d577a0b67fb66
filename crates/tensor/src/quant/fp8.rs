//! FP8: blocks of 32 floating-point numbers of eight bits (E4M3) and one scale.
//!
//! Layout    34 bytes: `scale` (f16), then 32 codes: sign, four bits of exponent, three of mantissa.
//! Meaning   `weight = scale · 2^-8 · number`, exact in f32. The 2^-8 is part of the format: scales of checkpoints, about 1e-4
//!           to 1e-2 for weights of usual size, would be no normal numbers of f16 without it.
//! Packing   plain, the largest magnitude becomes the largest number (448); the nearest number, of two as near the even code.
//! Error     |w - weight| <= |w| / 15 or half of the smallest number times the scale, up to the rounding of the scale itself.
//! Source    OCP 8-bit Floating Point Specification (OFP8) 1.0: E4M3 has no infinities, and 0x7f and 0xff are no numbers. The
//!           block is of this program: safetensors have scales in a tensor of their own, for any number of weights.

use bytemuck::{Pod, Zeroable};
use half::f16;
use pulp::Simd;

use super::fit::{self, INTEGERS, farthest, inverse};
use super::weighed::{Numbers, with_signs};
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// What scales are stored as a multiple of: 2^-8.
pub const UNIT: f32 = 1.0 / 256.0;

/// The largest number of E4M3.
pub const E4M3_MAX: f32 = 448.0;

/// One block: as in memory, no file has it.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every number is multiplied by, in units of [`UNIT`].
    pub scale: f16,
    /// The codes of the numbers.
    pub codes: [u8; BLOCK_LEN],
}

const _: () = assert!(size_of::<Block>() == 34 && align_of::<Block>() == 2);

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn pack(weights: &[f32], packing: Packing<'_>) -> Self {
        let round = |scale| f16::from_f32(scale / UNIT).to_f32() * UNIT;
        let scale = fit::scale(weights, farthest(weights).abs() / E4M3_MAX, E4m3, round, packing);
        let inverse = inverse(scale);
        let codes = std::array::from_fn(|j| to_e4m3(weights[j] * inverse));
        Self { scale: f16::from_f32(scale / UNIT), codes }
    }

    /// The scale; not a number where a code is none.
    fn scale_sum(&self) -> f32 {
        let is_number = |code: &u8| code & 0x7f != 0x7f;
        if self.codes.iter().all(is_number) { self.scale.to_f32() * UNIT } else { f32::NAN }
    }

    fn unpack(&self, weights: &mut [f32]) {
        let scale = self.scale.to_f32() * UNIT;
        weights.iter_mut().zip(self.codes).for_each(|(weight, code)| *weight = scale * e4m3(code));
    }
}

/// The number that a code of E4M3 stands for.
pub fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 15, code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, _) => f32::from(mantissa) / 512.0,
        _ => f32::from_bits((u32::from(exponent) + 120) << 23 | u32::from(mantissa) << 20),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest code, of two as near the even one; what is beyond the last becomes the last.
pub fn to_e4m3(value: f32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = value.abs().min(E4M3_MAX);
    // The least exponent of a normal number is -6; a code is 2^-3 of its power of two, or 2^-9.
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(-6);
    let steps = magnitude * f32::from_bits(((3 - exponent + 127) as u32) << 23) + INTEGERS;
    // Sixteen steps are eight of the next exponent, which is what adding them gives.
    sign | (((exponent + 6) * 8) as u8 + steps.to_bits() as u8)
}

/// The numbers that codes of E4M3 stand for.
#[derive(Clone, Copy)]
pub(super) struct E4m3;

impl Numbers for E4m3 {
    #[inline(always)]
    fn nearest<S: Simd>(self, s: S, values: S::f32s) -> S::f32s {
        let magnitudes = s.min_f32s(s.abs_f32s(values), s.splat_f32s(E4M3_MAX));
        let powers = s.and_f32s(magnitudes, s.splat_f32s(f32::INFINITY));
        // Beside 2^20 of its power of two, f32 has as many bits of a number as E4M3 has; the least power is 2^-6.
        let large = s.mul_f32s(s.max_f32s(powers, s.splat_f32s(1.0 / 64.0)), s.splat_f32s((1 << 20) as f32));
        with_signs(s, s.sub_f32s(s.add_f32s(magnitudes, large), large), values)
    }

    fn have_sides(self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_e4m3_comes_back_and_others_go_to_the_nearest() {
        let numbers: Vec<(u8, f32)> = (0..=255).map(|code| (code, e4m3(code))).filter(|(_, n)| n.is_finite()).collect();
        assert_eq!(numbers.len(), 254);
        for &(code, number) in &numbers {
            assert_eq!(to_e4m3(number), code, "{number}");
        }
        for i in 0..200_000u32 {
            let value = (i as f32 / 100_000.0 - 1.0) * if i % 3 == 0 { 500.0 } else { 0.1 };
            let found = e4m3(to_e4m3(value));
            let nearest = numbers.iter().map(|(_, number)| (number - value).abs()).fold(f32::MAX, f32::min);
            assert_eq!((found - value).abs(), nearest, "{value} became {found}");
        }
        // Ties go to the even code: 17 is between 16 and 18.
        assert_eq!([17.0, 19.0, -17.0].map(|tie| e4m3(to_e4m3(tie))), [16.0, 20.0, -16.0]);
    }

    #[test]
    fn weights_are_within_the_bound_and_come_back_as_the_same_codes() {
        let mut state = 3u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        for size in [1e-6, 1e-4, 0.02, 1.0, 300.0] {
            let weights: [f32; BLOCK_LEN] = std::array::from_fn(|_| random() * random() * size);
            for packing in [Packing::Plain, Packing::Searched] {
                let block = Block::pack(&weights, packing);
                let mut found = [0f32; BLOCK_LEN];
                block.unpack(&mut found);
                let scale = block.scale_sum();
                assert!(scale > 0.0, "{size}");
                for (found, weight) in found.iter().zip(weights) {
                    // A search may give up on the largest.
                    let most = weight.abs() / if packing == Packing::Plain { 15.0 } else { 3.0 } + scale / 1023.0;
                    assert!((found - weight).abs() <= most, "{size} {packing:?}: {found} for {weight}");
                }
                let again = Block::pack(&found, Packing::Plain);
                assert!(packing != Packing::Plain || again == block, "{size}: {again:?}, not {block:?}");
            }
        }
    }

    #[test]
    fn a_code_that_is_no_number_is_found_and_does_not_become_zero() {
        for code in [0x7f, 0xff] {
            let mut block = Block::pack(&[0.5; BLOCK_LEN], Packing::Plain);
            assert!(block.scale_sum().is_finite());
            block.codes[7] = code;
            assert!(block.scale_sum().is_nan());
            let mut expanded = [super::super::q8_0::pack(&[0.0; 32])];
            block.to_q8_0(&mut expanded);
            assert!(expanded[0].scale.is_nan());
        }
    }
}
