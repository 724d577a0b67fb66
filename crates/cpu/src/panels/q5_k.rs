//! Q5_K in panels: five bits; for each 32 a scale and a minimum of six bits, and for each 256 what these are multiplied by.
//!
//! Layout    2880 bytes for 16 × 256 weights: 2048 of the lower four bits, as in Q4_K, 512 of the fifth (bit i of byte j
//!           is of weight 32 · i + j), 320 of scales, those of six bits as bytes.
//! Products  those of Q4_K: for each 32 acc = fma(Σ code · code of x, (scale · scales[i]) · scale of x, acc), then acc =
//!           acc - (minimum · minima[i]) · (scale of x · Σ codes of x), fused.

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q5_k;

use super::tiles::{ScaleAndMinimum, Shifted};
use super::{Ahead, PanelFormat, blocks_at, dots, of_each, store_codes, unrolled};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum Q5_K {}

/// The codes of sixteen blocks.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// The lower four bits of each 64 weights.
    low: [PanelCodes; 4],
    /// The fifth.
    high: PanelCodes,
}

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
fn codes_of<S: Simd>(s: S, codes: &Codes, part: usize, group: usize) -> S::Bytes {
    let both = s.load_bytes(&codes.low[part / 2][group]);
    let low = if part.is_multiple_of(2) { s.and_bytes(both, 15) } else { s.shift_bytes_right::<4>(both) };
    let high = s.and_bytes(s.shift_bytes_right_by(s.load_bytes(&codes.high[group]), part as u32), 1);
    s.or_bytes(low, s.shift_bytes_left::<4>(high))
}

impl PanelFormat for Q5_K {
    type Block = q5_k::Block;
    type Codes = Codes;
    type Scales = Scales;
    type Tile = Shifted;

    const X_BLOCKS: usize = 8;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q5_k::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut Scales) {
        for (part, codes) in codes.low.iter_mut().enumerate() {
            s.interleave(of_each!(lanes, |lane| &lane.codes.as_chunks::<32>().0[part]), 0, codes);
        }
        s.interleave(of_each!(lanes, |lane| &lane.high), 0, &mut codes.high);
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
        panels: [(&Codes, &Scales); NP],
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
        codes: &Codes,
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
