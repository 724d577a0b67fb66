use super::{KvCache, RowPlace};
use crate::Attention;

/// softmax(q · kᵀ · scale) · v for each head of each row of `q`, (tokens, heads · head_dim), over the cached positions
/// up to the row's own, or the last `window` of them. Query head h reads key/value head h · kv_heads / heads.
pub fn attention(q: &[f64], attention: &Attention, cache: &KvCache, rows: &[RowPlace]) -> Vec<f64> {
    let layer = cache.layer(attention.layer);
    let mut out = Vec::with_capacity(q.len());
    for (q, row) in q.chunks_exact(attention.heads * layer.head_dim).zip(rows) {
        let first = attention.window.map_or(0, |window| (row.position + 1).saturating_sub(window));
        let slots = &row.slots[first..=row.position];
        for (head, q) in q.chunks_exact(layer.head_dim).enumerate() {
            let kv_head = head * layer.kv_heads / attention.heads;
            let score = |&slot: &usize| {
                let k = cache.k(attention.layer, slot, kv_head);
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(attention.scale)
            };
            let scores: Vec<f64> = slots.iter().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut head_out = vec![0.0; layer.head_dim];
            for (weight, &slot) in weights.iter().zip(slots) {
                let v = cache.v(attention.layer, slot, kv_head);
                head_out.iter_mut().zip(v).for_each(|(out, v)| *out += weight / sum * v);
            }
            out.extend(head_out);
        }
    }
    out
}
