//! `attention`: softmax(q · kᵀ · scale) · v over a paged cache, causal, grouped heads, optional sliding window.
//!
//! Shapes    q, out (tokens, heads · head_dim); keys and values as [`crate::kv_cache`] lays them out.
//! Order     positions are taken in splits of [`SPLIT`] that begin at multiples of it. Within a split: each score is one
//!           chain over features; the maximum; weights exp(score - max) and their sum, lane = position % 16; each
//!           feature of the result one chain over positions. Splits are merged in order by their maxima. So a row's
//!           result depends on its position and the cache, and on nothing else: not on chunks, batch, block length or
//!           threads.
//! Bytes     2 · kv_heads · head_dim · element bytes for each visible position, once for all query heads of a kv head and
//!           for up to [`TILE_ROWS`] (query, head) rows of a prefill, which are made f32 once for all of these.
//! Roofline  4 · head_dim · group flop over 4 · head_dim bytes (F16): bound by memory only for small groups.
//! Accuracy  scores to head_dim · ε · Σ|q·k|, weights to that plus 3 ε, the sum and the result to kv_len · ε, plus F16
//!           rounding of the cache where it is F16.
//! Versions  every level, from one text. `sequential`: a tile of rows takes its splits one after another. `split`: splits
//!           of a row go to different workers and are merged after a barrier; for decoding few rows.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::ops::Range;

use crate::kernels::linear::Widen;
use crate::kv_cache::{KvElement, LayerPlace};
use crate::memory::LINE;
use crate::shared::SharedSlice;
use crate::simd::{Kernel, LANES, Simd, Words};

/// Positions in a split. Scores of a tile fit the second-level cache.
pub(crate) const SPLIT: usize = 256;

/// Rows, that is pairs of a query and a head, that read keys and values together; more only when a group has more.
pub(crate) const TILE_ROWS: usize = 64;

/// Queries in a tile whose kv head serves `group` heads: fours, where there are as many, so that rows divide into those that
/// registers hold.
pub(crate) fn tile_queries(group: usize) -> usize {
    match TILE_ROWS / group.max(1) {
        queries @ 4.. => queries / 4 * 4,
        queries => queries.max(1),
    }
}

/// f32 in a row's partial result: the features padded to whole vectors, then maximum and sum.
pub(crate) fn partial_width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + LANES
}

/// f32 that a worker needs to attend with tiles of `rows` rows: partial results of all splits, then what one split needs, which
/// is scores, its partial results, and keys or values of a piece.
pub(crate) fn scratch_len(rows: usize, head_dim: usize) -> usize {
    rows * (SPLIT + 2 * partial_width(head_dim)) + piece_len(head_dim)
}

/// Rows from which it pays to make f32 of keys and values once, before all rows pass over them: fewer pass over them where
/// they lie, once or twice.
const PIECE_MIN_ROWS: usize = 16;

/// Positions whose keys, and then values, are made f32 together.
const PIECE: usize = PIECE_VECTORS * LANES;

/// Vectors of positions in a piece.
const PIECE_VECTORS: usize = 4;

const _: () = assert!(SPLIT.is_multiple_of(PIECE));

/// f32 of a piece.
fn piece_len(head_dim: usize) -> usize {
    PIECE * head_dim.next_multiple_of(LANES)
}

/// Consecutive queries of one sequence with the heads of one kv head.
pub(crate) struct Tile<'a, E> {
    pub(crate) cache: &'a SharedSlice<'a, E>,
    pub(crate) layer: &'a LayerPlace,
    pub(crate) kv_head: usize,
    /// The sequence's blocks.
    pub(crate) table: &'a [u32],
    /// (queries, heads · head_dim) from the tile's first query on.
    pub(crate) q: &'a [f32],
    /// From a query to the next: heads · head_dim.
    pub(crate) q_stride: usize,
    /// The query heads that read the kv head.
    pub(crate) heads: Range<usize>,
    /// Queries in the tile.
    pub(crate) queries: usize,
    /// The position of the first query.
    pub(crate) first_position: usize,
    pub(crate) scale: f32,
    pub(crate) window: Option<usize>,
}

impl<E> Tile<'_, E> {
    /// (query, head) pairs, query by query.
    pub(crate) fn rows(&self) -> usize {
        self.queries * self.heads.len()
    }

    /// The splits that any row sees.
    pub(crate) fn splits(&self) -> Range<usize> {
        self.visible(0).start / SPLIT..self.kv_len().div_ceil(SPLIT)
    }

    /// Positions that the last query sees.
    fn kv_len(&self) -> usize {
        self.first_position + self.queries
    }

    /// The positions that `row` sees.
    fn visible(&self, row: usize) -> Range<usize> {
        let position = self.first_position + row / self.heads.len();
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        first..position + 1
    }

    /// The positions of `split` that `row` sees; empty when none.
    fn visible_in(&self, row: usize, split: usize) -> Range<usize> {
        let visible = self.visible(row);
        let (first, end) = (split * SPLIT, (split + 1) * SPLIT);
        visible.start.clamp(first, end)..visible.end.clamp(first, end)
    }

    /// The positions of `split` that some row sees.
    fn visible_to_some(&self, split: usize) -> Range<usize> {
        self.visible_in(0, split).start..self.visible_in(self.rows() - 1, split).end
    }

    /// The queries of `MR` rows.
    #[inline(always)]
    fn queries_from<const MR: usize>(&self, row: usize) -> [&[f32]; MR] {
        let mut queries: [&[f32]; MR] = [&[]; MR];
        for m in 0..MR {
            queries[m] = self.query(row + m);
        }
        queries
    }

    fn query(&self, row: usize) -> &[f32] {
        let head = self.heads.start + row % self.heads.len();
        let start = row / self.heads.len() * self.q_stride + head * self.layer.head_dim;
        &self.q[start..start + self.layer.head_dim]
    }
}

