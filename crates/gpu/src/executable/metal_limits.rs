//! What a device of Metal is asked for: for every op and shape of a step, a kernel that there is in Metal's words, in
//! groups that every Apple GPU can run.

use std::collections::BTreeSet;
use std::sync::Arc;

use plan::{AnyShape, Graph, Heads, KvFormat, KvLayout, Plan, StepShape, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::tiny::{MODEL_TYPES, random_weights, tiny_int4_model, tiny_model};
use testing::{Rng, Sample};

use super::GpuExecutable;
use crate::driver::sim::{SimDialect, SimDriver, SimFaults, ThreadOrder, kernel_of};
use crate::forced::ForcedVariants;
use crate::formats::DeviceFormat;
use crate::kernels::{choose, sample};
use crate::ops;
use crate::step_input::StepRows;
use crate::target::Target;

const THREADS_MAX: u32 = 1024;
const GROUP_BYTES_MAX: u64 = 32 << 10;

/// Kernels of every launch of `plan` in steps of all sizes, each held to the limits.
fn kernels(plan: &Arc<Plan>, weights: &[Tensor], format: KvFormat, batch_invariant: bool) -> BTreeSet<&'static str> {
    let target = Target::metal(3, GROUP_BYTES_MAX as u32, batch_invariant, ForcedVariants::NONE);
    let driver = SimDriver::new(SimDialect::Metal, ThreadOrder::Forward, 1 << 30, SimFaults::default());
    let kv = KvLayout { format, block_len: 16, num_blocks: 32 };
    let device = "metal-sim".to_owned();
    let mut executable =
        GpuExecutable::load(device, Box::new(driver), target, plan.clone(), weights, kv, &mut |_, _| ()).unwrap();
    let mut found = BTreeSet::new();
    for tokens in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        for sequences in [1, 4] {
            let shape = StepShape { tokens, sequences: sequences.min(tokens), outputs: sequences.min(tokens) };
            let program =
                ops::lay_out(&executable.loaded(super::ResultKind::Logits), shape.bucket(), StepRows::of_shape(shape));
            executable.reserve(&program).unwrap();
            let (arena, step, messages) = (executable.memory.arena, executable.memory.step, executable.memory.messages);
            assert_eq!(messages.bytes, 0, "groups of Metal tell each other nothing");
            let loaded = executable.loaded(super::ResultKind::Logits);
            let ops = ops::lower(&loaded, &program, [arena, step, messages], false);
            let choices = choose::launches(&loaded, &program, arena, step);
            let drawn = sample::launch(&loaded, &program, arena, step);
            let launches = ops.into_iter().flat_map(|op| op.launches).chain(choices).chain([drawn]);
            for launch in launches {
                let name = launch.kernel;
                let Some((threads, own_bytes)) = kernel_of(SimDialect::Metal, name) else {
                    panic!("{shape:?}: there is no kernel `{name}` in Metal's words")
                };
                assert!(launch.threads == threads && threads <= THREADS_MAX, "{name}: {threads} threads");
                let bytes = own_bytes + u64::from(launch.group_bytes);
                assert!(bytes <= GROUP_BYTES_MAX, "{name}: {bytes} bytes of group memory");
                assert!(launch.group_bytes.is_multiple_of(16), "{name}: whole 16s");
                assert!(launch.cluster == 1 && launch.maps.is_empty(), "{name}: nothing of CUDA's alone");
                found.insert(name);
            }
        }
    }
    found
}

fn heads_plan(head_dim: usize) -> Arc<Plan> {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim, scale: 0.1, window: None, sinks: None };
    let plan = Graph::build("attention", 512, &AnyShape, |g, w| {
        let q = g.embed(w.get("embed_q", [16, 4 * head_dim])?, 4 * head_dim);
        let k = g.embed(w.get("embed_k", [16, 2 * head_dim])?, 2 * head_dim);
        let v = g.embed(w.get("embed_v", [16, 2 * head_dim])?, 2 * head_dim);
        let o = g.attention(q, k, v, heads);
        Ok::<_, plan::BuildError>(g.select_outputs(o))
    });
    Arc::new(plan.unwrap())
}

/// Each day takes one in three of all models in all formats, because packing their weights takes longer than all else.
#[test]
fn every_launch_keeps_to_what_metal_can_run() {
    let (sample, mut index) = (Sample::of_today(3), 0);
    let mut is_of_today = || {
        index += 1;
        sample.has(index)
    };
    let mut found = BTreeSet::new();
    for model_type in MODEL_TYPES {
        let plain = WeightFormat::ALL.map(|format| (format, false));
        let int4 = [WeightFormat::Q4_0, WeightFormat::Q5_0].map(|format| (format, true));
        for (format, is_int4) in plain.into_iter().chain(int4).filter(|_| is_of_today()) {
            let (textbook, weights) =
                if is_int4 { tiny_int4_model(model_type, 1, format) } else { tiny_model(model_type, 1, format) };
            let fused = Arc::new(fuse(restrict_outputs((*textbook).clone())));
            for batch_invariant in [false, true] {
                for kv in [KvFormat::F32, KvFormat::F16] {
                    found.extend(kernels(&fused, &weights, kv, batch_invariant));
                    found.extend(kernels(&textbook, &weights, kv, batch_invariant));
                }
            }
        }
    }
    for head_dim in [64, 96, 128] {
        let plan = heads_plan(head_dim);
        let weights = random_weights(&plan, &mut Rng::new(1), WeightFormat::F32);
        found.extend(kernels(&plan, &weights, KvFormat::F16, false));
    }
    for format in DeviceFormat::ALL {
        for kernel in ["norm_linear_#_m1", "linear_#_m4", "gemm_simdgroup_#_t32", "gemm_simdgroup_glu_#_t64"] {
            let kernel = kernel.replace('#', format.name());
            assert!(found.contains(&*kernel), "no launch of {kernel}: {found:?}");
        }
    }
    for kernel in
        ["attention_prefill_d64", "attention_prefill_d128", "attention_f16", "attention_f32_loop", "sample_f32"]
    {
        assert!(found.contains(kernel), "no launch of {kernel}: {found:?}");
    }
}

/// With less group memory than the tiles take, something else computes the same.
#[test]
fn kernels_that_do_not_fit_are_not_chosen() {
    use crate::kernels::attention_tiles;
    use crate::kernels::linear::{self, LinearKind};
    let target = |bytes| Target::metal(10, bytes, false, ForcedVariants::NONE);
    let of = |bytes| linear::variant(&target(bytes), DeviceFormat::F16, 100, LinearKind::Plain).kernel;
    assert_eq!((of(32 << 10), of(16 << 10)), ("gemm_simdgroup_f16_t64", "linear_f16_m4"));
    let kv = KvLayout { format: KvFormat::F16, block_len: 32, num_blocks: 8 };
    let of = |bytes, dim| attention_tiles::variant(&target(bytes), &kv, dim).map(|variant| variant.kernel);
    assert_eq!(of(32 << 10, 128), Some("attention_prefill_d128"));
    assert_eq!((of(30 << 10, 128), of(30 << 10, 64)), (None, Some("attention_prefill_d64")));
    let bytes = |kernel| kernel_of(SimDialect::Metal, kernel).unwrap();
    // As `gemm_simdgroup` and `attention_prefill` count them.
    assert_eq!(bytes("gemm_simdgroup_q8_0_t64"), (128, 2 * 128 * 20 * 4));
    assert_eq!(bytes("attention_prefill_d128"), (256, 31_744));
    assert_eq!(bytes("attention_prefill_d64"), (256, 23_552));
}
