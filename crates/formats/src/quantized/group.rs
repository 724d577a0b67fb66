//! Integers, E4M3 and E2M1 numbers with one scale for a group of weights: what safetensors have, where scales lie in a tensor of
//! their own and a group may be of any length.
//!
//! Meaning   `weight = scale · code`, integers of b bits from -2^(b-1) to 2^(b-1) - 1; with a zero point
//!           `weight = scale · (code - zero)`, both from 0 to 2^b - 1.
//! Packing   plain, the largest magnitude is half a step beyond the last code (integers: `scale = 2 · max|w| / (2^b - 1)`),
//!           or the largest number of E4M3 (448) or E2M1 (6); with a zero point the codes cover the weights and zero
//!           (`scale = (max - min) / (2^b - 1)`, `zero = -min / scale`). A search tries the zero points beside that one, too.
//!           Scales are positive, as all published writers make them.
//! Source    compressed-tensors.

use tensor::quant::fp8::{E4M3_MAX, e4m3, to_e4m3};
use tensor::quant::{Packing, mxfp4};

/// Scales that are tried, as many as for the blocks of GGUF.
const STEPS: i32 = 22;

/// 1 / `step`; 0 where there is no step, so that all codes are those of zero.
fn inverse(step: f32) -> f32 {
    if step == 0.0 { 0.0 } else { 1.0 / step }
}

/// Σ importance · (w - scale · code(w / scale))², in f64 since groups may be long.
fn lost(weights: &[f32], packing: Packing<'_>, scale: f32, code: impl Fn(f32) -> f32) -> f64 {
    let inverse = inverse(scale);
    let square = |weight: f32| f64::from(weight - scale * code(weight * inverse)).powi(2);
    match packing {
        Packing::Weighted(importance) => {
            weights.iter().zip(importance).map(|(&weight, &counts)| f64::from(counts) * square(weight)).sum()
        }
        _ => weights.iter().map(|&weight| square(weight)).sum(),
    }
}

/// The largest magnitude.
fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()))
}

/// The scale of a group of finite weights whose codes `code` rounds to; `plain` is the one at which all fit. `round` is what
/// becomes of a scale when it is stored. Never negative.
fn scale(
    weights: &[f32],
    plain: f32,
    code: impl Fn(f32) -> f32 + Copy,
    round: impl Fn(f32) -> f32,
    packing: Packing<'_>,
) -> f32 {
    let plain = round(plain);
    if packing == Packing::Plain || plain == 0.0 || !plain.is_finite() {
        return plain;
    }
    let (mut best, mut least) = (plain, lost(weights, packing, plain, code));
    for step in 0..STEPS {
        let inverse = inverse(plain * (0.68 + 0.02 * step as f32));
        let (mut products, mut squares) = (0f64, 0f64);
        let mut add = |weight: f32, counts: f64| {
            let code = f64::from(code(weight * inverse));
            products += counts * f64::from(weight) * code;
            squares += counts * code * code;
        };
        match packing {
            Packing::Weighted(importance) => {
                weights.iter().zip(importance).for_each(|(&weight, &counts)| add(weight, f64::from(counts)));
            }
            _ => weights.iter().for_each(|&weight| add(weight, 1.0)),
        }
        if squares > 0.0 {
            let fitted = round((products / squares) as f32);
            let error = lost(weights, packing, fitted, code);
            if error < least && fitted.is_finite() && fitted > 0.0 {
                (best, least) = (fitted, error);
            }
        }
    }
    best
}

/// The scale of a group, and its codes, integers of `bits` (2 to 8). `round` is what becomes of a scale when it is stored.
pub(super) fn pack_integers(
    weights: &[f32],
    bits: u32,
    round: impl Fn(f32) -> f32,
    packing: Packing<'_>,
    codes: &mut Vec<i8>,
) -> f32 {
    let least = -f32::from(1i16 << (bits - 1));
    let code = move |value: f32| value.round().clamp(least, -least - 1.0);
    let scale = scale(weights, largest(weights) / (-least - 0.5), code, round, packing);
    let inverse = inverse(scale);
    codes.extend(weights.iter().map(|weight| code(weight * inverse) as i8));
    scale
}

