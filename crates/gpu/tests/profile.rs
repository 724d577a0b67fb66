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
    assert!(record.begin_ns <= record.submitted_ns && record.submitted_ns <= record.end_ns);
    assert!(record.end_ns < record.measured_ns && record.measured_ns <= record.recorded_ns);
    assert_eq!(record.alone_ns.len(), record.ops.len());
    assert!(record.events.is_sorted_by_key(|event| event.begin_ns));
    for (index, event) in record.events.iter().enumerate() {
        assert_eq!(event.op as usize, index);
        assert!(record.begin_ns <= event.begin_ns && event.begin_ns <= event.end_ns && event.end_ns <= record.end_ns);
    }
    let head = record.costs.last().unwrap();
    assert!(head.bytes > 0 && head.flops > 0);
}

/// Two steps that choose tokens on the device, with and without a recorder: what is repeated of the first to measure it must
/// leave no trace in the second.
#[test]
fn a_queued_step_that_is_recorded_chooses_the_same_tokens() {
    let steps = |executable: &mut dyn Executable| -> Vec<u32> {
        let mut input = step();
        let mut found = vec![];
        for position in 5..9 {
            executable.enqueue(&input).unwrap();
            let token = executable.collect().unwrap()[0].token_id;
            found.push(token);
            input.clear();
            input.push_sequence(&[token], position, &[2]);
            input.output_rows.push(0);
        }
        found
    };
    for dialect in [SimDialect::Cuda, SimDialect::Metal] {
        let expected = steps(&mut *executable(dialect));
        let mut executable = executable(dialect);
        let recorder = Recorder::new();
        executable.record(recorder.clone()).unwrap();
        recorder.set_on(true);
        assert_eq!(steps(&mut *executable), expected);
        let records = recorder.take();
        assert_eq!(records.len(), 4);
        for record in &records {
            let choice = record.ops.last().unwrap();
            assert_eq!((choice.name, record.events.len()), ("choose", record.ops.len()));
            assert_eq!((record.costs.len(), record.alone_ns.len()), (record.ops.len(), record.ops.len()));
            let last = record.events.last().unwrap();
            assert_eq!(last.end_ns, record.end_ns);
        }
        // The prompt is a program of its own; of the others the first alone is measured.
        let measured = |index: usize| records[index].measured_ns - records[index].end_ns;
        let times = |index: usize| records[index].alone_ns.clone();
        assert!(
            times(1) == times(2) && times(2) == times(3) && times(0) != times(1),
            "{:?}",
            [0, 1, 2, 3].map(measured)
        );
    }
}
