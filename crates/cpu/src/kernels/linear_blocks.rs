//! `linear` with W in blocks: activations are quantised too ([`super::quantize`]), products are exact integers, of
//! FP8 those of f32.
//!
//! Shapes    x (m, k / 32) blocks; W (n, blocks); y (m, n) f32; any n and m, k a whole number of W's blocks.
//! Layout    W in panels of sixteen rows ([`crate::panels`]), or as the file has it. One row in each lane.
//! Bytes     n·k·34/32 for W in Q8_0, n·k·18/32 in Q4_0. (4864, 896): 4.6 MB, 2.5 MB.
//! Roofline  m = 1: 2 operations over 1.06 or 0.56 bytes, bound by memory.
//! Accuracy  sum over each 32 in order, as the format's file says; in Q8_0: acc = fma(Σ codes · codes, scale of w · scale of
//!           x, acc). |error| <= (k / 32 + 2) · ε · Σ|w·x| from exact arithmetic on the quantised activations (twice that
//!           where there are minima, and of both terms; (k / 32 + 19) · ε in FP8); what quantising them adds, Σ over blocks
//!           of max|x| / 254 · Σ|w|, is the price of bytes. The same bits at every level.
//! Versions  panels: sixteen rows side by side, made at load ([`crate::packed`]) or on the way for many rows of x. One panel
//!           and up to [`FEW_ROWS`] rows of x at a time, so that weights pass once through a decode step of a small batch
//!           (up to [`MOST_STREAMED_ROWS`], in turns of so many, where panels are multiplied as they lie);
//!           for more, tiles of [`TILE_ROWS`] rows and two panels, in pieces of k that stay in the first-level cache, unpacked
//!           once for all rows ([`crate::panels::TileFormat`]), or, where there is nothing to unpack (Q8_0), where they lie
//!           and over all of k.
//!           direct (Q8_0): blocks where they lie, partial sums of two rows folded to one lane a row, for few rows of x
//!           where there was no memory for panels; other formats are packed on the way then. All at every level.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::marker::PhantomData;
use std::ops::Range;

use super::linear::Output;
use super::quantize::QuantizedBlock;
use crate::isa::reads_one_stream_best;
use crate::memory::{LINE, read_in_order};
use crate::packed::{Packed, panel_rows};
use crate::panels::{
    Ahead, PIECE_BLOCKS, PackPanel, Panel, PanelBlock, PanelFormat, TileCodes, TileFormat, TilePanel, TileScales,
};
use crate::simd::{Kernel, LANES, PANEL_ROWS, Simd, Words};

/// Rows of x from which packing a panel on the way pays. Measured with `bench --no-repack` on a Sapphire Rapids server: 2
/// rows 3 % slower, 4 rows 26 % faster, 8 rows 75 % faster than the direct version.
pub(crate) const PANEL_MIN_ROWS: usize = 4;

/// Rows of x that pass together over one panel.
const FEW_ROWS: usize = 8;

/// Rows of x up to which they pass over a packed panel [`FEW_ROWS`] at a time, the first of them as memory gives it and the others
/// from the cache, and not in tiles: those are faster by a seventh, but the first of them waits for memory. Measured on Zen 5, one
/// thread, Qwen2.5-0.5B: 16 rows 302 tokens/s in tiles and 505 eight at a time, 24 rows 527, 32 rows 416 in tiles.
const MOST_STREAMED_ROWS: usize = 5 * FEW_ROWS;

/// Rows of x in a tile over two panels: 12 accumulators, 12 integer sums, two weights and one x are 27 of 32 registers.
const TILE_ROWS: usize = 6;

/// f32 for a piece of two panels, unpacked, at most: of FP8.
const UNPACKED_LEN: usize = 17 << 10;

/// Rows of x in a strip. A piece of k of so many, 512 KiB, and their sums stay in the second-level cache while the panels of a
/// chunk pass, each unpacked once for all of them.
const STRIP_ROWS: usize = 672;

/// Rows of x in a strip that passes over panels where they lie, k in one piece, where x has `blocks` a row: the strip stays in the
/// second-level cache, of 1 MiB on AMD, beside two panels.
fn in_place_rows(blocks: usize) -> usize {
    let tile = TILE_ROWS * blocks.max(1) * size_of::<QuantizedBlock>();
    TILE_ROWS * ((640 << 10) / tile).clamp(4, 16)
}

