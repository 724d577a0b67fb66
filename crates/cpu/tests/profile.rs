//! A recorded step: the same bits, and events that leave out nothing between its begin and its end.

use std::sync::Arc;

use backend::profile::{Part, Recorder, StepRecord};
use backend::{Backend, Executable};
use cpu::{CpuBackend, CpuOptions};
use plan::{KvFormat, KvLayout, StepInput, StepShape, fuse, restrict_outputs};
use tensor::WeightFormat;
use testing::tiny::tiny_model;

fn load(threads: usize) -> Box<dyn Executable> {
    let (plan, weights) = tiny_model("qwen3", 1, WeightFormat::Q8_0);
    let plan = Arc::new(fuse(restrict_outputs((*plan).clone())));
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
    let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 32 };
    backend.load(plan, weights, kv).unwrap()
}

/// A prompt, a token after it, and a token near the end of the cache, where attention is split over threads.
fn steps() -> [StepInput; 3] {
    let table: Vec<u32> = (0..32).collect();
    [(40, 0), (1, 40), (1, 500)].map(|(num_tokens, position)| {
        let mut input = StepInput::default();
        let tokens: Vec<u32> = (0..num_tokens).collect();
        input.push_sequence(&tokens, position, &table);
        input.output_rows.push(num_tokens - 1);
        input
    })
}

fn run(executable: &mut dyn Executable) -> Vec<Vec<f32>> {
    steps().iter().map(|step| executable.replay(step).unwrap().to_vec()).collect()
}

/// Of each lane: in order, without gaps, inside the step, every op once begun never left for an earlier one.
fn check_lanes(step: &StepRecord, threads: usize) {
    assert_eq!(step.lanes.len(), threads);
    for lane in 0..threads {
        let events: Vec<_> = step.events.iter().filter(|event| usize::from(event.lane) == lane).collect();
        let (first, last) = (events.first().expect("it ran"), events.last().expect("it ran"));
        assert!(step.begin_ns <= first.begin_ns && last.end_ns <= step.end_ns);
        assert!(events.windows(2).all(|pair| pair[0].end_ns == pair[1].begin_ns && pair[0].op <= pair[1].op));
        assert!(events.iter().all(|event| event.begin_ns <= event.end_ns));
        let ops: std::collections::BTreeSet<_> = events.iter().map(|event| event.op as usize).collect();
        assert_eq!(ops.len(), step.ops.len(), "every op is recorded");
        assert!(events.iter().any(|event| event.part == Part::Wait), "every barrier is recorded");
    }
}

#[test]
fn events_cover_each_worker_and_change_no_bit() {
    for threads in [1, 2, 3] {
        let mut plain = load(threads);
        let expected = run(&mut *plain);
        let mut executable = load(threads);
        let recorder = Recorder::new();
        executable.record(recorder.clone()).unwrap();
        assert_eq!(run(&mut *executable), expected);
        assert!(recorder.take().is_empty(), "it is off");
        recorder.set_on(true);
        assert_eq!(run(&mut *executable), expected);
        let records = recorder.take();
        assert_eq!(records.len(), 3);
        for (record, step) in records.iter().zip(steps()) {
            assert_eq!(record.shape, step.shape());
            assert_eq!(record.costs.len(), record.ops.len());
            check_lanes(record, threads);
        }
        assert!(records.windows(2).all(|pair| pair[0].end_ns <= pair[1].begin_ns));
        recorder.set_on(false);
        run(&mut *executable);
        assert!(recorder.take().is_empty(), "it is off again");
    }
}

#[test]
fn variants_name_what_records_name() {
    let mut executable = load(2);
    let recorder = Recorder::new();
    executable.record(recorder.clone()).unwrap();
    recorder.set_on(true);
    run(&mut *executable);
    for record in recorder.take() {
        assert_eq!(executable.variants(record.shape).unwrap(), record.ops.to_vec());
    }
    let shape = StepShape { tokens: 1, sequences: 1, outputs: 1 };
    let ops = executable.variants(shape).unwrap();
    assert!(ops.iter().all(|op| !op.variant.is_empty()));
    let head = ops.last().expect("there are ops");
    assert_eq!((head.name, head.format().as_str(), head.layer), ("norm_linear", "q8_0", None));
}

#[test]
fn a_settled_executable_has_its_weights_packed_and_says_so() {
    let shape = StepShape { tokens: 1, sequences: 1, outputs: 1 };
    let head = |executable: &mut dyn Executable| executable.variants(shape).unwrap().last().unwrap().variant.clone();
    let mut executable = load(2);
    assert!(head(&mut *executable).contains(", rows of the file, "), "{}", head(&mut *executable));
    let expected = run(&mut *load(2));
    executable.settle().unwrap();
    assert!(head(&mut *executable).contains(", packed panels, "), "{}", head(&mut *executable));
    assert_eq!(run(&mut *executable), expected);
}
