//! Integers and E4M3 numbers with one scale for a group of weights: what safetensors have, where scales lie in a tensor of
//! their own and a group may be of any length.
//!
//! Meaning   `weight = scale · code`, integers of b bits from -2^(b-1) to 2^(b-1) - 1.
//! Packing   plain, the largest magnitude is half a step beyond the last code (integers: `scale = 2 · max|w| / (2^b - 1)`),
//!           or the largest number of E4M3 (448). Scales are positive, as all published writers make them.
//! Source    compressed-tensors.

use tensor::quant::Packing;
use tensor::quant::fp8::{E4M3_MAX, e4m3, to_e4m3};

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

/// The scale of a group of finite weights whose codes `code` rounds to; `most` is what the largest magnitude becomes, plainly.
/// `round` is what becomes of a scale when it is stored. Never negative.
fn scale(
    weights: &[f32],
    most: f32,
    code: impl Fn(f32) -> f32 + Copy,
    round: impl Fn(f32) -> f32,
    packing: Packing<'_>,
) -> f32 {
    let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
    let plain = round(largest / most);
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
    let scale = scale(weights, -least - 0.5, code, round, packing);
    let inverse = inverse(scale);
    codes.extend(weights.iter().map(|weight| code(weight * inverse) as i8));
    scale
}

/// The scale of a group, and its codes of E4M3. `round` is what becomes of a scale when it is stored.
pub(super) fn pack_e4m3(weights: &[f32], round: impl Fn(f32) -> f32, packing: Packing<'_>, codes: &mut Vec<u8>) -> f32 {
    let scale = scale(weights, E4M3_MAX, |value| e4m3(to_e4m3(value)), round, packing);
    let inverse = inverse(scale);
    codes.extend(weights.iter().map(|weight| to_e4m3(weight * inverse)));
    scale
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
}