/// How far ahead of use a panel is asked for while its weights pass once: what memory takes to answer, in bytes, while codes are
/// unpacked or several rows of x pass; the processor by itself looks no further than its window holds such instructions.
/// Measured on Zen 5, GB/s with nothing, 2, 4, 8 and 16 KiB: eight rows of Q8_0 32, 30, 32, 38, 38; four 34, 37, 39, 39, 38; one row
/// of Q5_0 32, 32, 34, 36, 35, of Q4_K 19, 28, 31, 35, 32, of Q6_K 18, 24, 29, 32, 31. A Granite Rapids server reads Q4_0, Q4_K_M
/// and Q8_0 as fast with 2, 4 and 8 KiB, and one row 5, 10 and 17 % slower with nothing.
const PREFETCH_BYTES: usize = 8 << 10;
/// Rows of x from which that is done for codes that need no unpacking where the processor reads one stream well by itself: fewer
/// leave it time to. Measured on Zen 4: one row of Q8_0 33 GB/s without and 30 with; on Zen 5 41 and 40.
const PREFETCH_MIN_ROWS: usize = 4;

/// How panels pass through a step, where another way than the usual one was measured better. The products are added in one
/// order, so that every way has the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// How far ahead of use a panel is asked for, in bytes: 0 leaves the processor to itself. `None`: as [`PREFETCH_BYTES`]
    /// and [`PREFETCH_MIN_ROWS`] say.
    pub(crate) ahead: Option<usize>,
    /// Whether more than [`FEW_ROWS`] rows pass over a panel so many at a time, and not in tiles. `None`: up to
    /// [`MOST_STREAMED_ROWS`] of them.
    pub(crate) in_turns: Option<bool>,
}

impl Streaming {
    /// Distances that are worth a try.
    const AHEAD: [usize; 4] = [0, 2 << 10, 4 << 10, 16 << 10];
    /// Rows beyond which tiles are faster on any processor.
    const IN_TURNS_MAX: usize = 64;

    /// Every other way for `rows` rows, one thing changed in each; `in_place`: the format is multiplied where it lies.
    pub(crate) fn others(rows: usize, in_place: bool) -> Vec<Self> {
        let mut others = vec![];
        if rows <= FEW_ROWS || (in_place && rows <= MOST_STREAMED_ROWS) {
            others.extend(Self::AHEAD.map(|bytes| Self { ahead: Some(bytes), in_turns: None }));
        }
        if in_place && rows > FEW_ROWS && rows <= Self::IN_TURNS_MAX {
            others.push(Self { ahead: None, in_turns: Some(rows > MOST_STREAMED_ROWS) });
        }
        others
    }

    /// Whether so many rows pass over a panel [`FEW_ROWS`] at a time, where they are more than that.
    #[inline(always)]
    fn is_in_turns(self, rows: usize) -> bool {
        self.in_turns.unwrap_or(rows <= MOST_STREAMED_ROWS)
    }
}

/// Where a weight's codes are.
pub(crate) enum Weights<'a, F: PanelFormat> {
    /// As the file has them, (n, blocks).
    File {
        blocks: &'a [F::Block],
        /// Room for a panel; empty for the direct version.
        panel: &'a mut [u8],
    },
    /// In panels.
    Packed(&'a Packed),
}

/// Some columns of a projection with weights in blocks, for all rows.
pub(crate) struct LinearBlocks<'a, F: PanelFormat> {
    pub(crate) weights: Weights<'a, F>,
    /// (m, k / 32).
    pub(crate) x: &'a [QuantizedBlock],
    /// Rows of x.
    pub(crate) rows: usize,
    /// Blocks in a row of W.
    pub(crate) blocks: usize,
    /// Which rows of W; begins at a multiple of sixteen.
    pub(crate) columns: Range<usize>,
    pub(crate) output: Output<'a>,
    pub(crate) streaming: Streaming,
    /// Room for [`sums_len`]: a piece of weights, and sums between pieces of k.
    pub(crate) sums: &'a mut [f32],
}

/// f32 that `rows` rows and up to `columns` columns at once need: unpacked weights, and sums between pieces of k.
pub(crate) fn sums_len(rows: usize, columns: usize) -> usize {
    let kept = rows.min(STRIP_ROWS) * columns.next_multiple_of(2 * PANEL_ROWS);
    if rows > FEW_ROWS { UNPACKED_LEN + kept } else { 0 }
}

