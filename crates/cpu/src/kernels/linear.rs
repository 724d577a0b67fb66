//! `linear`: y[m, n] = x[m, k] · W[n, k]ᵀ (+ bias) (+ residual), with W in F32, F16 or BF16, x and y in f32.
//!
//! Shapes    x (m, k) row-major; W (n, k) row-major; y (m, n). Any k, n and m.
//! Layout    W as the file has it, mapped. Sixteen weights are widened in registers as they are read.
//! Bytes     n·k·{4, 2} for W: once for up to [`TILE_ROWS`] rows, from cache for more; x and y stay in cache.
//!           (4864, 896) in F16: 8.7 MB.
//! Roofline  m = 1: 2 flop over 2 bytes, bound by memory. m >= 16: bound by multiplications.
//! Accuracy  f32 accumulation in 16 partial sums: |error| <= (k / 16 + 6) · ε · Σ|w·x| against the f64 reference.
//!           Where levels round activations that meet BF16 weights, those are in [`super::linear_tiles`].
//! Versions  every level, from one text; the register tile is [`TILE_ROWS`] × [`TILE_COLUMNS`] outputs, or
//!           [`NARROW_ROWS`] × [`NARROW_COLUMNS`] where a vector takes more than one register. The tile does not change
//!           an output's bits, see [`crate::kernels`].

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::ops::Range;

use half::{bf16, f16};

use crate::isa::reads_one_stream_best;
use crate::shared::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, Words};

/// Rows of x in a register tile: 6 × 4 accumulators, four weights and one x are 29 of 32 registers.
pub(crate) const TILE_ROWS: usize = 6;
/// Rows of W in a register tile.
const TILE_COLUMNS: usize = 4;
/// Rows of x in a register tile where a vector takes two of 16 registers (AVX2) or four of 32 (NEON): 3 × 2 fill 12 or 24.
const NARROW_ROWS: usize = 3;
/// Rows of W in it.
const NARROW_COLUMNS: usize = 2;

/// Bytes of W that are asked for ahead of use while few rows of x make the weights' way from memory the bound, at least; else
/// as many as the rows of a tile have. What is asked for is one stream in the order of memory, whatever rows are multiplied
/// at once. Measured on Zen 4, four rows of 1,792 bytes, one thread: without 13 GB/s, 1 KiB ahead in each row the same, 8 KiB
/// ahead in the stream 30, of 31 that are there. With rows of 9,728 bytes 8 KiB ahead is 26, a tile ahead 30.
const PREFETCH_BYTES: usize = 8 << 10;
/// Bytes of a row of W up to which a row of x meets one at a time, where that is read faster ([`reads_one_stream_best`]), and
/// nothing is asked for ahead. With longer rows x does not stay in the first-level cache beside them. Measured on Zen 4, in
/// F16 and BF16: 28 GB/s, and four rows at once 24; with rows of 9,728 bytes 20, and four at once 22.
const BY_ROWS_MAX_BYTES: usize = 4096;

/// Features of a piece of k: six rows of it as f32 take 24 KiB, half of the first-level cache.
const PIECE: usize = 1024;

/// Rows of x in a tile up to which weights are asked for ahead.
const PREFETCH_MAX_ROWS: usize = 4;

/// A weight that widens to f32 exactly.
pub(crate) trait Widen: bytemuck::Pod {
    /// Sixteen weights.
    fn load<S: Simd>(s: S, weights: &[Self; LANES]) -> S::F32;
    /// One weight.
    fn widen(self) -> f32;

    /// Fewer than sixteen weights, zeros after.
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, weights: &[Self]) -> S::F32 {
        let mut padded = [0.0; LANES];
        padded.iter_mut().zip(weights).for_each(|(lane, weight)| *lane = weight.widen());
        s.load(&padded)
    }
}

impl Widen for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, weights: &[f32; LANES]) -> S::F32 {
        s.load(weights)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Widen for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, weights: &[f16; LANES]) -> S::F32 {
        s.load_f16(weights)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Widen for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, weights: &[bf16; LANES]) -> S::F32 {
        s.load_bf16(weights)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// Where the results of a projection go, and what is added to them.
#[derive(Clone, Copy)]
pub(crate) struct Output<'a> {
    /// What `start` and `residual` count in.
    pub(crate) values: &'a SharedSlice<'a, f32>,
    /// Where y[0, 0] is.
    pub(crate) start: usize,
    /// From a row of y to the next.
    pub(crate) stride: usize,
    /// The column that stands at `start`.
    pub(crate) first_column: usize,
    /// (n,).
    pub(crate) bias: Option<&'a [f32]>,
    /// Where a matrix shaped like y begins that is added to it.
    pub(crate) residual: Option<usize>,
    /// Which row of y each row of x makes, where that is another: the rows of x that one expert multiplies.
    pub(crate) rows: Option<&'a [u32]>,
}