/// All splits of a tile, in order: the whole of attention for its rows.
pub(crate) struct Sequential<'a, 'b, E> {
    pub(crate) tile: &'b Tile<'a, E>,
    /// [`scratch_len`].
    pub(crate) scratch: &'b mut [f32],
}

impl<'b, E: KvElement> Kernel for Sequential<'_, 'b, E> {
    /// Partial results that stand for all positions, row by row, for [`finish`].
    type Output = &'b [f32];
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> &'b [f32] {
        let Self { tile, scratch } = self;
        let width = partial_width(tile.layer.head_dim);
        let (all, scratch) = scratch.split_at_mut(tile.rows() * width);
        for split in tile.splits() {
            // Not inlined: the code of one split is there once.
            let one = s.vectorize(OneSplit { tile, split, scratch: &mut *scratch });
            for (row, (part, into)) in one.chunks_exact(width).zip(all.chunks_exact_mut(width)).enumerate() {
                merge_split(s, tile, row, split, part, into);
            }
        }
        all
    }
}

/// One split of a tile.
pub(crate) struct OneSplit<'a, 'b, E> {
    pub(crate) tile: &'b Tile<'a, E>,
    pub(crate) split: usize,
    /// [`scratch_len`].
    pub(crate) scratch: &'b mut [f32],
}

impl<'b, E: KvElement> Kernel for OneSplit<'_, 'b, E> {
    /// Partial results for the split's positions, row by row.
    type Output = &'b [f32];
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> &'b [f32] {
        let Self { tile, split, scratch } = self;
        let (scores, rest) = scratch.split_at_mut(tile.rows() * SPLIT);
        let (one, piece) = rest.split_at_mut(tile.rows() * partial_width(tile.layer.head_dim));
        attend_split(s, tile, split, scores, one, piece);
        one
    }
}

/// Takes the partial result of one row's `split` into that of all splits before it, `into`.
pub(crate) struct MergeSplit<'a, 'b, E> {
    pub(crate) tile: &'b Tile<'a, E>,
    pub(crate) row: usize,
    pub(crate) split: usize,
    pub(crate) part: &'b [f32],
    pub(crate) into: &'b mut [f32],
}

impl<E: KvElement> Kernel for MergeSplit<'_, '_, E> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        merge_split(s, self.tile, self.row, self.split, self.part, self.into);
    }
}

/// The result of a row whose partial result covers all positions: weighted values over the sum of weights.
pub(crate) fn finish(partial: &[f32], out: &mut [f32]) {
    let sum = partial[partial.len() - LANES + 1];
    scale(partial, 1.0 / sum, out);
}

/// `out` of the values of a partial result.
#[inline(always)]
fn scale(partial: &[f32], factor: f32, out: &mut [f32]) {
    for (out, value) in out.iter_mut().zip(partial) {
        *out = value * factor;
    }
}

/// As [`finish`], of a head with a sink: a logit that joins the softmax and weighs nothing.
pub(crate) struct FinishWithSink<'a> {
    pub(crate) partial: &'a [f32],
    pub(crate) sink: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for FinishWithSink<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { partial, sink, out } = self;
        let state = partial.len() - LANES;
        let (max, sum) = (partial[state], partial[state + 1]);
        let top = max.max(sink);
        let mut exponents = [0.0; LANES];
        (exponents[0], exponents[1]) = (max - top, sink - top);
        s.store(super::math::exp(s, s.load(&exponents)), &mut exponents);
        let [rescaled, of_sink, ..] = exponents;
        scale(partial, rescaled / (sum * rescaled + of_sink), out);
    }
}

/// Runs the function for as many of the rows that are left as registers hold: the sums of each are a chain of their own, and
/// a core needs about eight chains to be busy. Whatever the number of heads in a group, its keys pass once or twice.
macro_rules! by_rows {
    ($simd:ident, $left:expr, $run:ident::<$s:ident, $e:ident>($($argument:expr),*)) => {
        match $left.min(if $simd::WIDE { 8 } else { 4 }) {
            8 => $run::<$s, $e, 8>($($argument),*),
            7 => $run::<$s, $e, 7>($($argument),*),
            6 => $run::<$s, $e, 6>($($argument),*),
            5 => $run::<$s, $e, 5>($($argument),*),
            4 => $run::<$s, $e, 4>($($argument),*),
            3 => $run::<$s, $e, 3>($($argument),*),
            2 => $run::<$s, $e, 2>($($argument),*),
            _ => $run::<$s, $e, 1>($($argument),*),
        }
    };
}

