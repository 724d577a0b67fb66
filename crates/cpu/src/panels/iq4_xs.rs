//! IQ4_XS in panels: four bits that name one of 16 levels; for each 32 a scale of six bits, and for each 256 what these are
//! multiplied by.
//!
//! Layout    2208 bytes for 16 × 256 weights: 2048 of codes, of each 32 weights [`Nibbles`]; 160 of scales, those of six
//!           bits as signed bytes.
//! Products  for each 32: acc = fma(Σ level · code of x, (scale · scales[i]) · scale of x, acc); levels as in IQ4_NL.

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::iq4_nl::LEVELS;
use tensor::quant::iq4_xs;

use super::iq4_nl::SHIFTED;
use super::tiles::Scaled;
use super::{Ahead, Nibbles, PanelFormat, blocks_at, dots, nibbles_of, pack_nibbles, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum IQ4_XS {}

/// The scales of sixteen blocks, one of each row in a lane.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Scales {
    scale: [f16; LANES],
    /// Of each 32 weights.
    scales: [[i8; LANES]; 8],
}

impl PanelFormat for IQ4_XS {
    type Block = iq4_xs::Block;
    type Codes = [Nibbles; 8];
    type Scales = Scales;
    type Tile = Scaled;

    const X_BLOCKS: usize = 8;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&iq4_xs::Block; PANEL_ROWS], codes: &mut [Nibbles; 8], scales: &mut Scales) {
        for (row, lane) in lanes.iter().enumerate() {
            scales.scale[row] = lane.scale;
            for (i, scale) in lane.scales().into_iter().enumerate() {
                scales.scales[i][row] = scale;
                pack_nibbles(&lane.codes[i], row, &mut codes[i]);
            }
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&[Nibbles; 8], &Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        for i in 0..8 {
            ahead.ask::<S, Self>(s, i);
            let x = blocks_at(x, i);
            let dots = dots!(wide s, x, 0..8, |x| x.minus_128_sum + x.sum(), |p, group| {
                s.lookup(&SHIFTED, nibbles_of(s, &panels[p].0[i], group))
            });
            for p in 0..NP {
                let of = panels[p].1;
                let scale = s.mul(s.load_f16(&of.scale), s.load_i8(&of.scales[i]));
                for m in 0..MR {
                    let scale = s.mul(scale, s.splat(x[m].scale));
                    sums[m][p] = s.mul_add(s.to_f32(dots[m][p]), scale, sums[m][p]);
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &[Nibbles; 8],
        scales: &Scales,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut [f32; LANES],
    ) {
        unpack_nibbles(s, &codes[part], &LEVELS, out);
        s.store(s.mul(s.load_f16(&scales.scale), s.load_i8(&scales.scales[part])), out_scales);
    }
}
