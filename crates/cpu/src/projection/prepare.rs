//! The rows that projections multiply: chosen, normalised, quantised and rounded, as their weights need them.

use std::ops::Range;

use half::bf16;
use plan::Rows;

use crate::kernels::linear_tiles;
use crate::kernels::quantize::{BLOCK_LEN, QuantizedBlock, quantize_row};
use crate::kernels::rms_norm::rms_norm;
use crate::pool::Worker;
use crate::program::Place;
use crate::projection::Project;
use crate::simd::{Kernel, Simd, Words};
use crate::step::Step;

/// The rows that a projection multiplies: chosen, normalised, quantised, rounded, as its weights need them.
pub(super) fn prepare<'a>(
    step: &'a Step<'a>,
    project: &Project,
    worker: &Worker<'_>,
    own: RowBuffers<'a>,
) -> Operand<'a> {
    let Place { start, width: k, rows } = project.x;
    let rows = if project.select { step.num_rows(Rows::Outputs) } else { step.num_rows(rows) };
    let norm = project.norm.map(|norm| (step.vectors[norm.weight].as_slice(), norm.eps));
    assert!(norm.is_some() || !project.select, "chosen rows are normalised: they are copied on the way");
    // SAFETY: operands were written before the last barrier, shared rows before the one below.
    let in_arena = |start: usize| unsafe { step.arena.read(start..start + rows * k) };
    if !project.prepares() {
        return Operand { rows, k, floats: in_arena(start), blocks: &[], rounded: &[] };
    }
    let width = if norm.is_some() { k } else { 0 };
    let blocks = if project.quantized { k / BLOCK_LEN } else { 0 };
    let halves = if project.rounded { linear_tiles::padded(k) } else { 0 };
    let prepare = |row: usize, out: RowBuffers<'_>| {
        let source = if project.select { step.input.output_rows[row] as usize } else { row };
        step.isa.run(PrepareRow { x: step.row(project.x, source), norm, out });
    };
    if project.variant.redundant {
        for row in 0..rows {
            let rows = &mut own.rows[row * width..(row + 1) * width];
            let quantized = &mut own.quantized[row * blocks..(row + 1) * blocks];
            prepare(row, RowBuffers { rows, quantized, rounded: &mut own.rounded[row * halves..(row + 1) * halves] });
        }
        let floats = if norm.is_some() { &own.rows[..rows * k] } else { in_arena(start) };
        let (blocks, rounded) = (&own.quantized[..rows * blocks], &own.rounded[..rows * halves]);
        return Operand { rows, k, floats, blocks, rounded };
    }
    for row in worker.share(rows) {
        let start = project.rows_start + row * width;
        // SAFETY: each row is in one worker's share.
        let rows = unsafe { step.arena.write(start..start + width) };
        // SAFETY: as above.
        let quantized = unsafe { step.quantized.write(row * blocks..(row + 1) * blocks) };
        // SAFETY: as above.
        let rounded = unsafe { step.rounded.write(row * halves..(row + 1) * halves) };
        prepare(row, RowBuffers { rows, quantized, rounded });
    }
    worker.barrier();
    let floats = in_arena(if norm.is_some() { project.rows_start } else { start });
    // SAFETY: written before the barrier just passed, and by nobody until the next.
    let (blocks, rounded) = unsafe { (step.quantized.read(0..rows * blocks), step.rounded.read(0..rows * halves)) };
    Operand { rows, k, floats, blocks, rounded }
}

/// The rows that a projection multiplies, in each form that one of its weights needs.
pub(super) struct Operand<'a> {
    pub(super) rows: usize,
    pub(super) k: usize,
    /// (rows, k), where some weight multiplies floats.
    pub(super) floats: &'a [f32],
    /// (rows, k / 32), where some weight multiplies quantised rows.
    pub(super) blocks: &'a [QuantizedBlock],
    /// (rows, [`linear_tiles::padded`] k), where some weight multiplies rounded rows.
    pub(super) rounded: &'a [bf16],
}

impl Operand<'_> {
    /// Some of the rows.
    pub(super) fn rows(&self, rows: Range<usize>) -> Self {
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
pub(super) struct RowBuffers<'a> {
    /// Normalised.
    pub(super) rows: &'a mut [f32],
    pub(super) quantized: &'a mut [QuantizedBlock],
    /// To bfloat16, with zeros after.
    pub(super) rounded: &'a mut [bf16],
}

/// Normalises a row where there is a norm, and quantises and rounds it where there is room for it.
pub(super) struct PrepareRow<'a> {
    pub(super) x: &'a [f32],
    pub(super) norm: Option<(&'a [f32], f32)>,
    pub(super) out: RowBuffers<'a>,
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
