//! What searches of [`super::fit`] add up: sums over weights, each of which counts as much as its importance.
//!
//! Order     sixteen partial sums, of every sixteenth weight each, however many a processor adds at once; of these, halves are
//!           added to halves. So a search finds the same on all processors.

#![expect(
    clippy::needless_range_loop,
    reason = "iterators are calls where they are not compiled for what a processor has"
)]

use pulp::Simd;

use super::Packing;
use super::fit::{INTEGERS, inverse};

/// Partial sums.
const LANES: usize = 16;

/// What a format's codes stand for, in units of the scale.
pub(super) trait Numbers: Copy {
    /// The nearest number to each of `values`; of two as near either, which loses as much.
    fn nearest<S: Simd>(self, s: S, values: S::f32s) -> S::f32s;

    /// Whether they reach so much further on one side of zero that a scale of the other sign may lose less.
    fn have_sides(self) -> bool;
}

/// The integers from `least` to `most`.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    pub(super) least: f32,
    pub(super) most: f32,
}

impl Numbers for Integers {
    #[inline(always)]
    fn nearest<S: Simd>(self, s: S, values: S::f32s) -> S::f32s {
        // From 2^23 to 2^24, as much as there is on both sides, f32 has the integers alone.
        let middle = s.splat_f32s(1.5 * INTEGERS);
        let within = s.min_f32s(s.max_f32s(values, s.splat_f32s(self.least)), s.splat_f32s(self.most));
        s.sub_f32s(s.add_f32s(within, middle), middle)
    }

    /// In five bits already (16 and 15) it makes no difference.
    fn have_sides(self) -> bool {
        -self.least > 1.1 * self.most
    }
}

/// The sum of `lowest` and of the steps whose end `values` have reached: a step is its end and its height.
#[inline(always)]
pub(super) fn climb<S: Simd>(s: S, values: S::f32s, lowest: f32, steps: impl Iterator<Item = (f32, f32)>) -> S::f32s {
    let (mut reached, nothing) = (s.splat_f32s(lowest), s.splat_f32s(0.0));
    for (end, height) in steps {
        let passed = s.greater_than_or_equal_f32s(values, s.splat_f32s(end));
        reached = s.add_f32s(reached, s.select_f32s(passed, s.splat_f32s(height), nothing));
    }
    reached
}

/// `magnitudes` with the signs of `values`.
#[inline(always)]
pub(super) fn with_signs<S: Simd>(s: S, magnitudes: S::f32s, values: S::f32s) -> S::f32s {
    s.or_f32s(magnitudes, s.and_f32s(values, s.splat_f32s(-0.0)))
}

/// Weights of a block, or of a part of one, and what their squares count.
pub(super) struct Weighed<'a, S: Simd> {
    s: S,
    weights: &'a [S::f32s],
    importance: &'a [S::f32s],
}

impl<'a, S: Simd> Weighed<'a, S> {
    /// Of a multiple of sixteen weights.
    #[inline(always)]
    pub(super) fn new(s: S, weights: &'a [f32], packing: Packing<'a>) -> Self {
        debug_assert!(weights.len().is_multiple_of(LANES), "{} weights", weights.len());
        let importance = packing.importance(weights.len());
        Self { s, weights: S::as_simd_f32s(weights).0, importance: S::as_simd_f32s(importance).0 }
    }

    /// Sums of what `terms` makes of weights and their importance.
    #[inline(always)]
    fn sums<const N: usize>(&self, terms: impl Fn(S::f32s, S::f32s) -> [S::f32s; N]) -> [f32; N] {
        let vectors = const { LANES / S::F32_LANES };
        let mut sums = [[self.s.splat_f32s(0.0); LANES]; N];
        for first in (0..self.weights.len()).step_by(vectors) {
            for vector in 0..vectors {
                let terms = terms(self.weights[first + vector], self.importance[first + vector]);
                for n in 0..N {
                    sums[n][vector] = self.s.add_f32s(sums[n][vector], terms[n]);
                }
            }
        }
        let mut totals = [0.0; N];
        for n in 0..N {
            totals[n] = self.total(&mut sums[n]);
        }
        totals
    }