impl Output<'_> {
    /// Finishes and writes y[row, column..column + sums.len()].
    #[inline(always)]
    pub(crate) fn put<const N: usize>(&self, row: usize, column: usize, mut sums: [f32; N]) {
        if let Some(bias) = self.bias {
            let bias: &[f32; N] = bias[column..column + N].as_array().expect("N long");
            for i in 0..N {
                sums[i] += bias[i];
            }
        }
        let row = self.rows.map_or(row, |rows| rows[row] as usize);
        let place = row * self.stride + column - self.first_column;
        if let Some(residual) = self.residual {
            // SAFETY: written before the last barrier, and by nobody in this op: its result lies elsewhere.
            let residual = unsafe { self.values.read(residual + place..residual + place + N) };
            for i in 0..N {
                sums[i] += residual[i];
            }
        }
        // SAFETY: these columns are this worker's alone in this op, and the slice does not outlive the statement.
        unsafe { self.values.write(self.start + place..self.start + place + N) }.copy_from_slice(&sums);
    }

    /// As [`Output::put`], for any number of sums.
    #[inline(always)]
    pub(crate) fn put_row(&self, row: usize, column: usize, sums: &[f32]) {
        let (vectors, rest) = sums.as_chunks::<LANES>();
        for (index, sums) in vectors.iter().enumerate() {
            self.put(row, column + index * LANES, *sums);
        }
        for (index, &sum) in rest.iter().enumerate() {
            self.put(row, column + vectors.len() * LANES + index, [sum]);
        }
    }
}

/// Some columns of a projection, for all rows.
pub(crate) struct LinearFloat<'a, W> {
    /// Rows of W from `first_row` on, k features each.
    pub(crate) weights: &'a [W],
    pub(crate) first_row: usize,
    /// (m, k).
    pub(crate) x: &'a [f32],
    /// Rows of x.
    pub(crate) rows: usize,
    /// Features of a row of x.
    pub(crate) k: usize,
    /// Which rows of W.
    pub(crate) columns: Range<usize>,
    pub(crate) output: Output<'a>,
    /// Room for [`sums_len`] sums between pieces of k.
    pub(crate) sums: &'a mut [f32],
}

/// Rows of x from which it pays to widen F16 and BF16 weights once, before all tiles of rows pass over them, and not in
/// each tile.
pub(crate) const WIDEN_MIN_ROWS: usize = 4 * TILE_ROWS;

/// Weights as f32, exactly: `out` has one for each.
pub(crate) struct WidenAll<'a, W> {
    pub(crate) weights: &'a [W],
    pub(crate) out: &'a mut [f32],
}

impl<W: Widen> Kernel for WidenAll<'_, W> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (weights, rest) = self.weights.as_chunks();
        let (out, out_rest) = self.out.as_chunks_mut();
        for (weights, out) in weights.iter().zip(out) {
            s.store(W::load(s, weights), out);
        }
        out_rest.iter_mut().zip(rest).for_each(|(out, weight)| *out = weight.widen());
    }
}

/// f32 that `columns` columns need between pieces of k features.
pub(crate) fn sums_len(columns: usize, k: usize) -> usize {
    if k > PIECE { TILE_ROWS * columns.next_multiple_of(TILE_COLUMNS) * LANES } else { 0 }
}

impl<W: Widen> Kernel for LinearFloat<'_, W> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let rows = self.rows;
        let mut row = 0;
        if S::WIDE {
            while rows - row >= TILE_ROWS {
                self.row_tile::<S, TILE_ROWS, TILE_COLUMNS>(s, row);
                row += TILE_ROWS;
            }
            if rows - row >= 4 {
                self.row_tile::<S, 4, TILE_COLUMNS>(s, row);
                row += 4;
            }
            if rows - row >= 2 {
                self.row_tile::<S, 2, TILE_COLUMNS>(s, row);
                row += 2;
            }
        } else {
            while rows - row >= NARROW_ROWS {
                self.row_tile::<S, NARROW_ROWS, NARROW_COLUMNS>(s, row);
                row += NARROW_ROWS;
            }
        }
        while row < rows {
            self.row_tile::<S, 1, TILE_COLUMNS>(s, row);
            row += 1;
        }
    }
}

