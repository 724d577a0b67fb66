//! The simulator's kernels under the address sanitizer: it ends the program at the first access of a kernel, or of the
//! simulator itself, to memory that is not an object's. The suites of `conformance.rs`, other cases of them, and of `goldens.rs`.
//! What it is needed for beside the simulator's own checks is planted in `src/driver/sim_faults.rs`.

use std::sync::Arc;

use backend::Backend;
use backend::conformance::{Part, cases};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{fuse, restrict_outputs};
use testing::{GOLDEN_KV, goldens};

const DIALECTS: [SimDialect; 2] = [SimDialect::Cuda, SimDialect::Metal];

/// Runs every `step`th case of `part`, from another one on in each dialect: few that `conformance.rs` runs in the same.
fn conforms(part: Part, step: usize, firsts: [usize; 2]) {
    for (dialect, first) in DIALECTS.into_iter().zip(firsts) {
        let simulator = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, GpuOptions::default());
        let backends = [&simulator as &dyn Backend];
        let cases = cases(&simulator.claims(), false).into_iter().filter(|case| case.part == part);
        let cases: Vec<_> = cases.skip(first).step_by(step).collect();
        assert!(!cases.is_empty(), "{part}: nothing to run");
        for case in &cases {
            for outcome in case.run(&backends).into_iter().flatten() {
                assert_eq!(outcome.fault, None, "{case} as [{}] in {dialect:?}", outcome.ops.join(" "));
            }
        }
    }
}

#[test]
fn ops_under_the_address_sanitizer() {
    conforms(Part::Ops, 32, [1, 3]);
}

#[test]
fn models_under_the_address_sanitizer() {
    conforms(Part::Models, 24, [1, 4]);
}

#[test]
fn tiny_models_under_the_address_sanitizer() {
    for golden in goldens() {
        for dialect in DIALECTS {
            let (textbook, weights) = golden.model();
            let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
            let backend = GpuBackend::simulator_of(dialect, ThreadOrder::Reverse, 1 << 30, GpuOptions::default());
            if backend.claims().lacking(&plan).is_some() {
                continue;
            }
            let mut executable = backend.load(plan, weights, GOLDEN_KV).expect("a tiny model loads");
            let replay = |step: &_| executable.replay(step).map(<[f32]>::to_vec).map_err(|error| error.to_string());
            golden.check_logits(replay).expect("transformers' logits");
        }
    }
}
