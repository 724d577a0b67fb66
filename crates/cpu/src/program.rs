//! Compilation: a plan and a step shape become a list of instructions with every buffer placed and every kernel chosen.

use backend::{PEAK_GROUP, num_peaks};
use plan::{Activation, Linear, MemoryPlan, Norm, Op, Plan, Rows, StepShape, Value};
use tensor::{Tensor, WeightFormat};

use crate::kernels::linear_blocks::{self, PANEL_MIN_ROWS};
use crate::kernels::{attention, linear, linear_tiles};
use crate::kv_cache::LayerPlace;
use crate::pool::Turns;
use crate::simd::LANES;
use crate::{Isa, packed};

/// Rows up to which every worker normalises and quantises all of them for itself: cheaper than a barrier. Guessed.
pub(crate) const REDUNDANT_ROWS: usize = 4;

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
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// The plan's op that it computes, by its place; none for what steps need besides.
    pub(crate) op: Option<usize>,
    pub(crate) work: Work,
    pub(crate) barrier: bool,
}

/// What an instruction does. Weights are by their place in the plan.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// The step's block copies.
    CopyBlocks,
    /// Cosines and sines of each token's position.
    Angles {
        rope: usize,
        out: Place,
    },
    Embed {
        table: usize,
        out: Place,
    },
    RmsNorm {
        x: Place,
        norm: NormRef,
        out: Place,
    },
    Project(Project),
    Rope {
        x: Place,
        head_dim: usize,
        angles: Place,
        out: Place,
    },
    KvWrite {
        layer: usize,
        k: Place,
        v: Place,
    },
    RopeKvWrite(RopeKvWrite),
    Attend(Attend),
    ActivateMul {
        activation: Activation,
        gate: Place,
        up: Place,
        out: Place,
    },
    Add {
        a: Place,
        b: Place,
        out: Place,
    },
    GatherColumns {
        x: Place,
        /// An index into the plan's orders.
        order: usize,
        out: Place,
    },
    SelectOutputs {
        x: Place,
        out: Place,
    },
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

/// (Rows chosen, then) normalised, then projected by one or more weights.
#[derive(Clone, Debug)]
pub(crate) struct Project {
    pub(crate) x: Place,
    /// Whether only the output rows of `x` are taken.
    pub(crate) select: bool,
    pub(crate) norm: Option<NormRef>,
    pub(crate) projections: Vec<Projection>,
    /// Whether some weight multiplies quantised rows.
    pub(crate) quantized: bool,
    /// Whether some weight multiplies rows rounded to bfloat16.
    pub(crate) rounded: bool,
    pub(crate) variant: ProjectVariant,
    /// Where shared normalised rows are.
    pub(crate) rows_start: usize,
}

impl Project {
    /// Whether rows are changed before they are multiplied; otherwise they are read where they are.
    pub(crate) fn prepares(&self) -> bool {
        self.norm.is_some() || self.quantized || self.rounded
    }
}

/// One weight of a projection.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    pub(crate) linear: LinearRef,
    /// The projection by another weight of the same shape that the activation of this one multiplies (a gated linear unit).
    pub(crate) up: Option<(LinearRef, Activation)>,
    pub(crate) out: Place,
    pub(crate) residual: Option<usize>,
    /// Whether it is what the step returns.
    pub(crate) makes_logits: bool,
    /// Where the [peaks](backend::peak) of its rows begin, if they are kept.
    pub(crate) peaks: Option<usize>,
}

impl Projection {
    /// Its weights.
    pub(crate) fn linears(&self) -> impl Iterator<Item = LinearRef> + use<> {
        [Some(self.linear), self.up.map(|(up, _)| up)].into_iter().flatten()
    }
}

/// A weight, (out_features, in_features), and its bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearRef {
    pub(crate) weight: usize,
    pub(crate) bias: Option<usize>,
}

impl From<Linear> for LinearRef {
    fn from(linear: Linear) -> Self {
        Self { weight: linear.weight.index(), bias: linear.bias.map(|bias| bias.index()) }
    }
}

