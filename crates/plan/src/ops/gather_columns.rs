//! `gather_columns`: the columns of a matrix in another order.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::Bounds;
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value};

/// The fields of [`Op::GatherColumns`].
pub(crate) struct GatherColumnsOp {
    pub(crate) x: Value,
    pub(crate) order: usize,
    pub(crate) out: Value,
}

impl Meaning for GatherColumnsOp {
    fn name(&self) -> &'static str {
        "gather_columns"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.x], outputs: vec![self.out], orders: vec![self.order], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::GatherColumns { x: map(self.x), order: self.order, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let order = &shapes.plan.orders[self.order];
        shapes.columns(self.x, self.order)?;
        shapes.rows("out", self.out, shapes.plan.value(self.x).rows)?;
        shapes.width_is("out", self.out, order.len())
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, _prices: &Prices<'_>) -> StepCost {
        StepCost::nothing()
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Textbook for GatherColumnsOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let gathered = gather_columns(env.value(self.x), env.width(self.x), &env.plan.orders[self.order]);
        env.set(self.out, gathered);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let (width, order) = (env.width(self.x), &env.plan.orders[self.order]);
        let gathered = env.value(self.x).placed(|x| gather_columns(x, width, order));
        env.set(self.out, gathered);
    }
}

/// The columns of `x`, (rows, width), in another order: `out[t][i] = x[t][order[i]]`, (rows, numbers of the order).
fn gather_columns(x: &[f64], width: usize, order: &[u32]) -> Vec<f64> {
    x.chunks_exact(width).flat_map(|row| order.iter().map(|&column| row[column as usize])).collect()
}
