//! `rms_norm`: y = x / sqrt(mean(x²) + eps) · weight over slices as wide as the weight.
//!
//! Shapes    x (width,), weight (width,), y (width,).
//! Accuracy  the mean square to width · ε relative in sixteen partial sums, the rest to 3 ε.
//! Versions  every level, from one text.

use crate::simd::{Kernel, LANES, Simd, Words};

/// Normalises `x` into `out`.
#[inline(always)]
pub(crate) fn rms_norm<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == weight.len() && x.len() == out.len(), "x, weight and out are as wide as each other");
    let (vectors, rest) = x.as_chunks::<LANES>();
    let mut squares = s.splat(0.0);
    for vector in vectors {
        let vector = s.load(vector);
        squares = s.mul_add(vector, vector, squares);
    }
    let tail = s.load_partial(rest);
    squares = s.mul_add(tail, tail, squares);
    let scale = 1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt();
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * scale * weight;
    }
}

/// [`rms_norm`] of each slice of `x` that is as wide as `weight`.
pub(crate) struct RmsNorm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            rms_norm(s, x, self.weight, self.eps, out);
        }
    }
}
