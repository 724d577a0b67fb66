//! Q6_K in panels: six bits; for each 16 a scale of eight, and for each 256 what these are multiplied by.
//!
//! Layout    3360 bytes for 16 × 256 weights. Codes of each 128 weights, as in the file: the lower four bits of the first and
//!           third 32, of the second and fourth, and the upper two bits of all. Then 288 bytes of scales.
//! Products  for each 32: dot = Σ over its halves of scales[i] · Σ (code - 32) · code of x, exact in f32 (below 2²⁴), and
//!           acc = fma(dot, scale · scale of x, acc).

use bytemuck::{Pod, Zeroable};
use tensor::quant::q6_k;

use super::scales::ScalesOf16;
use super::tiles::{Halves, ScaleOfHalves};
use super::{Ahead, PanelFormat, blocks_at, dots, half_dots, of_each, unrolled};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum Q6_K {}

/// The codes of 128 weights of each of sixteen rows.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// The lower four bits: of weights j in the lower and j + 64 in the upper halves, j below 32 and above.
    low: [PanelCodes; 2],
    /// The upper two bits of weights j, j + 32, j + 64 and j + 96, lowest first.
    high: PanelCodes,
}

/// Codes 4 · `group` to 4 · `group` + 4 of the 32 weights of `part`, of each row, plus 32.
#[inline(always)]
fn codes_of<S: Simd>(s: S, codes: &[Codes; 2], part: usize, group: usize) -> S::Bytes {
    let (codes, part) = (&codes[part / 4], part % 4);
    let low = s.load_bytes(&codes.low[part % 2][group]);
    let low = if part < 2 { s.and_bytes(low, 15) } else { s.shift_bytes_right::<4>(low) };
    let high = s.load_bytes(&codes.high[group]);
    let high = match part {
        0 => s.shift_bytes_left::<4>(s.and_bytes(high, 3)),
        1 => s.and_bytes(s.shift_bytes_left::<2>(high), 0x30),
        2 => s.and_bytes(high, 0x30),
        _ => s.and_bytes(s.shift_bytes_right::<2>(high), 0x30),
    };
    s.or_bytes(low, high)
}

impl PanelFormat for Q6_K {
    type Block = q6_k::Block;
    type Codes = [Codes; 2];
    type Scales = ScalesOf16;
    type Tile = Halves;

    const X_BLOCKS: usize = 8;
    const HAS_ALL_TILES: bool = true;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q6_k::Block; PANEL_ROWS], codes: &mut [Codes; 2], scales: &mut ScalesOf16) {
        for (half, codes) in codes.iter_mut().enumerate() {
            for (part, low) in codes.low.iter_mut().enumerate() {
                s.interleave(of_each!(lanes, |lane| &lane.codes.as_chunks::<32>().0[2 * half + part]), 0, low);
            }
            s.interleave(of_each!(lanes, |lane| &lane.high.as_chunks::<32>().0[half]), 0, &mut codes.high);
        }
        for (row, lane) in lanes.iter().enumerate() {
            scales.pack(row, lane.scale, lane.scales);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&[Codes; 2], &ScalesOf16); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        for half in 0..2 {
            unrolled!(QUARTER in [0 1 2 3] {
                let i = 4 * half + QUARTER;
                ahead.ask::<S, Self>(s, i);
                let x = blocks_at(x, i);
                let dots = half_dots!(s, x, 32, |p, group| codes_of(s, panels[p].0, i, group));
                for p in 0..NP {
                    panels[p].1.add(s, i, (p, dots), x, &mut sums);
                }
            });
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &[Codes; 2],
        scales: &ScalesOf16,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleOfHalves,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            s.store_bytes(codes_of(s, codes, part, group), out);
        }
        scales.unpack(s, part, out_scales);
    }
}
