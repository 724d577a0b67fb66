//! What an observed step shows: every result of every op, those of the ordinary step.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::reference::ReferenceBackend;
use backend::{Backend, Observed};
use cpu::{CpuBackend, CpuOptions};
use plan::{KvFormat, KvLayout, Op, Plan, StepInput, fuse, restrict_outputs};
use tensor::{ActivationRounding, Tensor, WeightFormat};
use testing::tolerance::{checkpoint_nmse_max, nmse};
use testing::{BlockPool, MODEL_TYPES, Rng, tiny_model};

const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 60 };

type Shown = BTreeMap<(usize, Observed), Vec<f32>>;

/// A long chunk, a step of two sequences, and single tokens at a depth where attention is split over the team.
fn steps(vocab_size: usize) -> Vec<StepInput> {
    let mut rng = Rng::new(11);
    let mut pool = BlockPool::new(&KV, &mut rng);
    let mut long = pool.sequence(rng.tokens(600, vocab_size));
    let mut short = pool.sequence(rng.tokens(7, vocab_size));
    let mut steps = vec![long.next_step(590)];
    steps[0].output_rows = vec![3, 589];
    steps.push(StepInput::default());
    short.push_next(&mut steps[1], 7);
    long.push_next(&mut steps[1], 1);
    steps.push(long.next_step(1));
    steps
}

fn observe(backend: &dyn Backend, plan: &Arc<Plan>, weights: &[Tensor], steps: &[StepInput]) -> Vec<(Shown, Vec<f32>)> {
    let mut executable = backend.load(plan.clone(), weights.to_vec(), KV).unwrap();
    let step = |input| {
        let mut shown = Shown::new();
        let logits = executable
            .replay_observed(input, &mut |op, what, elements| {
                assert!(shown.insert((op, what), elements.to_vec()).is_none(), "{what:?} of op {op} is shown twice");
            })
            .unwrap();
        let logits = logits.to_vec();
        (shown, logits)
    };
    steps.iter().map(step).collect()
}

#[test]
fn every_result_is_shown_and_is_the_ordinary_step_s() {
    for (model_type, threads) in MODEL_TYPES.into_iter().zip([1, 2, 3].into_iter().cycle()) {
        let (textbook, weights) = tiny_model(model_type, 9, WeightFormat::F32);
        for plan in [textbook.clone(), Arc::new(fuse(restrict_outputs((*textbook).clone())))] {
            let steps = steps(plan.vocab_size);
            let cpu =
                CpuBackend::new(CpuOptions { threads: Some(threads), isa: None, pin: false, ..CpuOptions::default() })
                    .unwrap();
            let found = observe(&cpu, &plan, &weights, &steps);
            let expected = observe(&ReferenceBackend::new(), &plan, &weights, &steps);
            let mut ordinary = cpu.load(plan.clone(), weights.clone(), KV).unwrap();
            for ((input, (found, logits)), (expected, _)) in steps.iter().zip(&found).zip(&expected) {
                assert_eq!(ordinary.replay(input).unwrap(), logits, "{model_type}: the ordinary step's logits");
                assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{model_type}");
                // Keys and values, or the rows of a latent layer.
                let written = |op: &Op| match op {
                    Op::KvWrite { .. } | Op::RopeKvWrite { .. } => 2,
                    Op::LatentWrite { .. } | Op::LatentRopeWrite { .. } => 1,
                    _ => 0,
                };
                assert_eq!(found.len(), plan.values.len() + plan.ops.iter().map(written).sum::<usize>());
                for (at, found) in found {
                    let expected: Vec<_> = expected[at].iter().map(|&x| f64::from(x)).collect();
                    assert_eq!(found.len(), expected.len(), "{model_type}: {at:?}");
                    let error = nmse(found.iter().map(|&x| f64::from(x)), &expected);
                    let most = checkpoint_nmse_max(ActivationRounding::F32, KV.format);
                    assert!(error <= most, "{model_type}: {at:?} of {}: NMSE {error:e}", plan.ops[at.0].name());
                }
            }
        }
    }
}

#[test]
fn a_malformed_step_is_refused_and_shows_nothing() {
    let (plan, weights) = tiny_model("llama", 9, WeightFormat::F32);
    let cpu = CpuBackend::new(CpuOptions { threads: Some(1), isa: None, pin: false, ..CpuOptions::default() }).unwrap();
    let mut executable = cpu.load(plan, weights, KV).unwrap();
    let mut input = StepInput::default();
    input.push_sequence(&[u32::MAX], 0, &[0]);
    let mut shown = 0;
    assert!(executable.replay_observed(&input, &mut |_, _, _| shown += 1).is_err());
    assert_eq!(shown, 0);
}
