use super::{LinearWeights, NormWeights, glu, linear, rms_norm};
use crate::Activation;

/// [`rms_norm`], then the [`glu`] of its gate and up [`linear`].
pub fn norm_glu(
    x: &[f64],
    norm: NormWeights<'_>,
    gate: LinearWeights<'_>,
    up: LinearWeights<'_>,
    activation: Activation,
) -> Vec<f64> {
    let normed = rms_norm(x, norm);
    glu(&linear(&normed, gate), &linear(&normed, up), activation)
}