impl<F: PanelFormat> Kernel for LinearBlocks<'_, F> {
    type Output = ();
    const WORDS: Words = Words::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { weights, x, rows, blocks, columns, output, streaming, sums } = self;
        debug_assert!(columns.start.is_multiple_of(PANEL_ROWS));
        let Range { start, end } = columns;
        let mut tiles = Tiles::<S, F> { s, x, rows, blocks, end, output, streaming, sums, format: PhantomData };
        match weights {
            Weights::Packed(packed)
                if F::HAS_TILES_IN_PLACE && S::WIDE && rows > FEW_ROWS && streaming.is_in_turns(rows) =>
            {
                for column in (start..end).step_by(PANEL_ROWS) {
                    tiles.streamed(packed.panel(column / PANEL_ROWS, blocks), column);
                }
            }
            Weights::Packed(packed) if rows > FEW_ROWS && S::WIDE && F::HAS_TILES_IN_PLACE => {
                let strip = in_place_rows(blocks * F::X_BLOCKS);
                for row in (0..rows).step_by(strip) {
                    let rows = row..(row + strip).min(rows);
                    for column in (start..end).step_by(2 * PANEL_ROWS) {
                        let panel = column / PANEL_ROWS;
                        if column + PANEL_ROWS < end {
                            let panels = [packed.panel(panel, blocks), packed.panel(panel + 1, blocks)];
                            tiles.in_place(panels, column, rows.clone());
                        } else {
                            tiles.in_place([packed.panel(panel, blocks)], column, rows.clone());
                        }
                    }
                }
            }
            Weights::Packed(packed) if rows > FEW_ROWS && S::WIDE => {
                for row in (0..rows).step_by(STRIP_ROWS) {
                    let rows = row..(row + STRIP_ROWS).min(rows);
                    for piece in (0..blocks).step_by(PIECE_BLOCKS / F::X_BLOCKS) {
                        for column in (start..end).step_by(2 * PANEL_ROWS) {
                            let panel = column / PANEL_ROWS;
                            let kept = (column - start) * rows.len();
                            if column + PANEL_ROWS < end {
                                let panels = [packed.panel(panel, blocks), packed.panel(panel + 1, blocks)];
                                tiles.piece(panels, column, rows.clone(), piece, kept);
                            } else {
                                tiles.piece([packed.panel(panel, blocks)], column, rows.clone(), piece, kept);
                            }
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
                        PackPanel::<F> { rows, out: &mut *panel }.run(s);
                        tiles.one_panel(Panel::new(panel, blocks), column);
                    }
                }
            }
        }
    }
}

/// What all tiles of a projection share.
struct Tiles<'a, S, F> {
    s: S,
    x: &'a [QuantizedBlock],
    rows: usize,
    /// In a row of W.
    blocks: usize,
    /// Past the last column.
    end: usize,
    output: Output<'a>,
    streaming: Streaming,
    sums: &'a mut [f32],
    format: PhantomData<F>,
}

