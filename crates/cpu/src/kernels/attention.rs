//! `attention`: softmax(q · kᵀ · scale) · v over a paged cache, causal, grouped heads, optional sliding window.
//!
//! Shapes    q, out (tokens, heads · head_dim); keys and values as [`crate::kv_cache`] lays them out.
//! Order     positions are taken in splits of [`SPLIT`] that begin at multiples of it. Within a split: each score is one
//!           chain over features; the maximum; weights exp(score - max) and their sum, lane = position % 16; each
//!           feature of the result one chain over positions. Splits are merged in order by their maxima. So a row's
//!           result depends on its position and the cache, and on nothing else: not on chunks, batch, block length or
//!           threads.
//! Bytes     2 · kv_heads · head_dim · element bytes for each visible position, once for all query heads of a kv head and
//!           for up to [`TILE_ROWS`] (query, head) rows of a prefill.
//! Roofline  4 · head_dim · group flop over 4 · head_dim bytes (F16): bound by memory only for small groups.
//! Accuracy  scores to head_dim · ε · Σ|q·k|, weights to that plus 3 ε, the sum and the result to kv_len · ε, plus F16
//!           rounding of the cache where it is F16.
//! Versions  every level, from one text. `sequential`: a tile of rows takes its splits one after another. `split`: splits
//!           of a row go to different workers and are merged after a barrier; for decoding few rows.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::ops::Range;

use crate::kv_cache::{KvElement, LayerPlace};
use crate::shared::SharedSlice;
use crate::simd::{Kernel, LANES, Simd};

/// Positions in a split. Scores of a tile fit the first-level cache.
pub(crate) const SPLIT: usize = 256;

/// Rows, that is pairs of a query and a head, that read keys and values together; more only when a group has more.
pub(crate) const TILE_ROWS: usize = 32;

/// Queries in a tile whose kv head serves `group` heads.
pub(crate) fn tile_queries(group: usize) -> usize {
    (TILE_ROWS / group.max(1)).max(1)
}

/// f32 in a row's partial result: the features padded to whole vectors, then maximum and sum.
pub(crate) fn partial_width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES) + LANES
}

