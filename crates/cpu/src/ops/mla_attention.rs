//! Latent attention over the cache: tile by tile, or split over the cache where there are too few tiles for the
//! workers.

use std::ops::Range;

use plan::{Op, Value};

use super::attention::for_my_turns;
use crate::kernels::attention::{SPLIT, finish, partial_width};
use crate::kernels::mla_attention::{self, MergeParts, OneSplit, Sequential, TILE_HEADS, Tile};
use crate::kv_cache::{KvElement, LatentPlace, with_elements};
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, Place, Work};
use crate::shared::SharedSlice;
use crate::step::{Scratch, Step};

/// f32 that partial results may take: a step whose need is more is attended tile by tile.
const PARTIALS_MAX: usize = 1 << 26;

/// Latent attention, with the place of partial results for the split variant.
#[derive(Debug)]
struct Attend {
    attention: plan::MlaAttention,
    q_latent: Place,
    q_rope: Place,
    out: Place,
    partials: usize,
    /// Splits that the partial results of a row have room for; 0 for the sequential variant.
    max_splits: usize,
}

/// Heads that a tile has at most, so that tiles of one query are alike.
fn tile_heads(heads: usize) -> usize {
    heads.div_ceil(heads.div_ceil(TILE_HEADS).max(1)).max(1)
}

/// Splits that the partial results of each row have room for; 0 where the step is attended tile by tile, because
/// workers have enough tiles, or because that room is too much.
fn max_splits(compiler: &Compiler<'_>, attention: plan::MlaAttention, layer: &LatentPlace) -> usize {
    let (tokens, threads) = (compiler.shape.tokens, compiler.source.threads);
    let tiles = tokens * attention.heads.div_ceil(tile_heads(attention.heads));
    let splits = compiler.source.max_positions.div_ceil(SPLIT);
    let len = (tokens * attention.heads).checked_mul(splits).and_then(|n| n.checked_mul(partial_width(layer.dim)));
    let fits = len.is_some_and(|len| len <= PARTIALS_MAX);
    if threads > 1 && tiles <= threads && fits { splits } else { 0 }
}

/// f32 of the partial results that `op` needs.
pub(crate) fn partials_len(compiler: &Compiler<'_>, op: &Op) -> usize {
    let Op::MlaAttention { attention, .. } = *op else { return 0 };
    let layer = compiler.source.layers[attention.layer].latent();
    let rows = compiler.shape.tokens * attention.heads;
    rows * max_splits(compiler, attention, layer) * partial_width(layer.dim)
}

pub(super) fn compile(
    compiler: &mut Compiler<'_>,
    [q_latent, q_rope]: [Value; 2],
    attention: plan::MlaAttention,
    out: Value,
) -> Box<dyn Work> {
    let layer = *compiler.source.layers[attention.layer].latent();
    let heads = tile_heads(attention.heads);
    let len = mla_attention::scratch_len(heads * mla_attention::tile_queries(heads), &layer);
    compiler.sizes.worker.attention = compiler.sizes.worker.attention.max(len);
    Box::new(Attend {
        attention,
        q_latent: compiler.place(q_latent),
        q_rope: compiler.place(q_rope),
        out: compiler.place(out),
        partials: compiler.partials,
        max_splits: max_splits(compiler, attention, &layer),
    })
}

impl Work for Attend {
    fn run(&self, step: &Step<'_>, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        with_elements!(&step.kv, cache => self.attend(step, cache, turns, worker, &mut scratch.attention));
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        let isa = facts.isa;
        if self.max_splits > 0 {
            format!("{isa}, all heads together, split over the cache where it is long")
        } else {
            format!("{isa}, all heads together, tile by tile")
        }
    }
}

