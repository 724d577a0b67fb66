//! Op cases of the conformance suite, few enough for the address sanitizer, on a team of two at AVX2 and at the best
//! level: whole steps with their threads, cache and packed weights. `.ci/run` has the command. Without the variable
//! that it sets, the test does nothing, because `conformance.rs` runs the same cases.

use backend::Backend;
use backend::conformance::{Part, cases};
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};

/// One case in so many.
const SHARE: usize = 61;

#[test]
fn ops_under_the_address_sanitizer() {
    if !testing::has_address_sanitizer() {
        return;
    }
    let levels = [IsaLevel::Avx2, Isa::best().level()].into_iter().filter(|&level| Isa::new(level).is_some());
    let options = |isa| CpuOptions { threads: Some(2), isa: Some(isa), pin: false, ..CpuOptions::default() };
    let backends: Vec<_> = levels.map(|level| CpuBackend::new(options(level)).expect("an available level")).collect();
    let backends: Vec<_> = backends.iter().map(|backend| backend as &dyn Backend).collect();
    let cases = cases(&backends[0].claims(), false).into_iter().filter(|case| case.part == Part::Ops).step_by(SHARE);
    for case in cases {
        for outcome in case.run(&backends).into_iter().flatten() {
            assert_eq!(outcome.fault, None, "{case} as [{}]", outcome.ops.join(" "));
        }
    }
}