/// Partial results of all rows of `tile` over the positions of `split`, into `partials`.
#[inline(always)]
fn attend_split<S: Simd, E: KvElement>(
    s: S,
    tile: &Tile<'_, E>,
    split: usize,
    scores: &mut [f32],
    partials: &mut [f32],
    piece: &mut [f32],
) {
    let width = partial_width(tile.layer.head_dim);
    let rows = tile.rows();
    let in_pieces = rows >= PIECE_MIN_ROWS;
    // A vector of a piece is one of a block.
    if in_pieces && tile.layer.block_len.is_multiple_of(LANES) {
        score_pieces(s, tile, split, scores, piece);
    } else {
        score_split(s, tile, split, scores);
    }
    for row in 0..rows {
        let visible = tile.visible_in(row, split);
        if visible.is_empty() {
            continue; // Nobody reads its partial result: see `merge_split`.
        }
        let weights = &mut scores[row * SPLIT..(row + 1) * SPLIT];
        let (max, sum) = softmax(s, weights, visible.start - split * SPLIT..visible.end - split * SPLIT, tile.scale);
        let (values, state) = partials[row * width..(row + 1) * width].split_at_mut(width - LANES);
        values.fill(0.0);
        (state[0], state[1]) = (max, sum);
    }
    if in_pieces {
        weigh_pieces(s, tile, split, scores, partials, piece);
    } else {
        weigh_split(s, tile, split, scores, partials);
    }
}

/// [`score_split`] for many rows: keys become f32 once for all of them.
#[inline(always)]
fn score_pieces<S: Simd, E: KvElement>(s: S, tile: &Tile<'_, E>, split: usize, scores: &mut [f32], piece: &mut [f32]) {
    let positions = tile.visible_to_some(split);
    let LayerPlace { head_dim, block_len, .. } = *tile.layer;
    let stride = tile.layer.key_stride();
    let (piece, _) = piece.as_chunks_mut::<LANES>();
    let mut first = positions.start / PIECE * PIECE;
    while first < positions.end {
        let vectors = (positions.end - first).div_ceil(LANES).min(PIECE_VECTORS);
        for vector in 0..vectors {
            let position = first + vector * LANES;
            if position + LANES <= positions.start {
                continue; // What the piece holds there gives scores that nobody reads.
            }
            // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
            let keys = unsafe { tile.cache.read(tile.layer.keys(tile.table[position / block_len], tile.kv_head)) };
            let keys = &keys[position % block_len..];
            for feature in 0..head_dim {
                let key: &[E; LANES] = keys[feature * stride..][..LANES].as_array().expect("sixteen long");
                s.store(E::load(s, key), &mut piece[feature * PIECE_VECTORS + vector]);
            }
        }
        let keys = piece[..head_dim * PIECE_VECTORS].as_chunks::<PIECE_VECTORS>().0;
        let keys = Keys { keys, vectors, index: first - split * SPLIT };
        let mut row = 0;
        while row < tile.rows() {
            let left = tile.rows() - row;
            row += if S::WIDE {
                match left {
                    8.. => score_piece::<S, E, 8, 2>(s, tile, row, &keys, scores),
                    4.. => score_piece::<S, E, 4, 2>(s, tile, row, &keys, scores),
                    2.. => score_piece::<S, E, 2, 2>(s, tile, row, &keys, scores),
                    _ => score_piece::<S, E, 1, 2>(s, tile, row, &keys, scores),
                }
            } else {
                match left {
                    4.. => score_piece::<S, E, 4, 1>(s, tile, row, &keys, scores),
                    2.. => score_piece::<S, E, 2, 1>(s, tile, row, &keys, scores),
                    _ => score_piece::<S, E, 1, 1>(s, tile, row, &keys, scores),
                }
            };
        }
        first += PIECE;
    }
}

/// Keys of a piece.
struct Keys<'a> {
    /// (features, vectors, positions).
    keys: &'a [[[f32; LANES]; PIECE_VECTORS]],
    /// The vectors that some row sees, and those before.
    vectors: usize,
    /// Where the first stands in the split.
    index: usize,
}

/// Scores of `MR` rows with a piece, `NV` vectors at a time: nobody reads those behind the last that is seen. Returns how
/// many rows that were.
#[inline(always)]
fn score_piece<S: Simd, E: KvElement, const MR: usize, const NV: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    keys: &Keys<'_>,
    scores: &mut [f32],
) -> usize {
    let scores = &mut scores[row * SPLIT + keys.index..];
    s.vectorize(ScorePiece::<MR, NV> { q: tile.queries_from(row), keys, scores });
    MR
}

/// q · k of `MR` rows with a piece, `NV` vectors at a time.
struct ScorePiece<'a, const MR: usize, const NV: usize> {
    q: [&'a [f32]; MR],
    keys: &'a Keys<'a>,
    /// From the piece's first position of the first row on, a row every [`SPLIT`].
    scores: &'a mut [f32],
}

