//! `head_linear`: a projection of its own for each head of a row.

use super::linear::{linear, linear_bound};
use super::{Definition, Experts, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value};

/// The fields of [`Op::HeadLinear`].
pub(crate) struct HeadLinearOp {
    pub(crate) x: Value,
    pub(crate) heads: Experts,
    pub(crate) out: Value,
}

impl Meaning for HeadLinearOp {
    fn name(&self) -> &'static str {
        "head_linear"
    }

    fn operands(&self) -> Operands {
        Operands {
            inputs: vec![self.x],
            outputs: vec![self.out],
            weights: self.heads.weights().collect(),
            ..Operands::default()
        }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::HeadLinear { x: map(self.x), heads: self.heads, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let count = self.heads.count;
        shapes.rows("out", self.out, shapes.plan.value(self.x).rows)?;
        for (what, value) in [("x", self.x), ("out", self.out)] {
            let width = shapes.width(value);
            if !width.is_multiple_of(count) {
                return Err(format!("`{what}` ({value}) has width {width}, expected a multiple of {count} heads"));
            }
        }
        shapes.experts(&self.heads, shapes.width(self.x) / count, shapes.width(self.out) / count)
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        let weights: Vec<_> = self.heads.weights().collect();
        prices.products(prices.plan.value(self.x).rows, &weights)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for HeadLinearOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let count = self.heads.count;
        let weights: Vec<_> = (0..count).map(|head| env.linear(self.heads.linear(head))).collect();
        let slices = env.value(self.x).chunks_exact(env.width(self.x) / count).enumerate();
        let out = slices.flat_map(|(slice, x)| linear(x, &weights[slice % count])).collect();
        env.set(self.out, out);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (count, width) = (self.heads.count, env.width(self.x) / self.heads.count);
        let weights: Vec<_> = (0..count).map(|head| env.linear(self.heads.linear(head))).collect();
        let x = env.value(self.x);
        let slices = x.value.chunks_exact(width).zip(x.error.chunks_exact(width)).enumerate();
        let (value, error) = slices
            .flat_map(|(slice, (value, error))| {
                let head = slice % count;
                let rounding = env.state.rounding[self.heads.linear(head).weight.index()];
                let x = Bounded::zip(value.to_vec(), error.to_vec());
                let Bounded { value, error } = linear_bound(&x, &weights[head], rounding);
                value.into_iter().zip(error)
            })
            .unzip();
        env.set(self.out, Bounded::zip(value, error));
    }
}
