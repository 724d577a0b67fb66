//! Projections on matrices of 8 by 8, against the reference: every weight format, with biases, gated units and residuals;
//! sizes that are whole tiles of nothing, rows that fill a tile in part. Results are NaN before each launch, so what no
//! thread writes is found too. Nothing is rounded on the way, so the bounds are those of f32.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend::Backend;
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{Activation, AnyShape, Graph, KvFormat, KvLayout, Plan, StepInput, StepShape, fuse};
use tensor::{ActivationRounding, WeightFormat};
use testing::tiny::random_weights;
use testing::{ErrorAnalysis, Rng};

const VOCAB: usize = 131;
const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 16 };

/// A gated unit of `inner` features with biases, its projection back with a residual, and a head.
fn projections(width: usize, inner: usize) -> Arc<Plan> {
    let plan = Graph::build("projections", 256, &AnyShape, |g, w| {
        let x = g.embed(w.get("embed_tokens.weight", [VOCAB, width])?, width);
        let normed = g.rms_norm(x, w.norm("norm", width, 1e-5)?);
        let gate = g.linear(normed, w.linear("gate", inner, width, true)?, inner);
        let up = g.linear(normed, w.linear("up", inner, width, true)?, inner);
        let unit = g.glu(gate, up, Activation::Silu);
        let back = g.linear(unit, w.linear("down", width, inner, true)?, width);
        let sum = g.add(x, back);
        let normed = g.rms_norm(sum, w.norm("last", width, 1e-5)?);
        let logits = g.linear(normed, w.linear("head", VOCAB, width, false)?, VOCAB);
        Ok::<_, plan::BuildError>(g.select_outputs(logits))
    });
    Arc::new(fuse(plan.unwrap()))
}

/// Holds steps of so many rows to the reference. Returns the kernels that ran.
fn check(format: WeightFormat, (width, inner): (usize, usize), order: ThreadOrder, rows: &[usize]) -> BTreeSet<String> {
    let plan = projections(width, inner);
    let mut rng = Rng::new(width as u64);
    let weights = random_weights(&plan, &mut rng, format);
    let backend = GpuBackend::simulator_of(SimDialect::Metal, order, 1 << 30, GpuOptions::default());
    assert_eq!((backend.claims().activations)(format), ActivationRounding::F32);
    let mut executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
    let mut analysis = ErrorAnalysis::new(plan.clone(), &weights, KV, |_| ActivationRounding::F32);
    let mut kernels = BTreeSet::new();
    let table: Vec<u32> = (0..KV.num_blocks as u32).collect();
    for &rows in rows {
        let mut input = StepInput::default();
        input.push_sequence(&rng.tokens(rows, VOCAB), 0, &table);
        input.output_rows.extend(0..rows as u32);
        let expected = analysis.run(&input);
        let found = executable.replay(&input).unwrap();
        let (at, share) = expected.worst(found).unwrap();
        assert!(share <= 1.0, "{format}, {width} by {inner}, {rows} rows, {order:?}: {at}: {share} of its bound");
        let shape = StepShape { tokens: rows, sequences: 1, outputs: rows };
        let infos = executable.variants(shape).unwrap();
        kernels.extend(infos.iter().flat_map(|info| info.variant.split(" + ").map(str::to_owned)));
    }
    kernels
}

#[test]
fn ragged_projections_are_those_of_the_reference() {
    let rows = [5, 8, 31, 33, 64, 65, 129];
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16] {
        let name = format.name().to_lowercase();
        let kernels = check(format, (37, 101), ThreadOrder::Forward, &rows);
        for kernel in
            ["gemm_simdgroup_#_t32", "gemm_simdgroup_#_t64", "gemm_simdgroup_glu_#_t32", "gemm_simdgroup_glu_#_t64"]
        {
            assert!(kernels.contains(&kernel.replace('#', &name)), "{kernel}, {format}: {kernels:?}");
        }
        // Whole tiles, and one input feature.
        check(format, (64, 128), ThreadOrder::Reverse, &[64, 32]);
        check(format, (1, 17), ThreadOrder::Reverse, &[7, 40]);
    }
}

#[test]
fn blocks_of_codes_are_those_of_the_reference() {
    let kernels = check(WeightFormat::Q8_0, (96, 160), ThreadOrder::Reverse, &[5, 32, 33, 100, 128]);
    for kernel in ["gemm_simdgroup_q8_0_t32", "gemm_simdgroup_glu_q8_0_t64"] {
        assert!(kernels.contains(kernel), "{kernel}: {kernels:?}");
    }
    check(WeightFormat::Q8_0, (32, 32), ThreadOrder::Forward, &[6, 70]);
}

#[test]
fn numbers_beyond_f16_do_not_overflow() {
    // Both operands are f32, so products may be of any size.
    let plan = projections(24, 40);
    let mut weights = random_weights(&plan, &mut Rng::new(3), WeightFormat::F32);
    let place = plan.weights.iter().position(|weight| weight.name == "gate.bias").unwrap();
    weights[place] = tensor::Tensor::from_f32(WeightFormat::F32, vec![40], &[3e5; 40]).unwrap();
    let backend = GpuBackend::simulator_of(SimDialect::Metal, ThreadOrder::Forward, 1 << 30, GpuOptions::default());
    let mut executable = backend.load(plan.clone(), weights.clone(), KV).unwrap();
    let mut analysis = ErrorAnalysis::new(plan.clone(), &weights, KV, |_| ActivationRounding::F32);
    let mut input = StepInput::default();
    input.push_sequence(&Rng::new(4).tokens(20, VOCAB), 0, &[0, 1]);
    input.output_rows.extend(0..20);
    let (at, share) = analysis.run(&input).worst(executable.replay(&input).unwrap()).unwrap();
    assert!(share <= 1.0, "{at}: {share} of its bound");
}
