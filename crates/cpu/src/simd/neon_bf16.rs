//! Products of bfloat16 matrices (FEAT_BF16): `bfmmla` for two rows and more, `bfdot` for one.
//!
//! Both instructions add two products and then their sum to what is there, each time rounded to odd, and take subnormal
//! numbers as zero, whatever the floating-point control register says; `bfmmla` does that twice, in order. So one row alone
//! has the bits of the same row among others. [`super::scalar::tile_products_to_odd`] is that in plain words.
//!
//! Stable Rust has no intrinsics for them, so they are assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use half::bf16;

use super::{LANES, PairBlock, TILE_FEATURES, TILE_PAIR_ROWS};

/// Pairs of rows of x that pass over eight columns together: 4 × 4 sums, four operands of each side and their parts are 28
/// of 32 registers.
const ROW_PAIRS: usize = 4;

/// Columns that they pass over.
const COLUMNS: usize = 8;

/// Registers of them, two columns each.
const COLUMN_PAIRS: usize = COLUMNS / 2;

/// Blocks of a panel that are asked for ahead while one row makes the weights' way from memory the bound; guessed.
const PREFETCH_BLOCKS: usize = 2;

/// [`super::Simd::tile_products`], within each block of 32 features as the instructions round.
#[target_feature(enable = "neon,bf16")]
pub(super) fn tile_products(x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
    let features = blocks * TILE_FEATURES;
    let (rows, num_panels) = (x.len() / features, panels.len() / blocks);
    let columns = num_panels * LANES;
    assert!((1..=TILE_PAIR_ROWS).contains(&rows) && x.len() == rows * features, "{} of {features}", x.len());
    assert!(panels.len() == num_panels * blocks && sums.len() == rows * columns, "{} of {blocks}", panels.len());
    sums.fill(0.0);
    for (index, panel) in panels.chunks_exact(blocks).enumerate() {
        let mut row = 0;
        while row < rows {
            let x = &x[row * features..];
            let sums = &mut sums[row * columns + index * LANES..];
            row += match rows - row {
                1 => one_row(x, panel, sums),
                2..4 => some_rows::<1>(x, panel, sums, columns),
                4..6 => some_rows::<2>(x, panel, sums, columns),
                6..8 => some_rows::<3>(x, panel, sums, columns),
                _ => some_rows::<ROW_PAIRS>(x, panel, sums, columns),
            };
        }
    }
}

/// Adds the products of one row of x with a panel. Returns how many rows that were.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn one_row(x: &[bf16], panel: &[PairBlock], sums: &mut [f32]) -> usize {
    let sums: &mut [f32; LANES] = sums[..LANES].as_mut_array().expect("sixteen long");
    let mut totals = [vdupq_n_f32(0.0); 4];
    for (block, x) in panel.iter().zip(x.as_chunks::<TILE_FEATURES>().0) {
        prefetch((&raw const *block).wrapping_add(PREFETCH_BLOCKS));
        let mut chains = [vdupq_n_f32(0.0); 4];
        for (pairs, x) in block.iter().zip(x.as_chunks::<2>().0) {
            let x = vreinterpretq_u16_u32(vdupq_n_u32(bytemuck::cast(*x)));
            for (chain, quarter) in chains.iter_mut().zip(pairs.as_chunks::<8>().0) {
                *chain = bfdot(*chain, load_8(quarter), x);
            }
        }
        for (total, chain) in totals.iter_mut().zip(chains) {
            *total = vaddq_f32(*total, chain);
        }
    }
    for (total, sums) in totals.into_iter().zip(sums.as_chunks_mut::<4>().0) {
        // SAFETY: four f32.
        unsafe { vst1q_f32(sums.as_mut_ptr(), total) };
    }
    1
}

