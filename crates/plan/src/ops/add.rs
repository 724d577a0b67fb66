//! `add`: a + b.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, ROUNDOFF};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value};

/// The fields of [`Op::Add`].
pub(crate) struct AddOp {
    pub(crate) a: Value,
    pub(crate) b: Value,
    pub(crate) out: Value,
}

impl Meaning for AddOp {
    fn name(&self) -> &'static str {
        "add"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.a, self.b], outputs: vec![self.out], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Add { a: map(self.a), b: map(self.b), out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.like("b", self.b, self.a)?;
        shapes.like("out", self.out, self.a)
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

impl Textbook for AddOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let sum = add(env.value(self.a), env.value(self.b));
        env.set(self.out, sum);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let sum = add_bound(env.value(self.a), env.value(self.b));
        env.set(self.out, sum);
    }
}

/// a + b, element by element.
fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn add_bound(a: &Bounded, b: &Bounded) -> Bounded {
    let value = add(&a.value, &b.value);
    let error =
        a.error.iter().zip(&b.error).zip(&value).map(|((a, b), y)| (a + b) * (1.0 + ROUNDOFF) + ROUNDOFF * y.abs());
    let error = error.collect();
    Bounded::zip(value, error)
}
