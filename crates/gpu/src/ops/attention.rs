//! Attention: rows that are alone in their sequence, or few, by one kernel, and many rows of a sequence by another.

use plan::{Attention, Op, StepShape};

use crate::kernels::{attention, attention_tiles};
use crate::launch::{Access, Launch};
use crate::site::{DeviceRows, LoadedPlan, Site};
use crate::step_input::AttentionItems;

/// Whether there are kernels for many rows of a sequence, for all layers.
pub(crate) fn has_tiles(loaded: &LoadedPlan<'_>) -> bool {
    let (target, format) = (loaded.target.of("attention"), loaded.cache.layout.format);
    let mut layers = loaded.cache.layers.iter();
    layers.all(|layer| attention_tiles::variant(&target, format, layer.layer.head_dim).is_some())
}

/// Bytes of the partial results of an attention whose rows are cut.
pub(crate) fn partials_bytes(loaded: &LoadedPlan<'_>, op: &Op, shape: StepShape) -> u64 {
    let Op::Attention { ref attention, .. } = *op else { return 0 };
    attention::partials_bytes(loaded, attention, AttentionItems::new(shape, has_tiles(loaded)).singles)
}

/// The launches of attention.
pub(crate) fn launches(site: &Site<'_>, q: DeviceRows, of: &Attention, out: DeviceRows) -> Vec<Launch> {
    let AttentionItems { singles, tiles } = site.layout.step.attention;
    let mut launches = vec![];
    if singles > 0 {
        launches.push(attention::launch(site, q, of, out, singles));
    }
    if tiles > 0 {
        // What the one kernel writes is not lost.
        let access = if singles > 0 { Access::Update } else { Access::Write };
        launches.push(attention_tiles::launch(site, q, of, out, tiles).with(access, out.region));
    }
    launches
}
