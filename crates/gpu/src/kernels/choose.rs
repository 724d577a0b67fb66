//! `kernels/choose.h`: the largest logit of each output row.

use crate::launch::{Access, GROUP_SIMDS, Launch, Region};
use crate::params::{ChooseParams, ChoosePart, Chosen};
use crate::site::{ArenaLayout, LoadedPlan, ROW_ALIGN, index};

/// Groups that go through a row of `n` logits: four turns of each thread, as far as the kernel that joins them can take
/// them.
fn num_parts(n: usize) -> usize {
    n.div_ceil(4 * 4 * 32 * GROUP_SIMDS).clamp(1, 64)
}

/// Bytes of what is found in the parts of the logits of so many outputs.
pub(crate) fn parts_bytes(vocab_size: usize, outputs: usize) -> u64 {
    (num_parts(vocab_size) * outputs * size_of::<ChoosePart>()) as u64
}

/// The launches that choose a token for each output row.
pub(crate) fn launches(loaded: &LoadedPlan<'_>, layout: &ArenaLayout, arena: Region, step: Region) -> [Launch; 2] {
    let logits = loaded.place(layout, arena, loaded.plan.logits);
    let (outputs, rows) = (layout.step.shape.outputs, layout.step.place(step).num_outputs);
    let parts = arena.part(layout.choose_parts.0, layout.choose_parts.1);
    let chosen = loaded.chosen.part(0, (outputs * size_of::<Chosen>()) as u64);
    let num_parts = num_parts(logits.width);
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
