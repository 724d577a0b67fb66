//! Lowering: a plan and a step shape become a list of kernel launches with every operand placed.

use plan::{Activation, Attention, KvFormat, Linear, MemoryPlan, Norm, Op, Plan, Rows, StepShape, Value, WeightId};

use crate::dispatch::{
    self, BatchVariant, GEMM_GROUP_BYTES, GemmVariant, LinearKind, ProjectionsShape, STREAM_THREADS, StreamKind,
    StreamVariant, Target,
};
use crate::forced::Kernel;
use crate::glu_bounds::GluBounds;
use crate::kv_cache::KvCache;
use crate::launch::{Access, Element, GROUP_SIMDS, GROUP_THREADS, Launch, Region, TileMap};
use crate::params::{
    ActivationParams, AttentionParams, BlockCopyParams, ChooseParams, ChoosePart, Chosen, ElementwiseParams,
    EmbedParams, GemmParams, GemmSegment, KvWriteParams, LinearBatchParams, LinearParams, LinearSegment,
    LinearStreamParams, OperandPlace, RmsNormParams, RopeKvWriteParams, RopeParams, SampleParams,
};
use crate::step_input::{AttentionItems, StepLayout, StepRegions, max_positions};
use crate::weights::{DeviceFormat, DeviceWeight, DeviceWeights, row_bytes, scales_of_256};

/// Rows of values begin at multiples of this many f32, so that kernels load 16 bytes at a time.
const ROW_ALIGN: usize = 4;
const F32: u64 = size_of::<f32>() as u64;
/// f32 beside the weighted values of a split: their maximum, and the sum of their weights.
const STATS_LEN: usize = 2;

/// What a program is lowered from.
pub(crate) struct Source<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a DeviceWeights,
    /// (positions, head_dim / 2) of cosine and sine, one for each of [`Plan::ropes`].
    pub(crate) angles: &'a [Region],
    /// i32, one for each of [`Plan::orders`].
    pub(crate) orders: &'a [Region],
    pub(crate) cache: &'a KvCache,
    pub(crate) target: Target,
    /// Counters of attention, zero between launches.
    pub(crate) counters: Region,
    /// Where the tokens lie that a step chooses: a [`Chosen`] for each output.
    pub(crate) chosen: Region,
    pub(crate) glu_bounds: &'a GluBounds,
}

/// Where a program's values lie, before it is known where memory is.
#[derive(Clone, Debug)]
pub(crate) struct ArenaLayout {
    pub(crate) step: StepLayout,
    memory: MemoryPlan,
    /// Bytes from the start of the arena: rows that an op needs between its kernels, and partial results of attention.
    scratch: (u64, u64),
    /// Rows that an op leaves for the gemm of the one behind.
    handed: (u64, u64),
    partials: (u64, u64),
    /// What is found in the parts of rows of logits.
    choose_parts: (u64, u64),
    /// All of it.
    pub(crate) bytes: u64,
    /// Bytes that groups of one launch need to tell each other something: outside the arena.
    pub(crate) messages: u64,
}

/// The launches of one op; none where those of the op ahead do its work too.
#[derive(Clone, Debug)]
pub(crate) struct OpLaunches {
    /// Its place in [`Plan::ops`].
    pub(crate) op: usize,
    pub(crate) launches: Vec<Launch>,
}

/// The second operand of a kernel of elements.
#[derive(Clone, Copy, Debug)]
enum Other {
    Rows(Place),
    /// Which rows or columns of the first, i32.
    Indices(Region),
}

/// Where rows lie, and how far apart they are in f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) region: Region,
    pub(crate) width: usize,
    pub(crate) stride: usize,
    pub(crate) rows: Rows,
}

