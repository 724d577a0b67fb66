//! Every recorded event as a file in Chrome's trace format, which ui.perfetto.dev and chrome://tracing show: a track for the
//! host, one for each lane, and one for the gaps in which no lane works; times in microseconds.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use backend::profile::{Event, Part, StepRecord};
use serde_json::{Value, json};

use super::gaps::{Gap, gaps};
use super::run::{Measured, Step};
use crate::files::Begun;

/// The one process of the trace.
const PROCESS: u32 = 1;
/// The host's track; lanes follow.
const HOST: usize = 0;

/// A file to be written when all has been measured.
pub(super) struct TraceFile<'a> {
    path: &'a Path,
    file: Begun,
}

impl<'a> TraceFile<'a> {
    /// Begins the file at `path`, which what cannot be written tells before minutes are measured.
    pub(super) fn create(path: &'a Path) -> Result<Self> {
        let file = Begun::create(path).with_context(|| format!("cannot write the trace `{}`", path.display()))?;
        Ok(Self { path, file })
    }

    /// Writes the trace of all phases.
    pub(super) fn write(mut self, title: &str, phases: &[Measured]) -> Result<()> {
        let mut out = Writer::new(BufWriter::new(self.file.file()));
        write_events(&mut out, title, phases)
            .and_then(|()| out.finish())
            .and_then(|()| self.file.finish())
            .with_context(|| format!("cannot write the trace `{}`", self.path.display()))
    }
}

fn write_events<W: Write>(out: &mut Writer<W>, title: &str, phases: &[Measured]) -> std::io::Result<()> {
    out.event(&name_of("process_name", HOST, title))?;
    out.event(&name_of("thread_name", HOST, "host"))?;
    let trials = || phases.iter().flat_map(|phase| phase.recorded.iter().map(move |trial| (phase, trial)));
    let lanes = trials().flat_map(|(_, trial)| &trial.steps).map(|step| &step.record.lanes).max_by_key(|l| l.len());
    for (lane, name) in lanes.into_iter().flat_map(|lanes| lanes.iter()).enumerate() {
        out.event(&name_of("thread_name", track(lane), name))?;
    }
    let gap_track = track(lanes.map_or(0, |lanes| lanes.len()));
    out.event(&name_of("thread_name", gap_track, "gaps"))?;
    for (repetition, (phase, trial)) in trials().enumerate() {
        let args = json!({"run": repetition, "depth": trial.depth});
        out.event(&span(&phase.phase.name(), "run", HOST, (trial.begin_ns, trial.end_ns), args))?;
        for (index, step) in trial.steps.iter().enumerate() {
            write_host(out, index, step)?;
            for event in &step.record.events {
                out.event(&of_lane(&step.record, event))?;
            }
            for gap in gaps(&step.record) {
                out.event(&of_gap(&step.record, &gap, gap_track))?;
            }
        }
    }
    Ok(())
}

/// What the host saw of a step.
fn write_host<W: Write>(out: &mut Writer<W>, index: usize, step: &Step) -> std::io::Result<()> {
    let Step { begin_ns, record, sampled_ns, end_ns } = step;
    let args = json!({
        "step": index, "tokens": record.shape.tokens, "sequences": record.shape.sequences,
        "outputs": record.shape.outputs,
    });
    out.event(&span("step", "step", HOST, (*begin_ns, *end_ns), args))?;
    let parts = [
        ("schedule", *begin_ns, record.begin_ns),
        ("submit", record.begin_ns, record.submitted_ns),
        ("device", record.submitted_ns, record.end_ns),
        ("measure parts", record.end_ns, record.measured_ns),
        ("record", record.measured_ns, record.recorded_ns),
        ("sample", record.recorded_ns, *sampled_ns),
        ("decode text", *sampled_ns, *end_ns),
    ];
    for (name, begin, end) in parts.into_iter().filter(|(_, begin, end)| end > begin) {
        out.event(&span(name, "host", HOST, (begin, end), json!({})))?;
    }
    Ok(())
}

fn of_lane(record: &StepRecord, event: &Event) -> Value {
    let index = event.op as usize;
    let (op, cost) = (&record.ops[index], &record.costs[index]);
    let (times, track) = ((event.begin_ns, event.end_ns), track(event.lane.into()));
    match event.part {
        Part::Work => {
            let args = json!({
                "layer": op.layer, "format": op.format(), "shape": op.shape(record.shape), "variant": op.variant,
                "bytes": cost.bytes, "flops": cost.flops, "alone_us": record.alone_ns.get(index).map(|&ns| ns as f64 / 1e3),
            });
            span(op.name, "op", track, times, args)
        }
        Part::Wait => span("wait", "wait", track, times, json!({"op": op.name, "layer": op.layer})),
    }
}

/// A stretch in which no lane works, with the names of the ops around it.
fn of_gap(record: &StepRecord, gap: &Gap, track: usize) -> Value {
    let name = |op: Option<u32>| op.map(|op| record.ops[op as usize].name);
    let args = json!({"after": name(gap.after), "before": name(gap.before)});
    span("gap", "gap", track, (gap.begin_ns, gap.end_ns), args)
}

fn track(lane: usize) -> usize {
    HOST + 1 + lane
}

/// A complete event.
fn span(name: &str, category: &str, track: usize, (begin_ns, end_ns): (u64, u64), args: Value) -> Value {
    json!({
        "name": name, "cat": category, "ph": "X", "pid": PROCESS, "tid": track,
        "ts": begin_ns as f64 / 1e3, "dur": end_ns.saturating_sub(begin_ns) as f64 / 1e3, "args": args,
    })
}

/// A metadata event: what a process or a track is called.
fn name_of(what: &str, track: usize, name: &str) -> Value {
    json!({"name": what, "ph": "M", "pid": PROCESS, "tid": track, "args": {"name": name}})
}

/// Writes events one by one: a long trace is larger than what one would hold in memory twice.
struct Writer<W: Write> {
    out: W,
    is_first: bool,
}

impl<W: Write> Writer<W> {
    fn new(out: W) -> Self {
        Self { out, is_first: true }
    }

    fn event(&mut self, event: &Value) -> std::io::Result<()> {
        let before = if self.is_first { "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" } else { ",\n" };
        self.is_first = false;
        write!(self.out, "{before}{event}")
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}
