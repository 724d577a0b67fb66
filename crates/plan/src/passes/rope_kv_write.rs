//! [`rms_norm` of each head →] `rope` of q and k, and `kv_write`, become `rope_kv_write`.

use super::rewrite::Rewrite;
use crate::{Norm, Op, Plan, Value};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    for (index, op) in plan.ops.iter().enumerate() {
        let &Op::KvWrite { layer, k, v } = op else { continue };
        let query = plan.ops[index..].iter().find_map(|op| match op {
            Op::Attention { q, attention, .. } if attention.layer == layer => Some(*q),
            _ => None,
        });
        let Some(q) = query else { continue };
        let Some((k_index, &Op::Rope { x: k, rope, .. })) = rewrite.sole_producer(k) else { continue };
        let Some((q_index, &Op::Rope { x: q, rope: q_rope, out: q_out })) = rewrite.producer(q) else { continue };
        // The fused op stands where the cache is written, so nobody may want the turned q before that.
        let q_read_later = rewrite.consumers(q_out).iter().all(|&consumer| consumer > index);
        if q_rope != rope || !q_read_later || plan.ropes[rope].head_dim != plan.kv_layers[layer].key_dim() {
            continue;
        }
        let mut replaced = vec![k_index, q_index];
        let mut head_norm = |x: Value| take_head_norm(plan, &rewrite, x, rope, &mut replaced);
        let ((q, q_norm), (k, k_norm)) = (head_norm(q), head_norm(k));
        let fused = Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope, layer, q_out };
        rewrite.replace(index, fused, &replaced);
    }
    plan.ops = rewrite.finish();
}

/// The norm of each head that makes `x`, if nobody else reads `x`, with what goes into the norm; otherwise `x` itself.
fn take_head_norm(
    plan: &Plan,
    rewrite: &Rewrite<'_>,
    x: Value,
    rope: usize,
    replaced: &mut Vec<usize>,
) -> (Value, Option<Norm>) {
    match rewrite.sole_producer(x) {
        Some((index, &Op::RmsNorm { x: inner, norm, .. }))
            if plan.weight(norm.weight).shape == [plan.ropes[rope].head_dim] =>
        {
            replaced.push(index);
            (inner, Some(norm))
        }
        _ => (x, None),
    }
}
