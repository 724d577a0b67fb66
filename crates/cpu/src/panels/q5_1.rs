//! Q5_1 in panels: five bits, a scale and a minimum for each 32.
//!
//! Layout    384 bytes for 16 × 32 weights: 64 of the fifth bits ([`FifthBits`]), 256 of the lower four ([`Nibbles`]), 16
//!           scales, 16 minima.
//! Products  acc = fma(Σ code · code of x, scale of w · scale of x, acc), then acc = fma(minimum, scale of x · Σ codes of
//!           x, acc).

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q5_1;

use super::tiles::{ScaleAndMinimum, Shifted};
use super::{
    Ahead, FifthBits, Nibbles, PanelFormat, blocks_at, dots, five_bits_of, pack_fifth_bits, pack_nibbles, store_codes,
};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum Q5_1 {}

/// The codes of sixteen blocks.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// First, because it is read first: a jump back is none that the processor sees coming.
    high: FifthBits,
    low: Nibbles,
}

/// The scales of sixteen blocks, one of each row in a lane.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Scales {
    scale: [f16; LANES],
    minimum: [f16; LANES],
}

impl PanelFormat for Q5_1 {
    type Block = q5_1::Block;
    type Codes = Codes;
    type Scales = Scales;
    type Tile = Shifted;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&q5_1::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut Scales) {
        for (row, lane) in lanes.iter().enumerate() {
            (scales.scale[row], scales.minimum[row]) = (lane.scale, lane.minimum);
            pack_nibbles(&lane.codes, row, &mut codes.low);
            pack_fifth_bits(lane.high, row, &mut codes.high);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Codes, &Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = dots!(s, x, 0..8, |_x| 0, |p, group| five_bits_of(s, &panels[p].0.low, &panels[p].0.high, group));
        for p in 0..NP {
            let (scale, minimum) = (s.load_f16(&panels[p].1.scale), s.load_f16(&panels[p].1.minimum));
            for m in 0..MR {
                let x_scale = x[m].scale;
                let sum = s.mul_add(s.to_f32(dots[m][p]), s.mul(scale, s.splat(x_scale)), sums[m][p]);
                sums[m][p] = s.mul_add(minimum, s.splat(x_scale * x[m].sum() as f32), sum);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Codes,
        scales: &Scales,
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleAndMinimum,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            store_codes(s, five_bits_of(s, &codes.low, &codes.high, group), out);
        }
        s.store(s.load_f16(&scales.scale), &mut out_scales.scale);
        s.store(s.load_f16(&scales.minimum), &mut out_scales.minimum);
    }
}
