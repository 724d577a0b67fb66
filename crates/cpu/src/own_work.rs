//! What a step does that is no op of its plan: block copies and rotary angles.

use backend::profile::{Cost, CostModel};
use plan::{KvLayout, StepInput};

use crate::kv_cache::{self, CachePlace, with_elements};
use crate::pool::{Turns, Worker};
use crate::program::{Place, Work};
use crate::step::{Scratch, Step};

/// The step's block copies.
#[derive(Debug)]
pub(crate) struct CopyBlocks;

impl Work for CopyBlocks {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        if step.input.block_copies.is_empty() {
            return;
        }
        let parts = step.layers.iter().flat_map(|layer| (0..layer.parts()).map(move |part| (layer, part)));
        let share = worker.share(step.layers.iter().map(CachePlace::parts).sum());
        for (layer, part) in parts.skip(share.start).take(share.len()) {
            // SAFETY: each part of each layer is in one worker's share.
            with_elements!(&step.kv, cache => unsafe {
                kv_cache::copy_blocks(cache, layer, part, &step.input.block_copies);
            });
        }
    }

    fn own_name(&self) -> &'static str {
        "copy_blocks"
    }

    fn own_cost(&self, costs: &CostModel, kv: KvLayout, input: &StepInput) -> Cost {
        costs.of_copies(kv.block_len, input)
    }
}

/// Cosines and sines of each token's position.
#[derive(Debug)]
pub(crate) struct Angles {
    pub(crate) rope: usize,
    pub(crate) out: Place,
}

impl Work for Angles {
    fn run(&self, step: &Step<'_>, _: &Turns, worker: &Worker<'_>, _: &mut Scratch) {
        step.each_row(worker, self.out, |row, angles| {
            step.ropes[self.rope].angles(step.rows[row].position, angles);
        });
    }

    fn own_name(&self) -> &'static str {
        "rope_angles"
    }
}
