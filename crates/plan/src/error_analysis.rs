//! Running error analysis: beside the value of every element, how far correct f32 arithmetic may be from it.
//!
//! No kernel of the right meaning exceeds the bound, in whatever order it adds, and one that drops or doubles a term
//! does. How errors pass through an op stands in the op's file in `ops`.

use std::sync::Arc;

use tensor::{ActivationRounding, Tensor, WeightFormat};

use crate::ops::kv_write_bound;
use crate::reference::{Env, KvCache, RowPlace};
use crate::{BlockCopy, KvFormat, KvLayout, Op, Plan, StepInput, WeightId};

/// What the error bound of an op is evaluated in: matrices with a bound for each element, and both caches.
pub(crate) type Bounds<'a> = Env<'a, Bounded, Errors<'a>>;

/// What bounds depend on besides their operands.
pub(crate) struct Errors<'a> {
    /// Keys and values in exact arithmetic.
    pub(crate) cache: &'a mut KvCache,
    /// What each of them may be off by.
    pub(crate) cache_error: &'a mut KvCache,
    /// What activations are rounded to before they meet each weight, by [`WeightId::index`].
    pub(crate) rounding: &'a [ActivationRounding],
    /// What attention rounds queries, and the weights of values, to.
    pub(crate) attention_rounding: ActivationRounding,
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

    /// Elements with a bound for each.
    pub(crate) fn zip(value: Vec<f64>, error: Vec<f64>) -> Self {
        assert_eq!(value.len(), error.len(), "a bound for each element");
        // Nothing times a bound without end, which only the choice of an expert has (`ops/route.rs`).
        let error = error.into_iter().map(|error| if error.is_nan() { f64::INFINITY } else { error }).collect();
        Self { value, error }
    }

    /// Its elements in other places: `place` brings values and bounds there.
    pub(crate) fn placed(&self, place: impl Fn(&[f64]) -> Vec<f64>) -> Self {
        Self::zip(place(&self.value), place(&self.error))
    }

    /// The element of `found` that is furthest outside its bound, with its error as a share of the bound; over 1 is
    /// outside, and so is NaN. `None` for no elements.
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
            self.run_op(op, input, &rows, &mut values);
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

    /// Runs one op, textbook or fused, on `values`, one for each of the plan's: reads its operands there, and puts
    /// there what it defines.
    pub fn run_op(&mut self, op: &Op, input: &StepInput, rows: &[RowPlace], values: &mut Vec<Bounded>) {
        let weight = |weight: WeightId| self.weights[weight.index()].as_f32();
        let errors = Errors {
            cache: &mut self.cache,
            cache_error: &mut self.cache_error,
            rounding: &self.rounding,
            attention_rounding: self.attention_rounding,
        };
        Env::new(&self.plan, input, rows, &weight, values, errors).run(op, |op, env| op.bound(env));
    }

    /// Keys and values of `rows` as they stand in the cache of `layer`, each (rows, kv_heads · head_dim). A latent
    /// layer has keys alone, (rows, numbers of a row).
    pub fn written(&self, layer: usize, rows: &[RowPlace]) -> (Bounded, Bounded) {
        let shape = self.cache.layer(layer);
        let heads = || rows.iter().flat_map(|row| (0..shape.kv_heads()).map(|head| (row.slot(), head)));
        let of = |head: fn(&KvCache, usize, usize, usize) -> &[f64]| {
            let all = |cache: &KvCache| heads().flat_map(|(slot, h)| head(cache, layer, slot, h).to_vec()).collect();
            Bounded::zip(all(&self.cache), all(&self.cache_error))
        };
        let values = if shape.latent().is_none() { of(KvCache::v) } else { Bounded::default() };
        (of(KvCache::k), values)
    }

    /// Has `keys` and `values` of `rows` in the cache of `layer`, as they are.
    pub fn overwrite(&mut self, layer: usize, keys: &[f64], values: &[f64], rows: &[RowPlace]) {
        let (keys, values) = (Bounded::exact(keys.to_vec()), Bounded::exact(values.to_vec()));
        kv_write_bound(&mut self.cache, &mut self.cache_error, layer, &keys, &values, rows);
    }
}

/// What each of `x`, which is itself off by `error`, may move by when it is rounded; blocks begin at multiples of 32.
pub(crate) fn rounding_error(rounding: ActivationRounding, x: &[f64], error: &[f64]) -> Vec<f64> {
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
pub(crate) const ROUNDOFF: f64 = 1.0 / (1u64 << 24) as f64;

/// The relative error of `roundings` f32 operations one after another (Higham, 2002, lemma 3.1).
pub(crate) fn gamma(roundings: usize) -> f64 {
    let total = roundings as f64 * ROUNDOFF;
    total / (1.0 - total)
}

#[cfg(test)]
mod tests {
    use testing::Rng;

    use super::*;

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
