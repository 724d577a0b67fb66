use super::{LinearWeights, NormWeights, linear, rms_norm};

/// [`rms_norm`], then each [`linear`] of it.
pub fn norm_linear(x: &[f64], norm: NormWeights<'_>, projections: &[LinearWeights<'_>]) -> Vec<Vec<f64>> {
    let normed = rms_norm(x, norm);
    projections.iter().map(|&projection| linear(&normed, projection)).collect()
}
