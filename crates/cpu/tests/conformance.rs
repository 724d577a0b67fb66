//! The suite that every backend passes, at every instruction set of this machine and on teams of one, two and three: a
//! part of it each day, and all of it with `HOTMETAL_TEST_FULL=1`.

use backend::Backend;
use backend::conformance::{self, Part, Sample};
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};

fn backend(isa: IsaLevel, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), pin: false, ..CpuOptions::default() }).unwrap()
}

fn conform(levels: &[IsaLevel], sample: Sample) {
    let backends: Vec<_> = levels.iter().map(|&level| backend(level, 1)).collect();
    let backends: Vec<_> = backends.iter().map(|backend| backend as &dyn Backend).collect();
    conformance::run(&backends, sample);
}

#[test]
fn every_instruction_set_conforms() {
    let levels: Vec<_> = Isa::available().into_iter().map(Isa::level).collect();
    // The first is plain code.
    conform(if levels.len() > 1 { &levels[1..] } else { &levels }, Sample::of_today(15));
}

/// Plain code also gives the bits of the best instruction set. Each day runs one case in 45, because plain code takes
/// longer than all other levels together.
#[test]
fn plain_code_conforms() {
    conform(&[IsaLevel::Scalar, Isa::best().level()], Sample::of_today(45));
}

/// `determinism.rs` compares single ops on a team and on one thread. This test compares whole models on two teams. Each
/// day runs one case in 45, because a team that lacks some of its processors waits most of the time.
#[test]
fn teams_conform() {
    let [two, three] = [2, 3].map(|threads| backend(Isa::best().level(), threads));
    for part in [Part::Models, Part::Caches, Part::Batches] {
        conformance::run_part(&[&two, &three], part, Sample::of_today(45));
    }
}
