//! What a recorded step notes: the time at every edge of an instruction and of a barrier, on every worker. What lies
//! between two edges of a worker is one event, so the events of a step add up to its duration by construction, but for
//! its first and last microseconds, when workers wake up and come to rest.
//!
//! A clock reading takes about 25 ns, and an op has two; a step that is not recorded pays a branch an op.

use std::cell::{Cell, RefCell};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use backend::profile::{Cost, Event, OpInfo, Part, Recorder, StepRecord, nanoseconds_since};
use backend::{BackendError, Executable};
use plan::{KvLayout, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

use crate::pool::{Padded, Worker};
use crate::program::{Instruction, Program, Work};
use crate::shared::SharedSlice;
use crate::{CpuExecutable, Isa};

/// Events that an instruction leaves on a worker: work and a wait, and for some the same again at a barrier inside.
const EVENTS_PER_INSTRUCTION: usize = 4;

/// Runs the step that has begun at `begin_ns` and hands over its record.
pub(crate) fn run(
    executable: &mut CpuExecutable,
    begin_ns: u64,
    program: usize,
    input: &StepInput,
) -> Result<(), BackendError> {
    // Out of the executable for as long as that runs; a step that fails leaves no record.
    let mut recording = executable.recording.take().expect("the step's begin was taken from it");
    let lanes = recording.lanes(executable.programs[program].instructions.len());
    let done = executable.run(program, input, |step, worker, scratch| {
        lanes.record(worker, |worker| step.run(worker, scratch));
    });
    if done.is_ok() {
        recording.end(begin_ns, &executable.programs[program], &Facts::of(executable), input);
    }
    executable.recording = Some(recording);
    done
}

/// What the program for steps of `shape`, a bucket, consists of.
pub(crate) fn variants(executable: &mut CpuExecutable, shape: StepShape) -> Result<Vec<OpInfo>, BackendError> {
    executable.compile(shape)?;
    let program = executable.programs.iter().find(|program| program.shape == shape);
    Ok(Facts::of(executable).ops(program.expect("it was just compiled")))
}

/// Where an executable's records go, and the memory to make them in.
pub(crate) struct Recording {
    recorder: Recorder,
    /// Each worker's events of the current step.
    events: Vec<Padded<Vec<Event>>>,
    lanes: Arc<[String]>,
    /// Of each program that has been recorded.
    ops: Vec<(StepShape, Arc<[OpInfo]>)>,
}

impl Recording {
    /// Records of `threads` workers for `recorder`, whenever it is on.
    pub(crate) fn new(recorder: Recorder, threads: usize) -> Self {
        Self {
            recorder,
            events: (0..threads).map(|_| Padded::default()).collect(),
            lanes: (0..threads).map(|index| format!("cpu-{index}")).collect(),
            ops: vec![],
        }
    }

    /// When the step that begins now began; `None` if it is not to be recorded.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.recorder.is_on().then(|| self.recorder.now_ns())
    }

    /// A place for each worker's events of a step.
    fn lanes(&mut self, num_instructions: usize) -> Lanes<'_> {
        for Padded(events) in &mut self.events {
            events.clear();
            events.reserve(EVENTS_PER_INSTRUCTION * num_instructions);
        }
        Lanes { epoch: self.recorder.epoch(), events: SharedSlice::new(&mut self.events) }
    }

    /// Hands over the record of the step that has just ended.
    fn end(&mut self, begin_ns: u64, program: &Program, facts: &Facts<'_>, input: &StepInput) {
        let end_ns = self.recorder.now_ns();
        let ops = match self.ops.iter().find(|(shape, _)| *shape == program.shape) {
            Some((_, ops)) => ops.clone(),
            None => {
                let ops: Arc<[OpInfo]> = facts.ops(program).into();
                self.ops.push((program.shape, ops.clone()));
                ops
            }
        };
        self.recorder.push(StepRecord {
            shape: input.shape(),
            begin_ns,
            end_ns,
            recorded_ns: end_ns,
            costs: program.instructions.iter().map(|instruction| facts.cost(instruction, input)).collect(),
            ops,
            lanes: self.lanes.clone(),
            events: self.events.iter().flat_map(|Padded(events)| events).copied().collect(),
        });
    }
}

/// A place for each worker's events of one step.
struct Lanes<'a> {
    epoch: Instant,
    events: SharedSlice<'a, Padded<Vec<Event>>>,
}

