//! `linear` with W in Q8_0: activations are quantised too ([`super::quantize`]), products are exact integers.
//!
//! Shapes    x (m, k / 32) blocks; W (n, k / 32) blocks; y (m, n) f32; any n and m, k % 32 == 0.
//! Layout    W as the file has it: 34-byte blocks, f16 scale first. Sixteen rows at a time, one in each lane.
//! Bytes     n·k·34/32 for W. (4864, 896): 4.6 MB.
//! Roofline  m = 1: 2 operations over 1.06 bytes, bound by memory.
//! Accuracy  sum over blocks in order: acc = fma(Σ codes · codes, scale of w · scale of x, acc). |error| <= (k / 32 + 2) ·
//!           ε · Σ|w·x| from exact arithmetic on the quantised activations; what quantising them adds, Σ over blocks of
//!           max|x| / 254 · Σ|w|, is the price of bytes. The same bits at every level.
//! Versions  direct: blocks where they lie, partial sums of two rows folded to one lane a row, for few rows of x.
//!           panel: sixteen rows copied side by side once, then no sum crosses lanes, from [`PANEL_MIN_ROWS`] rows on.
//!           Both at every level.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::ops::Range;

use tensor::quant::q8_0;

use super::linear::Output;
use super::quantize::QuantizedBlock;
use crate::simd::{Kernel, LANES, PANEL_ROWS, PanelBlock, Simd};

/// Rows of x from which copying a panel pays; guessed from operation counts (a copied block costs about 20 rows' work).
pub(crate) const PANEL_MIN_ROWS: usize = 24;

/// Rows of x that go through a panel together.
const PANEL_TILE_ROWS: usize = 8;

/// Blocks of each row of W that are asked for ahead of use: sixteen rows of them cover the latency of memory. Measured on
/// a Sapphire Rapids server with `examples/decode_bandwidth.rs`: none 8.7 GB/s, 8 11.0 GB/s, 16 11.3 GB/s.
const PREFETCH_BLOCKS: usize = 16;

/// Some columns of a projection with Q8_0 weights, for all rows.
pub(crate) struct LinearQ8<'a> {
    /// (n, blocks).
    pub(crate) weights: &'a [q8_0::Block],
    /// (m, blocks).
    pub(crate) x: &'a [QuantizedBlock],
    /// Rows of x.
    pub(crate) rows: usize,
    /// Blocks in a row: k / 32.
    pub(crate) blocks: usize,
    /// Which rows of W.
    pub(crate) columns: Range<usize>,
    pub(crate) output: Output<'a>,
    /// Room for `blocks` of a panel; empty for the direct version.
    pub(crate) panel: &'a mut [PanelBlock],
}

impl Kernel for LinearQ8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut column = self.columns.start;
        while column < self.columns.end {
            let width = PANEL_ROWS.min(self.columns.end - column);
            // Lanes beyond the last row repeat it; their results are dropped.
            let mut rows: [&[q8_0::Block]; PANEL_ROWS] = [&[]; PANEL_ROWS];
            for lane in 0..PANEL_ROWS {
                let row = column + lane.min(width - 1);
                rows[lane] = &self.weights[row * self.blocks..(row + 1) * self.blocks];
            }
            if self.panel.is_empty() {
                self.direct(s, &rows, column, width);
            } else {
                self.through_panel(s, &rows, column, width);
            }
            column += width;
        }
    }
}

impl LinearQ8<'_> {
    #[inline(always)]
    fn direct<S: Simd>(&self, s: S, rows: &[&[q8_0::Block]; PANEL_ROWS], column: usize, width: usize) {
        for m in 0..self.rows {
            let x = &self.x[m * self.blocks..(m + 1) * self.blocks];
            // Later rows find the weights in the cache.
            let sums = if m == 0 { dot_16::<S, true>(s, rows, x) } else { dot_16::<S, false>(s, rows, x) };
            self.put(s, m, column, width, sums);
        }
    }

    #[inline(always)]
    fn through_panel<S: Simd>(&mut self, s: S, rows: &[&[q8_0::Block]; PANEL_ROWS], column: usize, width: usize) {
        for block in 0..self.blocks {
            self.panel[block] = pack_panel_block::<S>(rows, block);
        }
        let mut row = 0;
        while self.rows - row >= PANEL_TILE_ROWS {
            self.panel_tile::<S, PANEL_TILE_ROWS>(s, row, column, width);
            row += PANEL_TILE_ROWS;
        }
        while row < self.rows {
            self.panel_tile::<S, 1>(s, row, column, width);
            row += 1;
        }
    }

    #[inline(always)]
    fn panel_tile<S: Simd, const MR: usize>(&self, s: S, row: usize, column: usize, width: usize) {
        let panel = &self.panel[..self.blocks];
        let mut x: [&[QuantizedBlock]; MR] = [&[]; MR];
        for m in 0..MR {
            x[m] = &self.x[(row + m) * self.blocks..(row + m + 1) * self.blocks];
        }
        let mut sums = [s.splat(0.0); MR];
        for (block, w) in panel.iter().enumerate() {
            let mut x_block = [&x[0][block]; MR];
            for m in 0..MR {
                x_block[m] = &x[m][block];
            }
            let dots = s.panel_dots(&w.codes, x_block);
            let scales = s.load(&w.scales);
            for m in 0..MR {
                sums[m] = s.mul_add(dots[m], s.mul(scales, s.splat(x_block[m].scale)), sums[m]);
            }
        }
        for m in 0..MR {
            self.put(s, row + m, column, width, sums[m]);
        }
    }

    #[inline(always)]
    fn put<S: Simd>(&self, s: S, row: usize, column: usize, width: usize, sums: S::F32) {
        let mut lanes = [0.0; LANES];
        s.store(sums, &mut lanes);
        if width == LANES {
            self.output.put(row, column, lanes);
        } else {
            for (lane, &sum) in lanes[..width].iter().enumerate() {
                self.output.put(row, column + lane, [sum]);
            }
        }
    }
}