impl<const MR: usize, const NV: usize> Kernel for ScorePiece<'_, MR, NV> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        const { assert!(PIECE_VECTORS.is_multiple_of(NV)) };
        let Self { mut q, keys: &Keys { keys, vectors, .. }, scores } = self;
        for m in 0..MR {
            q[m] = &q[m][..keys.len()];
        }
        for first in (0..vectors).step_by(NV) {
            let mut sums = [[s.splat(0.0); NV]; MR];
            for feature in 0..keys.len() {
                let mut key = [s.splat(0.0); NV];
                for v in 0..NV {
                    key[v] = s.load(&keys[feature][first + v]);
                }
                for m in 0..MR {
                    let q = s.splat(q[m][feature]);
                    for v in 0..NV {
                        sums[m][v] = s.mul_add(q, key[v], sums[m][v]);
                    }
                }
            }
            store_rows(s, &sums, &mut scores[first * LANES..], SPLIT);
        }
    }
}

/// q · k of every row with every position of the split that some row sees.
#[inline(always)]
fn score_split<S: Simd, E: KvElement>(s: S, tile: &Tile<'_, E>, split: usize, scores: &mut [f32]) {
    let positions = tile.visible_to_some(split);
    let LayerPlace { block_len, .. } = *tile.layer;
    let mut position = positions.start;
    while position < positions.end {
        let place = position % block_len / LANES * LANES;
        let vector_start = position - position % block_len + place;
        let block_end = vector_start - place + block_len;
        let index = position - split * SPLIT;
        let block = KeysInPlace {
            // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
            keys: unsafe { tile.cache.read(tile.layer.keys(tile.table[position / block_len], tile.kv_head)) },
            place,
            ahead: ahead(tile, position, vector_start),
        };
        if S::WIDE && position == vector_start && position + 2 * LANES <= positions.end.min(block_end) {
            let mut row = 0;
            while row < tile.rows() {
                row += by_rows!(S, tile.rows() - row, score_two::<S, E>(s, tile, row, &block, index, scores));
            }
            position += 2 * LANES;
            continue;
        }
        // The lanes of this vector are positions of one block: fewer than sixteen at its end.
        let end = (vector_start + LANES).min(block_end).min(positions.end);
        let lanes = position - vector_start..end - vector_start;
        let mut row = 0;
        while row < tile.rows() {
            let left = tile.rows() - row;
            row += by_rows!(S, left, score_one::<S, E>(s, tile, row, &block, lanes.clone(), index, scores));
        }
        position = end;
    }
}

/// Keys of sixteen or thirty-two consecutive positions, where they lie in a block, as [`score_rows`] takes them.
struct KeysInPlace<'a, E> {
    /// The block's, (head_dim, key stride).
    keys: &'a [E],
    /// The first position in the block.
    place: usize,
    /// What comes later, to be asked for a part with each feature: the values of these positions and the keys that many
    /// behind them in the next block.
    ahead: [*const E; 2],
}

/// Where the values of the positions from `vector_start` on lie, and the keys of as many in the next block, of which hardware
/// does not know: it does not look past the page that it reads from. Both in the order of memory, so that memory has as much to
/// do while scores are computed as while values are weighed ([`next_keys`]).
#[inline(always)]
fn ahead<E: KvElement>(tile: &Tile<'_, E>, position: usize, vector_start: usize) -> [*const E; 2] {
    let LayerPlace { head_dim, block_len, .. } = *tile.layer;
    let index = position / block_len;
    let place = vector_start % block_len;
    let values =
        element(tile, tile.layer.values(tile.table[index], tile.kv_head).start + place * tile.layer.value_stride());
    let next = index + 1;
    if next * block_len >= tile.kv_len() {
        return [values; 2];
    }
    [values, element(tile, tile.layer.keys(tile.table[next], tile.kv_head).start + place * head_dim)]
}

/// The address of an element of the cache, to ask for it.
#[inline(always)]
fn element<E>(tile: &Tile<'_, E>, index: usize) -> *const E {
    tile.cache.address().wrapping_add(index)
}

/// The keys that are wanted when values of the split of `position` have been weighed: those a split later, or of the next
/// head's first.
#[inline(always)]
fn next_keys<E: KvElement>(tile: &Tile<'_, E>, position: usize) -> Option<*const E> {
    let LayerPlace { kv_heads, block_len, .. } = *tile.layer;
    let (position, kv_head) = match position + SPLIT {
        later if later < tile.kv_len() => (later, tile.kv_head),
        _ => (tile.splits().start * SPLIT + position % SPLIT, tile.kv_head + 1),
    };
    if kv_head == kv_heads || position >= tile.kv_len() {
        return None;
    }
    let block = tile.table[position / block_len];
    Some(element(tile, tile.layer.keys(block, kv_head).start))
}

/// Scores of `MR` rows with thirty-two positions, from `index` of the split on.
#[inline(always)]
fn score_two<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    keys: &KeysInPlace<'_, E>,
    index: usize,
    scores: &mut [f32],
) -> usize {
    score_rows::<S, E, MR, 2>(s, tile, row, keys, 0..2 * LANES, &mut scores[row * SPLIT + index..])
}

/// Scores of `MR` rows with sixteen positions, of which `lanes` are kept, from `index` of the split on.
#[inline(always)]
fn score_one<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    keys: &KeysInPlace<'_, E>,
    lanes: Range<usize>,
    index: usize,
    scores: &mut [f32],
) -> usize {
    score_rows::<S, E, MR, 1>(s, tile, row, keys, lanes, &mut scores[row * SPLIT + index..])
}

