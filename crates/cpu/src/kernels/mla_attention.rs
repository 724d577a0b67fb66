//! `mla_attention`: softmax(q · rowᵀ · scale) · latent numbers of the row, over a paged latent cache, causal; all heads
//! share the rows.
//!
//! Shapes    q and out (tokens, heads · dim) in the latent space, q's turned part (tokens, heads · rope); rows as
//!           [`crate::kv_cache`] lays them out.
//! Order     positions are taken in splits of [`SPLIT`] that begin at multiples of it. Within a split: each score has
//!           sixteen accumulators, lane l of features l, l + 16, … in order, first of the latent numbers, then of the
//!           turned ones, summed by halves; softmax as in [`super::attention`]; each feature of the result is one chain
//!           over positions. Splits are merged in order. So a row's result depends on its position and the cache, and
//!           on nothing else: not on chunks, batch, block length or threads.
//! Bytes     (dim + rope) · element bytes for each visible position, once for all (query, head) rows of a tile: up to
//!           [`TILE_HEADS`] heads, and queries of a prefill until there are [`TILE_ROWS`] rows. A piece of [`PIECE`]
//!           rows stays in the nearest cache while all rows pass over it; a split stays in the next between scores and
//!           sums.
//! Roofline  2 · heads · (2 · dim + rope) flop over (dim + rope) · element bytes: 38 flop a byte for 20 heads of
//!           GLM-4.7-Flash in F16, so that it is bound by multiplications, not by memory.
//! Accuracy  as `attention`.
//! Versions  every level, from one text; `sequential` and `split` as in `attention`.

use std::ops::Range;

use crate::kernels::attention::{SPLIT, TILE_ROWS, load_rows, merge_parts, partial_width, softmax, store_rows};
use crate::kv_cache::{KvElement, LatentPlace};
use crate::shared::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, Words};

/// The most heads of a tile: more read the cache once again.
pub(crate) const TILE_HEADS: usize = 32;

/// Positions that all rows of a tile pass over before the next.
const PIECE: usize = 32;

const _: () = assert!(SPLIT.is_multiple_of(PIECE));

/// Queries in a tile of `heads` heads.
pub(crate) fn tile_queries(heads: usize) -> usize {
    (TILE_ROWS / heads.max(1)).max(1)
}

/// f32 that a worker needs to attend with tiles of `rows` rows: queries, scores, then partial results of one split and
/// of all.
pub(crate) fn scratch_len(rows: usize, layer: &LatentPlace) -> usize {
    rows * (layer.row_len() + SPLIT + 2 * partial_width(layer.dim))
}

/// Consecutive queries of one sequence with some of the heads.
pub(crate) struct Tile<'a, E> {
    pub(crate) cache: &'a SharedSlice<'a, E>,
    pub(crate) layer: &'a LatentPlace,
    /// The sequence's blocks.
    pub(crate) table: &'a [u32],
    /// Heads in the tile.
    pub(crate) heads: usize,
    /// Queries in the tile.
    pub(crate) queries: usize,
    /// The position of the first query.
    pub(crate) first_position: usize,
    pub(crate) scale: f32,
}

impl<E: KvElement> Tile<'_, E> {
    /// (query, head) pairs, query by query.
    pub(crate) fn rows(&self) -> usize {
        self.queries * self.heads
    }

    /// The splits that any row sees.
    pub(crate) fn splits(&self) -> Range<usize> {
        0..(self.first_position + self.queries).div_ceil(SPLIT)
    }

    /// The positions of `split` that `row` sees; empty when none.
    fn seen(&self, row: usize, split: usize) -> Range<usize> {
        let end = self.first_position + row / self.heads + 1;
        let (first, last) = (split * SPLIT, (split + 1) * SPLIT);
        first..end.clamp(first, last)
    }

    /// The rows of the cache from `first` on, before `end`, up to a piece of them.
    #[inline(always)]
    fn piece(&self, first: usize, end: usize) -> Piece<'_, E> {
        let mut piece = Piece { rows: [&[]; PIECE], first, len: (end - first).min(PIECE) };
        for (position, row) in (first..).zip(&mut piece.rows[..piece.len]) {
            let block_len = self.layer.block_len;
            let place = self.layer.row(self.table[position / block_len], position % block_len);
            // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
            *row = unsafe { self.cache.read(place) };
        }
        piece
    }
}

