//! What ops cost: the bytes that they move and the operations that they do, as functions of the step. Each op's
//! function stands in the op's file in `ops`.

use std::fmt;
use std::sync::Arc;

use crate::{KvFormat, Plan, Rows, StepInput, WeightId};

/// What an op has to do at least. Activations do not count: between two ops they stay in caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights and of the KV cache that are read or written, each once.
    pub bytes: u64,
    /// Operations of matrix products and attention; a multiplication and an addition are two.
    pub flops: u64,
}

/// What an op costs in a step. All that does not depend on the step is worked out beforehand, because a step is priced
/// while it is being recorded.
#[derive(Clone)]
pub struct StepCost(Arc<dyn Fn(&StepInput) -> Cost + Send + Sync>);

impl StepCost {
    /// The cost that `of_step` gives.
    pub(crate) fn new(of_step: impl Fn(&StepInput) -> Cost + Send + Sync + 'static) -> Self {
        Self(Arc::new(of_step))
    }

    /// The cost of an op that only touches activations.
    pub(crate) fn nothing() -> Self {
        Self::new(|_| Cost::default())
    }

    /// The same, and `bytes` more that every step reads.
    pub(crate) fn and_bytes(self, bytes: u64) -> Self {
        Self::new(move |input| {
            let cost = self.of(input);
            Cost { bytes: cost.bytes + bytes, ..cost }
        })
    }

    /// In the step of `input`.
    pub fn of(&self, input: &StepInput) -> Cost {
        (self.0)(input)
    }
}

impl fmt::Debug for StepCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepCost").finish_non_exhaustive()
    }
}

/// What the cost of an op depends on besides the step.
pub(crate) struct Prices<'a> {
    pub(crate) plan: &'a Plan,
    /// Bytes that the device reads of a weight where it reads all of it.
    pub(crate) weight_bytes: &'a dyn Fn(WeightId) -> u64,
    pub(crate) kv_format: KvFormat,
}

impl Prices<'_> {
    /// Reads `weights` once and multiplies every row by the matrices among them.
    pub(crate) fn products(&self, rows: Rows, weights: &[WeightId]) -> StepCost {
        let bytes = weights.iter().map(|&weight| (self.weight_bytes)(weight)).sum();
        let shapes = weights.iter().map(|&weight| &self.plan.weight(weight).shape);
        let elements: usize = shapes.filter(|shape| shape.len() > 1).map(|shape| shape.iter().product::<usize>()).sum();
        let flops_per_row = 2 * elements as u64;
        StepCost::new(move |input| Cost { bytes, flops: rows.count(input.shape()) as u64 * flops_per_row })
    }

    /// Writes a key and a value of `layer` for each token.
    pub(crate) fn cache_rows(&self, layer: usize) -> StepCost {
        self.per_token(self.plan.kv_layers[layer].bytes(self.kv_format) as u64)
    }

    /// Moves `bytes` for each token.
    pub(crate) fn per_token(&self, bytes: u64) -> StepCost {
        StepCost::new(move |input| Cost { bytes: input.token_ids.len() as u64 * bytes, flops: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_plans::{HIDDEN, VOCAB, decoder, latent, mixture};
    use crate::{Op, fuse};

    /// The cost of the first op called `name`, with weights of four bytes an element.
    fn cost(plan: &Plan, name: &str, input: &StepInput) -> Cost {
        let weight_bytes = |weight: WeightId| 4 * plan.weight(weight).shape.iter().product::<usize>() as u64;
        let op = plan.ops.iter().find(|op| op.name() == name).expect(name);
        op.cost(plan, &weight_bytes, KvFormat::F32).of(input)
    }

    #[test]
    fn a_fused_op_costs_what_the_ops_cost_that_it_stands_for() {
        for plan in [decoder(), mixture(), latent()] {
            check_fused_costs(&plan);
        }
    }

    fn check_fused_costs(textbook: &Plan) {
        let weight_bytes = |weight: WeightId| 4 * textbook.weight(weight).shape.iter().product::<usize>() as u64;
        let mut input = StepInput::default();
        input.push_sequence(&[1, 2, 3], 5, &[0, 1]);
        input.push_sequence(&[4], 0, &[2]);
        input.output_rows = vec![2, 3];
        let sum = |ops: &[Op], plan: &Plan| {
            let costs = ops.iter().map(|op| op.cost(plan, &weight_bytes, KvFormat::F16).of(&input));
            costs.fold(Cost::default(), |a, b| Cost { bytes: a.bytes + b.bytes, flops: a.flops + b.flops })
        };
        let fused = fuse(textbook.clone());
        for op in fused.ops.iter().filter(|op| op.name() != "rope_kv_write") {
            let written_out = op.written_out(&fused);
            let mut plan = fused.clone();
            plan.values.extend(written_out.values);
            assert_eq!(sum(std::slice::from_ref(op), &fused), sum(&written_out.ops, &plan), "{}", op.name());
        }
    }

    #[test]
    fn each_op_grows_with_the_step_in_its_own_way() {
        let plan = decoder();
        let step = |num_tokens: usize| {
            let mut input = StepInput::default();
            input.push_sequence(&vec![1; num_tokens], 0, &[0, 1]);
            input.output_rows.push(0);
            input
        };
        for (name, one, three) in [
            ("embed", Cost { bytes: 48, flops: 0 }, Cost { bytes: 144, flops: 0 }),
            // Its weight is read once.
            ("rms_norm", Cost { bytes: 48, flops: 0 }, Cost { bytes: 48, flops: 0 }),
            ("linear", Cost { bytes: 416, flops: 192 }, Cost { bytes: 416, flops: 576 }),
            ("rope", Cost::default(), Cost::default()),
            ("kv_write", Cost { bytes: 32, flops: 0 }, Cost { bytes: 96, flops: 0 }),
            // One position is seen, then one, two and three.
            ("attention", Cost { bytes: 32, flops: 32 }, Cost { bytes: 96, flops: 192 }),
            ("glu", Cost::default(), Cost::default()),
        ] {
            assert_eq!((cost(&plan, name, &step(1)), cost(&plan, name, &step(3))), (one, three), "{name}");
        }
        // Two of six experts, then 1 - (2/3)^3 of them; products of those that rows chose.
        let (expert, mixture) = (4 * 5 * HIDDEN as u64, mixture());
        let flops = 2 * 2 * (5 * HIDDEN) as u64;
        for (rows, bytes) in [(1, 2 * expert), (3, (6.0 * expert as f64 * (1.0 - (2f64 / 3.0).powi(3))).round() as u64)]
        {
            let expected = Cost { bytes, flops: rows as u64 * flops };
            assert_eq!(cost(&mixture, "expert_linear", &step(rows)), expected, "{rows}");
        }
        // Only the output row meets the head.
        let head = Cost { bytes: 4 * (HIDDEN + VOCAB * HIDDEN) as u64, flops: 2 * (VOCAB * HIDDEN) as u64 };
        assert_eq!(cost(&fuse(plan), "logits", &step(3)), head);
    }
}
