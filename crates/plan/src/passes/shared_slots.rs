//! A shared expert beside routed ones, x + shared(h) + Σ weightᵢ · expertᵢ(h), becomes one more expert of their stacks,
//! which every row takes with a weight of 1.

use super::rewrite::Rewrite;
use crate::{Experts, Linear, Op, Plan, Router, Value, WeightId};

/// `is_alike` says of weights that have one shape whether one kernel reads them all.
pub(super) fn run(plan: &mut Plan, is_alike: &dyn Fn(&[WeightId]) -> bool) {
    let mut rewrite = Rewrite::new(plan);
    let mut wider = vec![];
    for (index, op) in plan.ops.iter().enumerate() {
        let Op::Add { a, b, out } = *op else { continue };
        let found = Mixture::of(plan, &rewrite, a, b).or_else(|| Mixture::of(plan, &rewrite, b, a));
        let Some(found) = found else { continue };
        if !found.stacks.iter().all(|stack| is_alike(&stack.weights().collect::<Vec<_>>())) {
            continue;
        }
        let Mixture { places, removed, x, sum, router, stacks } = found;
        for (at, place) in places.into_iter().enumerate() {
            let op = match plan.ops[place].clone() {
                Op::Route { logits, ids, weights, .. } => Op::Route { logits, router, ids, weights },
                Op::ExpertLinear { x, ids, out, .. } => Op::ExpertLinear { x, ids, experts: stacks[at - 1], out },
                other => other,
            };
            let slots = router.slots();
            wider.extend(op.outputs().into_iter().map(|value| (value, plan.value(value).width / router.top_k * slots)));
            rewrite.replace(place, op, &[]);
        }
        rewrite.replace(index, Op::Add { a: x, b: sum, out }, &removed);
    }
    plan.ops = rewrite.finish();
    for (value, width) in wider {
        plan.values[value.index()].width = width;
    }
}

/// The routed experts and the shared one of a layer: one sum adds what all of them make to a row.
struct Mixture {
    /// Of `route`, of the projections by the experts in the order of `stacks`, and of what is between these.
    places: [usize; 5],
    /// Ops that compute the shared expert and add it.
    removed: Vec<usize>,
    /// What both are added to.
    x: Value,
    /// The weighted sum.
    sum: Value,
    /// With the shared expert.
    router: Router,
    /// Gate, up and down projections with those of the shared expert.
    stacks: [Experts; 3],
}

impl Mixture {
    /// The mixture whose weighted sum is `sum`, and whose shared expert is added in `rest`.
    fn of(plan: &Plan, rewrite: &Rewrite<'_>, rest: Value, sum: Value) -> Option<Self> {
        let (_, &Op::Combine { x: products, weights, .. }) = rewrite.sole_producer(sum)? else { return None };
        let (down_at, down) = rewrite.sole_producer(products)?;
        let &Op::ExpertLinear { x: units, ids, experts: down, .. } = down else { return None };
        let (glu_at, &Op::Glu { gate, up, activation, .. }) = rewrite.sole_producer(units)? else { return None };
        let of_row = |value: Value| match rewrite.sole_producer(value)? {
            (at, &Op::ExpertLinear { x, ids: of, experts, .. }) if of == ids => Some((at, x, experts)),
            _ => None,
        };
        let ((gate_at, h, gate), (up_at, up_h, up)) = (of_row(gate)?, of_row(up)?);
        let (route_at, &Op::Route { router, weights: routed, .. }) = rewrite.producer(ids)? else { return None };
        let only_these_read = rewrite.consumers(ids).len() == 3 && rewrite.consumers(weights).len() == 1;
        if up_h != h || routed != weights || !only_these_read || router.shared > 0 {
            return None;
        }
        let (rest_at, &Op::Add { a, b, .. }) = rewrite.sole_producer(rest)? else { return None };
        let of_h = |value: Value| match rewrite.sole_producer(value)? {
            (at, &Op::Linear { x, linear, .. }) if x == h => Some((at, linear)),
            _ => None,
        };
        let shared = |value: Value| {
            let (shared_at, &Op::Linear { x: units, linear, .. }) = rewrite.sole_producer(value)? else { return None };
            let (units_at, units) = rewrite.sole_producer(units)?;
            let &Op::Glu { gate: shared_gate, up: shared_up, activation: same, .. } = units else { return None };
            let ((gate_at, shared_gate), (up_at, shared_up)) = (of_h(shared_gate)?, of_h(shared_up)?);
            let stacks = [with(plan, gate, shared_gate)?, with(plan, up, shared_up)?, with(plan, down, linear)?];
            (same == activation).then_some((vec![rest_at, shared_at, units_at, gate_at, up_at], stacks))
        };
        let with_row = |x: Value, value: Value| shared(value).map(|found| (x, found));
        let (x, (removed, stacks)) = with_row(a, b).or_else(|| with_row(b, a))?;
        let places = [route_at, gate_at, up_at, down_at, glu_at];
        Some(Self { places, removed, x, sum, router: Router { shared: 1, ..router }, stacks })
    }
}

/// A stack with one expert more, if its weights stand right behind those of the stack and are of their shapes.
fn with(plan: &Plan, stack: Experts, shared: Linear) -> Option<Experts> {
    let wider = Experts { count: stack.count + 1, ..stack };
    let shape = |weight: WeightId| &plan.weight(weight).shape;
    (wider.linear(stack.count) == shared && shape(shared.weight) == shape(stack.first)).then_some(wider)
}
