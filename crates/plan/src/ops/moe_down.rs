//! `moe_down`: the down projections of the experts of a row, their weighted sum, and the residual.

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Experts, Op, Plan, StepCost, Value, ValueInfo};

/// The fields of [`Op::MoeDown`].
pub(crate) struct MoeDownOp {
    pub(crate) x: Value,
    pub(crate) ids: Value,
    pub(crate) weights: Value,
    pub(crate) down: Experts,
    pub(crate) residual: Value,
    pub(crate) out: Value,
}

impl Meaning for MoeDownOp {
    fn name(&self) -> &'static str {
        "moe_down"
    }

    fn operands(&self) -> Operands {
        Operands {
            inputs: vec![self.x, self.ids, self.weights, self.residual],
            outputs: vec![self.out],
            weights: self.down.weights().collect(),
            indices: vec![self.ids],
            ..Operands::default()
        }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { x, ids, weights, down, residual, out } = self;
        let (x, ids, weights) = (map(x), map(ids), map(weights));
        Op::MoeDown { x, ids, weights, down, residual: map(residual), out: map(out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let ValueInfo { rows, width: top_k, .. } = shapes.plan.value(self.ids);
        shapes.rows("x", self.x, rows)?;
        shapes.rows("weights", self.weights, rows)?;
        shapes.width_is("weights", self.weights, top_k)?;
        shapes.rows("out", self.out, rows)?;
        shapes.like("residual", self.residual, self.out)?;
        let in_features = shapes.expert_width(&self.down)?;
        shapes.width_is("x", self.x, top_k * in_features)?;
        shapes.experts(&self.down, in_features, shapes.width(self.out))
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.experts(self.ids, &[self.down])
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for MoeDownOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let &Self { x, ids, weights, residual, .. } = self;
        let (info, top_k) = (plan.value(self.out), plan.value(ids).width);
        let product = out.define(ValueInfo { width: top_k * info.width, ..info });
        let sum = out.define(info);
        out.ops.extend([
            Op::ExpertLinear { x, ids, experts: self.down, out: product },
            Op::Combine { x: product, weights, out: sum },
            Op::Add { a: residual, b: sum, out: self.out },
        ]);
    }
}
