//! What programs consist of, and the records of steps that are timed op by op.
//!
//! A recorded step is not the recorded program: its kernels are launched one after another with a mark of the device's
//! clock between any two ops, so that none begins before the one ahead has ended. It takes longer than a replay, and
//! the sum of its parts is the upper bound of what each op costs in one.

use std::sync::Arc;

use backend::profile::{CostModel, Event, OpInfo, Part, Recorder, StepRecord};
use plan::{Plan, StepInput};

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

/// Where an executable's records go, and what is the same in all of them.
pub(crate) struct Recording {
    recorder: Recorder,
    costs: CostModel,
    lanes: Arc<[String]>,
}

impl Recording {
    pub(crate) fn new(recorder: Recorder, device: &str, costs: CostModel) -> Self {
        Self { recorder, costs, lanes: Arc::new([device.to_owned()]) }
    }

    /// When the step that begins now began; `None` if it is not to be recorded.
    pub(crate) fn begin(&self) -> Option<u64> {
        self.recorder.is_on().then(|| self.recorder.now_ns())
    }

    pub(crate) fn is_on(&self) -> bool {
        self.recorder.is_on()
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.recorder.now_ns()
    }

    /// Hands over the record of a step that began at `begin_ns`. The device's clock showed `edges_ns` at the begin of
    /// each op and at the end of the last, which was at `done_ns` by the host's.
    pub(crate) fn end(
        &self,
        begin_ns: u64,
        done_ns: u64,
        edges_ns: &[u64],
        ops: &[OpLaunches],
        infos: &Arc<[OpInfo]>,
        input: &StepInput,
    ) {
        let last = edges_ns.last().copied().unwrap_or(0);
        let on_host = |edge: u64| done_ns.saturating_sub(last - edge.min(last)).max(begin_ns);
        let event = |(op, edges): (usize, &[u64])| Event {
            op: op as u32,
            lane: 0,
            part: Part::Work,
            begin_ns: on_host(edges[0]),
            end_ns: on_host(edges[1]),
        };
        let end_ns = self.recorder.now_ns();
        self.recorder.push(StepRecord {
            shape: input.shape(),
            begin_ns,
            end_ns,
            recorded_ns: end_ns,
            ops: infos.clone(),
            costs: ops.iter().map(|op| self.costs.of_op(op.op, input)).collect(),
            lanes: self.lanes.clone(),
            events: edges_ns.windows(2).enumerate().map(event).collect(),
        });
    }
}

/// What the ops of `plan` have to do with these weights.
pub(crate) fn costs(plan: &Plan, weights: &DeviceWeights, kv: plan::KvFormat) -> CostModel {
    CostModel::new(plan, &|weight| weights.get(weight).bytes(), kv)
}
