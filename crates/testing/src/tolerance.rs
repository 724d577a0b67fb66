//! Tolerances. What one op or a few may differ from the reference by is *derived*, by [`ErrorAnalysis`]; what a whole
//! model may is stated here, with its reason.

use plan::{KvFormat, Plan};
use tensor::{ActivationRounding, Tensor, WeightFormat};

pub use plan::error_analysis::{Bounded, ErrorAnalysis};

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

/// How many times [`checkpoint_nmse_max`] a model may be off by: 4 for latent attention with activations in BF16, else 1.
/// There, queries, rows of the cache and heads have projections of their own, one after the other, so a layer rounds nine
/// activations where others round five, and all heads read the same rounded row. The last layer of a tiny `glm4_moe_lite`
/// was off by 2.2e-3. With all other roundings these models keep the bound of the others.
pub fn checkpoint_factor(plan: &Plan, rounding: ActivationRounding) -> f64 {
    let is_latent = plan.kv_layers.iter().any(|layer| layer.latent().is_some());
    if is_latent && rounding == ActivationRounding::BF16 { 4.0 } else { 1.0 }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use plan::{AnyShape, BuildError, Graph, KvLayout, StepInput};

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
}
