//! Q4_1 in panels: four bits, a scale and a minimum for each 32.
//!
//! Layout    320 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales, 16 minima.
//! Products  acc = fma(Σ code · code of x, scale of w · scale of x, acc), then acc = fma(minimum, scale of x · Σ codes of
//!           x, acc).

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q4_1;

use super::tiles::{ScaleAndMinimum, Shifted};
use super::{Ahead, Nibbles, PanelFormat, blocks_at, dots, nibbles_of, pack_nibbles, store_codes};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum Q4_1 {}

/// The scales of sixteen blocks, one of each row in a lane.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Scales {
    scale: [f16; LANES],
    minimum: [f16; LANES],
}

impl PanelFormat for Q4_1 {
    type Block = q4_1::Block;
    type Codes = Nibbles;
    type Scales = Scales;
    type Tile = Shifted;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&q4_1::Block; PANEL_ROWS], codes: &mut Nibbles, scales: &mut Scales) {
        for (row, lane) in lanes.iter().enumerate() {
            (scales.scale[row], scales.minimum[row]) = (lane.scale, lane.minimum);
            pack_nibbles(&lane.codes, row, codes);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Nibbles, &Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = dots!(s, x, 0..8, |_x| 0, |p, group| nibbles_of(s, panels[p].0, group));
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
        codes: &Nibbles,
        scales: &Scales,
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleAndMinimum,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            store_codes(s, nibbles_of(s, codes, group), out);
        }
        s.store(s.load_f16(&scales.scale), &mut out_scales.scale);
        s.store(s.load_f16(&scales.minimum), &mut out_scales.minimum);
    }
}