/// Rows of consecutive positions.
struct Piece<'a, E> {
    rows: [&'a [E]; PIECE],
    first: usize,
    len: usize,
}

/// All splits of a tile, in order: the whole of attention for its rows.
pub(crate) struct Sequential<'a, 'b, E> {
    pub(crate) tile: &'b Tile<'a, E>,
    /// (rows, [`LatentPlace::row_len`]): the queries as the rows of the cache lie, what pads them zero.
    pub(crate) q: &'b [f32],
    /// The rest of [`scratch_len`].
    pub(crate) scratch: &'b mut [f32],
}

impl<'b, E: KvElement> Kernel for Sequential<'_, 'b, E> {
    /// Partial results that stand for all positions, row by row, for [`super::attention::finish`].
    type Output = &'b [f32];
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> &'b [f32] {
        let Self { tile, q, scratch } = self;
        let width = partial_width(tile.layer.dim);
        let (all, scratch) = scratch.split_at_mut(tile.rows() * width);
        for split in tile.splits() {
            // Not inlined: the code of one split is there once.
            let one = s.vectorize(OneSplit { tile, split, q, scratch: &mut *scratch });
            for (row, (part, into)) in one.chunks_exact(width).zip(all.chunks_exact_mut(width)).enumerate() {
                match split {
                    0 => into.copy_from_slice(part),
                    _ if tile.seen(row, split).is_empty() => {}
                    _ => merge_parts(s, part, into),
                }
            }
        }
        all
    }
}

/// One split of a tile.
pub(crate) struct OneSplit<'a, 'b, E> {
    pub(crate) tile: &'b Tile<'a, E>,
    pub(crate) split: usize,
    /// As [`Sequential::q`].
    pub(crate) q: &'b [f32],
    /// As [`Sequential::scratch`].
    pub(crate) scratch: &'b mut [f32],
}

impl<'b, E: KvElement> Kernel for OneSplit<'_, 'b, E> {
    /// Partial results for the split's positions, row by row.
    type Output = &'b [f32];
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> &'b [f32] {
        let Self { tile, split, q, scratch } = self;
        let (scores, rest) = scratch.split_at_mut(tile.rows() * SPLIT);
        let one = &mut rest[..tile.rows() * partial_width(tile.layer.dim)];
        attend_split(s, tile, q, split, scores, one);
        one
    }
}

/// Takes the partial result of a row's next split into that of all splits before it.
pub(crate) struct MergeParts<'b> {
    pub(crate) part: &'b [f32],
    pub(crate) into: &'b mut [f32],
}

impl Kernel for MergeParts<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        merge_parts(s, self.part, self.into);
    }
}

/// Partial results of all rows of `tile` over the positions of `split`, into `partials`.
#[inline(always)]
fn attend_split<S: Simd, E: KvElement>(
    s: S,
    tile: &Tile<'_, E>,
    q: &[f32],
    split: usize,
    scores: &mut [f32],
    partials: &mut [f32],
) {
    let width = partial_width(tile.layer.dim);
    let rows = tile.rows();
    let first = split * SPLIT;
    let end = tile.seen(rows - 1, split).end;
    for start in (first..end).step_by(PIECE) {
        score_piece(s, tile, q, &tile.piece(start, end), start - first, scores);
    }
    for row in 0..rows {
        let seen = tile.seen(row, split);
        if seen.is_empty() {
            continue; // Nobody reads its partial result.
        }
        let weights = &mut scores[row * SPLIT..(row + 1) * SPLIT];
        let (max, sum) = softmax(s, weights, 0..seen.len(), tile.scale);
        let (values, state) = partials[row * width..(row + 1) * width].split_at_mut(width - LANES);
        values.fill(0.0);
        (state[0], state[1]) = (max, sum);
    }
    for start in (first..end).step_by(PIECE) {
        weigh_piece(s, tile, &tile.piece(start, end), split, scores, partials);
    }
}

