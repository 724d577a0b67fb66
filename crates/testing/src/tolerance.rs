//! Tolerances. A bound on what correct f32 arithmetic may differ from the reference by is *derived*, by a running error
//! analysis beside the reference's own computation: no kernel of the right meaning exceeds it, in whatever order it
//! adds, and one that drops or doubles a term does.

use std::sync::Arc;

use plan::reference::{self, KvCache, LinearWeights, NormWeights, RowPlace};
use plan::{Activation, Attention, BlockCopy, KvFormat, KvLayout, Norm, Op, Plan, Rope, StepInput, Value, WeightId};
use tensor::{ActivationRounding, Tensor, WeightFormat};

/// Logits of a whole f32 model: the largest difference relative to the largest logit. Two orders above what rounding
/// alone was seen to do (`f64_max_abs_difference` in the goldens' source.toml is about 1e-6 of the largest logit).
pub const LOGITS_RELATIVE: f64 = 1e-4;

/// Normalised mean square error of a whole model whose activations are rounded to `rounding` before each projection and
/// whose cache is in `kv`.
///
/// - F32: (1e-5)², ten times below [`LOGITS_RELATIVE`] because it is an average.
/// - BF16 rounds each activation by at most 2^-9 of itself, Q8 by 1/254 of its block's largest, about 1/80 of a
///   deviation: with 20 roundings one after another, each amplified about once, 20 · (2^-9)² / 3 and 20 · (1/80)² / 3, and
///   an order of magnitude for peaked attention; three times more again: 3.0e-4 was seen in a step of two rows in BF16, and
///   1.2e-2 in a tiny model of Q4_0 weights.
/// - F16 rounds activations, and some weights, by at most 2^-11: twice a sixteenth of what BF16 does, whose bound has room
///   for that.
/// - An F16 cache rounds what f32 arithmetic is off by up to 1e-5 from the reference: one number in a hundred lies so near
///   a tie that it goes the other way, by 2^-10 of itself. 1e-2 · 2^-20, and the same order of magnitude.
pub fn model_nmse_max(rounding: ActivationRounding, kv: KvFormat) -> f64 {
    let activations = match rounding {
        ActivationRounding::F32 => 1e-10,
        ActivationRounding::F16 => 1e-4,
        ActivationRounding::BF16 => 1e-3,
        ActivationRounding::Q8Blocks => 3e-2,
    };
    let cache = match kv {
        KvFormat::F32 => 0.0,
        KvFormat::F16 => 1e-7,
    };
    activations + cache
}

/// As [`model_nmse_max`], but of one result of one op in a step that may be a single row: in an F16 cache that is seen so
/// closely, one number that goes the other way can be a good part of all, so all of them may, by 2^-10 of themselves.
pub fn checkpoint_nmse_max(rounding: ActivationRounding, kv: KvFormat) -> f64 {
    let cache = match kv {
        KvFormat::F32 => 0.0,
        KvFormat::F16 => 1.0 / (1u64 << 20) as f64,
    };
    model_nmse_max(rounding, KvFormat::F32) + cache
}

/// The coarsest rounding that `activations` does for any of these matrices, and attention.
pub fn coarsest(
    weights: &[Tensor],
    activations: fn(WeightFormat) -> ActivationRounding,
    attention: ActivationRounding,
) -> ActivationRounding {
    let roundings = weights.iter().filter(|tensor| tensor.shape().len() > 1).map(|tensor| activations(tensor.format()));
    let size = |rounding: &ActivationRounding| model_nmse_max(*rounding, KvFormat::F32);
    let coarser = |a, b| if size(&b) > size(&a) { b } else { a };
    roundings.fold(attention, coarser)
}

