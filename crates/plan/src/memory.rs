//! The memory planner: where in one arena each value of a step lives. Values share memory where their lifetimes do not
//! meet; an op's results never lie over its operands.

use std::ops::Range;

use crate::{Plan, StepShape, Value};

/// Offsets are multiples of this many f32: 64 bytes, a cache line and the widest vector register.
const ALIGN: usize = 16;

/// Where each value lives, in f32 elements from the start of an arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Where each value of [`Plan::values`] begins; a multiple of 16 (64 bytes).
    pub offsets: Vec<usize>,
    /// Elements that the arena must hold; a multiple of 16.
    pub len: usize,
    shape: StepShape,
}

/// Two values that are alive at the same time and lie over each other, or one that leaves the arena.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Two live values share elements.
    #[error("{a} at {a_range:?} and {b} at {b_range:?} are alive together and overlap")]
    Overlap {
        /// The first value.
        a: Value,
        /// Where it lies.
        a_range: Range<usize>,
        /// The second value.
        b: Value,
        /// Where it lies.
        b_range: Range<usize>,
    },
    /// A value does not fit the arena, or its offset is not aligned.
    #[error("{value} at {range:?} does not fit an arena of {len} elements aligned to 16")]
    Misplaced {
        /// The value.
        value: Value,
        /// Where it lies.
        range: Range<usize>,
        /// The arena's length.
        len: usize,
    },
}

impl MemoryPlan {
    /// Places the values of `plan` for steps of up to `shape`: the largest first, each at the lowest offset that is free
    /// for its whole life.
    ///
    /// Quadratic in the number of values, which is a few hundred. The order by size leaves little waste where few sizes
    /// occur, and a decoder has four or five.
    pub fn new(plan: &Plan, shape: StepShape) -> Self {
        let lifetimes = lifetimes(plan);
        let sizes: Vec<_> = values(plan).map(|value| size(plan, shape, value).next_multiple_of(ALIGN)).collect();
        let mut order: Vec<_> = values(plan).collect();
        order.sort_by_key(|value| (std::cmp::Reverse(sizes[value.index()]), *value));

        let mut memory = Self { offsets: vec![0; plan.values.len()], len: 0, shape };
        let mut placed: Vec<Value> = Vec::with_capacity(order.len());
        for value in order {
            let mut taken: Vec<_> = placed
                .iter()
                .filter(|other| meet(&lifetimes[value.index()], &lifetimes[other.index()]))
                .map(|other| memory.offsets[other.index()]..memory.offsets[other.index()] + sizes[other.index()])
                .collect();
            taken.sort_by_key(|range| range.start);
            let mut offset = 0;
            for range in taken {
                if range.start >= offset + sizes[value.index()] {
                    break;
                }
                offset = offset.max(range.end);
            }
            memory.offsets[value.index()] = offset;
            memory.len = memory.len.max(offset + sizes[value.index()]);
            placed.push(value);
        }
        memory
    }

    /// Where `value` begins, in elements.
    pub fn offset(&self, value: Value) -> usize {
        self.offsets[value.index()]
    }

    /// The step shape that the arena was laid out for.
    pub fn shape(&self) -> StepShape {
        self.shape
    }

    /// Checks that no two values of `plan` that are alive at the same time overlap, and that all lie in the arena.
    pub fn check(&self, plan: &Plan) -> Result<(), MemoryError> {
        let lifetimes = lifetimes(plan);
        let range = |value: Value| self.offset(value)..self.offset(value) + size(plan, self.shape, value);
        for a in values(plan) {
            if range(a).end > self.len || !self.offset(a).is_multiple_of(ALIGN) {
                return Err(MemoryError::Misplaced { value: a, range: range(a), len: self.len });
            }
            for b in values(plan).take(a.index()) {
                let share = range(a).start < range(b).end && range(b).start < range(a).end;
                if share && meet(&lifetimes[a.index()], &lifetimes[b.index()]) {
                    return Err(MemoryError::Overlap { a, a_range: range(a), b, b_range: range(b) });
                }
            }
        }
        Ok(())
    }
}

/// Elements of `value` in a step of `shape`.
fn size(plan: &Plan, shape: StepShape, value: Value) -> usize {
    let info = plan.value(value);
    info.rows.count(shape) * info.width
}

/// From the op that defines each value to the last op that reads it, both included, by index; the logits live on after
/// the last op.
fn lifetimes(plan: &Plan) -> Vec<(usize, usize)> {
    let mut lifetimes = vec![(0, 0); plan.values.len()];
    for (index, op) in plan.ops.iter().enumerate() {
        op.outputs().iter().for_each(|value| lifetimes[value.index()] = (index, index));
        op.inputs().iter().for_each(|value| lifetimes[value.index()].1 = index);
    }
    lifetimes[plan.logits.index()].1 = plan.ops.len();
    lifetimes
}

/// Whether two lifetimes have an op in common.
fn meet(a: &(usize, usize), b: &(usize, usize)) -> bool {
    a.0 <= b.1 && b.0 <= a.1
}

fn values(plan: &Plan) -> impl Iterator<Item = Value> + use<> {
    (0..plan.values.len() as u32).map(Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse;
    use crate::test_plans::decoder;

    const SHAPE: StepShape = StepShape { tokens: 7, sequences: 2, outputs: 3 };

    #[test]
    fn the_checker_finds_what_overlaps_and_what_leaves_the_arena() {
        let plan = fuse(decoder());
        let memory = MemoryPlan::new(&plan, SHAPE);
        memory.check(&plan).unwrap();
        // An op's result over its operand.
        let mut faulty = memory.clone();
        faulty.offsets[1] = faulty.offsets[0];
        assert!(matches!(faulty.check(&plan), Err(MemoryError::Overlap { a: Value(1), b: Value(0), .. })));
        // The residual stream over what is computed beside it.
        let mut faulty = memory.clone();
        faulty.offsets[5] = faulty.offsets[0];
        assert!(matches!(faulty.check(&plan), Err(MemoryError::Overlap { .. })));
        for wrong in [memory.len, memory.offsets[0] + 1] {
            let mut faulty = memory.clone();
            faulty.offsets[0] = wrong;
            let error = faulty.check(&plan).unwrap_err();
            assert!(matches!(error, MemoryError::Misplaced { value: Value(0), .. }), "{error}");
        }
    }

    #[test]
    fn values_whose_lives_do_not_meet_share_memory() {
        let plan = decoder();
        let memory = MemoryPlan::new(&plan, SHAPE);
        let sum: usize = values(&plan).map(|value| size(&plan, SHAPE, value)).sum();
        assert!(memory.len * 3 < sum, "{} of {sum}", memory.len);
    }
}
