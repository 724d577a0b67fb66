use crate::Activation;

/// activation(gate) · up, element by element (Shazeer, 2020).
pub fn glu(gate: &[f64], up: &[f64], activation: Activation) -> Vec<f64> {
    let activate = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
    };
    gate.iter().zip(up).map(|(&gate, up)| activate(gate) * up).collect()
}