    #[inline(always)]
    fn total(&self, sums: &mut [S::f32s; LANES]) -> f32 {
        let mut half = const { LANES / S::F32_LANES / 2 };
        while half > 0 {
            for vector in 0..half {
                sums[vector] = self.s.add_f32s(sums[vector], sums[vector + half]);
            }
            half /= 2;
        }
        let lanes: &mut [f32] = bytemuck::cast_slice_mut(&mut sums[..1]);
        let mut half = S::F32_LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
            half /= 2;
        }
        lanes[0]
    }

    /// Σ importance · (w - near(w))².
    #[inline(always)]
    fn lost(&self, near: impl Fn(S::f32s) -> S::f32s) -> f32 {
        let s = self.s;
        let [lost] = self.sums(
            #[inline(always)]
            |weights, importance| {
                let off = s.sub_f32s(weights, near(weights));
                [s.mul_f32s(s.mul_f32s(importance, off), off)]
            },
        );
        lost
    }

    /// What is lost with a scale.
    #[inline(always)]
    pub(super) fn scale_lost(&self, scale: f32, numbers: impl Numbers) -> f32 {
        let s = self.s;
        let (scale, inverse) = (s.splat_f32s(scale), s.splat_f32s(inverse(scale)));
        self.lost(
            #[inline(always)]
            |weights| s.mul_f32s(scale, numbers.nearest(s, s.mul_f32s(weights, inverse))),
        )
    }

    /// What is lost with a scale and a minimum.
    #[inline(always)]
    pub(super) fn range_lost(&self, (scale, minimum): (f32, f32), codes: Integers) -> f32 {
        let s = self.s;
        let (scale, inverse, minimum) = (s.splat_f32s(scale), s.splat_f32s(inverse(scale)), s.splat_f32s(minimum));
        self.lost(
            #[inline(always)]
            |weights| {
                let codes = codes.nearest(s, s.mul_f32s(s.sub_f32s(weights, minimum), inverse));
                s.add_f32s(s.mul_f32s(scale, codes), minimum)
            },
        )
    }

    /// Σ importance and Σ importance · w.
    #[inline(always)]
    pub(super) fn count(&self) -> [f32; 2] {
        let s = self.s;
        self.sums(
            #[inline(always)]
            |weights, importance| [importance, s.mul_f32s(importance, weights)],
        )
    }

    /// Of the numbers nearest to (w - minimum) · inverse, each as often as its weight counts: Σ number · w, Σ number², Σ number.
    #[inline(always)]
    pub(super) fn moments(&self, minimum: f32, inverse: f32, numbers: impl Numbers) -> [f32; 3] {
        let s = self.s;
        let (minimum, inverse) = (s.splat_f32s(minimum), s.splat_f32s(inverse));
        self.sums(
            #[inline(always)]
            |weights, importance| {
                let number = numbers.nearest(s, s.mul_f32s(s.sub_f32s(weights, minimum), inverse));
                let counted = s.mul_f32s(importance, number);
                [s.mul_f32s(counted, weights), s.mul_f32s(counted, number), counted]
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::super::{fp8, iq4_nl, mxfp4, nvfp4};
    use super::*;

    struct Nearest<'a, N>(N, &'a mut [f32]);

    impl<N: Numbers> WithSimd for Nearest<'_, N> {
        type Output = ();

        fn with_simd<S: Simd>(self, s: S) {
            S::as_mut_simd_f32s(self.1).0.iter_mut().for_each(|values| *values = self.0.nearest(s, *values));
        }
    }

    /// Of values around all `numbers`, and beyond the outermost.
    fn check(of: impl Numbers, numbers: &[f32]) {
        let most = numbers.iter().fold(0f32, |most, number| most.max(number.abs()));
        let values: Vec<f32> = (-16_000..16_000).map(|i| i as f32 / 13_331.0 * most).collect();
        let (mut found, mut alone) = (values.clone(), values.clone());
        Arch::new().dispatch(Nearest(of, &mut found));
        Nearest(of, &mut alone).with_simd(pulp::Scalar);
        for ((value, found), alone) in values.iter().zip(found).zip(alone) {
            let least = numbers.iter().map(|number| (number - value).abs()).fold(f32::INFINITY, f32::min);
            assert!(numbers.contains(&found), "{value} became {found}, which is none");
            assert_eq!((value - found).abs(), least, "{value} became {found}");
            assert_eq!(found, alone, "{value}");
        }
    }

    #[test]
    fn values_go_to_the_nearest_number_of_each_format() {
        check(Integers { least: -8.0, most: 7.0 }, &(-8..8).map(|code| code as f32).collect::<Vec<_>>());
        check(Integers { least: 0.0, most: 31.0 }, &(0..32).map(|code| code as f32).collect::<Vec<_>>());
        check(iq4_nl::Levels, &iq4_nl::LEVELS.map(f32::from));
        check(nvfp4::E2m1, &mxfp4::DOUBLED.map(|doubled| f32::from(doubled) / 2.0));
        check(fp8::E4m3, &(0..=255).map(fp8::e4m3).filter(|number| number.is_finite()).collect::<Vec<_>>());
    }
}
