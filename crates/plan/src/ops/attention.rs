//! `attention`: causal grouped-query attention over the cache of a layer.

use super::{Cache, Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, Errors, ROUNDOFF, gamma, rounding_error};
use crate::reference::{KvCache, Reference, RowPlace};
use crate::shapes::{Checked, Shapes};
use crate::{Cost, Op, Rows, StepCost, Value, WeightId};

/// Causal grouped-query attention of q over the cache of one layer: query head h reads key/value head
/// h · kv_heads / heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Whose cache, an index into [`Plan::kv_layers`](crate::Plan::kv_layers).
    pub layer: usize,
    /// `num_attention_heads`.
    pub heads: usize,
    /// Scores are q·k · scale.
    pub scale: f32,
    /// A token sees the last `window` positions, itself included; `None` sees all.
    pub window: Option<usize>,
    /// A logit for each query head that joins the softmax and has no value, so that the weights of a head sum to less
    /// than 1: (heads,).
    pub sinks: Option<WeightId>,
}

/// The fields of [`Op::Attention`].
pub(crate) struct AttentionOp {
    pub(crate) q: Value,
    pub(crate) attention: Attention,
    pub(crate) out: Value,
}

impl Meaning for AttentionOp {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn operands(&self) -> Operands {
        let cache = Some(Cache::Reads(self.attention.layer));
        let weights = self.attention.sinks.into_iter().collect();
        Operands { inputs: vec![self.q], outputs: vec![self.out], weights, cache, ..Operands::default() }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Attention { q: map(self.q), attention: self.attention, out: map(self.out) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let Attention { layer, heads, window, sinks, .. } = self.attention;
        let layer = shapes.kv_layer(layer)?;
        if heads == 0 || !heads.is_multiple_of(layer.kv_heads) {
            return Err(format!("{heads} heads do not divide over {} key/value heads", layer.kv_heads));
        }
        if window == Some(0) {
            return Err("a window of no positions".to_owned());
        }
        sinks.map_or(Ok(()), |sinks| shapes.weight(sinks, &[heads]))?;
        shapes.rows("q", self.q, Rows::Tokens)?;
        shapes.width_is("q", self.q, heads * layer.head_dim)?;
        shapes.like("out", self.out, self.q)
    }

    fn is_row_by_row(&self) -> bool {
        // A row also depends on its token's position, which is not an operand.
        false
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.attention(self.attention)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Prices<'_> {
    /// Reads the cached positions that some row of a sequence sees, once for all heads.
    pub(crate) fn attention(&self, attention: Attention) -> StepCost {
        let Attention { layer, heads, window, .. } = attention;
        let layer = self.plan.kv_layers[layer];
        let bytes_per_position = layer.bytes(self.kv_format) as u64;
        // Scores, and the sum that they weigh.
        let flops_per_position = (2 * heads * (layer.key_dim() + layer.value_dim())) as u64;
        let seen = move |kv_len: usize| window.map_or(kv_len, |window| kv_len.min(window));
        StepCost::new(move |input| {
            let mut cost = Cost::default();
            for sequence in &input.sequences {
                // The first row sees farthest back.
                let from = sequence.first_position + 1 - seen(sequence.first_position + 1);
                cost.bytes += (sequence.kv_len() - from) as u64 * bytes_per_position;
                let positions: usize = (sequence.first_position..sequence.kv_len()).map(|at| seen(at + 1)).sum();
                cost.flops += positions as u64 * flops_per_position;
            }
            cost
        })
    }
}

impl Textbook for AttentionOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let sinks = self.attention.sinks.map(|sinks| env.weight(sinks));
        let attended = attention(env.value(self.q), &self.attention, sinks.as_deref(), env.state, env.rows);
        env.set(self.out, attended);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let sinks = self.attention.sinks.map(|sinks| env.weight(sinks));
        let attended = attention_bound(env.value(self.q), &self.attention, sinks.as_deref(), &env.state, env.rows);
        env.set(self.out, attended);
    }
}

