//! Scales: the plain one, and a search for the one that loses least.
//!
//! The search tries the plain scale made smaller and larger by some steps; for each it rounds, solves for the scale (and
//! the minimum) that fits these codes best in the mean square, and keeps what loses least when rounded again. With
//! importance, each square counts as much as its feature does.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::weighed::{Integers, Numbers, Weighed};

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
pub(super) fn nearest(least: f32, most: f32) -> impl Fn(f32) -> i8 + Copy {
    move |value| rounded(value.clamp(least, most))
}

/// The nearest integer, halves away from zero, of a number that fits a byte. As `round`, which is a call on the processors that
/// compilers assume, and so is not done for many weights at once.
pub(super) fn rounded(value: f32) -> i8 {
    let magnitude = value.abs();
    // Rounds halves to even; those that went down go up.
    let sum = magnitude + INTEGERS;
    let code = (sum.to_bits() as i8).wrapping_add(i8::from(magnitude - (sum - INTEGERS) >= 0.5));
    if value < 0.0 { code.wrapping_neg() } else { code }
}

/// From here on f32 has integers alone.
pub(super) const INTEGERS: f32 = (1 << 23) as f32;

/// The scale of `weights` in units of which they become `numbers`, where `plain` is the one that makes all fit. `round` is what
/// becomes of a scale when it is stored.
pub(super) fn scale(
    weights: &[f32],
    plain: f32,
    numbers: impl Numbers,
    round: impl Fn(f32) -> f32,
    packing: Packing<'_>,
) -> f32 {
    let plain = round(plain);
    if packing == Packing::Plain || plain == 0.0 || !plain.is_finite() {
        return plain;
    }
    Arch::new().dispatch(ScaleSearch { weights, plain, numbers, round, packing })
}

/// Sizes of a scale that a search tries.
const SCALE_STEPS: usize = 22;

/// The search of [`scale`], for what a processor has.
struct ScaleSearch<'a, N, R> {
    weights: &'a [f32],
    plain: f32,
    numbers: N,
    round: R,
    packing: Packing<'a>,
}

impl<N: Numbers, R: Fn(f32) -> f32> WithSimd for ScaleSearch<'_, N, R> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> f32 {
        let Self { weights, plain, numbers, round, packing } = self;
        let weighed = Weighed::new(s, weights, packing);
        // All are fitted, and then all are tried: none waits for another.
        let mut fitted = [plain; 2 * SCALE_STEPS];
        let fitted = if numbers.have_sides() { &mut fitted[..] } else { &mut fitted[..SCALE_STEPS] };
        for (index, fitted) in fitted.iter_mut().enumerate() {
            // 0.68 to 1.10 of it, and the same with the other sign.
            let (step, sign) = (index % SCALE_STEPS, if index < SCALE_STEPS { 1.0 } else { -1.0 });
            let tried = sign * plain * (0.68 + 0.02 * step as f32);
            let [products, squares, _] = weighed.moments(0.0, inverse(tried), numbers);
            if squares > 0.0 {
                *fitted = round(products / squares);
            }
        }
        let (mut best, mut least) = (plain, weighed.scale_lost(plain, numbers));
        for &mut scale in fitted {
            let lost = weighed.scale_lost(scale, numbers);
            if lost < least && scale.is_finite() {
                (best, least) = (scale, lost);
            }
        }
        best
    }
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
    Arch::new().dispatch(RangeSearch { weights, plain, most, below, packing })
}

/// The search of [`range`], for what a processor has.
struct RangeSearch<'a> {
    weights: &'a [f32],
    plain: (f32, f32),
    most: f32,
    below: bool,
    packing: Packing<'a>,
}

impl WithSimd for RangeSearch<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> (f32, f32) {
        let Self { weights, plain, most, below, packing } = self;
        let (weighed, codes) = (Weighed::new(s, weights, packing), Integers { least: 0.0, most });
        let [len, sum] = weighed.count();
        // All are fitted, and then all are tried: none waits for another.
        let mut fitted = [plain; 15];
        for (step, fitted) in fitted.iter_mut().enumerate() {
            let inverse = (most - 1.0 + 0.2 * step as f32) / (plain.0 * most);
            let [products, squares, of_codes] = weighed.moments(plain.1, inverse, codes);
            let determinant = len * squares - of_codes * of_codes;
            if determinant > 0.0 {
                let minimum = (squares * sum - of_codes * products) / determinant;
                *fitted = match below && minimum > 0.0 {
                    true => (products / squares, 0.0),
                    false => ((len * products - sum * of_codes) / determinant, minimum),
                };
            }
        }
        let (mut best, mut least) = (plain, weighed.range_lost(plain, codes));
        for range in fitted {
            let lost = weighed.range_lost(range, codes);
            if lost < least && range.0 > 0.0 {
                (best, least) = (range, lost);
            }
        }
        best
    }
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
    let nearest = nearest(0.0, f32::from(largest));
    let first = (nearest(exact.0 * inverse(unit.0)) as u8, nearest(-exact.1 * inverse(unit.1)) as u8);
    if packing == Packing::Plain {
        return first;
    }
    Arch::new().dispatch(UnitSearch { weights, first, unit, largest, most, packing })
}

