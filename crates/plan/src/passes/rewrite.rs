//! What passes share: who defines and who reads each value, replacing ops, and sweeping up afterwards.

use std::collections::HashMap;

use crate::{Norm, Op, Plan, Value};

/// A plan while its ops are being replaced. Groups of ops that one pass replaces never overlap, so who reads what is
/// looked up in the plan as it was.
pub(super) struct Rewrite<'a> {
    plan: &'a Plan,
    producer: HashMap<Value, usize>,
    consumers: HashMap<Value, Vec<usize>>,
    ops: Vec<Option<Op>>,
}

impl<'a> Rewrite<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        let mut producer = HashMap::new();
        let mut consumers: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, op) in plan.ops.iter().enumerate() {
            producer.extend(op.outputs().into_iter().map(|value| (value, index)));
            for value in op.inputs() {
                consumers.entry(value).or_default().push(index);
            }
        }
        // The caller reads the logits: no op may swallow them.
        consumers.entry(plan.logits).or_default().push(plan.ops.len());
        Self { plan, producer, consumers, ops: plan.ops.iter().cloned().map(Some).collect() }
    }

    /// The op that defines `value`, with its place.
    pub(super) fn producer(&self, value: Value) -> Option<(usize, &'a Op)> {
        let &index = self.producer.get(&value)?;
        Some((index, &self.plan.ops[index]))
    }

    /// The places of the ops that read `value`, in order, one entry for each operand; the caller that reads the logits
    /// counts as one op after the last.
    pub(super) fn consumers(&self, value: Value) -> &[usize] {
        self.consumers.get(&value).map_or(&[], Vec::as_slice)
    }

    /// The op that defines `value`, if `value` is read exactly once.
    pub(super) fn sole_producer(&self, value: Value) -> Option<(usize, &'a Op)> {
        if self.consumers(value).len() == 1 { self.producer(value) } else { None }
    }

    /// The op that reads `value`, with its place, if `value` is read exactly once, and by an op.
    pub(super) fn sole_consumer(&self, value: Value) -> Option<(usize, &'a Op)> {
        let &[index] = self.consumers(value) else { return None };
        Some((index, self.plan.ops.get(index)?))
    }

    /// Whether `norm` is over the whole row of `x`, not over slices of it.
    pub(super) fn is_row_norm(&self, x: Value, norm: Norm) -> bool {
        self.plan.weight(norm.weight).shape == [self.plan.value(x).width]
    }

    /// Puts `op` in place of the op at `at`, and takes the ops at `others` away.
    pub(super) fn replace(&mut self, at: usize, op: Op, others: &[usize]) {
        others.iter().for_each(|&other| self.ops[other] = None);
        self.ops[at] = Some(op);
    }

    /// Takes the op at `at` away.
    pub(super) fn remove(&mut self, at: usize) {
        self.ops[at] = None;
    }

    /// The ops as they are now.
    pub(super) fn finish(self) -> Vec<Op> {
        self.ops.into_iter().flatten().collect()
    }
}

/// Removes values that no op defines any more, and numbers the rest in order of definition.
pub(crate) fn compact(plan: &mut Plan) {
    let mut values = Vec::new();
    let mut renumbered = vec![None; plan.values.len()];
    for value in plan.ops.iter().flat_map(Op::outputs) {
        renumbered[value.index()] = Some(Value(values.len() as u32));
        values.push(plan.values[value.index()]);
    }
    let renumber = |value: Value| renumbered[value.index()].expect("a value is defined before use");
    plan.ops.iter_mut().for_each(|op| op.map_values(renumber));
    plan.logits = renumber(plan.logits);
    plan.values = values;
}
