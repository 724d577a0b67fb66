//! Kernels that are forced: taken where they can be, said wherever kernels are said, and as right as those of the table.

use std::sync::Arc;

use backend::Backend;
use gpu::{GpuBackend, GpuError, GpuOptions, SimDialect, ThreadOrder};
use plan::{KvFormat, KvLayout, StepInput, StepShape, fuse, restrict_outputs};
use tensor::WeightFormat;
use testing::tiny_model;

const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 16 };
const ROWS: usize = 4;

fn forcing(forced: &[&str]) -> GpuBackend {
    forcing_in(SimDialect::Cuda, forced)
}

fn forcing_in(dialect: SimDialect, forced: &[&str]) -> GpuBackend {
    let forced = forced.iter().map(|text| text.parse().unwrap()).collect();
    GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, GpuOptions { forced, ..GpuOptions::default() })
}

/// Each op of a step of four rows, once, with its kernels; and the logits of such a step.
fn kernels_and_logits(backend: &GpuBackend) -> (Vec<String>, Vec<f32>) {
    let (textbook, weights) = tiny_model("llama", 3, WeightFormat::F16);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let mut executable = backend.load(plan, weights, KV).unwrap();
    let shape = StepShape { tokens: ROWS, sequences: ROWS, outputs: ROWS };
    let infos = executable.variants(shape).unwrap();
    let mut kernels: Vec<_> = infos.iter().map(|info| format!("{}: {}", info.name, info.variant)).collect();
    kernels.dedup();
    let mut input = StepInput::default();
    for block in 0..ROWS as u32 {
        let row = input.push_sequence(&[block + 5], 0, &[block]);
        input.output_rows.push(row as u32);
    }
    (kernels, executable.replay(&input).unwrap().to_vec())
}

#[test]
fn what_is_forced_computes_the_same_and_is_said() {
    let (table, expected) = kernels_and_logits(&forcing(&[]));
    let of = |kernels: &[String], op: &str| {
        let found = kernels.iter().find(|kernel| kernel.starts_with(&format!("{op}: ")));
        found.unwrap_or_else(|| panic!("no {op} in {kernels:?}")).clone()
    };
    assert!(of(&table, "norm_glu").contains("linear_batch_f16"), "{table:?}");
    for (forced, op, kernel) in [
        ("norm_glu=linear", "norm_glu", "rms_norm_f32 + linear_glu_f16_m4"),
        ("linear_residual=linear", "linear_residual", "linear_f16_m4"),
        ("norm_glu=gemm_mma", "norm_glu", "operand_rows_f32 + gemm_mma_glu_f16_t16"),
        ("linear_residual=gemm_mma", "linear_residual", "operand_rows_f32 + gemm_mma_f16_t16"),
        ("attention=attention", "attention", "attention_f16"),
        // It is for one row: with more, all is as ever.
        ("norm_glu=linear_stream", "norm_glu", "linear_batch_f16_t8"),
    ] {
        let backend = forcing(&[forced]);
        assert!(backend.device().description.ends_with(&format!(", forced: {forced}")));
        let (kernels, logits) = kernels_and_logits(&backend);
        assert_eq!(of(&kernels, op), format!("{op}: {kernel}"));
        let others = |kernels: &[String]| {
            let others = kernels.iter().filter(|kernel| !kernel.starts_with(&format!("{op}: ")));
            others.cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&kernels), others(&table), "{forced}");
        let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        for (found, expected) in logits.iter().zip(&expected) {
            assert!((found - expected).abs() <= 0.01 * largest, "{forced}: {found}, not {expected}");
        }
    }
}

#[test]
fn what_the_device_cannot_do_is_refused_with_what_it_can() {
    let refused = |batch_invariant, forced: &str| {
        let forced = [forced.parse().unwrap()].into_iter().collect();
        forcing(&[]).with_options(GpuOptions { batch_invariant, forced, ..GpuOptions::default() }).unwrap_err()
    };
    let error = refused(false, "norm_glu=gemm");
    assert!(matches!(error, GpuError::NoVariant { op: "norm_glu", kernel: "gemm", .. }));
    assert_eq!(
        error.to_string(),
        "`gemm` cannot compute `norm_glu` on `sim` as it is to; what can: linear, linear_stream, linear_batch, gemm_mma"
    );
    assert!(refused(true, "logits=linear_batch").to_string().ends_with("what can: linear, gemm_mma"));
}

#[test]
fn metal_has_a_choice_of_its_own() {
    // Rows enough for matrices, as one sequence.
    let kernels_and_logits = |forced: &[&str]| {
        let (textbook, weights) = tiny_model("llama", 3, WeightFormat::F16);
        let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
        let mut executable = forcing_in(SimDialect::Metal, forced).load(plan, weights, KV).unwrap();
        let infos = executable.variants(StepShape { tokens: 16, sequences: 1, outputs: 1 }).unwrap();
        let mut input = StepInput::default();
        let row = input.push_sequence(&[5; 16], 0, &[1, 3]);
        input.output_rows.push(row as u32 + 15);
        let of = |op| infos.iter().find(|info| info.name == op).map(|info| info.variant.clone());
        (of("norm_glu"), of("linear_residual"), executable.replay(&input).unwrap().to_vec())
    };
    let (glu, residual, expected) = kernels_and_logits(&[]);
    assert_eq!(glu.as_deref(), Some("rms_norm_f32 + gemm_simdgroup_glu_f16_t32"));
    assert_eq!(residual.as_deref(), Some("gemm_simdgroup_f16_t32"));
    let (glu, residual, logits) = kernels_and_logits(&["norm_glu=linear"]);
    assert_eq!(glu.as_deref(), Some("rms_norm_f32 + linear_glu_f16_m4"));
    assert_eq!(residual.as_deref(), Some("gemm_simdgroup_f16_t32"));
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    for (found, expected) in logits.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-5 * largest, "{found}, not {expected}");
    }
    let forced = ["norm_glu=gemm", "attention=attention"].map(|text| text.parse().unwrap()).into_iter().collect();
    let metal = || forcing_in(SimDialect::Metal, &[]);
    assert!(metal().with_options(GpuOptions { forced, ..GpuOptions::default() }).is_ok());
    for (batch_invariant, forced, known) in [
        (false, "norm_glu=linear_batch", "linear, gemm"),
        (false, "logits=linear_stream", "linear, gemm"),
        (false, "attention=attention_f16", "attention"),
        (true, "norm_glu=gemm", "linear"),
    ] {
        let forced = [forced.parse().unwrap()].into_iter().collect();
        let error = metal()
            .with_options(GpuOptions { batch_invariant, forced, ..GpuOptions::default() })
            .unwrap_err()
            .to_string();
        assert!(error.contains("on `metal-sim`") && error.ends_with(&format!("what can: {known}")), "{error}");
    }
}
