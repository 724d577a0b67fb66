//! A worker's part of projections: chunks of columns, each multiplied by all rows.

use std::ops::Range;

use backend::{PEAK_GROUP, num_peaks};
use half::{bf16, f16};
use tensor::{Tensor, WeightFormat};

use crate::kernels::elementwise::{ActivateMul, GroupPeaks};
use crate::kernels::linear::{self, LinearFloat, Output, Widen, WidenAll};
use crate::kernels::linear_blocks::{self, LinearBlocks, Streaming};
use crate::kernels::linear_tiles::{self, LinearTiles};
use crate::kernels::quantize::BLOCK_LEN;
use crate::packed;
use crate::panels::{PanelFormat, with_panel_format};
use crate::pool::{Turns, Worker};
use crate::program::Place;
use crate::projection::prepare::{Operand, RowBuffers, prepare};
use crate::projection::{LinearRef, Project, Projection};
use crate::shared::SharedSlice;
use crate::step::{Scratch, Step};

/// Rows of a strip in which a gated linear unit is computed: 96 KiB of results for chunks of 128 columns.
const GATED_STRIP_ROWS: usize = 96;

pub(super) fn project(step: &Step<'_>, project: &Project, turns: &Turns, worker: &Worker<'_>, scratch: &mut Scratch) {
    let Scratch { rows, quantized, rounded, up, panel, widened, sums, .. } = scratch;
    let x = prepare(step, project, worker, RowBuffers { rows, quantized, rounded });
    let chunk_columns = project.variant.chunk_columns;
    let chunks = |projection: &Projection| projection.out.width.div_ceil(chunk_columns);
    let mut room = Room { panel, packs: project.variant.panel, widened, sums, streaming: project.streaming };
    for mut chunk in worker.take_turns(turns, project.projections.iter().map(chunks).sum()) {
        for projection in &project.projections {
            if chunk < chunks(projection) {
                let start = chunk * chunk_columns;
                let columns = start..(start + chunk_columns).min(projection.out.width);
                project_columns(step, projection, &x, None, columns, up, &mut room);
                break;
            }
            chunk -= chunks(projection);
        }
    }
}

/// Some columns of one weight's result; `places` says which row each row of `x` makes, where that is another.
pub(super) fn project_columns(
    step: &Step<'_>,
    projection: &Projection,
    x: &Operand<'_>,
    places: Option<&[u32]>,
    columns: Range<usize>,
    up: &mut [f32],
    room: &mut Room<'_>,
) {
    let Place { start, width, .. } = projection.out;
    let residual = projection.residual;
    let output =
        Output { values: &step.arena, start, stride: width, first_column: 0, bias: None, residual, rows: places };
    let Some((linear, activation)) = projection.up else {
        multiply(step, projection.linear, x, columns.clone(), output, room);
        if let Some(peaks) = projection.peaks {
            keep_peaks(step, projection.out, peaks, x.rows, &columns);
        }
        return;
    };
    let stride = columns.len();
    // Where nothing is done to the weights first, both results of a strip meet in the second-level cache.
    let in_strips = [projection.linear, linear].iter().all(|linear| is_multiplied_in_place(step, linear.weight));
    let strip = if in_strips { GATED_STRIP_ROWS } else { x.rows.max(1) };
    for first in (0..x.rows).step_by(strip) {
        let x = x.rows(first..(first + strip).min(x.rows));
        let places = places.map(|places| &places[first..first + x.rows]);
        let start = if places.is_some() { start } else { start + first * width };
        multiply(step, projection.linear, &x, columns.clone(), Output { start, rows: places, ..output }, room);
        let values = &SharedSlice::new(&mut up[..x.rows * stride]);
        let up =
            Output { values, start: 0, stride, first_column: columns.start, bias: None, residual: None, rows: None };
        multiply(step, linear, &x, columns.clone(), up, room);
        for row in 0..x.rows {
            let place = places.map_or(row, |places| places[row] as usize);
            let gate = start + place * width + columns.start;
            // SAFETY: these columns are this worker's alone in this op.
            let gate_and_out = unsafe { step.arena.write(gate..gate + stride) };
            // SAFETY: the slice is this worker's own, and nothing writes to it any more.
            let up = unsafe { values.read(row * stride..(row + 1) * stride) };
            step.isa.run(ActivateMul { activation, gate_and_out, up });
        }
    }
}

