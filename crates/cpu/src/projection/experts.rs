//! The projections of a row by the experts that were chosen for it. The slots of all rows are grouped by expert; each
//! group is to its expert's matrix what the rows of a step are to a dense one, so the kernels are the same; and results go
//! to the slots they belong to.
//!
//! Each worker groups the slots for itself, because a few thousand ids take less time than a barrier.

use plan::{Activation, Experts, Norm, Rows, Value};
use tensor::Tensor;

use super::prepare::{Operand, PrepareRow, RowBuffers};
use super::run::{Room, multiply, project_columns};
use super::{Forms, LinearRef, ProjectVariant, Projection, REDUNDANT_ROWS, choose_project, operand_words};
use crate::kernels::elementwise::WeightedSum;
use crate::kernels::linear::Output;
use crate::kernels::linear_blocks::Streaming;
use crate::kernels::linear_tiles;
use crate::kernels::quantize::BLOCK_LEN;
use crate::pool::{Turns, Worker};
use crate::profile::Facts;
use crate::program::{Compiler, NormRef, Place, Work};
use crate::shared::SharedSlice;
use crate::step::{Scratch, Step};

/// What chosen experts compute of `x`.
pub(crate) struct ExpertProjections {
    /// (rows, in_features), or (rows, top_k · in_features).
    pub(crate) x: Value,
    /// Over the rows of `x`, where these are not slices.
    pub(crate) norm: Option<Norm>,
    pub(crate) slots: Slots<Value>,
    pub(crate) experts: Experts,
    /// What the activation of `experts` multiplies.
    pub(crate) up: Option<(Experts, Activation)>,
    pub(crate) result: ExpertResult<Value>,
}

/// Which experts each row has, one in each slot.
#[derive(Clone, Copy)]
pub(crate) enum Slots<V> {
    /// The experts whose ids are in this value, (rows, top_k).
    Chosen(V),
    /// All experts in order. `head_linear` uses this, because each head has a matrix of its own.
    Every(Rows),
}

/// The ids of a row's experts in the arena, (rows, top_k).
#[derive(Clone, Copy)]
enum Ids {
    At(Place),
    /// No ids are stored, because each row has all experts; only the place's shape is used.
    All(Place),
}

impl Ids {
    fn rows(self) -> Rows {
        let (Self::At(place) | Self::All(place)) = self;
        place.rows
    }

    fn top_k(self) -> usize {
        let (Self::At(place) | Self::All(place)) = self;
        place.width
    }
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(place) => place.fmt(f),
            Self::All(Place { width, rows, .. }) => write!(f, "all {width} of {rows:?}"),
        }
    }
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpertResult<V> {
    /// To (rows, top_k · out_features): each to its slot.
    Slots(V),
    /// To `out`, (rows, out_features): `residual` and the sum of the slots, each times its weight, (rows, top_k).
    Sum { weights: V, residual: V, out: V },
}

/// A matrix and a bias for each expert, by their places in the plan.
#[derive(Clone, Copy, Debug)]
struct Stack {
    first: usize,
    bias: Option<usize>,
}

impl Stack {
    fn linear(self, expert: usize) -> LinearRef {
        LinearRef { weight: self.first + expert, bias: self.bias.map(|bias| bias + expert) }
    }
}

impl From<Experts> for Stack {
    fn from(experts: Experts) -> Self {
        Self { first: experts.first.index(), bias: experts.bias.map(|bias| bias.index()) }
    }
}

#[derive(Debug)]
struct ExpertProject {
    x: Place,
    norm: Option<NormRef>,
    ids: Ids,
    /// Experts that there are.
    count: usize,
    /// Features that each of them multiplies, and makes.
    in_features: usize,
    out_features: usize,
    stack: Stack,
    up: Option<(Stack, Activation)>,
    result: ExpertResult<Place>,
    /// Whether some weight multiplies floats; quantised rows; rows rounded to bfloat16.
    floats: bool,
    quantized: bool,
    rounded: bool,
    variant: ProjectVariant,
    /// Where rows that all workers share begin in the arena, and products that are summed.
    rows_start: usize,
    products_start: usize,
}

