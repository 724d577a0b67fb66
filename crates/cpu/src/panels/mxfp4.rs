//! MXFP4 in panels: floating-point numbers of four bits and a power of two for each 32.
//!
//! Layout    288 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales in bf16, which has every half of a
//!           power.
//! Products  acc = fma(Σ doubled number · code of x, scale of w · scale of x, acc); doubled numbers are multiplied plus
//!           12, so that none is negative, from -12 · Σ codes of x on.

use half::bf16;
use tensor::quant::mxfp4;

use super::tiles::Scaled;
use super::{Ahead, Nibbles, PanelFormat, blocks_at, dots, nibbles_of, pack_nibbles, shifted, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum MXFP4 {}

/// The doubled numbers, plus 12.
const SHIFTED: [u8; 16] = shifted(&mxfp4::DOUBLED, 12);

impl PanelFormat for MXFP4 {
    type Block = mxfp4::Block;
    type Codes = Nibbles;
    type Scales = [bf16; LANES];
    type Tile = Scaled;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&mxfp4::Block; PANEL_ROWS], codes: &mut Nibbles, scales: &mut [bf16; LANES]) {
        for (row, lane) in lanes.iter().enumerate() {
            scales[row] = bf16::from_f32(lane.scale());
            pack_nibbles(&lane.codes, row, codes);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Nibbles, &[bf16; LANES]); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots =
            dots!(s, x, 0..8, |x| -12 * x.sum(), |p, group| s.lookup(&SHIFTED, nibbles_of(s, panels[p].0, group)));
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let scale = s.mul(s.load_bf16(panels[p].1), x_scale);
                sums[m][p] = s.mul_add(s.to_f32(dots[m][p]), scale, sums[m][p]);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Nibbles,
        scales: &[bf16; LANES],
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut [f32; LANES],
    ) {
        unpack_nibbles(s, codes, &mxfp4::DOUBLED, out);
        s.store(s.load_bf16(scales), out_scales);
    }
}