/// softmax(q · kᵀ · scale, sink) · v for each head of each row of `q`, (tokens, heads · head_dim), over the cached
/// positions up to the row's own, or the last `window` of them. Query head h reads key/value head h · kv_heads / heads.
/// Keys are as wide as the heads of `q`; values may have another width.
pub(super) fn attention(
    q: &[f64],
    attention: &Attention,
    sinks: Option<&[f32]>,
    cache: &KvCache,
    rows: &[RowPlace],
) -> Vec<f64> {
    let layer = cache.layer(attention.layer);
    let mut out = Vec::with_capacity(q.len());
    for (q, row) in q.chunks_exact(attention.heads * layer.key_dim()).zip(rows) {
        let first = attention.window.map_or(0, |window| (row.position + 1).saturating_sub(window));
        let slots = &row.slots[first..=row.position];
        for (head, q) in q.chunks_exact(layer.key_dim()).enumerate() {
            let kv_head = head * layer.kv_heads() / attention.heads;
            let score = |&slot: &usize| {
                let k = cache.k(attention.layer, slot, kv_head);
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() * f64::from(attention.scale)
            };
            let scores: Vec<f64> = slots.iter().map(score).collect();
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let max = scores.iter().copied().fold(sink, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum::<f64>() + (sink - max).exp();
            let mut head_out = vec![0.0; layer.value_dim()];
            for (weight, &slot) in weights.iter().zip(slots) {
                let v = cache.v(attention.layer, slot, kv_head);
                head_out.iter_mut().zip(v).for_each(|(out, v)| *out += weight / sum * v);
            }
            out.extend(head_out);
        }
    }
    out
}

pub(super) fn attention_bound(
    q: &Bounded,
    attend: &Attention,
    sinks: Option<&[f32]>,
    errors: &Errors<'_>,
    rows: &[RowPlace],
) -> Bounded {
    let (cache, cache_error) = (&*errors.cache, &*errors.cache_error);
    let value = attention(&q.value, attend, sinks, cache, rows);
    let layer = cache.layer(attend.layer);
    let scale = f64::from(attend.scale).abs();
    let row_width = attend.heads * layer.key_dim();
    let mut error = Vec::with_capacity(value.len());
    let rounded = rounding_error(errors.attention_rounding, &q.value, &q.error);
    let q_error: Vec<f64> = q.error.iter().zip(rounded).map(|(error, rounded)| error + rounded).collect();
    // Of a weight of 1, which is the largest.
    let weight_error = rounding_error(errors.attention_rounding, &[1.0], &[0.0])[0];
    for ((q, q_error), row) in q.value.chunks_exact(row_width).zip(q_error.chunks_exact(row_width)).zip(rows) {
        let first = attend.window.map_or(0, |window| (row.position + 1).saturating_sub(window));
        let slots = &row.slots[first..=row.position];
        let heads = q.chunks_exact(layer.key_dim()).zip(q_error.chunks_exact(layer.key_dim()));
        for (head, (q, q_error)) in heads.enumerate() {
            let kv_head = head * layer.kv_heads() / attend.heads;
            let mut scores = Vec::with_capacity(slots.len());
            let mut score_error: f64 = 0.0;
            for &slot in slots {
                let k = cache.k(attend.layer, slot, kv_head);
                let k_error = cache_error.k(attend.layer, slot, kv_head);
                let (mut score, mut magnitude, mut moved) = (0.0, 0.0, 0.0);
                for ((q, qe), (k, ke)) in q.iter().zip(q_error).zip(k.iter().zip(k_error)) {
                    score += q * k;
                    magnitude += (q.abs() + qe) * (k.abs() + ke);
                    moved += q.abs() * ke + k.abs() * qe + qe * ke;
                }
                scores.push(score * f64::from(attend.scale));
                score_error = score_error.max(scale * (moved + gamma(layer.key_dim() + 3) * magnitude));
            }
            let sink = sinks.map(|sinks| f64::from(sinks[head]));
            let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
            let min = scores.iter().copied().chain(sink).fold(f64::INFINITY, f64::min);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
            // Each weight is off by e^δ, and so is their sum; then the exponential of a rounded argument, a sum
            // over all positions, and rescaling whenever a kernel that streams meets a new maximum.
            let arithmetic = gamma(2 * slots.len() + 32) + 4.0 * (max - min) * ROUNDOFF;
            let relative = (2.0 * score_error).exp_m1() + arithmetic + weight_error;
            let mut head_error = vec![0.0; layer.value_dim()];
            for (weight, &slot) in weights.iter().zip(slots) {
                let v = cache.v(attend.layer, slot, kv_head);
                let v_error = cache_error.v(attend.layer, slot, kv_head);
                for ((out, v), e) in head_error.iter_mut().zip(v).zip(v_error) {
                    *out += weight / sum * (e + relative * (v.abs() + e));
                }
            }
            error.extend(head_error);
        }
    }
    Bounded::zip(value, error)
}
