//! What a backend records of its steps when it is asked to: which op ran when, on which lane (a thread, a queue), how long
//! it waited, and how much it had to move and compute.
//!
//! The types are every backend's; how time is taken is each one's own. A backend keeps the [`Recorder`] that
//! [`Executable::record`](crate::Executable::record) gives it and, while that is on, pushes one [`StepRecord`] a step. All
//! times count nanoseconds from the recorder's epoch, so that host and devices share one axis. Knows nothing of reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use plan::{KvFormat, Op, Plan, Rows, StepCost, StepInput, StepShape, WeightId};
use tensor::WeightFormat;

pub use plan::Cost;

/// Where records go, and whether any are made. Clones share all of it.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    on: AtomicBool,
    steps: Mutex<Vec<StepRecord>>,
}

impl Recorder {
    /// A recorder whose time begins now. It is off.
    #[expect(clippy::new_without_default, reason = "a default that reads the clock would surprise")]
    pub fn new() -> Self {
        Self(Arc::new(Shared { epoch: Instant::now(), on: AtomicBool::new(false), steps: Mutex::default() }))
    }

    /// What times count from.
    pub fn epoch(&self) -> Instant {
        self.0.epoch
    }

    /// Nanoseconds since the epoch.
    pub fn now_ns(&self) -> u64 {
        nanoseconds_since(self.0.epoch)
    }

    /// Whether the next step is recorded. A backend asks once a step.
    pub fn is_on(&self) -> bool {
        self.0.on.load(Ordering::Relaxed)
    }