/// Whether many rows multiply a weight where it lies.
fn is_multiplied_in_place(step: &Step<'_>, weight: usize) -> bool {
    let in_panels = with_panel_format!(
        step.weights[weight].format(),
        F => F::HAS_TILES_IN_PLACE && step.isa.is_wide(),
        else step.isa.has_tiles() && step.weights[weight].format() == WeightFormat::BF16
    );
    in_panels && step.packed[weight].is_some()
}

/// Looks for the peaks of some columns of `out`, which begin at a group's first, while they are in the cache.
fn keep_peaks(step: &Step<'_>, out: Place, peaks: usize, rows: usize, columns: &Range<usize>) {
    for row in 0..rows {
        let start = out.start + row * out.width;
        // SAFETY: this worker has written these columns, which are its alone in this op.
        let logits = unsafe { step.arena.read(start + columns.start..start + columns.end) };
        let start = peaks + row * num_peaks(out.width);
        let groups = columns.start / PEAK_GROUP..columns.end.div_ceil(PEAK_GROUP);
        // SAFETY: the groups of these columns are this worker's alone, as the columns are.
        let peaks = unsafe { step.arena.write(start + groups.start..start + groups.end) };
        step.isa.run(GroupPeaks { logits, peaks });
    }
}

/// Some columns of x · Wᵀ + b.
pub(super) fn multiply(
    step: &Step<'_>,
    linear: LinearRef,
    x: &Operand<'_>,
    columns: Range<usize>,
    output: Output<'_>,
    room: &mut Room<'_>,
) {
    let tensor = &step.weights[linear.weight];
    let output = Output { bias: linear.bias.map(|bias| step.vectors[bias].as_slice()), ..output };
    match tensor.format() {
        WeightFormat::F32 => multiply_floats::<f32>(step, tensor, x, columns, output, room),
        WeightFormat::F16 => multiply_floats::<f16>(step, tensor, x, columns, output, room),
        WeightFormat::BF16 if step.isa.has_tiles() => {
            let &Operand { rows, k, rounded: x, .. } = x;
            let weights = match &step.packed[linear.weight] {
                Some(packed) => linear_tiles::Weights::Packed(packed),
                None => {
                    let panels = &mut room.panel[..linear_tiles::group_bytes(k)];
                    linear_tiles::Weights::File { values: tensor.as_slice(), panels }
                }
            };
            step.isa.run(LinearTiles { weights, x, rows, k, columns, output, sums: room.sums });
        }
        WeightFormat::BF16 => multiply_floats::<bf16>(step, tensor, x, columns, output, room),
        format => with_panel_format!(
            format,
            F => multiply_blocks::<F>(step, linear.weight, x, columns, output, room),
            else unreachable!("floats are above")
        ),
    }
}

fn multiply_blocks<F: PanelFormat>(
    step: &Step<'_>,
    weight: usize,
    x: &Operand<'_>,
    columns: Range<usize>,
    output: Output<'_>,
    room: &mut Room<'_>,
) {
    let tensor = &step.weights[weight];
    let blocks = x.k / BLOCK_LEN / F::X_BLOCKS;
    let &Operand { rows, blocks: x, .. } = x;
    let Room { panel, packs, sums, streaming, .. } = room;
    let (panel, packs, sums, streaming) = (&mut **panel, *packs, &mut **sums, *streaming);
    let weights: linear_blocks::Weights<'_, F> = match &step.packed[weight] {
        Some(packed) => linear_blocks::Weights::Packed(packed),
        None => {
            let panel = &mut panel[..packed::room_bytes(tensor, packs)];
            linear_blocks::Weights::File { blocks: tensor.as_slice(), panel }
        }
    };
    step.isa.run(LinearBlocks { weights, x, rows, blocks, columns, output, streaming, sums });
}

fn multiply_floats<W: Widen>(
    step: &Step<'_>,
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
        step.isa.run(WidenAll { weights: &weights[columns.start * k..columns.end * k], out: &mut *out });
        let (weights, first_row) = (&*out, columns.start);
        step.isa.run(LinearFloat { weights, first_row, x, rows, k, columns, output, sums });
    } else {
        step.isa.run(LinearFloat { weights, first_row: 0, x, rows, k, columns, output, sums });
    }
}

/// A worker's own memory for one projection.
pub(super) struct Room<'a> {
    /// For panels that are packed on the way.
    pub(super) panel: &'a mut [u8],
    /// Whether weights in blocks are, whatever their format.
    pub(super) packs: bool,
    /// For weights of a chunk as f32; empty where they are widened in each tile.
    pub(super) widened: &'a mut [f32],
    /// For sums between pieces of k.
    pub(super) sums: &'a mut [f32],
    /// How weights in blocks pass.
    pub(super) streaming: Streaming,
}
