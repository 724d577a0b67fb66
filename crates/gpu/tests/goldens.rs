//! The simulated GPU against Hugging Face transformers: every architecture, as `run` computes it (fused, only the rows
//! that are wanted).

use std::sync::Arc;

use backend::{Backend, Executable};
use gpu::{GpuBackend, GpuOptions, ThreadOrder};
use plan::{KvFormat, KvLayout, StepInput, fuse, restrict_outputs};
use testing::tolerance::LOGITS_RELATIVE;
use testing::{Golden, goldens};

const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 16 };
/// Greedy steps that were decided by less than this may go either way.
const MARGIN_MIN: f32 = 1e-3;
/// Steps of the greedy text that are simulated.
const GREEDY_STEPS: usize = 8;

fn executable(golden: &Golden) -> Box<dyn Executable> {
    let (textbook, weights) = golden.model();
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let backend = GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, GpuOptions::default());
    backend.load(plan, weights, KV).expect("a tiny model loads")
}

fn step(tokens: &[u32], position: usize, output_rows: impl Iterator<Item = u32>) -> StepInput {
    let table: Vec<u32> = (0..KV.num_blocks as u32).rev().collect();
    let mut step = StepInput::default();
    step.push_sequence(tokens, position, &table);
    step.output_rows = output_rows.collect();
    step
}

#[test]
fn logits_are_those_of_transformers() {
    for golden in goldens() {
        let tokens = &golden.expected.prompt_token_ids;
        let expected: Vec<f32> = golden.expected.logits.iter().flatten().copied().collect();
        let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
        let mut executable = executable(&golden);
        let found = executable.replay(&step(tokens, 0, 0..tokens.len() as u32)).expect("a step");
        assert_eq!(found.len(), expected.len());
        let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let bound = LOGITS_RELATIVE as f32 * largest;
        assert!(worst <= bound, "{}: off by {worst:e}, {bound:e} allowed", golden.name);
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for golden in goldens() {
        let expected = &golden.expected.greedy;
        let mut executable = executable(&golden);
        let mut next = expected.prompt_token_ids.clone();
        let mut position = 0;
        for (index, &token) in expected.token_ids.iter().enumerate().take(GREEDY_STEPS) {
            let last = next.len() as u32 - 1;
            let logits = executable.replay(&step(&next, position, std::iter::once(last))).expect("a step");
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits");
            let decided = expected.margins[index] > MARGIN_MIN;
            assert!(best == token as usize || !decided, "{}: token {index} is {best}", golden.name);
            position += next.len();
            next = vec![token];
        }
    }
}
