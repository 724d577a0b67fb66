//! `select_outputs`: the rows that go on to the logits.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::Bounds;
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, Rows, StepCost, Value};

/// The fields of [`Op::SelectOutputs`].
pub(crate) struct SelectOutputsOp {
    pub(crate) x: Value,
    pub(crate) out: Value,
}

impl Meaning for SelectOutputsOp {
    fn name(&self) -> &'static str {
        "select_outputs"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.x], outputs: vec![self.out], any_kind: true, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::SelectOutputs { x: map(self.x), out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.rows("x", self.x, Rows::Tokens)?;
        shapes.rows("out", self.out, Rows::Outputs)?;
        shapes.width_is("out", self.out, shapes.width(self.x))?;
        let [x, out] = [self.x, self.out].map(|value| shapes.plan.value(value).kind);
        if x == out { Ok(()) } else { Err(format!("`out` is {out:?}, expected {x:?} as in `x`")) }
    }

    fn is_row_by_row(&self) -> bool {
        // Row i of the result is another row of the operand.
        false
    }

    fn cost(&self, _prices: &Prices<'_>) -> StepCost {
        StepCost::nothing()
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for SelectOutputsOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let selected = select_outputs(env.value(self.x), env.width(self.x), &env.input.output_rows);
        env.set(self.out, selected);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (width, output_rows) = (env.width(self.x), &env.input.output_rows);
        let selected = env.value(self.x).placed(|x| select_outputs(x, width, output_rows));
        env.set(self.out, selected);
    }
}

/// The rows of `x`, (tokens, width), whose logits are wanted: (outputs, width).
fn select_outputs(x: &[f64], width: usize, output_rows: &[u32]) -> Vec<f64> {
    output_rows.iter().flat_map(|&row| &x[row as usize * width..(row as usize + 1) * width]).copied().collect()
}