/// f32 of the arena that the experts of `rows` rows share between their barriers: rows of `in_features`, or products of
/// `out_features`, for each slot.
pub(crate) fn shared_len(rows: usize, experts: &Experts, top_k: usize, plan: &plan::Plan) -> usize {
    match plan.weight(experts.first).shape[..] {
        [out_features, in_features] => rows * top_k * (in_features + out_features),
        _ => 0,
    }
}

pub(crate) fn compile(compiler: &mut Compiler<'_>, projections: ExpertProjections) -> Box<dyn Work> {
    let ExpertProjections { x, norm, slots: slots_of, experts, up, result } = projections;
    let (plan, source) = (compiler.source.plan, compiler.source);
    let ids = match slots_of {
        Slots::Chosen(ids) => Ids::At(compiler.place(ids)),
        Slots::Every(rows) => Ids::All(Place { start: 0, width: experts.count, rows }),
    };
    let (rows, top_k) = (compiler.rows(ids.rows()), ids.top_k());
    let slots = rows * top_k;
    let &[out_features, in_features] = &plan.weight(experts.first).shape[..] else {
        unreachable!("the verifier checks that experts are matrices")
    };
    let stacks = [Some(experts), up.map(|(up, _)| up)].into_iter().flatten();
    let matrices = stacks.flat_map(|stack| (0..stack.count).map(move |expert| stack.linear(expert).weight.index()));
    let tensors: Vec<&Tensor> = matrices.map(|weight| &source.weights[weight]).collect();
    let forms = Forms::of(source, &tensors);
    let row_bytes = tensors.iter().map(|tensor| tensor.row_bytes()).max().unwrap_or(0);
    // As many rows as an expert has where they choose evenly, and the experts that some row chooses then.
    let rows_of_one = slots.div_ceil(experts.count);
    let columns = match result {
        ExpertResult::Slots(_) => out_features * slots.min(experts.count),
        ExpertResult::Sum { .. } => out_features,
    };
    let mut variant = choose_project(rows_of_one, columns, row_bytes, source.threads, forms.multiplied());
    variant.redundant = rows <= REDUNDANT_ROWS && source.threads > 1;
    // The largest group there may be has every row.
    forms.reserve(&mut compiler.sizes, &tensors, variant, [slots, rows], in_features);
    let float_rows = if forms.floats && variant.redundant { slots * in_features } else { 0 };
    let worker = &mut compiler.sizes.worker;
    // One row more, which is normalised before it becomes something else.
    worker.rows = worker.rows.max(in_features + float_rows);
    worker.slots = worker.slots.max(Groups::room(slots, experts.count));
    if up.is_some() {
        worker.up = worker.up.max(rows * variant.chunk_columns);
    }
    if matches!(result, ExpertResult::Sum { .. }) && sums_in_turns(rows) {
        worker.up = worker.up.max(slots * variant.chunk_columns);
    }
    let Forms { floats, quantized, rounded, .. } = forms;
    let rows_start = compiler.expert_rows;
    Box::new(ExpertProject {
        x: compiler.place(x),
        norm: norm.map(NormRef::from),
        ids,
        count: experts.count,
        in_features,
        out_features,
        stack: experts.into(),
        up: up.map(|(up, activation)| (up.into(), activation)),
        result: match result {
            ExpertResult::Slots(out) => ExpertResult::Slots(compiler.place(out)),
            ExpertResult::Sum { weights, residual, out } => {
                let [weights, residual, out] = [weights, residual, out].map(|value| compiler.place(value));
                ExpertResult::Sum { weights, residual, out }
            }
        },
        floats,
        quantized,
        rounded,
        variant,
        rows_start,
        products_start: rows_start + slots * in_features,
    })
}

