//! What a recorded step notes: the time at every edge of an instruction and of a barrier, on every worker. What lies
//! between two edges of a worker is one event, so the events of a step add up to its duration by construction, but for
//! its first and last microseconds, when workers wake up and come to rest.
//!
//! A clock reading takes about 25 ns, and an op has two; a step that is not recorded pays a branch an op.

use std::cell::{Cell, RefCell};
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use backend::profile::{Cost, CostModel, Event, OpInfo, Part, Recorder, StepRecord, nanoseconds_since};
use backend::{BackendError, Executable};
use plan::{KvLayout, Plan, StepInput, StepShape};
use tensor::{Tensor, WeightFormat};

use crate::packed::Packed;
use crate::pool::{Padded, Worker};
use crate::program::{End, Instruction, Program};
use crate::shared::SharedSlice;
use crate::{CpuExecutable, Isa};

/// Events that an instruction leaves on a worker: work and a wait, and for some the same again at one or two barriers
/// inside.
const EVENTS_PER_INSTRUCTION: usize = 6;

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
    let program = executable.programs.iter().find(|program| (program.end, program.shape) == (End::Logits, shape));
    Ok(Facts::of(executable).ops(program.expect("it was just compiled")))
}

/// Where an executable's records go, and the memory to make them in.
pub(crate) struct Recording {
    recorder: Recorder,
    /// Each worker's events of the current step.
    events: Vec<Padded<Vec<Event>>>,
    lanes: Arc<[String]>,
    /// Of the executable's plan; none before the first record.
    costs: Option<CostModel>,
    ops: Vec<Known>,
}

/// What a program does that has been recorded.
struct Known {
    shape: StepShape,
    /// Weights in panels at that time: with more of them it has other kernels.
    num_packed: usize,
    ops: Arc<[OpInfo]>,
}

impl Recording {
    /// Records of `threads` workers for `recorder`, whenever it is on.
    pub(crate) fn new(recorder: Recorder, threads: usize) -> Self {
        Self {
            recorder,
            events: (0..threads).map(|_| Padded::default()).collect(),
            lanes: (0..threads).map(|index| format!("cpu-{index}")).collect(),
            costs: None,
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
        let (shape, num_packed) = (program.shape, facts.packed.iter().flatten().count());
        let ops = match self.ops.iter().find(|known| (known.shape, known.num_packed) == (shape, num_packed)) {
            Some(known) => known.ops.clone(),
            None => {
                let ops: Arc<[OpInfo]> = facts.ops(program).into();
                self.ops.push(Known { shape, num_packed, ops: ops.clone() });
                ops
            }
        };
        let costs = self.costs.get_or_insert_with(|| facts.costs());
        self.recorder.push(StepRecord {
            shape: input.shape(),
            begin_ns,
            submitted_ns: begin_ns,
            end_ns,
            measured_ns: end_ns,
            recorded_ns: end_ns,
            costs: program.instructions.iter().map(|instruction| cost(instruction, costs, facts.kv, input)).collect(),
            ops,
            lanes: self.lanes.clone(),
            events: self.events.iter().flat_map(|Padded(events)| events).copied().collect(),
            alone_ns: vec![],
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
pub(crate) struct Facts<'a> {
    pub(crate) isa: Isa,
    plan: &'a Plan,
    pub(crate) weights: &'a [Tensor],
    /// Those of them that are in panels.
    pub(crate) packed: &'a [Option<Packed>],
    kv: KvLayout,
}

impl<'a> Facts<'a> {
    fn of(executable: &'a CpuExecutable) -> Self {
        let CpuExecutable { isa, plan, weights, repacking, kv, .. } = executable;
        Self { isa: *isa, plan, weights, packed: repacking.packed(), kv: *kv }
    }

    /// What each instruction of `program` is.
    fn ops(&self, program: &Program) -> Vec<OpInfo> {
        let format = |weight: plan::WeightId| -> WeightFormat { self.weights[weight.index()].format() };
        let info = |instruction: &Instruction| {
            let variant = instruction.work.variant(self);
            match instruction.op {
                Some(op) => OpInfo::of(self.plan, op, &format, variant),
                None => OpInfo::own(instruction.work.own_name(), variant),
            }
        };
        program.instructions.iter().map(info).collect()
    }

    fn costs(&self) -> CostModel {
        let weight_bytes = |weight: plan::WeightId| self.weights[weight.index()].bytes().len() as u64;
        CostModel::new(self.plan, &weight_bytes, self.kv.format)
    }
}

fn cost(instruction: &Instruction, costs: &CostModel, kv: KvLayout, input: &StepInput) -> Cost {
    instruction.op.map_or_else(|| instruction.work.own_cost(costs, kv, input), |op| costs.of_op(op, input))
}
