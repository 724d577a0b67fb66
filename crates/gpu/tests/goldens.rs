//! The simulated GPU against Hugging Face transformers: every architecture, as `run` computes it (fused, only the rows
//! that are wanted).

use std::sync::Arc;

use backend::{Backend, Executable};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{StepInput, fuse, restrict_outputs};
use testing::{GOLDEN_KV, Golden, goldens};

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

fn simulator() -> GpuBackend {
    GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, GpuOptions::default())
}

/// The goldens of models that the backend does not refuse.
fn computed() -> Vec<Golden> {
    let claims = simulator().claims();
    goldens().into_iter().filter(|golden| claims.lacking(&golden.model().0).is_none()).collect()
}

/// A model that asks for what has no kernels yet is refused by name, with what to do instead.
#[test]
fn what_is_lacking_is_refused_with_what_to_do() {
    let lacking = goldens().into_iter().find(|golden| golden.name == "glm4_moe_lite").expect("a golden");
    let (plan, weights) = lacking.model();
    let error = simulator().load(plan, weights, GOLDEN_KV).err().expect("no kernels").to_string();
    assert!(error.contains("latent attention") && error.contains("--device cpu"), "{error}");
}

fn replay(executable: &mut dyn Executable, step: &StepInput) -> Result<Vec<f32>, String> {
    executable.replay(step).map(<[f32]>::to_vec).map_err(|error| error.to_string())
}

#[test]
fn logits_are_those_of_transformers() {
    for golden in computed() {
        for dialect in BOTH {
            let mut executable = executable(dialect, &golden);
            golden.check_logits(|step| replay(&mut *executable, step)).expect("transformers' logits");
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers() {
    for golden in computed() {
        for dialect in BOTH {
            let mut executable = executable(dialect, &golden);
            golden.check_greedy(GREEDY_STEPS, |step| replay(&mut *executable, step)).expect("transformers' text");
        }
    }
}
