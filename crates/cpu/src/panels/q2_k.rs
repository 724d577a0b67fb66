//! Q2_K in panels: two bits; for each 16 a scale and a minimum of four bits, and for each 256 what these are multiplied by.
//!
//! Layout    1600 bytes for 16 × 256 weights: 1024 of codes, of each 128 weights j, j + 32, j + 64 and j + 96 in a byte;
//!           576 of scales, those of four bits as bytes.
//! Products  for each 32, over its halves: dot = Σ scales[i] · Σ code · code of x and least = Σ minima[i] · Σ codes of x,
//!           exact in f32 (below 2²⁴); acc = fma(dot, scale · scale of x, acc), then acc = fma(least, -minimum · scale of
//!           x, acc).

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q2_k;

use super::tiles::{ScalesAndMinima, ShiftedHalves};
use super::{Ahead, PanelFormat, add_halves, blocks_at, dots, half_dots, of_each, unrolled};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum Q2_K {}

/// The scales of sixteen blocks, one of each row in a lane.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Scales {
    scale: [f16; LANES],
    minimum: [f16; LANES],
    /// Of each 16 weights.
    scales: [[u8; LANES]; 16],
    minima: [[u8; LANES]; 16],
}

/// Codes 4 · `group` to 4 · `group` + 4 of the 32 weights of `part`, of each row.
#[inline(always)]
fn codes_of<S: Simd>(s: S, codes: &[PanelCodes; 2], part: usize, group: usize) -> S::Bytes {
    s.and_bytes(s.shift_bytes_right_by(s.load_bytes(&codes[part / 4][group]), (part % 4 * 2) as u32), 3)
}

impl PanelFormat for Q2_K {
    type Block = q2_k::Block;
    type Codes = [PanelCodes; 2];
    type Scales = Scales;
    type Tile = ShiftedHalves;

    const X_BLOCKS: usize = 8;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q2_k::Block; PANEL_ROWS], codes: &mut [PanelCodes; 2], scales: &mut Scales) {
        for (half, codes) in codes.iter_mut().enumerate() {
            s.interleave(of_each!(lanes, |lane| &lane.codes.as_chunks::<32>().0[half]), 0, codes);
        }
        for (row, lane) in lanes.iter().enumerate() {
            (scales.scale[row], scales.minimum[row]) = (lane.scale, lane.minimum);
            for (i, both) in lane.scales.iter().enumerate() {
                (scales.scales[i][row], scales.minima[i][row]) = (both & 15, both >> 4);
            }
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&[PanelCodes; 2], &Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        for half in 0..2 {
            unrolled!(QUARTER in [0 1 2 3] {
                let i = 4 * half + QUARTER;
                ahead.ask::<S, Self>(s, i);
                let x = blocks_at(x, i);
                let dots = half_dots!(s, x, 0, |p, group| codes_of(s, panels[p].0, i, group));
                for p in 0..NP {
                    let of = panels[p].1;
                    let (scale, minimum) = (s.load_f16(&of.scale), s.load_f16(&of.minimum));
                    let scales = [s.load_u8(&of.scales[2 * i]), s.load_u8(&of.scales[2 * i + 1])];
                    let minima = [s.load_u8(&of.minima[2 * i]), s.load_u8(&of.minima[2 * i + 1])];
                    add_halves(s, dots, p, (scale, scales), x, &mut sums);
                    for m in 0..MR {
                        let halves = [s.splat(f32::from(x[m].half_sums[0])), s.splat(f32::from(x[m].half_sums[1]))];
                        let least = s.mul_add(halves[1], minima[1], s.mul(halves[0], minima[0]));
                        sums[m][p] = s.mul_add(least, s.mul(minimum, s.splat(-x[m].scale)), sums[m][p]);
                    }
                }
            });
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &[PanelCodes; 2],
        scales: &Scales,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScalesAndMinima,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            s.store_bytes(codes_of(s, codes, part, group), out);
        }
        s.store(s.load_f16(&scales.scale), &mut out_scales.scale);
        s.store(s.load_f16(&scales.minimum), &mut out_scales.minimum);
        for half in 0..2 {
            s.store(s.load_u8(&scales.scales[2 * part + half]), &mut out_scales.halves[half]);
            s.store(s.load_u8(&scales.minima[2 * part + half]), &mut out_scales.minima[half]);
        }
    }
}
