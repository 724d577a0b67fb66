//! Formats with one scale for each 32 weights and codes that are multiplied without a sign: their products, once for all.
//!
//! Products  acc = fma(Σ (code - shift) · code of x, scale of w · scale of x, acc); the codes are multiplied as they are,
//!           from -shift · Σ codes of x on ([`OneScale::start`]).

use bytemuck::Pod;

use super::tiles::Scaled;
use super::{Ahead, PanelFormat, blocks_at, dots};
use crate::kernels::linear::Widen;
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// A format of this kind. It is a [`PanelFormat`] of one block of activations, whose tiles are [`Scaled`].
pub(crate) trait OneScale: 'static + Sized {
    /// [`PanelFormat::Block`].
    type Block: Pod;
    /// [`PanelFormat::Codes`].
    type Codes: Pod;
    /// The scale of a row.
    type Scale: Widen;

    /// [`PanelFormat::HAS_ALL_TILES`].
    const HAS_ALL_TILES: bool = false;

    /// Whether codes reach 255, and not 127.
    const IS_WIDE: bool = false;

    /// Lays the codes of a row beside those of other rows, and returns its scale.
    fn pack_row(lane: &Self::Block, row: usize, codes: &mut Self::Codes) -> Self::Scale;

    /// What Σ code · code of x begins with, so that the result is that of the weights.
    fn start(x: &QuantizedBlock) -> i32;

    /// Codes 4 · `group` to 4 · `group` + 4 of each row, as they are multiplied.
    fn codes_of<S: Simd>(s: S, codes: &Self::Codes, group: usize) -> S::Bytes;

    /// All codes as tiles have them: those of the weights, as signed bytes.
    fn unpack_codes<S: Simd>(s: S, codes: &Self::Codes, out: &mut PanelCodes);
}

impl<F: OneScale> PanelFormat for F {
    type Block = F::Block;
    type Codes = F::Codes;
    type Scales = [F::Scale; LANES];
    type Tile = Scaled;

    const X_BLOCKS: usize = 1;
    const HAS_ALL_TILES: bool = F::HAS_ALL_TILES;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&F::Block; PANEL_ROWS], codes: &mut F::Codes, scales: &mut [F::Scale; LANES]) {
        for (row, lane) in lanes.iter().enumerate() {
            scales[row] = F::pack_row(lane, row, codes);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&F::Codes, &[F::Scale; LANES]); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = if F::IS_WIDE {
            dots!(wide s, x, 0..8, |x| F::start(x), |p, group| F::codes_of(s, panels[p].0, group))
        } else {
            dots!(s, x, 0..8, |x| F::start(x), |p, group| F::codes_of(s, panels[p].0, group))
        };
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let scale = s.mul(F::Scale::load(s, panels[p].1), x_scale);
                sums[m][p] = s.mul_add(s.to_f32(dots[m][p]), scale, sums[m][p]);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &F::Codes,
        scales: &[F::Scale; LANES],
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut [f32; LANES],
    ) {
        F::unpack_codes(s, codes, out);
        s.store(F::Scale::load(s, scales), out_scales);
    }
}
