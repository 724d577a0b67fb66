//! What an op is evaluated in.

use std::borrow::Cow;

use super::{Choices, RowPlace};
use crate::ops::{Definition, LinearWeights, NormWeights, Textbook};
use crate::{Linear, Norm, Op, Plan, StepInput, Value, ValueInfo, WeightId};

/// The plan, the step, the matrices `M` that the ops before made, and what else an evaluation keeps, `S`: the cache.
pub(crate) struct Env<'a, M, S> {
    pub(crate) plan: &'a Plan,
    pub(crate) input: &'a StepInput,
    /// Where the rows of the step stand.
    pub(crate) rows: &'a [RowPlace],
    /// The elements of a weight.
    pub(crate) weight: &'a dyn Fn(WeightId) -> Cow<'a, [f32]>,
    /// By [`Value::index`]; a matrix that no op has made yet is empty.
    pub(crate) values: &'a mut Vec<M>,
    pub(crate) state: S,
    /// What routers choose, where it is not left to them.
    pub(crate) choices: Option<&'a Choices>,
    /// The shapes of the values that a fused op has for itself, which come after the plan's.
    own: Vec<ValueInfo>,
}

impl<'a, M: Default, S> Env<'a, M, S> {
    pub(crate) fn new(
        plan: &'a Plan,
        input: &'a StepInput,
        rows: &'a [RowPlace],
        weight: &'a dyn Fn(WeightId) -> Cow<'a, [f32]>,
        values: &'a mut Vec<M>,
        state: S,
    ) -> Self {
        Self { plan, input, rows, weight, values, state, choices: None, own: vec![] }
    }

    /// Evaluates `op` by evaluating the textbook ops that it stands for.
    pub(crate) fn run(&mut self, op: &Op, evaluate: fn(&dyn Textbook, &mut Self)) {
        let written_out = op.written_out(self.plan);
        let num_values = self.plan.values.len();
        self.values.resize_with(num_values + written_out.values.len(), M::default);
        self.own = written_out.values;
        for op in &written_out.ops {
            op.meaning(|op| match op.definition() {
                Definition::Textbook(op) => evaluate(op, self),
                Definition::Fused(_) => unreachable!("`{}` is written out by a fused op", op.name()),
            });
        }
        self.values.truncate(num_values);
    }

    /// What an op before made.
    pub(crate) fn value(&self, value: Value) -> &M {
        &self.values[value.index()]
    }

    /// Keeps what the op made.
    pub(crate) fn set(&mut self, value: Value, made: M) {
        self.values[value.index()] = made;
    }

    /// Features in a row of `value`.
    pub(crate) fn width(&self, value: Value) -> usize {
        let num_values = self.plan.values.len();
        self.plan.values.get(value.index()).unwrap_or_else(|| &self.own[value.index() - num_values]).width
    }

    /// The elements of `weight`.
    pub(crate) fn weight(&self, weight: WeightId) -> Cow<'a, [f32]> {
        (self.weight)(weight)
    }

    /// The elements of a norm's weight.
    pub(crate) fn norm(&self, norm: Norm) -> NormWeights<'a> {
        NormWeights { weight: self.weight(norm.weight), eps: norm.eps }
    }

    /// The elements of a projection's weights.
    pub(crate) fn linear(&self, linear: Linear) -> LinearWeights<'a> {
        LinearWeights {
            weight: self.weight(linear.weight),
            in_features: self.plan.weight(linear.weight).shape[1],
            bias: linear.bias.map(|bias| self.weight(bias)),
        }
    }
}