impl Source<'_> {
    /// Lays out the arena for steps of up to `shape`.
    pub(crate) fn lay_out(&self, shape: StepShape) -> ArenaLayout {
        let mut padded = self.plan.clone();
        padded.values.iter_mut().for_each(|value| value.width = value.width.next_multiple_of(ROW_ALIGN));
        let memory = MemoryPlan::new(&padded, shape);
        let scratch = self.plan.ops.iter().map(|op| self.scratch_bytes(op, shape)).max().unwrap_or(0);
        let partials = self.plan.ops.iter().map(|op| self.partials_len(op, shape)).max().unwrap_or(0) as u64 * F32;
        let values = (memory.len as u64 * F32).next_multiple_of(256);
        let scratch_end = values + scratch.next_multiple_of(256);
        let handed = self.plan.ops.windows(2).map(|pair| self.handed_bytes(pair, shape)).max().unwrap_or(0);
        let handed_end = scratch_end + handed.next_multiple_of(256);
        let partials_end = handed_end + partials.next_multiple_of(256);
        let parts = dispatch::choose_parts(self.plan.vocab_size) * shape.outputs * size_of::<ChoosePart>();
        ArenaLayout {
            step: StepLayout::new(shape, self.plan, &self.cache.layout, self.has_attention_tiles()),
            memory,
            scratch: (values, scratch),
            handed: (scratch_end, handed),
            partials: (handed_end, partials),
            choose_parts: (partials_end, parts as u64),
            bytes: partials_end + (parts as u64).next_multiple_of(256),
            messages: self.plan.ops.iter().map(|op| self.messages_bytes(op, shape)).max().unwrap_or(0),
        }
    }

    /// Bytes of messages of an op's projections, whatever format their weights are in: there may be none yet.
    fn messages_bytes(&self, op: &Op, shape: StepShape) -> u64 {
        let (x, rows, glu, linears) = match *op {
            Op::Linear { x, linear, .. } | Op::LinearResidual { x, linear, .. } => {
                (x, self.plan.value(x).rows, false, vec![linear])
            }
            Op::NormLinear { x, ref projections, .. } => {
                (x, self.plan.value(x).rows, false, projections.iter().map(|&(linear, _)| linear).collect())
            }
            Op::NormGlu { x, gate, .. } => (x, self.plan.value(x).rows, true, vec![gate]),
            Op::Logits { x, head, .. } => (x, Rows::Outputs, false, vec![head]),
            _ => return 0,
        };
        let features: Vec<_> = linears.iter().map(|linear| self.plan.weight(linear.weight).shape[0]).collect();
        let (rows, k) = (num_rows(rows, shape), self.plan.value(x).width);
        let bytes = |format| {
            features.chunks(SEGMENTS).filter_map(move |features| {
                let shape = ProjectionsShape { format, rows, k, glu, features };
                let variant = dispatch::linear_batch(&self.target, shape)?;
                Some(variant.partials_bytes + variant.squares_bytes)
            })
        };
        DeviceFormat::ALL.into_iter().flat_map(bytes).max().unwrap_or(0)
    }

    /// Bytes of an op's rows between its kernels: normalised, or as the operand of a gemm.
    fn scratch_bytes(&self, op: &Op, shape: StepShape) -> u64 {
        let (x, normed, rows) = match *op {
            Op::NormLinear { x, .. } | Op::NormGlu { x, .. } => (x, true, self.plan.value(x).rows),
            Op::Logits { x, .. } => (x, true, Rows::Outputs),
            Op::Linear { x, .. } | Op::LinearResidual { x, .. } => (x, false, self.plan.value(x).rows),
            _ => return 0,
        };
        let (rows, width) = (num_rows(rows, shape), self.plan.value(x).width);
        // Which of the two it is may depend on weights, and there may be none yet.
        let normed = normed && !dispatch::normalises_on_the_way(rows);
        let normed = if normed { (rows * width.next_multiple_of(ROW_ALIGN)) as u64 * F32 } else { 0 };
        let gemm =
            if dispatch::has_gemm(&self.target.of(op.name()), rows) { GemmOperand::bytes(rows, width) } else { 0 };
        normed.max(gemm)
    }

    /// Bytes of the rows that the first op of `pair` may leave for the second, whatever format weights are in.
    fn handed_bytes(&self, pair: &[Op], shape: StepShape) -> u64 {
        let Some((out, next)) = handed_value(&pair[0], &pair[1]) else { return 0 };
        let (rows, k) = (num_rows(self.plan.value(out).rows, shape), self.plan.value(out).width);
        let target = self.target.of(next);
        if dispatch::has_gemm(&target, rows) && dispatch::is_narrow(rows) { GemmOperand::row_bytes(rows, k) } else { 0 }
    }

    /// Ops that read a value.
    fn num_readers(&self, value: Value) -> usize {
        self.plan.ops.iter().filter(|op| op.inputs().contains(&value)).count()
    }

    /// f32 of the partial results of an attention whose rows are cut.
    fn partials_len(&self, op: &Op, shape: StepShape) -> usize {
        let Op::Attention { ref attention, .. } = *op else { return 0 };
        let singles = self.attention_items(shape).singles;
        let variant = self.attention_variant(attention, singles);
        if variant.max_splits == 1 || variant.loops {
            return 0;
        }
        singles * attention.heads * variant.max_splits * (variant.dim + STATS_LEN)
    }

    /// For `rows` that are taken for themselves.
    fn attention_variant(&self, attention: &Attention, rows: usize) -> dispatch::AttentionVariant {
        let layer = self.cache.layers[attention.layer].layer;
        let shape = dispatch::AttentionShape {
            rows,
            heads: attention.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            max_positions: self.max_positions(),
        };
        dispatch::attention(&self.target.of("attention"), self.cache.layout.format, shape)
    }

    fn attention_tiles(&self, head_dim: usize) -> Option<dispatch::AttentionTilesVariant> {
        dispatch::attention_tiles(&self.target.of("attention"), self.cache.layout.format, head_dim)
    }

    /// Whether there are kernels for many rows of a sequence, for all layers.
    fn has_attention_tiles(&self) -> bool {
        self.cache.layers.iter().all(|layer| self.attention_tiles(layer.layer.head_dim).is_some())
    }

    fn attention_items(&self, shape: StepShape) -> AttentionItems {
        AttentionItems::new(shape, self.has_attention_tiles())
    }

    fn max_positions(&self) -> usize {
        max_positions(self.plan, &self.cache.layout)
    }

    /// The launches of every op, with the arena at `arena`, the step input at `step` and messages at `messages`. Where values are
    /// to be kept, all are written, for those who look at them; otherwise a kernel may do without one that only it reads.
    pub(crate) fn lower(
        &self,
        layout: &ArenaLayout,
        [arena, step, messages]: [Region; 3],
        keep: bool,
    ) -> Vec<OpLaunches> {
        let (step, shape) = (layout.step.place(step), layout.step.shape);
        let (target, hands, handed) = (self.target, None, None);
        let mut program = Program { source: self, target, layout, arena, step, shape, messages, hands, handed };
        let mut ops = Vec::with_capacity(self.plan.ops.len());
        while let Some(op) = self.plan.ops.get(ops.len()) {
            let index = ops.len();
            let next = self.plan.ops.get(index + 1);
            program.target = self.target.of(op.name());
            program.handed = program.hands;
            program.hands = next.filter(|_| !keep).and_then(|next| program.hands_to(op, next));
            let both = next.and_then(|next| program.norm_linear_rope(op, next));
            if let Some(launch) = both {
                ops.push(OpLaunches { op: index, launches: vec![launch] });
                ops.push(OpLaunches { op: index + 1, launches: vec![] });
            } else {
                ops.push(OpLaunches { op: index, launches: program.op(op) });
            }
        }
        ops
    }

    /// The launches that choose a token for each output row.
    pub(crate) fn choose(&self, layout: &ArenaLayout, arena: Region, step: Region) -> [Launch; 2] {
        let logits = self.place(layout, arena, self.plan.logits);
        let (outputs, rows) = (layout.step.shape.outputs, layout.step.place(step).num_outputs);
        let parts = arena.part(layout.choose_parts.0, layout.choose_parts.1);
        let chosen = self.chosen.part(0, (outputs * size_of::<Chosen>()) as u64);
        let num_parts = dispatch::choose_parts(logits.width);
        let params = ChooseParams {
            logits: logits.region.address,
            rows: rows.address,
            parts: parts.address,
            chosen: chosen.address,
            n: index(logits.width),
            stride: index(logits.stride / ROW_ALIGN),
            num_parts: index(num_parts),
            padding: 0,
        };
        let launch = |kernel, groups| {
            Launch::new(kernel, [groups, outputs, 1], &params)
                .with(Access::Read, logits.region)
                .with(Access::Constant, rows)
        };
        [
            launch("choose_part_f32", num_parts).with(Access::Write, parts),
            launch("choose_f32", 1).with(Access::Read, parts).with(Access::Write, chosen),
        ]
    }

    /// The launch that draws the tokens of output rows which the step input wants drawn, behind [`Self::choose`].
    pub(crate) fn sample(&self, layout: &ArenaLayout, arena: Region, step: Region) -> Launch {
        let logits = self.place(layout, arena, self.plan.logits);
        let (outputs, step) = (layout.step.shape.outputs, layout.step.place(step));
        let chosen = self.chosen.part(0, (outputs * size_of::<Chosen>()) as u64);
        let params = SampleParams {
            logits: logits.region.address,
            rows: step.num_outputs.address,
            sampling: step.sampling.address,
            chosen: chosen.address,
            n: index(logits.width),
            stride: index(logits.stride / ROW_ALIGN),
        };
        Launch::new("sample_f32", [1, outputs, 1], &params)
            .with_groups_of(SAMPLE_THREADS, 0)
            .with(Access::Read, logits.region)
            .with(Access::Constant, step.num_outputs)
            .with(Access::Constant, step.sampling)
            .with(Access::Update, chosen)
    }

    /// Where `value` lies once the arena is at `arena`.
    pub(crate) fn place(&self, layout: &ArenaLayout, arena: Region, value: Value) -> Place {
        let info = self.plan.value(value);
        let stride = info.width.next_multiple_of(ROW_ALIGN);
        let bytes = (num_rows(info.rows, layout.step.shape) * stride) as u64 * F32;
        let region = arena.part(layout.memory.offset(value) as u64 * F32, bytes);
        Place { region, width: info.width, stride, rows: info.rows }
    }
}

/// The launch that copies one block of one layer over another.
pub(crate) fn block_copy(cache: &KvCache, layer: usize, from: u32, to: u32) -> Launch {
    let layer = &cache.layers[layer];
    let halves = layer.block_bytes(&cache.layout) / 2;
    let params = BlockCopyParams {
        keys: layer.keys.address,
        values: layer.values.address,
        from: index(from as usize),
        to: index(to as usize),
        block_halves: index(halves),
        padding: 0,
    };
    Launch::new("block_copy", [halves.div_ceil(GROUP_THREADS as usize), 2, 1], &params)
        .with(Access::Update, layer.keys)
        .with(Access::Update, layer.values)
}

fn num_rows(rows: Rows, shape: StepShape) -> usize {
    match rows {
        Rows::Tokens => shape.tokens,
        Rows::Outputs => shape.outputs,
    }
}

/// The result of `op` that is the activation of the projection `next`, whose name is given.
fn handed_value(op: &Op, next: &Op) -> Option<(Value, &'static str)> {
    let (Op::Attention { out, .. } | Op::NormGlu { out, .. }) = *op else { return None };
    let (Op::Linear { x, .. } | Op::LinearResidual { x, .. }) = *next else { return None };
    (x == out).then(|| (out, next.name()))
}

/// Threads of a group of `kernels/sample.h`.
const SAMPLE_THREADS: u32 = 512;