/// Whether a worker sums the experts of its own columns, so that no other has to wait for it: where the products of all
/// slots stay in its cache.
fn sums_in_turns(rows: usize) -> bool {
    rows <= REDUNDANT_ROWS
}

impl Work for ExpertProject {
    fn run(&self, step: &Step<'_>, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        let Scratch { rows, quantized, rounded, up, panel, widened, sums, slots, .. } = scratch;
        let groups = Groups::new(step, self, slots);
        let x = self.prepare(step, &groups, worker, RowBuffers { rows, quantized, rounded });
        let room = Room { panel, packs: self.variant.panel, widened, sums, streaming: Streaming::default() };
        match self.result {
            ExpertResult::Slots(out) => self.to_slots(step, &groups, &x, out.start, turns, worker, up, room),
            ExpertResult::Sum { weights, residual, out } if sums_in_turns(step.num_rows(self.ids.rows())) => {
                self.sum_in_turns(step, &groups, &x, [weights, residual, out], turns, worker, up, room);
            }
            ExpertResult::Sum { weights, residual, out } => {
                self.to_slots(step, &groups, &x, self.products_start, turns, worker, up, room);
                worker.barrier();
                let width = out.width;
                step.each_row(worker, out, |row, out| {
                    let start = self.products_start + row * self.ids.top_k() * width;
                    // SAFETY: written before the barrier just passed, and by nobody until the next.
                    let x = unsafe { step.arena.read(start..start + self.ids.top_k() * width) };
                    let (weights, residual) = (step.row(weights, row), Some(step.row(residual, row)));
                    step.isa.run(WeightedSum { stride: width, x, weights, residual, out });
                });
            }
        }
    }

    fn variant(&self, facts: &Facts<'_>) -> String {
        let operand = operand_words(self.quantized, self.rounded);
        let prepared = if self.variant.redundant { "made by each thread" } else { "made once" };
        let is_packed = facts.packed[self.stack.first].is_some();
        let layout = if is_packed { ", packed panels" } else { "" };
        format!("{}{layout}, rows in {operand} {prepared}, {} columns a turn", facts.isa, self.variant.chunk_columns)
    }
}

