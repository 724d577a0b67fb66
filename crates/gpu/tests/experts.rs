//! Mixtures of experts against the reference: every way to choose experts, every weight format, one row and several, in
//! textbook ops and fused; biases, slices of odd widths, and what is in no row.

use std::sync::Arc;

use backend::Backend;
use gpu::SimDialect::{Cuda, Metal};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{Activation, ExpertGroups, GroupScore, Plan, RouteWeights, Router, Scores, StepInput, fuse};
use tensor::{Tensor, WeightFormat};
use testing::tiny::{in_groups, random_weights};
use testing::{ErrorAnalysis, Rng, Sample};

use crate::mixtures::{KV, Mixture, SOFTMAX, VOCAB, mixture, mixture_plan};

/// Steps of one row and of several, within the bounds of the error analysis; twice the same bits.
fn check(dialect: SimDialect, order: ThreadOrder, batch_invariant: bool, plan: Plan, weights: Vec<Tensor>, what: &str) {
    check_steps(&[1, 5, 1], dialect, order, batch_invariant, plan, weights, what);
}

/// The same of steps of so many rows.
fn check_steps(
    steps: &[usize],
    dialect: SimDialect,
    order: ThreadOrder,
    batch_invariant: bool,
    plan: Plan,
    weights: Vec<Tensor>,
    what: &str,
) {
    let options = GpuOptions { batch_invariant, ..GpuOptions::default() };
    let backend = GpuBackend::simulator_of(dialect, order, 1 << 30, options);
    let textbook = Arc::new(plan);
    let fused = Arc::new(fuse((*textbook).clone()));
    assert!(fused.ops.iter().any(|op| op.name() == "moe_down"), "{fused}");
    let mut analysis = ErrorAnalysis::new(textbook.clone(), &weights, KV, backend.claims().activations);
    for plan in [textbook, fused] {
        let mut executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
        // Of other tokens, and of one.
        for (rows, vocab) in steps.iter().flat_map(|&rows| [(rows, VOCAB), (rows, 1)]) {
            let mut input = StepInput::default();
            let table: Vec<u32> = (0..KV.num_blocks as u32).rev().collect();
            input.push_sequence(&Rng::new(rows as u64 + 7).tokens(rows, vocab), 0, &table);
            input.output_rows.extend(0..rows as u32);
            let bound = analysis.run(&input);
            let found = executable.replay(&input).unwrap().to_vec();
            let (at, share) = bound.worst(&found).unwrap();
            assert!(
                share <= 1.0,
                "{what}, {dialect:?}, {order:?}, {batch_invariant}, {rows} rows, [{}]: {at}: {share} of its bound",
                plan.ops.iter().map(|op| op.name()).collect::<Vec<_>>().join(" ")
            );
            assert!(executable.replay(&input).unwrap() == found, "{what}: other bits");
        }
    }
}

fn check_in(format: WeightFormat, of: Mixture, correction: bool, dialect: SimDialect, order: ThreadOrder, alike: bool) {
    let plan = mixture_plan(of, correction);
    let weights = random_weights(&plan, &mut Rng::new(3), format);
    check(dialect, order, alike, plan, weights, &format!("{format}, {of:?}"));
}

#[test]
fn experts_in_every_format_are_those_of_the_reference() {
    let formats = GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, GpuOptions::default()).claims().formats;
    for (index, format) in formats.into_iter().enumerate() {
        // Several pieces of a row, rows that share a stage, and more outputs than a group has.
        let block = format.block_len();
        let (hidden, inner) = match block {
            1 => (88, 40),
            block => (block.max(64), block.max(32) * if index % 2 == 0 { 1 } else { 2 }),
        };
        let of = Mixture { bias: index % 3 == 0, ..mixture(hidden, inner, 5, 2 + index % 2) };
        let order = if index % 2 == 0 { ThreadOrder::Forward } else { ThreadOrder::Reverse };
        check_in(format, of, false, Cuda, order, false);
        check_in(format, of, false, if index % 2 == 0 { Metal } else { Cuda }, order, index % 2 != 0);
    }
}

/// Where there are more experts than pairs of a row and an expert, weights are streamed: rows of one expert in one tile or
/// two, rows of weights in pieces or several in a stage, one tile a round or two.
#[test]
fn experts_of_some_rows_are_those_of_the_reference() {
    // A third of the formats a day.
    let sample = Sample::of_today(3);
    let formats = GpuBackend::simulator(ThreadOrder::Forward, 1 << 30, GpuOptions::default()).claims().formats;
    for (index, format) in formats.into_iter().enumerate().filter(|&(index, _)| sample.has(index)) {
        let (hidden, inner) = match (format.block_len(), index % 2) {
            (1, 0) => (88, 1048),
            (1, _) => (1112, 40),
            (block, 0) => (block.max(64), 2048 + block.max(32)),
            (block, _) => (2048 + block.max(64), block.max(32)),
        };
        let of = Mixture { bias: index % 3 == 0, ..mixture(hidden, inner, 14, 2) };
        let order = if index % 2 == 0 { ThreadOrder::Forward } else { ThreadOrder::Reverse };
        let plan = mixture_plan(of, false);
        let weights = random_weights(&plan, &mut Rng::new(3), format);
        check_steps(&[2, 7], Cuda, order, false, plan, weights, &format!("{format}, {of:?}"));
    }
}

