//! Q3_K in panels: three bits; for each 16 a scale of six, and for each 256 what these are multiplied by.
//!
//! Layout    1824 bytes for 16 × 256 weights: 1024 of the lower two bits, as in Q2_K, 512 of the third (bit i of byte j
//!           is of weight 32 · i + j), 288 of scales, those of six bits as signed bytes.
//! Products  those of Q6_K: for each 32 dot = Σ over its halves of scales[i] · Σ (code - 4) · code of x, exact in f32
//!           (below 2²⁴), and acc = fma(dot, scale · scale of x, acc).

use bytemuck::{Pod, Zeroable};
use tensor::quant::q3_k;

use super::scales::ScalesOf16;
use super::tiles::{Halves, ScaleOfHalves};
use super::{Ahead, PanelFormat, blocks_at, dots, half_dots, of_each, unrolled};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PANEL_ROWS, PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum Q3_K {}

/// The codes of sixteen blocks.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// The lower two bits of each 128 weights.
    low: [PanelCodes; 2],
    /// The third.
    high: PanelCodes,
}

/// Codes 4 · `group` to 4 · `group` + 4 of the 32 weights of `part`, of each row, plus 4.
#[inline(always)]
fn codes_of<S: Simd>(s: S, codes: &Codes, part: usize, group: usize) -> S::Bytes {
    let low = s.shift_bytes_right_by(s.load_bytes(&codes.low[part / 4][group]), (part % 4 * 2) as u32);
    let high = s.shift_bytes_right_by(s.load_bytes(&codes.high[group]), part as u32);
    s.or_bytes(s.and_bytes(low, 3), s.shift_bytes_left::<2>(s.and_bytes(high, 1)))
}

impl PanelFormat for Q3_K {
    type Block = q3_k::Block;
    type Codes = Codes;
    type Scales = ScalesOf16;
    type Tile = Halves;

    const X_BLOCKS: usize = 8;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q3_k::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut ScalesOf16) {
        for (half, codes) in codes.low.iter_mut().enumerate() {
            s.interleave(of_each!(lanes, |lane| &lane.codes.as_chunks::<32>().0[half]), 0, codes);
        }
        s.interleave(of_each!(lanes, |lane| &lane.high), 0, &mut codes.high);
        for (row, lane) in lanes.iter().enumerate() {
            scales.pack(row, lane.scale, lane.scales());
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Codes, &ScalesOf16); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        for half in 0..2 {
            unrolled!(QUARTER in [0 1 2 3] {
                let i = 4 * half + QUARTER;
                ahead.ask::<S, Self>(s, i);
                let x = blocks_at(x, i);
                let dots = half_dots!(s, x, 4, |p, group| codes_of(s, panels[p].0, i, group));
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
        codes: &Codes,
        scales: &ScalesOf16,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleOfHalves,
    ) {
        // Plus 28: tiles subtract 32.
        const PLUS_28: [u8; 16] = [28, 29, 30, 31, 32, 33, 34, 35, 0, 0, 0, 0, 0, 0, 0, 0];
        for (group, out) in out.iter_mut().enumerate() {
            s.store_bytes(s.lookup(&PLUS_28, codes_of(s, codes, part, group)), out);
        }
        scales.unpack(s, part, out_scales);
    }
}