impl ExpertProject {
    /// The rows that experts multiply, group after group, in each form that a weight needs.
    fn prepare<'a>(
        &self,
        step: &'a Step<'a>,
        groups: &Groups<'_>,
        worker: &Worker<'_>,
        own: RowBuffers<'a>,
    ) -> Operand<'a> {
        let (k, top_k) = (self.in_features, self.ids.top_k());
        let rows = step.num_rows(self.ids.rows());
        let slots = rows * top_k;
        let widths = [
            if self.floats { k } else { 0 },
            if self.quantized { k / BLOCK_LEN } else { 0 },
            if self.rounded { linear_tiles::padded(k) } else { 0 },
        ];
        let (normed, own_rows) = own.rows.split_at_mut(k);
        let norm = self.norm.map(|norm| (step.vectors[norm.weight].as_slice(), norm.eps));
        let is_shared = self.x.width == k;
        // Each form of the row at a place, made from `x`, which is normalised already.
        let mut fill = |row: usize, write: &mut dyn FnMut(usize, &[f32])| {
            let source = step.row(self.x, row);
            if let Some((weight, eps)) = norm {
                step.isa.run(crate::kernels::rms_norm::RmsNorm { x: source, weight, eps, out: normed });
            }
            let source = if norm.is_some() { &*normed } else { source };
            for slot in 0..top_k {
                let x = if is_shared { source } else { &source[slot * k..(slot + 1) * k] };
                write(groups.place_of(row * top_k + slot), x);
            }
        };
        let make = |x: &[f32], floats: &mut [f32], out: RowBuffers<'_>| {
            floats.copy_from_slice(&x[..floats.len()]);
            step.isa.run(PrepareRow { x, norm: None, out });
        };
        if self.variant.redundant {
            for row in 0..rows {
                fill(row, &mut |place, x| {
                    let at = |form: usize| place * widths[form]..(place + 1) * widths[form];
                    let (quantized, rounded) = (&mut own.quantized[at(1)], &mut own.rounded[at(2)]);
                    make(x, &mut own_rows[at(0)], RowBuffers { rows: &mut [], quantized, rounded });
                });
            }
            let [floats, blocks, halves] = widths.map(|width| slots * width);
            let (floats, blocks) = (&own_rows[..floats], &own.quantized[..blocks]);
            return Operand { rows: slots, k, floats, blocks, rounded: &own.rounded[..halves] };
        }
        for row in worker.share(rows) {
            fill(row, &mut |place, x| {
                let at = |form: usize, start: usize| start + place * widths[form]..start + (place + 1) * widths[form];
                // SAFETY: each row is in one worker's share, and each of its slots has a place of its own.
                let floats = unsafe { step.arena.write(at(0, self.rows_start)) };
                // SAFETY: as above.
                let (quantized, rounded) = unsafe { (step.quantized.write(at(1, 0)), step.rounded.write(at(2, 0))) };
                make(x, floats, RowBuffers { rows: &mut [], quantized, rounded });
            });
        }
        worker.barrier();
        let [floats, blocks, halves] = widths.map(|width| slots * width);
        // SAFETY: written before the barrier just passed, and by nobody until the next.
        unsafe {
            let floats = step.arena.read(self.rows_start..self.rows_start + floats);
            let (blocks, rounded) = (step.quantized.read(0..blocks), step.rounded.read(0..halves));
            Operand { rows: slots, k, floats, blocks, rounded }
        }
    }

    /// Every result into its slot of (rows, top_k · out_features) at `start`.
    #[expect(clippy::too_many_arguments, reason = "a step, what it is about, and a worker's own memory")]
    fn to_slots(
        &self,
        step: &Step<'_>,
        groups: &Groups<'_>,
        x: &Operand<'_>,
        start: usize,
        turns: &Turns,
        worker: &Worker<'_>,
        up: &mut [f32],
        mut room: Room<'_>,
    ) {
        let columns_in_turn = self.variant.chunk_columns;
        let chunks = self.out_features.div_ceil(columns_in_turn);
        let out = Place { start, width: self.out_features, rows: self.ids.rows() };
        for item in worker.take_turns(turns, groups.active.len() * chunks) {
            let (expert, slots) = groups.of(item / chunks);
            let first = item % chunks * columns_in_turn;
            let columns = first..(first + columns_in_turn).min(self.out_features);
            let projection = Projection {
                linear: self.stack.linear(expert),
                up: self.up.map(|(up, activation)| (up.linear(expert), activation)),
                out,
                residual: None,
                makes_logits: false,
                peaks: None,
            };
            let rows = &groups.order[slots.clone()];
            project_columns(step, &projection, &x.rows(slots), Some(rows), columns, up, &mut room);
        }
    }

    /// Some columns of all experts of all rows, and their sum with the residual.
    #[expect(clippy::too_many_arguments, reason = "a step, what it is about, and a worker's own memory")]
    fn sum_in_turns(
        &self,
        step: &Step<'_>,
        groups: &Groups<'_>,
        x: &Operand<'_>,
        [weights, residual, out]: [Place; 3],
        turns: &Turns,
        worker: &Worker<'_>,
        products: &mut [f32],
        mut room: Room<'_>,
    ) {
        let columns_in_turn = self.variant.chunk_columns;
        for item in worker.take_turns(turns, self.out_features.div_ceil(columns_in_turn)) {
            let first = item * columns_in_turn;
            let columns = first..(first + columns_in_turn).min(self.out_features);
            let stride = columns.len();
            let values = &SharedSlice::new(&mut products[..groups.order.len() * stride]);
            let output = Output {
                values,
                start: 0,
                stride,
                first_column: columns.start,
                bias: None,
                residual: None,
                rows: None,
            };
            for index in 0..groups.active.len() {
                let (expert, slots) = groups.of(index);
                let output = Output { rows: Some(&groups.order[slots.clone()]), ..output };
                multiply(step, self.stack.linear(expert), &x.rows(slots), columns.clone(), output, &mut room);
            }
            for row in 0..step.num_rows(self.ids.rows()) {
                let slots = row * self.ids.top_k() * stride;
                // SAFETY: the slice is this worker's own, and nothing writes to it any more.
                let x = unsafe { values.read(slots..slots + self.ids.top_k() * stride) };
                let (weights, residual) = (step.row(weights, row), &step.row(residual, row)[columns.clone()]);
                let start = out.start + row * out.width;
                // SAFETY: these columns are this worker's alone in this op.
                let out = unsafe { step.arena.write(start + columns.start..start + columns.end) };
                step.isa.run(WeightedSum { stride, x, weights, residual: Some(residual), out });
            }
        }
    }
}

