//! The memory that weights stand in, for checks that it does not change.

use backend::ResidentWeight;
use plan::Op;

use crate::{CpuExecutable, memory};

/// Where the file is mapped, or was read into memory.
const AS_FILE: &str = "as the file has it";
/// What [`crate::packed`] made of it.
const PACKED: &str = "in panels";
/// What kernels read of norms and biases.
const VECTOR: &str = "as f32";

/// All memory that steps read weights from. What the file is mapped to is left out where it does not fit into memory, since
/// a check would then read the disk.
pub(crate) fn list(executable: &CpuExecutable) -> Vec<ResidentWeight> {
    let CpuExecutable { plan, weights, repacking, vectors, .. } = executable;
    let mut is_embedding = vec![false; weights.len()];
    for op in plan.ops.iter().filter(|op| matches!(op, Op::Embed { .. })) {
        op.weights().iter().for_each(|weight| is_embedding[weight.index()] = true);
    }
    let is_read_as_file =
        |index: usize| vectors[index].is_empty() && (repacking.packed()[index].is_none() || is_embedding[index]);
    let as_file: u64 = (0..weights.len())
        .filter(|&index| is_read_as_file(index))
        .map(|index| weights[index].bytes().len() as u64)
        .sum();
    let fits = memory::has_room(as_file);
    (0..weights.len())
        .flat_map(|index| {
            let layouts = [
                (AS_FILE, fits && is_read_as_file(index)),
                (PACKED, repacking.packed()[index].is_some()),
                (VECTOR, !vectors[index].is_empty()),
            ];
            layouts.into_iter().filter(|&(_, is_there)| is_there).map(move |(layout, _)| (index, layout))
        })
        .filter_map(|(weight, layout)| {
            let name = plan.weights[weight].name.clone();
            let resident = ResidentWeight { weight, name, layout, bytes: 0 };
            let bytes = bytes(executable, &resident)?.len() as u64;
            Some(ResidentWeight { bytes, ..resident })
        })
        .collect()
}

/// What one of [`list`] holds now.
pub(crate) fn bytes<'a>(executable: &'a CpuExecutable, resident: &ResidentWeight) -> Option<&'a [u8]> {
    let CpuExecutable { weights, repacking, vectors, .. } = executable;
    match resident.layout {
        PACKED => repacking.packed().get(resident.weight)?.as_ref().map(|packed| packed.bytes()),
        VECTOR => vectors.get(resident.weight).map(|vector| bytemuck::cast_slice(vector)),
        _ => weights.get(resident.weight).map(|tensor| &tensor.bytes()[..]),
    }
}