/// One row of x with sixteen of W.
#[inline(always)]
fn dot_16<S: Simd, const PREFETCH: bool>(s: S, rows: &[&[q8_0::Block]; PANEL_ROWS], x: &[QuantizedBlock]) -> S::F32 {
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

/// Block `block` of sixteen rows, side by side.
#[inline(always)]
pub(crate) fn pack_panel_block<S: Simd>(rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize) -> PanelBlock {
    let mut panel = PanelBlock { codes: [[0; 64]; 8], scales: [0.0; LANES] };
    for (lane, row) in rows.iter().enumerate() {
        let codes: [u8; 32] = bytemuck::cast(row[block].codes);
        for (group, four) in codes.as_chunks::<4>().0.iter().enumerate() {
            panel.codes[group][4 * lane..4 * lane + 4].copy_from_slice(&four.map(|code| code ^ S::PANEL_XOR));
        }
        panel.scales[lane] = row[block].scale.to_f32();
    }
    panel
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use half::f16;
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::kernels::quantize::{BLOCK_LEN, quantize_row};
    use crate::shared::SharedSlice;

    fn linear(
        isa: Isa,
        weights: &[q8_0::Block],
        x: &[QuantizedBlock],
        (rows, n, blocks): (usize, usize, usize),
        panel: bool,
    ) -> Vec<f32> {
        let mut y = vec![f32::INFINITY; rows * n];
        let values = &SharedSlice::new(&mut y);
        let output = Output { values, start: 0, stride: n, first_column: 0, bias: None, residual: None };
        let mut room = vec![PanelBlock::zeroed(); if panel { blocks } else { 0 }];
        isa.run(LinearQ8 { weights, x, rows, blocks, columns: 0..n, output, panel: &mut room });
        y
    }

    #[test]
    fn every_shape_version_and_level_gives_the_same_bits_within_the_bound() {
        let mut rng = Rng::new(2);
        for (rows, n, blocks) in [(1, 1, 1), (1, 16, 3), (2, 17, 2), (8, 15, 1), (9, 33, 4), (17, 5, 7)] {
            let values: Vec<f32> = (0..n * blocks * BLOCK_LEN).map(|_| rng.normal()).collect();
            let weights = q8_0::pack_row(&values).unwrap();
            let floats: Vec<f32> = (0..rows * blocks * BLOCK_LEN).map(|_| rng.normal()).collect();
            let mut x = vec![QuantizedBlock::zeroed(); rows * blocks];
            quantize_row(&floats, &mut x);
            let expected = linear(Isa::scalar(), &weights, &x, (rows, n, blocks), false);
            for isa in Isa::available() {
                for panel in [false, true] {
                    let y = linear(isa, &weights, &x, (rows, n, blocks), panel);
                    assert_eq!(y, expected, "{isa}, panel {panel}, ({rows}, {n}, {blocks})");
                }
                let alone = linear(isa, &weights, &x[..blocks], (1, n, blocks), false);
                assert_eq!(expected[..n], alone, "{isa}");
            }
            for (at, &y) in expected.iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let (mut sum, mut absolute, mut quantisation) = (0.0, 0.0, 0.0);
                for block in 0..blocks {
                    let w = q8_0::unpack(&weights[column * blocks + block]);
                    let start = (row * blocks + block) * BLOCK_LEN;
                    let floats = &floats[start..start + BLOCK_LEN];
                    let max = floats.iter().fold(0f32, |max, x| max.max(x.abs()));
                    for (w, x) in w.iter().zip(floats) {
                        let product = f64::from(*w) * f64::from(*x);
                        sum += product;
                        absolute += product.abs();
                        quantisation += f64::from(max) / 254.0 * f64::from(w.abs());
                    }
                }
                let bound = quantisation * 1.001 + (blocks + 2) as f64 * f64::from(f32::EPSILON) * absolute;
                assert!((f64::from(y) - sum).abs() <= bound, "({rows}, {n}, {blocks}) at {at}: {y} for {sum}");
            }
        }
    }

    #[test]
    fn nan_scales_stay_in_their_row_and_column() {
        let (rows, n, blocks) = (9, 18, 2);
        let mut weights = vec![q8_0::Block { scale: f16::ONE, codes: [1; BLOCK_LEN] }; n * blocks];
        let mut x = vec![QuantizedBlock::new([1; BLOCK_LEN], 1.0); rows * blocks];
        weights[17 * blocks + 1].scale = f16::NAN;
        x[8 * blocks].scale = f32::NAN;
        for isa in Isa::available() {
            for panel in [false, true] {
                let y = linear(isa, &weights, &x, (rows, n, blocks), panel);
                for (at, y) in y.iter().enumerate() {
                    assert_eq!(y.is_nan(), at / n == 8 || at % n == 17, "{isa}, panel {panel}, at {at}");
                    assert!(y.is_nan() || *y == 64.0);
                }
            }
        }
    }
}
