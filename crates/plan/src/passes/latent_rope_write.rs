//! What latent attention does between its projections becomes `latent_rope_write`: the columns of queries and of the row
//! are taken apart, the latent numbers normalised, the others turned, and the row is written to the cache.

use super::rewrite::Rewrite;
use crate::{LatentColumns, Op, Plan, Value};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    for (index, op) in plan.ops.iter().enumerate() {
        if let Some((at, op, others)) = fused(plan, &rewrite, index, op) {
            rewrite.replace(at, op, &others);
        }
    }
    plan.ops = rewrite.finish();
}

/// The fused op whose write to the cache is `op`, at `index`, with its place, and those of the ops that it takes in.
fn fused(plan: &Plan, rewrite: &Rewrite<'_>, index: usize, op: &Op) -> Option<(usize, Op, Vec<usize>)> {
    let &Op::LatentWrite { layer, latent, rope: turned } = op else { return None };
    let (norm_at, &Op::RmsNorm { x: latent, norm, .. }) = rewrite.sole_producer(latent)? else { return None };
    let (k_rope_at, &Op::Rope { x: k_part, rope, .. }) = rewrite.sole_producer(turned)? else { return None };
    let (latent_at, kv, latent_order) = gathered(rewrite, latent)?;
    let (k_at, of_k, k_order) = gathered(rewrite, k_part)?;
    let (q_latent, q_rope) = plan.ops[index..].iter().find_map(|op| match *op {
        Op::MlaAttention { q_latent, q_rope, attention, .. } if attention.layer == layer => Some((q_latent, q_rope)),
        _ => None,
    })?;
    let (q_rope_at, &Op::Rope { x: q_part, rope: of_q, .. }) = rewrite.sole_producer(q_rope)? else { return None };
    let (q_at, q, q_order) = gathered(rewrite, q_part)?;
    let (heads_at, &Op::HeadLinear { x: q_nope, .. }) = rewrite.sole_producer(q_latent)? else { return None };
    let (nope_at, of_nope, nope_order) = gathered(rewrite, q_nope)?;
    // It stands where the last part is taken, and before whoever reads a part.
    let gathers = [nope_at, q_at, latent_at, k_at];
    let at = gathers.into_iter().max()?;
    if (of_k, of_nope, of_q) != (kv, q, rope) || heads_at < at || !rewrite.is_row_norm(latent, norm) {
        return None;
    }
    let columns = LatentColumns { q_nope: nope_order, q_rope: q_order, latent: latent_order, rope: k_order };
    let fused = Op::LatentRopeWrite { q, kv, columns, norm, rope, layer, q_nope, q_rope };
    let others = gathers.into_iter().chain([norm_at, k_rope_at, q_rope_at, index]).filter(|&other| other != at);
    Some((at, fused, others.collect()))
}

/// The columns that are `x`, if one op reads them: the place of the op that takes them, of what, and their order.
fn gathered(rewrite: &Rewrite<'_>, x: Value) -> Option<(usize, Value, usize)> {
    match rewrite.sole_producer(x)? {
        (at, &Op::GatherColumns { x, order, .. }) => Some((at, x, order)),
        _ => None,
    }
}
