//! Mixtures of experts: `rms_norm` → `linear` → `route` becomes `moe_route`; the gated units of the chosen experts become
//! `moe_glu`; and their down projections, weighted sum and residual become `moe_down`.
//!
//! The router, all experts and the shared expert read one normalised row. Each of the fused ops normalises for itself, so
//! all readers of that row are fused, or none.

use super::rewrite::Rewrite;
use crate::{Norm, Op, Plan, Value};

pub(super) fn run(plan: &mut Plan) {
    let mut rewrite = Rewrite::new(plan);
    for (index, op) in plan.ops.iter().enumerate() {
        match *op {
            Op::RmsNorm { x, norm, out } if rewrite.is_row_norm(x, norm) => {
                for Replacement { at, op, others } in fused_readers(plan, &rewrite, x, norm, out).unwrap_or_default() {
                    rewrite.replace(at, op, &others);
                    rewrite.remove(index);
                }
            }
            Op::Add { a, b, out } => {
                for (sum, residual) in [(b, a), (a, b)] {
                    if let Some((op, others)) = down(plan, &rewrite, sum, residual, out) {
                        rewrite.replace(index, op, &others);
                        break;
                    }
                }
            }
            _ => {}
        }
    }
    plan.ops = rewrite.finish();
}

/// An op that stands in the place of the one at `at`, and of `others`.
struct Replacement {
    at: usize,
    op: Op,
    others: Vec<usize>,
}

/// What all readers of a normalised row become, if a router or experts are among them and each of them can be fused.
fn fused_readers(plan: &Plan, rewrite: &Rewrite<'_>, x: Value, norm: Norm, normed: Value) -> Option<Vec<Replacement>> {
    let mut fused: Vec<Replacement> = vec![];
    for &reader in rewrite.consumers(normed) {
        if fused.iter().any(|known| known.others.contains(&reader)) {
            continue; // The other half of a gated unit.
        }
        fused.push(match *plan.ops.get(reader)? {
            Op::Linear { linear, out, .. } => match rewrite.sole_consumer(out) {
                Some((at, &Op::Route { router, ids, weights, .. })) => {
                    let op = Op::MoeRoute { x, norm, gate: linear, router, ids, weights };
                    Replacement { at, op, others: vec![reader] }
                }
                Some((at, &Op::Glu { gate, up, activation, out })) => {
                    let (gate_at, up_at) = (rewrite.sole_producer(gate)?, rewrite.sole_producer(up)?);
                    let (
                        (gate_at, Op::Linear { x: a, linear: gate, .. }),
                        (up_at, Op::Linear { x: b, linear: up, .. }),
                    ) = (gate_at, up_at)
                    else {
                        return None;
                    };
                    if [*a, *b] != [normed; 2] {
                        return None;
                    }
                    let op = Op::NormGlu { x, norm, gate: *gate, up: *up, activation, out };
                    Replacement { at, op, others: vec![gate_at, up_at] }
                }
                _ => {
                    let op = Op::NormLinear { x, norm, projections: vec![(linear, out)] };
                    Replacement { at: reader, op, others: vec![] }
                }
            },
            Op::ExpertLinear { out, .. } => {
                let (at, &Op::Glu { gate, up, activation, out }) = rewrite.sole_consumer(out)? else { return None };
                let (gate_at, up_at) = (rewrite.sole_producer(gate)?, rewrite.sole_producer(up)?);
                let (
                    (gate_at, &Op::ExpertLinear { x: a, ids, experts: gate, .. }),
                    (up_at, &Op::ExpertLinear { x: b, ids: up_ids, experts: up, .. }),
                ) = (gate_at, up_at)
                else {
                    return None;
                };
                if [a, b] != [normed; 2] || ids != up_ids || gate.count != up.count {
                    return None;
                }
                let op = Op::MoeGlu { x, norm, ids, gate, up, activation, out };
                Replacement { at, op, others: vec![gate_at, up_at] }
            }
            _ => return None,
        });
    }
    let is_mixture = |fused: &Replacement| matches!(fused.op, Op::MoeRoute { .. } | Op::MoeGlu { .. });
    fused.iter().any(is_mixture).then_some(fused)
}

/// `moe_down` in the place of the sum of `residual` and `sum`, with the places of the ops that it takes in.
fn down(plan: &Plan, rewrite: &Rewrite<'_>, sum: Value, residual: Value, out: Value) -> Option<(Op, Vec<usize>)> {
    let (combine_at, &Op::Combine { x: product, weights, .. }) = rewrite.sole_producer(sum)? else { return None };
    let (linear_at, &Op::ExpertLinear { x, ids, experts: down, .. }) = rewrite.sole_producer(product)? else {
        return None;
    };
    // Of a slice for each expert, not of one row for all.
    let slices = plan.value(ids).width * plan.weight(down.first).shape[1];
    let fits = plan.value(x).width == slices && plan.value(weights).width == plan.value(ids).width;
    fits.then(|| (Op::MoeDown { x, ids, weights, down, residual, out }, vec![combine_at, linear_at]))
}