/// The scale and the zero point of a group, and its codes, integers of `bits` (2 to 8) without a sign. `round` is what becomes of
/// a scale when it is stored.
pub(super) fn pack_with_zero(
    weights: &[f32],
    bits: u32,
    round: impl Fn(f32) -> f32,
    packing: Packing<'_>,
    codes: &mut Vec<u8>,
) -> (f32, u8) {
    let most = f32::from((1u16 << bits) - 1);
    // Zero has a code of its own, as in all published writers: what is nothing stays nothing.
    let (low, high) = weights.iter().fold((0f32, 0f32), |(low, high), &weight| (low.min(weight), high.max(weight)));
    // Before the difference, which may be beyond f32.
    let plain = high / most - low / most;
    let code = |zero: f32| move |value: f32| value.round().clamp(-zero, most - zero);
    let first = (-low * inverse(round(plain))).round().clamp(0.0, most);
    let (mut best, mut least) = ((round(plain), first), f64::INFINITY);
    let tried = if packing == Packing::Plain { &[0.0][..] } else { &[0.0, -1.0, 1.0] };
    for zero in tried.iter().map(|step| first + step).filter(|zero| (0.0..=most).contains(zero)) {
        let scale = scale(weights, plain, code(zero), &round, packing);
        let error = lost(weights, packing, scale, code(zero));
        if error < least {
            (best, least) = ((scale, zero), error);
        }
    }
    let (scale, zero) = best;
    let (inverse, code) = (inverse(scale), code(zero));
    codes.extend(weights.iter().map(|weight| (code(weight * inverse) + zero) as u8));
    (scale, zero as u8)
}

/// The scale of a group, and its codes of E4M3. `round` is what becomes of a scale when it is stored.
pub(super) fn pack_e4m3(weights: &[f32], round: impl Fn(f32) -> f32, packing: Packing<'_>, codes: &mut Vec<u8>) -> f32 {
    let scale = scale(weights, largest(weights) / E4M3_MAX, |value| e4m3(to_e4m3(value)), round, packing);
    let inverse = inverse(scale);
    codes.extend(weights.iter().map(|weight| to_e4m3(weight * inverse)));
    scale
}

/// The scale of a group, and its codes of E2M1, of which the largest is 6. `round` is what becomes of a scale when it is stored.
pub(super) fn pack_e2m1(weights: &[f32], round: impl Fn(f32) -> f32, packing: Packing<'_>, codes: &mut Vec<u8>) -> f32 {
    let scale = scale(weights, largest(weights) / 6.0, |value| e2m1(mxfp4::code_of(2.0 * value)), round, packing);
    let inverse = inverse(scale);
    codes.extend(weights.iter().map(|weight| mxfp4::code_of(2.0 * weight * inverse)));
    scale
}

