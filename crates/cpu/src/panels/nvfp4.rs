//! NVFP4 in panels: floating-point numbers of four bits, a scale of eight bits (E4M3) for each 16 and one of f32 for each 64.
//!
//! Layout    640 bytes for 16 × 64 weights: 512 of codes ([`Nibbles`] of each 32), 64 of scales in f32, 64 of scales in E4M3, those
//!           of each 32 side by side for [`Simd::load_e4m3_pairs`].
//! Products  for each 32: dot = Σ over its halves of scale of 16 · Σ doubled number · code of x, and acc = fma(dot, scale · scale of
//!           x, acc). Doubled numbers are multiplied plus 32, from -32 · Σ codes of x on: what [`Halves`] has.
//! Edge      a scale of 16 that is no number makes that of its block none.

use bytemuck::{Pod, Zeroable};
use tensor::quant::fp8::{self, e4m3};
use tensor::quant::{mxfp4, nvfp4};

use super::tiles::{Halves, ScaleOfHalves};
use super::{Ahead, Nibbles, PanelFormat, add_halves, blocks_at, dots, half_dots, nibbles_of, pack_nibbles, shifted};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum NVFP4 {}

/// The doubled numbers, plus 32.
const SHIFTED: [u8; 16] = shifted(&mxfp4::DOUBLED, 32);

/// What the scale of f32 is multiplied by for numbers that are doubled and scales of 16 in units of [`fp8::UNIT`].
const SCALE_UNIT: f32 = 0.5 / fp8::UNIT;

/// The scales of sixteen blocks, one of each row in a lane.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Scales {
    /// In units of 1 / [`SCALE_UNIT`].
    scale: [f32; LANES],
    /// Of each 32 weights: those of row r at 2r and 2r + 1.
    scales: [[u8; 2 * LANES]; 2],
}

impl PanelFormat for NVFP4 {
    type Block = nvfp4::Block;
    type Codes = [Nibbles; 2];
    type Scales = Scales;
    type Tile = Halves;

    const X_BLOCKS: usize = 2;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&nvfp4::Block; PANEL_ROWS], codes: &mut [Nibbles; 2], scales: &mut Scales) {
        for (row, lane) in lanes.iter().enumerate() {
            let are_numbers = lane.scales.iter().all(|&scale| !e4m3(scale).is_nan());
            scales.scale[row] = if are_numbers { lane.scale * SCALE_UNIT } else { f32::NAN };
            for part in 0..2 {
                scales.scales[part][2 * row..2 * row + 2].copy_from_slice(&lane.scales[2 * part..2 * part + 2]);
                pack_nibbles(&lane.codes[part], row, &mut codes[part]);
            }
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&[Nibbles; 2], &Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        for part in 0..2 {
            ahead.ask::<S, Self>(s, part);
            let x = blocks_at(x, part);
            let dots = half_dots!(s, x, 32, |p, group| s.lookup(&SHIFTED, nibbles_of(s, &panels[p].0[part], group)));
            for p in 0..NP {
                let of = panels[p].1;
                let scale = s.load(&of.scale);
                let scales = s.load_e4m3_pairs(&of.scales[part]);
                add_halves(s, dots, p, (scale, scales), x, &mut sums);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &[Nibbles; 2],
        scales: &Scales,
        part: usize,
        out: &mut PanelCodes,
        out_scales: &mut ScaleOfHalves,
    ) {
        for (group, out) in out.iter_mut().enumerate() {
            s.store_bytes(s.lookup(&SHIFTED, nibbles_of(s, &codes[part], group)), out);
        }
        out_scales.scale = scales.scale;
        for (scales, out) in s.load_e4m3_pairs(&scales.scales[part]).into_iter().zip(&mut out_scales.halves) {
            s.store(scales, out);
        }
    }
}
