//! What a GPU says of its programs and steps.

use std::sync::Arc;

use backend::profile::Recorder;
use backend::{Backend, Executable};
use gpu::{GpuBackend, GpuOptions, SimDialect, ThreadOrder};
use plan::{KvFormat, KvLayout, StepInput, StepShape, fuse, restrict_outputs};
use tensor::WeightFormat;
use testing::tiny_model;

fn executable(dialect: SimDialect) -> Box<dyn Executable> {
    let (textbook, weights) = tiny_model("llama", 1, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*textbook).clone())));
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 4 };
    let device = GpuBackend::simulator_of(dialect, ThreadOrder::Forward, 1 << 30, GpuOptions::default());
    device.load(plan, weights, kv).unwrap()
}

fn step() -> StepInput {
    let mut input = StepInput::default();
    input.push_sequence(&[3, 1, 4, 1, 5], 0, &[2]);
    input.output_rows.push(4);
    input
}

#[test]
fn every_op_of_a_program_names_its_kernels() {
    let infos = executable(SimDialect::Cuda).variants(StepShape { tokens: 1, sequences: 1, outputs: 1 }).unwrap();
    for info in &infos {
        assert!(!info.variant.is_empty(), "{info:?}");
    }
    assert!(infos.iter().any(|info| info.name == "rope_kv_write" && info.variant == "in norm_linear_rope_stream_q8_0"));
    let head = infos.last().unwrap();
    assert_eq!((head.name, head.format().as_str()), ("norm_linear", "q8_0"));
    assert!(infos.iter().any(|info| info.variant.contains("attention")));
}

#[test]
fn a_recorded_step_gives_the_same_bits_and_the_time_of_every_op() {
    for dialect in [SimDialect::Cuda, SimDialect::Metal] {
        is_recorded(executable(dialect));
    }
}

fn is_recorded(mut executable: Box<dyn Executable>) {
    let expected = executable.replay(&step()).unwrap().to_vec();
    let recorder = Recorder::new();
    executable.record(recorder.clone()).unwrap();
    executable.replay(&step()).unwrap();
    assert!(recorder.take().is_empty(), "a recorder that is off");

    recorder.set_on(true);
    assert_eq!(executable.replay(&step()).unwrap(), expected);
    let records = recorder.take();
    let [record] = &records[..] else { panic!("{} records", records.len()) };
    assert_eq!(record.ops.to_vec(), executable.variants(step().shape()).unwrap());
    assert_eq!(record.events.len(), record.ops.len());
    assert!(record.costs.len() == record.ops.len() && record.lanes.len() == 1 && record.lanes[0].ends_with("sim"));
    assert!(record.events.is_sorted_by_key(|event| event.begin_ns));
    for (index, event) in record.events.iter().enumerate() {
        assert_eq!(event.op as usize, index);
        assert!(record.begin_ns <= event.begin_ns && event.begin_ns <= event.end_ns && event.end_ns <= record.end_ns);
    }
    let head = record.costs.last().unwrap();
    assert!(head.bytes > 0 && head.flops > 0);
}
