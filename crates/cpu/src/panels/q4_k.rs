//! Q4_K in panels: four bits; for each 32 a scale and a minimum of six bits, and for each 256 what these are multiplied by.
//!
//! Layout    2368 bytes for 16 × 256 weights: 2048 of codes, of each 64 weights ([`PanelCodes`]) the first 32 in the lower and the
//!           others in the upper halves; 320 of scales, those of six bits as bytes.
//! Products  for each 32: acc = fma(Σ code · code of x, (scale · scales[i]) · scale of x, acc), then
//!           acc = acc - (minimum · minima[i]) · (scale of x · Σ codes of x), fused.

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q4_k;

use super::tiles::{ScaleAndMinimum, Shifted};
use super::{Ahead, PanelFormat, blocks_at, dots, of_each, store_codes, unrolled};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum Q4_K {}

/// The scales of sixteen blocks, one of each row in a lane.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Scales {
    scale: [f16; LANES],
    minimum: [f16; LANES],
    /// Of each 32 weights.
    scales: [[u8; LANES]; 8],
    minima: [[u8; LANES]; 8],
}

/// Codes 4 · `group` to 4 · `group` + 4 of the 32 weights of `part`, of each row.
#[inline(always)]
fn codes_of<S: Simd>(s: S, codes: &[PanelCodes; 4], part: usize, group: usize) -> S::Bytes {
    let both = s.load_bytes(&codes[part / 2][group]);
    if part.is_multiple_of(2) { s.and_bytes(both, 15) } else { s.shift_bytes_right::<4>(both) }
}

impl PanelFormat for Q4_K {
    type Block = q4_k::Block;
    type Codes = [PanelCodes; 4];
    type Scales = Scales;
    type Tile = Shifted;

    const X_BLOCKS: usize = 8;
    const HAS_ALL_TILES: bool = true;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q4_k::Block; PANEL_ROWS], codes: &mut [PanelCodes; 4], scales: &mut Scales) {
        for (part, codes) in codes.iter_mut().enumerate() {
            s.interleave(of_each!(lanes, |lane| &lane.codes.as_chunks::<32>().0[part]), 0, codes);
        }
        for (row, lane) in lanes.iter().enumerate() {
            (scales.scale[row], scales.minimum[row]) = (lane.scale, lane.minimum);
            for (i, (scale, minimum)) in lane.scales_and_minima().into_iter().enumerate() {
                (scales.scales[i][row], scales.minima[i][row]) = (scale, minimum);
            }
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&[PanelCodes; 4], &Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        for pair in 0..4 {
            unrolled!(HALF in [0 1] {
                let i = 2 * pair + HALF;
                ahead.ask::<S, Self>(s, i);
                let x = blocks_at(x, i);
                let dots = dots!(s, x, 0..8, |_x| 0, |p, group| codes_of(s, panels[p].0, i, group));
                for p in 0..NP {
                    let of = panels[p].1;
                    let scale = s.mul(s.load_f16(&of.scale), s.load_u8(&of.scales[i]));
                    let minimum = s.mul(s.load_f16(&of.minimum), s.load_u8(&of.minima[i]));
                    for m in 0..MR {
                        let x_scale = x[m].scale;
                        let sum = s.mul_add(s.to_f32(dots[m][p]), s.mul(scale, s.splat(x_scale)), sums[m][p]);
                        sums[m][p] = s.mul_add(minimum, s.splat(-x_scale * x[m].sum() as f32), sum);
                    }
                }
            });
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &[PanelCodes; 4],
        scales: &Scales,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleAndMinimum,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            store_codes(s, codes_of(s, codes, part, group), out);
        }
        let minimum = s.mul(s.load_f16(&scales.minimum), s.load_u8(&scales.minima[part]));
        s.store(s.mul(s.load_f16(&scales.scale), s.load_u8(&scales.scales[part])), &mut out_scales.scale);
        s.store(s.sub(s.splat(-0.0), minimum), &mut out_scales.minimum);
    }
}
