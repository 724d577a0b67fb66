//! One step: what every worker does for each instruction.
//!
//! Soundness of the shared memory rests on one rule, kept here: between two barriers an element of the arena, of the
//! cache or of the shared quantised rows is written by one worker, or only read. Rows, heads or columns of an op's result
//! are handed out once each ([`Worker::share`], [`Worker::take_turns`]); an op's results never lie over its operands
//! ([`plan::MemoryPlan`]); and after each op there is a barrier.

use std::ops::Range;

use backend::{PEAK_GROUP, num_peaks};
use half::{bf16, f16};
use plan::{Rows, StepInput};
use tensor::{Tensor, WeightFormat};

use crate::Isa;
use crate::kernels::attention::{self, MergeSplit, OneSplit, Sequential, Tile};
use crate::kernels::elementwise::{self, ActivateMul, GroupPeaks};
use crate::kernels::linear::{self, LinearFloat, Output, Widen, WidenAll};
use crate::kernels::linear_blocks::{self, LinearBlocks};
use crate::kernels::linear_tiles::{self, LinearTiles};
use crate::kernels::quantize::{BLOCK_LEN, QuantizedBlock, quantize_row};
use crate::kernels::rms_norm::{RmsNorm, rms_norm};
use crate::kernels::rope::{RopeTable, rotate};
use crate::kv_cache::{self, KvElement, LayerPlace, SharedKv, with_elements};
use crate::packed::{self, Packed};
use crate::panels::{PanelFormat, with_panel_format};
use crate::pool::{Turns, Worker};
use crate::program::{Attend, LinearRef, NormRef, Place, Program, Project, Projection, RopeKvWrite, Work, WorkerSizes};
use crate::shared::{AlignedBuffer, SharedSlice};
use crate::simd::{Kernel, Simd, Words};

/// Rows of a strip in which a gated linear unit is computed: 96 KiB of results for chunks of 128 columns.
const GATED_STRIP_ROWS: usize = 96;

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
    pub(crate) layers: &'a [LayerPlace],
    pub(crate) arena: SharedSlice<'a, f32>,
    pub(crate) quantized: SharedSlice<'a, QuantizedBlock>,
    pub(crate) rounded: SharedSlice<'a, bf16>,
    pub(crate) kv: SharedKv<'a>,
}

/// A worker's own memory.
pub(crate) struct Scratch {
    rows: AlignedBuffer<f32>,
    quantized: AlignedBuffer<QuantizedBlock>,
    rounded: AlignedBuffer<bf16>,
    up: AlignedBuffer<f32>,
    panel: AlignedBuffer<u8>,
    widened: AlignedBuffer<f32>,
    sums: AlignedBuffer<f32>,
    attention: AlignedBuffer<f32>,
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
        })
    }
}

