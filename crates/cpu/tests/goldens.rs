//! The CPU backend against Hugging Face transformers: every architecture, at every instruction set that this processor
//! has, as `run` computes it (fused, only the rows that are wanted).

use std::sync::Arc;

use backend::{Backend, Executable, Observed};
use cpu::{CpuBackend, CpuOptions, Isa};
use plan::{Op, StepInput, fuse, restrict_outputs};
use testing::golden::golden_step;
use testing::{GOLDEN_KV, Golden, goldens};

fn executables(golden: &Golden) -> Vec<(Isa, Box<dyn Executable>)> {
    let (textbook, weights) = golden.model();
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let load = |isa: Isa| {
        let options = CpuOptions { threads: Some(2), isa: Some(isa.level()), pin: false, ..CpuOptions::default() };
        let backend = CpuBackend::new(options).expect("an available level");
        (isa, backend.load(plan.clone(), weights.clone(), GOLDEN_KV).expect("a tiny model loads"))
    };
    Isa::available().into_iter().map(load).collect()
}

fn replay(executable: &mut dyn Executable, step: &StepInput) -> Result<Vec<f32>, String> {
    executable.replay(step).map(<[f32]>::to_vec).map_err(|error| error.to_string())
}

#[test]
fn logits_are_those_of_transformers_at_every_level() {
    for golden in goldens() {
        for (isa, mut executable) in executables(&golden) {
            let checked = golden.check_logits(|step| replay(&mut *executable, step));
            assert!(checked.is_ok(), "at {isa}: {checked:?}");
        }
    }
}

#[test]
fn greedy_text_is_that_of_transformers_at_every_level() {
    for golden in goldens() {
        assert!(golden.expected.greedy.token_ids.len() >= 128, "{}", golden.name);
        for (isa, mut executable) in executables(&golden) {
            let checked = golden.check_greedy(usize::MAX, |step| replay(&mut *executable, step));
            assert!(checked.is_ok(), "at {isa}: {checked:?}");
        }
    }
}

#[test]
fn routers_choose_the_experts_that_those_of_transformers_do_at_every_level() {
    for golden in goldens() {
        // Every row, also of the last layer.
        let (textbook, weights) = golden.model();
        let plan = Arc::new(fuse((*textbook).clone()));
        let tokens = &golden.expected.prompt_token_ids;
        let step = golden_step(tokens, 0, 0..tokens.len() as u32);
        for isa in Isa::available() {
            let options = CpuOptions { threads: Some(2), isa: Some(isa.level()), pin: false, ..CpuOptions::default() };
            let backend = CpuBackend::new(options).expect("an available level");
            let mut executable = backend.load(plan.clone(), weights.clone(), GOLDEN_KV).expect("a tiny model loads");
            let mut found: Vec<(Vec<f32>, Vec<f32>)> = vec![];
            let mut observe = |op: usize, what: Observed, elements: &[f32]| match plan.ops[op] {
                Op::MoeRoute { ids, .. } if what == Observed::Value(ids) => found.push((elements.to_vec(), vec![])),
                Op::MoeRoute { weights, .. } if what == Observed::Value(weights) => {
                    found.last_mut().expect("ids come first").1 = elements.to_vec();
                }
                _ => {}
            };
            executable.replay_observed(&step, &mut observe).expect("a step of a golden");
            let checked = golden.check_routing(&found);
            assert!(checked.is_ok(), "at {isa}: {checked:?}");
        }
    }
}
