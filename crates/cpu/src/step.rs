//! One step: every worker runs each instruction's part of its own.
//!
//! Soundness of the shared memory rests on one rule, kept here and in every [`Work`](crate::program::Work): between two
//! barriers an element of the arena, of the cache or of the shared quantised rows is written by one worker, or only
//! read. Rows, heads or columns of an op's result are handed out once each ([`Worker::share`], [`Worker::take_turns`]);
//! an op's results never lie over its operands ([`plan::MemoryPlan`]); and after each op there is a barrier.

use half::bf16;
use plan::{Rows, StepInput};
use tensor::Tensor;

use crate::Isa;
use crate::kernels::quantize::QuantizedBlock;
use crate::kernels::rms_norm::RmsNorm;
use crate::kernels::rope::{RopeTable, rotate};
use crate::kv_cache::{self, CachePlace, SharedKv, with_elements};
use crate::packed::Packed;
use crate::pool::Worker;
use crate::program::{NormRef, Place, Program, WorkerSizes};
use crate::shared::{AlignedBuffer, SharedSlice};

/// Where a row of the step stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowPlace {
    /// Its position in its sequence.
    pub(crate) position: usize,
    /// The cache block of that position, and the place in it.
    pub(crate) slot: (u32, usize),
}

/// All that the workers of a step read, and what they share to write.
pub(crate) struct Step<'a> {
    pub(crate) isa: Isa,
    pub(crate) program: &'a Program,
    pub(crate) input: &'a StepInput,
    /// Where each row stands.
    pub(crate) rows: &'a [RowPlace],
    pub(crate) weights: &'a [Tensor],
    /// Weights of projections in panels, by their place in the plan.
    pub(crate) packed: &'a [Option<Packed>],
    /// Norms and biases as f32, by their place in the plan; empty for other weights.
    pub(crate) vectors: &'a [Vec<f32>],
    pub(crate) ropes: &'a [RopeTable],
    /// Orders of columns.
    pub(crate) orders: &'a [Vec<u32>],
    pub(crate) layers: &'a [CachePlace],
    pub(crate) arena: SharedSlice<'a, f32>,
    pub(crate) quantized: SharedSlice<'a, QuantizedBlock>,
    pub(crate) rounded: SharedSlice<'a, bf16>,
    pub(crate) kv: SharedKv<'a>,
}

/// A worker's own memory.
pub(crate) struct Scratch {
    pub(crate) rows: AlignedBuffer<f32>,
    pub(crate) quantized: AlignedBuffer<QuantizedBlock>,
    pub(crate) rounded: AlignedBuffer<bf16>,
    pub(crate) up: AlignedBuffer<f32>,
    pub(crate) panel: AlignedBuffer<u8>,
    pub(crate) widened: AlignedBuffer<f32>,
    pub(crate) sums: AlignedBuffer<f32>,
    pub(crate) attention: AlignedBuffer<f32>,
    pub(crate) slots: AlignedBuffer<u32>,
}

impl Scratch {
    /// Memory of `sizes`, or `None` when the system does not give it.
    pub(crate) fn new(sizes: WorkerSizes) -> Option<Self> {
        Some(Self {
            rows: AlignedBuffer::zeroed(sizes.rows)?,
            quantized: AlignedBuffer::zeroed(sizes.quantized)?,
            rounded: AlignedBuffer::zeroed(sizes.rounded)?,
            up: AlignedBuffer::zeroed(sizes.up)?,
            panel: AlignedBuffer::zeroed(sizes.panel)?,
            widened: AlignedBuffer::zeroed(sizes.widened)?,
            sums: AlignedBuffer::zeroed(sizes.sums)?,
            attention: AlignedBuffer::zeroed(sizes.attention)?,
            slots: AlignedBuffer::zeroed(sizes.slots)?,
        })
    }
}

impl Step<'_> {
    /// Runs the whole program as one member of the team.
    pub(crate) fn run(&self, worker: &Worker<'_>, scratch: &mut Scratch) {
        for (index, (instruction, turns)) in self.program.instructions.iter().zip(&self.program.turns).enumerate() {
            worker.begin(index);
            instruction.work.run(self, turns, worker, scratch);
            if instruction.barrier {
                worker.barrier();
            } else {
                worker.end();
            }
        }
    }

    /// Runs one instruction as one member of the team; the end of the job is its barrier.
    pub(crate) fn run_instruction(&self, index: usize, worker: &Worker<'_>, scratch: &mut Scratch) {
        self.program.instructions[index].work.run(self, &self.program.turns[index], worker, scratch);
    }

    /// Live rows.
    pub(crate) fn num_rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.input.token_ids.len(),
            Rows::Outputs => self.input.output_rows.len(),
        }
    }

    /// Row `row` of an operand.
    pub(crate) fn row(&self, place: Place, row: usize) -> &[f32] {
        let start = place.start + row * place.width;
        // SAFETY: written before the last barrier; this op writes only its results, which lie elsewhere.
        unsafe { self.arena.read(start..start + place.width) }
    }

    /// Runs `make` on this worker's rows of a result.
    pub(crate) fn each_row(&self, worker: &Worker<'_>, out: Place, make: impl Fn(usize, &mut [f32])) {
        for row in worker.share(self.num_rows(out.rows)) {
            let start = out.start + row * out.width;
            // SAFETY: each row is in one worker's share.
            make(row, unsafe { self.arena.write(start..start + out.width) });
        }
    }

    /// Writes one head of a row's keys and values to the cache.
    pub(crate) fn kv_write(&self, layer: usize, row: usize, head: usize, k: &[f32], v: &[f32]) {
        // SAFETY: each (row, head) is in one worker's share, and rows have places of their own.
        with_elements!(&self.kv, cache => unsafe {
            kv_cache::write_token(cache, self.layers[layer].heads(), head, self.rows[row].slot, (k, v));
        });
    }

    /// Writes a row of a latent layer to the cache.
    pub(crate) fn latent_write(&self, layer: usize, row: usize, latent: &[f32], rope: &[f32]) {
        // SAFETY: each row is in one worker's share, and rows have places of their own.
        with_elements!(&self.kv, cache => unsafe {
            kv_cache::write_row(cache, self.layers[layer].latent(), self.rows[row].slot, (latent, rope));
        });
    }

    /// A head, normalised where there is a norm, and turned.
    pub(crate) fn norm_and_rotate(&self, x: &[f32], norm: Option<NormRef>, angles: &[f32], out: &mut [f32]) {
        match norm {
            None => out.copy_from_slice(x),
            Some(NormRef { weight, eps }) => self.isa.run(RmsNorm { x, weight: &self.vectors[weight], eps, out }),
        }
        rotate(out, angles);
    }
}