/// The search of [`units`], for what a processor has.
struct UnitSearch<'a> {
    weights: &'a [f32],
    first: (u8, u8),
    unit: (f32, f32),
    largest: u8,
    most: f32,
    packing: Packing<'a>,
}

impl WithSimd for UnitSearch<'_> {
    type Output = (u8, u8);

    #[inline(always)]
    fn with_simd<S: Simd>(self, s: S) -> (u8, u8) {
        let Self { weights, first, unit, largest, most, packing } = self;
        let (weighed, codes) = (Weighed::new(s, weights, packing), Integers { least: 0.0, most });
        let near = |code: u8| (code.saturating_sub(1), code.saturating_add(1).min(largest));
        let ((low, high), (lowest, highest)) = (near(first.0), near(first.1));
        // The first itself is better than those that are as good.
        let (mut best, mut least) = (first, f32::INFINITY);
        for pair in
            std::iter::once(first).chain((low..=high).flat_map(|scale| (lowest..=highest).map(move |m| (scale, m))))
        {
            let found = weighed.range_lost((unit.0 * f32::from(pair.0), -unit.1 * f32::from(pair.1)), codes);
            if found < least {
                (best, least) = (pair, found);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u32) -> [f32; 32] {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        std::array::from_fn(|_| next() + next() + next())
    }

    /// [`Weighed::scale_lost`] and [`Weighed::range_lost`] of 32 weights.
    struct Lost<'a>(&'a [f32], (f32, f32), Integers);

    impl WithSimd for Lost<'_> {
        type Output = [f32; 2];

        fn with_simd<S: Simd>(self, s: S) -> [f32; 2] {
            let Self(weights, range, numbers) = self;
            let weighed = Weighed::new(s, weights, Packing::Searched);
            [weighed.scale_lost(range.0, numbers), weighed.range_lost(range, numbers)]
        }
    }

    #[test]
    fn a_search_never_loses_more_and_mostly_less() {
        let mut better = [0; 2];
        for seed in 0..100 {
            let weights = noise(seed);
            let numbers = Integers { least: -8.0, most: 7.0 };
            let lost = |scale| Arch::new().dispatch(Lost(&weights, (scale, 0.0), numbers))[0];
            let plain = farthest(&weights) / -8.0;
            let found = scale(&weights, plain, numbers, |scale| scale, Packing::Searched);
            let (before, after) = (lost(plain), lost(found));
            assert!(after <= before, "{after} > {before}");
            better[0] += usize::from(after < 0.95 * before);
            let lost = |range| Arch::new().dispatch(Lost(&weights, range, Integers { least: 0.0, most: 15.0 }))[1];
            let plain = lost(range(&weights, 15.0, true, Packing::Plain));
            let found = lost(range(&weights, 15.0, true, Packing::Searched));
            assert!(found <= plain, "{found} > {plain}");
            better[1] += usize::from(found < 0.95 * plain);
        }
        assert!(better.iter().all(|&better| better > 60), "{better:?}");
    }

    #[test]
    fn searches_find_the_same_whatever_a_processor_has_at_once() {
        for seed in 0..100 {
            let (weights, importance) = (noise(seed), noise(seed + 1000).map(f32::abs));
            for packing in [Packing::Searched, Packing::Weighted(&importance)] {
                let plain = farthest(&weights) / -8.0;
                let numbers = Integers { least: -8.0, most: 7.0 };
                let search = || ScaleSearch { weights: &weights, plain, numbers, round: |scale| scale, packing };
                assert_eq!(search().with_simd(pulp::Scalar), Arch::new().dispatch(search()), "{seed}");
                let plain = range(&weights, 15.0, true, Packing::Plain);
                let search = || RangeSearch { weights: &weights, plain, most: 15.0, below: true, packing };
                let found = Arch::new().dispatch(search());
                assert_eq!(search().with_simd(pulp::Scalar), found, "{seed}");
                let unit = (found.0 / 40.0, -found.1 / 30.0);
                let first = (39, 31);
                let search = || UnitSearch { weights: &weights, first, unit, largest: 63, most: 15.0, packing };
                assert_eq!(search().with_simd(pulp::Scalar), Arch::new().dispatch(search()), "{seed}");
            }
        }
    }

    #[test]
    fn integers_are_rounded_as_the_standard_library_does() {
        let nearest = nearest(-8.0, 7.0);
        for i in -127 * 64..=127 * 64 {
            // Halves among them, and what is next to them.
            let exact = i as f32 / 64.0;
            for value in [exact.next_down(), exact, exact.next_up()] {
                assert_eq!(rounded(value), value.round() as i8, "{value}");
                assert_eq!(nearest(value), value.round().clamp(-8.0, 7.0) as i8, "{value}");
            }
        }
    }

    #[test]
    fn weights_that_are_all_alike_have_a_scale_that_is_finite() {
        for packing in [Packing::Plain, Packing::Searched] {
            for value in [0.0, 1.0, -1.0, 1e-40, 1e30] {
                let weights = [value; 32];
                let (step, minimum) = range(&weights, 15.0, false, packing);
                assert!(step.is_finite() && minimum.is_finite());
                let numbers = Integers { least: -8.0, most: 7.0 };
                let found = scale(&weights, value / -8.0, numbers, |scale| scale, packing);
                assert!(found.is_finite(), "{value}: {found}");
            }
        }
    }
}
