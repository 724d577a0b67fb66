//! How much a test has to do at least: bytes that must be read, operations that must be made. From the plan alone.

use std::ops::Range;

use plan::{Cost, KvFormat, Op, Plan, StepCost, StepInput, WeightId};

use super::args::Test;

/// What the steps of a plan cost.
pub(super) struct Work {
    /// One for each op.
    costs: Vec<StepCost>,
}

impl Work {
    /// `weight_bytes` are those that the device reads of each weight where it reads all of it.
    pub(super) fn new(plan: &Plan, kv_format: KvFormat, weight_bytes: &[u64]) -> Self {
        let bytes_of = |weight: WeightId| weight_bytes[weight.index()];
        // A row of the embedding table is next to nothing.
        let ops = plan.ops.iter().filter(|op| !matches!(op, Op::Embed { .. }));
        Self { costs: ops.map(|op| op.cost(plan, &bytes_of, kv_format)).collect() }
    }

    /// Bytes that a step of `test` reads, on average over its decode steps, or for the last step of a prompt: each weight
    /// once that some row wants, whatever the batch, and the cache of each sequence, with what is written to it.
    pub(super) fn active_bytes(&self, test: &Test) -> u64 {
        let first = test.depth + test.prompt;
        let positions = if test.generate == 0 { first - 1..first } else { first..test.kv_len() };
        let num_steps = positions.len() as u64;
        let bytes: u64 = positions.map(|position| self.of_step(position..position + 1, test.batch).bytes).sum();
        bytes / num_steps
    }

    /// Operations (a multiplication and an addition are two) of one repetition of `test`: matrix products and attention;
    /// the rest is less than a hundredth.
    pub(super) fn flops(&self, test: &Test) -> f64 {
        let prompt_end = test.depth + test.prompt;
        let mut flops = 0.0;
        if test.prompt > 0 {
            flops += self.of_step(test.depth..prompt_end, 1).flops as f64;
        }
        for position in prompt_end..test.kv_len() {
            flops += self.of_step(position..position + 1, 1).flops as f64;
        }
        flops * test.batch as f64
    }

    /// A step of `sequences` sequences with tokens at `positions`. The last token of each sequence gives logits.
    fn of_step(&self, positions: Range<usize>, sequences: usize) -> Cost {
        let mut step = StepInput::default();
        for _ in 0..sequences {
            let first_row = step.push_sequence(&vec![0; positions.len()], positions.start, &[]);
            step.output_rows.push((first_row + positions.len() - 1) as u32);
        }
        let costs = self.costs.iter().map(|cost| cost.of(&step));
        costs.fold(Cost::default(), |a, b| Cost { bytes: a.bytes + b.bytes, flops: a.flops + b.flops })
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
        let work = Work::new(&plan, KvFormat::F16, &vec![100; plan.weights.len()]);
        // All weights but the table. Two layers, K and V, 4 features of 2 bytes: 32 bytes a token that is seen, and as many
        // are written.
        let weights = 100 * (plan.weights.len() as u64 - 1);
        let test = Test { prompt: 0, generate: 3, depth: 10, batch: 1 };
        assert_eq!(work.active_bytes(&test), weights + 32 * 13);
        assert_eq!(work.active_bytes(&Test { batch: 4, ..test }), weights + 4 * 32 * 13);
        assert_eq!(work.active_bytes(&Test { prompt: 5, generate: 0, depth: 0, batch: 1 }), weights + 32 * 6);
    }

    #[test]
    fn operations_are_counted_by_hand() {
        let plan = plan();
        let layer = 2 * (8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 12 * 8);
        let (head, attention_per_kv) = (2 * 16 * 8, 4 * 8);
        let work_of = |plan: &Plan| Work::new(plan, KvFormat::F16, &vec![0; plan.weights.len()]);
        let work = work_of(&plan);
        let decode = Test { prompt: 0, generate: 1, depth: 4, batch: 1 };
        let expected = 2 * layer + head + 2 * attention_per_kv * 5;
        assert_eq!(work.flops(&decode), f64::from(expected));
        // Three tokens that see 1, 2 and 3; logits for one of them.
        let prompt = Test { prompt: 3, generate: 0, depth: 0, batch: 1 };
        let expected = 3 * 2 * layer + head + 2 * attention_per_kv * 6;
        assert_eq!(work.flops(&prompt), f64::from(expected));
        // With the rest of the last layer computed for that token only, there is less to do, but k and v.
        let restricted = plan::fuse(plan::restrict_outputs(plan.clone()));
        let fused = work_of(&restricted);
        assert!(fused.flops(&prompt) < f64::from(expected));
        assert_eq!(fused.flops(&decode), work.flops(&decode));
    }

    #[test]
    fn a_step_reads_the_experts_that_its_rows_take() {
        let config = json!({
            "model_type": "mixtral", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4,
            "num_experts_per_tok": 1,
        });
        let plan = models::build_plan(&config, &AnyShape).unwrap();
        let is_expert = |weight: &plan::WeightInfo| weight.name.contains(".experts.");
        let bytes: Vec<u64> = plan.weights.iter().map(|weight| if is_expert(weight) { 16 } else { 0 }).collect();
        let work = Work::new(&plan, KvFormat::F16, &bytes);
        let test = |batch| Test { prompt: 0, generate: 1, depth: 0, batch };
        let cache = |batch: u64| 32 * batch;
        // Three matrices an expert: one of four, then 1 - (3/4)² of them, then as good as all.
        assert_eq!(work.active_bytes(&test(1)), 3 * 16 + cache(1));
        assert_eq!(work.active_bytes(&test(2)), 3 * 28 + cache(2));
        assert_eq!(work.active_bytes(&test(50)), 3 * 64 + cache(50));
    }

    /// The expert that every row takes is read once a step, whether it has ops of its own or is one of the routed ones.
    #[test]
    fn a_shared_expert_among_the_routed_ones_costs_what_it_costs_apart() {
        let config = json!({
            "model_type": "glm4_moe", "vocab_size": 16, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
            "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 12,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0,
        });
        let apart = models::build_plan(&config, &AnyShape).unwrap();
        let among = plan::share_slots(apart.clone(), |_| true);
        assert_ne!(apart, among);
        // Of matrices alone: an expert with ops of its own reads the norm once more.
        let is_matrix = |weight: &plan::WeightInfo| weight.shape.len() > 1;
        let bytes: Vec<u64> = (1000..).zip(&apart.weights).map(|(n, of)| if is_matrix(of) { n } else { 0 }).collect();
        let [apart, among] = [apart, among].map(|plan| Work::new(&plan::fuse(plan), KvFormat::F16, &bytes));
        for batch in [1, 2, 50] {
            let test = Test { prompt: 0, generate: 1, depth: 0, batch };
            let [apart, among] = [&apart, &among].map(|work| work.active_bytes(&test));
            // Expected numbers of experts are rounded to bytes op by op.
            assert!(apart.abs_diff(among) <= 6, "{batch} rows: {apart} and {among}");
            assert!(apart > 25_000, "{batch} rows: {apart}");
        }
    }
}