#[inline(always)]
fn score_rows<S: Simd, E: KvElement, const MR: usize, const NV: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    keys: &KeysInPlace<'_, E>,
    lanes: Range<usize>,
    scores: &mut [f32],
) -> usize {
    let stride = tile.layer.key_stride();
    s.vectorize(ScoreRows::<E, MR, NV> { q: tile.queries_from(row), keys, stride, asks: row == 0, lanes, scores });
    MR
}

/// q · k of `MR` rows with `NV` vectors of positions.
struct ScoreRows<'a, E, const MR: usize, const NV: usize> {
    q: [&'a [f32]; MR],
    keys: &'a KeysInPlace<'a, E>,
    /// From a feature's keys to the next's.
    stride: usize,
    /// Whether to ask for [`KeysInPlace::ahead`].
    asks: bool,
    /// The positions whose scores are kept.
    lanes: Range<usize>,
    /// From the first that is kept of the first row on, a row every [`SPLIT`].
    scores: &'a mut [f32],
}

impl<E: KvElement, const MR: usize, const NV: usize> Kernel for ScoreRows<'_, E, MR, NV> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { mut q, keys: &KeysInPlace { keys, place, ahead }, stride, asks, lanes, scores } = self;
        // Cut to one known length, so that the loop needs no checks.
        let head_dim = q[0].len();
        for m in 1..MR {
            q[m] = &q[m][..head_dim];
        }
        let mut sums = [[s.splat(0.0); NV]; MR];
        for (feature, keys) in keys.chunks_exact(stride).enumerate() {
            if asks {
                for at in ahead {
                    ask(s, at.wrapping_add(feature * NV * LANES), NV * LANES);
                }
            }
            let (vectors, _) = keys[place..][..NV * LANES].as_chunks::<LANES>();
            let mut key = [s.splat(0.0); NV];
            for v in 0..NV {
                key[v] = E::load(s, &vectors[v]);
            }
            for m in 0..MR {
                let q = s.splat(q[m][feature]);
                for v in 0..NV {
                    sums[m][v] = s.mul_add(q, key[v], sums[m][v]);
                }
            }
        }
        if lanes.len() == NV * LANES {
            return store_rows(s, &sums, scores, SPLIT);
        }
        // Of two vectors all are kept.
        for m in 0..MR {
            let mut out = [0.0; LANES];
            s.store(sums[m][0], &mut out);
            scores[m * SPLIT..][..lanes.len()].copy_from_slice(&out[lanes.clone()]);
        }
    }
}

/// Asks for `len` elements.
#[inline(always)]
fn ask<S: Simd, E>(s: S, at: *const E, len: usize) {
    for line in 0..(len * size_of::<E>()).div_ceil(LINE) {
        s.prefetch(at.cast::<u8>().wrapping_add(line * LINE));
    }
}

/// Turns the scores in `visible` into weights exp(score · scale - max), all others to zero. Returns maximum and sum.
#[inline(always)]
pub(super) fn softmax<S: Simd>(s: S, scores: &mut [f32], visible: Range<usize>, scale: f32) -> (f32, f32) {
    let vectors = visible.start / LANES..visible.end.div_ceil(LANES);
    scores[vectors.start * LANES..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..vectors.end * LANES].fill(f32::NEG_INFINITY);
    let scores_16 = &mut scores.as_chunks_mut::<LANES>().0[vectors.clone()];
    let mut max = s.splat(f32::NEG_INFINITY);
    for vector in scores_16.iter_mut() {
        let scaled = s.mul(s.load(vector), s.splat(scale));
        max = s.max(scaled, max);
        s.store(scaled, vector);
    }
    let max = s.max_lane(max);
    let mut sum = s.splat(0.0);
    let last = scores_16.len().saturating_sub(1);
    for (index, vector) in scores_16.iter_mut().enumerate() {
        s.store(super::math::exp(s, s.sub(s.load(vector), s.splat(max))), vector);
        // The exponential of minus infinity is small here, not zero.
        if index == 0 {
            vector[..visible.start % LANES].fill(0.0);
        }
        if index == last {
            vector[(visible.end - 1) % LANES + 1..].fill(0.0);
        }
        sum = s.add(sum, s.load(vector));
    }
    (max, s.sum(sum))
}

/// Adds weight · value to the partial results of all rows, values where they lie.
#[inline(always)]
fn weigh_split<S: Simd, E: KvElement>(s: S, tile: &Tile<'_, E>, split: usize, weights: &[f32], partials: &mut [f32]) {
    let block_len = tile.layer.block_len;
    let mut positions = tile.visible_to_some(split);
    while !positions.is_empty() {
        let end = (positions.start / block_len + 1).saturating_mul(block_len).min(positions.end);
        let span = Span {
            values: block_values(tile, positions.start..end),
            positions: positions.start..end,
            split,
            ahead: next_keys(tile, positions.start),
        };
        let mut row = 0;
        while row < tile.rows() {
            let left = tile.rows() - row;
            row += by_rows!(S, left, weigh_tile::<S, E>(s, tile, row, &span, weights, partials));
        }
        positions.start = end;
    }
}