/// A size as kernels count.
fn index(n: usize) -> i32 {
    i32::try_from(n).expect("sizes of one tensor fit 32 bits: `load` checks them")
}

/// Weights that one launch of `linear` multiplies with.
const SEGMENTS: usize = 3;

/// A projection, with the up projection of a gated unit, and where its result goes.
type Projection = (Linear, Option<Up>, Place);
/// What an activation of a projection multiplies.
type Up = (Linear, Activation);

/// A norm that the projection makes itself.
struct OnTheWay {
    norm: Norm,
    /// The row that is wanted, where not all are.
    select: Region,
    /// What is left of the rows then.
    rows: Rows,
}

/// Numbers of k in a stage, output features and rows of one copy.
const GEMM_TILE: [u32; 3] = [64, 128, 128];

/// Rows as a gemm takes them: 16-bit numbers, and what each row is to be multiplied by.
struct GemmOperand {
    rows: Region,
    scales: Region,
    num_rows: usize,
    k: usize,
    /// Numbers from row to row.
    stride: usize,
    /// What results are multiplied by where there are no scales.
    factor: f32,
}

/// The result of an op as the operand of the gemm behind, left there by the kernel whose result it is.
#[derive(Clone, Copy, Debug)]
struct Handed {
    rows: Region,
    /// Of the weights that it meets.
    format: DeviceFormat,
    /// The power of two by which it is multiplied.
    factor: f32,
}

impl Handed {
    fn place(self, k: usize) -> OperandPlace {
        OperandPlace {
            rows: self.rows.address,
            stride: index(k),
            order: dispatch::operand_order(self.format),
            factor: self.factor,
            is_bf16: i32::from(self.format == DeviceFormat::BF16),
        }
    }
}

impl GemmOperand {
    fn stride(k: usize) -> usize {
        k.next_multiple_of(GEMM_TILE[0] as usize)
    }

    /// Bytes of its rows.
    fn row_bytes(num_rows: usize, k: usize) -> u64 {
        (num_rows * Self::stride(k) * 2) as u64
    }

    /// Bytes of all of it.
    fn bytes(num_rows: usize, k: usize) -> u64 {
        Self::row_bytes(num_rows, k) + num_rows as u64 * F32
    }

    fn new(scratch: Region, num_rows: usize, k: usize) -> Self {
        let row_bytes = Self::row_bytes(num_rows, k);
        Self {
            rows: scratch.part(0, row_bytes),
            scales: scratch.part(row_bytes, num_rows as u64 * F32),
            num_rows,
            k,
            stride: Self::stride(k),
            factor: 1.0,
        }
    }

    fn handed(handed: Handed, num_rows: usize, k: usize) -> Self {
        let (rows, scales, factor) = (handed.rows, Region::default(), handed.factor.recip());
        Self { rows, scales, num_rows, k, stride: Self::stride(k), factor }
    }

    /// Tiles of so many of its rows.
    fn tiles(&self, at: usize, element: Element, rows: usize) -> TileMap {
        TileMap {
            at,
            address: self.rows.address,
            // Codes meet f16.
            element: if element == Element::BF16 { Element::BF16 } else { Element::F16 },
            dims: vec![self.stride as u64, self.num_rows as u64],
            strides: vec![self.stride as u64 * 2],
            tile: vec![GEMM_TILE[0], rows as u32],
            swizzled: true,
        }
    }
}

/// A matrix whose tiles a gemm copies.
#[derive(Clone, Copy)]
struct Matrix {
    region: Region,
    rows: usize,
    row_len: usize,
    element: Element,
}

impl Matrix {
    fn values(weight: &DeviceWeight) -> Self {
        let element = match weight.format {
            DeviceFormat::F16 => Element::F16,
            DeviceFormat::BF16 => Element::BF16,
            DeviceFormat::F32 => unreachable!("`dispatch::gemm` has none for f32"),
            _ => Element::I8,
        };
        let row_len = match element {
            Element::I8 => row_bytes(weight.format, weight.row_len),
            Element::F16 | Element::BF16 => weight.row_len,
        };
        Self { region: weight.values, rows: weight.rows, row_len, element }
    }

    fn scales(weight: &DeviceWeight) -> Self {
        Self { region: weight.scales, rows: weight.rows, row_len: weight.scale_stride(), element: Element::F16 }
    }

    /// Tiles of its rows; of gate and up, eight rows of each in turn.
    fn tiles(self, at: usize, up: Option<Self>, tile: [u32; 2], swizzled: bool) -> TileMap {
        let row_bytes = self.region.bytes / self.rows as u64;
        let [k, features] = tile;
        let (dims, strides, tile) = match up {
            None => (vec![self.row_len as u64, self.rows as u64], vec![row_bytes], vec![k, features]),
            Some(up) => (
                vec![self.row_len as u64, 8, 2, self.rows as u64 / 8],
                vec![row_bytes, up.region.address.0 - self.region.address.0, 8 * row_bytes],
                vec![k, 8, 2, features / 16],
            ),
        };
        TileMap { at, address: self.region.address, element: self.element, dims, strides, tile, swizzled }
    }
}

/// Whether a gemm can read `weight`: it reads eight scales at once, so rows of them must begin on 16 bytes.
fn tiles_can_be_copied(weight: &DeviceWeight) -> bool {
    weight.format != DeviceFormat::F32 && weight.scale_stride().is_multiple_of(8)
}

#[derive(Clone, Copy)]
struct Program<'a> {
    source: &'a Source<'a>,
    /// For the op at hand.
    target: Target,
    layout: &'a ArenaLayout,
    arena: Region,
    step: StepRegions,
    shape: StepShape,
    messages: Region,
    /// What the op at hand leaves for the one behind, in place of its result, and what it was left.
    hands: Option<Handed>,
    handed: Option<Handed>,
}

