use super::{KvCache, NormWeights, RowPlace, kv_write, rms_norm, rope};
use crate::Rope;

/// What the op reads beside q, k and v.
#[derive(Clone, Copy, Debug)]
pub struct RopeKvWriteWeights<'a> {
    /// Norm of each query head.
    pub q_norm: Option<NormWeights<'a>>,
    /// Norm of each key head.
    pub k_norm: Option<NormWeights<'a>>,
    /// How q and k turn.
    pub rope: &'a Rope,
}

/// [`rms_norm`] of each head of q and k where there is one, [`rope`] of both, and [`kv_write`] of k and v. Returns q.
pub fn rope_kv_write(
    cache: &mut KvCache,
    layer: usize,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    weights: RopeKvWriteWeights<'_>,
    rows: &[RowPlace],
) -> Vec<f64> {
    let turn = |x: &[f64], norm: Option<NormWeights<'_>>| {
        let normed = norm.map_or_else(|| x.to_vec(), |norm| rms_norm(x, norm));
        rope(&normed, weights.rope, rows)
    };
    let (q, k) = (turn(q, weights.q_norm), turn(k, weights.k_norm));
    kv_write(cache, layer, &k, v, rows);
    q
}
