//! Q5_1 in panels: five bits, a scale and a minimum for each 32.
//!
//! Layout    384 bytes for 16 × 32 weights: 64 of the fifth bits ([`FifthBits`]), 256 of the lower four ([`Nibbles`]), 16
//!           scales, 16 minima.
//! Products  acc = fma(Σ code · code of x, scale of w · scale of x, acc), then acc = fma(minimum, scale of x · Σ codes of
//!           x, acc).

use bytemuck::{Pod, Zeroable};
use tensor::quant::q5_1;

use super::scales::ScalesAndMinimaOf32;
use super::tiles::{ScaleAndMinimum, Shifted};
use super::{
    Ahead, FifthBits, Nibbles, PanelFormat, blocks_at, dots, five_bits_of, pack_fifth_bits, pack_nibbles, store_codes,
};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum Q5_1 {}

/// The codes of sixteen blocks.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// Stored first because it is read first: the prefetcher does not follow a backward jump.
    high: FifthBits,
    low: Nibbles,
}

impl PanelFormat for Q5_1 {
    type Block = q5_1::Block;
    type Codes = Codes;
    type Scales = ScalesAndMinimaOf32;
    type Tile = Shifted;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&q5_1::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut ScalesAndMinimaOf32) {
        for (row, lane) in lanes.iter().enumerate() {
            scales.pack(row, lane.scale, lane.minimum);
            pack_nibbles(&lane.codes, row, &mut codes.low);
            pack_fifth_bits(lane.high, row, &mut codes.high);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Codes, &ScalesAndMinimaOf32); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = dots!(s, x, 0..8, |_x| 0, |p, group| five_bits_of(s, &panels[p].0.low, &panels[p].0.high, group));
        for p in 0..NP {
            panels[p].1.add(s, (p, dots), x, &mut sums);
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Codes,
        scales: &ScalesAndMinimaOf32,
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleAndMinimum,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            store_codes(s, five_bits_of(s, &codes.low, &codes.high, group), out);
        }
        scales.unpack(s, out_scales);
    }
}
