//! `logits`: the final norm and the head, of the output rows alone.

use super::{Definition, Fused, Meaning, Operands, WrittenOut};
use crate::cost::Prices;
use crate::shapes::{Checked, Shapes};
use crate::{Linear, Norm, Op, Plan, Rows, StepCost, Value, ValueInfo};

/// The fields of [`Op::Logits`].
pub(crate) struct LogitsOp {
    pub(crate) x: Value,
    pub(crate) norm: Norm,
    pub(crate) head: Linear,
    pub(crate) out: Value,
}

impl Meaning for LogitsOp {
    fn name(&self) -> &'static str {
        "logits"
    }

    fn operands(&self) -> Operands {
        let mut weights = vec![self.norm.weight];
        weights.extend(self.head.weights());
        Operands { inputs: vec![self.x], outputs: vec![self.out], weights, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Logits { x: map(self.x), norm: self.norm, head: self.head, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.rows("x", self.x, Rows::Tokens)?;
        shapes.rows("out", self.out, Rows::Outputs)?;
        shapes.norm_row(self.x, self.norm)?;
        shapes.projection(self.head, shapes.width(self.x), shapes.width(self.out))
    }

    fn is_row_by_row(&self) -> bool {
        // Row i of the result follows from another row of the operand.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.products(prices.plan.value(self.out).rows, &self.operands().weights)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Fused(self)
    }
}

impl Fused for LogitsOp {
    fn write_out(&self, plan: &Plan, out: &mut WrittenOut) {
        let rows = ValueInfo { rows: Rows::Outputs, ..plan.value(self.x) };
        let (selected, normed) = (out.define(rows), out.define(rows));
        out.ops.extend([
            Op::SelectOutputs { x: self.x, out: selected },
            Op::RmsNorm { x: selected, norm: self.norm, out: normed },
            Op::Linear { x: normed, linear: self.head, out: self.out },
        ]);
    }
}
