//! The oracle of `quant_blocks`.

use half::{bf16, f16};
use tensor::quant::q8_0;
use tensor::{Tensor, WeightFormat};

/// Any bytes as blocks of any weight format. What they are decoded to is their plain meaning, here written in f64,
/// weight by weight, as the format's publisher lays it out; where nothing is reported as not finite, every weight is a
/// number; and what they become as Q8_0 is as near as that format comes.
///
/// The input is a byte for the format and the blocks; a rest that is no block is left out.
pub(crate) fn quant_blocks(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let format = WeightFormat::ALL[usize::from(*choice) % WeightFormat::ALL.len()];
    let num_blocks = rest.len() / format.block_bytes();
    let bytes = &rest[..num_blocks * format.block_bytes()];
    let len = num_blocks * format.block_len();
    assert_eq!(format.row_bytes(len), Some(bytes.len()));
    let tensor = Tensor::new(format, vec![1, len], bytes::Bytes::copy_from_slice(bytes));
    let Ok(tensor) = tensor else {
        assert_eq!(len, 0, "whole blocks are a tensor");
        return;
    };
    let weights = tensor.to_f32();
    for (index, &weight) in weights.iter().enumerate() {
        let (block, at) = (index / format.block_len(), index % format.block_len());
        let block = &bytes[block * format.block_bytes()..][..format.block_bytes()];
        let meant = meaning(format, block, at);
        assert!(is_nearest(weight, meant), "{format} weight {at} of {block:02x?} is {weight}, and means {meant}");
    }
    if tensor.first_not_finite().is_none() {
        let wrong = weights.iter().find(|weight| !weight.is_finite());
        assert_eq!(wrong, None, "a {format} weight that is not reported");
    }
    if format.is_quantized() {
        let mut unpacked = vec![0.0; len];
        format.unpack(bytes, &mut unpacked);
        assert!(unpacked.iter().zip(&weights).all(|(a, b)| a.to_bits() == b.to_bits()), "{format} unpacked");
        check_q8_0(format, bytes, &weights, tensor.first_not_finite().is_some());
    }
}

/// Whether `weight` is `meant` rounded to f32 once, or as often as a difference of two products rounds it.
fn is_nearest(weight: f32, meant: f64) -> bool {
    if meant.is_nan() {
        return weight.is_nan();
    }
    let nearest = meant as f32;
    weight == nearest || (weight - nearest).abs() <= f32::EPSILON * nearest.abs()
}

/// `is_damaged`: some block is reported as not finite, which may be one whose weights are.
fn check_q8_0(format: WeightFormat, bytes: &[u8], weights: &[f32], is_damaged: bool) {
    let mut expanded = vec![q8_0::Block { scale: f16::ZERO, codes: [0; 32] }; weights.len() / 32];
    format.to_q8_0(bytes, &mut expanded);
    for (block, weights) in expanded.iter().zip(weights.as_chunks::<32>().0) {
        let scale = f64::from(block.scale.to_f32());
        if weights.iter().any(|weight| !weight.is_finite()) {
            let hides = weights.iter().zip(q8_0::unpack(block)).any(|(a, b)| !a.is_finite() && b.is_finite());
            assert!(!hides, "{format}: a weight that is no number became one, {weights:?}");
            continue;
        }
        let largest = weights.iter().fold(0.0, |most: f64, weight| most.max(f64::from(weight.abs())));
        // Where a weight is beyond f16, the scale may be infinite; MXFP4 takes the largest power of two instead.
        let is_beyond = match format {
            WeightFormat::MXFP4 => scale == 32_768.0,
            _ => scale.is_infinite() && largest > f64::from(f16::MAX.to_f32()),
        };
        if is_beyond || (scale.is_nan() && is_damaged) {
            continue;
        }
        // Half a step, and the rounding of the scale on the largest code, which is absolute below the normal numbers.
        let bound = largest / 127.0 * (0.5 + 128.0 / 2048.0) + 128.0 / f64::from(1 << 25);
        for (weight, code) in weights.iter().zip(block.codes) {
            let error = (scale * f64::from(code) - f64::from(*weight)).abs();
            assert!(error <= bound, "{format}: {weight} became {}, of {largest} at most", scale * f64::from(code));
        }
    }
}

