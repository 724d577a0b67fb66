//! Scales that two formats each have in common, of sixteen blocks: one of each row in a lane.

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::add_halves;
use super::tiles::{ScaleAndMinimum, ScaleOfHalves};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, Simd};

/// Of Q4_1 and Q5_1: a scale and a minimum for each 32 weights.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScalesAndMinimaOf32 {
    scale: [f16; LANES],
    minimum: [f16; LANES],
}

impl ScalesAndMinimaOf32 {
    /// Puts those of a row in place.
    #[inline(always)]
    pub(super) fn pack(&mut self, row: usize, scale: f16, minimum: f16) {
        (self.scale[row], self.minimum[row]) = (scale, minimum);
    }

    /// sums + what the products `dots` with the blocks `x` come to, for panel `p`.
    #[inline(always)]
    pub(super) fn add<S: Simd, const MR: usize, const NP: usize>(
        &self,
        s: S,
        (p, dots): (usize, [[S::I32; NP]; MR]),
        x: [&QuantizedBlock; MR],
        sums: &mut [[S::F32; NP]; MR],
    ) {
        let (scale, minimum) = (s.load_f16(&self.scale), s.load_f16(&self.minimum));
        for m in 0..MR {
            let x_scale = x[m].scale;
            let sum = s.mul_add(s.to_f32(dots[m][p]), s.mul(scale, s.splat(x_scale)), sums[m][p]);
            sums[m][p] = s.mul_add(minimum, s.splat(x_scale * x[m].sum() as f32), sum);
        }
    }

    /// As tiles have them.
    #[inline(always)]
    pub(super) fn unpack<S: Simd>(&self, s: S, out: &mut ScaleAndMinimum) {
        s.store(s.load_f16(&self.scale), &mut out.scale);
        s.store(s.load_f16(&self.minimum), &mut out.minimum);
    }
}

/// Of Q4_K and Q5_K: for each 32 weights a scale and a minimum of six bits, as bytes, and what these are multiplied by.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScalesOf32 {
    scale: [f16; LANES],
    minimum: [f16; LANES],
    scales: [[u8; LANES]; 8],
    minima: [[u8; LANES]; 8],
}

impl ScalesOf32 {
    /// Puts those of a row in place.
    #[inline(always)]
    pub(super) fn pack(&mut self, row: usize, scale: f16, minimum: f16, of_parts: [(u8, u8); 8]) {
        (self.scale[row], self.minimum[row]) = (scale, minimum);
        for (part, (scale, minimum)) in of_parts.into_iter().enumerate() {
            (self.scales[part][row], self.minima[part][row]) = (scale, minimum);
        }
    }

    /// The scale and the minimum of the 32 weights of `part`.
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, part: usize) -> (S::F32, S::F32) {
        (
            s.mul(s.load_f16(&self.scale), s.load_u8(&self.scales[part])),
            s.mul(s.load_f16(&self.minimum), s.load_u8(&self.minima[part])),
        )
    }

    /// sums + what the products `dots` of the 32 weights of `part` with the blocks `x` come to, for panel `p`.
    #[inline(always)]
    pub(super) fn add<S: Simd, const MR: usize, const NP: usize>(
        &self,
        s: S,
        part: usize,
        (p, dots): (usize, [[S::I32; NP]; MR]),
        x: [&QuantizedBlock; MR],
        sums: &mut [[S::F32; NP]; MR],
    ) {
        let (scale, minimum) = self.of(s, part);
        for m in 0..MR {
            let x_scale = x[m].scale;
            let sum = s.mul_add(s.to_f32(dots[m][p]), s.mul(scale, s.splat(x_scale)), sums[m][p]);
            sums[m][p] = s.mul_add(minimum, s.splat(-x_scale * x[m].sum() as f32), sum);
        }
    }

    /// As tiles have them.
    #[inline(always)]
    pub(super) fn unpack<S: Simd>(&self, s: S, part: usize, out: &mut ScaleAndMinimum) {
        let (scale, minimum) = self.of(s, part);
        s.store(scale, &mut out.scale);
        s.store(s.sub(s.splat(-0.0), minimum), &mut out.minimum);
    }
}

/// Of Q3_K and Q6_K: for each 16 weights a scale, as a signed byte, and what these are multiplied by.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScalesOf16 {
    scale: [f16; LANES],
    scales: [[i8; LANES]; 16],
}

impl ScalesOf16 {
    /// Puts those of a row in place.
    #[inline(always)]
    pub(super) fn pack(&mut self, row: usize, scale: f16, scales: [i8; 16]) {
        self.scale[row] = scale;
        for (of_16, scale) in self.scales.iter_mut().zip(scales) {
            of_16[row] = scale;
        }
    }

    /// sums + what the products of the halves of the 32 weights of `part` with the blocks `x` come to, for panel `p`.
    #[inline(always)]
    pub(super) fn add<S: Simd, const MR: usize, const NP: usize>(
        &self,
        s: S,
        part: usize,
        (p, halves): (usize, [[[S::I32; NP]; MR]; 2]),
        x: [&QuantizedBlock; MR],
        sums: &mut [[S::F32; NP]; MR],
    ) {
        let scales = [s.load_i8(&self.scales[2 * part]), s.load_i8(&self.scales[2 * part + 1])];
        add_halves(s, halves, p, (s.load_f16(&self.scale), scales), x, sums);
    }

    /// As tiles have them.
    #[inline(always)]
    pub(super) fn unpack<S: Simd>(&self, s: S, part: usize, out: &mut ScaleOfHalves) {
        s.store(s.load_f16(&self.scale), &mut out.scale);
        for (half, out) in out.halves.iter_mut().enumerate() {
            s.store(s.load_i8(&self.scales[2 * part + half]), out);
        }
    }
}
