//! Scales: the plain one, and a search for the one that loses least.
//!
//! The search tries the plain scale made smaller and larger by some steps; for each it rounds, solves for the scale (and
//! the minimum) that fits these codes best in the mean square, and keeps what loses least when rounded again. With
//! importance, each square counts as much as its feature does.

use std::ops::Range;

/// How packers choose scales.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Packing<'a> {
    /// Such that the weight of the largest magnitude, or the range, just fits: fast, and weights that were packed before
    /// come back as they were.
    #[default]
    Plain,
    /// Such that the sum of the squares of what is lost is least.
    Searched,
    /// As [`Packing::Searched`], each square times the importance of its feature: one number, finite and not negative, for
    /// each weight of a row. The mean square of what a projection is given there is the usual one (llama.cpp's importance
    /// matrix): the sum is then what its result is expected to be off by, were features independent.
    Weighted(&'a [f32]),
}

/// As long as any block.
const ONES: [f32; 256] = [1.0; 256];

impl<'a> Packing<'a> {
    /// How some of the weights are packed.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        match self {
            Self::Weighted(importance) => Self::Weighted(&importance[range]),
            other => other,
        }
    }

    /// What the squares of `len` weights of a block count; one times a number is that number.
    pub(super) fn importance(self, len: usize) -> &'a [f32] {
        match self {
            Self::Weighted(importance) => &importance[..len],
            _ => &ONES[..len],
        }
    }
}

/// 1 / `step`; 0 where there is no step, so that all codes are those of zero.
pub(super) fn inverse(step: f32) -> f32 {
    if step == 0.0 { 0.0 } else { 1.0 / step }
}

/// The weight of the largest magnitude, the first of equals.
pub(super) fn farthest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |farthest: f32, &weight| if weight.abs() > farthest.abs() { weight } else { farthest })
}

/// The nearest of the integers from `least` to `most`, halves away from zero.
pub(super) fn nearest(least: f32, most: f32) -> impl Fn(f32) -> f32 + Copy {
    move |value| value.round().clamp(least, most)
}

/// Σ importance · (w - scale · code(w / scale))².
fn lost(weights: &[f32], importance: &[f32], scale: f32, code: impl Fn(f32) -> f32) -> f32 {
    let inverse = inverse(scale);
    let lost = |(&weight, counts): (&f32, &f32)| counts * (weight - scale * code(weight * inverse)).powi(2);
    weights.iter().zip(importance).map(lost).sum()
}

/// The scale of `weights` with codes that `code` rounds to, where `plain` is the one that makes all fit. `round` is what
/// becomes of a scale when it is stored.
pub(super) fn scale(
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
    let importance = packing.importance(weights.len());
    let (mut best, mut least) = (plain, lost(weights, importance, plain, code));
    for step in 0..22 {
        // 0.68 to 1.10 of it, and the same with the other sign: codes reach further on one side.
        for sign in [1.0, -1.0] {
            let tried = plain * sign * (0.68 + 0.02 * step as f32);
            let inverse = inverse(tried);
            let (mut products, mut squares) = (0f32, 0f32);
            for (&weight, counts) in weights.iter().zip(importance) {
                let code = code(weight * inverse);
                (products, squares) = (products + counts * weight * code, squares + counts * code * code);
            }
            if squares > 0.0 {
                let fitted = round(products / squares);
                let error = lost(weights, importance, fitted, code);
                if error < least && fitted.is_finite() {
                    (best, least) = (fitted, error);
                }
            }
        }
    }
    best
}

