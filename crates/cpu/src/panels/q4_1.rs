//! Q4_1 in panels: four bits, a scale and a minimum for each 32.
//!
//! Layout    320 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales, 16 minima.
//! Products  acc = fma(Σ code · code of x, scale of w · scale of x, acc), then acc = fma(minimum, scale of x · Σ codes of
//!           x, acc).

use tensor::quant::q4_1;

use super::scales::ScalesAndMinimaOf32;
use super::tiles::{ScaleAndMinimum, Shifted};
use super::{Ahead, Nibbles, PanelFormat, blocks_at, dots, nibbles_of, pack_nibbles, store_codes};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum Q4_1 {}

impl PanelFormat for Q4_1 {
    type Block = q4_1::Block;
    type Codes = Nibbles;
    type Scales = ScalesAndMinimaOf32;
    type Tile = Shifted;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&q4_1::Block; PANEL_ROWS], codes: &mut Nibbles, scales: &mut ScalesAndMinimaOf32) {
        for (row, lane) in lanes.iter().enumerate() {
            scales.pack(row, lane.scale, lane.minimum);
            pack_nibbles(&lane.codes, row, codes);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Nibbles, &ScalesAndMinimaOf32); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = dots!(s, x, 0..8, |_x| 0, |p, group| nibbles_of(s, panels[p].0, group));
        for p in 0..NP {
            panels[p].1.add(s, (p, dots), x, &mut sums);
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Nibbles,
        scales: &ScalesAndMinimaOf32,
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleAndMinimum,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            store_codes(s, nibbles_of(s, codes, group), out);
        }
        scales.unpack(s, out_scales);
    }
}
