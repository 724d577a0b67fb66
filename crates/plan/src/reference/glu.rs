use std::f64::consts::PI;

use crate::Activation;

/// activation(gate) · up, element by element (Shazeer, 2020).
pub fn glu(gate: &[f64], up: &[f64], activation: Activation) -> Vec<f64> {
    let activate = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => x / (1.0 + (-2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).exp()),
        Activation::Relu => x.max(0.0),
    };
    gate.iter().zip(up).map(|(&gate, up)| activate(gate) * up).collect()
}
