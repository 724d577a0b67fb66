//! Lowering: a plan and a step shape become a list of kernel launches with every operand placed.

use plan::{Activation, Attention, Linear, MemoryPlan, Norm, Op, Plan, Rows, StepShape, Value, WeightId};

use crate::dispatch::{self, LinearKind, Target};
use crate::kv_cache::KvCache;
use crate::launch::{Access, GROUP_SIMDS, GROUP_THREADS, Launch, Region};
use crate::params::{
    AttentionParams, BlockCopyParams, ElementwiseParams, EmbedParams, KvWriteParams, LinearParams, LinearSegment,
    RmsNormParams, RopeKvWriteParams, RopeParams,
};
use crate::step_input::{StepLayout, StepRegions, max_positions};
use crate::weights::DeviceWeights;

/// Rows of values begin at multiples of this many f32, so that kernels load 16 bytes at a time.
const ROW_ALIGN: usize = 4;
const F32: u64 = size_of::<f32>() as u64;

/// What a program is lowered from.
pub(crate) struct Source<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a DeviceWeights,
    /// (positions, head_dim / 2) of cosine and sine, one for each of [`Plan::ropes`].
    pub(crate) angles: &'a [Region],
    pub(crate) cache: &'a KvCache,
    pub(crate) target: Target,
}

/// Where a program's values lie, before it is known where memory is.
#[derive(Clone, Debug)]
pub(crate) struct ArenaLayout {
    pub(crate) step: StepLayout,
    memory: MemoryPlan,
    /// Bytes from the start of the arena: rows that an op needs between its kernels, and partial results of attention.
    scratch: (u64, u64),
    partials: (u64, u64),
    /// All of it.
    pub(crate) bytes: u64,
}

/// The launches of one op.
#[derive(Clone, Debug)]
pub(crate) struct OpLaunches {
    /// Its place in [`Plan::ops`].
    pub(crate) op: usize,
    pub(crate) launches: Vec<Launch>,
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
        let scratch = self.plan.ops.iter().map(|op| self.scratch_len(op, shape)).max().unwrap_or(0) as u64 * F32;
        let partials = self.plan.ops.iter().map(|op| self.partials_len(op, shape)).max().unwrap_or(0) as u64 * F32;
        let values = (memory.len as u64 * F32).next_multiple_of(256);
        let scratch_end = values + scratch.next_multiple_of(256);
        ArenaLayout {
            step: StepLayout::new(shape, self.plan, &self.cache.layout),
            memory,
            scratch: (values, scratch),
            partials: (scratch_end, partials),
            bytes: scratch_end + partials.next_multiple_of(256),
        }
    }

    /// f32 of the normalised rows of a fused op.
    fn scratch_len(&self, op: &Op, shape: StepShape) -> usize {
        let (x, rows) = match *op {
            Op::NormLinear { x, .. } | Op::NormGlu { x, .. } => (x, self.plan.value(x).rows),
            Op::Logits { x, .. } => (x, Rows::Outputs),
            _ => return 0,
        };
        let (rows, width) = (num_rows(rows, shape), self.plan.value(x).width);
        if dispatch::normalises_on_the_way(rows) { 0 } else { rows * width.next_multiple_of(ROW_ALIGN) }
    }

    /// f32 of the partial results of an attention that is split.
    fn partials_len(&self, op: &Op, shape: StepShape) -> usize {
        let Op::Attention { ref attention, .. } = *op else { return 0 };
        if self.attention_variant(attention, shape).split_groups == 0 {
            return 0;
        }
        let head_dim = self.cache.layers[attention.layer].layer.head_dim;
        shape.tokens * attention.heads * self.max_splits() * (head_dim + 2)
    }

    fn attention_variant(&self, attention: &Attention, shape: StepShape) -> dispatch::AttentionVariant {
        let layer = self.cache.layers[attention.layer].layer;
        let shape = dispatch::AttentionShape {
            rows: shape.tokens,
            heads: attention.heads,
            kv_heads: layer.kv_heads,
            head_dim: layer.head_dim,
            max_positions: self.max_positions(),
        };
        dispatch::attention(&self.target, self.cache.layout.format, shape)
    }

    fn max_positions(&self) -> usize {
        max_positions(self.plan, &self.cache.layout)
    }

    fn max_splits(&self) -> usize {
        dispatch::attention_splits(self.max_positions())
    }

    /// The launches of every op, with the arena at `arena` and the step input at `step`.
    pub(crate) fn lower(&self, layout: &ArenaLayout, arena: Region, step: Region) -> Vec<OpLaunches> {
        let program = Program { source: self, layout, arena, step: layout.step.place(step), shape: layout.step.shape };
        let ops = self.plan.ops.iter().enumerate();
        ops.map(|(index, op)| OpLaunches { op: index, launches: program.op(op) }).collect()
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

/// A size as kernels count.
fn index(n: usize) -> i32 {
    i32::try_from(n).expect("sizes of one tensor fit 32 bits: `load` checks them")
}

/// Weights that one launch of `linear` multiplies with.
const SEGMENTS: usize = 3;

/// A projection, with the up projection of a gated unit, and where its result goes.
type Projection = (Linear, Option<Linear>, Place);

/// A norm that the projection makes itself.
struct OnTheWay {
    norm: Norm,
    /// The row that is wanted, where not all are.
    select: Region,
    /// What is left of the rows then.
    rows: Rows,
}

struct Program<'a> {
    source: &'a Source<'a>,
    layout: &'a ArenaLayout,
    arena: Region,
    step: StepRegions,
    shape: StepShape,
}

