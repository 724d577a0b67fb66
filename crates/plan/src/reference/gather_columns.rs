/// The columns of `x`, (rows, width), in another order: `out[t][i] = x[t][order[i]]`, (rows, numbers of the order).
pub fn gather_columns(x: &[f64], width: usize, order: &[u32]) -> Vec<f64> {
    x.chunks_exact(width).flat_map(|row| order.iter().map(|&column| row[column as usize])).collect()
}