impl<S: Simd, F: PanelFormat> Tiles<'_, S, F> {
    /// All rows with the sixteen columns of a panel.
    #[inline(always)]
    fn one_panel(&mut self, panel: Panel<'_, F>, column: usize) {
        if self.rows > FEW_ROWS {
            for row in (0..self.rows).step_by(STRIP_ROWS) {
                let rows = row..(row + STRIP_ROWS).min(self.rows);
                for piece in (0..self.blocks).step_by(PIECE_BLOCKS / F::X_BLOCKS) {
                    self.piece([panel], column, rows.clone(), piece, 0);
                }
            }
            return;
        }
        self.streamed(panel, column);
    }

    /// All rows with the sixteen columns of a panel, up to [`FEW_ROWS`] at a time.
    #[inline(always)]
    fn streamed(&self, panel: Panel<'_, F>, column: usize) {
        let mut row = 0;
        if !F::HAS_ALL_TILES {
            while row < self.rows {
                row += match self.rows - row {
                    1 => self.few::<1>(panel, column, row),
                    2 | 3 => self.few::<2>(panel, column, row),
                    _ => self.few::<4>(panel, column, row),
                };
            }
            return;
        }
        while row < self.rows {
            // Five and seven pass twice, from cache: there is enough code.
            row += match self.rows - row {
                1 => self.few::<1>(panel, column, row),
                2 => self.few::<2>(panel, column, row),
                3 | 5 => self.few::<3>(panel, column, row),
                4 | 7 => self.few::<4>(panel, column, row),
                6 => self.few::<6>(panel, column, row),
                _ => self.few::<FEW_ROWS>(panel, column, row),
            };
        }
    }

    /// `MR` rows, k in one piece. Returns how many.
    #[inline(always)]
    fn few<const MR: usize>(&self, panel: Panel<'_, F>, column: usize, row: usize) -> usize {
        let ahead_bytes = match self.streaming.ahead {
            Some(bytes) => bytes,
            None if !F::HAS_TILES_IN_PLACE || MR >= PREFETCH_MIN_ROWS || !reads_one_stream_best() => PREFETCH_BYTES,
            None => 0,
        };
        let row_len = self.blocks * F::X_BLOCKS;
        // Not inlined: see `Simd::vectorize`.
        self.s.vectorize(FewRows::<F, MR> {
            // Cut to one known length, so that the loop needs no checks.
            panel: &panel.blocks[..self.blocks],
            x: &self.x[row * row_len..(row + MR) * row_len],
            ahead_bytes,
            place: (row, column),
            end: self.end,
            output: self.output,
        });
        MR
    }

    /// A strip of rows in tiles with the piece of k from block `start` on. What earlier pieces came to is at `kept`.
    #[inline(always)]
    fn piece<const NP: usize>(
        &mut self,
        panels: [Panel<'_, F>; NP],
        column: usize,
        rows: Range<usize>,
        start: usize,
        kept: usize,
    ) {
        let (unpacked, sums) = self.sums.split_at_mut(UNPACKED_LEN);
        let (codes, scales) = unpacked.split_at_mut(2 * PIECE_BLOCKS * size_of::<TileCodes<F>>() / 4);
        let codes: &mut [TileCodes<F>] = bytemuck::cast_slice_mut(codes);
        let scales_len = 2 * PIECE_BLOCKS * size_of::<TileScales<F>>() / 4;
        let scales: &mut [TileScales<F>] = bytemuck::cast_slice_mut(&mut scales[..scales_len]);
        let end = (start + PIECE_BLOCKS / F::X_BLOCKS).min(self.blocks);
        let piece = start * F::X_BLOCKS..end * F::X_BLOCKS;
        let mut tiles = [TilePanel { codes: &[], scales: &[] }; NP];
        let mut rooms = codes.chunks_exact_mut(PIECE_BLOCKS).zip(scales.chunks_exact_mut(PIECE_BLOCKS));
        // No closure: it would not be compiled for the level.
        for p in 0..NP {
            let (codes, scales) = rooms.next().expect("room for two");
            let room = (&mut codes[..piece.len()], &mut scales[..piece.len()]);
            tiles[p] = panels[p].unpack(self.s, start..end, room);
            // The panels that come next, while rows pass over these.
            let at = panels[p].blocks.as_ptr().wrapping_add(start).cast::<u8>();
            let at = at.wrapping_add(NP * Panel::<F>::bytes(self.blocks));
            for line in 0..(end - start) * size_of::<PanelBlock<F>>() / 64 {
                self.s.prefetch(at.wrapping_add(64 * line));
            }
        }
        // Not inlined: formats with scales of one form share this code.
        self.s.vectorize(TileRows::<F::Tile, NP> {
            panels: tiles,
            x: self.x,
            row_len: self.blocks * F::X_BLOCKS,
            piece,
            rows,
            column,
            end: self.end,
            output: self.output,
            sums: &mut sums[kept..],
        });
    }

    /// A strip of rows with panels where they lie.
    #[inline(always)]
    fn in_place<const NP: usize>(&self, panels: [Panel<'_, F>; NP], column: usize, rows: Range<usize>) {
        // Not inlined: by itself the tile keeps all its sums in registers.
        self.s.vectorize(TilesInPlace::<F, NP> {
            panels,
            x: self.x,
            blocks: self.blocks,
            rows,
            column,
            end: self.end,
            output: self.output,
        });
    }

    /// All rows with sixteen columns whose weights are where the file has them.
    #[inline(always)]
    fn direct(&self, rows: &[Option<&[F::Block]>; PANEL_ROWS], column: usize) {
        // Lanes beyond the last row repeat the first; their results are dropped.
        let first = rows[0].expect("a panel has a row");
        let in_order = reads_one_stream_best();
        if in_order {
            read_in_order(rows);
        }
        let rows = rows.map(|row| row.unwrap_or(first));
        for m in 0..self.rows {
            let x = &self.x[m * self.blocks..(m + 1) * self.blocks];
            // Later rows find the weights in the cache.
            let sums = if m == 0 && !in_order {
                F::dot_16::<S, true>(self.s, &rows, x)
            } else {
                F::dot_16::<S, false>(self.s, &rows, x)
            };
            put(self.s, self.output, self.end, (m, column), &[[sums]]);
        }
    }
}

/// A panel, for `MR` rows over all of k.
struct FewRows<'a, F: PanelFormat, const MR: usize> {
    panel: &'a [PanelBlock<F>],
    /// (`MR`, as many as the panel has), for each of [`PanelFormat::X_BLOCKS`].
    x: &'a [QuantizedBlock],
    /// As [`Streaming::ahead`].
    ahead_bytes: usize,
    /// The first row and column of the result.
    place: (usize, usize),
    /// Past the last column.
    end: usize,
    output: Output<'a>,
}

