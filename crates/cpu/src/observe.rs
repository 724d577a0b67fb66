//! A step whose every result is shown: one job of the team for each instruction, and between two jobs the arena and the
//! cache are the caller's alone to read.
//!
//! The same instructions as in an ordinary step, with the same program and on the same threads; only the wake-ups cost
//! more. Values lie over each other in the arena, so each is shown before the next instruction runs.

use backend::{BackendError, Observed, Observer};
use plan::{MemoryPlan, Op, Rows, StepInput};

use crate::CpuExecutable;
use crate::kernels::linear::Widen;
use crate::kv_cache::{CachePlace, KvCache, LayerPlace};
use crate::program::End;
use crate::step::RowPlace;

/// Runs a step and shows each op's results.
pub(crate) fn replay<'a>(
    executable: &'a mut CpuExecutable,
    input: &StepInput,
    observer: &mut Observer<'_>,
) -> Result<&'a [f32], BackendError> {
    let program = executable.begin(End::Logits, input)?;
    let plan = executable.plan.clone();
    // As the compiler laid it out.
    let memory = MemoryPlan::new(&plan, executable.programs[program].shape);
    let num_instructions = executable.programs[program].instructions.len();
    // The step's copies and angles come first, then one instruction for each op.
    let first_op = num_instructions - plan.ops.len();
    for instruction in 0..num_instructions {
        executable.run(program, input, |step, worker, scratch| step.run_instruction(instruction, worker, scratch))?;
        let Some(index) = instruction.checked_sub(first_op) else { continue };
        let op = &plan.ops[index];
        for value in op.outputs() {
            let info = plan.value(value);
            let rows = match info.rows {
                Rows::Tokens => input.token_ids.len(),
                Rows::Outputs => input.output_rows.len(),
            };
            let start = memory.offset(value);
            observer(index, Observed::Value(value), &executable.memory.arena[start..start + rows * info.width]);
        }
        if let Op::KvWrite { layer, .. } | Op::RopeKvWrite { layer, .. } = *op {
            let (keys, values) = written(&executable.cache, &executable.layers[layer], &executable.rows);
            observer(index, Observed::CacheKeys, &keys);
            observer(index, Observed::CacheValues, &values);
        }
        if let Op::LatentWrite { layer, .. } | Op::LatentRopeWrite { layer, .. } = *op {
            let (rows, _) = written(&executable.cache, &executable.layers[layer], &executable.rows);
            observer(index, Observed::CacheKeys, &rows);
        }
    }
    Ok(executable.result(program, input))
}

/// Keys and values of `rows` as they lie in the cache, each (rows, kv_heads · head_dim). Of a latent layer, its rows
/// and no values.
fn written(cache: &KvCache, layer: &CachePlace, rows: &[RowPlace]) -> (Vec<f32>, Vec<f32>) {
    match cache {
        KvCache::F32(buffer) => gather(buffer, layer, rows),
        KvCache::F16(buffer) => gather(buffer, layer, rows),
    }
}

fn gather<E: Widen>(cache: &[E], layer: &CachePlace, rows: &[RowPlace]) -> (Vec<f32>, Vec<f32>) {
    match layer {
        CachePlace::Heads(layer) => gather_heads(cache, layer, rows),
        CachePlace::Latent(layer) => {
            let parts = [0..layer.dim, layer.rope_start()..layer.rope_start() + layer.rope];
            let row = |&RowPlace { slot: (block, place), .. }: &RowPlace| &cache[layer.row(block, place)];
            let parts = rows.iter().map(row).flat_map(|row| parts.each_ref().map(|part| &row[part.clone()]));
            (parts.flatten().map(|&element| element.widen()).collect(), vec![])
        }
    }
}

fn gather_heads<E: Widen>(cache: &[E], layer: &LayerPlace, rows: &[RowPlace]) -> (Vec<f32>, Vec<f32>) {
    let mut keys = Vec::with_capacity(rows.len() * layer.kv_heads * layer.head_dim);
    let mut values = Vec::with_capacity(keys.capacity());
    for &RowPlace { slot: (block, place), .. } in rows {
        for head in 0..layer.kv_heads {
            // Keys are transposed: a feature's positions lie side by side.
            let key = layer.keys(block, head).skip(place).step_by(layer.key_stride()).take(layer.head_dim);
            keys.extend(key.map(|index| cache[index].widen()));
            let value = layer.values(block, head).start + place * layer.value_stride();
            values.extend(cache[value..value + layer.head_dim].iter().map(|&element| element.widen()));
        }
    }
    (keys, values)
}