/// f32 that a worker needs to attend with tiles of `rows` rows: scores, then partial results of one split and of all.
pub(crate) fn scratch_len(rows: usize, head_dim: usize) -> usize {
    rows * (SPLIT + 2 * partial_width(head_dim))
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
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> &'b [f32] {
        let Self { tile, scratch } = self;
        let len = tile.rows() * partial_width(tile.layer.head_dim);
        let (scores, rest) = scratch.split_at_mut(tile.rows() * SPLIT);
        let (one, all) = rest.split_at_mut(len);
        let all = &mut all[..len];
        for split in tile.splits() {
            attend_split(s, tile, split, scores, one);
            for row in 0..tile.rows() {
                let width = partial_width(tile.layer.head_dim);
                let part = row * width..(row + 1) * width;
                merge_split(s, tile, row, split, &one[part.clone()], &mut all[part]);
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
    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> &'b [f32] {
        let Self { tile, split, scratch } = self;
        let (scores, rest) = scratch.split_at_mut(tile.rows() * SPLIT);
        let one = &mut rest[..tile.rows() * partial_width(tile.layer.head_dim)];
        attend_split(s, tile, split, scores, one);
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
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        merge_split(s, self.tile, self.row, self.split, self.part, self.into);
    }
}

/// The result of a row whose partial result covers all positions: weighted values over the sum of weights.
pub(crate) fn finish(partial: &[f32], out: &mut [f32]) {
    let sum = partial[partial.len() - LANES + 1];
    let inverse = 1.0 / sum;
    for (out, value) in out.iter_mut().zip(partial) {
        *out = value * inverse;
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
) {
    let width = partial_width(tile.layer.head_dim);
    let rows = tile.rows();
    score_split(s, tile, split, scores);
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
    let mut row = 0;
    while row < rows {
        let left = rows - row;
        row += by_rows!(S, left, weigh_rows::<S, E>(s, tile, split, row, scores, partials));
    }
}

/// q · k of every row with every position of the split that some row sees.
#[inline(always)]
fn score_split<S: Simd, E: KvElement>(s: S, tile: &Tile<'_, E>, split: usize, scores: &mut [f32]) {
    let positions = tile.visible_in(0, split).start..tile.visible_in(tile.rows() - 1, split).end;
    let block_len = tile.layer.block_len;
    let stride = tile.layer.key_stride();
    let mut position = positions.start;
    while position < positions.end {
        let place = position % block_len / LANES * LANES;
        let vector_start = position - position % block_len + place;
        // The lanes of this vector are positions of one block: fewer than sixteen at its end.
        let end = (vector_start + LANES).min(vector_start - place + block_len).min(positions.end);
        // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
        let keys = unsafe { tile.cache.read(tile.layer.keys(tile.table[position / block_len], tile.kv_head)) };
        if place == 0 {
            prefetch_head(s, tile, position / block_len + 1);
        }
        let lanes = position - vector_start..end - vector_start;
        let index = position - split * SPLIT;
        let mut row = 0;
        while row < tile.rows() {
            let left = tile.rows() - row;
            let keys = &keys[place..];
            row += by_rows!(S, left, score_rows::<S, E>(s, tile, row, keys, stride, lanes.clone(), index, scores));
        }
        position = end;
    }
}

/// Asks for the keys and values of a head in one block: hardware does not look past the page that it reads from.
#[inline(always)]
fn prefetch_head<S: Simd, E: KvElement>(s: S, tile: &Tile<'_, E>, index: usize) {
    let Some(&block) = tile.table.get(index).filter(|_| index * tile.layer.block_len < tile.kv_len()) else { return };
    let head = tile.layer.keys(block, tile.kv_head).start..tile.layer.values(block, tile.kv_head).end;
    // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
    let head = unsafe { tile.cache.read(head) };
    for line in head.chunks(64 / size_of::<E>()) {
        s.prefetch(line.as_ptr());
    }
}

/// Scores of `MR` rows with sixteen positions, of which `lanes` are kept, from `index` of the split on.
#[expect(clippy::too_many_arguments, reason = "the body of a loop, in a function so that MR is a constant")]
#[inline(always)]
fn score_rows<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    row: usize,
    keys: &[E],
    stride: usize,
    lanes: Range<usize>,
    index: usize,
    scores: &mut [f32],
) -> usize {
    let head_dim = tile.layer.head_dim;
    let mut q: [&[f32]; MR] = [&[]; MR];
    for m in 0..MR {
        q[m] = &tile.query(row + m)[..head_dim];
    }
    let mut sums = [s.splat(0.0); MR];
    for feature in 0..head_dim {
        let key: &[E; LANES] = keys[feature * stride..][..LANES].as_array().expect("sixteen long");
        let key = E::load(s, key);
        for m in 0..MR {
            sums[m] = s.mul_add(s.splat(q[m][feature]), key, sums[m]);
        }
    }
    for m in 0..MR {
        let mut out = [0.0; LANES];
        s.store(sums[m], &mut out);
        scores[(row + m) * SPLIT + index..][..lanes.len()].copy_from_slice(&out[lanes.clone()]);
    }
    MR
}

/// Turns the scores in `visible` into weights exp(score · scale - max), all others to zero. Returns maximum and sum.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], visible: Range<usize>, scale: f32) -> (f32, f32) {
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
    for vector in scores_16.iter_mut() {
        s.store(super::math::exp(s, s.sub(s.load(vector), s.splat(max))), vector);
    }
    // The exponential of minus infinity is small here, not zero.
    scores[vectors.start * LANES..visible.start].fill(0.0);
    scores[visible.end..vectors.end * LANES].fill(0.0);
    let mut sum = s.splat(0.0);
    for vector in &scores.as_chunks::<LANES>().0[vectors] {
        sum = s.add(sum, s.load(vector));
    }
    (max, s.sum(sum))
}