/// q/k-norm, RoPE, and the append to the cache.
#[derive(Clone, Debug)]
pub(crate) struct RopeKvWrite {
    pub(crate) layer: usize,
    pub(crate) q: Place,
    pub(crate) k: Place,
    pub(crate) v: Place,
    pub(crate) q_norm: Option<NormRef>,
    pub(crate) k_norm: Option<NormRef>,
    pub(crate) angles: Place,
    pub(crate) q_out: Place,
}

/// Attention, with the place of partial results for the split variant.
#[derive(Clone, Debug)]
pub(crate) struct Attend {
    pub(crate) attention: plan::Attention,
    pub(crate) q: Place,
    pub(crate) out: Place,
    pub(crate) partials: usize,
    /// Splits that the partial results of a row have room for; 0 for the sequential variant.
    pub(crate) max_splits: usize,
}

/// How a projection is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProjectVariant {
    /// Every worker prepares all rows for itself; otherwise they share the work and meet at one more barrier.
    pub(crate) redundant: bool,
    /// Weights in blocks that are not in panels already are packed on the way, whatever their format.
    pub(crate) panel: bool,
    /// Columns that a worker takes at a time: a multiple of sixteen.
    pub(crate) chunk_columns: usize,
}

/// What weights are multiplied by, as far as that decides how many of them a worker takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    /// f32 or bfloat16 vectors.
    Floats,
    /// Quantised blocks.
    Blocks,
    /// bfloat16 in tiles.
    Tiles,
}

impl Operand {
    /// Weights of a chunk, which stay in the second-level cache while all rows pass. Where these are read as fast as the
    /// weights, so that each chunk costs a pass over them, it is a larger part of the cache.
    fn chunk_bytes(self) -> usize {
        match self {
            Self::Floats => 256 << 10,
            Self::Blocks => 512 << 10,
            Self::Tiles => 1280 << 10,
        }
    }
}

/// Chooses how `columns` outputs in all are computed for `rows` rows by `threads` workers, with weights of `row_bytes` a
/// column.
pub(crate) fn choose_project(
    rows: usize,
    columns: usize,
    row_bytes: usize,
    threads: usize,
    operand: Operand,
) -> ProjectVariant {
    /// Chunks a worker takes in an op, so that one that is interrupted costs little.
    const TURNS: usize = 8;
    let for_cache = if rows <= REDUNDANT_ROWS { usize::MAX } else { operand.chunk_bytes() / row_bytes.max(1) };
    let for_balance = if threads == 1 { usize::MAX } else { columns.div_ceil(threads * TURNS) };
    let for_scratch = if rows <= REDUNDANT_ROWS { 4096 } else { 128 };
    let columns = for_cache.min(for_balance).min(for_scratch);
    // Prompts in tiles: to the nearest number of four panels, which rows pass over together.
    let chunk_columns = match operand {
        Operand::Tiles if rows > REDUNDANT_ROWS && columns >= 3 * LANES => {
            (columns + 2 * LANES) / (4 * LANES) * 4 * LANES
        }
        _ => columns.max(LANES) / LANES * LANES,
    };
    ProjectVariant { redundant: rows <= REDUNDANT_ROWS && threads > 1, panel: rows >= PANEL_MIN_ROWS, chunk_columns }
}

/// As many columns as `columns` in whole groups of peaks; `None` where these would change too much.
fn in_peak_groups(columns: usize) -> Option<usize> {
    // Weights of a few columns more still stay in the cache.
    let most = columns + columns / 2;
    (most >= PEAK_GROUP).then(|| columns.max(PEAK_GROUP) / PEAK_GROUP * PEAK_GROUP)
}

/// How many rows of a step may be attended split by split: those that give workers too few tiles. 0: none.
pub(crate) fn choose_attention_split(tokens: usize, kv_heads: usize, threads: usize) -> usize {
    let rows = (2 * threads).div_ceil(kv_heads.max(1));
    if threads > 1 && tokens <= rows { tokens } else { 0 }
}

/// What a program is compiled from.
pub(crate) struct Source<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) weights: &'a [Tensor],
    pub(crate) layers: &'a [LayerPlace],
    /// Positions that the cache has room for.
    pub(crate) max_positions: usize,
    pub(crate) threads: usize,
    /// What an instruction takes its items from.
    pub(crate) turns: &'a dyn Fn() -> Turns,
    pub(crate) isa: Isa,
}