impl<F: PanelFormat, const MR: usize> Kernel for FewRows<'_, F, MR> {
    type Output = ();
    const WORDS: Words = Words::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { panel, x: rows, ahead_bytes, place, end, output } = self;
        let row_len = panel.len() * F::X_BLOCKS;
        let mut x: [&[QuantizedBlock]; MR] = [&[]; MR];
        for m in 0..MR {
            x[m] = &rows[m * row_len..][..row_len];
        }
        let mut sums = [[s.splat(0.0)]; MR];
        for (block, of_panel) in panel.iter().enumerate() {
            // Past the end of this panel comes the next.
            let ahead = if ahead_bytes > 0 { Ahead::of(of_panel, ahead_bytes) } else { Ahead::NOTHING };
            let mut x_blocks: [&[QuantizedBlock]; MR] = [&[]; MR];
            for m in 0..MR {
                x_blocks[m] = &x[m][block * F::X_BLOCKS..(block + 1) * F::X_BLOCKS];
            }
            sums = F::add(s, [(&of_panel.codes, &of_panel.scales)], x_blocks, ahead, sums);
        }
        put(s, output, end, place, &sums);
    }
}

/// A piece of k of some panels, for some rows in tiles.
struct TileRows<'a, 'b, T: TileFormat, const NP: usize> {
    /// As long as `piece`.
    panels: [TilePanel<'a, T>; NP],
    /// (m, `row_len`).
    x: &'a [QuantizedBlock],
    row_len: usize,
    /// Blocks of 32 of k.
    piece: Range<usize>,
    /// Of the strip, whose first row's sums come first.
    rows: Range<usize>,
    column: usize,
    /// Past the last column.
    end: usize,
    output: Output<'a>,
    /// Of each row of the strip, what the pieces before came to.
    sums: &'b mut [f32],
}

impl<T: TileFormat, const NP: usize> Kernel for TileRows<'_, '_, T, NP> {
    type Output = ();
    const WORDS: Words = Words::Bytes;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let Range { start: mut row, end } = self.rows;
        while end - row >= TILE_ROWS {
            self.tile::<S, TILE_ROWS>(s, row);
            row += TILE_ROWS;
        }
        while end - row >= 2 {
            self.tile::<S, 2>(s, row);
            row += 2;
        }
        if row < end {
            self.tile::<S, 1>(s, row);
        }
    }
}

impl<T: TileFormat, const NP: usize> TileRows<'_, '_, T, NP> {
    #[inline(always)]
    fn tile<S: Simd, const MR: usize>(&mut self, s: S, row: usize) {
        let mut sums = [[s.splat(0.0); NP]; MR];
        let kept = row - self.rows.start;
        let kept = kept * NP * LANES..(kept + MR) * NP * LANES;
        if self.piece.start > 0 {
            let (kept, _) = self.sums[kept.clone()].as_chunks();
            for m in 0..MR {
                for p in 0..NP {
                    sums[m][p] = s.load(&kept[m * NP + p]);
                }
            }
        }
        // Cut to one known length, so that the loop needs no checks.
        let len = self.piece.len();
        let panels = self.panels.map(|panel| (&panel.codes[..len], &panel.scales[..len]));
        let mut x: [&[QuantizedBlock]; MR] = [&[]; MR];
        for m in 0..MR {
            x[m] = &self.x[(row + m) * self.row_len + self.piece.start..][..len];
        }
        for block in 0..len {
            let mut of_block = [(&panels[0].0[block], &panels[0].1[block]); NP];
            for p in 1..NP {
                of_block[p] = (&panels[p].0[block], &panels[p].1[block]);
            }
            let mut of_rows = [&x[0][block]; MR];
            for m in 1..MR {
                of_rows[m] = &x[m][block];
            }
            sums = T::add(s, of_block, of_rows, sums);
        }
        if self.piece.end == self.row_len {
            put(s, self.output, self.end, (row, self.column), &sums);
            return;
        }
        let (kept, _) = self.sums[kept].as_chunks_mut();
        for m in 0..MR {
            for p in 0..NP {
                s.store(sums[m][p], &mut kept[m * NP + p]);
            }
        }
    }
}

