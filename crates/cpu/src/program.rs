//! Compilation: a plan and a step shape become a list of instructions with every buffer placed and every kernel chosen.
//! What an op becomes stands in its file of `ops`.

use std::fmt;

use backend::Tuned;
use backend::profile::{Cost, CostModel};
use plan::{KvLayout, MemoryPlan, Norm, Op, Plan, Rows, StepInput, StepShape, Value};
use tensor::Tensor;

use crate::kv_cache::CachePlace;
use crate::own_work::{Angles, CopyBlocks};
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::simd::LANES;
use crate::step::{Scratch, Step};
use crate::{Isa, ops};

/// What a program ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The head: (outputs, vocab_size).
    Logits,
    /// The final norm: (outputs, hidden_size).
    Hidden,
}

/// A program: what every worker runs in a step of up to `shape`.
pub(crate) struct Program {
    pub(crate) end: End,
    pub(crate) shape: StepShape,
    pub(crate) instructions: Vec<Instruction>,
    /// One for each instruction: which of its items is next. They begin anew before a step.
    pub(crate) turns: Vec<Turns>,
    /// Where the result begins in the arena, and how wide its rows are.
    pub(crate) result: usize,
    pub(crate) result_width: usize,
    /// Where the result's peaks begin in the arena, if an instruction keeps them.
    pub(crate) peaks: Option<usize>,
    pub(crate) sizes: Sizes,
}

/// The memory that a program needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// f32 of the arena, which all workers share.
    pub(crate) arena: usize,
    /// Blocks of quantised activations that all workers share.
    pub(crate) quantized: usize,
    /// Activations rounded to bfloat16 that all workers share.
    pub(crate) rounded: usize,
    /// What each worker has for itself.
    pub(crate) worker: WorkerSizes,
}

/// A worker's own memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerSizes {
    /// f32 of normalised rows, or of one key head.
    pub(crate) rows: usize,
    /// Blocks of quantised rows.
    pub(crate) quantized: usize,
    /// Activations of rounded rows.
    pub(crate) rounded: usize,
    /// f32 of the up projection of a chunk.
    pub(crate) up: usize,
    /// Bytes of weights that are packed on the way.
    pub(crate) panel: usize,
    /// f32 of widened weights.
    pub(crate) widened: usize,
    /// f32 of sums between pieces of k.
    pub(crate) sums: usize,
    /// f32 of scores and partial results.
    pub(crate) attention: usize,
    /// Numbers by which slots are grouped by expert.
    pub(crate) slots: usize,
}

impl Sizes {
    /// The larger of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            arena: self.arena.max(other.arena),
            quantized: self.quantized.max(other.quantized),
            rounded: self.rounded.max(other.rounded),
            worker: self.worker.max(other.worker),
        }
    }
}

impl WorkerSizes {
    fn max(self, other: Self) -> Self {
        Self {
            rows: self.rows.max(other.rows),
            quantized: self.quantized.max(other.quantized),
            rounded: self.rounded.max(other.rounded),
            up: self.up.max(other.up),
            panel: self.panel.max(other.panel),
            widened: self.widened.max(other.widened),
            sums: self.sums.max(other.sums),
            attention: self.attention.max(other.attention),
            slots: self.slots.max(other.slots),
        }
    }
}

/// A matrix in the arena: where it begins and how wide its rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) start: usize,
    pub(crate) width: usize,
    pub(crate) rows: Rows,
}

/// One op, or a part of one. After each there is a barrier, unless the next needs nothing of it.
pub(crate) struct Instruction {
    /// The plan's op that it computes, by its place; none for what steps need besides.
    pub(crate) op: Option<usize>,
    pub(crate) work: Box<dyn Work>,
    pub(crate) barrier: bool,
}

/// What an instruction does: an op's file has one. Weights are by their place in the plan.
pub(crate) trait Work: fmt::Debug + Send + Sync {
    /// Does this worker's part of it.
    fn run(&self, step: &Step<'_>, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch);

    /// Which of its ways it takes, for reports: the instruction set first, then what was chosen for the size.
    fn variant(&self, _facts: &Facts<'_>) -> String {
        "plain".to_owned()
    }

    /// What it is called where it is no op of the plan.
    fn own_name(&self) -> &'static str {
        "other"
    }

    /// What it has to move and to compute where it is no op of the plan.
    fn own_cost(&self, _costs: &CostModel, _kv: KvLayout, _input: &StepInput) -> Cost {
        Cost::default()
    }
}

/// A norm: its weight and epsilon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormRef {
    pub(crate) weight: usize,
    pub(crate) eps: f32,
}

