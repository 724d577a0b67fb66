//! `kernels/sample.h`: tokens that are drawn.

use crate::launch::{Access, Launch, Region};
use crate::params::{Chosen, SampleParams};
use crate::site::{ArenaLayout, LoadedPlan, ROW_ALIGN, index};

/// Threads of a group of `kernels/sample.h`.
const THREADS: u32 = 512;

/// The launch that draws the tokens of output rows which the step input wants drawn, behind
/// [`super::choose::launches`].
pub(crate) fn launch(loaded: &LoadedPlan<'_>, layout: &ArenaLayout, arena: Region, step: Region) -> Launch {
    let logits = loaded.place(layout, arena, loaded.plan.logits);
    let (outputs, step) = (layout.step.shape.outputs, layout.step.place(step));
    let chosen = loaded.chosen.part(0, (outputs * size_of::<Chosen>()) as u64);
    let params = SampleParams {
        logits: logits.region.address,
        rows: step.num_outputs.address,
        sampling: step.sampling.address,
        chosen: chosen.address,
        n: index(logits.width),
        stride: index(logits.stride / ROW_ALIGN),
    };
    Launch::new("sample_f32", [1, outputs, 1], &params)
        .with_groups_of(THREADS, 0)
        .with(Access::Read, logits.region)
        .with(Access::Constant, step.num_outputs)
        .with(Access::Constant, step.sampling)
        .with(Access::Update, chosen)
}