impl Step<'_> {
    /// Runs the whole program as one member of the team.
    pub(crate) fn run(&self, worker: &Worker<'_>, scratch: &mut Scratch) {
        for (index, (instruction, turns)) in self.program.instructions.iter().zip(&self.program.turns).enumerate() {
            worker.begin(index);
            self.run_work(&instruction.work, turns, worker, scratch);
            if instruction.barrier {
                worker.barrier();
            } else {
                worker.end();
            }
        }
    }

    /// Runs one instruction as one member of the team; the end of the job is its barrier.
    pub(crate) fn run_instruction(&self, index: usize, worker: &Worker<'_>, scratch: &mut Scratch) {
        self.run_work(&self.program.instructions[index].work, &self.program.turns[index], worker, scratch);
    }

    fn run_work(&self, work: &Work, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        match *work {
            Work::CopyBlocks => self.copy_blocks(worker),
            Work::Angles { rope, out } => self.each_row(worker, out, |row, angles| {
                self.ropes[rope].angles(self.rows[row].position, angles);
            }),
            Work::Embed { table, out } => self.each_row(worker, out, |row, features| {
                self.weights[table].row_to_f32(self.input.token_ids[row] as usize, features);
            }),
            Work::RmsNorm { x, norm, out } => self.each_row(worker, out, |row, out| {
                let NormRef { weight, eps } = norm;
                self.isa.run(RmsNorm { x: self.row(x, row), weight: &self.vectors[weight], eps, out });
            }),
            Work::Project(ref project) => self.project(project, turns, worker, scratch),
            Work::Rope { x, head_dim, angles, out } => self.each_row(worker, out, |row, out| {
                out.copy_from_slice(self.row(x, row));
                let angles = self.row(angles, row);
                out.chunks_exact_mut(head_dim).for_each(|head| rotate(head, angles));
            }),
            Work::KvWrite { layer, k, v } => {
                let heads = self.layers[layer].kv_heads;
                let head_dim = self.layers[layer].head_dim;
                for item in worker.share(self.num_rows(Rows::Tokens) * heads) {
                    let (row, head) = (item / heads, item % heads);
                    let features = head * head_dim..(head + 1) * head_dim;
                    self.kv_write(layer, row, head, &self.row(k, row)[features.clone()], &self.row(v, row)[features]);
                }
            }
            Work::RopeKvWrite(ref work) => self.rope_kv_write(work, worker, scratch),
            Work::Attend(ref attend) => self.attend(attend, turns, worker, scratch),
            Work::ActivateMul { activation, gate, up, out } => self.each_row(worker, out, |row, out| {
                out.copy_from_slice(self.row(gate, row));
                self.isa.run(ActivateMul { activation, gate_and_out: out, up: self.row(up, row) });
            }),
            Work::Add { a, b, out } => {
                self.each_row(worker, out, |row, out| elementwise::add(self.row(a, row), self.row(b, row), out));
            }
            Work::GatherColumns { x, order, out } => self.each_row(worker, out, |row, out| {
                let x = self.row(x, row);
                out.iter_mut().zip(&self.orders[order]).for_each(|(out, &column)| *out = x[column as usize]);
            }),
            Work::SelectOutputs { x, out } => self.each_row(worker, out, |row, out| {
                out.copy_from_slice(self.row(x, self.input.output_rows[row] as usize));
            }),
        }
    }

    fn num_rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.input.token_ids.len(),
            Rows::Outputs => self.input.output_rows.len(),
        }
    }

    /// Row `row` of an operand.
    fn row(&self, place: Place, row: usize) -> &[f32] {
        let start = place.start + row * place.width;
        // SAFETY: written before the last barrier; this op writes only its results, which lie elsewhere.
        unsafe { self.arena.read(start..start + place.width) }
    }

    /// Runs `make` on this worker's rows of a result.
    fn each_row(&self, worker: &Worker<'_>, out: Place, make: impl Fn(usize, &mut [f32])) {
        for row in worker.share(self.num_rows(out.rows)) {
            let start = out.start + row * out.width;
            // SAFETY: each row is in one worker's share.
            make(row, unsafe { self.arena.write(start..start + out.width) });
        }
    }

    fn copy_blocks(&self, worker: &Worker<'_>) {
        if self.input.block_copies.is_empty() {
            return;
        }
        let heads = self.layers.iter().flat_map(|layer| (0..layer.kv_heads).map(move |head| (layer, head)));
        let share = worker.share(self.layers.iter().map(|layer| layer.kv_heads).sum());
        for (layer, head) in heads.skip(share.start).take(share.len()) {
            // SAFETY: each head of each layer is in one worker's share.
            with_elements!(&self.kv, cache => unsafe {
                kv_cache::copy_blocks(cache, layer, head, &self.input.block_copies);
            });
        }
    }

    fn kv_write(&self, layer: usize, row: usize, head: usize, k: &[f32], v: &[f32]) {
        // SAFETY: each (row, head) is in one worker's share, and rows have places of their own.
        with_elements!(&self.kv, cache => unsafe {
            kv_cache::write_token(cache, &self.layers[layer], head, self.rows[row].slot, (k, v));
        });
    }

    fn rope_kv_write(&self, work: &RopeKvWrite, worker: &Worker<'_>, scratch: &mut Scratch) {
        let LayerPlace { kv_heads, head_dim, .. } = self.layers[work.layer];
        let heads = work.q.width / head_dim;
        for item in worker.share(self.num_rows(Rows::Tokens) * (heads + kv_heads)) {
            let (row, head) = (item / (heads + kv_heads), item % (heads + kv_heads));
            let angles = self.row(work.angles, row);
            if head < heads {
                let features = head * head_dim..(head + 1) * head_dim;
                let start = work.q_out.start + row * work.q_out.width + features.start;
                // SAFETY: each (row, head) is in one worker's share.
                let out = unsafe { self.arena.write(start..start + head_dim) };
                self.norm_and_rotate(&self.row(work.q, row)[features], work.q_norm, angles, out);
            } else {
                let head = head - heads;
                let features = head * head_dim..(head + 1) * head_dim;
                let k = &mut scratch.rows[..head_dim];
                self.norm_and_rotate(&self.row(work.k, row)[features.clone()], work.k_norm, angles, k);
                self.kv_write(work.layer, row, head, k, &self.row(work.v, row)[features]);
            }
        }
    }

    fn norm_and_rotate(&self, x: &[f32], norm: Option<NormRef>, angles: &[f32], out: &mut [f32]) {
        match norm {
            None => out.copy_from_slice(x),
            Some(NormRef { weight, eps }) => self.isa.run(RmsNorm { x, weight: &self.vectors[weight], eps, out }),
        }
        rotate(out, angles);
    }

    fn project(&self, project: &Project, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        let Scratch { rows, quantized, rounded, up, panel, widened, sums, .. } = scratch;
        let x = self.prepare(project, worker, Prepared { rows, quantized, rounded });
        let chunk_columns = project.variant.chunk_columns;
        let chunks = |projection: &Projection| projection.out.width.div_ceil(chunk_columns);
        let mut room = Room { panel, packs: project.variant.panel, widened, sums };
        for mut chunk in worker.take_turns(turns, project.projections.iter().map(chunks).sum()) {
            for projection in &project.projections {
                if chunk < chunks(projection) {
                    let start = chunk * chunk_columns;
                    let columns = start..(start + chunk_columns).min(projection.out.width);
                    self.project_columns(projection, &x, columns, up, &mut room);
                    break;
                }
                chunk -= chunks(projection);
            }
        }
    }

    /// The rows that a projection multiplies: chosen, normalised, quantised, rounded, as its weights need them.
    fn prepare<'a>(&'a self, project: &Project, worker: &Worker<'_>, own: Prepared<'a>) -> Operand<'a> {
        let Place { start, width: k, rows } = project.x;
        let rows = if project.select { self.num_rows(Rows::Outputs) } else { self.num_rows(rows) };
        let norm = project.norm.map(|norm| (self.vectors[norm.weight].as_slice(), norm.eps));
        assert!(norm.is_some() || !project.select, "chosen rows are normalised: they are copied on the way");
        // SAFETY: operands were written before the last barrier, shared rows before the one below.
        let in_arena = |start: usize| unsafe { self.arena.read(start..start + rows * k) };
        if !project.prepares() {
            return Operand { rows, k, floats: in_arena(start), blocks: &[], rounded: &[] };
        }
        let width = if norm.is_some() { k } else { 0 };
        let blocks = if project.quantized { k / BLOCK_LEN } else { 0 };
        let halves = if project.rounded { linear_tiles::padded(k) } else { 0 };
        let prepare = |row: usize, out: Prepared<'_>| {
            let source = if project.select { self.input.output_rows[row] as usize } else { row };
            self.isa.run(PrepareRow { x: self.row(project.x, source), norm, out });
        };
        if project.variant.redundant {
            for row in 0..rows {
                let rows = &mut own.rows[row * width..(row + 1) * width];
                let quantized = &mut own.quantized[row * blocks..(row + 1) * blocks];
                prepare(row, Prepared { rows, quantized, rounded: &mut own.rounded[row * halves..(row + 1) * halves] });
            }
            let floats = if norm.is_some() { &own.rows[..rows * k] } else { in_arena(start) };
            let (blocks, rounded) = (&own.quantized[..rows * blocks], &own.rounded[..rows * halves]);
            return Operand { rows, k, floats, blocks, rounded };
        }
        for row in worker.share(rows) {
            let start = project.rows_start + row * width;
            // SAFETY: each row is in one worker's share.
            let rows = unsafe { self.arena.write(start..start + width) };
            // SAFETY: as above.
            let quantized = unsafe { self.quantized.write(row * blocks..(row + 1) * blocks) };
            // SAFETY: as above.
            let rounded = unsafe { self.rounded.write(row * halves..(row + 1) * halves) };
            prepare(row, Prepared { rows, quantized, rounded });
        }
        worker.barrier();
        let floats = in_arena(if norm.is_some() { project.rows_start } else { start });
        // SAFETY: written before the barrier just passed, and by nobody until the next.
        let (blocks, rounded) = unsafe { (self.quantized.read(0..rows * blocks), self.rounded.read(0..rows * halves)) };
        Operand { rows, k, floats, blocks, rounded }
    }

    /// Some columns of one weight's result.
    fn project_columns(
        &self,
        projection: &Projection,
        x: &Operand<'_>,
        columns: Range<usize>,
        up: &mut [f32],
        room: &mut Room<'_>,
    ) {
        let Place { start, width, .. } = projection.out;
        let residual = projection.residual;
        let output = Output { values: &self.arena, start, stride: width, first_column: 0, bias: None, residual };
        let Some((linear, activation)) = projection.up else {
            self.multiply(projection.linear, x, columns.clone(), output, room);
            if let Some(peaks) = projection.peaks {
                self.keep_peaks(projection.out, peaks, x.rows, &columns);
            }
            return;
        };
        let stride = columns.len();
        // Where nothing is done to the weights first, both results of a strip meet in the second-level cache.
        let in_strips = [projection.linear, linear].iter().all(|linear| self.is_multiplied_in_place(linear.weight));
        let strip = if in_strips { GATED_STRIP_ROWS } else { x.rows.max(1) };
        for first in (0..x.rows).step_by(strip) {
            let x = x.rows(first..(first + strip).min(x.rows));
            let start = start + first * width;
            self.multiply(projection.linear, &x, columns.clone(), Output { start, ..output }, room);
            let values = &SharedSlice::new(&mut up[..x.rows * stride]);
            let up = Output { values, start: 0, stride, first_column: columns.start, bias: None, residual: None };
            self.multiply(linear, &x, columns.clone(), up, room);
            for row in 0..x.rows {
                let gate = start + row * width + columns.start;
                // SAFETY: these columns are this worker's alone in this op.
                let gate_and_out = unsafe { self.arena.write(gate..gate + stride) };
                // SAFETY: the slice is this worker's own, and nothing writes to it any more.
                let up = unsafe { values.read(row * stride..(row + 1) * stride) };
                self.isa.run(ActivateMul { activation, gate_and_out, up });
            }
        }
    }

    /// Whether many rows multiply a weight where it lies.
    fn is_multiplied_in_place(&self, weight: usize) -> bool {
        let in_panels = with_panel_format!(
            self.weights[weight].format(),
            F => F::HAS_TILES_IN_PLACE && self.isa.is_wide(),
            else self.isa.has_tiles() && self.weights[weight].format() == WeightFormat::BF16
        );
        in_panels && self.packed[weight].is_some()
    }

    /// Looks for the peaks of some columns of `out`, which begin at a group's first, while they are in the cache.
    fn keep_peaks(&self, out: Place, peaks: usize, rows: usize, columns: &Range<usize>) {
        for row in 0..rows {
            let start = out.start + row * out.width;
            // SAFETY: this worker has written these columns, which are its alone in this op.
            let logits = unsafe { self.arena.read(start + columns.start..start + columns.end) };
            let start = peaks + row * num_peaks(out.width);
            let groups = columns.start / PEAK_GROUP..columns.end.div_ceil(PEAK_GROUP);
            // SAFETY: the groups of these columns are this worker's alone, as the columns are.
            let peaks = unsafe { self.arena.write(start + groups.start..start + groups.end) };
            self.isa.run(GroupPeaks { logits, peaks });
        }
    }

    /// Some columns of x · Wᵀ + b.
    fn multiply(
        &self,
        linear: LinearRef,
        x: &Operand<'_>,
        columns: Range<usize>,
        output: Output<'_>,
        room: &mut Room<'_>,
    ) {
        let tensor = &self.weights[linear.weight];
        let output = Output { bias: linear.bias.map(|bias| self.vectors[bias].as_slice()), ..output };
        match tensor.format() {
            WeightFormat::F32 => self.multiply_floats::<f32>(tensor, x, columns, output, room),
            WeightFormat::F16 => self.multiply_floats::<f16>(tensor, x, columns, output, room),
            WeightFormat::BF16 if self.isa.has_tiles() => {
                let &Operand { rows, k, rounded: x, .. } = x;
                let weights = match &self.packed[linear.weight] {
                    Some(packed) => linear_tiles::Weights::Packed(packed),
                    None => {
                        let panels = &mut room.panel[..linear_tiles::group_bytes(k)];
                        linear_tiles::Weights::File { values: tensor.as_slice(), panels }
                    }
                };
                self.isa.run(LinearTiles { weights, x, rows, k, columns, output, sums: room.sums });
            }
            WeightFormat::BF16 => self.multiply_floats::<bf16>(tensor, x, columns, output, room),
            format => with_panel_format!(
                format,
                F => self.multiply_blocks::<F>(linear.weight, x, columns, output, room),
                else unreachable!("floats are above")
            ),
        }
    }

    fn multiply_blocks<F: PanelFormat>(
        &self,
        weight: usize,
        x: &Operand<'_>,
        columns: Range<usize>,
        output: Output<'_>,
        room: &mut Room<'_>,
    ) {
        let tensor = &self.weights[weight];
        let blocks = x.k / BLOCK_LEN / F::X_BLOCKS;
        let &Operand { rows, blocks: x, .. } = x;
        let Room { panel, packs, sums, .. } = room;
        let weights: linear_blocks::Weights<'_, F> = match &self.packed[weight] {
            Some(packed) => linear_blocks::Weights::Packed(packed),
            None => {
                let panel = &mut panel[..packed::room_bytes(tensor, *packs)];
                linear_blocks::Weights::File { blocks: tensor.as_slice(), panel }
            }
        };
        self.isa.run(LinearBlocks { weights, x, rows, blocks, columns, output, sums });
    }

    fn multiply_floats<W: Widen>(
        &self,
        tensor: &Tensor,
        x: &Operand<'_>,
        columns: Range<usize>,
        output: Output<'_>,
        room: &mut Room<'_>,
    ) {
        let &Operand { rows, k, floats: x, .. } = x;
        let weights: &[W] = tensor.as_slice();
        let Room { widened, sums, .. } = room;
        if !widened.is_empty() && rows >= linear::WIDEN_MIN_ROWS {
            let out = &mut widened[..columns.len() * k];
            self.isa.run(WidenAll { weights: &weights[columns.start * k..columns.end * k], out: &mut *out });
            let (weights, first_row) = (&*out, columns.start);
            self.isa.run(LinearFloat { weights, first_row, x, rows, k, columns, output, sums });
        } else {
            self.isa.run(LinearFloat { weights, first_row: 0, x, rows, k, columns, output, sums });
        }
    }

    fn attend(&self, attend: &Attend, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
        with_elements!(&self.kv, cache => self.attend_cache(cache, attend, turns, worker, &mut scratch.attention));
    }

    fn attend_cache<E: KvElement>(
        &self,
        cache: &SharedSlice<'_, E>,
        attend: &Attend,
        turns: &Turns,
        worker: &Worker<'_>,
        scratch: &mut [f32],
    ) {
        let layer = &self.layers[attend.attention.layer];
        let most_splits = self.input.sequences.iter().map(|s| s.kv_len().div_ceil(attention::SPLIT)).max().unwrap_or(0);
        // One split is no work to share, and a cache that is addressed beyond its size has no room for partial results.
        let split = most_splits > 1 && most_splits <= attend.max_splits;
        if !split {
            let tiles = self.tiles(cache, layer, attend, attention::tile_queries(self.group(layer, attend)));
            for_my_turns(worker, turns, tiles.map(|tile| (tile, 1)), |&(row, ref tile), _| {
                let partials = self.isa.run(Sequential { tile, scratch });
                self.finish_tile(attend, row, tile, partials);
            });
            return;
        }
        // A tile of one query each, so that a partial result has its place by row and head.
        let width = attention::partial_width(layer.head_dim);
        let place = |row: usize, head: usize, split: usize| {
            let index = (row * attend.attention.heads + head) * attend.max_splits + split;
            attend.partials + index * width..attend.partials + (index + 1) * width
        };
        let tiles = self.tiles(cache, layer, attend, 1).map(|(row, tile)| {
            let splits = tile.splits().len();
            ((row, tile), splits)
        });
        for_my_turns(worker, turns, tiles, |&(row, ref tile), index| {
            let split = tile.splits().start + index;
            let partials = self.isa.run(OneSplit { tile, split, scratch });
            for (head, partial) in tile.heads.clone().zip(partials.chunks_exact(width)) {
                // SAFETY: each (row, head, split) is one worker's turn.
                unsafe { self.arena.write(place(row, head, split)) }.copy_from_slice(partial);
            }
        });
        worker.barrier();
        let tiles: usize = self.tiles(cache, layer, attend, 1).count();
        let mine = worker.share(tiles);
        for (row, tile) in self.tiles(cache, layer, attend, 1).skip(mine.start).take(mine.len()) {
            let all = &mut scratch[..tile.rows() * width];
            for (index, (head, into)) in tile.heads.clone().zip(all.chunks_exact_mut(width)).enumerate() {
                for split in tile.splits() {
                    // SAFETY: written before the barrier just passed, and by nobody until the next.
                    let part = unsafe { self.arena.read(place(row, head, split)) };
                    self.isa.run(MergeSplit { tile: &tile, row: index, split, part, into });
                }
            }
            self.finish_tile(attend, row, &tile, all);
        }
    }

    /// The most query heads that one kv head serves.
    fn group(&self, layer: &LayerPlace, attend: &Attend) -> usize {
        attend.attention.heads.div_ceil(layer.kv_heads)
    }

    /// The step's attention in tiles of up to `queries` queries of one kv head, each with the row of its first.
    fn tiles<'a, E>(
        &'a self,
        cache: &'a SharedSlice<'a, E>,
        layer: &'a LayerPlace,
        attend: &'a Attend,
        queries: usize,
    ) -> impl Iterator<Item = (usize, Tile<'a, E>)> {
        let plan::Attention { heads, scale, window, .. } = attend.attention;
        let Place { start, width: q_stride, .. } = attend.q;
        self.input.sequences.iter().flat_map(move |sequence| {
            (0..sequence.num_rows).step_by(queries).flat_map(move |offset| {
                let queries = queries.min(sequence.num_rows - offset);
                let row = sequence.first_row + offset;
                let begin = start + row * q_stride;
                // SAFETY: q was written before the last barrier, and is nobody's result in this op.
                let q = unsafe { self.arena.read(begin..begin + queries * q_stride) };
                (0..layer.kv_heads).map(move |kv_head| {
                    let first_head = |kv_head: usize| (kv_head * heads).div_ceil(layer.kv_heads);
                    let tile = Tile {
                        cache,
                        layer,
                        kv_head,
                        table: self.input.table(sequence),
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
    fn finish_tile<E>(&self, attend: &Attend, row: usize, tile: &Tile<'_, E>, partials: &[f32]) {
        let head_dim = tile.layer.head_dim;
        let width = attention::partial_width(head_dim);
        for (index, partial) in partials.chunks_exact(width).enumerate() {
            let (query, head) = (index / tile.heads.len(), tile.heads.start + index % tile.heads.len());
            let start = attend.out.start + (row + query) * attend.out.width + head * head_dim;
            // SAFETY: each (row, head) is in one tile, and each tile is one worker's.
            attention::finish(partial, unsafe { self.arena.write(start..start + head_dim) });
        }
    }
}

/// Calls `run(group, index)` for this worker's turns among all groups' items.
fn for_my_turns<G>(
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

/// A worker's own memory for one projection.
struct Room<'a> {
    /// For panels that are packed on the way.
    panel: &'a mut [u8],
    /// Whether weights in blocks are, whatever their format.
    packs: bool,
    /// For weights of a chunk as f32; empty where they are widened in each tile.
    widened: &'a mut [f32],
    /// For sums between pieces of k.
    sums: &'a mut [f32],
}

/// The rows that a projection multiplies, in each form that one of its weights needs.
struct Operand<'a> {
    rows: usize,
    k: usize,
    /// (rows, k), where some weight multiplies floats.
    floats: &'a [f32],
    /// (rows, k / 32), where some weight multiplies quantised rows.
    blocks: &'a [QuantizedBlock],
    /// (rows, [`linear_tiles::padded`] k), where some weight multiplies rounded rows.
    rounded: &'a [bf16],
}

impl Operand<'_> {
    /// Some of the rows.
    fn rows(&self, rows: Range<usize>) -> Self {
        let k = self.k;
        // A form that nothing needs is empty.
        fn some<'a, T>(all: &'a [T], rows: &Range<usize>, width: usize) -> &'a [T] {
            if all.is_empty() { all } else { &all[rows.start * width..rows.end * width] }
        }
        Self {
            rows: rows.len(),
            k,
            floats: some(self.floats, &rows, k),
            blocks: some(self.blocks, &rows, k / BLOCK_LEN),
            rounded: some(self.rounded, &rows, linear_tiles::padded(k)),
        }
    }
}

/// Where prepared rows go; a form that nothing needs is empty.
struct Prepared<'a> {
    /// Normalised.
    rows: &'a mut [f32],
    quantized: &'a mut [QuantizedBlock],
    /// To bfloat16, with zeros after.
    rounded: &'a mut [bf16],
}

/// Normalises a row where there is a norm, and quantises and rounds it where there is room for it.
struct PrepareRow<'a> {
    x: &'a [f32],
    norm: Option<(&'a [f32], f32)>,
    out: Prepared<'a>,
}

impl Kernel for PrepareRow<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, norm, out } = self;
        let row = match norm {
            None => x,
            Some((weight, eps)) => {
                rms_norm(s, x, weight, eps, out.rows);
                &*out.rows
            }
        };
        if !out.quantized.is_empty() {
            quantize_row(s, row, out.quantized);
        }
        if !out.rounded.is_empty() {
            round_row(s, row, out.rounded);
        }
    }
}

/// `x` rounded to bfloat16 into `out`, zeros after.
#[inline(always)]
fn round_row<S: Simd>(s: S, x: &[f32], out: &mut [bf16]) {
    let (values, zeros) = out.split_at_mut(x.len());
    let (vectors, rest) = x.as_chunks();
    let (out, out_rest) = values.as_chunks_mut();
    out.iter_mut().zip(vectors).for_each(|(out, x)| *out = s.round_bf16(s.load(x)));
    out_rest.iter_mut().zip(rest).for_each(|(out, &x)| *out = bf16::from_f32(x));
    zeros.fill(bf16::ZERO);
}
