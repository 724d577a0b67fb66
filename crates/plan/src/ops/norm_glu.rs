//! `norm_glu`: RMSNorm, then the gated linear unit of a gate and an up projection.

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Activation, Linear, Norm, Op, Plan, StepCost, Value};

/// The fields of [`Op::NormGlu`].
pub(crate) struct NormGluOp {
    pub(crate) x: Value,
    pub(crate) norm: Norm,
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) activation: Activation,
    pub(crate) out: Value,
}

impl Meaning for NormGluOp {
    fn name(&self) -> &'static str {
        "norm_glu"
    }

    fn operands(&self) -> Operands {
        let mut weights = vec![self.norm.weight];
        weights.extend(self.gate.weights().chain(self.up.weights()));
        Operands { inputs: vec![self.x], outputs: vec![self.out], weights, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { x, norm, gate, up, activation, out } = self;
        Op::NormGlu { x: map(x), norm, gate, up, activation, out: map(out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.norm_row(self.x, self.norm)?;
        shapes.linear(self.x, self.gate, self.out)?;
        shapes.linear(self.x, self.up, self.out)
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

impl Fused for NormGluOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let normed = out.define(plan.value(self.x));
        let (gate, up) = (out.define(plan.value(self.out)), out.define(plan.value(self.out)));
        out.ops.extend([
            Op::RmsNorm { x: self.x, norm: self.norm, out: normed },
            Op::Linear { x: normed, linear: self.gate, out: gate },
            Op::Linear { x: normed, linear: self.up, out: up },
            Op::Glu { gate, up, activation: self.activation, out: self.out },
        ]);
    }
}
