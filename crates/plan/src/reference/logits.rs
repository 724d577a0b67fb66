use super::{LinearWeights, NormWeights, linear, rms_norm, select_outputs};

/// [`select_outputs`], the final [`rms_norm`], and the [`linear`] of the head: (outputs, vocab_size).
pub fn logits(x: &[f64], norm: NormWeights<'_>, head: LinearWeights<'_>, output_rows: &[u32]) -> Vec<f64> {
    let rows = select_outputs(x, head.in_features, output_rows);
    linear(&rms_norm(&rows, norm), head)
}