/// Some panels where they lie, for some rows in tiles.
struct TilesInPlace<'a, F: PanelFormat, const NP: usize> {
    panels: [Panel<'a, F>; NP],
    /// (m, `blocks`), for each of [`PanelFormat::X_BLOCKS`].
    x: &'a [QuantizedBlock],
    /// In a row of W.
    blocks: usize,
    rows: Range<usize>,
    column: usize,
    /// Past the last column.
    end: usize,
    output: Output<'a>,
}

impl<F: PanelFormat, const NP: usize> Kernel for TilesInPlace<'_, F, NP> {
    type Output = ();
    const WORDS: Words = Words::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Range { start, end } = self.rows;
        // The panels that come next, while the first rows pass over these: a part of them for each tile.
        let next = self.panels[0].blocks.as_ptr().cast::<u8>().wrapping_add(NP * Panel::<F>::bytes(self.blocks));
        let lines = if start == 0 { NP * Panel::<F>::bytes(self.blocks) / LINE } else { 0 };
        let mut asked = 0;
        let mut row = start;
        while end - row >= TILE_ROWS {
            let until = lines * (row + TILE_ROWS - start) / (end - start);
            while asked < until {
                s.prefetch(next.wrapping_add(LINE * asked));
                asked += 1;
            }
            self.tile::<S, TILE_ROWS>(s, row);
            row += TILE_ROWS;
        }
        while end - row >= 2 {
            self.tile::<S, 2>(s, row);
            row += 2;
        }
        if row < end {
            self.tile::<S, 1>(s, row);
        }
    }
}

impl<F: PanelFormat, const NP: usize> TilesInPlace<'_, F, NP> {
    #[inline(always)]
    fn tile<S: Simd, const MR: usize>(&self, s: S, row: usize) {
        // Cut to one known length, so that the loop needs no checks.
        let row_len = self.blocks * F::X_BLOCKS;
        let mut panels: [&[PanelBlock<F>]; NP] = [&[]; NP];
        for p in 0..NP {
            panels[p] = &self.panels[p].blocks[..self.blocks];
        }
        let mut x: [&[QuantizedBlock]; MR] = [&[]; MR];
        for m in 0..MR {
            x[m] = &self.x[(row + m) * row_len..][..row_len];
        }
        let mut sums = [[s.splat(0.0); NP]; MR];
        for block in 0..self.blocks {
            let mut of_block = [(&panels[0][block].codes, &panels[0][block].scales); NP];
            for p in 1..NP {
                of_block[p] = (&panels[p][block].codes, &panels[p][block].scales);
            }
            let mut of_rows: [&[QuantizedBlock]; MR] = [&[]; MR];
            for m in 0..MR {
                of_rows[m] = &x[m][block * F::X_BLOCKS..(block + 1) * F::X_BLOCKS];
            }
            sums = F::add(s, of_block, of_rows, Ahead::NOTHING, sums);
        }
        put(s, self.output, self.end, (row, self.column), &sums);
    }
}

