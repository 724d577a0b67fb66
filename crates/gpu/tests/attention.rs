//! Attention of heads that have matrix instructions, against the reference: rows alone and in tiles, over splits, blocks,
//! windows and groups of query heads of all sizes, with sinks and without. Conformance has other heads, and all layouts.

use std::sync::Arc;

use backend::{Backend, Executable};
use gpu::SimDialect::{Cuda, Metal};
use gpu::{ForcedVariants, GpuBackend, GpuOptions, SimDialect, ThreadOrder, Tuned};
use plan::{AnyShape, Graph, Heads, KvFormat, KvLayout, Plan, StepInput};
use tensor::{ActivationRounding, Tensor, WeightFormat};
use testing::tiny::random_weights;
use testing::{ErrorAnalysis, Rng};

const VOCAB: usize = 40;

/// One attention layer, nothing else; its heads have sinks, if `sinks`.
fn attention_plan(heads: Heads, sinks: bool) -> Arc<Plan> {
    let (q_width, kv_width) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    let plan = Graph::build("attention", 400, &AnyShape, |g, w| {
        let q = g.embed(w.get("embed_q", [VOCAB, q_width])?, q_width);
        let k = g.embed(w.get("embed_k", [VOCAB, kv_width])?, kv_width);
        let v = g.embed(w.get("embed_v", [VOCAB, kv_width])?, kv_width);
        let sinks = sinks.then(|| w.get("sinks", [heads.heads])).transpose()?;
        let o = g.attention(q, k, v, Heads { sinks, ..heads });
        Ok::<_, plan::BuildError>(g.select_outputs(o))
    });
    Arc::new(plan.unwrap())
}

/// Random weights, and sinks from below most scores to above nearly all that a step can have.
fn weights(plan: &Plan) -> Vec<Tensor> {
    let mut weights = random_weights(plan, &mut Rng::new(1), WeightFormat::F32);
    for (tensor, info) in weights.iter_mut().zip(&plan.weights).filter(|(_, info)| info.name == "sinks") {
        let sinks: Vec<f32> = [-2.0, 4.0, 1.0, 8.0].into_iter().cycle().take(info.shape[0]).collect();
        *tensor = Tensor::from_f32(WeightFormat::F32, info.shape.clone(), &sinks).unwrap();
    }
    weights
}

/// A step of (sequence, tokens, position).
type Step = &'static [(usize, usize, usize)];

/// Rows that grow two sequences, together and alone: with more than 16 rows of one they are tiles.
const STEPS: [Step; 7] = [
    &[(0, 40, 0)],
    &[(0, 1, 40), (1, 20, 0)],
    &[(0, 1, 41), (1, 1, 20)],
    &[(0, 260, 42)],
    &[(0, 1, 302)],
    &[(1, 5, 21), (0, 3, 303)],
    &[(0, 18, 306), (1, 2, 26)],
];

fn input(rng: &mut Rng, step: Step, tables: &[Vec<u32>]) -> StepInput {
    let mut input = StepInput::default();
    for &(sequence, len, position) in step {
        input.push_sequence(&rng.tokens(len, VOCAB), position, &tables[sequence]);
    }
    input.output_rows.extend(0..input.token_ids.len() as u32);
    input
}

/// Holds every step to its bounds: those of f32 but for tiles, and for all where rows must be alike.
fn check(dialect: SimDialect, heads: Heads, block_len: usize, order: ThreadOrder, options: GpuOptions) {
    check_of(&attention_plan(heads, false), dialect, block_len, order, options);
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
    let mut executable = backend.load(plan.clone(), weights.clone(), kv).unwrap();
    let mut rng = Rng::new(2);
    for step in STEPS {
        let input = input(&mut rng, step, &tables);
        let found = executable.replay(&input).unwrap();
        let has_tiles = !options.batch_invariant && step.iter().any(|&(_, len, _)| len > 16);
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

fn heads(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Heads {
    Heads { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window, sinks: None }
}

const MATRIX: GpuOptions = GpuOptions { batch_invariant: false, forced: ForcedVariants::NONE, tuned: Tuned::NONE };
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
        check_of(&attention_plan(heads, true), dialect, block_len, order, options);
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
            let plan = attention_plan(heads, sink.is_some());
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
        let plan = attention_plan(heads(3, 1, head_dim, None), true);
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
