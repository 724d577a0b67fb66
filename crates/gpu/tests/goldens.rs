//! The simulated GPU against Hugging Face transformers: every architecture, as `run` computes it (fused, only the rows
//! that are wanted).

use std::sync::Arc;

use backend::{Backend, Executable};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{StepInput, fuse, restrict_outputs};
use testing::{GOLDEN_KV, Golden, Sample, goldens};

/// Steps of the greedy text that are simulated.
const GREEDY_STEPS: usize = 8;

/// The kernel text as CUDA sees it, and as Metal does.
const BOTH: [SimDialect; 2] = [SimDialect::Cuda, SimDialect::Metal];

fn executable(dialect: SimDialect, golden: &Golden) -> Box<dyn Executable> {
    let (textbook, weights) = golden.model();
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let backend = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, GpuOptions::default());
    backend.load(plan, weights, GOLDEN_KV).expect("a tiny model loads")
}

fn replay(executable: &mut dyn Executable, step: &StepInput) -> Result<Vec<f32>, String> {
    executable.replay(step).map(<[f32]>::to_vec).map_err(|error| error.to_string())
}

#[test]
fn logits_are_those_of_transformers() {
    for golden in goldens() {
        for dialect in BOTH {
            let mut executable = executable(dialect, &golden);
            golden.check_logits(|step| replay(&mut *executable, step)).expect("transformers' logits");
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    // Each golden in one dialect a day, and in the other tomorrow.
    let sample = Sample::of_today(2);
    for (index, golden) in goldens().into_iter().enumerate() {
        let dialects = BOTH.into_iter().enumerate().filter(|(dialect, _)| sample.has(index + dialect));
        for (_, dialect) in dialects {
            let mut executable = executable(dialect, &golden);
            golden.check_greedy(GREEDY_STEPS, |step| replay(&mut *executable, step)).expect("transformers' text");
        }
    }
}
