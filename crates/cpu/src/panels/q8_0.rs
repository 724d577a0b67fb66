//! Q8_0 in panels: signed bytes and a scale for each 32.
//!
//! Layout    544 bytes for 16 × 32 weights: 512 of codes ([`PanelCodes`], shifted where the level's products want it), 16 scales.
//! Products  acc = fma(Σ codes · codes, scale of w · scale of x, acc).

use half::f16;
use tensor::quant::q8_0;

use super::tiles::Scaled;
use super::{Ahead, PanelFormat, blocks_at, of_each};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// Blocks of each row of W that the direct version asks for ahead of use: sixteen rows of them cover the latency of memory.
const PREFETCH_BLOCKS: usize = 16;

/// The format.
pub(crate) enum Q8_0 {}

impl PanelFormat for Q8_0 {
    type Block = q8_0::Block;
    type Codes = PanelCodes;
    type Scales = [f16; LANES];
    type Tile = Scaled;

    const X_BLOCKS: usize = 1;
    const HAS_ALL_TILES: bool = true;
    const HAS_TILES_IN_PLACE: bool = true;
    const HAS_DIRECT: bool = true;

    #[inline(always)]
    fn pack<S: Simd>(s: S, lanes: [&q8_0::Block; PANEL_ROWS], codes: &mut PanelCodes, scales: &mut [f16; LANES]) {
        s.interleave(of_each!(lanes, |lane| bytemuck::cast_ref(&lane.codes)), S::PANEL_XOR, codes);
        for (scale, lane) in scales.iter_mut().zip(lanes) {
            *scale = lane.scale;
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&PanelCodes, &[f16; LANES]); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = s.panel_dots(panels.map(|(codes, _)| codes), x);
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                sums[m][p] = s.mul_add(dots[m][p], s.mul(s.load_f16(panels[p].1), x_scale), sums[m][p]);
            }
        }
        sums
    }

    #[inline(always)]
    fn dot_16<S: Simd, const PREFETCH: bool>(
        s: S,
        rows: &[&[q8_0::Block]; PANEL_ROWS],
        x: &[QuantizedBlock],
    ) -> S::F32 {
        let blocks = x.len();
        let mut sums = s.splat(0.0);
        for block in 0..blocks {
            if PREFETCH {
                let next = block + PREFETCH_BLOCKS;
                // Past the end of these rows come those of the next sixteen, which lie behind the last of these.
                let next = if next < blocks { next } else { next + (PANEL_ROWS - 1) * blocks };
                for row in rows {
                    s.prefetch(row.as_ptr().wrapping_add(next));
                }
            }
            let scales = s.mul(s.q8_scales(rows, block), s.splat(x[block].scale));
            sums = s.mul_add(s.q8_dots(rows, block, &x[block]), scales, sums);
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &PanelCodes,
        scales: &[f16; LANES],
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut [f32; LANES],
    ) {
        *out = *codes;
        s.store(s.load_f16(scales), out_scales);
    }
}
