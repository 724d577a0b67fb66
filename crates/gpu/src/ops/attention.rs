//! Attention: rows that are alone in their sequence, or few, by one kernel, and many rows of a sequence by another.

use plan::{Attention, CacheLayer, Op, Rope, Value};

use crate::kernels::{attention, attention_tiles, mla_attention};
use crate::launch::{Access, Launch};
use crate::site::{DeviceRows, LoadedPlan, Site};
use crate::step_input::{AttentionItems, StepRows};

/// Whether every layer has a kernel for many rows of a sequence. Latent layers have none: their rows may be as wide as
/// heads of other models, and are not heads.
///
/// Where bits must not depend on what rows are beside a row, its steps through the positions must not, either: in a window they
/// begin at the first row of a tile, but for `prompt_attention`.
pub(crate) fn has_tiles(loaded: &LoadedPlan<'_>) -> bool {
    let (target, kv) = (loaded.target.of("attention"), &loaded.cache.layout);
    let is_window = |op: &Op| matches!(op, Op::Attention { attention, .. } if attention.window.is_some());
    let has_window = target.batch_invariant && loaded.plan.ops.iter().any(is_window);
    loaded.plan.kv_layers.iter().all(|layer| match layer {
        CacheLayer::Heads(layer) => attention_tiles::variant(&target, kv, layer.head_dim)
            .is_some_and(|variant| !has_window || variant.copied_positions > 0),
        CacheLayer::Latent(_) => false,
    })
}

/// Whether an attention can leave its rows as the operand of a gemm: heads are multiples of four, and the kernel for many rows of a
/// sequence is there for no row, or is `prompt_attention`.
pub(crate) fn leaves_operands(site: &Site<'_>, of: &Attention) -> bool {
    let (target, kv) = (site.loaded.target.of("attention"), &site.loaded.cache.layout);
    let head_dim = site.loaded.cache.layers[of.layer].layer.head_dim;
    let tiles_can = || attention_tiles::variant(&target, kv, head_dim).is_some_and(|tiles| tiles.copied_positions > 0);
    head_dim.is_multiple_of(4) && (site.layout.step.attention.tiles == 0 || tiles_can())
}

/// Bytes of the partial results of an attention, so many of whose rows are for themselves.
pub(crate) fn partials_bytes(loaded: &LoadedPlan<'_>, op: &Op, singles: usize) -> u64 {
    match *op {
        Op::Attention { ref attention, .. } => attention::partials_bytes(loaded, attention, singles),
        Op::MlaAttention { ref attention, .. } => mla_attention::partials_bytes(loaded, attention, singles),
        _ => 0,
    }
}

/// The launches of attention.
pub(crate) fn launches(site: &Site<'_>, q: DeviceRows, of: &Attention, out: DeviceRows) -> Vec<Launch> {
    let AttentionItems { singles, tiles, .. } = site.layout.step.attention;
    let mut launches = vec![];
    if singles > 0 {
        launches.push(attention::launch(site, q, of, out, singles));
    }
    if tiles > 0 {
        // What the one kernel writes is not lost.
        let access = if singles > 0 { Access::Update } else { Access::Write };
        let written = site.writes.map_or(out.region, |direct| direct.rows);
        launches.push(attention_tiles::launch(site, q, of, out, tiles).with(access, written));
    }
    launches
}

/// The values that [`rope_attention`] reads until attention has ended, if it may take the place of two ops.
pub(crate) fn read_to_the_end(rows: StepRows, op: &Op, next: &Op) -> Vec<Value> {
    match (op, next) {
        (&Op::RopeKvWrite { q, k, v, .. }, Op::Attention { .. }) if rows.are_alone() => vec![q, k, v],
        _ => vec![],
    }
}

/// Rotation, the write to the cache and attention in one launch, where the one follows the other, each row is alone in its sequence,
/// nobody else reads what is turned, heads turn whole, and there is a kernel for it.
pub(crate) fn rope_attention(site: &Site<'_>, op: &Op, next: &Op) -> Option<Launch> {
    let Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out } = *op else { return None };
    let Op::Attention { q: turned, ref attention, out } = *next else { return None };
    let plan = site.loaded.plan;
    let [q, k, v, out] = [q, k, v, out].map(|value| site.place(value));
    let AttentionItems { singles, tiles, .. } = site.layout.step.attention;
    // The result may lie where the op ahead still reads, or what this one reads.
    let apart = [q, k, v].iter().all(|rows| rows.region.is_apart(out.region));
    let are_alone = site.layout.step.rows.are_alone() && q.rows == k.rows && tiles == 0;
    if turned != q_out || attention.layer != layer || !site.is_read_once(q_out) || !apart || !are_alone {
        return None;
    }
    let head_dim = site.loaded.cache.layers[layer].layer.head_dim;
    let Rope { head_dim: of_rope, dims, .. } = plan.ropes[rope];
    if [of_rope, dims] != [head_dim; 2] {
        return None;
    }
    attention::rope_launch(site, [q, k, v], [q_norm, k_norm], rope, attention, out, singles)
}
