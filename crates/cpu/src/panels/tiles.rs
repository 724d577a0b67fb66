//! What tiles of many rows multiply: the codes of 32 weights of sixteen rows as bytes, whatever bits they had, and their
//! scales in a form that few formats share.
//!
//! A tile passes over its panels once for each six rows: unpacking there would be done eighty times for a prompt of 512. So a
//! piece of a panel is unpacked once for all rows of a strip, and there is one tile for each form of scales, not for each
//! format. Products are those of [`super::PanelFormat::add`], to the bit.

use bytemuck::{Pod, Zeroable};

use super::dots;
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PanelCodes, Simd};

/// Blocks of 32 of k in a piece that is unpacked: two panels of it and six rows of x stay in the first-level cache.
pub(crate) const PIECE_BLOCKS: usize = 16;

/// A form of scales. Codes are signed bytes, xored with [`Simd::PANEL_XOR`], where a form does not say otherwise.
pub(crate) trait TileFormat: 'static {
    /// The codes of 32 weights of each of sixteen rows.
    type Codes: Pod;
    /// The scales of 32 weights of each of sixteen rows.
    type Scales: Pod;

    /// sums + the products of 32 weights of `NP` panels with a block of each of `MR` rows.
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Self::Codes, &Self::Scales); NP],
        x: [&QuantizedBlock; MR],
        sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR];
}

/// A piece of a panel as tiles have it.
pub(crate) struct TilePanel<'a, T: TileFormat> {
    pub(crate) codes: &'a [T::Codes],
    pub(crate) scales: &'a [T::Scales],
}

impl<T: TileFormat> Clone for TilePanel<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: TileFormat> Copy for TilePanel<'_, T> {}

/// A scale.
pub(crate) enum Scaled {}

impl TileFormat for Scaled {
    type Codes = PanelCodes;
    type Scales = [f32; LANES];

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&PanelCodes, &[f32; LANES]); NP],
        x: [&QuantizedBlock; MR],
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        let dots = s.panel_dots(panels.map(|(codes, _)| codes), x);
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                sums[m][p] = s.mul_add(dots[m][p], s.mul(s.load(panels[p].1), x_scale), sums[m][p]);
            }
        }
        sums
    }
}

/// A scale and what is added to each weight.
pub(crate) enum Shifted {}

/// The scales of [`Shifted`].
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScaleAndMinimum {
    pub(crate) scale: [f32; LANES],
    pub(crate) minimum: [f32; LANES],
}

impl TileFormat for Shifted {
    type Codes = PanelCodes;
    type Scales = ScaleAndMinimum;

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&PanelCodes, &ScaleAndMinimum); NP],
        x: [&QuantizedBlock; MR],
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        let dots = s.panel_dots(panels.map(|(codes, _)| codes), x);
        for m in 0..MR {
            let (x_scale, x_sum) = (s.splat(x[m].scale), s.splat(x[m].scaled_sum));
            for p in 0..NP {
                let of = panels[p].1;
                let sum = s.mul_add(dots[m][p], s.mul(s.load(&of.scale), x_scale), sums[m][p]);
                sums[m][p] = s.mul_add(s.load(&of.minimum), x_sum, sum);
            }
        }
        sums
    }
}

/// A scale, and an integer for each sixteen weights that multiplies it. Codes are those of the weights plus 32, below 128.
pub(crate) enum Halves {}

/// The scales of [`Halves`].
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScaleOfHalves {
    pub(crate) scale: [f32; LANES],
    pub(crate) halves: [[f32; LANES]; 2],
}

impl TileFormat for Halves {
    type Codes = PanelCodes;
    type Scales = ScaleOfHalves;

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&PanelCodes, &ScaleOfHalves); NP],
        x: [&QuantizedBlock; MR],
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        let first =
            dots!(s, x, 0..4, |x| -32 * i32::from(x.half_sums[0]), |p, group| s.load_bytes(&panels[p].0[group]));
        let second =
            dots!(s, x, 4..8, |x| -32 * i32::from(x.half_sums[1]), |p, group| s.load_bytes(&panels[p].0[group]));
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let of = panels[p].1;
                let dot = s.mul(s.to_f32(first[m][p]), s.load(&of.halves[0]));
                let dot = s.mul_add(s.to_f32(second[m][p]), s.load(&of.halves[1]), dot);
                sums[m][p] = s.mul_add(dot, s.mul(s.load(&of.scale), x_scale), sums[m][p]);
            }
        }
        sums
    }
}

/// As [`Halves`], with a minimum that is subtracted; codes are those of the weights.
pub(crate) enum ShiftedHalves {}

/// The scales of [`ShiftedHalves`].
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct ScalesAndMinima {
    pub(crate) scale: [f32; LANES],
    pub(crate) halves: [[f32; LANES]; 2],
    pub(crate) minimum: [f32; LANES],
    pub(crate) minima: [[f32; LANES]; 2],
}

impl TileFormat for ShiftedHalves {
    type Codes = PanelCodes;
    type Scales = ScalesAndMinima;

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&PanelCodes, &ScalesAndMinima); NP],
        x: [&QuantizedBlock; MR],
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        let first = dots!(s, x, 0..4, |_x| 0, |p, group| s.load_bytes(&panels[p].0[group]));
        let second = dots!(s, x, 4..8, |_x| 0, |p, group| s.load_bytes(&panels[p].0[group]));
        for m in 0..MR {
            let halves = [s.splat(f32::from(x[m].half_sums[0])), s.splat(f32::from(x[m].half_sums[1]))];
            for p in 0..NP {
                let of = panels[p].1;
                let dot = s.mul(s.to_f32(first[m][p]), s.load(&of.halves[0]));
                let dot = s.mul_add(s.to_f32(second[m][p]), s.load(&of.halves[1]), dot);
                let least = s.mul_add(halves[1], s.load(&of.minima[1]), s.mul(halves[0], s.load(&of.minima[0])));
                let sum = s.mul_add(dot, s.mul(s.load(&of.scale), s.splat(x[m].scale)), sums[m][p]);
                sums[m][p] = s.mul_add(least, s.mul(s.load(&of.minimum), s.splat(-x[m].scale)), sum);
            }
        }
        sums
    }
}
