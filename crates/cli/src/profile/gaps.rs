//! Gaps between the ops of a step: no lane computes, because all of them wait for each other, or because the device has
//! not begun the next op.
//!
//! Where a device times its ops in replays of the step, an op begins where the one ahead ended, so what lies between two is
//! in the op that caused it; such a step has gaps before its first op and after its last one only.

use backend::profile::{Event, Part, StepRecord};
use lab::statistics::Percentiles;
use serde::{Deserialize, Serialize};

/// A stretch of a step in which no lane works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// The op whose work ended last, an index into the ops of the step; `None` ahead of the first.
    pub(super) after: Option<u32>,
    /// The op that works next; `None` behind the last.
    pub(super) before: Option<u32>,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
}

/// The gaps of a step, in order: from when the device had the step until its results were ready.
pub(super) fn gaps(record: &StepRecord) -> Vec<Gap> {
    let mut work: Vec<&Event> = record.events.iter().filter(|event| event.part == Part::Work).collect();
    work.sort_by_key(|event| event.begin_ns);
    let Some(first) = work.first() else { return vec![] };
    let mut found = Vec::new();
    let (mut after, mut idle_from_ns) = (None, record.submitted_ns.min(first.begin_ns));
    let mut add = |after, before, begin_ns, end_ns| {
        if begin_ns < end_ns {
            found.push(Gap { after, before, begin_ns, end_ns });
        }
    };
    for event in work {
        add(after, Some(event.op), idle_from_ns, event.begin_ns);
        if event.end_ns >= idle_from_ns {
            (after, idle_from_ns) = (Some(event.op), event.end_ns);
        }
    }
    add(after, None, idle_from_ns, record.end_ns);
    found
}

/// The gaps of all steps of a phase together. Their time is in the parts that the phase has anyway: in the waits of ops,
/// and at the edges of steps.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct GapRow {
    pub(super) count: usize,
    pub(super) total_ms: f64,
    pub(super) p50_us: f64,
    pub(super) p95_us: f64,
    pub(super) p99_us: f64,
}

impl GapRow {
    /// Of the gaps with these lengths in nanoseconds.
    pub(super) fn of(lengths_ns: &[f64]) -> Self {
        let Percentiles { p50, p95, p99, .. } = Percentiles::of(lengths_ns);
        Self {
            count: lengths_ns.len(),
            total_ms: lengths_ns.iter().sum::<f64>() / 1e6,
            p50_us: p50 / 1e3,
            p95_us: p95 / 1e3,
            p99_us: p99 / 1e3,
        }
    }
}