impl From<Norm> for NormRef {
    fn from(norm: Norm) -> Self {
        Self { weight: norm.weight.index(), eps: norm.eps }
    }
}

/// What a program is compiled from.
pub(crate) struct Source<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a [Tensor],
    pub(crate) layers: &'a [CachePlace],
    /// Positions that the cache has room for.
    pub(crate) max_positions: usize,
    pub(crate) threads: usize,
    /// What an instruction takes its items from.
    pub(crate) turns: &'a dyn Fn() -> Turns,
    pub(crate) isa: Isa,
    /// What was measured best on these processors.
    pub(crate) tuned: Tuned,
}

impl Source<'_> {
    /// The program for steps of up to `shape`.
    pub(crate) fn compile(&self, end: End, shape: StepShape) -> Program {
        let memory = MemoryPlan::new(self.plan, shape);
        let (sizes, angles, peaks) = (Sizes::default(), vec![], None);
        let mut compiler = Compiler {
            source: self,
            end,
            shape,
            sizes,
            angles,
            memory,
            peaks,
            rows_start: 0,
            partials: 0,
            expert_rows: 0,
        };
        compiler.sizes.arena = compiler.memory.len;
        let mut instructions = vec![no_barrier(CopyBlocks)];
        for (rope, table) in self.plan.ropes.iter().enumerate() {
            let width = table.dims;
            let out = Place { start: compiler.shared(shape.tokens * width), width, rows: Rows::Tokens };
            compiler.angles.push(out);
            instructions.push(no_barrier(Angles { rope, out }));
        }
        // Copies write the cache, angles their own memory, the first op its result: it needs neither, unless it is
        // attention itself.
        if !matches!(self.plan.ops.first(), Some(Op::Embed { .. })) {
            instructions.iter_mut().for_each(|instruction| instruction.barrier = true);
        }
        // Shared rows of all projections lie in one place: each is done with before the next begins.
        let inputs = self.plan.ops.iter().flat_map(Op::inputs);
        let widest = inputs.map(|value| self.plan.value(value).width).max().unwrap_or(0);
        compiler.rows_start = compiler.shared(shape.tokens.max(shape.outputs) * widest);
        let of_op =
            |op| ops::attention::partials_len(&compiler, op).max(ops::mla_attention::partials_len(&compiler, op));
        let partials = self.plan.ops.iter().map(of_op).max().unwrap_or(0);
        compiler.partials = compiler.shared(partials);
        let of_experts = self.plan.ops.iter().map(|op| ops::shared_by_experts(&compiler, op)).max().unwrap_or(0);
        compiler.expert_rows = compiler.shared(of_experts);
        for (index, op) in self.plan.ops.iter().enumerate() {
            let work = ops::compile(&mut compiler, op);
            instructions.push(Instruction { op: Some(index), work, barrier: true });
        }
        let result = compiler.memory.offset(self.plan.logits);
        let result_width = self.plan.value(self.plan.logits).width;
        let turns = instructions.iter().map(|_| (self.turns)()).collect();
        let Compiler { peaks, sizes, .. } = compiler;
        Program { end, shape, instructions, turns, result, result_width, peaks, sizes }
    }
}

fn no_barrier(work: impl Work + 'static) -> Instruction {
    Instruction { op: None, work: Box::new(work), barrier: false }
}

/// A program that is being compiled.
pub(crate) struct Compiler<'a> {
    pub(crate) source: &'a Source<'a>,
    pub(crate) end: End,
    pub(crate) shape: StepShape,
    memory: MemoryPlan,
    /// The memory that is needed so far.
    pub(crate) sizes: Sizes,
    /// The angles of each rope.
    pub(crate) angles: Vec<Place>,
    /// Where the peaks of the result begin.
    pub(crate) peaks: Option<usize>,
    /// Where shared rows of projections begin.
    pub(crate) rows_start: usize,
    /// Where partial results of attention begin.
    pub(crate) partials: usize,
    /// Where what experts share between their barriers begins.
    pub(crate) expert_rows: usize,
}

impl Compiler<'_> {
    /// `len` f32 of the arena, on a cache line.
    pub(crate) fn shared(&mut self, len: usize) -> usize {
        let start = self.sizes.arena;
        self.sizes.arena += len.next_multiple_of(2 * LANES);
        start
    }

    /// Where a value lies.
    pub(crate) fn place(&self, value: Value) -> Place {
        let info = self.source.plan.value(value);
        Place { start: self.memory.offset(value), width: info.width, rows: info.rows }
    }

    /// Rows that the program has room for.
    pub(crate) fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.shape.tokens,
            Rows::Outputs => self.shape.outputs,
        }
    }
}
