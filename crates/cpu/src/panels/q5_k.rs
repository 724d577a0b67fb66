//! Q5_K in panels: five bits; for each 32 a scale and a minimum of six bits, and for each 256 what these are multiplied by.
//!
//! Layout    2880 bytes for 16 × 256 weights: 2048 of the lower four bits, as in Q4_K, 512 of the fifth (bit i of byte j
//!           is of weight 32 · i + j), 320 of scales, those of six bits as bytes.
//! Products  those of Q4_K: for each 32 acc = fma(Σ code · code of x, (scale · scales[i]) · scale of x, acc), then acc =
//!           acc - (minimum · minima[i]) · (scale of x · Σ codes of x), fused.

use bytemuck::{Pod, Zeroable};
use tensor::quant::q5_k;

use super::scales::ScalesOf32;
use super::tiles::{ScaleAndMinimum, Shifted};
use super::{Ahead, PanelFormat, blocks_at, dots, of_each, store_codes, unrolled};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PANEL_ROWS, PanelCodes, Simd};

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
    type Scales = ScalesOf32;
    type Tile = Shifted;

    const X_BLOCKS: usize = 8;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q5_k::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut ScalesOf32) {
        for (part, codes) in codes.low.iter_mut().enumerate() {
            s.interleave(of_each!(lanes, |lane| &lane.codes.as_chunks::<32>().0[part]), 0, codes);
        }
        s.interleave(of_each!(lanes, |lane| &lane.high), 0, &mut codes.high);
        for (row, lane) in lanes.iter().enumerate() {
            scales.pack(row, lane.scale, lane.minimum, lane.scales_and_minima());
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Codes, &ScalesOf32); NP],
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
        scales: &ScalesOf32,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleAndMinimum,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            store_codes(s, codes_of(s, codes, part, group), out);
        }
        scales.unpack(s, part, out_scales);
    }
}