/// Adds weight · value to the partial results of `MR` rows, position after position.
///
/// Rows of a tile see different positions at the ends; what one row does not see is never multiplied for it, not even by
/// zero, since a neighbour's value may be NaN.
#[inline(always)]
fn weigh_rows<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    split: usize,
    row: usize,
    weights: &[f32],
    partials: &mut [f32],
) -> usize {
    let (mut start, mut end) = (0, usize::MAX);
    for m in 0..MR {
        let visible = tile.visible_in(row + m, split);
        (start, end) = (start.max(visible.start), end.min(visible.end));
    }
    for m in 0..MR {
        let visible = tile.visible_in(row + m, split);
        let before = visible.start..start.min(visible.end);
        weigh_positions::<S, E, 1>(s, tile, split, row + m, before, weights, partials);
    }
    weigh_positions::<S, E, MR>(s, tile, split, row, start..end.max(start), weights, partials);
    for m in 0..MR {
        let visible = tile.visible_in(row + m, split);
        let after = end.max(start).max(visible.start)..visible.end;
        if start < visible.end {
            weigh_positions::<S, E, 1>(s, tile, split, row + m, after, weights, partials);
        }
    }
    MR
}

#[inline(always)]
fn weigh_positions<S: Simd, E: KvElement, const MR: usize>(
    s: S,
    tile: &Tile<'_, E>,
    split: usize,
    row: usize,
    positions: Range<usize>,
    weights: &[f32],
    partials: &mut [f32],
) {
    let block_len = tile.layer.block_len;
    let stride = tile.layer.value_stride();
    let mut position = positions.start;
    while position < positions.end {
        let place = position % block_len;
        let len = (block_len - place).min(positions.end - position);
        // SAFETY: the cache was written before the last barrier, and nobody writes to it in this op.
        let values = unsafe { tile.cache.read(tile.layer.values(tile.table[position / block_len], tile.kv_head)) };
        let values = &values[place * stride..(place + len) * stride];
        let index = position - split * SPLIT;
        let mut w: [&[f32]; MR] = [&[]; MR];
        for m in 0..MR {
            w[m] = &weights[(row + m) * SPLIT + index..][..len];
        }
        let mut feature = 0;
        while S::WIDE && feature + 2 * LANES <= stride {
            weigh_features::<S, E, MR, 2>(s, w, values, stride, feature, row, partials);
            feature += 2 * LANES;
        }
        while feature < stride {
            weigh_features::<S, E, MR, 1>(s, w, values, stride, feature, row, partials);
            feature += LANES;
        }
        position += len;
    }
}

/// 16 · `D` features from `feature` on, of `MR` rows.
#[inline(always)]
fn weigh_features<S: Simd, E: KvElement, const MR: usize, const D: usize>(
    s: S,
    weights: [&[f32]; MR],
    values: &[E],
    stride: usize,
    feature: usize,
    row: usize,
    partials: &mut [f32],
) {
    let width = stride + LANES;
    let mut sums = [[s.splat(0.0); D]; MR];
    for m in 0..MR {
        let (vectors, _) = partials[(row + m) * width + feature..][..D * LANES].as_chunks::<LANES>();
        for d in 0..D {
            sums[m][d] = s.load(&vectors[d]);
        }
    }
    for position in 0..weights[0].len() {
        let (vectors, _) = values[position * stride + feature..][..D * LANES].as_chunks::<LANES>();
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
    for m in 0..MR {
        let (vectors, _) = partials[(row + m) * width + feature..][..D * LANES].as_chunks_mut::<LANES>();
        for d in 0..D {
            s.store(sums[m][d], &mut vectors[d]);
        }
    }
}

/// Takes one row's partial result over `split` into that over all splits before it.
#[inline(always)]
fn merge_split<S: Simd, E>(s: S, tile: &Tile<'_, E>, row: usize, split: usize, part: &[f32], into: &mut [f32]) {
    if tile.visible_in(row, split).is_empty() {
        return;
    }
    let len = part.len() - LANES;
    let first = split == tile.visible(row).start / SPLIT;
    if first {
        into.copy_from_slice(part);
        return;
    }
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
