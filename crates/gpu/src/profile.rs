//! What programs consist of, and the records of steps.
//!
//! A recorded step is the recorded program, submitted as any other: no mark lies between its kernels, because a mark would
//! keep a kernel from beginning before the one ahead has ended. What each op takes is measured behind the step: the
//! program is replayed up to each of its ops, and an op takes what a replay takes longer with it. Every
//! [`MEASURED_EVERY`]th step is measured; those between have the times of the one before, because a position more changes
//! nothing that can be seen. Beside it the ops are timed one after another. Where a driver cannot time replays, that is all
//! there is: the sum of its parts is the upper bound of what each op costs in a replay.

use std::sync::Arc;

use backend::profile::{Cost, CostModel, Event, OpInfo, Part, Recorder, StepRecord};
use plan::{Plan, StepInput, StepShape};

use crate::driver::{Driver, DriverError};
use crate::launch::Launch;
use crate::ops::OpLaunches;
use crate::weights::DeviceWeights;

/// What a program's ops are and which kernels compute them; an op without launches is computed by those of the op
/// ahead.
pub(crate) fn infos(plan: &Plan, weights: &DeviceWeights, ops: &[OpLaunches]) -> Vec<OpInfo> {
    let format = |weight| weights.get(weight).format.weight_format();
    let mut ahead = String::new();
    let mut variant = |op: &OpLaunches| {
        if op.launches.is_empty() {
            return format!("in {ahead}");
        }
        let mut kernels: Vec<_> = op.launches.iter().map(|launch| launch.kernel).collect();
        kernels.dedup();
        ahead = kernels.join(" + ");
        ahead.clone()
    };
    let mut info = |op: &OpLaunches| {
        let launches = Some(op.launches.len());
        OpInfo { launches, ..OpInfo::of(plan, op.op, &format, variant(op)) }
    };
    ops.iter().map(&mut info).collect()
}

/// Of so many steps of a program one is measured.
const MEASURED_EVERY: usize = 16;

/// What chooses tokens behind the ops of a plan, as an op.
pub(crate) fn choice(launches: &[Launch]) -> OpInfo {
    let kernels: Vec<_> = launches.iter().map(|launch| launch.kernel).collect();
    OpInfo { rows: plan::Rows::Outputs, launches: Some(launches.len()), ..OpInfo::own("choose", kernels.join(" + ")) }
}

/// Where an executable's records go, and what is the same in all of them.
pub(crate) struct Recording {
    recorder: Recorder,
    costs: CostModel,
    lanes: Arc<[String]>,
    /// Of the program that ran last, and how many steps ago that was measured.
    times: Option<(Arc<[OpInfo]>, OpTimes, usize)>,
}

/// How long the ops of a step take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpTimes {
    /// When each op began and the last one ended, by the device's clock: one number more than there are ops.
    pub(crate) edges_ns: Vec<u64>,
    /// What each takes by itself; empty where the edges say so.
    pub(crate) alone_ns: Vec<u64>,
}

/// A step that will leave a record.
pub(crate) struct Watched {
    pub(crate) begin_ns: u64,
    pub(crate) submitted_ns: u64,
    pub(crate) shape: StepShape,
    pub(crate) costs: Vec<Cost>,
}

impl Recording {
    pub(crate) fn new(recorder: Recorder, device: &str, costs: CostModel) -> Self {
        Self { recorder, costs, lanes: Arc::new([device.to_owned()]), times: None }
    }

    /// When the step that begins now began; `None` if it is not to be recorded.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.recorder.is_on().then(|| self.recorder.now_ns())
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.recorder.now_ns()
    }

    /// What is known of a step that began at `begin_ns` and has just been submitted.
    pub(crate) fn watch(&self, begin_ns: u64, ops: &[OpLaunches], input: &StepInput) -> Watched {
        let costs = ops.iter().map(|op| self.costs.of_op(op.op, input)).collect();
        Watched { begin_ns, submitted_ns: self.now_ns(), shape: input.shape(), costs }
    }

    /// Hands over the record of a step whose results were ready at `end_ns` and that ran `ops`; has their times measured by
    /// `measure` if it is their turn.
    pub(crate) fn end(
        &mut self,
        step: Watched,
        end_ns: u64,
        ops: Arc<[OpInfo]>,
        measure: impl FnOnce() -> Result<OpTimes, DriverError>,
    ) -> Result<(), DriverError> {
        let known = self.times.take().filter(|(of, _, age)| *of == ops && *age < MEASURED_EVERY);
        let (_, times, age) = match known {
            Some(known) => known,
            None => (ops.clone(), measure()?, 0),
        };
        let Watched { begin_ns, submitted_ns, shape, mut costs } = step;
        // What ends the program is no op of the plan.
        costs.resize(ops.len(), Cost::default());
        let last = times.edges_ns.last().copied().unwrap_or(0);
        let on_host = |edge: u64| end_ns.saturating_sub(last - edge.min(last)).max(begin_ns);
        let event = |(op, edges): (usize, &[u64])| Event {
            op: op as u32,
            lane: 0,
            part: Part::Work,
            begin_ns: on_host(edges[0]),
            end_ns: on_host(edges[1]),
        };
        let measured_ns = self.recorder.now_ns();
        self.recorder.push(StepRecord {
            shape,
            begin_ns,
            submitted_ns,
            end_ns,
            measured_ns,
            recorded_ns: measured_ns,
            ops: ops.clone(),
            costs,
            lanes: self.lanes.clone(),
            events: times.edges_ns.windows(2).enumerate().map(event).collect(),
            alone_ns: times.alone_ns.clone(),
        });
        self.times = Some((ops, times, age + 1));
        Ok(())
    }
}

/// How long the launches of some ops take, in a replay of all of them and one after another.
pub(crate) fn measure(driver: &mut dyn Driver, ops: &[&[Launch]]) -> Result<OpTimes, DriverError> {
    let in_replay = driver.time_in_replay(ops)?;
    let one_by_one = driver.time(ops)?;
    Ok(match in_replay {
        Some(edges_ns) => {
            OpTimes { edges_ns, alone_ns: one_by_one.windows(2).map(|edges| edges[1] - edges[0]).collect() }
        }
        None => OpTimes { edges_ns: one_by_one, alone_ns: vec![] },
    })
}

/// What the ops of `plan` have to do with these weights.
pub(crate) fn costs(plan: &Plan, weights: &DeviceWeights, kv: plan::KvFormat) -> CostModel {
    CostModel::new(plan, &|weight| weights.get(weight).bytes(), kv)
}
