//! `moe_glu`: RMSNorm, then the gated linear units of the experts that were chosen for a row.

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Activation, Experts, Norm, Op, Plan, StepCost, Value, ValueInfo};

/// The fields of [`Op::MoeGlu`].
pub(crate) struct MoeGluOp {
    pub(crate) x: Value,
    pub(crate) norm: Norm,
    pub(crate) ids: Value,
    pub(crate) gate: Experts,
    pub(crate) up: Experts,
    pub(crate) activation: Activation,
    pub(crate) out: Value,
}

impl Meaning for MoeGluOp {
    fn name(&self) -> &'static str {
        "moe_glu"
    }

    fn operands(&self) -> Operands {
        let mut weights = vec![self.norm.weight];
        weights.extend(self.gate.weights().chain(self.up.weights()));
        let inputs = vec![self.x, self.ids];
        Operands { inputs, outputs: vec![self.out], weights, indices: vec![self.ids], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { x, norm, ids, gate, up, activation, out } = self;
        Op::MoeGlu { x: map(x), norm, ids: map(ids), gate, up, activation, out: map(out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let ValueInfo { rows, width: top_k, .. } = shapes.plan.value(self.ids);
        shapes.rows("x", self.x, rows)?;
        shapes.rows("out", self.out, rows)?;
        shapes.norm_row(self.x, self.norm)?;
        let (hidden, out) = (shapes.width(self.x), shapes.width(self.out));
        if !out.is_multiple_of(top_k) {
            return Err(format!("`out` ({}) has width {out}, expected a multiple of {top_k} experts", self.out));
        }
        if self.gate.count != self.up.count {
            return Err(format!("{} gates and {} up projections", self.gate.count, self.up.count));
        }
        shapes.experts(&self.gate, hidden, out / top_k)?;
        shapes.experts(&self.up, hidden, out / top_k)
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        let norm = (prices.weight_bytes)(self.norm.weight);
        prices.experts(self.ids, &[self.gate, self.up]).and_bytes(norm)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for MoeGluOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let &Self { x, norm, ids, activation, .. } = self;
        let normed = out.define(plan.value(x));
        let (gate, up) = (out.define(plan.value(self.out)), out.define(plan.value(self.out)));
        out.ops.extend([
            Op::RmsNorm { x, norm, out: normed },
            Op::ExpertLinear { x: normed, ids, experts: self.gate, out: gate },
            Op::ExpertLinear { x: normed, ids, experts: self.up, out: up },
            Op::Glu { gate, up, activation, out: self.out },
        ]);
    }
}
