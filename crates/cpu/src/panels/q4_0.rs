//! Q4_0 in panels: four bits and a scale for each 32.
//!
//! Layout    288 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales.
//! Products  acc = fma(Σ (code - 8) · code of x, scale of w · scale of x, acc); the codes are multiplied as they are, from
//!           -8 · Σ codes of x on.

use half::f16;
use tensor::quant::q4_0;

use super::tiles::Scaled;
use super::{Ahead, LESS_8, Nibbles, PanelFormat, blocks_at, dots, nibbles_of, pack_nibbles, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum Q4_0 {}

impl PanelFormat for Q4_0 {
    type Block = q4_0::Block;
    type Codes = Nibbles;
    type Scales = [f16; LANES];
    type Tile = Scaled;

    const X_BLOCKS: usize = 1;
    const HAS_ALL_TILES: bool = true;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&q4_0::Block; PANEL_ROWS], codes: &mut Nibbles, scales: &mut [f16; LANES]) {
        for (row, lane) in lanes.iter().enumerate() {
            scales[row] = lane.scale;
            // Weights j and j + 16 share a byte in the file, too.
            pack_nibbles(&lane.codes, row, codes);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Nibbles, &[f16; LANES]); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = dots!(s, x, 0..8, |x| x.minus_128_sum >> 4, |p, group| nibbles_of(s, panels[p].0, group));
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let scale = s.mul(s.load_f16(panels[p].1), x_scale);
                sums[m][p] = s.mul_add(s.to_f32(dots[m][p]), scale, sums[m][p]);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Nibbles,
        scales: &[f16; LANES],
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut [f32; LANES],
    ) {
        unpack_nibbles(s, codes, &LESS_8, out);
        s.store(s.load_f16(scales), out_scales);
    }
}
