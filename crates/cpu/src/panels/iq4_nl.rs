//! IQ4_NL in panels: four bits that name one of 16 levels, and a scale for each 32.
//!
//! Layout    288 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales.
//! Products  acc = fma(Σ level · code of x, scale of w · scale of x, acc); levels are multiplied plus 127, so that none
//!           is negative, from -127 · Σ codes of x on.

use half::f16;
use tensor::quant::iq4_nl;

use super::tiles::Scaled;
use super::{Ahead, Nibbles, PanelFormat, blocks_at, dots, nibbles_of, pack_nibbles, shifted, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum IQ4_NL {}

/// The levels, plus 127.
pub(super) const SHIFTED: [u8; 16] = shifted(&iq4_nl::LEVELS, 127);

impl PanelFormat for IQ4_NL {
    type Block = iq4_nl::Block;
    type Codes = Nibbles;
    type Scales = [f16; LANES];
    type Tile = Scaled;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&iq4_nl::Block; PANEL_ROWS], codes: &mut Nibbles, scales: &mut [f16; LANES]) {
        for (row, lane) in lanes.iter().enumerate() {
            scales[row] = lane.scale;
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
        let dots = dots!(wide s, x, 0..8, |x| x.minus_128_sum + x.sum(), |p, group| {
            s.lookup(&SHIFTED, nibbles_of(s, panels[p].0, group))
        });
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
        unpack_nibbles(s, codes, &iq4_nl::LEVELS, out);
        s.store(s.load_f16(scales), out_scales);
    }
}