impl Source<'_> {
    /// The program for steps of up to `shape`.
    pub(crate) fn compile(&self, end: End, shape: StepShape) -> Program {
        let memory = MemoryPlan::new(self.plan, shape);
        let (sizes, angles, peaks) = (Sizes::default(), vec![], None);
        let mut compiler = Compiler { source: self, end, shape, sizes, angles, memory, peaks };
        compiler.sizes.arena = compiler.memory.len;
        let mut instructions = vec![compiler.no_barrier(Work::CopyBlocks)];
        for (rope, table) in self.plan.ropes.iter().enumerate() {
            let width = table.head_dim / 2 * 2;
            let out = Place { start: compiler.shared(shape.tokens * width), width, rows: Rows::Tokens };
            compiler.angles.push(out);
            instructions.push(compiler.no_barrier(Work::Angles { rope, out }));
        }
        // Copies write the cache, angles their own memory, the first op its result: it needs neither, unless it is
        // attention itself.
        if !matches!(self.plan.ops.first(), Some(Op::Embed { .. })) {
            instructions.iter_mut().for_each(|instruction| instruction.barrier = true);
        }
        // Shared rows of all projections lie in one place: each is done with before the next begins.
        let inputs = self.plan.ops.iter().flat_map(Op::inputs);
        let widest = inputs.map(|value| self.plan.value(value).width).max().unwrap_or(0);
        let rows_start = compiler.shared(shape.tokens.max(shape.outputs) * widest);
        let partials = compiler.reserve_partials();
        for (index, op) in self.plan.ops.iter().enumerate() {
            let work = compiler.work(op, rows_start, partials);
            instructions.push(Instruction { op: Some(index), work, barrier: true });
        }
        let result = compiler.memory.offset(self.plan.logits);
        let result_width = self.plan.value(self.plan.logits).width;
        let turns = instructions.iter().map(|_| (self.turns)()).collect();
        let Compiler { peaks, sizes, .. } = compiler;
        Program { end, shape, instructions, turns, result, result_width, peaks, sizes }
    }
}

struct Compiler<'a> {
    source: &'a Source<'a>,
    end: End,
    shape: StepShape,
    memory: MemoryPlan,
    sizes: Sizes,
    /// The angles of each rope.
    angles: Vec<Place>,
    /// Where the peaks of the result begin.
    peaks: Option<usize>,
}

