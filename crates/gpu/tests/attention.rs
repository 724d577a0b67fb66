//! Attention of heads that have matrix instructions, against the reference: rows alone and in tiles, over splits, blocks,
//! windows and groups of query heads of all sizes, with sinks and without. Conformance has other heads, and all layouts.

use std::sync::Arc;

use backend::{Backend, Executable};
use gpu::SimDialect::{Cuda, Metal};
use gpu::{ForcedVariants, GpuBackend, GpuOptions, SimDialect, ThreadOrder, Tuned};
use plan::{Heads, KvFormat, KvLayout, Plan, StepInput};
use tensor::{ActivationRounding, Tensor, WeightFormat};
use testing::{ErrorAnalysis, Rng};

use crate::attentions::{Step, VOCAB, attention_plan, heads, input, weights};

/// Positions of a sequence, at most.
const CONTEXT: usize = 400;

/// Rows that grow two sequences, together and alone: with more than 16 rows of one they are tiles.
const STEPS: [Step<'static>; 7] = [
    &[(0, 40, 0)],
    &[(0, 1, 40), (1, 20, 0)],
    &[(0, 1, 41), (1, 1, 20)],
    &[(0, 260, 42)],
    &[(0, 1, 302)],
    &[(1, 5, 21), (0, 3, 303)],
    &[(0, 18, 306), (1, 2, 26)],
];

/// Holds every step to its bounds: those of f32 but for tiles, and for all where rows must be alike.
fn check(dialect: SimDialect, heads: Heads, block_len: usize, order: ThreadOrder, options: GpuOptions) {
    check_of(&attention_plan(heads, false, CONTEXT), dialect, block_len, order, options);
}

fn check_of(plan: &Arc<Plan>, dialect: SimDialect, block_len: usize, order: ThreadOrder, options: GpuOptions) {
    let weights = weights(plan);
    let kv = KvLayout { format: KvFormat::F16, block_len, num_blocks: 360_usize.div_ceil(block_len) + 1 };
    let mut blocks: Vec<u32> = (0..kv.num_blocks as u32).rev().collect();
    let tables = [blocks.split_off(28_usize.div_ceil(block_len)), blocks];
    let analysis =
        |rounding| ErrorAnalysis::new(plan.clone(), &weights, kv, |_| ActivationRounding::F32).with_attention(rounding);
    let (mut exact, mut rounded) = (analysis(ActivationRounding::F32), analysis(ActivationRounding::F16));
    let backend = GpuBackend::simulator_of(dialect, order, 1 << 30, options);
    let always = options.batch_invariant && (backend.claims().attention)(KvFormat::F16) == ActivationRounding::F16;
    let mut executable = backend.load(plan.clone(), weights.clone(), kv).unwrap();
    let mut rng = Rng::new(2);
    for step in STEPS {
        let input = input(&mut rng, step, &tables);
        let found = executable.replay(&input).unwrap();
        let has_tiles = always || !options.batch_invariant && step.iter().any(|&(_, len, _)| len > 16);
        let bounds = [exact.run(&input), rounded.run(&input)];
        let (at, share) = bounds[usize::from(has_tiles)].worst(found).unwrap();
        let row = at / plan.vocab_size;
        assert!(
            share <= 1.0,
            "{dialect:?}, {:?}, {step:?}, {order:?}, {options:?}: row {row}, {at}: {share} of its bound",
            plan.ops
        );
    }
}

const MATRIX: GpuOptions = GpuOptions {
    batch_invariant: false,
    forced: ForcedVariants::NONE,
    tuned: Tuned::NONE,
    eager: false,
    read_bytes_per_ns: None,
};
const ALIKE: GpuOptions = GpuOptions { batch_invariant: true, ..MATRIX };

#[test]
fn heads_of_64_are_those_of_the_reference() {
    check(Cuda, heads(7, 1, 64, None), 16, ThreadOrder::Forward, MATRIX);
    check(Cuda, heads(4, 2, 64, Some(50)), 5, ThreadOrder::Reverse, MATRIX);
    check(Cuda, heads(12, 1, 64, None), 32, ThreadOrder::Reverse, ALIKE);
}

