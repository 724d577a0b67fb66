//! `glu`, `add`, and the peaks of logits: element by element, so the order of accumulation is no question.
//!
//! Shapes    all (len,).
//! Accuracy  `glu` within 5 ε of activation(gate) · up, with GELU 3 ε more for each unit of its exponent; `add` rounded once; peaks exact.
//! Versions  every level, from one text.

use backend::PEAK_GROUP;
use plan::Activation;

use crate::kernels::math::{gelu_tanh, relu, silu};
use crate::simd::{Kernel, LANES, Simd, Words};

/// out = activation(out) · up: the gate stands in `out`.
pub(crate) struct ActivateMul<'a> {
    pub(crate) activation: Activation,
    pub(crate) gate_and_out: &'a mut [f32],
    pub(crate) up: &'a [f32],
}

/// The loop of [`ActivateMul`] with one activation. A macro, because a closure is not compiled for the level.
macro_rules! activate_mul {
    ($activate:path, $s:ident, $out:expr, $up:expr) => {{
        let (out, out_rest) = $out.as_chunks_mut::<LANES>();
        let (up, up_rest) = $up.as_chunks::<LANES>();
        for (out, up) in out.iter_mut().zip(up) {
            $s.store($s.mul($activate($s, $s.load(out)), $s.load(up)), out);
        }
        let mut lanes = [0.0; LANES];
        $s.store($s.mul($activate($s, $s.load_partial(out_rest)), $s.load_partial(up_rest)), &mut lanes);
        out_rest.copy_from_slice(&lanes[..out_rest.len()]);
    }};
}

impl Kernel for ActivateMul<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert_eq!(self.gate_and_out.len(), self.up.len(), "gate and up are as long as each other");
        match self.activation {
            Activation::Silu => activate_mul!(silu, s, self.gate_and_out, self.up),
            Activation::GeluTanh => activate_mul!(gelu_tanh, s, self.gate_and_out, self.up),
            Activation::Relu => activate_mul!(relu, s, self.gate_and_out, self.up),
        }
    }
}

/// The [`backend::peak`] of each group of logits.
pub(crate) struct GroupPeaks<'a> {
    pub(crate) logits: &'a [f32],
    /// One for each [`PEAK_GROUP`] of `logits`, the last of which may be shorter.
    pub(crate) peaks: &'a mut [f32],
}

impl Kernel for GroupPeaks<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (groups, rest) = self.logits.as_chunks::<PEAK_GROUP>();
        let (peaks, rest_peak) = self.peaks.split_at_mut(groups.len());
        for (group, out) in groups.iter().zip(peaks) {
            let mut largest = s.splat(f32::NEG_INFINITY);
            // Zero for as long as all are finite, and not a number from then on.
            let mut zeros = s.splat(0.0);
            for lanes in group.as_chunks::<LANES>().0 {
                let lanes = s.load(lanes);
                largest = s.max(lanes, largest);
                zeros = s.mul_add(lanes, s.splat(0.0), zeros);
            }
            *out = s.max_lane(largest) + s.sum(zeros);
        }
        rest_peak.iter_mut().for_each(|out| *out = backend::peak(rest));
    }
}

/// out = a + b.
pub(crate) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}
