//! The suite that every backend passes, at every instruction set of this machine and on teams of one, two and three.

use backend::conformance::{self, Claims};
use cpu::{CpuBackend, CpuOptions, Isa, IsaLevel};
use plan::KvFormat;
use tensor::WeightFormat;
use testing::tolerance::ActivationRounding;

fn claims() -> Claims {
    Claims {
        formats: WeightFormat::ALL.to_vec(),
        kv_formats: vec![KvFormat::F32, KvFormat::F16],
        block_lens: vec![16, 5],
        activations: |format| match format {
            WeightFormat::Q8_0 => ActivationRounding::Q8Blocks,
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => ActivationRounding::F32,
        },
        bit_exact: true,
    }
}

fn backend(isa: IsaLevel, threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads: Some(threads), isa: Some(isa), pin: false }).unwrap()
}

#[test]
fn every_instruction_set_conforms() {
    for isa in Isa::available() {
        conformance::run(&backend(isa.level(), 1), &claims());
    }
}

/// Ops one by one are the same on a team as on one thread (`determinism.rs`); whole models are run on both.
#[test]
fn teams_conform() {
    for threads in [2, 3] {
        let backend = backend(Isa::best().level(), threads);
        conformance::models(&backend, &claims());
        conformance::caches(&backend, &claims());
        conformance::batches(&backend, &claims());
    }
}