impl<W: Widen> LinearFloat<'_, W> {
    /// All columns for `MR` rows, k in pieces: a piece of x stays in the first-level cache while the columns pass, whose
    /// weights stay in the second. Few rows wait for memory, and take k in one piece, so that weights are one stream.
    #[inline(always)]
    fn row_tile<S: Simd, const MR: usize, const NR: usize>(&mut self, s: S, row: usize) {
        let k = self.k;
        let is_by_rows = MR == 1 && size_of::<W>() * k <= BY_ROWS_MAX_BYTES && reads_one_stream_best();
        let piece_len = if MR <= PREFETCH_MAX_ROWS { k } else { PIECE };
        let mut start = 0;
        loop {
            let piece = start..(start + piece_len).min(k);
            let mut column = self.columns.start;
            while !is_by_rows && column + NR <= self.columns.end {
                self.piece::<S, MR, NR>(s, row, column, piece.clone());
                column += NR;
            }
            while column < self.columns.end {
                self.piece::<S, MR, 1>(s, row, column, piece.clone());
                column += 1;
            }
            start = piece.end;
            if start == k {
                break;
            }
        }
    }

    /// Adds a piece of k to the sums of a tile, and writes them where it is the last.
    #[inline(always)]
    fn piece<S: Simd, const MR: usize, const NR: usize>(
        &mut self,
        s: S,
        row: usize,
        column: usize,
        piece: Range<usize>,
    ) {
        let mut sums = [[s.splat(0.0); NR]; MR];
        let kept = (column - self.columns.start) * TILE_ROWS * LANES;
        let kept = kept..kept + NR * MR * LANES;
        if piece.start > 0 {
            let (kept, _) = self.sums[kept.clone()].as_chunks();
            for m in 0..MR {
                for n in 0..NR {
                    sums[m][n] = s.load(&kept[m * NR + n]);
                }
            }
        }
        let mut x: [&[f32]; MR] = [&[]; MR];
        for m in 0..MR {
            let first = (row + m) * self.k;
            x[m] = &self.x[first + piece.start..first + piece.end];
        }
        let mut w: [&[W]; NR] = [&[]; NR];
        for n in 0..NR {
            let first = (column + n - self.first_row) * self.k;
            w[n] = &self.weights[first + piece.start..first + piece.end];
        }
        let sums = dot_tile(s, x, w, sums);
        if piece.end < self.k {
            let (kept, _) = self.sums[kept].as_chunks_mut();
            for m in 0..MR {
                for n in 0..NR {
                    s.store(sums[m][n], &mut kept[m * NR + n]);
                }
            }
            return;
        }
        for m in 0..MR {
            let mut out = [0.0; NR];
            if NR == 4 {
                let four = s.sum_4([sums[m][0], sums[m][1 % NR], sums[m][2 % NR], sums[m][3 % NR]]);
                out.copy_from_slice(&four[..NR]);
            } else {
                for n in 0..NR {
                    out[n] = s.sum(sums[m][n]);
                }
            }
            self.output.put(row + m, column, out);
        }
    }
}