/// Hands the sums of a tile over, those before column `end`.
#[inline(always)]
fn put<S: Simd, const MR: usize, const NP: usize>(
    s: S,
    output: Output<'_>,
    end: usize,
    (row, column): (usize, usize),
    sums: &[[S::F32; NP]; MR],
) {
    for m in 0..MR {
        for p in 0..NP {
            let mut lanes = [0.0; LANES];
            s.store(sums[m][p], &mut lanes);
            let column = column + p * PANEL_ROWS;
            let width = end - column;
            if width >= LANES {
                output.put(row + m, column, lanes);
            } else {
                for (lane, &sum) in lanes[..width].iter().enumerate() {
                    output.put(row + m, column + lane, [sum]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use half::f16;
    use tensor::quant::{fp8, q8_0};
    use tensor::{Tensor, WeightFormat};
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::kernels::quantize::BLOCK_LEN;
    use crate::kernels::quantize::tests::QuantizeRow;
    use crate::packed::pack_panel;
    use crate::panels::{FP8, Q8_0, with_panel_format};
    use crate::shared::SharedSlice;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Version {
        Direct,
        OnTheWay,
        Packed,
    }

    fn versions<F: PanelFormat>() -> &'static [Version] {
        const ALL: &[Version] = &[Version::OnTheWay, Version::Packed, Version::Direct];
        if F::HAS_DIRECT { ALL } else { &ALL[..2] }
    }

    fn linear<F: PanelFormat>(
        isa: Isa,
        tensor: &Tensor,
        x: &[QuantizedBlock],
        rows: usize,
        version: Version,
    ) -> Vec<f32> {
        linear_by::<F>(isa, tensor, x, rows, version, Streaming::default())
    }

    fn linear_by<F: PanelFormat>(
        isa: Isa,
        tensor: &Tensor,
        x: &[QuantizedBlock],
        rows: usize,
        version: Version,
        streaming: Streaming,
    ) -> Vec<f32> {
        let (n, x_blocks) = (tensor.num_rows(), tensor.row_len() / BLOCK_LEN);
        let blocks = x_blocks / F::X_BLOCKS;
        let mut y = vec![f32::INFINITY; rows * n];
        let values = &SharedSlice::new(&mut y);
        let output = Output { values, start: 0, stride: n, first_column: 0, bias: None, residual: None, rows: None };
        let mut sums = vec![f32::NAN; sums_len(rows, n)];
        let mut packed = Packed::reserve(tensor).unwrap();
        for panel in 0..n.div_ceil(PANEL_ROWS) {
            // SAFETY: one thread.
            unsafe { pack_panel(isa, tensor, &packed.share(), panel) };
        }
        let mut room = crate::shared::AlignedBuffer::zeroed(Panel::<F>::bytes(blocks)).unwrap();
        let panel = if version == Version::OnTheWay { &mut room[..] } else { &mut [] };
        let file: Weights<'_, F> = Weights::File { blocks: tensor.as_slice(), panel };
        let weights = if version == Version::Packed { Weights::Packed(&packed) } else { file };
        isa.run(LinearBlocks { weights, x, rows, blocks, columns: 0..n, output, streaming, sums: &mut sums });
        y
    }

    /// Rows of x, of W, and blocks of 32 in a row, rounded up to whole blocks of the format.
    const SHAPES: [(usize, usize, usize); 15] = [
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
        (15, 50, 35),
        (9, 64, 64),
        (14, 37, 17),
        // Beyond what is streamed: six at a time and five.
        (MOST_STREAMED_ROWS + 7, 37, 3),
    ];

    #[test]
    fn every_shape_version_and_level_gives_the_same_bits_within_the_bound() {
        for format in WeightFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
            with_panel_format!(format, F => check_shapes::<F>(format), else unreachable!());
        }
    }

    #[test]
    fn more_rows_than_a_strip_have_the_bits_of_fewer() {
        // Two pieces of k and a part, two pairs of panels and one alone.
        let (rows, n, blocks) = (STRIP_ROWS + 7, 70, 2 * PIECE_BLOCKS + 1);
        let mut rng = Rng::new(6);
        let values: Vec<f32> = (0..n * blocks * BLOCK_LEN).map(|_| rng.normal()).collect();
        let tensor = Tensor::from_f32(WeightFormat::Q8_0, vec![n, blocks * BLOCK_LEN], &values).unwrap();
        let floats: Vec<f32> = (0..rows * blocks * BLOCK_LEN).map(|_| rng.normal()).collect();
        let mut x = vec![QuantizedBlock::zeroed(); rows * blocks];
        Isa::best().run(QuantizeRow(&floats, &mut x));
        for version in [Version::OnTheWay, Version::Packed] {
            let all = linear::<Q8_0>(Isa::best(), &tensor, &x, rows, version);
            let (first, last) = x.split_at(300 * blocks);
            let mut parts = linear::<Q8_0>(Isa::best(), &tensor, first, 300, version);
            parts.extend(linear::<Q8_0>(Isa::best(), &tensor, last, rows - 300, version));
            assert!(all == parts, "{version:?}");
        }
    }

    fn check_shapes<F: PanelFormat>(format: WeightFormat) {
        let mut rng = Rng::new(2);
        for (rows, n, x_blocks) in SHAPES {
            let blocks = x_blocks.next_multiple_of(F::X_BLOCKS);
            let k = blocks * BLOCK_LEN;
            let values: Vec<f32> = (0..n * k).map(|_| rng.normal()).collect();
            let tensor = Tensor::from_f32(format, vec![n, k], &values).unwrap();
            let weights = tensor.to_f32();
            let floats: Vec<f32> = (0..rows * k).map(|_| rng.normal()).collect();
            let mut x = vec![QuantizedBlock::zeroed(); rows * blocks];
            Isa::scalar().run(QuantizeRow(&floats, &mut x));
            let expected = linear::<F>(Isa::scalar(), &tensor, &x, rows, Version::OnTheWay);
            for isa in Isa::available() {
                for &version in versions::<F>() {
                    let y = linear::<F>(isa, &tensor, &x, rows, version);
                    assert_eq!(y, expected, "{format} {isa}, {version:?}, ({rows}, {n}, {blocks})");
                    let alone = linear::<F>(isa, &tensor, &x[..blocks], 1, version);
                    assert_eq!(expected[..n], alone, "{format} {isa}, {version:?}");
                }
                for way in Streaming::others(rows, F::HAS_TILES_IN_PLACE) {
                    let y = linear_by::<F>(isa, &tensor, &x, rows, Version::Packed, way);
                    assert_eq!(y, expected, "{format} {isa}, {way:?}, ({rows}, {n}, {blocks})");
                }
            }
            // A minimum is subtracted apart: each of the two terms may be as large as four times a weight's range.
            let has_minima = {
                use WeightFormat::{Q2_K, Q4_1, Q4_K, Q5_1, Q5_K};
                [Q4_1, Q5_1, Q2_K, Q4_K, Q5_K].contains(&format)
            };
            let terms = if has_minima { 4.0 } else { 1.0 };
            // Chains of sixteen products and their sum are rounded, where integers are exact.
            let chain = if format == WeightFormat::FP8 { BLOCK_LEN / 2 + 1 } else { 0 };
            for (at, &y) in expected.iter().enumerate() {
                let (row, column) = (at / n, at % n);
                let (mut sum, mut absolute, mut quantisation) = (0.0, 0.0, 0.0);
                let of_row = floats[row * k..(row + 1) * k].chunks(BLOCK_LEN);
                for (floats, w) in of_row.zip(weights[column * k..(column + 1) * k].chunks(BLOCK_LEN)) {
                    let max = floats.iter().fold(0f32, |max, x| max.max(x.abs()));
                    for (w, x) in w.iter().zip(floats) {
                        let product = f64::from(*w) * f64::from(*x);
                        sum += product;
                        absolute += product.abs();
                        quantisation += f64::from(max) / 254.0 * f64::from(w.abs());
                    }
                }
                let bound =
                    quantisation * 1.001 + terms * (blocks + chain + 2) as f64 * f64::from(f32::EPSILON) * absolute;
                let error = (f64::from(y) - sum).abs();
                assert!(error <= bound, "{format} ({rows}, {n}, {blocks}) at {at}: {y} for {sum}, {error} > {bound}");
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
            for &version in versions::<Q8_0>() {
                let y = linear::<Q8_0>(isa, &tensor, &x, rows, version);
                for (at, y) in y.iter().enumerate() {
                    assert_eq!(y.is_nan(), at / n == 8 || at % n == 17, "{isa}, {version:?}, at {at}");
                    assert!(y.is_nan() || *y == 64.0);
                }
            }
        }
    }

    #[test]
    fn a_code_that_is_no_number_makes_its_column_none() {
        let (rows, n, blocks) = (9, 18, 2);
        for code in [0x7f, 0xff] {
            let mut weights = vec![fp8::Block { scale: f16::ONE, codes: [0x38; BLOCK_LEN] }; n * blocks];
            weights[17 * blocks + 1].codes[5] = code;
            let bytes = bytes::Bytes::copy_from_slice(bytemuck::cast_slice(&weights));
            let tensor = Tensor::new(WeightFormat::FP8, vec![n, blocks * BLOCK_LEN], bytes).unwrap();
            let x = vec![QuantizedBlock::new([1; BLOCK_LEN], 1.0); rows * blocks];
            for isa in Isa::available() {
                for &version in versions::<FP8>() {
                    for (at, y) in linear::<FP8>(isa, &tensor, &x, rows, version).into_iter().enumerate() {
                        assert_eq!(y.is_nan(), at % n == 17, "{isa}, {version:?}, at {at}");
                        assert!(y.is_nan() || y == 64.0 * fp8::UNIT);
                    }
                }
            }
        }
    }
}
