//! What kernels are told about memory: where values, weights, the cache, tables and a step's input lie, how far apart
//! rows are, and where the counts of live rows stand.

use plan::{MemoryPlan, Op, Plan, Rows, StepShape, Value, WeightId};

use crate::formats::DeviceFormat;
use crate::glu_bounds::GluBounds;
use crate::kv_cache::KvCache;
use crate::launch::Region;
use crate::step_input::{StepLayout, StepRegions, max_positions};
use crate::target::Target;
use crate::weights::DeviceWeights;

/// Rows of values begin at multiples of this many f32, so that kernels load 16 bytes at a time.
pub(crate) const ROW_ALIGN: usize = 4;
/// Bytes of an f32.
pub(crate) const F32: u64 = size_of::<f32>() as u64;

/// A plan, and where all that its programs use lies on the device, but for what each program has of its own.
pub(crate) struct LoadedPlan<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a DeviceWeights,
    /// (positions, dims / 2) of cosine and sine, one for each of [`Plan::ropes`].
    pub(crate) angles: &'a [Region],
    /// i32, one for each of [`Plan::orders`].
    pub(crate) orders: &'a [Region],
    /// f32, from 0 on: the heads whose matrices are their own, as ids of experts.
    pub(crate) head_ids: Region,
    pub(crate) cache: &'a KvCache,
    pub(crate) target: Target,
    /// Counters of attention and gemms, zero between launches.
    pub(crate) counters: Region,
    /// Where the tokens lie that a step chooses: a [`Chosen`] for each output.
    pub(crate) chosen: Region,
    pub(crate) glu_bounds: &'a GluBounds,
}

/// How a program divides its memory, before it is known where that is.
#[derive(Clone, Debug)]
pub(crate) struct ArenaLayout {
    pub(crate) step: StepLayout,
    /// Where each value lies.
    pub(crate) memory: MemoryPlan,
    /// Start and length in the arena, in bytes: rows that an op needs between its kernels.
    pub(crate) scratch: (u64, u64),
    /// Likewise: rows that an op writes as the operand of the next op's gemm.
    pub(crate) direct_operand: (u64, u64),
    /// Likewise: partial results of attention.
    pub(crate) partials: (u64, u64),
    /// Likewise: which rows are of which experts, from their gated units to their sum.
    pub(crate) row_groups: (u64, u64),
    /// Likewise: keys and values that are made of a latent cache for a step, and what makes them.
    pub(crate) expanded: (u64, u64),
    /// Likewise: what is found in the parts of rows of logits.
    pub(crate) choose_parts: (u64, u64),
    /// Length of the arena.
    pub(crate) bytes: u64,
    /// Bytes that groups of one launch need to tell each other something: outside the arena.
    pub(crate) messages: u64,
}

/// Where rows lie, how wide they are, and how far apart, in f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRows {
    pub(crate) region: Region,
    pub(crate) width: usize,
    pub(crate) stride: usize,
    pub(crate) rows: Rows,
}

/// The result of an op as the operand of the next op's gemm: the kernel that makes the result writes it there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectOperand {
    pub(crate) rows: Region,
    /// The format of the weights that the gemm multiplies it by.
    pub(crate) format: DeviceFormat,
    /// The power of two by which it is multiplied.
    pub(crate) factor: f32,
}

impl LoadedPlan<'_> {
    /// Where `value` lies once the arena is at `arena`.
    pub(crate) fn place(&self, layout: &ArenaLayout, arena: Region, value: Value) -> DeviceRows {
        let info = self.plan.value(value);
        let stride = info.width.next_multiple_of(ROW_ALIGN);
        let bytes = (num_rows(info.rows, layout.step.shape) * stride) as u64 * F32;
        let region = arena.part(layout.memory.offset(value) as u64 * F32, bytes);
        DeviceRows { region, width: info.width, stride, rows: info.rows }
    }

    /// The positions that a sequence can have here.
    pub(crate) fn max_positions(&self) -> usize {
        max_positions(self.plan, &self.cache.layout)
    }
}

/// Which of the layers with a router one is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutedLayer {
    pub(crate) index: usize,
    pub(crate) layers: usize,
}

/// One op of a program that is being lowered: what its kernels are told.
#[derive(Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) loaded: &'a LoadedPlan<'a>,
    /// For the op at hand.
    pub(crate) target: Target,
    pub(crate) layout: &'a ArenaLayout,
    pub(crate) arena: Region,
    pub(crate) step: StepRegions,
    pub(crate) shape: StepShape,
    pub(crate) messages: Region,
    /// Where the op at hand writes its result as the operand of the next op's gemm, and in no other place.
    pub(crate) writes: Option<DirectOperand>,
    /// What the op before wrote so for this one.
    pub(crate) reads: Option<DirectOperand>,
    /// The ids by whose experts the rows in [`ArenaLayout::row_groups`] are in order, and rows of a tile there.
    pub(crate) grouped: Option<(Value, usize)>,
    /// Index and count of layers with a router whose messages the next sum of experts reads and forgets.
    pub(crate) routed: Option<RoutedLayer>,
}

impl Site<'_> {
    /// Whether the plan has experts.
    pub(crate) fn has_experts(&self) -> bool {
        self.loaded.plan.ops.iter().any(|op| matches!(op, Op::MoeRoute { .. }))
    }

    /// Where `value` lies.
    pub(crate) fn place(&self, value: Value) -> DeviceRows {
        self.loaded.place(self.layout, self.arena, value)
    }

    /// Whether exactly one op reads `value`, so that a kernel which does that op's work need not store it.
    pub(crate) fn is_read_once(&self, value: Value) -> bool {
        self.loaded.plan.ops.iter().filter(|op| op.inputs().contains(&value)).count() == 1
    }

    /// Room for normalised rows of `x`.
    pub(crate) fn normed(&self, x: DeviceRows, rows: Rows) -> DeviceRows {
        let bytes = (self.num_rows(rows) * x.stride) as u64 * F32;
        DeviceRows { region: self.arena.part(self.layout.scratch.0, bytes), rows, ..x }
    }

    /// Where the count of live rows stands.
    pub(crate) fn live(&self, rows: Rows) -> Region {
        match rows {
            Rows::Tokens => self.step.num_tokens,
            Rows::Outputs => self.step.num_outputs,
        }
    }

    /// Rows that the program has room for.
    pub(crate) fn num_rows(&self, rows: Rows) -> usize {
        num_rows(rows, self.shape)
    }

    /// Which rows of values with `from` rows are those of `to`, i32; absent where all are.
    pub(crate) fn select(&self, from: Rows, to: Rows) -> Region {
        if (from, to) == (Rows::Tokens, Rows::Outputs) { self.step.output_rows } else { Region::default() }
    }

    /// The f32 vector `weight`, or an absent operand.
    pub(crate) fn vector(&self, weight: Option<WeightId>) -> Region {
        self.loaded.weights.vector(weight)
    }
}

/// Rows of a value in a step of `shape`.
pub(crate) fn num_rows(rows: Rows, shape: StepShape) -> usize {
    match rows {
        Rows::Tokens => shape.tokens,
        Rows::Outputs => shape.outputs,
    }
}

/// A size as kernels count.
pub(crate) fn index(n: usize) -> i32 {
    i32::try_from(n).expect("sizes of one tensor fit 32 bits: `load` checks them")
}
