//! Products of bfloat16 matrices by `vdpbf16ps`: a pair of features of a row meets those of sixteen columns in one instruction.
//!
//! A fused multiply-add of the odd features, then one of the even ones, which takes subnormal numbers as zero.
//! [`super::scalar::tile_products_in_chains`] is that in plain words.

use std::arch::x86_64::*;

use half::bf16;

use super::{CHAIN_BLOCKS, LANES, MOST_TILE_ROWS, PairBlock};

/// Rows of x in a tile: 6 × 4 sums, four registers of columns and a pair of x are 29 of 32.
const ROWS: usize = 6;

/// Panels in a tile of many rows. Few rows pass over one panel after the other, in the order of memory.
const PANELS: usize = 4;

/// Blocks of k in a piece, whole chains: six rows of it are 6 KiB, which stay in the first-level cache while panels pass, and
/// eight panels 128 KiB, which stay in the second while rows pass.
const PIECE_BLOCKS: usize = 4 * CHAIN_BLOCKS;

/// A block of a row of x.
type XBlock = [[bf16; 2]; LANES];

/// Where a tile adds its sums: the first, and how far it is from a row's to the next's.
struct Sums<'a>(&'a mut [f32], usize);

/// [`super::Simd::tile_products`] in chains of [`CHAIN_BLOCKS`] blocks.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) fn tile_products(x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
    let (x, _) = x.as_chunks::<2>().0.as_chunks();
    let (rows, num_panels) = (x.len() / blocks, panels.len() / blocks);
    let columns = num_panels * LANES;
    assert!((1..=MOST_TILE_ROWS).contains(&rows) && x.len() == rows * blocks, "{} of {blocks}", x.len());
    assert!(panels.len() == num_panels * blocks && sums.len() == rows * columns, "{} of {blocks}", panels.len());
    sums.fill(0.0);
    let piece_len = if rows <= ROWS { blocks } else { PIECE_BLOCKS };
    for start in (0..blocks).step_by(piece_len) {
        let end = (start + piece_len).min(blocks);
        for row in (0..rows).step_by(ROWS) {
            let of_row = |row: usize| &x[row * blocks + start..row * blocks + end];
            let of_panel = |panel: usize| &panels[panel * blocks + start..panel * blocks + end];
            let mut panel = 0;
            while panel < num_panels {
                let sums = Sums(&mut sums[row * columns + panel * LANES..], columns);
                let width = match num_panels - panel {
                    _ if rows <= ROWS => 1,
                    1 => 1,
                    2 | 3 => 2,
                    _ => PANELS,
                };
                // Each shape is code of its own.
                macro_rules! tile {
                    ($($row:literal)*) => {{
                        let x = [$(of_row(row + $row)),*];
                        let w = |index: usize| of_panel(panel + index);
                        match width {
                            1 => tile(x, [w(0)], sums),
                            2 => tile(x, [w(0), w(1)], sums),
                            _ => tile(x, [w(0), w(1), w(2), w(3)], sums),
                        }
                    }};
                }
                match rows - row {
                    1 => tile!(0),
                    2 => tile!(0 1),
                    3 => tile!(0 1 2),
                    4 => tile!(0 1 2 3),
                    5 => tile!(0 1 2 3 4),
                    _ => tile!(0 1 2 3 4 5),
                }
                panel += width;
            }
        }
    }
}

/// Adds the products of some rows with some panels, chain by chain.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn tile<const MR: usize, const NP: usize>(x: [&[XBlock]; MR], w: [&[PairBlock]; NP], Sums(out, columns): Sums<'_>) {
    let blocks = w[0].len();
    for start in (0..blocks).step_by(CHAIN_BLOCKS) {
        let end = (start + CHAIN_BLOCKS).min(blocks);
        // Cut to one known length, so that the loop needs no checks.
        let mut x_chain: [&[XBlock]; MR] = [&[]; MR];
        for m in 0..MR {
            x_chain[m] = &x[m][start..end];
        }
        let mut w_chain: [&[PairBlock]; NP] = [&[]; NP];
        for p in 0..NP {
            w_chain[p] = &w[p][start..end];
        }
        let mut sums = [[_mm512_setzero_ps(); NP]; MR];
        for block in 0..end - start {
            for pair in 0..LANES {
                let mut columns = [_mm512_setzero_si512(); NP];
                for p in 0..NP {
                    columns[p] = load(&w_chain[p][block][pair]);
                }
                for m in 0..MR {
                    let x = _mm512_set1_epi32(bytemuck::cast(x_chain[m][block][pair]));
                    for p in 0..NP {
                        sums[m][p] = dot(columns[p], x, sums[m][p]);
                    }
                }
            }
        }
        for m in 0..MR {
            let (out, _) = out[m * columns..m * columns + NP * LANES].as_chunks_mut();
            for p in 0..NP {
                add_to(&mut out[p], sums[m][p]);
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(pairs: &[bf16; 2 * LANES]) -> __m512i {
    // SAFETY: 64 bytes, at any alignment.
    unsafe { _mm512_loadu_si512(pairs.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn dot(a: __m512i, b: __m512i, sums: __m512) -> __m512 {
    // SAFETY: the same 64 bytes as another type.
    let pairs = |v| unsafe { std::mem::transmute::<__m512i, __m512bh>(v) };
    _mm512_dpbf16_ps(sums, pairs(a), pairs(b))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add_to(out: &mut [f32; LANES], sums: __m512) {
    // SAFETY: sixteen f32, at any alignment, read and written.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), _mm512_add_ps(_mm512_loadu_ps(out.as_ptr()), sums)) }
}
