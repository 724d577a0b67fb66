//! `glu`, `add`, the sums of experts, and the peaks of logits: element by element, so the order of accumulation is no
//! question, but that of slots.
//!
//! Shapes    all (len,).
//! Accuracy  `glu` within 5 ε of activation(gate) · up, with GELU 3 ε more for each unit of its exponent; `add` rounded once; peaks exact.
//! Versions  every level, from one text.

use backend::PEAK_GROUP;
use plan::Activation;

use crate::kernels::math::{as_it_is, clamped_swish, exp, gelu_tanh, plus_one, relu, silu};
use crate::simd::{Kernel, LANES, Simd, Words};

/// out = activation(out) · up: the gate stands in `out`.
pub(crate) struct ActivateMul<'a> {
    pub(crate) activation: Activation,
    pub(crate) gate_and_out: &'a mut [f32],
    pub(crate) up: &'a [f32],
}

/// The loop of [`ActivateMul`] with one activation. A macro, because a closure is not compiled for the level.
macro_rules! activate_mul {
    ($activate:path, $s:ident, $out:expr, $up:expr) => {
        activate_mul!($activate, as_it_is, $s, $out, $up)
    };
    ($activate:path, $let_through:path, $s:ident, $out:expr, $up:expr) => {{
        let (out, out_rest) = $out.as_chunks_mut::<LANES>();
        let (up, up_rest) = $up.as_chunks::<LANES>();
        for (out, up) in out.iter_mut().zip(up) {
            $s.store($s.mul($activate($s, $s.load(out)), $let_through($s, $s.load(up))), out);
        }
        let mut lanes = [0.0; LANES];
        let up_rest = $let_through($s, $s.load_partial(up_rest));
        $s.store($s.mul($activate($s, $s.load_partial(out_rest)), up_rest), &mut lanes);
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
            Activation::ClampedSwiglu => activate_mul!(clamped_swish, plus_one, s, self.gate_and_out, self.up),
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

/// `out[i] = Σ_s weights[s] · x[s][i]` (+ residual), in the order of slots, and the residual last.
pub(crate) struct WeightedSum<'a> {
    /// From a slice of x to the next.
    pub(crate) stride: usize,
    /// (slots, stride); each slice is at least as long as `out`.
    pub(crate) x: &'a [f32],
    /// (slots,).
    pub(crate) weights: &'a [f32],
    /// As long as `out`.
    pub(crate) residual: Option<&'a [f32]>,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for WeightedSum<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { stride, x, weights, residual, out } = self;
        let len = out.len();
        for start in (0..len).step_by(LANES) {
            let lanes = start..len.min(start + LANES);
            let load = |from: &[f32]| match from.as_array() {
                Some(lanes) => s.load(lanes),
                None => s.load_partial(from),
            };
            let slice = |slot: usize| load(&x[slot * stride + lanes.start..slot * stride + lanes.end]);
            let mut sum = s.mul(slice(0), s.splat(weights[0]));
            for (slot, &weight) in weights.iter().enumerate().skip(1) {
                sum = s.mul_add(slice(slot), s.splat(weight), sum);
            }
            if let Some(residual) = residual {
                sum = s.add(load(&residual[lanes.clone()]), sum);
            }
            let mut found = [0.0; LANES];
            s.store(sum, &mut found);
            out[lanes.clone()].copy_from_slice(&found[..lanes.len()]);
        }
    }
}

/// out = sigmoid(gate) · x.
pub(crate) struct GateRow<'a> {
    pub(crate) gate: f32,
    pub(crate) x: &'a [f32],
    pub(crate) out: &'a mut [f32],
}

impl Kernel for GateRow<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let minus = s.splat(0.0 - self.gate);
        let mut sigmoid = [0.0; LANES];
        s.store(s.div(s.splat(1.0), s.add(s.splat(1.0), exp(s, minus))), &mut sigmoid);
        self.out.iter_mut().zip(self.x).for_each(|(out, x)| *out = x * sigmoid[0]);
    }
}
