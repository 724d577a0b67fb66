//! Asking for devices that may not be there, or that may be too small.

use std::sync::Arc;

use backend::Backend;
use gpu::{GpuBackend, GpuError, GpuOptions, MetalOptions, SimDialect, ThreadOrder};
use plan::{KvFormat, KvLayout, Plan, StepInput, StepShape, fuse, restrict_outputs};
use tensor::{Tensor, WeightFormat};
use testing::tiny::tiny_model;

#[test]
fn a_machine_without_a_driver_or_a_device_says_so() {
    // Nobody has this many.
    match GpuBackend::cuda(4096, GpuOptions::default()).unwrap_err() {
        GpuError::NoDevice { ordinal: 4096, found } => assert!(found < 4096),
        error @ GpuError::NoDriver => {
            assert!(error.to_string().starts_with("this machine has no NVIDIA driver"), "{error}");
        }
        // A driver without a device to drive does not even begin.
        error => assert!(error.to_string().starts_with("the NVIDIA driver failed: "), "{error}"),
    }
}

#[test]
fn an_apple_gpu_is_refused_where_there_is_none() {
    let error = GpuBackend::metal(4096, GpuOptions::default(), &MetalOptions::default()).unwrap_err();
    match error {
        GpuError::NotMacos => assert_eq!(error.to_string(), "metal: only on macOS, and this is not; use --device cpu"),
        GpuError::NoMetalDevice { ordinal: 4096, .. } | GpuError::Metal { .. } if cfg!(target_os = "macos") => {}
        error => panic!("{error}"),
    }
}

#[test]
fn bytes_come_back_from_a_device_as_they_went() {
    let of = |bytes| GpuBackend::simulator(ThreadOrder::Forward, bytes, GpuOptions::default());
    assert!(of(1 << 30).check_copies().unwrap() > 64 << 20);
    let error = of(1 << 20).check_copies().unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with("device `sim` cannot hold a buffer to copy to of "), "{error}");
    assert!(error.contains(" MiB: 1.0 MiB of its memory are free; use a smaller"), "{error}");
}

/// What a model is said to take is enough for its largest steps, and less is not enough to load it.
#[test]
fn a_model_fits_in_its_footprint() {
    let (textbook, weights) = tiny_model("qwen2", 1, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let kv = KvLayout { format: KvFormat::F16, block_len: 8, num_blocks: 64 };
    for dialect in [SimDialect::Cuda, SimDialect::Metal] {
        fits(dialect, &plan, &weights, kv);
    }
}

fn fits(dialect: SimDialect, plan: &Arc<Plan>, weights: &[Tensor], kv: KvLayout) {
    let largest = StepShape { tokens: 32, sequences: 4, outputs: 4 };
    let of = |bytes| GpuBackend::simulator_of(dialect, ThreadOrder::Forward, bytes, GpuOptions::default());
    let footprint = of(1 << 30).footprint(plan, weights, &kv, largest).unwrap();
    let exact: u64 = weights.iter().map(|weight| weight.bytes().len() as u64).sum();
    assert!(footprint.weights >= exact && footprint.weights < exact + exact / 4, "{footprint:?}, {exact}");
    let read: u64 = of(1 << 30).weight_bytes(weights).into_iter().sum();
    assert!((exact..=footprint.weights).contains(&read), "{read} of {footprint:?}, {exact}");

    let mut executable = of(footprint.total()).load(plan.clone(), weights.to_vec(), kv).unwrap();
    for tokens in [1, 8, 1] {
        let mut input = StepInput::default();
        for sequence in 0..4 {
            let row = input.push_sequence(&vec![1; tokens], 0, &[sequence]);
            input.output_rows.push((row + tokens - 1) as u32);
        }
        executable.replay(&input).unwrap();
    }
    let mut input = StepInput::default();
    input.push_sequence(&[1], 0, &[0]);
    executable.replay(&input).unwrap();

    let Err(error) = of(footprint.weights + footprint.kv_cache - 1).load(plan.clone(), weights.to_vec(), kv) else {
        panic!()
    };
    assert!(error.to_string().contains("sim` cannot hold a KV cache of "), "{error}");
}