impl Program<'_> {
    fn op(&self, op: &Op) -> Vec<Launch> {
        let place = |value| self.place(value);
        match *op {
            Op::Embed { table, out } => vec![self.embed(table, place(out))],
            Op::RmsNorm { x, norm, out } => vec![self.rms_norm(place(x), norm, false, place(out))],
            Op::Linear { x, linear, out } => vec![self.linear(place(x), &[(linear, None, place(out))], None)],
            Op::NormLinear { x, norm, ref projections } => {
                let projections: Vec<_> = projections.iter().map(|&(linear, out)| (linear, None, place(out))).collect();
                self.norm_linear(place(x), norm, place(x).rows, &projections)
            }
            Op::NormGlu { x, norm, gate, up, activation: Activation::Silu, out } => {
                self.norm_linear(place(x), norm, place(x).rows, &[(gate, Some(up), place(out))])
            }
            Op::LinearResidual { x, linear, residual, out } => {
                vec![self.linear(place(x), &[(linear, None, place(out))], Some(place(residual)))]
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
            Op::Glu { gate, up, activation: Activation::Silu, out } => {
                vec![self.elementwise("glu_f32", place(gate), Some(place(up)), place(out))]
            }
            Op::Add { a, b, out } => vec![self.elementwise("add_f32", place(a), Some(place(b)), place(out))],
            Op::SelectOutputs { x, out } => vec![self.elementwise("select_outputs_f32", place(x), None, place(out))],
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
            y: out.region.address,
            k: index(out.width),
            stride: index(out.stride),
        };
        // A thread takes a chunk of 4 weights or more.
        let groups = out.width.div_ceil(4).div_ceil(GROUP_THREADS as usize);
        Launch::new(dispatch::embed(table.format), [groups, self.rows(out.rows), 1], &params)
            .with(Access::Constant, table.values)
            .with(Access::Constant, table.scales)
            .with(Access::Constant, self.step.token_ids)
            .with(Access::Constant, self.live(out.rows))
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

    /// Projections of the normalised rows of `x`: those that are outputs, where `rows` are.
    fn norm_linear(&self, x: Place, norm: Norm, rows: Rows, projections: &[Projection]) -> Vec<Launch> {
        let select = rows == Rows::Outputs && x.rows == Rows::Tokens;
        if dispatch::normalises_on_the_way(self.rows(rows)) {
            let norm = OnTheWay { norm, select: if select { self.step.output_rows } else { Region::default() }, rows };
            return projections.chunks(SEGMENTS).map(|some| self.linear_launch(x, Some(&norm), some, None)).collect();
        }
        let normed = self.normed(x, rows);
        let linears = projections.chunks(SEGMENTS).map(|some| self.linear(normed, some, None));
        std::iter::once(self.rms_norm(x, norm, select, normed)).chain(linears).collect()
    }

    /// Up to three projections of the same rows, all weights in one format.
    fn linear(&self, x: Place, projections: &[Projection], residual: Option<Place>) -> Launch {
        self.linear_launch(x, None, projections, residual)
    }

    fn linear_launch(
        &self,
        x: Place,
        norm: Option<&OnTheWay>,
        projections: &[Projection],
        residual: Option<Place>,
    ) -> Launch {
        let live_rows = norm.map_or(x.rows, |norm| norm.rows);
        let rows = self.rows(live_rows);
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
        let (mut groups, mut variant) = (0, None);
        for (segment, &(linear, up, out)) in params.segments.iter_mut().zip(projections) {
            let weight = self.source.weights.get(linear.weight);
            let kind = match (norm.is_some(), up.is_some()) {
                (false, false) => LinearKind::Plain,
                (false, true) => LinearKind::Glu,
                (true, false) => LinearKind::Norm,
                (true, true) => LinearKind::NormGlu,
            };
            let chosen = dispatch::linear(weight.format, rows, kind);
            debug_assert!(variant.is_none_or(|variant| variant == chosen), "`supports` holds to one format");
            variant = Some(chosen);
            let bias = self.vector(linear.bias);
            operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
            operands.push((Access::Write, out.region));
            *segment = LinearSegment {
                weight: weight.values.address,
                scales: weight.scales.address,
                bias: bias.address,
                y: out.region.address,
                n: index(weight.rows),
                groups: index(weight.rows.div_ceil(chosen.outputs)),
                y_stride: index(out.stride),
                ..LinearSegment::default()
            };
            if let Some(up) = up {
                let (weight, bias) = (self.source.weights.get(up.weight), self.vector(up.bias));
                operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
                segment.up = weight.values.address;
                segment.up_scales = weight.scales.address;
                segment.up_bias = bias.address;
            }
            groups += weight.rows.div_ceil(chosen.outputs);
        }
        let variant = variant.expect("at least one projection");
        let launch = Launch::new(variant.kernel, [groups, rows.div_ceil(variant.rows), 1], &params);
        operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
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
        let cache = &self.source.cache.layers[attention.layer];
        let variant = self.source.attention_variant(attention, self.shape);
        let split = variant.split_groups > 0;
        let (offset, bytes) = self.layout.partials;
        let partials = if split { self.arena.part(offset, bytes) } else { Region::default() };
        let params = AttentionParams {
            q: q.region.address,
            keys: cache.keys.address,
            values: cache.values.address,
            rows: self.live(q.rows).address,
            positions: self.step.positions.address,
            table_starts: self.step.table_starts.address,
            blocks: self.step.blocks.address,
            out: out.region.address,
            partials: partials.address,
            heads: index(attention.heads),
            kv_heads: index(cache.layer.kv_heads),
            head_dim: index(cache.layer.head_dim),
            block_len: index(self.source.cache.layout.block_len),
            // A window beyond any position is no window.
            window: attention.window.map_or(0, |window| window.min(self.source.max_positions()) as i32),
            max_splits: index(self.source.max_splits()),
            q_stride: index(q.stride),
            out_stride: index(out.stride),
            scale: attention.scale,
            split_groups: index(variant.split_groups),
        };
        let chunks = (attention.heads / cache.layer.kv_heads).div_ceil(variant.heads);
        let rows = self.rows(q.rows);
        let groups = [cache.layer.kv_heads * chunks, rows, variant.split_groups.max(1)];
        let launch = Launch::new(variant.kernel, groups, &params)
            .with(Access::Read, q.region)
            .with(Access::Read, cache.keys)
            .with(Access::Read, cache.values)
            .with(Access::Constant, self.live(q.rows))
            .with(Access::Constant, self.step.positions)
            .with(Access::Constant, self.step.table_starts)
            .with(Access::Constant, self.step.blocks);
        if !split {
            return vec![launch.with(Access::Write, out.region)];
        }
        let kernel = dispatch::kv(self.source.cache.layout.format).combine;
        let combine = Launch::new(kernel, [attention.heads, rows, 1], &params)
            .with(Access::Read, partials)
            .with(Access::Constant, self.live(q.rows))
            .with(Access::Constant, self.step.positions)
            .with(Access::Write, out.region);
        vec![launch.with(Access::Write, partials), combine]
    }

    fn elementwise(&self, kernel: &'static str, a: Place, b: Option<Place>, out: Place) -> Launch {
        let select = if b.is_none() { self.step.output_rows } else { Region::default() };
        let b_region = b.map_or(Region::default(), |b| b.region);
        let params = ElementwiseParams {
            a: a.region.address,
            b: b_region.address,
            rows: self.live(out.rows).address,
            select: select.address,
            y: out.region.address,
            width: index(out.width),
            a_stride: index(a.stride),
            b_stride: index(b.map_or(0, |b| b.stride)),
            y_stride: index(out.stride),
        };
        Launch::new(kernel, [out.width.div_ceil(GROUP_THREADS as usize), self.rows(out.rows), 1], &params)
            .with(Access::Read, a.region)
            .with(Access::Read, b_region)
            .with(Access::Constant, self.live(out.rows))
            .with(Access::Constant, select)
            .with(Access::Write, out.region)
    }
}