/// Logits of routers have a kernel for few rows, and one for many.
#[test]
fn experts_of_many_rows_are_those_of_the_reference() {
    // One of them a day.
    let sample = Sample::of_today(3);
    let cases = [
        (WeightFormat::F32, Cuda, ThreadOrder::Forward),
        (WeightFormat::F16, Metal, ThreadOrder::Reverse),
        (WeightFormat::BF16, Cuda, ThreadOrder::Reverse),
    ];
    for (_, (format, dialect, order)) in cases.into_iter().enumerate().filter(|&(index, _)| sample.has(index)) {
        let plan = mixture_plan(Mixture { bias: true, ..mixture(136, 8, 21, 2) }, false);
        let weights = random_weights(&plan, &mut Rng::new(3), format);
        check_steps(&[261, 11], dialect, order, false, plan, weights, &format!("{format}, many rows"));
    }
}

#[test]
fn experts_in_int4_are_those_of_the_reference() {
    let plan = mixture_plan(mixture(256, 128, 3, 2), false);
    for format in [WeightFormat::Q4_0, WeightFormat::Q5_0] {
        let weights = random_weights(&plan, &mut Rng::new(3), format);
        let weights: Vec<_> = weights.iter().map(|tensor| in_groups(tensor, 128)).collect();
        check(Cuda, ThreadOrder::Forward, false, plan.clone(), weights, &format!("INT4 in {format}"));
    }
}

#[test]
fn experts_of_odd_widths_are_those_of_the_reference() {
    for order in [ThreadOrder::Forward, ThreadOrder::Reverse] {
        check_in(WeightFormat::F16, mixture(37, 11, 6, 4), false, Cuda, order, false);
        check_in(WeightFormat::F32, Mixture { bias: true, ..mixture(33, 9, 3, 3) }, false, Metal, order, false);
    }
    check_in(WeightFormat::F16, mixture(2200, 24, 2, 1), false, Cuda, ThreadOrder::Forward, false);
    check_in(WeightFormat::Q4_0, mixture(2080, 1056, 2, 2), false, Cuda, ThreadOrder::Reverse, false);
}

#[test]
fn clamped_gated_units_are_those_of_the_reference() {
    let of = Mixture { activation: Activation::ClampedSwiglu, bias: true, ..mixture(64, 32, 4, 2) };
    for format in [WeightFormat::MXFP4, WeightFormat::F16] {
        check_in(format, of, false, Cuda, ThreadOrder::Forward, false);
    }
    check_in(WeightFormat::F32, of, false, Metal, ThreadOrder::Reverse, false);
}

#[test]
fn every_router_chooses_as_the_reference() {
    let grouped = |count, chosen, score| Some(ExpertGroups { count, chosen, score });
    let routers = [
        (Router { weights: RouteWeights::Scores, scale: 2.5, ..SOFTMAX }, false),
        (Router { scores: Scores::Logits, weights: RouteWeights::Softmax, top_k: 4, ..SOFTMAX }, false),
        (Router { scores: Scores::Sigmoid, weights: RouteWeights::Normalised { eps: 1e-20 }, ..SOFTMAX }, true),
        (Router { scores: Scores::Sigmoid, groups: grouped(4, 2, GroupScore::SumOfTwo), top_k: 3, ..SOFTMAX }, true),
        (Router { groups: grouped(3, 1, GroupScore::Largest), scale: 16.0, ..SOFTMAX }, false),
        (Router { scores: Scores::Sigmoid, shared: 1, scale: 1.8, ..SOFTMAX }, true),
        (Router { top_k: 3, shared: 2, ..SOFTMAX }, false),
    ];
    for (index, (router, correction)) in routers.into_iter().enumerate() {
        // In one register of a lane, in several, and more than the smaller kernel takes.
        for experts in [12, 60, 132] {
            let of = Mixture { router, ..mixture(40, 8, experts, router.top_k) };
            let (dialect, order) = match (index + experts / 12) % 3 {
                0 => (Cuda, ThreadOrder::Forward),
                1 => (Cuda, ThreadOrder::Reverse),
                _ => (Metal, ThreadOrder::Forward),
            };
            check_in(WeightFormat::F32, of, correction, dialect, order, false);
        }
    }
}
