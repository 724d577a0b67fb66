//! `linear` with W in Q8_0: activations are quantised too ([`super::quantize`]), products are exact integers.
//!
//! Shapes    x (m, k / 32) blocks; W (n, k / 32) blocks; y (m, n) f32; any n and m, k % 32 == 0.
//! Layout    W in panels of sixteen rows, or as the file has it: 34-byte blocks, f16 scale first. One row in each lane.
//! Bytes     n·k·34/32 for W. (4864, 896): 4.6 MB.
//! Roofline  m = 1: 2 operations over 1.06 bytes, bound by memory.
//! Accuracy  sum over blocks in order: acc = fma(Σ codes · codes, scale of w · scale of x, acc). |error| <= (k / 32 + 2) ·
//!           ε · Σ|w·x| from exact arithmetic on the quantised activations; what quantising them adds, Σ over blocks of
//!           max|x| / 254 · Σ|w|, is the price of bytes. The same bits at every level.
//! Versions  panels: sixteen rows side by side, made at load ([`crate::packed`]) or on the way for many rows of x. One panel
//!           and up to [`FEW_ROWS`] rows of x at a time, so that weights pass once through a decode step of a small batch;
//!           for more, tiles of [`TILE_ROWS`] rows and two panels, in pieces of k that stay in the first-level cache.
//!           direct: blocks where they lie, partial sums of two rows folded to one lane a row, for few rows of x where
//!           there was no memory for panels. All at every level.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::ops::Range;

use tensor::quant::q8_0;

use super::linear::Output;
use super::quantize::QuantizedBlock;
use crate::packed::{PackPanel, Packed, Panel, panel_rows};
use crate::simd::{Kernel, LANES, PANEL_ROWS, PanelCodes, Simd};

/// Rows of x from which packing a panel on the way pays. Measured with `bench --no-repack` on a Sapphire Rapids server: 2
/// rows 3 % slower, 4 rows 26 % faster, 8 rows 75 % faster than the direct version.
pub(crate) const PANEL_MIN_ROWS: usize = 4;

/// Rows of x that pass together over one panel.
const FEW_ROWS: usize = 8;

/// Rows of x in a tile over two panels: 12 accumulators, 12 integer sums, two weights and one x are 27 of 32 registers.
const TILE_ROWS: usize = 6;

/// Blocks of k in a piece: two panels of it are 34 KiB.
const PIECE_BLOCKS: usize = 32;

/// Bytes of x in a strip of rows: with the weights of a chunk they stay in the second-level cache while its panels pass.
const STRIP_BYTES: usize = 512 << 10;

/// Bytes of a panel that are asked for ahead of use while its weights pass once.
const PREFETCH_BYTES: usize = 2048;

/// Blocks of each row of W that the direct version asks for ahead of use: sixteen rows of them cover the latency of memory.
const PREFETCH_BLOCKS: usize = 16;

/// Where a weight's codes are.
pub(crate) enum Weights<'a> {
    /// As the file has them, (n, blocks).
    File {
        blocks: &'a [q8_0::Block],
        /// Room for a panel; empty for the direct version.
        panel: &'a mut [u8],
    },
    /// In panels.
    Packed(&'a Packed),
}

/// Some columns of a projection with Q8_0 weights, for all rows.
pub(crate) struct LinearQ8<'a> {
    pub(crate) weights: Weights<'a>,
    /// (m, blocks).
    pub(crate) x: &'a [QuantizedBlock],
    /// Rows of x.
    pub(crate) rows: usize,
    /// Blocks in a row: k / 32.
    pub(crate) blocks: usize,
    /// Which rows of W; begins at a multiple of sixteen.
    pub(crate) columns: Range<usize>,
    pub(crate) output: Output<'a>,
    /// Room for [`sums_len`] sums between pieces of k.
    pub(crate) sums: &'a mut [f32],
}

/// f32 that `rows` rows need between pieces of k, of `blocks` blocks.
pub(crate) fn sums_len(rows: usize, blocks: usize) -> usize {
    if rows > FEW_ROWS && blocks > PIECE_BLOCKS { rows * 2 * LANES } else { 0 }
}

