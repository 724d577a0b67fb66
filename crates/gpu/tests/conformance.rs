//! The suite that every backend passes, on the simulator. It is hundreds of times slower than a GPU, so each day runs other
//! samples: of op cases in both thread orders, and of models; the same of the text as CUDA sees it and as Metal does. With
//! `HOTMETAL_TEST_FULL=1` all of them are run, which takes most of an hour; `examples/check_device.rs` runs all of it on a
//! device.

use backend::Backend;
use backend::conformance::{Part, Sample, cases};
use gpu::SimDialect::{Cuda, Metal};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};

/// Runs the cases of `part` that `wanted` picks by their place and name, on simulators of `orders`.
fn conforms(
    dialect: SimDialect,
    part: Part,
    orders: &[ThreadOrder],
    batch_invariant: bool,
    wanted: impl Fn(usize, &str) -> bool,
) {
    let options = GpuOptions { batch_invariant, ..GpuOptions::default() };
    let simulator = |&order| GpuBackend::simulator_of(dialect, order, 1 << 30, options);
    let simulators: Vec<_> = orders.iter().map(simulator).collect();
    let backends: Vec<_> = simulators.iter().map(|simulator| simulator as &dyn Backend).collect();
    let cases = cases(&backends[0].claims(), false).into_iter().filter(|case| case.part == part);
    let cases: Vec<_> = cases.enumerate().filter(|(index, case)| wanted(*index, &case.name)).collect();
    assert!(!cases.is_empty(), "{part}: nothing to run");
    let mut faults = vec![];
    for (_, case) in &cases {
        for outcome in case.run(&backends).into_iter().flatten() {
            faults.extend(outcome.fault.map(|fault| format!("{case} as [{}]: {fault}", outcome.ops.join(" "))));
        }
    }
    assert!(faults.is_empty(), "{part}: {} faults:\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
}

const BOTH: [ThreadOrder; 2] = [ThreadOrder::Forward, ThreadOrder::Reverse];

/// Samples had missed faults in these: norms of slices and of latent rows as wide as heads, and heads that turn in part.
fn is_of_slices(name: &str) -> bool {
    ["slices", "rope of the first", "over rows of 48 and 16"].iter().any(|part| name.contains(part))
}

/// One case in `share` of one half of the op cases, the even or the odd ones, and one in four of those of slices. Each half
/// has a test, so that both processors have one.
fn ops_of_today(half: usize, share: u64) -> impl Fn(usize, &str) -> bool {
    let (sample, slices) = (Sample::of_today(share), Sample::of_today(4));
    move |index, name| index % 2 == half && (sample.has(index / 2) || is_of_slices(name) && slices.has(index / 2))
}

/// One case in `share`.
fn of_today(share: u64) -> impl Fn(usize, &str) -> bool {
    let sample = Sample::of_today(share);
    move |index, _| sample.has(index)
}

/// Cases go through all models of a format and then of the next one: a share that has no factor in common with the number
/// of models meets them all.
const MODELS: u64 = 19;

#[test]
fn ops_conform() {
    conforms(Cuda, Part::Ops, &BOTH, false, ops_of_today(0, 16));
    conforms(Cuda, Part::Ops, &BOTH[..1], true, of_today(128));
}

#[test]
fn other_ops_conform() {
    conforms(Cuda, Part::Ops, &BOTH, false, ops_of_today(1, 16));
}

#[test]
fn models_conform() {
    conforms(Cuda, Part::Models, &BOTH[..1], false, of_today(MODELS));
}

#[test]
fn caches_conform() {
    conforms(Cuda, Part::Caches, &BOTH[..1], false, |index, _| index == 7);
}

#[test]
fn batches_conform() {
    conforms(Cuda, Part::Batches, &BOTH[1..], true, |index, _| index == 3 || index == 15);
    conforms(Cuda, Part::Batches, &BOTH[..1], false, |index, _| index == 3);
}

#[test]
fn refusals_conform() {
    conforms(Cuda, Part::Refusals, &BOTH, false, |_, _| true);
}

#[test]
fn ops_conform_on_metal() {
    conforms(Metal, Part::Ops, &BOTH, false, ops_of_today(0, 24));
    conforms(Metal, Part::Ops, &BOTH[..1], true, of_today(128));
}

#[test]
fn other_ops_conform_on_metal() {
    conforms(Metal, Part::Ops, &BOTH, false, ops_of_today(1, 24));
}

#[test]
fn models_conform_on_metal() {
    conforms(Metal, Part::Models, &BOTH[..1], false, of_today(MODELS));
}

#[test]
fn caches_conform_on_metal() {
    conforms(Metal, Part::Caches, &BOTH[..1], false, |index, _| index == 7);
}

#[test]
fn batches_conform_on_metal() {
    conforms(Metal, Part::Batches, &BOTH[1..], true, |index, _| index == 15);
    conforms(Metal, Part::Batches, &BOTH[..1], false, |index, _| index == 3);
}

#[test]
fn refusals_conform_on_metal() {
    conforms(Metal, Part::Refusals, &BOTH, false, |_, _| true);
}