/// q · row of every row of the tile with every row of the piece, from `index` of the split on.
#[inline(always)]
fn score_piece<S: Simd, E: KvElement>(
    s: S,
    tile: &Tile<'_, E>,
    q: &[f32],
    piece: &Piece<'_, E>,
    index: usize,
    scores: &mut [f32],
) {
    let len = tile.layer.row_len();
    let (mut row, rows) = (0, tile.rows());
    while row < rows {
        let q = &q[row * len..];
        let out = &mut scores[row * SPLIT + index..];
        row += match rows - row {
            4.. if S::WIDE => score_rows::<S, E, 4, 4>(s, q, piece, out),
            2.. => score_rows::<S, E, 2, 2>(s, q, piece, out),
            _ => score_rows::<S, E, 1, 2>(s, q, piece, out),
        };
    }
}

/// Scores of `MR` queries, side by side in `q`, with all rows of the piece, `NP` at a time. Returns how many queries
/// that were.
#[inline(always)]
fn score_rows<S: Simd, E: KvElement, const MR: usize, const NP: usize>(
    s: S,
    q: &[f32],
    piece: &Piece<'_, E>,
    out: &mut [f32],
) -> usize {
    let len = piece.rows[0].len();
    let mut queries: [&[[f32; LANES]]; MR] = [&[]; MR];
    for m in 0..MR {
        queries[m] = q[m * len..(m + 1) * len].as_chunks().0;
    }
    let mut position = 0;
    while position + NP <= piece.len {
        score_positions::<S, E, MR, NP>(s, queries, &piece.rows[position..], &mut out[position..]);
        position += NP;
    }
    while position < piece.len {
        score_positions::<S, E, MR, 1>(s, queries, &piece.rows[position..], &mut out[position..]);
        position += 1;
    }
    MR
}

#[inline(always)]
fn score_positions<S: Simd, E: KvElement, const MR: usize, const NP: usize>(
    s: S,
    q: [&[[f32; LANES]]; MR],
    rows: &[&[E]],
    out: &mut [f32],
) {
    let vectors = q[0].len();
    let mut keys: [&[[E; LANES]]; NP] = [&[]; NP];
    for p in 0..NP {
        keys[p] = &rows[p].as_chunks().0[..vectors];
    }
    let mut sums = [[s.splat(0.0); NP]; MR];
    for vector in 0..vectors {
        let mut key = [s.splat(0.0); NP];
        for p in 0..NP {
            key[p] = E::load(s, &keys[p][vector]);
        }
        for m in 0..MR {
            let q = s.load(&q[m][vector]);
            for p in 0..NP {
                sums[m][p] = s.mul_add(q, key[p], sums[m][p]);
            }
        }
    }
    for m in 0..MR {
        for p in 0..NP {
            out[m * SPLIT + p] = s.sum(sums[m][p]);
        }
    }
}

/// Adds weight · latent numbers to the partial results of all rows.
///
/// Queries of a tile see different positions at the end; what one does not see is never multiplied for it, not even by
/// zero, since the row of a later token may be NaN.
#[inline(always)]
fn weigh_piece<S: Simd, E: KvElement>(
    s: S,
    tile: &Tile<'_, E>,
    piece: &Piece<'_, E>,
    split: usize,
    weights: &[f32],
    partials: &mut [f32],
) {
    let index = piece.first - split * SPLIT;
    for query in 0..tile.queries {
        let mut row = query * tile.heads;
        let end = row + tile.heads;
        let seen = tile.seen(row, split).len().saturating_sub(index).min(piece.len);
        let rows = &piece.rows[..seen];
        while row < end && seen > 0 {
            let weights = &weights[row * SPLIT + index..];
            let partials = &mut partials[row * partial_width(tile.layer.dim)..];
            row += match end - row {
                8.. if S::WIDE => weigh_rows::<S, E, 8>(s, tile.layer, rows, weights, partials),
                4.. => weigh_rows::<S, E, 4>(s, tile.layer, rows, weights, partials),
                2.. => weigh_rows::<S, E, 2>(s, tile.layer, rows, weights, partials),
                _ => weigh_rows::<S, E, 1>(s, tile.layer, rows, weights, partials),
            };
        }
    }
}

