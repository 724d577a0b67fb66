use super::{LinearWeights, add, linear};

/// residual + [`linear`] of `x`.
pub fn linear_residual(x: &[f64], projection: LinearWeights<'_>, residual: &[f64]) -> Vec<f64> {
    add(residual, &linear(x, projection))
}