/// sums[m][n] + x[m] · w[n], lane by lane; all rows are equally long, and of few rows of x those of w lie one behind the other.
#[inline(always)]
fn dot_tile<S: Simd, W: Widen, const MR: usize, const NR: usize>(
    s: S,
    x: [&[f32]; MR],
    w: [&[W]; NR],
    mut sums: [[S::F32; NR]; MR],
) -> [[S::F32; NR]; MR] {
    let k = x[0].len();
    let whole = k / LANES * LANES;
    // Cut to one known length, so that the loop needs no checks.
    let mut x_whole: [&[f32]; MR] = [&[]; MR];
    let mut w_whole: [&[W]; NR] = [&[]; NR];
    for m in 0..MR {
        x_whole[m] = &x[m][..whole];
    }
    for n in 0..NR {
        w_whole[n] = &w[n][..whole];
    }
    let ahead = w[0].as_ptr().wrapping_add((NR * k).max(PREFETCH_BYTES / size_of::<W>()));
    let lines = (NR * LANES * size_of::<W>()).div_ceil(64);
    let mut i = 0;
    while i < whole {
        if MR <= PREFETCH_MAX_ROWS && NR > 1 {
            // What the rows take in the order of memory when they are at i.
            let at = ahead.wrapping_add(i * NR).cast::<u8>();
            for line in 0..lines {
                s.prefetch(at.wrapping_add(64 * line));
            }
        }
        let mut weights = [s.splat(0.0); NR];
        for n in 0..NR {
            weights[n] = W::load(s, w_whole[n][i..i + LANES].as_array().expect("sixteen long"));
        }
        for m in 0..MR {
            for n in 0..NR {
                // Lane l takes the products k = l, l + 16, …, each by one fused multiply-add.
                let x = s.load(x_whole[m][i..i + LANES].as_array().expect("sixteen long"));
                sums[m][n] = s.mul_add(weights[n], x, sums[m][n]);
            }
        }
        i += LANES;
    }
    if whole < k {
        for n in 0..NR {
            let weights = W::load_partial(s, &w[n][whole..]);
            for m in 0..MR {
                sums[m][n] = s.mul_add(weights, s.load_partial(&x[m][whole..]), sums[m][n]);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use testing::random::Rng;

    use super::*;
    use crate::Isa;

    /// y of `rows` rows, on one level.
    fn linear<W: Widen>(isa: Isa, weights: &[W], x: &[f32], (rows, n, k): (usize, usize, usize)) -> Vec<f32> {
        let mut y = vec![f32::INFINITY; rows * n];
        let values = &SharedSlice::new(&mut y);
        let output = Output { values, start: 0, stride: n, first_column: 0, bias: None, residual: None, rows: None };
        let mut sums = vec![f32::NAN; sums_len(n, k)];
        isa.run(LinearFloat { weights, first_row: 0, x, rows, k, columns: 0..n, output, sums: &mut sums });
        y
    }

    fn check<W: Widen + PartialEq + std::fmt::Debug>(pack: fn(f32) -> W, magnitude: f32) {
        let mut rng = Rng::new(1);
        for k in [1, 2, 15, 16, 17, 31, 32, 33, 100, PIECE, 2 * PIECE + 5] {
            for (rows, n) in [(1, 1), (1, 9), (2, 5), (3, 4), (4, 7), (7, 3), (13, 6), (8, 8)] {
                let weights: Vec<W> = (0..n * k).map(|_| pack(rng.normal() * magnitude)).collect();
                let x: Vec<f32> = (0..rows * k).map(|_| rng.normal() * magnitude).collect();
                let expected = linear(Isa::scalar(), &weights, &x, (rows, n, k));
                for isa in Isa::available() {
                    let y = linear(isa, &weights, &x, (rows, n, k));
                    assert_eq!(y, expected, "{isa} ({rows}, {n}, {k})");
                    for row in 0..rows {
                        let alone = linear(isa, &weights, &x[row * k..(row + 1) * k], (1, n, k));
                        assert_eq!(y[row * n..(row + 1) * n], alone, "{isa} row {row} of ({rows}, {n}, {k})");
                    }
                }
                for (at, &y) in expected.iter().enumerate() {
                    let (row, column) = (at / n, at % n);
                    let products =
                        (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(weights[column * k + i].widen()));
                    let (sum, absolute) = products.fold((0.0, 0.0), |(sum, abs), p| (sum + p, abs + p.abs()));
                    // The header's bound, and the spacing of denormals for each rounding.
                    let bound =
                        (k / LANES + 6) as f64 * f64::from(f32::EPSILON) * absolute + (k + 2 * LANES) as f64 * 1e-45;
                    assert!((f64::from(y) - sum).abs() <= bound, "({rows}, {n}, {k}) at {at}: {y} for {sum}");
                }
            }
        }
    }

    #[test]
    fn every_shape_is_within_the_bound_and_the_same_bits_alone_and_at_every_level() {
        for magnitude in [1.0, 100.0, 1e-3] {
            check::<f32>(|w| w, magnitude);
            check::<f16>(f16::from_f32, magnitude);
            check::<bf16>(bf16::from_f32, magnitude);
        }
        // Products of denormals, and sums near the largest number.
        check::<f32>(|w| w, 1e-22);
        check::<f32>(|w| w, 1e18);
        check::<f16>(f16::from_f32, 1e-6);
    }

    #[test]
    fn nan_stays_in_its_row_and_its_column() {
        let (rows, n, k) = (7, 6, 33);
        let mut weights = vec![1f32; n * k];
        let mut x = vec![1f32; rows * k];
        weights[2 * k + 32] = f32::NAN;
        x[5 * k + 3] = f32::NAN;
        for isa in Isa::available() {
            let y = linear(isa, &weights, &x, (rows, n, k));
            for (at, y) in y.iter().enumerate() {
                assert_eq!(y.is_nan(), at / n == 5 || at % n == 2, "{isa} at {at}");
            }
        }
    }

    #[test]
    fn bias_and_residual_are_added_in_order() {
        let weights = [2f32; 3];
        let mut values = vec![1.0, 10.0, 20.0, 30.0, 0.0, 0.0, 0.0];
        let shared = &SharedSlice::new(&mut values);
        let bias = Some(&[0.5, 0.25, 0.125][..]);
        let output =
            Output { values: shared, start: 4, stride: 3, first_column: 0, bias, residual: Some(1), rows: None };
        let x = &[3.0];
        let sums = &mut [];
        Isa::best().run(LinearFloat { weights: &weights, first_row: 0, x, rows: 1, k: 1, columns: 0..3, output, sums });
        assert_eq!(values[4..], [16.5, 26.25, 36.125]);
    }
}