/// Σ(found - expected)² / Σ expected².
pub fn nmse(found: impl IntoIterator<Item = f64>, expected: &[f64]) -> f64 {
    let error: f64 = found.into_iter().zip(expected).map(|(found, expected)| (found - expected).powi(2)).sum();
    error / expected.iter().map(|x| x * x).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// What each of `x`, which is itself off by `error`, may move by when it is rounded; blocks begin at multiples of 32.
fn rounding_error(rounding: ActivationRounding, x: &[f64], error: &[f64]) -> Vec<f64> {
    match rounding {
        ActivationRounding::F32 => vec![0.0; x.len()],
        ActivationRounding::F16 => {
            let most = x.iter().zip(error).map(|(x, e)| x.abs() + e).fold(0.0, f64::max);
            // 2^-11 of the activation and as much of the weight that it meets.
            x.iter().zip(error).map(|(x, e)| (x.abs() + e) / 1024.0 + most / 2f64.powi(37)).collect()
        }
        ActivationRounding::BF16 => x.iter().zip(error).map(|(x, e)| (x.abs() + e) / 256.0).collect(),
        ActivationRounding::Q8Blocks => x
            .chunks(32)
            .zip(error.chunks(32))
            .flat_map(|(x, e)| {
                let max = x.iter().zip(e).map(|(x, e)| x.abs() + e).fold(0.0, f64::max);
                // Half a code, and the scale's own rounding over at most 127 codes.
                std::iter::repeat_n(max * (0.5 / 127.0 + 1.0 / 1024.0), x.len())
            })
            .collect(),
    }
}

/// Half the distance from 1 to the next f32.
const ROUNDOFF: f64 = 1.0 / (1u64 << 24) as f64;

/// The relative error of `roundings` f32 operations one after another (Higham, 2002, lemma 3.1).
fn gamma(roundings: usize) -> f64 {
    let total = roundings as f64 * ROUNDOFF;
    total / (1.0 - total)
}

/// Elements with what each may be off by.
#[derive(Clone, Debug, Default)]
pub struct Bounded {
    /// What exact arithmetic gives.
    pub value: Vec<f64>,
    /// How far from that a correct kernel may be, element by element.
    pub error: Vec<f64>,
}

impl Bounded {
    /// Elements that are what they are.
    pub fn exact(value: Vec<f64>) -> Self {
        Self { error: vec![0.0; value.len()], value }
    }

    fn zip(value: Vec<f64>, error: Vec<f64>) -> Self {
        assert_eq!(value.len(), error.len(), "a bound for each element");
        Self { value, error }
    }

    /// Its elements in other places: `place` brings values and bounds there.
    fn placed(&self, place: impl Fn(&[f64]) -> Vec<f64>) -> Self {
        Self::zip(place(&self.value), place(&self.error))
    }

    /// The element of `found` that is furthest outside its bound, with its error as a share of the bound; over 1 is outside,
    /// and so is NaN. `None` for no elements.
    ///
    /// # Panics
    /// When `found` has another length.
    pub fn worst(&self, found: &[f32]) -> Option<(usize, f64)> {
        assert_eq!(found.len(), self.value.len(), "a result for each element");
        let shares = found.iter().zip(&self.value).zip(&self.error).map(|((&found, expected), bound)| {
            // The bounds leave out terms of second order, and the result itself is rounded to f32.
            let rounded = expected.abs() * f64::from(f32::EPSILON) + f64::from(f32::MIN_POSITIVE);
            let share = (f64::from(found) - expected).abs() / (1.01 * bound + rounded);
            if share.is_nan() { f64::INFINITY } else { share }
        });
        shares.enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Runs a plan, and beside every value how far f32 arithmetic may be from it.
///
/// Bounds are worst cases and grow with depth: they are sharp for one op or a few, and say little about a whole model.
pub struct ErrorAnalysis {
    plan: Arc<Plan>,
    weights: Vec<Tensor>,
    rounding: Vec<ActivationRounding>,
    attention_rounding: ActivationRounding,
    cache: KvCache,
    cache_error: KvCache,
}

impl ErrorAnalysis {
    /// An analysis of `plan` on a backend that rounds activations as `rounding` says for each weight format.
    pub fn new(
        plan: Arc<Plan>,
        weights: &[Tensor],
        kv: KvLayout,
        rounding: fn(WeightFormat) -> ActivationRounding,
    ) -> Self {
        Self {
            weights: weights.to_vec(),
            rounding: weights.iter().map(|tensor| rounding(tensor.format())).collect(),
            attention_rounding: ActivationRounding::F32,
            cache: KvCache::new(&plan.kv_layers, kv),
            cache_error: KvCache::new(&plan.kv_layers, KvLayout { format: KvFormat::F32, ..kv }),
            plan,
        }
    }

    /// The same where attention rounds queries, and the weights of values, to `rounding`.
    #[must_use]
    pub fn with_attention(self, rounding: ActivationRounding) -> Self {
        Self { attention_rounding: rounding, ..self }
    }

    /// Runs a step. Returns the logits with their bounds.
    ///
    /// # Panics
    /// When the input does not fit.
    pub fn run(&mut self, input: &StepInput) -> Bounded {
        let rows = self.begin(input);
        let plan = self.plan.clone();
        let mut values = vec![Bounded::default(); plan.values.len()];
        for op in &plan.ops {
            let results = self.run_op(op, input, &rows, &values);
            for (value, result) in op.outputs().into_iter().zip(results) {
                values[value.index()] = result;
            }
        }
        std::mem::take(&mut values[plan.logits.index()])
    }

    /// Makes the step's block copies. Returns where its rows stand.
    ///
    /// # Panics
    /// When the input does not fit.
    pub fn begin(&mut self, input: &StepInput) -> Vec<RowPlace> {
        input.check(self.plan.vocab_size, self.cache.layout()).expect("a well-formed step");
        for &BlockCopy { from, to } in &input.block_copies {
            self.cache.copy_block(from as usize, to as usize);
            self.cache_error.copy_block(from as usize, to as usize);
        }
        RowPlace::of_step(input, self.cache.layout())
    }

    /// Runs one op, textbook or fused, on `values`, one for each of the plan's, of which it reads its operands. Returns
    /// what it defines, in the order of [`Op::outputs`].
    pub fn run_op(&mut self, op: &Op, input: &StepInput, rows: &[RowPlace], values: &[Bounded]) -> Vec<Bounded> {
        let value = |v: Value| &values[v.index()];
        let width = |v: Value| self.plan.value(v).width;
        let select = |v: Value| value(v).placed(|x| reference::select_outputs(x, width(v), &input.output_rows));
        match *op {
            Op::Embed { table, out } => {
                vec![Bounded::exact(reference::embed(&self.weight(table), width(out), &input.token_ids))]
            }
            Op::RmsNorm { x, norm, .. } => vec![self.rms_norm(value(x), norm)],
            Op::Linear { x, linear, .. } => vec![self.linear(value(x), linear)],
            Op::Rope { x, rope: index, .. } => vec![rope(value(x), &self.plan.ropes[index], rows)],
            Op::KvWrite { layer, k, v } => {
                self.kv_write(layer, value(k), value(v), rows);
                vec![]
            }
            Op::Attention { q, attention: ref attend, .. } => vec![self.attention(value(q), attend, rows)],
            Op::Glu { gate, up, activation, .. } => vec![glu(value(gate), value(up), activation)],
            Op::Add { a, b, .. } => vec![add(value(a), value(b))],
            Op::GatherColumns { x, order, .. } => {
                vec![value(x).placed(|of| reference::gather_columns(of, width(x), &self.plan.orders[order]))]
            }
            Op::SelectOutputs { x, .. } => vec![select(x)],
            Op::NormLinear { x, norm, ref projections } => {
                let normed = self.rms_norm(value(x), norm);
                projections.iter().map(|&(linear, _)| self.linear(&normed, linear)).collect()
            }
            Op::NormGlu { x, norm, gate, up, activation, .. } => {
                let normed = self.rms_norm(value(x), norm);
                vec![glu(&self.linear(&normed, gate), &self.linear(&normed, up), activation)]
            }
            Op::LinearResidual { x, linear, residual, .. } => {
                vec![add(value(residual), &self.linear(value(x), linear))]
            }
            Op::RopeKvWrite { q, k, v, q_norm, k_norm, rope: index, layer, .. } => {
                let turn = |x: &Bounded, norm: Option<Norm>| match norm {
                    Some(norm) => rope(&self.rms_norm(x, norm), &self.plan.ropes[index], rows),
                    None => rope(x, &self.plan.ropes[index], rows),
                };
                let (q, k) = (turn(value(q), q_norm), turn(value(k), k_norm));
                self.kv_write(layer, &k, value(v), rows);
                vec![q]
            }
            Op::Logits { x, norm, head, .. } => vec![self.linear(&self.rms_norm(&select(x), norm), head)],
        }
    }

    /// Keys and values of `rows` as they stand in the cache of `layer`, each (rows, kv_heads · head_dim).
    pub fn written(&self, layer: usize, rows: &[RowPlace]) -> (Bounded, Bounded) {
        let heads = || rows.iter().flat_map(|row| (0..self.cache.layer(layer).kv_heads).map(|head| (row.slot(), head)));
        let of = |head: fn(&KvCache, usize, usize, usize) -> &[f64]| {
            let all = |cache: &KvCache| heads().flat_map(|(slot, h)| head(cache, layer, slot, h).to_vec()).collect();
            Bounded::zip(all(&self.cache), all(&self.cache_error))
        };
        (of(KvCache::k), of(KvCache::v))
    }

    /// Has `keys` and `values` of `rows` in the cache of `layer`, as they are.
    pub fn overwrite(&mut self, layer: usize, keys: &[f64], values: &[f64], rows: &[RowPlace]) {
        self.kv_write(layer, &Bounded::exact(keys.to_vec()), &Bounded::exact(values.to_vec()), rows);
    }

    fn weight(&self, weight: WeightId) -> Vec<f32> {
        self.weights[weight.index()].to_f32()
    }

    fn rms_norm(&self, x: &Bounded, norm: Norm) -> Bounded {
        let weight = &self.weight(norm.weight);
        let width = weight.len();
        let value = reference::rms_norm(&x.value, NormWeights { weight, eps: norm.eps });
        let slices = x.value.chunks_exact(width).zip(x.error.chunks_exact(width)).zip(value.chunks_exact(width));
        let error = slices.flat_map(|((x, e), y)| {
            let square = x.iter().map(|x| x * x).sum::<f64>() / width as f64;
            let square_error = x.iter().zip(e).map(|(x, e)| 2.0 * x.abs() * e + e * e).sum::<f64>() / width as f64;
            let square_error = square_error + gamma(width + 2) * (square + square_error);
            let eps = f64::from(norm.eps);
            let scale = 1.0 / (square + eps).sqrt();
            // d(s^-1/2) / s^-1/2 = -ds / 2s, at the least s there may be.
            let scale_relative = 0.5 * square_error / (square - square_error).max(0.0).mul_add(1.0, eps);
            let relative = scale_relative + gamma(6);
            let element = move |((e, y), w): ((&f64, &f64), &f32)| {
                (f64::from(*w).abs() * scale * e) * (1.0 + relative) + y.abs() * relative
            };
            e.iter().zip(y).zip(weight).map(element).collect::<Vec<_>>()
        });
        let error = error.collect();
        Bounded::zip(value, error)
    }

    fn linear(&self, x: &Bounded, linear: plan::Linear) -> Bounded {
        let in_features = self.plan.weight(linear.weight).shape[1];
        let weight = &self.weight(linear.weight);
        let bias = linear.bias.map(|bias| self.weight(bias));
        let bias = bias.as_deref();
        let value = reference::linear(&x.value, LinearWeights { weight, in_features, bias });
        let rounding = self.rounding[linear.weight.index()];
        let out_features = weight.len() / in_features;
        let mut error = Vec::with_capacity(value.len());
        for (x, e) in x.value.chunks_exact(in_features).zip(x.error.chunks_exact(in_features)) {
            let rounded: Vec<f64> = rounding_error(rounding, x, e).iter().zip(e).map(|(r, e)| r + e).collect();
            for (out, row) in weight.chunks_exact(in_features).enumerate().take(out_features) {
                let mut magnitude = bias.map_or(0.0, |bias| f64::from(bias[out]).abs());
                let mut moved = 0.0;
                for ((x, e), &w) in x.iter().zip(&rounded).zip(row) {
                    let w = f64::from(w).abs();
                    magnitude += w * (x.abs() + e);
                    moved += w * e;
                }
                // k · ε · Σ|w·x|, the sum with its bias, and what x itself was off by.
                error.push(moved + gamma(in_features + 2) * magnitude);
            }
        }
        Bounded::zip(value, error)
    }

    fn kv_write(&mut self, layer: usize, k: &Bounded, v: &Bounded, rows: &[RowPlace]) {
        reference::kv_write(&mut self.cache, layer, &k.value, &v.value, rows);
        let narrow = self.cache.layout().format == KvFormat::F16;
        let stored = |x: &Bounded| -> Vec<f64> {
            let element = |(x, e): (&f64, &f64)| match *e {
                // The same number rounds to the same number.
                0.0 => 0.0,
                // Otherwise both may round by half a unit of f16: 2^-11 each, or 2^-25 where f16 is subnormal.
                e if narrow => e + (x.abs() + e) / 1024.0 + 1.0 / (1u64 << 24) as f64,
                e => e,
            };
            x.value.iter().zip(&x.error).map(element).collect()
        };
        reference::kv_write(&mut self.cache_error, layer, &stored(k), &stored(v), rows);
    }

    fn attention(&self, q: &Bounded, attention: &Attention, rows: &[RowPlace]) -> Bounded {
        let value = reference::attention(&q.value, attention, &self.cache, rows);
        let layer = self.cache.layer(attention.layer);
        let scale = f64::from(attention.scale).abs();
        let row_width = attention.heads * layer.head_dim;
        let mut error = Vec::with_capacity(value.len());
        let rounded = rounding_error(self.attention_rounding, &q.value, &q.error);
        let q_error: Vec<f64> = q.error.iter().zip(rounded).map(|(error, rounded)| error + rounded).collect();
        // Of a weight of 1, which is the largest.
        let weight_error = rounding_error(self.attention_rounding, &[1.0], &[0.0])[0];
        for ((q, q_error), row) in q.value.chunks_exact(row_width).zip(q_error.chunks_exact(row_width)).zip(rows) {
            let first = attention.window.map_or(0, |window| (row.position + 1).saturating_sub(window));
            let slots = &row.slots[first..=row.position];
            let heads = q.chunks_exact(layer.head_dim).zip(q_error.chunks_exact(layer.head_dim));
            for (head, (q, q_error)) in heads.enumerate() {
                let kv_head = head * layer.kv_heads / attention.heads;
                let mut scores = Vec::with_capacity(slots.len());
                let mut score_error: f64 = 0.0;
                for &slot in slots {
                    let k = self.cache.k(attention.layer, slot, kv_head);
                    let k_error = self.cache_error.k(attention.layer, slot, kv_head);
                    let (mut score, mut magnitude, mut moved) = (0.0, 0.0, 0.0);
                    for ((q, qe), (k, ke)) in q.iter().zip(q_error).zip(k.iter().zip(k_error)) {
                        score += q * k;
                        magnitude += (q.abs() + qe) * (k.abs() + ke);
                        moved += q.abs() * ke + k.abs() * qe + qe * ke;
                    }
                    scores.push(score * f64::from(attention.scale));
                    score_error = score_error.max(scale * (moved + gamma(layer.head_dim + 3) * magnitude));
                }
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let min = scores.iter().copied().fold(f64::INFINITY, f64::min);
                let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                // Each weight is off by e^δ, and so is their sum; then the exponential of a rounded argument, a sum
                // over all positions, and rescaling whenever a kernel that streams meets a new maximum.
                let arithmetic = gamma(2 * slots.len() + 32) + 4.0 * (max - min) * ROUNDOFF;
                let relative = (2.0 * score_error).exp_m1() + arithmetic + weight_error;
                let mut head_error = vec![0.0; layer.head_dim];
                for (weight, &slot) in weights.iter().zip(slots) {
                    let v = self.cache.v(attention.layer, slot, kv_head);
                    let v_error = self.cache_error.v(attention.layer, slot, kv_head);
                    for ((out, v), e) in head_error.iter_mut().zip(v).zip(v_error) {
                        *out += weight / sum * (e + relative * (v.abs() + e));
                    }
                }
                error.extend(head_error);
            }
        }
        Bounded::zip(value, error)
    }
}

fn rope(x: &Bounded, rope: &Rope, rows: &[RowPlace]) -> Bounded {
    let value = reference::rope(&x.value, rope, rows);
    let half = rope.head_dim / 2;
    let frequencies = rope.frequencies();
    let heads_per_row = x.value.len() / rope.head_dim / rows.len().max(1);
    let mut error = Vec::with_capacity(value.len());
    let heads = x.value.chunks_exact(rope.head_dim).zip(x.error.chunks_exact(rope.head_dim));
    for (index, (x, e)) in heads.enumerate() {
        let position = rows[index / heads_per_row].position as f64;
        error.extend((0..rope.head_dim).map(|i| {
            let (pair, other) = (i % half, (i + half) % rope.head_dim);
            // Sine and cosine of an angle that may itself be rounded to f32.
            let turned = gamma(4) + 2.0 * position * frequencies[pair] * ROUNDOFF;
            let (a, b) = (x[i].abs() + e[i], x[other].abs() + e[other]);
            e[i] + e[other] + turned * (a + b)
        }));
    }
    Bounded::zip(value, error)
}

fn glu(gate: &Bounded, up: &Bounded, activation: Activation) -> Bounded {
    let value = reference::glu(&gate.value, &up.value, activation);
    let ones = vec![1.0; value.len()];
    let activated = reference::glu(&gate.value, &ones, activation);
    let error = (0..value.len()).map(|i| {
        let (g, up_value, up_error) = (gate.value[i], up.value[i].abs(), up.error[i]);
        // The exponential of a rounded argument is off by as much as the argument, and that is rounded up to four times.
        let argument = match activation {
            Activation::Silu => 2.0 * g.abs(),
            Activation::GeluTanh => 5.0 * 1.6 * g.abs() * (1.0 + 0.044715 * g * g),
            Activation::Relu => 0.0,
        };
        let own = activated[i].abs() * (gamma(16) + argument * ROUNDOFF) + f64::from(f32::MIN_POSITIVE);
        // The steepest, GELU, rises by less than 1.13.
        let activated_error = 1.13 * gate.error[i] + own;
        (activated_error * (up_value + up_error) + activated[i].abs() * up_error) * (1.0 + gamma(2))
            + gamma(2) * value[i].abs()
    });
    let error = error.collect();
    Bounded::zip(value, error)
}

fn add(a: &Bounded, b: &Bounded) -> Bounded {
    let value = reference::add(&a.value, &b.value);
    let error =
        a.error.iter().zip(&b.error).zip(&value).map(|((a, b), y)| (a + b) * (1.0 + ROUNDOFF) + ROUNDOFF * y.abs());
    let error = error.collect();
    Bounded::zip(value, error)
}

#[cfg(test)]
mod tests {
    use plan::{AnyShape, BuildError, Graph};

    use super::*;
    use crate::Rng;

    const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 4 };

    /// Any order of summation in f32 stays within the bound; one missing product, or one activation in bf16, does not.
    #[test]
    fn the_bound_of_a_projection_holds_for_every_order_and_catches_a_dropped_term() {
        let (n, k) = (5, 300);
        let plan = Graph::build("op", 16, &AnyShape, |g, w| {
            let x = g.embed(w.get("x", [n, k])?, k);
            let y = g.linear(x, w.linear("proj", n, k, false)?, n);
            Ok::<_, BuildError>(g.select_outputs(y))
        });
        let mut rng = Rng::new(3);
        let weights =
            [rng.tensor(WeightFormat::F32, &[n, k], 0.0, 1.0), rng.tensor(WeightFormat::F32, &[n, k], 0.0, 1.0)];
        let mut input = StepInput::default();
        input.push_sequence(&[3], 0, &[0]);
        input.output_rows = vec![0];
        let mut analysis = ErrorAnalysis::new(Arc::new(plan.unwrap()), &weights, KV, |_| ActivationRounding::F32);
        let Bounded { value: expected, error: bound } = analysis.run(&input);

        let (x, w) = (weights[0].to_f32()[3 * k..4 * k].to_vec(), weights[1].to_f32());
        let mut order: Vec<usize> = (0..k).collect();
        for _ in 0..50 {
            rng.shuffle(&mut order);
            for (out, w) in w.chunks_exact(k).enumerate() {
                let sum = |order: &[usize]| f64::from(order.iter().map(|&i| x[i] * w[i]).sum::<f32>());
                let off = |sum: f64| (sum - expected[out]).abs();
                assert!(off(sum(&order)) <= bound[out]);
                // The bound itself is small beside one typical product.
                assert!(bound[out] < 0.02, "{}", bound[out]);
                let largest =
                    *order.iter().max_by(|&&a, &&b| (x[a] * w[a]).abs().total_cmp(&(x[b] * w[b]).abs())).unwrap();
                let without: Vec<usize> = order.iter().copied().filter(|&i| i != largest).collect();
                assert!(off(sum(&without)) > bound[out]);
            }
        }
    }

    #[test]
    fn activation_rounding_is_bounded_by_what_it_says() {
        let mut rng = Rng::new(4);
        let x: Vec<f64> = (0..96).map(|_| f64::from(rng.normal())).collect();
        let exact = vec![0.0; x.len()];
        let bound = rounding_error(ActivationRounding::Q8Blocks, &x, &exact);
        for (block, bound) in x.chunks(32).zip(bound.chunks(32)) {
            let scale = block.iter().fold(0f64, |max, x| max.max(x.abs())) / 127.0;
            assert!(block.iter().zip(bound).all(|(x, bound)| ((x / scale).round() * scale - x).abs() <= *bound));
        }
        let bound = rounding_error(ActivationRounding::F16, &x, &exact);
        for (x, bound) in x.iter().zip(bound) {
            // To nearest: of f32's 23 bits, ten stay.
            let rounded = f32::from_bits(((*x as f32).to_bits() + 0x1000) & !0x1FFF);
            assert!((f64::from(rounded) - x).abs() <= bound);
        }
        let bound = rounding_error(ActivationRounding::BF16, &x, &exact);
        for (x, bound) in x.iter().zip(bound) {
            let truncated = f32::from_bits((*x as f32).to_bits() & 0xFFFF_0000);
            // Truncation is off by up to twice what rounding to nearest is.
            assert!((f64::from(truncated) - x).abs() <= 2.0 * bound);
        }
        assert_eq!(rounding_error(ActivationRounding::F32, &x, &exact), exact);
    }
}