impl Kernel for LinearQ8<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { weights, x, rows, blocks, columns, output, sums } = self;
        debug_assert!(columns.start.is_multiple_of(PANEL_ROWS));
        let Range { start, end } = columns;
        let mut tiles = Tiles { s, x, rows, blocks, end, output, sums };
        match weights {
            Weights::Packed(packed) if rows > FEW_ROWS && S::WIDE => {
                let strip = STRIP_BYTES / (blocks * size_of::<QuantizedBlock>()) / TILE_ROWS * TILE_ROWS;
                let strip = strip.max(TILE_ROWS);
                for row in (0..rows).step_by(strip) {
                    let rows = row..(row + strip).min(rows);
                    for column in (start..end).step_by(2 * PANEL_ROWS) {
                        let panel = column / PANEL_ROWS;
                        if column + PANEL_ROWS < end {
                            let panels = [packed.panel(panel, blocks), packed.panel(panel + 1, blocks)];
                            tiles.many(panels, column, rows.clone());
                        } else {
                            tiles.many([packed.panel(panel, blocks)], column, rows.clone());
                        }
                    }
                }
            }
            Weights::Packed(packed) => {
                for column in (start..end).step_by(PANEL_ROWS) {
                    tiles.one_panel(packed.panel(column / PANEL_ROWS, blocks), column);
                }
            }
            Weights::File { blocks: weights, panel } => {
                for column in (start..end).step_by(PANEL_ROWS) {
                    let rows = panel_rows(weights, blocks, column / PANEL_ROWS);
                    if panel.is_empty() {
                        tiles.direct(&rows, column);
                    } else {
                        PackPanel { rows, out: &mut *panel }.run(s);
                        tiles.one_panel(Panel::new(panel, blocks), column);
                    }
                }
            }
        }
    }
}

/// What all tiles of a projection share.
struct Tiles<'a, S> {
    s: S,
    x: &'a [QuantizedBlock],
    rows: usize,
    blocks: usize,
    /// Past the last column.
    end: usize,
    output: Output<'a>,
    sums: &'a mut [f32],
}