impl Attend {
    fn attend<E: KvElement>(
        &self,
        step: &Step<'_>,
        cache: &SharedSlice<'_, E>,
        turns: &Turns,
        worker: &Worker<'_>,
        scratch: &mut [f32],
    ) {
        let layer = step.layers[self.attention.layer].latent();
        let width = partial_width(layer.dim);
        let most_splits = step.input.sequences.iter().map(|s| s.kv_len().div_ceil(SPLIT)).max().unwrap_or(0);
        // One split is no work to share, and a cache that is addressed beyond its size has no room for partial results.
        if most_splits <= 1 || most_splits > self.max_splits {
            let queries = mla_attention::tile_queries(tile_heads(self.attention.heads));
            let tiles = self.tiles(step, cache, layer, queries).map(|tile| (tile, 1));
            for_my_turns(worker, turns, tiles, |(row, heads, tile), _| {
                let (q, scratch) = scratch.split_at_mut(tile.rows() * layer.row_len());
                self.gather(step, *row, heads, tile, q);
                let partials = step.isa.run(Sequential { tile, q, scratch });
                for (index, partial) in partials.chunks_exact(width).enumerate() {
                    let (query, head) = (index / heads.len(), heads.start + index % heads.len());
                    self.finish(step, layer, row + query, head, partial);
                }
            });
            return;
        }
        // A tile of one query each, so that a partial result has its place by row and head.
        let place = |row: usize, head: usize, split: usize| {
            let index = (row * self.attention.heads + head) * self.max_splits + split;
            self.partials + index * width..self.partials + (index + 1) * width
        };
        let tiles = self.tiles(step, cache, layer, 1).map(|tile| {
            let splits = tile.2.splits().len();
            (tile, splits)
        });
        for_my_turns(worker, turns, tiles, |(row, heads, tile), split| {
            let (q, scratch) = scratch.split_at_mut(tile.rows() * layer.row_len());
            self.gather(step, *row, heads, tile, q);
            let partials = step.isa.run(OneSplit { tile, split, q, scratch });
            for (head, partial) in heads.clone().zip(partials.chunks_exact(width)) {
                // SAFETY: each (row, head, split) is one worker's turn.
                unsafe { step.arena.write(place(*row, head, split)) }.copy_from_slice(partial);
            }
        });
        worker.barrier();
        let rows = step.input.sequences.iter().flat_map(|sequence| {
            (0..sequence.num_rows).map(|offset| (sequence.first_row + offset, sequence.first_position + offset + 1))
        });
        let heads = rows.flat_map(|row| (0..self.attention.heads).map(move |head| (row, head)));
        let mine = worker.share(step.input.token_ids.len() * self.attention.heads);
        let into = &mut scratch[..width];
        for ((row, seen), head) in heads.skip(mine.start).take(mine.len()) {
            for split in 0..seen.div_ceil(SPLIT) {
                // SAFETY: written before the barrier just passed, and by nobody until the next.
                let part = unsafe { step.arena.read(place(row, head, split)) };
                match split {
                    0 => into.copy_from_slice(part),
                    _ => step.isa.run(MergeParts { part, into: &mut *into }),
                }
            }
            self.finish(step, layer, row, head, into);
        }
    }

    /// The step's attention in tiles of up to `queries` queries, each with the row of its first and its heads.
    fn tiles<'a, E>(
        &self,
        step: &'a Step<'a>,
        cache: &'a SharedSlice<'a, E>,
        layer: &'a LatentPlace,
        queries: usize,
    ) -> impl Iterator<Item = (usize, Range<usize>, Tile<'a, E>)> + use<'a, E> {
        let plan::MlaAttention { heads, scale, .. } = self.attention;
        let width = tile_heads(heads);
        step.input.sequences.iter().flat_map(move |sequence| {
            (0..sequence.num_rows).step_by(queries).flat_map(move |offset| {
                (0..heads).step_by(width).map(move |first| {
                    let heads = first..(first + width).min(heads);
                    let tile = Tile {
                        cache,
                        layer,
                        table: step.input.table(sequence),
                        heads: heads.len(),
                        queries: queries.min(sequence.num_rows - offset),
                        first_position: sequence.first_position + offset,
                        scale,
                    };
                    (sequence.first_row + offset, heads, tile)
                })
            })
        })
    }

    /// The queries of a tile whose first is `row`, as the rows of the cache lie, what pads them zero.
    fn gather<E: KvElement>(
        &self,
        step: &Step<'_>,
        row: usize,
        heads: &Range<usize>,
        tile: &Tile<'_, E>,
        q: &mut [f32],
    ) {
        let &LatentPlace { dim, rope, .. } = tile.layer;
        for (index, q) in q.chunks_exact_mut(tile.layer.row_len()).enumerate() {
            let (row, head) = (row + index / heads.len(), heads.start + index % heads.len());
            let (latent, turned) = q.split_at_mut(tile.layer.rope_start());
            for (out, place, width) in [(latent, self.q_latent, dim), (turned, self.q_rope, rope)] {
                out[..width].copy_from_slice(&step.row(place, row)[head * width..(head + 1) * width]);
                out[width..].fill(0.0);
            }
        }
    }

    /// Writes the result of a head of a row.
    fn finish(&self, step: &Step<'_>, layer: &LatentPlace, row: usize, head: usize, partial: &[f32]) {
        let start = self.out.start + row * self.out.width + head * layer.dim;
        // SAFETY: each (row, head) is one worker's: in one tile, or in one share.
        finish(partial, unsafe { step.arena.write(start..start + layer.dim) });
    }
}
