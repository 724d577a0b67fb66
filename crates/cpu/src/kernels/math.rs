//! Functions of one variable, sixteen lanes at a time.

use plan::Activation;

use crate::simd::Simd;

/// eˣ, within 2 units in the last place where the result is normal. Below -87.3 the result is 1.2e-38 and above 88.3
/// it is 2.3e38, never zero or infinite; NaN stays NaN.
///
/// x = n · ln 2 + r with |r| <= ln 2 / 2, eʳ by a polynomial (Taylor, degree 7: 6e-9 relative), 2ⁿ through the exponent.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts: the product of the first with n is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // The order of the operands keeps a NaN of x.
    let x = s.min(s.splat(88.3), s.max(s.splat(-87.3), x));
    let biased = s.mul_add(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(biased, s.splat(ROUND));
    let r = s.mul_add(n, s.splat(-LN2_HIGH), x);
    let r = s.mul_add(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = s.mul_add(p, r, s.splat(coefficient));
    }
    s.mul(p, s.exp2_of_low_bits(biased))
}

/// x · sigmoid(x).
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let minus_x = s.sub(s.splat(0.0), x);
    s.div(x, s.add(s.splat(1.0), exp(s, minus_x)))
}

/// x · sigmoid(2 √(2 / π) · (x + 0.044715 · x³)).
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const LINEAR: f32 = 1.595_769;
    const CUBIC: f32 = 0.071_354_814;
    let argument = s.mul(x, s.mul_add(s.mul(x, x), s.splat(-CUBIC), s.splat(-LINEAR)));
    s.div(x, s.add(s.splat(1.0), exp(s, argument)))
}

/// g · sigmoid(1.702 · g) of g = min(x, 7); NaN stays ([`plan::Activation::ClampedSwiglu`]).
#[inline(always)]
pub(crate) fn clamped_swish<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // The order of the operands keeps a NaN of x.
    let x = s.min(s.splat(Activation::SWIGLU_LIMIT), x);
    let argument = s.mul(x, s.splat(-Activation::SWIGLU_ALPHA));
    s.div(x, s.add(s.splat(1.0), exp(s, argument)))
}

/// x between -7 and 7, plus one; NaN stays.
#[inline(always)]
pub(crate) fn plus_one<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let limit = Activation::SWIGLU_LIMIT;
    let x = s.min(s.splat(limit), s.max(s.splat(-limit), x));
    s.add(x, s.splat(1.0))
}

/// x.
#[inline(always)]
pub(crate) fn as_it_is<S: Simd>(_: S, x: S::F32) -> S::F32 {
    x
}

/// max(x, 0); NaN stays.
#[inline(always)]
pub(crate) fn relu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    // A maximum alone would drop NaN at some levels.
    let half = s.mul(x, s.splat(0.5));
    s.add(half, s.max(half, s.sub(s.splat(0.0), half)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::{Kernel, LANES, Words};

    struct All([f32; LANES]);

    impl Kernel for All {
        type Output = [[f32; LANES]; 4];
        const WORDS: Words = Words::Floats;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let x = s.load(&self.0);
            let mut out = [[0.0; LANES]; 4];
            s.store(exp(s, x), &mut out[0]);
            s.store(silu(s, x), &mut out[1]);
            s.store(gelu_tanh(s, x), &mut out[2]);
            s.store(relu(s, x), &mut out[3]);
            out
        }
    }

    #[test]
    fn exp_and_activations_are_accurate_to_a_few_units() {
        for isa in Isa::available() {
            let step = if isa == Isa::scalar() { 64 } else { 4 };
            for start in (-87 * 1024..88 * 1024).step_by(LANES * step) {
                let x = std::array::from_fn(|i| (start + (i * step) as i32) as f32 / 1024.0);
                let [exps, silus, gelus, relus] = isa.run(All(x));
                for lane in 0..LANES {
                    let x = f64::from(x[lane]);
                    let expected = x.exp();
                    let error = (f64::from(exps[lane]) - expected).abs() / expected;
                    assert!(error < 2.0 * f64::from(f32::EPSILON), "{isa}: exp({x}) is off by {error:e}");
                    let expected = x / (1.0 + (-x).exp());
                    let error = (f64::from(silus[lane]) - expected).abs();
                    assert!(error <= 4.0 * f64::from(f32::EPSILON) * expected.abs() + 1e-37, "{isa}: silu({x})");
                    let argument = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                    let expected = x / (1.0 + (-argument).exp());
                    let error = (f64::from(gelus[lane]) - expected).abs();
                    let of_argument = 4.0 + 3.0 * argument.abs();
                    let bound = of_argument * f64::from(f32::EPSILON) * expected.abs() + 1e-36;
                    assert!(error <= bound, "{isa}: gelu_tanh({x}) is off by {error:e}");
                    assert_eq!(f64::from(relus[lane]), x.max(0.0), "{isa}");
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_are_finite_and_nan_stays() {
        for isa in Isa::available() {
            let mut x = [0.0; LANES];
            x[..6].copy_from_slice(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -1e30, 1e30, -0.0]);
            let [exps, silus, gelus, relus] = isa.run(All(x));
            assert!([exps, silus, gelus, relus].iter().all(|of| of[0].is_nan()));
            assert!(exps[1] < 1.3e-38 && exps[3] < 1.3e-38 && exps[2].is_finite() && exps[4] > 2e38);
            assert_eq!((exps[5], silus[5].abs(), silus[2], silus[4]), (1.0, 0.0, f32::INFINITY, 1e30));
            assert!(silus[3].abs() < 1e-7, "{}", silus[3]);
            assert_eq!((gelus[2], gelus[4], gelus[5].abs()), (f32::INFINITY, 1e30, 0.0));
            assert!(gelus[3].abs() < 1e-7, "{}", gelus[3]);
            assert_eq!((relus[2], relus[3], relus[4], relus[5].abs()), (f32::INFINITY, 0.0, 1e30, 0.0));
        }
    }
}
