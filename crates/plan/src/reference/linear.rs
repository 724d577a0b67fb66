/// What a projection reads.
#[derive(Clone, Copy, Debug)]
pub struct LinearWeights<'a> {
    /// (out_features, in_features).
    pub weight: &'a [f32],
    /// Weights in a row.
    pub in_features: usize,
    /// (out_features,).
    pub bias: Option<&'a [f32]>,
}

/// x · weightᵀ + bias: (rows, in_features) to (rows, out_features).
pub fn linear(x: &[f64], linear: LinearWeights<'_>) -> Vec<f64> {
    let dot = |x: &[f64], w: &[f32]| x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum::<f64>();
    x.chunks_exact(linear.in_features)
        .flat_map(|x| {
            linear
                .weight
                .chunks_exact(linear.in_features)
                .enumerate()
                .map(move |(out, w)| dot(x, w) + linear.bias.map_or(0.0, |bias| f64::from(bias[out])))
        })
        .collect()
}
