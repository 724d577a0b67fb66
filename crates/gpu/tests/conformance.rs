//! The suite that every backend passes, on the simulator. It is hundreds of times slower than a GPU, so these are samples:
//! every 16th op case (and every norm of slices and latent rows as wide as heads, since samples had missed faults there, and
//! heads that turn in part), in both thread orders, and models in turn; the same of the text as CUDA sees it and as Metal does.
//! `examples/check_device.rs` runs all of it on a device.

use backend::Backend;
use backend::conformance::{Part, cases};
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

fn is_always_run(name: &str) -> bool {
    ["slices", "rope of the first", "over rows of 48 and 16"].iter().any(|part| name.contains(part))
}

#[test]
fn ops_conform() {
    conforms(Cuda, Part::Ops, &BOTH, false, |index, name| index % 16 == 0 || is_always_run(name));
    conforms(Cuda, Part::Ops, &BOTH[..1], true, |index, _| index % 64 == 8);
}

#[test]
fn ops_of_few_rows_conform() {
    conforms(Cuda, Part::Ops, &BOTH, false, |index, _| index % 16 == 7);
}

/// Cases go through the ten models of each format: a step that has no factor in common with ten meets them all.
const MODELS_APART: usize = 7;

#[test]
fn models_conform() {
    conforms(Cuda, Part::Models, &BOTH[..1], false, |index, _| index % MODELS_APART == 0);
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
    conforms(Metal, Part::Ops, &BOTH, false, |index, name| index % 24 == 8 || is_always_run(name));
    conforms(Metal, Part::Ops, &BOTH[..1], true, |index, _| index % 64 == 8);
}

#[test]
fn ops_of_few_rows_conform_on_metal() {
    conforms(Metal, Part::Ops, &BOTH, false, |index, _| index % 24 == 15);
}

#[test]
fn models_conform_on_metal() {
    conforms(Metal, Part::Models, &BOTH[..1], false, |index, _| index % MODELS_APART == 3);
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