impl<S: Simd> Tiles<'_, S> {
    /// All rows with the sixteen columns of a panel.
    #[inline(always)]
    fn one_panel(&mut self, panel: Panel<'_>, column: usize) {
        match self.rows {
            1 => self.few::<1>(panel, column),
            2 => self.few::<2>(panel, column),
            3 => self.few::<3>(panel, column),
            4 => self.few::<4>(panel, column),
            5 => self.few::<5>(panel, column),
            6 => self.few::<6>(panel, column),
            7 => self.few::<7>(panel, column),
            FEW_ROWS => self.few::<FEW_ROWS>(panel, column),
            _ => self.many([panel], column, 0..self.rows),
        }
    }

    /// All `MR` rows, k in one piece.
    #[inline(always)]
    fn few<const MR: usize>(&self, panel: Panel<'_>, column: usize) {
        let sums = self.add_blocks::<MR, 1, true>([panel], 0, 0..self.blocks, [[self.s.splat(0.0)]; MR]);
        self.put(0, column, &sums);
    }

    /// Some rows in tiles, k in pieces.
    #[inline(always)]
    fn many<const NP: usize>(&mut self, panels: [Panel<'_>; NP], column: usize, rows: Range<usize>) {
        let mut start = 0;
        loop {
            let piece = start..(start + PIECE_BLOCKS).min(self.blocks);
            let mut row = rows.start;
            while rows.end - row >= TILE_ROWS {
                self.piece::<TILE_ROWS, NP>(panels, column, row, piece.clone());
                row += TILE_ROWS;
            }
            while rows.end - row >= 2 {
                self.piece::<2, NP>(panels, column, row, piece.clone());
                row += 2;
            }
            if row < rows.end {
                self.piece::<1, NP>(panels, column, row, piece.clone());
            }
            start = piece.end;
            if start == self.blocks {
                break;
            }
        }
    }

    /// Adds a piece of k to the sums of a tile.
    #[inline(always)]
    fn piece<const MR: usize, const NP: usize>(
        &mut self,
        panels: [Panel<'_>; NP],
        column: usize,
        row: usize,
        piece: Range<usize>,
    ) {
        let s = self.s;
        let mut sums = [[s.splat(0.0); NP]; MR];
        let kept = row * NP * LANES..(row + MR) * NP * LANES;
        if piece.start > 0 {
            let (kept, _) = self.sums[kept.clone()].as_chunks();
            for m in 0..MR {
                for p in 0..NP {
                    sums[m][p] = s.load(&kept[m * NP + p]);
                }
            }
        }
        let last = piece.end == self.blocks;
        let sums = self.add_blocks::<MR, NP, false>(panels, row, piece, sums);
        if last {
            self.put(row, column, &sums);
            return;
        }
        let (kept, _) = self.sums[kept].as_chunks_mut();
        for m in 0..MR {
            for p in 0..NP {
                s.store(sums[m][p], &mut kept[m * NP + p]);
            }
        }
    }

    /// Adds the products of some blocks of k to the sums of a tile, block by block.
    #[inline(always)]
    fn add_blocks<const MR: usize, const NP: usize, const PREFETCH: bool>(
        &self,
        panels: [Panel<'_>; NP],
        row: usize,
        range: Range<usize>,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        let s = self.s;
        let len = range.len();
        // Cut to one known length, so that the loop needs no checks.
        let panels = panels.map(|panel| (&panel.codes[range.clone()][..len], &panel.scales[range.clone()][..len]));
        let mut x: [&[QuantizedBlock]; MR] = [&[]; MR];
        for m in 0..MR {
            let first = (row + m) * self.blocks;
            x[m] = &self.x[first + range.start..first + range.end][..len];
        }
        for block in 0..len {
            if PREFETCH {
                // Past the end of this panel comes the next.
                let at = panels[0].0.as_ptr().wrapping_add(block).cast::<u8>().wrapping_add(PREFETCH_BYTES);
                for line in 0..size_of::<PanelCodes>() / 64 {
                    s.prefetch(at.wrapping_add(64 * line));
                }
            }
            let mut codes = [&panels[0].0[block]; NP];
            let mut scales = [s.splat(0.0); NP];
            for p in 0..NP {
                codes[p] = &panels[p].0[block];
                scales[p] = s.load_f16(&panels[p].1[block]);
            }
            let mut x_block = [&x[0][block]; MR];
            for m in 0..MR {
                x_block[m] = &x[m][block];
            }
            let dots = s.panel_dots(codes, x_block);
            for m in 0..MR {
                let x_scale = s.splat(x_block[m].scale);
                for p in 0..NP {
                    sums[m][p] = s.mul_add(dots[m][p], s.mul(scales[p], x_scale), sums[m][p]);
                }
            }
        }
        sums
    }

    /// All rows with sixteen columns whose weights are where the file has them.
    #[inline(always)]
    fn direct(&self, rows: &[Option<&[q8_0::Block]>; PANEL_ROWS], column: usize) {
        // Lanes beyond the last row repeat the first; their results are dropped.
        let first = rows[0].expect("a panel has a row");
        let rows = rows.map(|row| row.unwrap_or(first));
        for m in 0..self.rows {
            let x = &self.x[m * self.blocks..(m + 1) * self.blocks];
            // Later rows find the weights in the cache.
            let sums = if m == 0 { dot_16::<S, true>(self.s, &rows, x) } else { dot_16::<S, false>(self.s, &rows, x) };
            self.put(m, column, &[[sums]]);
        }
    }

    #[inline(always)]
    fn put<const MR: usize, const NP: usize>(&self, row: usize, column: usize, sums: &[[S::F32; NP]; MR]) {
        for m in 0..MR {
            for p in 0..NP {
                let mut lanes = [0.0; LANES];
                self.s.store(sums[m][p], &mut lanes);
                let column = column + p * PANEL_ROWS;
                let width = self.end - column;
                if width >= LANES {
                    self.output.put(row + m, column, lanes);
                } else {
                    for (lane, &sum) in lanes[..width].iter().enumerate() {
                        self.output.put(row + m, column + lane, [sum]);
                    }
                }
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

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use half::f16;
    use tensor::{Tensor, WeightFormat};
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::kernels::quantize::BLOCK_LEN;
    use crate::kernels::quantize::tests::QuantizeRow;
    use crate::packed::pack_panel;
    use crate::shared::SharedSlice;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Version {
        Direct,
        OnTheWay,
        Packed,
    }

    const VERSIONS: [Version; 3] = [Version::Direct, Version::OnTheWay, Version::Packed];

    fn linear(isa: Isa, tensor: &Tensor, x: &[QuantizedBlock], rows: usize, version: Version) -> Vec<f32> {
        let (n, blocks) = (tensor.num_rows(), tensor.row_len() / BLOCK_LEN);
        let mut y = vec![f32::INFINITY; rows * n];
        let values = &SharedSlice::new(&mut y);
        let output = Output { values, start: 0, stride: n, first_column: 0, bias: None, residual: None };
        let mut sums = vec![f32::NAN; sums_len(rows, blocks)];
        let mut packed = Packed::reserve(tensor).unwrap();
        for panel in 0..n.div_ceil(PANEL_ROWS) {
            // SAFETY: one thread.
            unsafe { pack_panel(isa, tensor, &packed.share(), panel) };
        }
        let mut room = vec![0; Panel::bytes(blocks)];
        let panel = if version == Version::OnTheWay { &mut room[..] } else { &mut [] };
        let file = Weights::File { blocks: tensor.as_slice(), panel };
        let weights = if version == Version::Packed { Weights::Packed(&packed) } else { file };
        isa.run(LinearQ8 { weights, x, rows, blocks, columns: 0..n, output, sums: &mut sums });
        y
    }

    #[test]
    fn every_shape_version_and_level_gives_the_same_bits_within_the_bound() {
        let mut rng = Rng::new(2);
        for (rows, n, blocks) in [
            (1, 1, 1),
            (1, 16, 3),
            (2, 17, 2),
            (3, 32, 1),
            (4, 31, 2),
            (5, 16, 2),
            (6, 18, 1),
            (7, 48, 1),
            (8, 15, 1),
            (9, 33, 4),
            (17, 5, 7),
            (15, 50, PIECE_BLOCKS + 3),
            (9, 64, 2 * PIECE_BLOCKS),
        ] {
            let values: Vec<f32> = (0..n * blocks * BLOCK_LEN).map(|_| rng.normal()).collect();
            let tensor = Tensor::from_f32(WeightFormat::Q8_0, vec![n, blocks * BLOCK_LEN], &values).unwrap();
            let weights: &[q8_0::Block] = tensor.as_slice();
            let floats: Vec<f32> = (0..rows * blocks * BLOCK_LEN).map(|_| rng.normal()).collect();
            let mut x = vec![QuantizedBlock::zeroed(); rows * blocks];
            Isa::scalar().run(QuantizeRow(&floats, &mut x));
            let expected = linear(Isa::scalar(), &tensor, &x, rows, Version::Direct);
            for isa in Isa::available() {
                for version in VERSIONS {
                    let y = linear(isa, &tensor, &x, rows, version);
                    assert_eq!(y, expected, "{isa}, {version:?}, ({rows}, {n}, {blocks})");
                    let alone = linear(isa, &tensor, &x[..blocks], 1, version);
                    assert_eq!(expected[..n], alone, "{isa}, {version:?}");
                }
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
        let bytes = bytes::Bytes::copy_from_slice(bytemuck::cast_slice(&weights));
        let tensor = Tensor::new(WeightFormat::Q8_0, vec![n, blocks * BLOCK_LEN], bytes).unwrap();
        for isa in Isa::available() {
            for version in VERSIONS {
                let y = linear(isa, &tensor, &x, rows, version);
                for (at, y) in y.iter().enumerate() {
                    assert_eq!(y.is_nan(), at / n == 8 || at % n == 17, "{isa}, {version:?}, at {at}");
                    assert!(y.is_nan() || *y == 64.0);
                }
            }
        }
    }
}