/// The weight `at` of a block, as the format is published.
fn meaning(format: WeightFormat, block: &[u8], at: usize) -> f64 {
    use WeightFormat::*;
    let half = |at: usize| f64::from(f16::from_le_bytes([block[at], block[at + 1]]).to_f32());
    // Two codes a byte, j and j + 16 of each 32.
    let nibble = |from: usize, at: usize| block[from + at / 32 * 16 + at % 16] >> (at % 32 / 16 * 4) & 15;
    match format {
        F32 => f64::from(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
        F16 => half(0),
        BF16 => f64::from(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
        Q8_0 => half(0) * f64::from(block[2 + at].cast_signed()),
        Q4_0 => half(0) * (f64::from(nibble(2, at)) - 8.0),
        Q4_1 => half(0) * f64::from(nibble(4, at)) + half(2),
        Q5_0 => half(0) * (f64::from(nibble(6, at) | fifth(&block[2..], at)) - 16.0),
        Q5_1 => half(0) * f64::from(nibble(8, at) | fifth(&block[4..], at)) + half(2),
        IQ4_NL => half(0) * IQ4_LEVELS[usize::from(nibble(2, at))],
        IQ4_XS => {
            let part = at / 32;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * part) & 3;
            let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
            half(0) * (f64::from(high * 16 + u16::from(low)) - 32.0) * IQ4_LEVELS[usize::from(nibble(8, at))]
        }
        MXFP4 => e2m1(nibble(1, at)) * 2f64.powi(i32::from(block[0]) - 127),
        FP8 => half(0) / 256.0 * e4m3(block[2 + at]),
        NVFP4 => {
            let scale = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            // The scale of 16 is rounded to f32, as publishers multiply it; so is the weight.
            let scale = (f64::from(scale) * e4m3(block[4 + at / 16])) as f32;
            e2m1(nibble(8, at)) * f64::from(scale)
        }
        Q2_K => {
            let code = block[16 + at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3;
            let both = block[at / 16];
            half(80) * f64::from(both & 15) * f64::from(code) - half(82) * f64::from(both >> 4)
        }
        Q3_K => {
            let low = block[32 + at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3;
            let high = block[at % 32] >> (at / 32) & 1;
            let group = at / 16;
            let scale_low = block[96 + group % 8] >> (group / 8 * 4) & 15;
            let scale_high = block[104 + group % 4] >> (group / 4 * 2) & 3;
            let scale = f64::from(scale_low | scale_high << 4) - 32.0;
            half(108) * scale * (f64::from(low | high << 2) - 4.0)
        }
        Q4_K | Q5_K => {
            let (scale, minimum) = six_bits(&block[4..16], at / 32);
            let codes = if format == Q4_K { 16 } else { 48 };
            let low = block[codes + at / 64 * 32 + at % 32] >> (at % 64 / 32 * 4) & 15;
            let high = if format == Q4_K { 0 } else { block[16 + at % 32] >> (at / 32) & 1 };
            half(0) * scale * f64::from(low | high << 4) - half(2) * minimum
        }
        Q6_K => {
            let (part, of) = (at / 128, at % 128);
            let low = block[part * 64 + of % 64] >> (of / 64 * 4) & 15;
            let high = block[128 + part * 32 + of % 32] >> (of / 32 * 2) & 3;
            let scale = f64::from(block[192 + at / 16].cast_signed());
            half(208) * scale * (f64::from(low | high << 4) - 32.0)
        }
    }
}

const IQ4_LEVELS: [f64; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// The fifth bit of a code, in its place.
fn fifth(bits: &[u8], at: usize) -> u8 {
    (bits[at / 8] >> (at % 8) & 1) << 4
}

/// Scale and minimum of the `i`-th 32 weights of Q4_K and Q5_K, of which eight lie in twelve bytes.
fn six_bits(packed: &[u8], i: usize) -> (f64, f64) {
    let (scale, minimum) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        let both = packed[i + 4];
        (both & 15 | packed[i - 4] >> 6 << 4, both >> 4 | packed[i] >> 6 << 4)
    };
    (f64::from(scale), f64::from(minimum))
}

/// Sign, two bits of exponent, one of mantissa.
fn e2m1(code: u8) -> f64 {
    let magnitude = match code & 7 {
        small @ 0..2 => f64::from(small) / 2.0,
        code => (1.0 + f64::from(code & 1) / 2.0) * 2f64.powi(i32::from(code >> 1) - 1),
    };
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// Sign, four bits of exponent, three of mantissa; no infinity.
fn e4m3(code: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match exponent {
        15 if mantissa == 7.0 => f64::NAN,
        0 => mantissa / 8.0 * 2f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}