/// The slots of all rows, (row · top_k + slot), by their experts.
struct Groups<'a> {
    /// Slot by place: those of one expert lie side by side, in order.
    order: &'a [u32],
    /// Place by slot.
    places: &'a [u32],
    /// The first place of each expert, and the end.
    starts: &'a [u32],
    /// The experts that have any.
    active: &'a [u32],
}

impl<'a> Groups<'a> {
    /// Numbers that grouping `slots` slots of `count` experts takes.
    fn room(slots: usize, count: usize) -> usize {
        2 * slots + (count + 1) + count
    }

    /// The slots of the step's rows. Ids that were chosen are below the number of experts.
    fn new(step: &Step<'_>, project: &ExpertProject, room: &'a mut [u32]) -> Self {
        let (rows, count) = (step.num_rows(project.ids.rows()), project.count);
        let slots = rows * project.ids.top_k();
        let (order, room) = room.split_at_mut(slots);
        let (places, room) = room.split_at_mut(slots);
        let (starts, room) = room.split_at_mut(count + 1);
        let active = &mut room[..count];
        let ids = match project.ids {
            Ids::At(ids) => ids,
            Ids::All(_) => {
                for (slot, place) in places.iter_mut().enumerate() {
                    let of_slot = slot % count * rows + slot / count;
                    (order[of_slot], *place) = (slot as u32, of_slot as u32);
                }
                starts.iter_mut().enumerate().for_each(|(expert, start)| *start = (expert * rows) as u32);
                active.iter_mut().zip(0..).for_each(|(active, expert)| *active = expert);
                let num_active = if rows > 0 { count } else { 0 };
                return Self { order, places, starts, active: &active[..num_active] };
            }
        };
        // SAFETY: written before the last barrier, and by nobody in this op: its result lies elsewhere.
        let ids = unsafe { step.arena.read(ids.start..ids.start + slots) };
        // A choice among logits that are not numbers is an expert all the same.
        let expert = |id: f32| (id as usize).min(count - 1);
        starts.fill(0);
        ids.iter().for_each(|&id| starts[expert(id) + 1] += 1);
        for (expert, next) in active.iter_mut().enumerate() {
            // For now, the place of each expert's next slot.
            *next = starts[expert];
            starts[expert + 1] += starts[expert];
        }
        for (slot, &id) in ids.iter().enumerate() {
            let next = &mut active[expert(id)];
            order[*next as usize] = slot as u32;
            places[slot] = *next;
            *next += 1;
        }
        let mut num_active = 0;
        for expert in 0..count {
            if starts[expert] < starts[expert + 1] {
                active[num_active] = expert as u32;
                num_active += 1;
            }
        }
        Self { order, places, starts, active: &active[..num_active] }
    }

    fn place_of(&self, slot: usize) -> usize {
        self.places[slot] as usize
    }

    /// The `index`-th of the experts that have any slots, with the places of these.
    fn of(&self, index: usize) -> (usize, std::ops::Range<usize>) {
        let expert = self.active[index] as usize;
        (expert, self.starts[expert] as usize..self.starts[expert + 1] as usize)
    }
}