/// Scale and minimum such that `scale · code + minimum` with codes from 0 to `most` covers the weights. With `below`, the
/// minimum is at most zero.
pub(super) fn range(weights: &[f32], most: f32, below: bool, packing: Packing<'_>) -> (f32, f32) {
    let (low, high) = weights.iter().fold((f32::MAX, f32::MIN), |(low, high), &w| (low.min(w), high.max(w)));
    let low = if below { low.min(0.0) } else { low };
    let plain = ((high - low).max(0.0) / most, low);
    if packing == Packing::Plain || plain.0 == 0.0 {
        return plain;
    }
    let importance = packing.importance(weights.len());
    let error = |(scale, minimum): (f32, f32)| range_lost(weights, importance, scale, minimum, most);
    let (mut best, mut least) = (plain, error(plain));
    for step in 0..15 {
        let inverse = (most - 1.0 + 0.2 * step as f32) / (high - low);
        let (mut len, mut sum, mut products, mut codes, mut squares) = (0f32, 0f32, 0f32, 0f32, 0f32);
        for (&weight, counts) in weights.iter().zip(importance) {
            let code = ((weight - low) * inverse).round().clamp(0.0, most);
            len += counts;
            sum += counts * weight;
            products += counts * weight * code;
            codes += counts * code;
            squares += counts * code * code;
        }
        let determinant = len * squares - codes * codes;
        if determinant <= 0.0 {
            continue;
        }
        let mut fitted =
            ((len * products - sum * codes) / determinant, (squares * sum - codes * products) / determinant);
        if below && fitted.1 > 0.0 {
            fitted = (products / squares, 0.0);
        }
        let found = error(fitted);
        if found < least && fitted.0 > 0.0 {
            (best, least) = (fitted, found);
        }
    }
    best
}

/// Σ importance · (w - scale · code - minimum)², each with the nearest code.
fn range_lost(weights: &[f32], importance: &[f32], scale: f32, minimum: f32, most: f32) -> f32 {
    let inverse = inverse(scale);
    let lost = |(weight, counts): (&f32, &f32)| {
        counts * (weight - scale * ((weight - minimum) * inverse).round().clamp(0.0, most) - minimum).powi(2)
    };
    weights.iter().zip(importance).map(lost).sum()
}

/// Scale and minimum as integers up to `largest` of their units, for weights that become codes from 0 to `most`; searched,
/// their neighbours are tried too.
pub(super) fn units(
    weights: &[f32],
    exact: (f32, f32),
    unit: (f32, f32),
    (largest, most): (u8, f32),
    packing: Packing<'_>,
) -> (u8, u8) {
    let round = |value: f32, unit: f32| (value * inverse(unit)).round().clamp(0.0, f32::from(largest)) as u8;
    let first = (round(exact.0, unit.0), round(-exact.1, unit.1));
    if packing == Packing::Plain {
        return first;
    }
    let near = |code: u8| code.saturating_sub(1)..=code.saturating_add(1).min(largest);
    let importance = packing.importance(weights.len());
    let error =
        |pair: (u8, u8)| range_lost(weights, importance, unit.0 * f32::from(pair.0), -unit.1 * f32::from(pair.1), most);
    let (mut best, mut least) = (first, error(first));
    for pair in near(first.0).flat_map(|scale| near(first.1).map(move |minimum| (scale, minimum))) {
        let found = error(pair);
        if found < least {
            (best, least) = (pair, found);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..32).map(|_| next() + next() + next()).collect()
    }

    #[test]
    fn a_search_never_loses_more_and_mostly_less() {
        let mut better = [0; 2];
        for seed in 0..100 {
            let weights = noise(seed);
            let code = nearest(-8.0, 7.0);
            let plain = farthest(&weights) / -8.0;
            let found = scale(&weights, plain, code, |scale| scale, Packing::Searched);
            let (before, after) = (lost(&weights, &ONES, plain, code), lost(&weights, &ONES, found, code));
            assert!(after <= before, "{after} > {before}");
            better[0] += usize::from(after < 0.95 * before);
            let error = |(scale, minimum)| range_lost(&weights, &ONES, scale, minimum, 15.0);
            let plain = error(range(&weights, 15.0, true, Packing::Plain));
            let found = error(range(&weights, 15.0, true, Packing::Searched));
            assert!(found <= plain, "{found} > {plain}");
            better[1] += usize::from(found < 0.95 * plain);
        }
        assert!(better.iter().all(|&better| better > 60), "{better:?}");
    }

    #[test]
    fn weights_that_are_all_alike_have_a_scale_that_is_finite() {
        for packing in [Packing::Plain, Packing::Searched] {
            for value in [0.0, 1.0, -1.0, 1e-40, 1e30] {
                let weights = [value; 32];
                let (step, minimum) = range(&weights, 15.0, false, packing);
                assert!(step.is_finite() && minimum.is_finite());
                let found = scale(&weights, value / -8.0, nearest(-8.0, 7.0), |scale| scale, packing);
                assert!(found.is_finite(), "{value}: {found}");
            }
        }
    }
}
