//! Attention over the cache: tile by tile, or split over the cache where there are too few tiles for the workers.

use plan::{Op, Value};

use crate::kernels::attention::{self, MergeSplit, OneSplit, Sequential, Tile};
use crate::kv_cache::{KvElement, LayerPlace, with_elements};
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::shared::SharedSlice;
use crate::step::{Scratch, Step};

/// Attention, with the place of partial results for the split variant.
#[derive(Debug)]
struct Attend {
    attention: plan::Attention,
    q: Place,
    out: Place,
    partials: usize,
    /// Splits that the partial results of a row have room for; 0 for the sequential variant.
    max_splits: usize,
}

/// How many rows of a step may be attended split by split: those that give workers too few tiles. 0: none.
fn rows_to_split(tokens: usize, kv_heads: usize, threads: usize) -> usize {
    let rows = (2 * threads).div_ceil(kv_heads.max(1));
    if threads > 1 && tokens <= rows { tokens } else { 0 }
}

fn max_splits(compiler: &Compiler<'_>) -> usize {
    compiler.source.max_positions.div_ceil(attention::SPLIT)
}

/// f32 of the partial results that `op` needs.
pub(crate) fn partials_len(compiler: &Compiler<'_>, op: &Op) -> usize {
    let Op::Attention { attention: of, .. } = op else { return 0 };
    let layer = compiler.source.layers[of.layer].heads();
    let rows = rows_to_split(compiler.shape.tokens, layer.kv_heads, compiler.source.threads);
    rows * of.heads * max_splits(compiler) * attention::partial_width(layer.head_dim)
}

pub(super) fn compile(compiler: &mut Compiler<'_>, q: Value, of: plan::Attention, out: Value) -> Box<dyn Work> {
    let layer = compiler.source.layers[of.layer].heads();
    let group = of.heads.div_ceil(layer.kv_heads);
    let rows = group * attention::tile_queries(group);
    let len = attention::scratch_len(rows, layer.head_dim);
    compiler.sizes.worker.attention = compiler.sizes.worker.attention.max(len);
    let split = rows_to_split(compiler.shape.tokens, layer.kv_heads, compiler.source.threads) > 0;
    Box::new(Attend {
        attention: of,
        q: compiler.place(q),
        out: compiler.place(out),
        partials: compiler.partials,
        max_splits: if split { max_splits(compiler) } else { 0 },
    })
}

impl Work for Attend {
    fn run(&self, step: &Step<'_>, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        with_elements!(&step.kv, cache => attend_cache(step, cache, self, turns, worker, &mut scratch.attention));
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        let isa = facts.isa;
        if self.max_splits > 0 {
            format!("{isa}, split over the cache where it is long")
        } else {
            format!("{isa}, tile by tile")
        }
    }
}

fn attend_cache<E: KvElement>(
    step: &Step<'_>,
    cache: &SharedSlice<'_, E>,
    attend: &Attend,
    turns: &Turns,
    worker: &Worker<'_>,
    scratch: &mut [f32],
) {
    let layer = step.layers[attend.attention.layer].heads();
    let most_splits = step.input.sequences.iter().map(|s| s.kv_len().div_ceil(attention::SPLIT)).max().unwrap_or(0);
    // One split is no work to share, and a cache that is addressed beyond its size has no room for partial results.
    let split = most_splits > 1 && most_splits <= attend.max_splits;
    if !split {
        let tiles = tiles_of(step, cache, layer, attend, attention::tile_queries(group(layer, attend)));
        for_my_turns(worker, turns, tiles.map(|tile| (tile, 1)), |&(row, ref tile), _| {
            let partials = step.isa.run(Sequential { tile, scratch });
            finish_tile(step, attend, row, tile, partials);
        });
        return;
    }
    // A tile of one query each, so that a partial result has its place by row and head.
    let width = attention::partial_width(layer.head_dim);
    let place = |row: usize, head: usize, split: usize| {
        let index = (row * attend.attention.heads + head) * attend.max_splits + split;
        attend.partials + index * width..attend.partials + (index + 1) * width
    };
    let tiles = tiles_of(step, cache, layer, attend, 1).map(|(row, tile)| {
        let splits = tile.splits().len();
        ((row, tile), splits)
    });
    for_my_turns(worker, turns, tiles, |&(row, ref tile), index| {
        let split = tile.splits().start + index;
        let partials = step.isa.run(OneSplit { tile, split, scratch });
        for (head, partial) in tile.heads.clone().zip(partials.chunks_exact(width)) {
            // SAFETY: each (row, head, split) is one worker's turn.
            unsafe { step.arena.write(place(row, head, split)) }.copy_from_slice(partial);
        }
    });
    worker.barrier();
    let tiles: usize = tiles_of(step, cache, layer, attend, 1).count();
    let mine = worker.share(tiles);
    for (row, tile) in tiles_of(step, cache, layer, attend, 1).skip(mine.start).take(mine.len()) {
        let all = &mut scratch[..tile.rows() * width];
        for (index, (head, into)) in tile.heads.clone().zip(all.chunks_exact_mut(width)).enumerate() {
            for split in tile.splits() {
                // SAFETY: written before the barrier just passed, and by nobody until the next.
                let part = unsafe { step.arena.read(place(row, head, split)) };
                step.isa.run(MergeSplit { tile: &tile, row: index, split, part, into });
            }
        }
        finish_tile(step, attend, row, &tile, all);
    }
}

