/// Row `token_ids[t]` of `table`, which is (vocab_size, width), for each token: (tokens, width).
pub fn embed(table: &[f32], width: usize, token_ids: &[u32]) -> Vec<f64> {
    let row = |&id: &u32| &table[id as usize * width..(id as usize + 1) * width];
    token_ids.iter().flat_map(row).map(|&x| f64::from(x)).collect()
}