#[test]
fn heads_of_128_are_those_of_the_reference() {
    check(Cuda, heads(4, 1, 128, None), 32, ThreadOrder::Reverse, MATRIX);
    check(Cuda, heads(9, 1, 128, Some(70)), 24, ThreadOrder::Forward, MATRIX);
    check(Cuda, heads(3, 1, 128, Some(100)), 16, ThreadOrder::Forward, ALIKE);
}

#[test]
fn heads_on_metal_are_those_of_the_reference() {
    check(Metal, heads(7, 1, 64, None), 16, ThreadOrder::Forward, MATRIX);
    check(Metal, heads(4, 2, 64, Some(50)), 5, ThreadOrder::Reverse, MATRIX);
    check(Metal, heads(4, 1, 128, Some(70)), 24, ThreadOrder::Reverse, MATRIX);
    check(Metal, heads(3, 3, 128, None), 32, ThreadOrder::Forward, MATRIX);
}

#[test]
fn heads_with_sinks_are_those_of_the_reference() {
    let check = |dialect, heads, block_len, order, options| {
        check_of(&attention_plan(heads, true, CONTEXT), dialect, block_len, order, options);
    };
    check(Cuda, heads(7, 1, 64, None), 16, ThreadOrder::Forward, MATRIX);
    check(Cuda, heads(4, 2, 128, Some(70)), 24, ThreadOrder::Reverse, MATRIX);
    check(Cuda, heads(12, 1, 64, Some(50)), 32, ThreadOrder::Reverse, ALIKE);
    check(Cuda, heads(10, 2, 96, None), 16, ThreadOrder::Forward, ALIKE);
    check(Metal, heads(7, 1, 64, None), 16, ThreadOrder::Reverse, MATRIX);
    check(Metal, heads(4, 2, 128, Some(70)), 24, ThreadOrder::Forward, MATRIX);
}

#[test]
fn a_sink_far_from_all_scores_takes_nothing_or_all() {
    let heads = heads(3, 1, 64, None);
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 20 };
    let table: Vec<u32> = (0..20).rev().collect();
    for dialect in [Cuda, Metal] {
        let backend = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, MATRIX);
        // Of a prompt, which is tiles, and of a row after it.
        let results = |sink: Option<f32>| {
            let plan = attention_plan(heads, sink.is_some(), CONTEXT);
            let mut weights = weights(&plan);
            if let (Some(sink), Some(at)) = (sink, plan.weights.iter().position(|info| info.name == "sinks")) {
                weights[at] = Tensor::from_f32(WeightFormat::F32, vec![3], &[sink; 3]).unwrap();
            }
            let mut executable = backend.load(plan, weights, kv).unwrap();
            let mut rng = Rng::new(3);
            let mut results = |position, len: usize| {
                let mut input = StepInput::default();
                input.push_sequence(&rng.tokens(len, VOCAB), position, &table);
                input.output_rows.extend(0..len as u32);
                executable.replay(&input).unwrap().to_vec()
            };
            [results(0, 150), results(150, 1)].concat()
        };
        let without = results(None);
        assert!(without.iter().any(|&x| x != 0.0));
        assert!(results(Some(-1000.0)) == without, "{dialect:?}");
        assert!(results(Some(1000.0)).iter().all(|&x| x == 0.0), "{dialect:?}");
    }
}

#[test]
fn a_row_beside_others_has_its_bits() {
    for head_dim in [64, 128, 96] {
        let plan = attention_plan(heads(3, 1, head_dim, None), true, CONTEXT);
        let weights = weights(&plan);
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 20 };
        let backend = GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, ALIKE);
        let tokens = Rng::new(3).tokens(310, VOCAB);
        let table: Vec<u32> = (0..20).rev().collect();
        let bits = |executable: &mut dyn Executable, position: usize, len: usize| {
            let mut input = StepInput::default();
            input.push_sequence(&tokens[position..position + len], position, &table);
            input.output_rows.push(len as u32 - 1);
            executable.replay(&input).unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let mut alone = backend.load(plan.clone(), weights.clone(), kv).unwrap();
        let mut together = backend.load(plan.clone(), weights.clone(), kv).unwrap();
        bits(&mut *alone, 0, 280);
        let expected: Vec<_> = (280..310).map(|position| bits(&mut *alone, position, 1)).collect();
        bits(&mut *together, 0, 280);
        assert_eq!(bits(&mut *together, 280, 10), expected[9], "{head_dim}");
        assert_eq!(bits(&mut *together, 290, 20), expected[29], "{head_dim}");
    }
}