    /// Records from the next step on, or no more.
    pub fn set_on(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// Takes a step's record in, and notes when that was.
    pub fn push(&self, step: StepRecord) {
        let step = StepRecord { recorded_ns: self.now_ns(), ..step };
        self.0.steps.lock().unwrap_or_else(PoisonError::into_inner).push(step);
    }

    /// The records since the last call, in the order of the steps.
    pub fn take(&self) -> Vec<StepRecord> {
        std::mem::take(&mut *self.0.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Nanoseconds since `epoch`: 584 years fit.
pub fn nanoseconds_since(epoch: Instant) -> u64 {
    epoch.elapsed().as_nanos() as u64
}

/// One step as a device ran it.
#[derive(Clone, Debug)]
pub struct StepRecord {
    /// The step's own size, not that of the program that ran it.
    pub shape: StepShape,
    /// When the backend was given the step.
    pub begin_ns: u64,
    /// When the device had been given all of it; the begin where nothing is handed to a device.
    pub submitted_ns: u64,
    /// When its results were ready.
    pub end_ns: u64,
    /// Until when the backend repeated parts of the step to find out how long each takes; the end where it timed them as they
    /// ran. No user waits for that, so it is no part of any time.
    pub measured_ns: u64,
    /// When the record was made and handed over, which [`Recorder::push`] notes: since `measured_ns`, that is the recording's
    /// own price.
    pub recorded_ns: u64,
    /// What the program does, in its order.
    pub ops: Arc<[OpInfo]>,
    /// What each of `ops` had to move and compute in this step.
    pub costs: Vec<Cost>,
    /// What runs side by side: `cpu-0`, `cpu-1`.
    pub lanes: Arc<[String]>,
    /// Of all lanes. Those of one lane are in order and do not overlap; what lies between is nobody's.
    pub events: Vec<Event>,
    /// Nanoseconds that each of `ops` takes where none begins before the one ahead has ended; empty where events are of such
    /// a step, or of lanes that wait for each other at barriers.
    pub alone_ns: Vec<u64>,
}

/// What a lane did for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// An index into [`StepRecord::ops`].
    pub op: u32,
    /// An index into [`StepRecord::lanes`].
    pub lane: u16,
    /// Working or waiting.
    pub part: Part,
    /// When it began.
    pub begin_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// How a lane spends time on an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Computing, or moving data.
    Work,
    /// Waiting for other lanes, at a barrier.
    Wait,
}

/// What an op of a program is, and how it is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpInfo {
    /// The op's name, or the backend's own for what the plan does not say.
    pub name: &'static str,
    /// The layer of the model; none before the first and after the last.
    pub layer: Option<usize>,
    /// What its rows are.
    pub rows: Rows,
    /// Features of a row of its first operand; 0 without one.
    pub in_features: usize,
    /// Features of a row of its results, all together.
    pub out_features: usize,
    /// Formats of its matrices, each once.
    pub formats: Vec<WeightFormat>,
    /// Which of several ways the backend chose, in its own words: instruction set, kernel, tiles.
    pub variant: String,
    /// Kernels that a step starts for it; `None` where ops are not started one by one, as on CPUs.
    pub launches: Option<usize>,
}

impl OpInfo {
    /// What op number `index` of `plan` is, with weights in `formats` (by their place in the plan).
    pub fn of(plan: &Plan, index: usize, formats: &dyn Fn(WeightId) -> WeightFormat, variant: String) -> Self {
        let op = &plan.ops[index];
        let mut of_matrices: Vec<_> =
            op.weights().into_iter().filter(|&weight| is_matrix(plan, weight)).map(formats).collect();
        of_matrices.sort_unstable();
        of_matrices.dedup();
        Self {
            name: op.name(),
            layer: layer_of(plan, index),
            rows: rows_of(plan, op),
            in_features: op.inputs().first().map_or(0, |&x| plan.value(x).width),
            out_features: op.outputs().iter().map(|&out| plan.value(out).width).sum(),
            formats: of_matrices,
            variant,
            launches: None,
        }
    }

    /// Work that the plan does not name, such as copies between cache blocks.
    pub fn own(name: &'static str, variant: String) -> Self {
        let rows = Rows::Tokens;
        Self { name, layer: None, rows, in_features: 0, out_features: 0, formats: vec![], variant, launches: None }
    }

    /// `512 × 896 → 1152` in a step of `shape`; empty for work that the plan does not name.
    pub fn shape(&self, shape: StepShape) -> String {
        let rows = self.rows.count(shape);
        match (self.in_features, self.out_features) {
            (0, 0) => String::new(),
            (0, out) => format!("{rows} × {out}"),
            (into, 0) => format!("{rows} × {into}"),
            (into, out) => format!("{rows} × {into} → {out}"),
        }
    }

    /// `q8_0`, or `bf16+q8_0` where they differ; empty without matrices.
    pub fn format(&self) -> String {
        let names: Vec<_> = self.formats.iter().map(|format| format.name().to_ascii_lowercase()).collect();
        names.join("+")
    }
}

/// What every op of a plan has to do, as functions of the step: made once, so that a record takes microseconds.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// In the order of [`Plan::ops`].
    ops: Vec<StepCost>,
    /// Bytes that a token takes in the cache of all layers.
    kv_bytes_per_token: u64,
}

impl CostModel {
    /// Of `plan`, with weights of `weight_bytes` and a cache in `kv_format`.
    pub fn new(plan: &Plan, weight_bytes: &dyn Fn(WeightId) -> u64, kv_format: KvFormat) -> Self {
        let ops = plan.ops.iter().map(|op| op.cost(plan, weight_bytes, kv_format)).collect();
        Self { ops, kv_bytes_per_token: plan.kv_bytes_per_token(kv_format) as u64 }
    }

    /// Of op number `index` in the step of `input`.
    pub fn of_op(&self, index: usize, input: &StepInput) -> Cost {
        self.ops[index].of(input)
    }

    /// Of copying the step's blocks, each of `block_len` tokens: read once, written once.
    pub fn of_copies(&self, block_len: usize, input: &StepInput) -> Cost {
        let tokens = (input.block_copies.len() * block_len) as u64;
        Cost { bytes: 2 * tokens * self.kv_bytes_per_token, flops: 0 }
    }
}

fn is_matrix(plan: &Plan, weight: WeightId) -> bool {
    plan.weight(weight).shape.len() > 1
}

/// The rows that an op computes: of its result, or of its operand where it has none.
fn rows_of(plan: &Plan, op: &Op) -> Rows {
    let value = op.outputs().first().copied().or(op.inputs().first().copied());
    value.map_or(Rows::Tokens, |value| plan.value(value).rows)
}

/// The layer of op number `index`: that of its cache or of its weights' names, or of the op before it where it has neither.
fn layer_of(plan: &Plan, index: usize) -> Option<usize> {
    for op in plan.ops[..=index].iter().rev() {
        if let Some(layer) = op.cache_layer() {
            return Some(layer);
        }
        if let Some(&weight) = op.weights().first() {
            let (_, rest) = plan.weight(weight).name.split_once("layers.")?;
            return rest.split('.').next()?.parse().ok();
        }
    }
    None
}
