//! `glu`: a gated linear unit, activation(gate) · up.

use std::f64::consts::PI;

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, ROUNDOFF, gamma};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value};

/// The gate's activation in a gated linear unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// x · sigmoid(x) (Elfwing et al., 2017).
    Silu,
    /// x · sigmoid(2 √(2 / π) · (x + 0.044715 · x³)): GELU by its approximation with a hyperbolic tangent (Hendrycks and
    /// Gimpel, 2016), which is what PyTorch calls `approximate="tanh"`.
    GeluTanh,
    /// max(x, 0).
    Relu,
    /// g · sigmoid(1.702 · g) of the gate g, which is at most 7; what lets through is not up but up + 1, with up between
    /// -7 and 7. It is the activation of gpt-oss.
    ClampedSwiglu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Silu, Self::GeluTanh, Self::Relu, Self::ClampedSwiglu];

    /// What the gate of [`Activation::ClampedSwiglu`] is multiplied by inside the sigmoid.
    pub const SWIGLU_ALPHA: f32 = 1.702;
    /// What its gate and up are clamped to.
    pub const SWIGLU_LIMIT: f32 = 7.0;
}

/// The fields of [`Op::Glu`].
pub(crate) struct GluOp {
    pub(crate) gate: Value,
    pub(crate) up: Value,
    pub(crate) activation: Activation,
    pub(crate) out: Value,
}

impl Meaning for GluOp {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn operands(&self) -> Operands {
        Operands { inputs: vec![self.gate, self.up], outputs: vec![self.out], ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Glu { gate: map(self.gate), up: map(self.up), activation: self.activation, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        shapes.like("up", self.up, self.gate)?;
        shapes.like("out", self.out, self.gate)
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

impl Textbook for GluOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let gated = glu(env.value(self.gate), env.value(self.up), self.activation);
        env.set(self.out, gated);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let gated = glu_bound(env.value(self.gate), env.value(self.up), self.activation);
        env.set(self.out, gated);
    }
}

/// activation(gate) · up, element by element (Shazeer, 2020).
fn glu(gate: &[f64], up: &[f64], activation: Activation) -> Vec<f64> {
    let limit = f64::from(Activation::SWIGLU_LIMIT);
    let activate = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => x / (1.0 + (-2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).exp()),
        Activation::Relu => x.max(0.0),
        Activation::ClampedSwiglu => {
            // A NaN stays one.
            let x = if x > limit { limit } else { x };
            x / (1.0 + (-f64::from(Activation::SWIGLU_ALPHA) * x).exp())
        }
    };
    let let_through = |up: f64| match activation {
        Activation::ClampedSwiglu => up.clamp(-limit, limit) + 1.0,
        Activation::Silu | Activation::GeluTanh | Activation::Relu => up,
    };
    gate.iter().zip(up).map(|(&gate, &up)| activate(gate) * let_through(up)).collect()
}

fn glu_bound(gate: &Bounded, up: &Bounded, activation: Activation) -> Bounded {
    let value = glu(&gate.value, &up.value, activation);
    // What multiplies by one, and what is added to up.
    let (one, plus) = if activation == Activation::ClampedSwiglu { (0.0, 1.0) } else { (1.0, 0.0) };
    let activated = glu(&gate.value, &vec![one; value.len()], activation);
    let error = (0..value.len()).map(|i| {
        // Clamping moves nothing further apart.
        let (g, up_value) = (gate.value[i], up.value[i].abs() + plus);
        let up_error = up.error[i] + plus * ROUNDOFF * up_value;
        // The exponential of a rounded argument is off by as much as the argument, and that is rounded up to four
        // times.
        let argument = match activation {
            Activation::Silu => 2.0 * g.abs(),
            Activation::ClampedSwiglu => 2.0 * 1.702 * g.abs(),
            Activation::GeluTanh => 5.0 * 1.6 * g.abs() * (1.0 + 0.044715 * g * g),
            Activation::Relu => 0.0,
        };
        let own = activated[i].abs() * (gamma(16) + argument * ROUNDOFF) + f64::from(f32::MIN_POSITIVE);
        // The steepest, GELU, rises by less than 1.13.
        let activated_error = 1.13 * gate.error[i] + own;
        (activated_error * (up_value + up_error) + activated[i].abs() * up_error) * (1.0 + gamma(2))
            + gamma(2) * value[i].abs()
    });
    let error = error.collect();
    Bounded::zip(value, error)
}