/// Adds the products of `PAIRS` pairs of rows of x with a panel, whose sums lie `columns` apart. Returns how many rows that
/// were.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn some_rows<const PAIRS: usize>(x: &[bf16], panel: &[PairBlock], sums: &mut [f32], columns: usize) -> usize {
    let features = panel.len() * TILE_FEATURES;
    for (block, pairs) in panel.iter().enumerate() {
        let mut rows = [[&[bf16::ZERO; TILE_FEATURES]; 2]; PAIRS];
        for (index, row) in rows.as_flattened_mut().iter_mut().enumerate() {
            let start = index * features + block * TILE_FEATURES;
            *row = x[start..start + TILE_FEATURES].as_array().expect("a block long");
        }
        for half in 0..LANES / COLUMNS {
            let mut chains = [[vdupq_n_f32(0.0); COLUMN_PAIRS]; PAIRS];
            for (four, pairs) in pairs.as_chunks::<2>().0.iter().enumerate() {
                // Four features of two columns in a register, from two pairs of features of four columns.
                let mut w = [vdupq_n_u16(0); COLUMN_PAIRS];
                for quarter in 0..COLUMN_PAIRS / 2 {
                    let [first, second] = [0, 1].map(|pair: usize| {
                        let quarters: &[[bf16; 8]] = pairs[pair].as_chunks().0;
                        vreinterpretq_u32_u16(load_8(&quarters[half * COLUMN_PAIRS / 2 + quarter]))
                    });
                    w[2 * quarter] = vreinterpretq_u16_u32(vzip1q_u32(first, second));
                    w[2 * quarter + 1] = vreinterpretq_u16_u32(vzip2q_u32(first, second));
                }
                for (rows, chains) in rows.iter().zip(&mut chains) {
                    let [first, second] = [0, 1].map(|row: usize| load_4(&rows[row].as_chunks::<4>().0[four]));
                    let x = vcombine_u16(first, second);
                    for (chain, w) in chains.iter_mut().zip(w) {
                        *chain = bfmmla(*chain, x, w);
                    }
                }
            }
            for (pair, chains) in chains.iter().enumerate() {
                for (quarter, [first, second]) in chains.as_chunks::<2>().0.iter().enumerate() {
                    // Two columns of the first row and two of the second in each.
                    let (first, second) = (vreinterpretq_f64_f32(*first), vreinterpretq_f64_f32(*second));
                    for (row, four) in [vzip1q_f64(first, second), vzip2q_f64(first, second)].into_iter().enumerate() {
                        let start = (2 * pair + row) * columns + half * COLUMNS + quarter * 4;
                        add_to(sums[start..start + 4].as_mut_array().expect("four long"), vreinterpretq_f32_f64(four));
                    }
                }
            }
        }
    }
    2 * PAIRS
}

#[inline]
#[target_feature(enable = "neon")]
fn add_to(sums: &mut [f32; 4], four: float32x4_t) {
    // SAFETY: four f32, read and written.
    unsafe { vst1q_f32(sums.as_mut_ptr(), vaddq_f32(vld1q_f32(sums.as_ptr()), four)) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_8(values: &[bf16; 8]) -> uint16x8_t {
    // SAFETY: eight times two bytes.
    unsafe { vld1q_u16(values.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn load_4(values: &[bf16; 4]) -> uint16x4_t {
    // SAFETY: four times two bytes.
    unsafe { vld1_u16(values.as_ptr().cast()) }
}

/// Asks for a block.
#[inline]
#[target_feature(enable = "neon")]
fn prefetch(block: *const PairBlock) {
    for line in 0..size_of::<PairBlock>() / 64 {
        let at = block.cast::<u8>().wrapping_add(line * 64);
        // SAFETY: a prefetch of any address is a hint, which cannot fault.
        unsafe { asm!("prfm pldl1strm, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly)) }
    }
}

/// Adds to each lane the products of its two features.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfdot(mut sums: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
    // SAFETY: one instruction from registers to a register.
    unsafe {
        asm!("bfdot {sums:v}.4s, {a:v}.8h, {b:v}.8h", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds the products of two rows of four features with two others: a0 · b0, a0 · b1, a1 · b0, a1 · b1.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfmmla(mut sums: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
    // SAFETY: one instruction from registers to a register.
    unsafe {
        asm!("bfmmla {sums:v}.4s, {a:v}.8h, {b:v}.8h", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Four f32 to the nearest bfloat16, to even at a tie.
#[inline]
#[target_feature(enable = "neon,bf16")]
pub(super) fn round_4(values: float32x4_t) -> [bf16; 4] {
    let rounded: uint16x4_t;
    // SAFETY: one instruction from one register to another.
    unsafe {
        asm!("bfcvtn {rounded:v}.4h, {values:v}.4s", rounded = lateout(vreg) rounded, values = in(vreg) values,
             options(pure, nomem, nostack, preserves_flags));
    }
    let mut out = [bf16::ZERO; 4];
    // SAFETY: four times two bytes.
    unsafe { vst1_u16(out.as_mut_ptr().cast(), rounded) };
    out
}
