//! `moe_route`: RMSNorm, the router's projection, and the choice of experts.

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Linear, Norm, Op, Plan, Router, StepCost, Value, ValueInfo};

/// The fields of [`Op::MoeRoute`].
pub(crate) struct MoeRouteOp {
    pub(crate) x: Value,
    pub(crate) norm: Norm,
    pub(crate) gate: Linear,
    pub(crate) router: Router,
    pub(crate) ids: Value,
    pub(crate) weights: Value,
}

impl Meaning for MoeRouteOp {
    fn name(&self) -> &'static str {
        "moe_route"
    }

    fn operands(&self) -> Operands {
        let mut weights = vec![self.norm.weight];
        weights.extend(self.gate.weights().chain(self.router.correction));
        let outputs = vec![self.ids, self.weights];
        Operands { inputs: vec![self.x], outputs, weights, indices: vec![self.ids], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        let &Self { x, norm, gate, router, ids, weights } = self;
        Op::MoeRoute { x: map(x), norm, gate, router, ids: map(ids), weights: map(weights) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.norm_row(self.x, self.norm)?;
        let experts = shapes.plan.weight(self.gate.weight).shape[0];
        shapes.projection(self.gate, shapes.width(self.x), experts)?;
        shapes.router(&self.router, experts)?;
        for (what, value) in [("ids", self.ids), ("weights", self.weights)] {
            shapes.rows(what, value, shapes.plan.value(self.x).rows)?;
            shapes.width_is(what, value, self.router.slots())?;
        }
        Ok(())
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

impl Fused for MoeRouteOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let info = plan.value(self.x);
        let normed = out.define(info);
        let logits = out.define(ValueInfo { width: plan.weight(self.gate.weight).shape[0], ..info });
        out.ops.extend([
            Op::RmsNorm { x: self.x, norm: self.norm, out: normed },
            Op::Linear { x: normed, linear: self.gate, out: logits },
            Op::Route { logits, router: self.router, ids: self.ids, weights: self.weights },
        ]);
    }
}
