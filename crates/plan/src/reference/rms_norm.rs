/// What an RMSNorm reads.
#[derive(Clone, Copy, Debug)]
pub struct NormWeights<'a> {
    /// (width of a slice,).
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

/// x / sqrt(mean(x²) + eps) · weight for each slice of `x` that is as wide as the weight (Zhang and Sennrich, 2019).
pub fn rms_norm(x: &[f64], norm: NormWeights<'_>) -> Vec<f64> {
    let width = norm.weight.len();
    x.chunks_exact(width)
        .flat_map(|slice| {
            let mean_square = slice.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let scale = 1.0 / (mean_square + f64::from(norm.eps)).sqrt();
            slice.iter().zip(norm.weight).map(move |(x, &weight)| x * scale * f64::from(weight))
        })
        .collect()
}
