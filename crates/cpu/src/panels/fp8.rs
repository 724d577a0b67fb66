//! FP8 in panels: floating-point numbers of eight bits (E4M3) and a scale for each 32.
//!
//! Layout    544 bytes for 16 × 32 weights: 512 of codes, features 2p and 2p + 1 of each row side by side in entry p; 16 scales.
//! Products  even and odd, each a chain of fused multiply-adds of number · 2⁻⁸ · code of x from zero on, over the even and the
//!           odd features in order, and acc = fma(even + odd, scale of w · scale of x, acc): as [`Simd::tile_products`] has
//!           them. Numbers of E4M3 are too far apart for integers, and products too many for f32 to be exact.
//! Edge      a code that is no number makes the scale of its block none.

use half::f16;
use tensor::quant::fp8;

use super::tiles::TileFormat;
use super::{Ahead, PanelFormat, blocks_at};
use crate::kernels::quantize::{BLOCK_LEN, QuantizedBlock};
use crate::simd::{LANES, PANEL_ROWS, Simd};

/// The format.
pub(crate) enum FP8 {}

/// The codes of 32 weights of each of sixteen rows: entry p holds features 2p and 2p + 1 of row r at 2r and 2r + 1.
type Codes = [[u8; 2 * LANES]; BLOCK_LEN / 2];

/// The activations of a block in units of its scale.
#[inline(always)]
fn floats_of<S: Simd>(s: S, x: &QuantizedBlock) -> [f32; BLOCK_LEN] {
    let codes: &[[i8; LANES]; 2] = bytemuck::cast_ref(&x.codes);
    let mut floats = [0.0; BLOCK_LEN];
    let halves: &mut [[f32; LANES]; 2] = bytemuck::cast_mut(&mut floats);
    s.store(s.load_i8(&codes[0]), &mut halves[0]);
    s.store(s.load_i8(&codes[1]), &mut halves[1]);
    floats
}

impl PanelFormat for FP8 {
    type Block = fp8::Block;
    type Codes = Codes;
    type Scales = [f16; LANES];
    type Tile = Floats;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&fp8::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut [f16; LANES]) {
        for (row, lane) in lanes.iter().enumerate() {
            let is_number = |code: &u8| code & 0x7f != 0x7f;
            scales[row] = if lane.codes.iter().all(is_number) { lane.scale } else { f16::NAN };
            for (pairs, two) in codes.iter_mut().zip(lane.codes.as_chunks::<2>().0) {
                pairs[2 * row..2 * row + 2].copy_from_slice(two);
            }
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Codes, &[f16; LANES]); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let mut floats = [[0.0; BLOCK_LEN]; MR];
        for m in 0..MR {
            floats[m] = floats_of(s, x[m]);
        }
        let mut chains = [[[s.splat(0.0); 2]; NP]; MR];
        for pair in 0..BLOCK_LEN / 2 {
            for p in 0..NP {
                let w = s.load_e4m3_pairs(&panels[p].0[pair]);
                for m in 0..MR {
                    for odd in 0..2 {
                        let x = s.splat(floats[m][2 * pair + odd]);
                        chains[m][p][odd] = s.mul_add(w[odd], x, chains[m][p][odd]);
                    }
                }
            }
        }
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let [even, odd] = chains[m][p];
                let scale = s.mul(s.load_f16(panels[p].1), x_scale);
                sums[m][p] = s.mul_add(s.add(even, odd), scale, sums[m][p]);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Codes,
        scales: &[f16; LANES],
        _: usize,
        out: &mut [[[f32; LANES]; 2]; BLOCK_LEN / 2],
        out_scales: &mut [f32; LANES],
    ) {
        for (codes, out) in codes.iter().zip(out) {
            let [even, odd] = s.load_e4m3_pairs(codes);
            s.store(even, &mut out[0]);
            s.store(odd, &mut out[1]);
        }
        s.store(s.load_f16(scales), out_scales);
    }
}

/// A scale, and floating-point numbers: entry p holds feature 2p of each row and then 2p + 1.
pub(crate) enum Floats {}

impl TileFormat for Floats {
    type Codes = [[[f32; LANES]; 2]; BLOCK_LEN / 2];
    type Scales = [f32; LANES];

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Self::Codes, &[f32; LANES]); NP],
        x: [&QuantizedBlock; MR],
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        let mut floats = [[0.0; BLOCK_LEN]; MR];
        for m in 0..MR {
            floats[m] = floats_of(s, x[m]);
        }
        // One after the other: both at once would not stay in registers.
        let even = chain::<S, MR, NP, 0>(s, panels, &floats);
        let odd = chain::<S, MR, NP, 1>(s, panels, &floats);
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let scale = s.mul(s.load(panels[p].1), x_scale);
                sums[m][p] = s.mul_add(s.add(even[m][p], odd[m][p]), scale, sums[m][p]);
            }
        }
        sums
    }
}

/// Σ number · activation over the even features of a block, or with `ODD` 1 the odd ones, in order.
#[inline(always)]
fn chain<S: Simd, const MR: usize, const NP: usize, const ODD: usize>(
    s: S,
    panels: [(&<Floats as TileFormat>::Codes, &[f32; LANES]); NP],
    floats: &[[f32; BLOCK_LEN]; MR],
) -> [[S::F32; NP]; MR] {
    let mut sums = [[s.splat(0.0); NP]; MR];
    for pair in 0..BLOCK_LEN / 2 {
        let mut w = [s.splat(0.0); NP];
        for p in 0..NP {
            w[p] = s.load(&panels[p].0[pair][ODD]);
        }
        for m in 0..MR {
            let x = s.splat(floats[m][2 * pair + ODD]);
            for p in 0..NP {
                sums[m][p] = s.mul_add(w[p], x, sums[m][p]);
            }
        }
    }
    sums
}
