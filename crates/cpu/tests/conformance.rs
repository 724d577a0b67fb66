//! The suite that every backend passes, at every instruction set of this machine and on teams of one, two and three: a
//! third of it each day, and all of it with `HOTMETAL_TEST_FULL=1`.

use backend::Backend;
use backend::conformance::{self, Part, Sample};
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};

fn backend(isa: IsaLevel, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), pin: false, repack: true }).unwrap()
}

#[test]
fn every_instruction_set_conforms() {
    let backends: Vec<_> = Isa::available().into_iter().map(|isa| backend(isa.level(), 1)).collect();
    let backends: Vec<_> = backends.iter().map(|backend| backend as &(dyn Backend + Sync)).collect();
    conformance::run(&backends, Sample::of_today(3));
}

/// Ops one by one are the same on a team as on one thread (`determinism.rs`); whole models are run on both.
#[test]
fn teams_conform() {
    let [two, three] = [2, 3].map(|threads| backend(Isa::best().level(), threads));
    for part in [Part::Models, Part::Caches, Part::Batches] {
        conformance::run_part(&[&two, &three], part, Sample::of_today(3));
    }
}
