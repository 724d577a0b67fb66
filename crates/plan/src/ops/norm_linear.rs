//! `norm_linear`: RMSNorm, then one or more projections of the normalised rows: Q, K and V with their biases.

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Linear, Norm, Op, Plan, StepCost, Value};

/// The fields of [`Op::NormLinear`].
pub(crate) struct NormLinearOp<'a> {
    pub(crate) x: Value,
    pub(crate) norm: Norm,
    pub(crate) projections: &'a [(Linear, Value)],
}

impl Meaning for NormLinearOp<'_> {
    fn name(&self) -> &'static str {
        "norm_linear"
    }

    fn operands(&self) -> Operands {
        let mut weights = vec![self.norm.weight];
        weights.extend(self.projections.iter().flat_map(|(linear, _)| linear.weights()));
        let outputs = self.projections.iter().map(|&(_, out)| out).collect();
        Operands { inputs: vec![self.x], outputs, weights, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let x = map(self.x);
        let projections = self.projections.iter().map(|&(linear, out)| (linear, map(out))).collect();
        Op::NormLinear { x, norm: self.norm, projections }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        if self.projections.is_empty() {
            return Err("no projection".to_owned());
        }
        shapes.norm_row(self.x, self.norm)?;
        self.projections.iter().try_for_each(|&(linear, out)| shapes.linear(self.x, linear, out))
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.products(prices.plan.value(self.x).rows, &self.operands().weights)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for NormLinearOp<'_> {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let normed = out.define(plan.value(self.x));
        out.ops.push(Op::RmsNorm { x: self.x, norm: self.norm, out: normed });
        out.ops.extend(self.projections.iter().map(|&(linear, out)| Op::Linear { x: normed, linear, out }));
    }
}
