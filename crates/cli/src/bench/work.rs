//! How much a test has to do at least: bytes that must be read, operations that must be made. From the plan alone.

use std::ops::Range;

use plan::{KvFormat, Op, Plan, Rows};

use super::args::Test;

/// What one step of a plan costs.
pub(super) struct Work<'a> {
    pub(super) plan: &'a Plan,
    pub(super) kv_format: KvFormat,
    /// Weights that every step reads.
    pub(super) active_weight_bytes: u64,
}

impl Work<'_> {
    /// Bytes that a step of `test` reads, on average over its decode steps, or for the last step of a prompt: each weight
    /// once, whatever the batch, and the cache of each sequence.
    pub(super) fn active_bytes(&self, test: &Test) -> u64 {
        let first = test.depth + test.prompt;
        let kv_lens = if test.generate == 0 { first..first + 1 } else { first + 1..test.kv_len() + 1 };
        let num_steps = kv_lens.len() as u64;
        let kv_bytes: u64 = kv_lens.map(|kv_len| self.kv_bytes(kv_len)).sum();
        self.active_weight_bytes + test.batch as u64 * kv_bytes / num_steps
    }

    /// Operations (a multiplication and an addition are two) of one repetition of `test`: matrix products and attention;
    /// the rest is less than a hundredth.
    pub(super) fn flops(&self, test: &Test) -> f64 {
        let prompt_end = test.depth + test.prompt;
        let mut flops = 0.0;
        if test.prompt > 0 {
            flops += self.step_flops(test.depth..prompt_end, 1);
        }
        for position in prompt_end..test.kv_len() {
            flops += self.step_flops(position..position + 1, 1);
        }
        flops * test.batch as f64
    }

    /// Bytes of the cache that a token at the end of `kv_len` sees, over all layers.
    fn kv_bytes(&self, kv_len: usize) -> u64 {
        let bytes = |op: &Op| match op {
            Op::Attention { attention, .. } => {
                let layer = &self.plan.kv_layers[attention.layer];
                let seen = attention.window.map_or(kv_len, |window| kv_len.min(window));
                (2 * layer.kv_heads * layer.head_dim * self.kv_format.bytes() * seen) as u64
            }
            _ => 0,
        };
        self.plan.ops.iter().map(bytes).sum()
    }

    /// Operations for tokens at `positions` of one sequence, of which the last `outputs` give logits.
    fn step_flops(&self, positions: Range<usize>, outputs: usize) -> f64 {
        let mut flops = 0.0;
        for op in &self.plan.ops {
            // The last layer computes only what the logits need.
            let only_outputs = op.outputs().iter().any(|&out| self.plan.value(out).rows == Rows::Outputs);
            let rows = if only_outputs { positions.end - outputs..positions.end } else { positions.clone() };
            match op {
                Op::Embed { .. } => {}
                Op::Attention { attention, .. } => {
                    let head_dim = self.plan.kv_layers[attention.layer].head_dim;
                    let seen = |position: usize| attention.window.map_or(position + 1, |w| w.min(position + 1));
                    // Scores, and the sum that they weigh.
                    flops += rows.map(|position| (4 * attention.heads * head_dim * seen(position)) as f64).sum::<f64>();
                }
                op => {
                    let shapes = op.weights().into_iter().map(|weight| &self.plan.weight(weight).shape);
                    let products: usize = shapes.filter(|shape| shape.len() == 2).map(|s| s[0] * s[1]).sum();
                    flops += 2.0 * products as f64 * rows.len() as f64;
                }
            }
        }
        flops
    }
}

#[cfg(test)]
mod tests {
    use plan::AnyShape;
    use serde_json::json;

    use super::*;

    fn plan() -> Plan {
        // Per layer: q 8x8, k and v 4x8, o 8x8, gate, up and down 12x8; head and table 16x8.
        let config = json!({
            "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        });
        models::build_plan(&config, &AnyShape).unwrap()
    }

    #[test]
    fn a_decode_step_reads_weights_once_and_each_cache() {
        let plan = plan();
        let work = Work { plan: &plan, kv_format: KvFormat::F16, active_weight_bytes: 1000 };
        // Two layers, K and V, 4 features of 2 bytes: 32 bytes a token.
        let test = Test { prompt: 0, generate: 3, depth: 10, batch: 1 };
        assert_eq!(work.active_bytes(&test), 1000 + 32 * 12);
        assert_eq!(work.active_bytes(&Test { batch: 4, ..test }), 1000 + 4 * 32 * 12);
        assert_eq!(work.active_bytes(&Test { prompt: 5, generate: 0, depth: 0, batch: 1 }), 1000 + 32 * 5);
    }

    #[test]
    fn operations_are_counted_by_hand() {
        let plan = plan();
        let layer = 2 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 12 * 8);
        let (head, attention_per_kv) = (2 * 16 * 8, 4 * 8);
        let work = Work { plan: &plan, kv_format: KvFormat::F16, active_weight_bytes: 0 };
        let decode = Test { prompt: 0, generate: 1, depth: 4, batch: 1 };
        let expected = 2 * layer + head + 2 * attention_per_kv * 5;
        assert_eq!(work.flops(&decode), f64::from(expected));
        // Three tokens that see 1, 2 and 3; logits for one of them.
        let prompt = Test { prompt: 3, generate: 0, depth: 0, batch: 1 };
        let expected = 3 * 2 * layer + head + 2 * attention_per_kv * 6;
        assert_eq!(work.flops(&prompt), f64::from(expected));
        // With the rest of the last layer computed for that token only, there is less to do, but k and v.
        let restricted = plan::fuse(plan::restrict_outputs(plan.clone()));
        let fused = Work { plan: &restricted, ..work };
        assert!(fused.flops(&prompt) < f64::from(expected));
        assert_eq!(fused.flops(&decode), work.flops(&decode));
    }
}
