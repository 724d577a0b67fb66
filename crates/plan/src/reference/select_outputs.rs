/// The rows of `x`, (tokens, width), whose logits are wanted: (outputs, width).
pub fn select_outputs(x: &[f64], width: usize, output_rows: &[u32]) -> Vec<f64> {
    output_rows.iter().flat_map(|&row| &x[row as usize * width..(row as usize + 1) * width]).copied().collect()
}