/// Adds weight · latent numbers to the partial results of `MR` rows, position after position. Returns how many rows
/// that were.
#[inline(always)]
fn weigh_rows<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    layer: &LatentPlace,
    rows: &[&[E]],
    weights: &[f32],
    partials: &mut [f32],
) -> usize {
    let mut w: [&[f32]; MR] = [&[]; MR];
    for m in 0..MR {
        w[m] = &weights[m * SPLIT..][..rows.len()];
    }
    let (mut feature, end) = (0, layer.rope_start());
    while S::WIDE && feature + 2 * LANES <= end {
        weigh_features::<S, E, MR, 2>(s, w, rows, feature, partial_width(layer.dim), partials);
        feature += 2 * LANES;
    }
    while feature < end {
        weigh_features::<S, E, MR, 1>(s, w, rows, feature, partial_width(layer.dim), partials);
        feature += LANES;
    }
    MR
}

/// 16 · `D` features from `feature` on, of `MR` rows.
#[inline(always)]
fn weigh_features<S: Simd, E: KvElement, const MR: usize, const D: usize>(
    s: S,
    weights: [&[f32]; MR],
    rows: &[&[E]],
    feature: usize,
    width: usize,
    partials: &mut [f32],
) {
    let mut sums = load_rows::<S, MR, D>(s, &partials[feature..], width);
    for (position, row) in rows.iter().enumerate() {
        let (vectors, _) = row[feature..][..D * LANES].as_chunks::<LANES>();
        let mut value = [s.splat(0.0); D];
        for d in 0..D {
            value[d] = E::load(s, &vectors[d]);
        }
        for m in 0..MR {
            let weight = s.splat(weights[m][position]);
            for d in 0..D {
                sums[m][d] = s.mul_add(weight, value[d], sums[m][d]);
            }
        }
    }
    store_rows(s, &sums, &mut partials[feature..], width);
}

#[cfg(test)]
mod tests {
    use half::f16;
    use plan::{KvFormat, KvLayout, LatentLayer};
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::kernels::attention::finish;
    use crate::kv_cache::{place_layers, write_row};

    #[derive(Clone, Copy, Debug)]
    struct Case {
        heads: usize,
        dim: usize,
        rope: usize,
        block_len: usize,
        /// Positions before the queries.
        first: usize,
        queries: usize,
    }

    const SCALE: f32 = 0.25;