/// [`weigh_split`] for many rows: values become f32 once for all of them.
#[inline(always)]
fn weigh_pieces<S: Simd, E: KvElement>(
    s: S,
    tile: &Tile<'_, E>,
    split: usize,
    weights: &[f32],
    partials: &mut [f32],
    piece: &mut [f32],
) {
    let block_len = tile.layer.block_len;
    let mut positions = tile.visible_to_some(split);
    while !positions.is_empty() {
        let end = (positions.start / PIECE + 1).saturating_mul(PIECE).min(positions.end);
        let mut len = 0;
        let mut position = positions.start;
        while position < end {
            let block_end = (position / block_len + 1).saturating_mul(block_len).min(end);
            let (values, _) = block_values(tile, position..block_end).as_chunks::<LANES>();
            let (out, _) = piece[len..].as_chunks_mut::<LANES>();
            for (values, out) in values.iter().zip(out) {
                s.store(E::load(s, values), out);
            }
            len += values.len() * LANES;
            position = block_end;
        }
        let span = Span { values: &piece[..len], positions: positions.start..end, split, ahead: None };
        let mut row = 0;
        while row < tile.rows() {
            row += match (tile.rows() - row).min(if S::WIDE { 8 } else { 4 }) {
                8 => weigh_rows::<S, E, f32, 8>(s, tile, row, &span, weights, partials),
                4.. => weigh_rows::<S, E, f32, 4>(s, tile, row, &span, weights, partials),
                2.. => weigh_rows::<S, E, f32, 2>(s, tile, row, &span, weights, partials),
                _ => weigh_rows::<S, E, f32, 1>(s, tile, row, &span, weights, partials),
            };
        }
        positions.start = end;
    }
}

/// The values of consecutive positions in one block.
#[inline(always)]
fn block_values<'a, E: KvElement>(tile: &Tile<'a, E>, positions: Range<usize>) -> &'a [E] {
    let (block_len, stride) = (tile.layer.block_len, tile.layer.value_stride());
    let place = positions.start % block_len;
    // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
    let values = unsafe { tile.cache.read(tile.layer.values(tile.table[positions.start / block_len], tile.kv_head)) };
    &values[place * stride..(place + positions.len()) * stride]
}

/// Values of consecutive positions of a split.
struct Span<'a, V> {
    /// (positions, value stride).
    values: &'a [V],
    positions: Range<usize>,
    split: usize,
    /// What is wanted later, as long as the values, to be asked for a part with each of them.
    ahead: Option<*const V>,
}

/// [`weigh_rows`] over values where they lie.
#[inline(always)]
fn weigh_tile<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    span: &Span<'_, E>,
    weights: &[f32],
    partials: &mut [f32],
) -> usize {
    weigh_rows::<S, E, E, MR>(s, tile, row, span, weights, partials)
}

/// Adds weight · value to the partial results of `MR` rows, position after position. Returns how many rows that were.
///
/// Rows of a tile see different positions at the ends; what one row does not see is never multiplied for it, not even by
/// zero, since a neighbour's value may be NaN.
#[inline(always)]
fn weigh_rows<S: Simd, E, V: Widen, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    span: &Span<'_, V>,
    weights: &[f32],
    partials: &mut [f32],
) -> usize {
    let seen = |row: usize| {
        let visible = tile.visible(row);
        let Range { start, end } = span.positions;
        visible.start.clamp(start, end)..visible.end.clamp(start, end)
    };
    // A later row sees no less at the end and no more at the start.
    let (first, last) = (seen(row), seen(row + MR - 1));
    let common = last.start..first.end.max(last.start);
    let is_of_all = common == span.positions;
    if !is_of_all {
        for m in 0..MR {
            let seen = seen(row + m);
            let before = seen.start..common.start.min(seen.end);
            weigh_positions::<S, V, 1>(s, tile.layer, span, row + m, before, weights, partials);
        }
    }
    weigh_positions::<S, V, MR>(s, tile.layer, span, row, common.clone(), weights, partials);
    if !is_of_all {
        for m in 0..MR {
            let seen = seen(row + m);
            let after = common.end.max(seen.start)..seen.end;
            // Otherwise all that the row sees came before.
            if common.start < seen.end {
                weigh_positions::<S, V, 1>(s, tile.layer, span, row + m, after, weights, partials);
            }
        }
    }
    MR
}

#[inline(always)]
fn weigh_positions<S: Simd, V: Widen, const MR: usize>(
    s: S,
    layer: &LayerPlace,
    span: &Span<'_, V>,
    row: usize,
    positions: Range<usize>,
    weights: &[f32],
    partials: &mut [f32],
) {
    if positions.is_empty() {
        return;
    }
    let stride = layer.value_stride();
    let place = positions.start - span.positions.start;
    let index = positions.start - span.split * SPLIT;
    let mut w: [&[f32]; MR] = [&[]; MR];
    for m in 0..MR {
        w[m] = &weights[(row + m) * SPLIT + index..][..positions.len()];
    }
    s.vectorize(WeighPositions {
        weights: w,
        values: &span.values[place * stride..(place + positions.len()) * stride],
        stride,
        ahead: span.ahead.filter(|_| row == 0),
        partials: &mut partials[row * (stride + LANES)..],
    });
}