impl Lanes<'_> {
    /// Runs `step` as `worker`, and keeps what it did.
    fn record(&self, worker: &Worker<'_>, step: impl FnOnce(&Worker<'_>)) {
        // SAFETY: each worker has the element of its own index, once a step.
        let own = unsafe { self.events.write(worker.index..worker.index + 1) };
        let lane = Lane {
            epoch: self.epoch,
            index: worker.index as u16,
            instruction: Cell::new(0),
            edge_ns: Cell::new(nanoseconds_since(self.epoch)),
            events: RefCell::new(mem::take(&mut own[0].0)),
        };
        step(&worker.recorded_in(&lane));
        own[0].0 = lane.events.into_inner();
    }
}

/// What one worker notes during a step.
pub(crate) struct Lane {
    epoch: Instant,
    index: u16,
    instruction: Cell<u32>,
    /// When the last event ended and the next one began.
    edge_ns: Cell<u64>,
    events: RefCell<Vec<Event>>,
}

impl Lane {
    /// What follows belongs to this instruction.
    pub(crate) fn begin(&self, instruction: usize) {
        self.instruction.set(instruction as u32);
    }

    /// What was done since the last call was `part` of the instruction.
    pub(crate) fn end_of(&self, part: Part) {
        let end_ns = nanoseconds_since(self.epoch);
        let begin_ns = self.edge_ns.replace(end_ns);
        self.events.borrow_mut().push(Event { op: self.instruction.get(), lane: self.index, part, begin_ns, end_ns });
    }
}

/// What programs are made of, besides themselves.
struct Facts<'a> {
    isa: Isa,
    plan: &'a Plan,
    weights: &'a [Tensor],
    kv: KvLayout,
}

impl<'a> Facts<'a> {
    fn of(executable: &'a CpuExecutable) -> Self {
        let CpuExecutable { isa, plan, weights, kv, .. } = executable;
        Self { isa: *isa, plan, weights, kv: *kv }
    }

    /// What each instruction of `program` is.
    fn ops(&self, program: &Program) -> Vec<OpInfo> {
        let format = |weight: plan::WeightId| -> WeightFormat { self.weights[weight.index()].format() };
        let info = |instruction: &Instruction| {
            let variant = self.variant(&instruction.work);
            match instruction.op {
                Some(op) => OpInfo::of(self.plan, op, &format, variant),
                None => OpInfo::own(own_name(&instruction.work), variant),
            }
        };
        program.instructions.iter().map(info).collect()
    }

    fn cost(&self, instruction: &Instruction, input: &StepInput) -> Cost {
        let Some(op) = instruction.op else {
            let copied = match instruction.work {
                Work::CopyBlocks => input.block_copies.len() * self.kv.block_len,
                _ => 0,
            };
            // Read once, written once.
            return Cost { bytes: (2 * copied * self.plan.kv_bytes_per_token(self.kv.format)) as u64, flops: 0 };
        };
        let weight_bytes = |weight: plan::WeightId| self.weights[weight.index()].bytes().len() as u64;
        Cost::of(self.plan, &self.plan.ops[op], &weight_bytes, self.kv.format, input)
    }

    /// Which of its ways an instruction takes: instruction set first, then what was chosen for the size.
    fn variant(&self, work: &Work) -> String {
        let isa = self.isa;
        match work {
            Work::Project(project) => {
                let variant = project.variant;
                let rows = match project.prepares() {
                    false => "",
                    true if variant.redundant => ", rows prepared by each thread",
                    true => ", rows prepared once",
                };
                let panel = if project.quantized && variant.panel { ", panels" } else { "" };
                format!("{isa}, {} columns a turn{rows}{panel}", variant.chunk_columns)
            }
            Work::Attend(attend) if attend.max_splits > 0 => format!("{isa}, split over the cache where it is long"),
            Work::Attend(_) => format!("{isa}, tile by tile"),
            Work::RmsNorm { .. } | Work::SiluMul { .. } | Work::RopeKvWrite(_) => isa.to_string(),
            Work::CopyBlocks
            | Work::Angles { .. }
            | Work::Embed { .. }
            | Work::Rope { .. }
            | Work::KvWrite { .. }
            | Work::Add { .. }
            | Work::SelectOutputs { .. } => "plain".to_owned(),
        }
    }
}

/// What an instruction is called that is no op of the plan.
fn own_name(work: &Work) -> &'static str {
    match work {
        Work::CopyBlocks => "copy_blocks",
        Work::Angles { .. } => "rope_angles",
        _ => "other",
    }
}