impl Program<'_> {
    fn op(&self, op: &Op) -> Vec<Launch> {
        let place = |value| self.place(value);
        match *op {
            Op::Embed { table, out } => vec![self.embed(table, place(out))],
            Op::RmsNorm { x, norm, out } => vec![self.rms_norm(place(x), norm, false, place(out))],
            Op::Linear { x, linear, out } => self.linear(place(x), &[(linear, None, place(out))], None),
            Op::NormLinear { x, norm, ref projections } => {
                let projections: Vec<_> = projections.iter().map(|&(linear, out)| (linear, None, place(out))).collect();
                self.norm_linear(place(x), norm, place(x).rows, &projections)
            }
            Op::NormGlu { x, norm, gate, up, activation, out } => {
                self.norm_linear(place(x), norm, place(x).rows, &[(gate, Some((up, activation)), place(out))])
            }
            Op::LinearResidual { x, linear, residual, out } => {
                self.linear(place(x), &[(linear, None, place(out))], Some(place(residual)))
            }
            Op::Logits { x, norm, head, out } => {
                self.norm_linear(place(x), norm, Rows::Outputs, &[(head, None, place(out))])
            }
            Op::Rope { x, rope, out } => vec![self.rope(place(x), rope, place(out))],
            Op::KvWrite { layer, k, v } => vec![self.kv_write(layer, place(k), place(v))],
            Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } => {
                vec![self.rope_kv_write([q, k, v, q_out].map(place), [q_norm, k_norm], rope, layer)]
            }
            Op::Attention { q, ref attention, out } => self.attention(place(q), attention, place(out)),
            Op::Glu { gate, up, activation, out } => {
                vec![self.elementwise("glu_f32", place(gate), Other::Rows(place(up)), Some(activation), place(out))]
            }
            Op::Add { a, b, out } => {
                vec![self.elementwise("add_f32", place(a), Other::Rows(place(b)), None, place(out))]
            }
            Op::GatherColumns { x, order, out } => {
                let order = Other::Indices(self.source.orders[order]);
                vec![self.elementwise("gather_columns_f32", place(x), order, None, place(out))]
            }
            Op::SelectOutputs { x, out } => {
                let rows = Other::Indices(self.step.output_rows);
                vec![self.elementwise("select_outputs_f32", place(x), rows, None, place(out))]
            }
        }
    }

    fn place(&self, value: Value) -> Place {
        self.source.place(self.layout, self.arena, value)
    }

    /// Room for normalised rows of `x`.
    fn normed(&self, x: Place, rows: Rows) -> Place {
        let bytes = (num_rows(rows, self.shape) * x.stride) as u64 * F32;
        Place { region: self.arena.part(self.layout.scratch.0, bytes), rows, ..x }
    }

    /// Where the count of live rows is.
    fn live(&self, rows: Rows) -> Region {
        match rows {
            Rows::Tokens => self.step.num_tokens,
            Rows::Outputs => self.step.num_outputs,
        }
    }

    fn rows(&self, rows: Rows) -> usize {
        num_rows(rows, self.shape)
    }

    fn vector(&self, weight: Option<WeightId>) -> Region {
        self.source.weights.vector(weight)
    }

    fn embed(&self, table: WeightId, out: Place) -> Launch {
        let table = self.source.weights.get(table);
        let params = EmbedParams {
            table: table.values.address,
            scales: table.scales.address,
            ids: self.step.token_ids.address,
            rows: self.live(out.rows).address,
            chosen: self.source.chosen.address,
            y: out.region.address,
            k: index(out.width),
            stride: index(out.stride),
            matrix_scale: table.matrix_scale,
            padding: 0,
        };
        // A thread takes a chunk of 4 weights or more.
        let groups = out.width.div_ceil(4).div_ceil(GROUP_THREADS as usize);
        Launch::new(dispatch::embed(table.format), [groups, self.rows(out.rows), 1], &params)
            .with(Access::Constant, table.values)
            .with(Access::Constant, table.scales)
            .with(Access::Constant, self.step.token_ids)
            .with(Access::Constant, self.live(out.rows))
            .with(Access::Read, self.source.chosen)
            .with(Access::Write, out.region)
    }

    /// With `select`, row i of `out` is made from the row of `x` that is the i-th output.
    fn rms_norm(&self, x: Place, norm: Norm, select: bool, out: Place) -> Launch {
        let gain = self.vector(Some(norm.weight));
        let width = self.source.weights.get(norm.weight).row_len;
        let select = if select { self.step.output_rows } else { Region::default() };
        let params = RmsNormParams {
            x: x.region.address,
            gain: gain.address,
            rows: self.live(out.rows).address,
            select: select.address,
            y: out.region.address,
            width: index(width),
            slices: index(x.width / width),
            x_stride: index(x.stride),
            y_stride: index(out.stride),
            eps: norm.eps,
            padding: 0,
        };
        Launch::new("rms_norm_f32", [x.width / width, self.rows(out.rows), 1], &params)
            .with(Access::Read, x.region)
            .with(Access::Constant, gain)
            .with(Access::Constant, self.live(out.rows))
            .with(Access::Constant, select)
            .with(Access::Write, out.region)
    }

    /// Projections of the normalised rows of `x`: those that are outputs, where `rows` are. Those in one format together.
    fn norm_linear(&self, x: Place, norm: Norm, rows: Rows, projections: &[Projection]) -> Vec<Launch> {
        let format = |&(linear, ..): &Projection| self.source.weights.get(linear.weight).format;
        let mut projections = projections.to_vec();
        // Stable, so that a model's own order stays where there is one format.
        projections.sort_by_key(|projection| format(projection) as u8);
        let of_one_format = projections.chunk_by(|a, b| format(a) == format(b));
        of_one_format.flat_map(|some| self.norm_linear_of_one_format(x, norm, rows, some)).collect()
    }

    fn norm_linear_of_one_format(&self, x: Place, norm: Norm, rows: Rows, projections: &[Projection]) -> Vec<Launch> {
        let select = rows == Rows::Outputs && x.rows == Rows::Tokens;
        if let Some(launches) = self.on_matrices(x, Some(norm), select, rows, projections, None) {
            return launches;
        }
        if dispatch::normalises_on_the_way(self.rows(rows)) {
            let norm = OnTheWay { norm, select: if select { self.step.output_rows } else { Region::default() }, rows };
            return projections.chunks(SEGMENTS).map(|some| self.linear_launch(x, Some(&norm), some, None)).collect();
        }
        let normed = self.normed(x, rows);
        let linears = projections.chunks(SEGMENTS).map(|some| self.linear_launch(normed, None, some, None));
        std::iter::once(self.rms_norm(x, norm, select, normed)).chain(linears).collect()
    }

    /// Up to three projections of the same rows, all weights in one format.
    fn linear(&self, x: Place, projections: &[Projection], residual: Option<Place>) -> Vec<Launch> {
        let launches = self.on_matrices(x, None, false, x.rows, projections, residual);
        launches.unwrap_or_else(|| vec![self.linear_launch(x, None, projections, residual)])
    }

    /// Projections on matrix instructions, where there is a kernel for them.
    fn on_matrices(
        &self,
        x: Place,
        norm: Option<Norm>,
        select: bool,
        rows: Rows,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Option<Vec<Launch>> {
        dispatch::on_matrices(&self.target).iter().find_map(|kernel| match kernel {
            Kernel::Gemm => self.gemm(x, norm, select, rows, projections, residual),
            _ => self.linear_batch(x, norm, select, rows, projections, residual),
        })
    }

    /// Projections of a few rows on matrix instructions, as [`Self::gemm`] of many.
    fn linear_batch(
        &self,
        x: Place,
        norm: Option<Norm>,
        select: bool,
        rows: Rows,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Option<Vec<Launch>> {
        let num_rows = self.rows(rows);
        let weight = |linear: Linear| self.source.weights.get(linear.weight);
        // Scales are copied in pairs.
        let pairs = |&(linear, up, _): &Projection| {
            [Some(linear), up.map(|(up, _)| up)]
                .into_iter()
                .flatten()
                .all(|linear| weight(linear).scale_stride().is_multiple_of(2))
        };
        if !dispatch::has_batch(&self.target, num_rows) || !projections.iter().all(pairs) {
            return None;
        }
        let norm = norm.map(|norm| {
            let select = if select { self.step.output_rows } else { Region::default() };
            OnTheWay { norm, select, rows }
        });
        let launches = projections.chunks(SEGMENTS).map(|some| {
            let glu = some.iter().any(|(_, up, _)| up.is_some());
            let features: Vec<_> = some.iter().map(|&(linear, ..)| weight(linear).rows).collect();
            let format = weight(some[0].0).format;
            let shape = ProjectionsShape { format, rows: num_rows, k: x.width, glu, features: &features };
            let variant = dispatch::linear_batch(&self.target, shape)?;
            Some(self.linear_batch_launch(x, norm.as_ref(), &variant, some, residual))
        });
        launches.collect()
    }

    fn linear_batch_launch(
        &self,
        x: Place,
        norm: Option<&OnTheWay>,
        variant: &BatchVariant,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Launch {
        let (linear, operands) = self.linear_params(x, norm, variant.tile, projections, residual);
        let partials = self.messages.part(0, variant.partials_bytes);
        let squares = self.messages.part(variant.partials_bytes, variant.squares_bytes);
        let scale_stride = self.source.weights.get(projections[0].0.weight).scale_stride();
        let params = LinearBatchParams {
            linear,
            partials: partials.address,
            squares: squares.address,
            tiles: index(variant.tiles),
            teams: index(variant.teams),
            slices: index(variant.slices),
            slice_steps: index(variant.slice_steps),
            k_simds: index(variant.k_simds),
            scale_stride: index(scale_stride),
        };
        let launch = Launch::new(variant.kernel, [variant.slices * variant.teams, 1, 1], &params)
            .with_groups_of(variant.threads, variant.group_bytes as u32)
            .with(Access::Update, partials)
            .with(Access::Update, squares);
        operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
    }

    /// Projections on matrix instructions, where there are some for these rows and weights. With `select`, row i is made
    /// from the row of `x` that is the i-th output.
    fn gemm(
        &self,
        x: Place,
        norm: Option<Norm>,
        select: bool,
        rows: Rows,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Option<Vec<Launch>> {
        let num_rows = self.rows(rows);
        let linears: Vec<_> = projections.iter().map(|&(linear, up, _)| (linear, up)).collect();
        let variants = self.gemm_variants(num_rows, x.width, &linears)?;
        let operand = match self.handed {
            Some(handed) => GemmOperand::handed(handed, num_rows, x.width),
            None => {
                let scratch = self.arena.part(self.layout.scratch.0, GemmOperand::bytes(num_rows, x.width));
                GemmOperand::new(scratch, num_rows, x.width)
            }
        };
        let mut launches = vec![];
        if self.handed.is_none() {
            launches.push(self.activations(x, norm, select, rows, &operand, &variants[0]));
        }
        let gemms = projections.chunks(SEGMENTS).zip(&variants);
        launches.extend(gemms.map(|(some, variant)| self.gemm_launch(&operand, rows, variant, some, residual)));
        Some(launches)
    }

    /// The gemms of projections of rows of `k` features, as many together as one launch takes, where there are some.
    fn gemm_variants(
        &self,
        num_rows: usize,
        k: usize,
        projections: &[(Linear, Option<Up>)],
    ) -> Option<Vec<GemmVariant>> {
        let weight = |&(linear, _): &(Linear, Option<Up>)| self.source.weights.get(linear.weight);
        if !dispatch::has_gemm(&self.target, num_rows) || !projections.iter().map(weight).all(tiles_can_be_copied) {
            return None;
        }
        let glu = projections.iter().any(|(_, up)| up.is_some());
        if glu && !projections.iter().all(|&(gate, up)| self.up_follows_gate(gate, up)) {
            return None;
        }
        let variants = projections.chunks(SEGMENTS).map(|some| {
            let features: Vec<_> = some.iter().map(|projection| weight(projection).rows).collect();
            let format = weight(&some[0]).format;
            dispatch::gemm(&self.target, ProjectionsShape { format, rows: num_rows, k, glu, features: &features })
        });
        variants.collect()
    }

    /// What `op` can leave for the gemm of `next`.
    fn hands_to(&self, op: &Op, next: &Op) -> Option<Handed> {
        let (out, name) = handed_value(op, next).filter(|&(out, _)| self.source.num_readers(out) == 1)?;
        let (Op::Linear { linear, .. } | Op::LinearResidual { linear, .. }) = *next else { return None };
        let next = Program { target: self.source.target.of(name), ..*self };
        let (rows, k) = (self.rows(self.source.plan.value(out).rows), self.source.plan.value(out).width);
        let format = self.source.weights.get(linear.weight).format;
        // Zeros would be wanted behind other rows.
        if k != GemmOperand::stride(k) || !next.is_gemm_narrow(rows, k, (linear, None)) {
            return None;
        }
        let factor = match *op {
            // Means of values of the cache, which are f16.
            Op::Attention { ref attention, .. } => {
                let cache = self.source.cache;
                let in_fours = cache.layers[attention.layer].layer.head_dim.is_multiple_of(4);
                let fits = cache.layout.format == KvFormat::F16 || format == DeviceFormat::BF16;
                (self.layout.step.attention.tiles == 0 && in_fours && fits).then_some(1.0)
            }
            Op::NormGlu { x, gate, up, activation, .. } => {
                let k = self.source.plan.value(x).width;
                let bounded = || self.source.glu_bounds.f16_factor(gate.weight);
                let factor = || if format == DeviceFormat::BF16 { Some(1.0) } else { bounded() };
                self.is_gemm_narrow(rows, k, (gate, Some((up, activation)))).then(factor).flatten()
            }
            _ => None,
        };
        let (at, bytes) = self.layout.handed;
        let rows = self.arena.part(at, bytes.min(GemmOperand::row_bytes(rows, k)));
        factor.map(|factor| Handed { rows, format, factor })
    }

    /// Whether a projection is a `gemm_narrow`.
    fn is_gemm_narrow(&self, num_rows: usize, k: usize, projection: (Linear, Option<Up>)) -> bool {
        dispatch::on_matrices(&self.target).first() == Some(&Kernel::Gemm)
            && dispatch::is_narrow(num_rows)
            && self.gemm_variants(num_rows, k, &[projection]).is_some()
    }

    /// Whether the gate of a gated unit and its up projection are one tensor to a copy of tiles.
    fn up_follows_gate(&self, gate: Linear, up: Option<Up>) -> bool {
        let Some((up, _)) = up else { return false };
        let [gate, up] = [gate, up].map(|linear| self.source.weights.get(linear.weight));
        gate.rows.is_multiple_of(8) && tiles_can_be_copied(up) && up.values.address.0 > gate.values.address.0
    }

    /// Makes the operand of a gemm from rows of `x`.
    fn activations(
        &self,
        x: Place,
        norm: Option<Norm>,
        select: bool,
        rows: Rows,
        operand: &GemmOperand,
        variant: &GemmVariant,
    ) -> Launch {
        let gain = self.vector(norm.map(|norm| norm.weight));
        let select = if select { self.step.output_rows } else { Region::default() };
        let params = ActivationParams {
            x: x.region.address,
            gain: gain.address,
            rows: self.live(rows).address,
            select: select.address,
            y: operand.rows.address,
            row_scales: operand.scales.address,
            k: index(x.width),
            x_stride: index(x.stride),
            y_stride: index(operand.stride),
            eps: norm.map_or(0.0, |norm| norm.eps),
        };
        let kernel = variant.activations[usize::from(norm.is_some())];
        Launch::new(kernel, [self.rows(rows), 1, 1], &params)
            .with_groups_of(variant.activation_threads, 0)
            .with(Access::Read, x.region)
            .with(Access::Constant, gain)
            .with(Access::Constant, self.live(rows))
            .with(Access::Constant, select)
            .with(Access::Write, operand.rows)
            .with(Access::Write, operand.scales)
    }

    fn gemm_launch(
        &self,
        operand: &GemmOperand,
        rows: Rows,
        variant: &GemmVariant,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Launch {
        let residual_region = residual.map_or(Region::default(), |residual| residual.region);
        let mut params = GemmParams {
            residual: residual_region.address,
            rows: self.live(rows).address,
            k: index(operand.k),
            residual_stride: index(residual.map_or(0, |residual| residual.stride)),
            factor: operand.factor,
            operand: self.hands.map_or(OperandPlace::default(), |hands| hands.place(projections[0].2.width)),
            ..GemmParams::default()
        };
        let mut operands =
            vec![(Access::Read, operand.rows), (Access::Read, residual_region), (Access::Constant, self.live(rows))];
        let mut maps = vec![];
        let mut element = Element::F16;
        for (place, (segment, &(linear, up, out))) in params.segments.iter_mut().zip(projections).enumerate() {
            let weight = self.source.weights.get(linear.weight);
            let bias = self.vector(linear.bias);
            params.scale_stride = index(weight.scale_stride());
            operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
            operands.push((Access::Write, self.hands.map_or(out.region, |hands| hands.rows)));
            *segment = GemmSegment {
                scales: weight.scales.address,
                bias: bias.address,
                y: out.region.address,
                n: index(weight.rows),
                tiles: index(weight.rows.div_ceil(variant.features)),
                y_stride: index(out.stride),
                matrix_scale: weight.matrix_scale,
                ..GemmSegment::default()
            };
            params.tiles += segment.tiles;
            let up = up.map(|(up, activation)| {
                let (weight, bias) = (self.source.weights.get(up.weight), self.vector(up.bias));
                operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
                segment.up_scales = weight.scales.address;
                segment.up_bias = bias.address;
                segment.up_matrix_scale = weight.matrix_scale;
                segment.activation = activation as i32;
                params.glu = 1;
                weight
            });
            let at = std::mem::offset_of!(GemmParams, segments) + place * size_of::<GemmSegment>();
            let values = Matrix::values(weight);
            element = values.element;
            let (tile, swizzled) = match variant.narrow {
                Some(cut) => ([128 / element.bytes() as u32, cut.height as u32], true),
                // Of four bits, half as many bytes.
                None => {
                    let bytes = row_bytes(weight.format, GEMM_TILE[0] as usize) as u32;
                    ([bytes / element.bytes() as u32, GEMM_TILE[1]], element.bytes() == 2)
                }
            };
            maps.push(values.tiles(
                at + std::mem::offset_of!(GemmSegment, weight),
                up.map(Matrix::values),
                tile,
                swizzled,
            ));
            if let Some(cut) = variant.narrow
                && element == Element::I8
            {
                let at = at + std::mem::offset_of!(GemmSegment, scale_tiles);
                // In f16, of 256 weights or 512; a copy brings whole 16 bytes.
                let blocks = (cut.columns * 128).div_ceil(row_bytes(weight.format, 256)) as u32;
                let scales = (scales_of_256(weight.format) as u32 * blocks).next_multiple_of(8);
                maps.push(Matrix::scales(weight).tiles(at, up.map(Matrix::scales), [scales, tile[1]], false));
            }
        }
        if element != Element::BF16 {
            params.row_scales = operand.scales.address;
            operands.push((Access::Read, operand.scales));
        }
        if let Some(cut) = variant.narrow {
            params.stages = index(cut.stages);
            params.height = index(cut.height);
            params.columns = index(cut.columns);
        }
        let rows = variant.rows.min(GEMM_TILE[2] as usize);
        maps.push(operand.tiles(std::mem::offset_of!(GemmParams, x), element, rows));
        let tiles = params.tiles as usize * operand.num_rows.div_ceil(variant.rows);
        let clusters = tiles.min(self.target.multiprocessors / variant.cluster);
        let launch = Launch {
            cluster: variant.cluster as u32,
            maps,
            ..Launch::new(variant.kernel, [clusters * variant.cluster, 1, 1], &params)
                .with_groups_of(variant.threads, GEMM_GROUP_BYTES as u32)
        };
        operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
    }

    fn linear_launch(
        &self,
        x: Place,
        norm: Option<&OnTheWay>,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Launch {
        let rows = self.rows(norm.map_or(x.rows, |norm| norm.rows));
        if rows == 1
            && let Some(variant) = self.stream_variant(x, norm.is_some(), projections)
        {
            return self.stream_launch(&variant, x, norm, projections, residual, LinearStreamParams::default());
        }
        let (linear, up, _) = projections[0];
        let kind = match (norm.is_some(), up.is_some()) {
            (false, false) => LinearKind::Plain,
            (false, true) => LinearKind::Glu,
            (true, false) => LinearKind::Norm,
            (true, true) => LinearKind::NormGlu,
        };
        let variant = dispatch::linear(&self.target, self.source.weights.get(linear.weight).format, rows, kind);
        let (params, operands) = self.linear_params(x, norm, variant.outputs, projections, residual);
        let groups = params.segments.iter().map(|segment| segment.groups as usize).sum();
        let launch = Launch::new(variant.kernel, [groups, rows.div_ceil(variant.rows), 1], &params);
        operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
    }

    /// The parameters of `linear` where a group makes so many `outputs`, and its operands.
    fn linear_params(
        &self,
        x: Place,
        norm: Option<&OnTheWay>,
        outputs: usize,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> (LinearParams, Vec<(Access, Region)>) {
        let live_rows = norm.map_or(x.rows, |norm| norm.rows);
        let gain = self.vector(norm.map(|norm| norm.norm.weight));
        let select = norm.map_or(Region::default(), |norm| norm.select);
        let residual_region = residual.map_or(Region::default(), |residual| residual.region);
        let mut params = LinearParams {
            x: x.region.address,
            residual: residual_region.address,
            rows: self.live(live_rows).address,
            gain: gain.address,
            select: select.address,
            k: index(x.width),
            x_stride: index(x.stride / ROW_ALIGN),
            residual_stride: index(residual.map_or(0, |residual| residual.stride)),
            eps: norm.map_or(0.0, |norm| norm.norm.eps),
            ..LinearParams::default()
        };
        let mut operands = vec![
            (Access::Read, x.region),
            (Access::Read, residual_region),
            (Access::Constant, self.live(live_rows)),
            (Access::Constant, gain),
            (Access::Constant, select),
        ];
        let format = self.source.weights.get(projections[0].0.weight).format;
        for (segment, &(linear, up, out)) in params.segments.iter_mut().zip(projections) {
            let weight = self.source.weights.get(linear.weight);
            debug_assert!(weight.format == format, "a launch has weights of one format");
            let bias = self.vector(linear.bias);
            operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
            operands.push((Access::Write, out.region));
            *segment = LinearSegment {
                weight: weight.values.address,
                scales: weight.scales.address,
                bias: bias.address,
                y: out.region.address,
                n: index(weight.rows),
                groups: index(weight.rows.div_ceil(outputs)),
                y_stride: index(out.stride),
                matrix_scale: weight.matrix_scale,
                ..LinearSegment::default()
            };
            if let Some((up, activation)) = up {
                let (weight, bias) = (self.source.weights.get(up.weight), self.vector(up.bias));
                operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
                segment.up = weight.values.address;
                segment.up_scales = weight.scales.address;
                segment.up_bias = bias.address;
                segment.up_matrix_scale = weight.matrix_scale;
                segment.activation = activation as i32;
            }
        }
        (params, operands)
    }

    /// The variant of `linear_stream` for these projections, if there is one.
    fn stream_variant(&self, x: Place, norm: bool, projections: &[Projection]) -> Option<StreamVariant> {
        let (linear, up, _) = projections[0];
        let kind = if up.is_some() { StreamKind::Glu } else { StreamKind::Plain };
        let format = self.source.weights.get(linear.weight).format;
        // Pairs, and rows that are not normalised, have one segment there; shares of outputs are counted in 32 bits.
        let has_segments = norm && up.is_none();
        let rows: usize = projections.iter().map(|&(linear, ..)| self.source.weights.get(linear.weight).rows).sum();
        let workers = self.target.multiprocessors * STREAM_THREADS as usize / 32;
        if (projections.len() > 1 && !has_segments) || rows as u64 * (workers as u64 + 1) > u64::from(u32::MAX) {
            return None;
        }
        dispatch::linear_stream(&self.target, format, None, kind, norm, x.width)
    }

    /// One row's projections by `linear_stream`; `params` has what is not theirs.
    fn stream_launch(
        &self,
        variant: &StreamVariant,
        x: Place,
        norm: Option<&OnTheWay>,
        projections: &[Projection],
        residual: Option<Place>,
        params: LinearStreamParams,
    ) -> Launch {
        let live = self.live(norm.map_or(x.rows, |norm| norm.rows));
        let gain = self.vector(norm.map(|norm| norm.norm.weight));
        let select = norm.map_or(Region::default(), |norm| norm.select);
        let residual = residual.map_or(Region::default(), |residual| residual.region);
        let mut params = LinearStreamParams {
            x: x.region.address,
            residual: residual.address,
            rows: live.address,
            gain: gain.address,
            select: select.address,
            k: index(x.width),
            x_stride: index(x.stride / ROW_ALIGN),
            stages: index(variant.stages),
            stage_rows: index(variant.stage_rows),
            x_at: index(variant.x_at),
            ring_at: index(variant.ring_at),
            eps: norm.map_or(0.0, |norm| norm.norm.eps),
            groups: index(variant.groups),
            ..params
        };
        let mut operands = vec![
            (Access::Read, x.region),
            (Access::Read, residual),
            (Access::Constant, live),
            (Access::Constant, gain),
            (Access::Constant, select),
        ];
        // Where there are pairs, what is counted is pairs.
        let per_unit = if params.head_dim > 0 { 2 } else { 1 };
        for (segment, &(linear, up, out)) in params.segments.iter_mut().zip(projections) {
            let (weight, bias) = (self.source.weights.get(linear.weight), self.vector(linear.bias));
            let activation = up.map_or(0, |(_, activation)| activation as i32);
            let up = up.map(|(up, _)| (self.source.weights.get(up.weight), self.vector(up.bias)));
            let up_weight = up.map(|(weight, _)| (weight.values, weight.scales)).unwrap_or_default();
            let up_bias = up.map_or(Region::default(), |(_, bias)| bias);
            let constants = [weight.values, weight.scales, bias, up_weight.0, up_weight.1, up_bias];
            operands.extend(constants.map(|region| (Access::Constant, region)));
            operands.push((Access::Write, out.region));
            *segment = LinearSegment {
                weight: weight.values.address,
                scales: weight.scales.address,
                bias: bias.address,
                up: up_weight.0.address,
                up_scales: up_weight.1.address,
                up_bias: up_bias.address,
                y: out.region.address,
                n: index(weight.rows),
                groups: index(weight.rows / per_unit),
                activation,
                matrix_scale: weight.matrix_scale,
                up_matrix_scale: up.map_or(1.0, |(weight, _)| weight.matrix_scale),
                ..LinearSegment::default()
            };
            params.units += segment.groups;
        }
        if let Some(other) = variant.other {
            let weights = projections.iter().map(|&(linear, ..)| self.source.weights.get(linear.weight));
            let bytes: Vec<_> = weights.map(|weight| weight.values.bytes + weight.scales.bytes).collect();
            let [before @ .., last] = &bytes[..] else { unreachable!("there are projections") };
            let workers = variant.groups * STREAM_THREADS as usize / 32;
            // As many share the last as it has of the work: one at least of each.
            let last = *last as f64 * other.effort;
            let last_workers = workers as f64 * last / (before.iter().sum::<u64>() as f64 + last);
            params.first_workers = index(workers - (last_workers.round() as usize).clamp(1, workers - 1));
            params.first_units = params.units - params.segments[projections.len() - 1].groups;
            params.other_x_at = index(other.x_at);
            params.other_stage_rows = index(other.stage_rows);
        }
        let group_bytes = u32::try_from(variant.group_bytes).expect("group memory is smaller than 2^32 bytes");
        let launch =
            Launch::new(variant.kernel, [variant.groups, 1, 1], &params).with_groups_of(STREAM_THREADS, group_bytes);
        operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
    }

    /// Q, K and V, and what `rope_kv_write` does with them, in one launch: for one row, where the two ops follow each other,
    /// weights are in one format and `linear_stream` can do it.
    fn norm_linear_rope(&self, op: &Op, next: &Op) -> Option<Launch> {
        let Op::NormLinear { x, norm, ref projections } = *op else { return None };
        let Op::RopeKvWrite { q, k, v, q_norm: None, k_norm: None, rope, layer, q_out } = *next else { return None };
        let [(q_linear, q_to), (k_linear, k_to), (v_linear, v_to)] = projections[..] else { return None };
        let cache = &self.source.cache.layers[layer];
        let head_dim = self.source.plan.ropes[rope].head_dim;
        let [x, q_to, k_to, v_to, q_out] = [x, q_to, k_to, v_to, q_out].map(|value| self.place(value));
        let follows = [q, k, v].map(|value| self.place(value).region) == [q_to, k_to, v_to].map(|to| to.region);
        // The turned queries are written while the op ahead reads its row: that must not be the same memory.
        let apart = q_out.region.is_apart(x.region);
        if !follows
            || !apart
            || self.rows(x.rows) != 1
            || head_dim != cache.layer.head_dim
            || !head_dim.is_multiple_of(2)
        {
            return None;
        }
        if self.source.cache.layout.format != KvFormat::F16 {
            return None;
        }
        let weights = [q_linear, k_linear, v_linear].map(|linear| self.source.weights.get(linear.weight));
        let [format, k_format, v_format] = weights.map(|weight| weight.format);
        if k_format != format {
            return None;
        }
        let other = (v_format != format).then_some(v_format);
        let variant = dispatch::linear_stream(&self.target, format, other, StreamKind::Rope, true, x.width)?;
        let angles = self.source.angles[rope];
        let params = LinearStreamParams {
            angles: angles.address,
            positions: self.step.positions.address,
            slots: self.step.slots.address,
            q_out: q_out.region.address,
            keys: cache.keys.address,
            values: cache.values.address,
            head_dim: index(head_dim),
            kv_heads: index(cache.layer.kv_heads),
            block_len: index(self.source.cache.layout.block_len),
            ..LinearStreamParams::default()
        };
        let norm = OnTheWay { norm, select: Region::default(), rows: x.rows };
        let projections = [(q_linear, None, q_to), (k_linear, None, k_to), (v_linear, None, v_to)];
        let launch = self.stream_launch(&variant, x, Some(&norm), &projections, None, params);
        Some(
            launch
                .with(Access::Constant, angles)
                .with(Access::Constant, self.step.positions)
                .with(Access::Constant, self.step.slots)
                .with(Access::Write, q_out.region)
                .with(Access::Update, cache.keys)
                .with(Access::Update, cache.values),
        )
    }

    fn rope(&self, x: Place, rope: usize, out: Place) -> Launch {
        let head_dim = self.source.plan.ropes[rope].head_dim;
        let heads = x.width / head_dim;
        let angles = self.source.angles[rope];
        let params = RopeParams {
            x: x.region.address,
            angles: angles.address,
            rows: self.live(x.rows).address,
            positions: self.step.positions.address,
            y: out.region.address,
            heads: index(heads),
            head_dim: index(head_dim),
            x_stride: index(x.stride),
            y_stride: index(out.stride),
        };
        Launch::new("rope_f32", [heads.div_ceil(GROUP_SIMDS), self.rows(x.rows), 1], &params)
            .with(Access::Read, x.region)
            .with(Access::Constant, angles)
            .with(Access::Constant, self.live(x.rows))
            .with(Access::Constant, self.step.positions)
            .with(Access::Write, out.region)
    }

    fn kv_write(&self, layer: usize, k: Place, v: Place) -> Launch {
        let cache = &self.source.cache.layers[layer];
        let params = KvWriteParams {
            k: k.region.address,
            v: v.region.address,
            rows: self.live(k.rows).address,
            slots: self.step.slots.address,
            keys: cache.keys.address,
            values: cache.values.address,
            kv_heads: index(cache.layer.kv_heads),
            head_dim: index(cache.layer.head_dim),
            block_len: index(self.source.cache.layout.block_len),
            kv_stride: index(k.stride),
        };
        let kernel = dispatch::kv(self.source.cache.layout.format).kv_write;
        Launch::new(kernel, [k.width.div_ceil(GROUP_THREADS as usize), self.rows(k.rows), 1], &params)
            .with(Access::Read, k.region)
            .with(Access::Read, v.region)
            .with(Access::Constant, self.live(k.rows))
            .with(Access::Constant, self.step.slots)
            .with(Access::Update, cache.keys)
            .with(Access::Update, cache.values)
    }

    fn rope_kv_write(
        &self,
        [q, k, v, q_out]: [Place; 4],
        norms: [Option<Norm>; 2],
        rope: usize,
        layer: usize,
    ) -> Launch {
        let cache = &self.source.cache.layers[layer];
        let heads = q.width / cache.layer.head_dim;
        let gains = norms.map(|norm| self.vector(norm.map(|norm| norm.weight)));
        let [q_eps, k_eps] = norms.map(|norm| norm.map_or(0.0, |norm| norm.eps));
        let angles = self.source.angles[rope];
        let params = RopeKvWriteParams {
            q: q.region.address,
            k: k.region.address,
            v: v.region.address,
            q_gain: gains[0].address,
            k_gain: gains[1].address,
            angles: angles.address,
            rows: self.live(q.rows).address,
            positions: self.step.positions.address,
            slots: self.step.slots.address,
            q_out: q_out.region.address,
            keys: cache.keys.address,
            values: cache.values.address,
            heads: index(heads),
            kv_heads: index(cache.layer.kv_heads),
            head_dim: index(cache.layer.head_dim),
            block_len: index(self.source.cache.layout.block_len),
            q_stride: index(q.stride),
            kv_stride: index(k.stride),
            q_out_stride: index(q_out.stride),
            padding: 0,
            q_eps,
            k_eps,
        };
        let kernel = dispatch::kv(self.source.cache.layout.format).rope_kv_write;
        let groups = (heads + 2 * cache.layer.kv_heads).div_ceil(GROUP_SIMDS);
        Launch::new(kernel, [groups, self.rows(q.rows), 1], &params)
            .with(Access::Read, q.region)
            .with(Access::Read, k.region)
            .with(Access::Read, v.region)
            .with(Access::Constant, gains[0])
            .with(Access::Constant, gains[1])
            .with(Access::Constant, angles)
            .with(Access::Constant, self.live(q.rows))
            .with(Access::Constant, self.step.positions)
            .with(Access::Constant, self.step.slots)
            .with(Access::Write, q_out.region)
            .with(Access::Update, cache.keys)
            .with(Access::Update, cache.values)
    }

    fn attention(&self, q: Place, attention: &Attention, out: Place) -> Vec<Launch> {
        let AttentionItems { singles, tiles } = self.layout.step.attention;
        let mut launches = vec![];
        if singles > 0 {
            launches.push(self.attention_singles(q, attention, out, singles));
        }
        if tiles > 0 {
            // What the one kernel writes is not lost.
            let access = if singles > 0 { Access::Update } else { Access::Write };
            launches.push(self.attention_tiles(q, attention, out, tiles).with(access, out.region));
        }
        launches
    }

    /// Rows that are alone in their sequence, or few: each for itself.
    fn attention_singles(&self, q: Place, attention: &Attention, out: Place, singles: usize) -> Launch {
        let variant = self.source.attention_variant(attention, singles);
        let (offset, bytes) = self.layout.partials;
        let is_cut = variant.max_splits > 1 && !variant.loops;
        let (mut partials, mut stats, mut counters) = (Region::default(), Region::default(), Region::default());
        let chunks =
            (attention.heads / self.source.cache.layers[attention.layer].layer.kv_heads).div_ceil(variant.heads);
        let groups_of_row = self.source.cache.layers[attention.layer].layer.kv_heads * chunks;
        if is_cut {
            let all = self.arena.part(offset, bytes);
            let splits = (singles * attention.heads * variant.max_splits) as u64;
            partials = all.part(0, splits * variant.dim as u64 * F32);
            stats = all.part(partials.bytes, splits * STATS_LEN as u64 * F32);
            counters = self.source.counters.part(0, (singles * groups_of_row) as u64 * 4);
        }
        let params = AttentionParams {
            num_items: self.step.num_singles.address,
            items: self.step.singles.address,
            partials: partials.address,
            stats: stats.address,
            counters: counters.address,
            max_splits: index(variant.max_splits),
            min_tiles: index(dispatch::ATTENTION_MIN_TILES),
            operand: self.hands.map_or(OperandPlace::default(), |hands| hands.place(out.width)),
            ..self.attention_params(q, attention, out)
        };
        let splits = if is_cut { variant.max_splits } else { 1 };
        self.attention_launch(variant.kernel, [groups_of_row, singles, splits], &params, q, attention)
            .with_groups_of(variant.threads, variant.group_bytes)
            .with(Access::Constant, self.step.num_singles)
            .with(Access::Constant, self.step.singles)
            .with(Access::Write, self.hands.map_or(out.region, |hands| hands.rows))
            .with(Access::Write, partials)
            .with(Access::Write, stats)
            .with(Access::Update, counters)
    }

    /// Many rows of a sequence, together.
    fn attention_tiles(&self, q: Place, attention: &Attention, out: Place, tiles: usize) -> Launch {
        let layer = self.source.cache.layers[attention.layer].layer;
        let variant = self.source.attention_tiles(layer.head_dim).expect("there are tiles where there is a kernel");
        let params = AttentionParams {
            num_items: self.step.num_tiles.address,
            items: self.step.tiles.address,
            ..self.attention_params(q, attention, out)
        };
        self.attention_launch(variant.kernel, [attention.heads, tiles, variant.parts], &params, q, attention)
            .with_groups_of(variant.threads, variant.group_bytes)
            .with(Access::Constant, self.step.num_tiles)
            .with(Access::Constant, self.step.tiles)
    }

    /// What the kernels of attention have in common.
    fn attention_params(&self, q: Place, attention: &Attention, out: Place) -> AttentionParams {
        let cache = &self.source.cache.layers[attention.layer];
        AttentionParams {
            q: q.region.address,
            keys: cache.keys.address,
            values: cache.values.address,
            positions: self.step.positions.address,
            table_starts: self.step.table_starts.address,
            blocks: self.step.blocks.address,
            out: out.region.address,
            heads: index(attention.heads),
            kv_heads: index(cache.layer.kv_heads),
            head_dim: index(cache.layer.head_dim),
            block_len: index(self.source.cache.layout.block_len),
            // A window beyond any position is no window.
            window: attention.window.map_or(0, |window| window.min(self.source.max_positions()) as i32),
            q_stride: index(q.stride),
            out_stride: index(out.stride),
            scale: attention.scale,
            ..AttentionParams::default()
        }
    }

    fn attention_launch(
        &self,
        kernel: &'static str,
        groups: [usize; 3],
        params: &AttentionParams,
        q: Place,
        attention: &Attention,
    ) -> Launch {
        let cache = &self.source.cache.layers[attention.layer];
        Launch::new(kernel, groups, params)
            .with(Access::Read, q.region)
            .with(Access::Read, cache.keys)
            .with(Access::Read, cache.values)
            .with(Access::Constant, self.step.positions)
            .with(Access::Constant, self.step.table_starts)
            .with(Access::Constant, self.step.blocks)
    }

    fn elementwise(
        &self,
        kernel: &'static str,
        a: Place,
        other: Other,
        activation: Option<Activation>,
        out: Place,
    ) -> Launch {
        let (b_region, b_stride, select) = match other {
            Other::Rows(b) => (b.region, b.stride, Region::default()),
            Other::Indices(select) => (Region::default(), 0, select),
        };
        let params = ElementwiseParams {
            a: a.region.address,
            b: b_region.address,
            rows: self.live(out.rows).address,
            select: select.address,
            y: out.region.address,
            width: index(out.width),
            a_stride: index(a.stride),
            b_stride: index(b_stride),
            y_stride: index(out.stride),
            activation: activation.map_or(0, |activation| activation as i32),
            ..ElementwiseParams::default()
        };
        Launch::new(kernel, [out.width.div_ceil(GROUP_THREADS as usize), self.rows(out.rows), 1], &params)
            .with(Access::Read, a.region)
            .with(Access::Read, b_region)
            .with(Access::Constant, self.live(out.rows))
            .with(Access::Constant, select)
            .with(Access::Write, out.region)
    }
}