/// The number that a code of E2M1 stands for.
pub(super) fn e2m1(code: u8) -> f32 {
    f32::from(mxfp4::DOUBLED[usize::from(code & 15)]) * 0.5
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn noise(seed: u32, len: usize) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| (next() + next() + next()) * 0.05).collect()
    }

    #[test]
    fn codes_and_scales_give_the_weights_back_and_a_search_loses_less() {
        let round = |scale: f32| f16::from_f32(scale).to_f32();
        for (bits, len) in [(4, 32), (4, 64), (4, 128), (8, 128), (8, 777)] {
            let mut better = 0;
            for seed in 0..40 {
                let weights = noise(seed, len);
                let lost = |packing| {
                    let mut codes = Vec::new();
                    let scale = pack_integers(&weights, bits, round, packing, &mut codes);
                    assert!(scale > 0.0 && scale == round(scale) && codes.len() == len);
                    let of = |(weight, code): (&f32, &i8)| f64::from(weight - scale * f32::from(*code)).powi(2);
                    weights.iter().zip(&codes).map(of).sum::<f64>()
                };
                let (plain, searched) = (lost(Packing::Plain), lost(Packing::Searched));
                assert!(searched <= plain, "{bits} {len}: {searched} > {plain}");
                assert_eq!(lost(Packing::Weighted(&vec![1.0; len])), searched);
                better += usize::from(searched < 0.95 * plain);
                // Half a step, and at four bits as much again opposite the last code.
                let step = 2.0 * weights.iter().fold(0f32, |m, w| m.max(w.abs())) / ((1 << bits) - 1) as f32;
                assert!(plain <= len as f64 * f64::from(step * 0.51).powi(2), "{bits} {len}: {plain}");
            }
            assert!(better > 20 || bits == 8, "{bits} {len}: {better} of 40");
        }
        let mut codes = Vec::new();
        assert_eq!(pack_integers(&[0.0; 32], 4, round, Packing::Searched, &mut codes), 0.0);
        assert_eq!(codes, [0; 32]);
        let (weights, mut codes) = (noise(3, 300), Vec::new());
        let scale = pack_e4m3(&weights, |scale| scale, Packing::Searched, &mut codes);
        for (weight, &code) in weights.iter().zip(&codes) {
            let bound = (weight.abs() / 15.0).max(scale / 1000.0);
            assert!((weight - scale * e4m3(code)).abs() <= bound, "{weight}: {}", scale * e4m3(code));
        }
    }

    #[test]
    fn zero_points_reach_as_far_as_the_weights_do_and_a_search_loses_less() {
        let round = |scale: f32| f16::from_f32(scale).to_f32();
        let meant = |scale: f32, zero: u8, code: u8| scale * f32::from(i16::from(code) - i16::from(zero));
        let mut better = 0;
        for seed in 0..60 {
            // To one side, to the other, and all of them on one.
            let shift = [0.0, 0.02, -0.03, 0.2][seed as usize % 4];
            let weights: Vec<f32> = noise(seed, 64).iter().map(|weight| weight + shift).collect();
            let lost = |packing| {
                let mut codes = Vec::new();
                let (scale, zero) = pack_with_zero(&weights, 4, round, packing, &mut codes);
                assert!(scale > 0.0 && scale == round(scale) && codes.len() == 64);
                assert!(zero <= 15 && codes.iter().all(|&code| code <= 15));
                if packing == Packing::Plain {
                    // Half a step, and another half at an end, since zero points are whole.
                    let off = |(weight, code): (&f32, &u8)| (weight - meant(scale, zero, *code)).abs();
                    assert!(weights.iter().zip(&codes).map(off).fold(0.0, f32::max) <= 1.01 * scale, "{seed}");
                }
                let of = |(weight, code): (&f32, &u8)| f64::from(weight - meant(scale, zero, *code)).powi(2);
                weights.iter().zip(&codes).map(of).sum::<f64>()
            };
            let (plain, searched) = (lost(Packing::Plain), lost(Packing::Searched));
            assert!(searched <= plain, "{seed}: {searched} > {plain}");
            assert_eq!(lost(Packing::Weighted(&[1.0; 64])), searched);
            better += usize::from(searched < 0.95 * plain);
            // A range that is not even about zero is what zero points are for.
            if shift != 0.0 {
                let mut codes = Vec::new();
                let scale = pack_integers(&weights, 4, round, Packing::Plain, &mut codes);
                let of = |(weight, code): (&f32, &i8)| f64::from(weight - scale * f32::from(*code)).powi(2);
                assert!(plain < weights.iter().zip(&codes).map(of).sum::<f64>(), "{seed}");
            }
        }
        assert!(better > 30, "{better} of 60");
        for (weights, expected) in [([0.0f32; 32], 0.0), ([1.5; 32], 1.5), ([-1.5; 32], -1.5), ([1e-12; 32], 0.0)] {
            let mut codes = Vec::new();
            let (scale, zero) = pack_with_zero(&weights, 4, round, Packing::Searched, &mut codes);
            let found = meant(scale, zero, codes[7]);
            assert!((found - expected).abs() <= 1e-3, "{found}, not {expected}");
        }
        let mut codes = Vec::new();
        let (scale, _) = pack_with_zero(&[f32::MAX, f32::MIN], 4, |scale| scale, Packing::Plain, &mut codes);
        assert!(scale.is_finite() && codes == [15, 0] || codes == [15, 1] || codes == [14, 0], "{scale} {codes:?}");
    }
}