/// The most query heads that one kv head serves.
fn group(layer: &LayerPlace, attend: &Attend) -> usize {
    attend.attention.heads.div_ceil(layer.kv_heads)
}

/// The step's attention in tiles of up to `queries` queries of one kv head, each with the row of its first.
fn tiles_of<'a, E>(
    step: &'a Step<'a>,
    cache: &'a SharedSlice<'a, E>,
    layer: &'a LayerPlace,
    attend: &'a Attend,
    queries: usize,
) -> impl Iterator<Item = (usize, Tile<'a, E>)> {
    let plan::Attention { heads, scale, window, .. } = attend.attention;
    let Place { start, width: q_stride, .. } = attend.q;
    step.input.sequences.iter().flat_map(move |sequence| {
        (0..sequence.num_rows).step_by(queries).flat_map(move |offset| {
            let queries = queries.min(sequence.num_rows - offset);
            let row = sequence.first_row + offset;
            let begin = start + row * q_stride;
            // SAFETY: q was written before the last barrier, and is nobody's result in this op.
            let q = unsafe { step.arena.read(begin..begin + queries * q_stride) };
            (0..layer.kv_heads).map(move |kv_head| {
                let first_head = |kv_head: usize| (kv_head * heads).div_ceil(layer.kv_heads);
                let tile = Tile {
                    cache,
                    layer,
                    kv_head,
                    table: step.input.table(sequence),
                    q,
                    q_stride,
                    heads: first_head(kv_head)..first_head(kv_head + 1),
                    queries,
                    first_position: sequence.first_position + offset,
                    scale,
                    window,
                };
                (row, tile)
            })
        })
    })
}

/// Writes the results of a tile whose first query is `row`.
fn finish_tile<E>(step: &Step<'_>, attend: &Attend, row: usize, tile: &Tile<'_, E>, partials: &[f32]) {
    let head_dim = tile.layer.head_dim;
    let width = attention::partial_width(head_dim);
    for (index, partial) in partials.chunks_exact(width).enumerate() {
        let (query, head) = (index / tile.heads.len(), tile.heads.start + index % tile.heads.len());
        let start = attend.out.start + (row + query) * attend.out.width + head * head_dim;
        // SAFETY: each (row, head) is in one tile, and each tile is one worker's.
        let out = unsafe { step.arena.write(start..start + head_dim) };
        match attend.attention.sinks {
            None => attention::finish(partial, out),
            Some(sinks) => {
                let sink = step.vectors[sinks.index()][head];
                step.isa.run(attention::FinishWithSink { partial, sink, out });
            }
        }
    }
}

/// Calls `run(group, index)` for this worker's turns among all groups' items.
pub(super) fn for_my_turns<G>(
    worker: &Worker<'_>,
    turns: &Turns,
    groups: impl Iterator<Item = (G, usize)>,
    mut run: impl FnMut(&G, usize),
) {
    let mut mine = worker.take_turns_in_order(turns);
    let mut next = mine.next();
    let mut first = 0;
    for (group, len) in groups {
        while let Some(item) = next.filter(|&item| item < first + len) {
            run(&group, item - first);
            next = mine.next();
        }
        first += len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_split_only_where_tiles_are_few() {
        assert_eq!(rows_to_split(1, 2, 1), 0);
        assert_eq!(rows_to_split(1, 2, 2), 1);
        assert_eq!(rows_to_split(1, 8, 2), 1);
        assert_eq!(rows_to_split(4, 2, 2), 0);
        assert_eq!(rows_to_split(4, 1, 2), 4);
        assert_eq!(rows_to_split(512, 2, 64), 0);
    }
}