impl Compiler<'_> {
    fn no_barrier(&self, work: Work) -> Instruction {
        Instruction { op: None, work, barrier: false }
    }

    /// `len` f32 of the arena, on a cache line.
    fn shared(&mut self, len: usize) -> usize {
        let start = self.sizes.arena;
        self.sizes.arena += len.next_multiple_of(2 * LANES);
        start
    }

    /// Room for the partial results of the attention layer that needs most; its start.
    fn reserve_partials(&mut self) -> usize {
        let need = |op: &Op| match op {
            Op::Attention { attention, .. } => {
                let layer = &self.source.layers[attention.layer];
                let rows = choose_attention_split(self.shape.tokens, layer.kv_heads, self.source.threads);
                rows * attention.heads * self.max_splits() * attention::partial_width(layer.head_dim)
            }
            _ => 0,
        };
        let len = self.source.plan.ops.iter().map(need).max().unwrap_or(0);
        self.shared(len)
    }

    fn max_splits(&self) -> usize {
        self.source.max_positions.div_ceil(attention::SPLIT)
    }

    fn place(&self, value: Value) -> Place {
        let info = self.source.plan.value(value);
        Place { start: self.memory.offset(value), width: info.width, rows: info.rows }
    }

    fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.shape.tokens,
            Rows::Outputs => self.shape.outputs,
        }
    }

    fn work(&mut self, op: &Op, rows_start: usize, partials: usize) -> Work {
        match *op {
            Op::Embed { table, out } => Work::Embed { table: table.index(), out: self.place(out) },
            Op::RmsNorm { x, norm, out } => Work::RmsNorm { x: self.place(x), norm: norm.into(), out: self.place(out) },
            Op::Linear { x, linear, out } => {
                let projection = self.projection(linear, out, None);
                self.project(x, None, false, vec![projection], rows_start)
            }
            Op::NormLinear { x, norm, ref projections } => {
                let projections = projections.iter().map(|&(linear, out)| self.projection(linear, out, None)).collect();
                self.project(x, Some(norm), false, projections, rows_start)
            }
            Op::NormGlu { x, norm, gate, up, activation, out } => {
                let projection = Projection { up: Some((up.into(), activation)), ..self.projection(gate, out, None) };
                self.project(x, Some(norm), false, vec![projection], rows_start)
            }
            Op::LinearResidual { x, linear, residual, out } => {
                let projection = self.projection(linear, out, Some(residual));
                self.project(x, None, false, vec![projection], rows_start)
            }
            Op::Logits { x, norm, head, out } => {
                let projection = self.projection(head, out, None);
                self.project(x, Some(norm), true, vec![projection], rows_start)
            }
            Op::Rope { x, rope, out } => Work::Rope {
                x: self.place(x),
                head_dim: self.source.plan.ropes[rope].head_dim,
                angles: self.angles[rope],
                out: self.place(out),
            },
            Op::KvWrite { layer, k, v } => Work::KvWrite { layer, k: self.place(k), v: self.place(v) },
            Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } => {
                let head_dim = self.source.layers[layer].head_dim;
                self.sizes.worker.rows = self.sizes.worker.rows.max(head_dim);
                Work::RopeKvWrite(RopeKvWrite {
                    layer,
                    q: self.place(q),
                    k: self.place(k),
                    v: self.place(v),
                    q_norm: q_norm.map(NormRef::from),
                    k_norm: k_norm.map(NormRef::from),
                    angles: self.angles[rope],
                    q_out: self.place(q_out),
                })
            }
            Op::Attention { q, attention, out } => {
                let layer = self.source.layers[attention.layer];
                let group = attention.heads.div_ceil(layer.kv_heads);
                let rows = group * attention::tile_queries(group);
                let len = attention::scratch_len(rows, layer.head_dim);
                self.sizes.worker.attention = self.sizes.worker.attention.max(len);
                let split = choose_attention_split(self.shape.tokens, layer.kv_heads, self.source.threads) > 0;
                Work::Attend(Attend {
                    attention,
                    q: self.place(q),
                    out: self.place(out),
                    partials,
                    max_splits: if split { self.max_splits() } else { 0 },
                })
            }
            Op::Glu { gate, up, activation, out } => {
                Work::ActivateMul { activation, gate: self.place(gate), up: self.place(up), out: self.place(out) }
            }
            Op::Add { a, b, out } => Work::Add { a: self.place(a), b: self.place(b), out: self.place(out) },
            Op::GatherColumns { x, order, out } => {
                Work::GatherColumns { x: self.place(x), order, out: self.place(out) }
            }
            Op::SelectOutputs { x, out } => Work::SelectOutputs { x: self.place(x), out: self.place(out) },
        }
    }

    fn projection(&self, linear: Linear, out: Value, residual: Option<Value>) -> Projection {
        let residual = residual.map(|value| self.place(value).start);
        let makes_logits = self.end == End::Logits && out == self.source.plan.logits;
        Projection { linear: linear.into(), up: None, out: self.place(out), residual, makes_logits, peaks: None }
    }

    fn project(
        &mut self,
        x: Value,
        norm: Option<Norm>,
        select: bool,
        mut projections: Vec<Projection>,
        rows_start: usize,
    ) -> Work {
        let x = self.place(x);
        let k = x.width;
        let source = self.source;
        let linears = projections.iter().flat_map(Projection::linears);
        let tensors: Vec<&Tensor> = linears.map(|linear| &source.weights[linear.weight]).collect();
        let quantized = tensors.iter().any(|tensor| tensor.format().is_quantized());
        let rounded = self.source.isa.rounds_to_bf16() && tensors.iter().any(|t| t.format() == WeightFormat::BF16);
        let rows = if select { self.shape.outputs } else { self.rows(x.rows) };
        let columns = projections.iter().map(|projection| projection.out.width).sum();
        let row_bytes = tensors.iter().map(|tensor| tensor.row_bytes()).max().unwrap_or(0);
        let tiles = rounded && self.source.isa.has_tiles();
        let operand = match quantized {
            _ if tiles => Operand::Tiles,
            true => Operand::Blocks,
            false => Operand::Floats,
        };
        let mut variant = choose_project(rows, columns, row_bytes, self.source.threads, operand);
        for projection in projections.iter_mut().filter(|projection| projection.makes_logits) {
            let Some(columns) = in_peak_groups(variant.chunk_columns) else { break };
            variant.chunk_columns = columns;
            let start = self.shared(rows * num_peaks(projection.out.width));
            (projection.peaks, self.peaks) = (Some(start), Some(start));
        }
        let blocks = k / crate::kernels::quantize::BLOCK_LEN;
        let worker = &mut self.sizes.worker;
        if variant.redundant {
            worker.rows = worker.rows.max(rows * k);
            worker.quantized = worker.quantized.max(if quantized { rows * blocks } else { 0 });
            worker.rounded = worker.rounded.max(if rounded { rows * linear_tiles::padded(k) } else { 0 });
        } else {
            self.sizes.quantized = self.sizes.quantized.max(if quantized { rows * blocks } else { 0 });
            self.sizes.rounded = self.sizes.rounded.max(if rounded { rows * linear_tiles::padded(k) } else { 0 });
        }
        for tensor in &tensors {
            let room = packed::room_bytes(tensor, variant.panel);
            worker.panel = worker.panel.max(room);
        }
        if quantized {
            worker.sums = worker.sums.max(linear_blocks::sums_len(rows, variant.chunk_columns));
        }
        if tiles {
            worker.panel = worker.panel.max(linear_tiles::group_bytes(k));
            worker.sums = worker.sums.max(linear_tiles::SUMS_LEN);
        }
        let widens = tensors.iter().any(|tensor| match tensor.format() {
            WeightFormat::F16 => true,
            WeightFormat::BF16 => !rounded,
            _ => false,
        });
        if widens && rows >= linear::WIDEN_MIN_ROWS {
            worker.widened = worker.widened.max(variant.chunk_columns * k);
        }
        if rows > 1 {
            worker.sums = worker.sums.max(linear::sums_len(variant.chunk_columns, k));
        }
        if projections.iter().any(|projection| projection.up.is_some()) {
            worker.up = worker.up.max(rows * variant.chunk_columns);
        }
        let norm = norm.map(NormRef::from);
        Work::Project(Project { x, select, norm, projections, quantized, rounded, variant, rows_start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_whole_lanes_and_small_enough() {
        for rows in [1, 4, 5, 64, 512] {
            for threads in [1, 2, 16] {
                for (columns, row_bytes) in [(1, 4), (64, 128), (4864, 1792), (151_936, 952)] {
                    let variant = choose_project(rows, columns, row_bytes, threads, Operand::Floats);
                    assert!(variant.chunk_columns >= LANES && variant.chunk_columns.is_multiple_of(LANES));
                    assert!(
                        rows <= REDUNDANT_ROWS
                            || variant.chunk_columns * row_bytes <= (256 << 10).max(LANES * row_bytes)
                    );
                    assert_eq!(variant.redundant, threads > 1 && rows <= REDUNDANT_ROWS);
                    assert_eq!(variant.panel, rows >= PANEL_MIN_ROWS);
                }
            }
        }
        // Decode on two threads: about eight turns each.
        assert_eq!(choose_project(1, 4864, 1792, 2, Operand::Floats).chunk_columns, 304);
    }

    #[test]
    fn groups_of_peaks_are_whole_in_a_chunk_and_change_it_little() {
        assert_eq!([80, 96, 128, 297, 4096].map(in_peak_groups), [None, Some(128), Some(128), Some(256), Some(4096)]);
        assert_eq!(in_peak_groups(16), None);
    }

    #[test]
    fn attention_is_split_only_where_tiles_are_few() {
        assert_eq!(choose_attention_split(1, 2, 1), 0);
        assert_eq!(choose_attention_split(1, 2, 2), 1);
        assert_eq!(choose_attention_split(1, 8, 2), 1);
        assert_eq!(choose_attention_split(4, 2, 2), 0);
        assert_eq!(choose_attention_split(4, 1, 2), 4);
        assert_eq!(choose_attention_split(512, 2, 64), 0);
    }
}
