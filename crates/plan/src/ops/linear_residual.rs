//! `linear_residual`: residual + (x · Wᵀ + b).

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Linear, Op, Plan, StepCost, Value};

/// The fields of [`Op::LinearResidual`].
pub(crate) struct LinearResidualOp {
    pub(crate) x: Value,
    pub(crate) linear: Linear,
    pub(crate) residual: Value,
    pub(crate) out: Value,
}

impl Meaning for LinearResidualOp {
    fn name(&self) -> &'static str {
        "linear_residual"
    }

    fn operands(&self) -> Operands {
        let weights = self.linear.weights().collect();
        Operands { inputs: vec![self.x, self.residual], outputs: vec![self.out], weights, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { x, linear, residual, out } = self;
        Op::LinearResidual { x: map(x), linear, residual: map(residual), out: map(out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.linear(self.x, self.linear, self.out)?;
        shapes.like("residual", self.residual, self.out)
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.products(prices.plan.value(self.out).rows, &self.operands().weights)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for LinearResidualOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let product = out.define(plan.value(self.out));
        out.ops.extend([
            Op::Linear { x: self.x, linear: self.linear, out: product },
            Op::Add { a: self.residual, b: product, out: self.out },
        ]);
    }
}
