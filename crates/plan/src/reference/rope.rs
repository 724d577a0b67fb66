use super::RowPlace;
use crate::Rope;

/// Each head of each row of `x`, (tokens, heads · head_dim), turned by the row's position: features i and
/// i + head_dim / 2 are a point in the plane that turns by position · frequency(i) (Su et al., 2021; `rotate_half` in
/// the checkpoints' code), and grows by the attention factor.
pub fn rope(x: &[f64], rope: &Rope, rows: &[RowPlace]) -> Vec<f64> {
    let half = rope.head_dim / 2;
    let frequencies = rope.frequencies();
    let heads_per_row = x.len() / rope.head_dim / rows.len().max(1);
    let mut out = x.to_vec();
    for (index, head) in out.chunks_exact_mut(rope.head_dim).enumerate() {
        let position = rows[index / heads_per_row].position;
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (cos, sin) = rope.angle(*frequency, position);
            let (a, b) = (head[pair], head[pair + half]);
            head[pair] = a * cos - b * sin;
            head[pair + half] = b * cos + a * sin;
        }
    }
    out
}
