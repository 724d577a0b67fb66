//! `gate_rows`: each row times the sigmoid of one number, as the shared expert of Qwen2-MoE is.

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, ROUNDOFF, gamma};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value};

/// The fields of [`Op::GateRows`].
pub(crate) struct GateRowsOp {
    pub(crate) x: Value,
    pub(crate) gate: Value,
    pub(crate) out: Value,
}

impl Meaning for GateRowsOp {
    fn name(&self) -> &'static str {
        "gate_rows"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.x, self.gate], outputs: vec![self.out], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::GateRows { x: map(self.x), gate: map(self.gate), out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.rows("gate", self.gate, shapes.plan.value(self.x).rows)?;
        shapes.width_is("gate", self.gate, 1)?;
        shapes.like("out", self.out, self.x)
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

impl Textbook for GateRowsOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let gated = gate_rows(env.value(self.x), env.value(self.gate), env.width(self.x));
        env.set(self.out, gated);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let gated = gate_rows_bound(env.value(self.x), env.value(self.gate), env.width(self.x));
        env.set(self.out, gated);
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `out[t][i] = sigmoid(gate[t]) · x[t][i]`, (rows, width).
fn gate_rows(x: &[f64], gate: &[f64], width: usize) -> Vec<f64> {
    x.chunks_exact(width).zip(gate).flat_map(|(x, &gate)| x.iter().map(move |x| x * sigmoid(gate))).collect()
}

fn gate_rows_bound(x: &Bounded, gate: &Bounded, width: usize) -> Bounded {
    let value = gate_rows(&x.value, &gate.value, width);
    let error = (0..value.len()).map(|i| {
        let (g, gate_error) = (gate.value[i / width], gate.error[i / width]);
        // dσ = σ · (1 - σ) dx, and the exponential of a rounded argument.
        let own = gate_error.exp_m1() + gamma(16) + 2.0 * g.abs() * ROUNDOFF;
        sigmoid(g) * (x.error[i] + (x.value[i].abs() + x.error[i]) * own) + f64::from(f32::MIN_POSITIVE)
    });
    let error = error.collect();
    Bounded::zip(value, error)
}