    /// Results of all rows, in tiles of `queries` queries, the splits in order or each by itself.
    fn attend<E: KvElement>(
        isa: Isa,
        case: Case,
        rows: &[Vec<f32>],
        q: &[f32],
        queries: usize,
        apart: bool,
    ) -> Vec<f32> {
        let Case { heads, dim, rope, block_len, first, .. } = case;
        let num_blocks = rows.len().div_ceil(block_len);
        let layout = KvLayout { format: KvFormat::F32, block_len, num_blocks };
        let (places, len) = place_layers(&[LatentLayer { dim, rope }.into()], layout).unwrap();
        let layer = places[0].latent();
        let mut cache = vec![E::from_f32(0.0); len];
        let cache = &SharedSlice::new(&mut cache);
        let table: Vec<u32> = (0..num_blocks as u32).rev().collect();
        for position in 0..num_blocks * block_len {
            // What nobody wrote must not matter.
            let row = rows.get(position).cloned().unwrap_or_else(|| vec![f32::NAN; dim + rope]);
            let slot = (table[position / block_len], position % block_len);
            // SAFETY: one thread.
            unsafe { write_row(cache, layer, slot, row.split_at(dim)) };
        }
        let width = partial_width(dim);
        let mut out = Vec::new();
        for (index, q) in q.chunks(queries * heads * (dim + rope)).enumerate() {
            let first_position = first + index * queries;
            let queries = q.len() / (heads * (dim + rope));
            let tile = &Tile { cache, layer, table: &table, heads, queries, first_position, scale: SCALE };
            let mut padded = vec![0.0; tile.rows() * layer.row_len()];
            for (q, padded) in q.chunks_exact(dim + rope).zip(padded.chunks_exact_mut(layer.row_len())) {
                padded[..dim].copy_from_slice(&q[..dim]);
                padded[layer.rope_start()..][..rope].copy_from_slice(&q[dim..]);
            }
            let scratch = &mut vec![f32::NAN; scratch_len(tile.rows(), layer)];
            let q = padded.as_slice();
            let mut all = vec![f32::NAN; tile.rows() * width];
            if apart {
                for split in tile.splits() {
                    let one = isa.run(OneSplit { tile, split, q, scratch: &mut *scratch });
                    for (row, (part, into)) in one.chunks_exact(width).zip(all.chunks_exact_mut(width)).enumerate() {
                        match split {
                            0 => into.copy_from_slice(part),
                            _ if tile.seen(row, split).is_empty() => {}
                            _ => isa.run(MergeParts { part, into }),
                        }
                    }
                }
            } else {
                all.copy_from_slice(isa.run(Sequential { tile, q, scratch }));
            }
            for partial in all.chunks_exact(width) {
                let start = out.len();
                out.resize(start + dim, 0.0);
                finish(partial, &mut out[start..]);
            }
        }
        out
    }

    /// The same in f64, as a textbook has it.
    fn expected(case: Case, rows: &[Vec<f32>], q: &[f32]) -> Vec<f64> {
        let mut out = Vec::new();
        for (row, q) in q.chunks_exact(case.dim + case.rope).enumerate() {
            let seen = &rows[..=case.first + row / case.heads];
            let product = |k: &[f32]| -> f64 { q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum() };
            let scores: Vec<f64> = seen.iter().map(|row| product(row) * f64::from(SCALE)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..case.dim).map(|feature| {
                let products = seen.iter().zip(&weights).map(|(row, w)| f64::from(row[feature]) * w);
                products.sum::<f64>() / sum
            }));
        }
        out
    }

    fn check<E: KvElement>(case: Case, rng: &mut Rng) {
        let width = case.dim + case.rope;
        // Numbers that the cache holds exactly.
        let rows: Vec<Vec<f32>> = (0..case.first + case.queries)
            .map(|_| (0..width).map(|_| E::from_f32(rng.normal()).widen()).collect())
            .collect();
        let q: Vec<f32> = (0..case.queries * case.heads * width).map(|_| rng.normal()).collect();
        let plain = attend::<E>(Isa::scalar(), case, &rows, &q, 1, false);
        for (found, expected) in plain.iter().zip(expected(case, &rows, &q)) {
            // Weights are at most one, and few values are beyond four.
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{case:?}: {found} for {expected}");
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for isa in Isa::available() {
            for queries in [1, 3, tile_queries(case.heads), case.queries] {
                let found = attend::<E>(isa, case, &rows, &q, queries, false);
                assert!(bits(&found) == bits(&plain), "{isa}, {queries} queries at once, {case:?}");
            }
            let found = attend::<E>(isa, case, &rows, &q, case.queries, true);
            assert!(bits(&found) == bits(&plain), "{isa}, splits apart, {case:?}");
        }
    }

    #[test]
    fn every_tile_and_level_gives_the_same_bits_near_the_textbook() {
        let mut rng = Rng::new(13);
        for (heads, dim, rope, block_len, first, queries) in [
            (1, 1, 2, 16, 0, 1),
            (7, 10, 6, 32, 0, 13),
            (5, 32, 16, 32, 250, 9),
            (3, 33, 8, 16, 60, 21),
            (20, 48, 20, 48, 511, 4),
            (1, 24, 10, 5, 37, 70),
            (33, 16, 4, 7, 30, 3),
        ] {
            let case = Case { heads, dim, rope, block_len, first, queries };
            check::<f32>(case, &mut rng);
            check::<f16>(case, &mut rng);
        }
    }
}