/// Adds weight · value to the partial results of `MR` rows, position after position.
struct WeighPositions<'a, V, const MR: usize> {
    /// Of each position.
    weights: [&'a [f32]; MR],
    /// (positions, `stride`).
    values: &'a [V],
    /// Features, padded to whole vectors.
    stride: usize,
    /// As [`Span::ahead`].
    ahead: Option<*const V>,
    /// From those of the first row on, [`partial_width`] each.
    partials: &'a mut [f32],
}

impl<V: Widen, const MR: usize> Kernel for WeighPositions<'_, V, MR> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let positions = self.weights[0].len();
        for m in 1..MR {
            self.weights[m] = &self.weights[m][..positions];
        }
        let mut feature = 0;
        while S::WIDE && feature + 2 * LANES <= self.stride {
            self.features::<S, 2>(s, feature);
            feature += 2 * LANES;
        }
        while feature < self.stride {
            self.features::<S, 1>(s, feature);
            feature += LANES;
        }
    }
}

impl<V: Widen, const MR: usize> WeighPositions<'_, V, MR> {
    /// 16 · `D` features from `feature` on. Asks for as many elements as it reads.
    #[inline(always)]
    fn features<S: Simd, const D: usize>(&mut self, s: S, feature: usize) {
        let Self { weights, values, stride, ref mut partials, .. } = *self;
        let width = stride + LANES;
        let ahead = self.ahead.map(|at| at.wrapping_add(feature * weights[0].len()));
        let mut sums = load_rows::<S, MR, D>(s, &partials[feature..], width);
        for position in 0..weights[0].len() {
            if let Some(ahead) = ahead {
                ask(s, ahead.wrapping_add(position * D * LANES), D * LANES);
            }
            let (vectors, _) = values[position * stride + feature..][..D * LANES].as_chunks::<LANES>();
            let mut value = [s.splat(0.0); D];
            for d in 0..D {
                value[d] = V::load(s, &vectors[d]);
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
}

/// `N` vectors of each of `M` rows that begin `stride` apart.
#[inline(always)]
pub(super) fn load_rows<S: Simd, const M: usize, const N: usize>(
    s: S,
    rows: &[f32],
    stride: usize,
) -> [[S::F32; N]; M] {
    let mut vectors = [[s.splat(0.0); N]; M];
    for m in 0..M {
        let (row, _) = rows[m * stride..][..N * LANES].as_chunks::<LANES>();
        for n in 0..N {
            vectors[m][n] = s.load(&row[n]);
        }
    }
    vectors
}

/// As [`load_rows`], the other way.
#[inline(always)]
pub(super) fn store_rows<S: Simd, const M: usize, const N: usize>(
    s: S,
    vectors: &[[S::F32; N]; M],
    rows: &mut [f32],
    stride: usize,
) {
    for m in 0..M {
        let (row, _) = rows[m * stride..][..N * LANES].as_chunks_mut::<LANES>();
        for n in 0..N {
            s.store(vectors[m][n], &mut row[n]);
        }
    }
}

/// Takes one row's partial result over `split` into that over all splits before it.
#[inline(always)]
fn merge_split<S: Simd, E>(s: S, tile: &Tile<'_, E>, row: usize, split: usize, part: &[f32], into: &mut [f32]) {
    if tile.visible_in(row, split).is_empty() {
        return;
    }
    if split == tile.visible(row).start / SPLIT {
        into.copy_from_slice(part);
    } else {
        merge_parts(s, part, into);
    }
}

/// Takes a partial result into that over all positions before.
#[inline(always)]
pub(super) fn merge_parts<S: Simd>(s: S, part: &[f32], into: &mut [f32]) {
    let len = part.len() - LANES;
    let (max_a, max_b) = (into[len], part[len]);
    let max = if max_b > max_a { max_b } else { max_a };
    // Both factors in one vector: lane 0 for what is there, lane 1 for what comes.
    let mut factors = [0.0; LANES];
    (factors[0], factors[1]) = (max_a - max, max_b - max);
    s.store(super::math::exp(s, s.load(&factors)), &mut factors);
    let (a, b) = (s.splat(factors[0]), s.splat(factors[1]));
    for (into, part) in into[..len].as_chunks_mut::<LANES>().0.iter_mut().zip(part.as_chunks::<LANES>().0) {
        s.store(s.mul_add(s.load(part), b, s.mul(s.load(into), a)), into);
    }
    into[len] = max;
    into[len + 1] = part[len + 1].mul_add(factors[1], into[len + 1] * factors[0]);
}

#[cfg(test)]
mod tests {
    use half::f16;
    use plan::{KvLayer, KvLayout};
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::kv_cache::{place_layers, write_token};

    /// One kv head and what asks for it.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        group: usize,
        head_dim: usize,
        block_len: usize,
        /// Positions before the queries.
        first: usize,
        queries: usize,
        window: Option<usize>,
    }

    const SCALE: f32 = 0.25;

    /// Results of all rows, in tiles of `queries` queries, the splits in order or each by itself.
    fn attend<E: KvElement>(isa: Isa, case: Case, kv: &[Vec<f32>], q: &[f32], queries: usize, apart: bool) -> Vec<f32> {
        let Case { group, head_dim, block_len, first, window, .. } = case;
        let num_blocks = kv.len().div_ceil(block_len);
        let layout = KvLayout { format: plan::KvFormat::F32, block_len, num_blocks };
        let (places, len) = place_layers(&[KvLayer { kv_heads: 1, head_dim }.into()], layout).unwrap();
        // What nobody wrote must not matter.
        let mut cache = vec![E::from_f32(f32::NAN); len];
        let cache = &SharedSlice::new(&mut cache);
        let table: Vec<u32> = (0..num_blocks as u32).rev().collect();
        for (position, kv) in kv.iter().enumerate() {
            let slot = (table[position / block_len], position % block_len);
            // SAFETY: one thread.
            unsafe { write_token(cache, places[0].heads(), 0, slot, kv.split_at(head_dim)) };
        }
        let (q_stride, width) = (group * head_dim, partial_width(head_dim));
        let mut out = Vec::new();
        for (index, q) in q.chunks(queries * q_stride).enumerate() {
            let tile = &Tile {
                cache,
                layer: places[0].heads(),
                kv_head: 0,
                table: &table,
                q,
                q_stride,
                heads: 0..group,
                queries: q.len() / q_stride,
                first_position: first + index * queries,
                scale: SCALE,
                window,
            };
            let rows = tile.rows();
            let scratch = &mut vec![f32::NAN; scratch_len(rows, head_dim)];
            let mut all = vec![f32::NAN; rows * width];
            if apart {
                for split in tile.splits() {
                    let one = isa.run(OneSplit { tile, split, scratch: &mut *scratch });
                    for (row, into) in all.chunks_exact_mut(width).enumerate() {
                        isa.run(MergeSplit { tile, row, split, part: &one[row * width..(row + 1) * width], into });
                    }
                }
            } else {
                all.copy_from_slice(&isa.run(Sequential { tile, scratch })[..rows * width]);
            }
            for partial in all.chunks_exact(width) {
                let start = out.len();
                out.resize(start + head_dim, 0.0);
                finish(partial, &mut out[start..]);
            }
        }
        out
    }

    /// The same in f64, as a textbook has it.
    fn expected(case: Case, kv: &[Vec<f32>], q: &[f32]) -> Vec<f64> {
        let Case { group, head_dim, first, window, .. } = case;
        let mut out = Vec::new();
        for (row, q) in q.chunks_exact(head_dim).enumerate() {
            let position = first + row / group;
            let seen = &kv[window.map_or(0, |window| (position + 1).saturating_sub(window))..=position];
            let product = |k: &[f32]| -> f64 { q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum() };
            let scores: Vec<f64> = seen.iter().map(|kv| product(&kv[..head_dim]) * f64::from(SCALE)).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            out.extend((0..head_dim).map(|feature| {
                let products = seen.iter().zip(&weights).map(|(kv, w)| f64::from(kv[head_dim + feature]) * w);
                products.sum::<f64>() / sum
            }));
        }
        out
    }

    fn check<E: KvElement>(case: Case, rng: &mut Rng) {
        // Numbers that the cache holds exactly.
        let kv: Vec<Vec<f32>> = (0..case.first + case.queries)
            .map(|_| (0..2 * case.head_dim).map(|_| E::from_f32(rng.normal()).widen()).collect())
            .collect();
        let q: Vec<f32> = (0..case.queries * case.group * case.head_dim).map(|_| rng.normal()).collect();
        let plain = attend::<E>(Isa::scalar(), case, &kv, &q, 1, false);
        for (found, expected) in plain.iter().zip(expected(case, &kv, &q)) {
            // Weights are at most one, and few values are beyond four.
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{case:?}: {found} for {expected}");
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for isa in Isa::available() {
            for queries in [1, 3, tile_queries(case.group), case.queries] {
                let found = attend::<E>(isa, case, &kv, &q, queries, false);
                assert!(bits(&found) == bits(&plain), "{isa}, {queries} queries at once, {case:?}");
            }
            let found = attend::<E>(isa, case, &kv, &q, case.queries, true);
            assert!(bits(&found) == bits(&plain), "{isa}, splits apart, {case:?}");
        }
    }

    #[test]
    fn every_tile_and_level_gives_the_same_bits_near_the_textbook() {
        let mut rng = Rng::new(11);
        for (group, head_dim, block_len, first, queries, window) in [
            (1, 1, 16, 0, 1, None),
            (7, 10, 32, 0, 13, None),
            (7, 16, 32, 250, 9, None),
            (4, 33, 16, 60, 21, Some(40)),
            (3, 32, 48, 511, 12, Some(257)),
            (1, 24, 32, 37, 70, None),
            (1, 20, 16, 200, 66, Some(3)),
            (8, 17, 5, 252, 11, None),
            (5, 40, 7, 30, 6, Some(1)),
            (33, 8, 32, 70, 2, None),
        ] {
            let case = Case { group, head_dim, block_len, first, queries, window };
            check::<f32>(case, &mut rng);
            check::<f16>(case, &mut rng);
        }
    }
}
