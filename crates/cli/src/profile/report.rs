//! A profile as text: tables for people, one object for programs.

use std::borrow::Cow;
use std::fmt::Write;

use backend::profile::OpInfo;
use plan::StepShape;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::gaps::GapRow;
use super::summary::{Bound, OpRow, Peak, Summary};
use crate::bench::{Device, Facts};

/// What `profile -o json` prints. Its figures are those of a program that watches itself: `profiled` keeps them from being
/// compared with any other's.
#[derive(Deserialize, Serialize)]
pub(super) struct Report {
    pub(super) profiled: bool,
    pub(super) device: Device,
    pub(super) run: Facts,
    pub(super) model: String,
    pub(super) format: String,
    pub(super) threads: usize,
    /// How tokens were sampled.
    pub(super) sampling: Cow<'static, str>,
    /// Whether they were decoded to text.
    pub(super) decodes_text: bool,
    pub(super) phases: Vec<Summary>,
}

impl Report {
    pub(super) fn as_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    pub(super) fn as_markdown(&self) -> String {
        let mut out = format!("{} {}, {}\n", self.model, self.format.to_ascii_uppercase(), self.device.description);
        for phase in &self.phases {
            out.push_str(&phase_table(phase, self.decodes_text));
        }
        out.push_str(if self.phases.iter().any(is_replayed) {
            "\nAn op takes what it adds to a replay of the step, which was measured behind the step; alone, it begins once the \
             op ahead has ended."
        } else {
            "\nAn op takes what its threads take on average, their waits included."
        });
        out.push_str(
            " GB/s count weights and cache, each byte once.\nThese figures are of a program that watches itself: `hotmetal \
             bench` measures how fast it is alone.\n",
        );
        out
    }
}

/// Whether ops were measured in replays of the step, and once more one after another.
fn is_replayed(phase: &Summary) -> bool {
    phase.ops.iter().any(|op| op.alone_us.is_some())
}

fn phase_table(phase: &Summary, decodes_text: bool) -> String {
    let is_replayed = is_replayed(phase);
    let plural = |n: usize| if n == 1 { "" } else { "s" };
    let mut out = format!(
        "\n### {} @ d{}: {:.1} ms in {} step{}, {} time{} recorded\n\n\
         | op | shape | format | count | total ms | mean µs | p50 µs | p95 µs | p99 µs | {} | GB/s | GFLOP/s | of roofline \
         | bound by | of wall |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |\n",
        phase.test,
        phase.depth,
        phase.wall_ms,
        phase.steps,
        plural(phase.steps),
        phase.repetitions,
        plural(phase.repetitions),
        if is_replayed { "alone µs" } else { "waiting" },
    );
    for op in &phase.ops {
        out.push_str(&op_line(op, is_replayed));
    }
    for part in phase.rest.iter().filter(|part| decodes_text || part.part != "decode text") {
        let (total, mean, share) = (part.total_ms, part.mean_us, percent(part.wall_share));
        writeln!(out, "| *{}* | | | {} | {total:.2} | {mean:.1} | | | | | | | | | {share} |", part.part, phase.steps)
            .expect("a string takes any text");
    }
    let waiting = phase.ops.iter().map(|op| op.wait_ms).sum::<f64>() / phase.wall_ms;
    writeln!(
        out,
        "| **sum** | | | | {:.2} | | | | | {} | {:.1} | {:.1} | {} | | {} |\n",
        phase.wall_ms * phase.parts_share,
        if is_replayed { String::new() } else { percent(waiting) },
        phase.bandwidth_gb_s,
        phase.flops_per_s / 1e9,
        percent(phase.roofline_share),
        percent(phase.parts_share),
    )
    .expect("a string takes any text");
    for thread in &phase.threads {
        let share = |ms: f64| percent(ms / phase.wall_ms);
        let (work, wait, idle) = (share(thread.work_ms), share(thread.wait_ms), share(thread.idle_ms));
        let waits = if is_replayed { String::new() } else { format!("{wait} waiting at barriers, ") };
        writeln!(out, "- {}: {work} working, {waits}{idle} outside ops", thread.thread)
            .expect("a string takes any text");
    }
    if let Some(GapRow { count, total_ms, p50_us, p95_us, p99_us }) = phase.gaps {
        writeln!(
            out,
            "- gaps in which no thread or device computed: {count}, {total_ms:.2} ms ({} of wall), p50 {p50_us:.1} µs, p95 \
             {p95_us:.1} µs, p99 {p99_us:.1} µs; the waits of ops and the edges of steps have this time",
            percent(total_ms / phase.wall_ms),
        )
        .expect("a string takes any text");
    }
    if is_replayed {
        let alone_ms: f64 = phase.ops.iter().map(|op| op.alone_us.unwrap_or(0.0) * op.count as f64 / 1e3).sum();
        let replayed_ms: f64 = phase.ops.iter().map(|op| op.total_ms).sum();
        let (a_step, steps) = (replayed_ms / phase.steps as f64, phase.steps as f64);
        writeln!(
            out,
            "- the ops of a step: {a_step:.3} ms in a replay, {:.3} ms one after another ({:.2} ×)",
            alone_ms / steps,
            alone_ms / replayed_ms,
        )
        .expect("a string takes any text");
    }
    let ceiling = &phase.ceiling;
    write!(out, "- measured beside it: {:.1} GB/s read", ceiling.read_bandwidth_gb_s).expect("a string takes any text");
    for Peak { format, flops_per_s, instruction } in &ceiling.peaks {
        write!(out, ", {:.0} GFLOP/s in {format} ({instruction})", flops_per_s / 1e9).expect("a string takes any text");
    }
    let recording = &phase.recording;
    writeln!(
        out,
        "\n- recording: {:.0} clock readings of {:.0} ns for each step and thread, {} of wall; {:.2} tok/s recorded, \
         {:.2} tok/s in the runs between",
        recording.clock_readings,
        recording.clock_reading_ns,
        percent(recording.wall_share),
        phase.tokens_per_s,
        phase.unrecorded_tokens_per_s,
    )
    .expect("a string takes any text");
    out
}

fn op_line(op: &OpRow, is_replayed: bool) -> String {
    let number =
        |value: Option<f64>, scale: f64| value.map_or("–".to_owned(), |value| format!("{:.1}", value / scale));
    let cells = [
        op.op.to_string(),
        op.shape.clone(),
        op.format.clone(),
        op.count.to_string(),
        format!("{:.2}", op.total_ms),
        format!("{:.1}", op.mean_us),
        number(op.p50_us, 1.0),
        format!("{:.1}", op.p95_us),
        number(op.p99_us, 1.0),
        match op.alone_us {
            Some(alone_us) => format!("{alone_us:.1}"),
            None if is_replayed => String::new(),
            None => percent(op.wait_ms / op.total_ms.max(f64::MIN_POSITIVE)),
        },
        number(op.bandwidth_gb_s, 1.0),
        number(op.flops_per_s, 1e9),
        op.roofline_share.map_or("–".to_owned(), percent),
        op.bound_by.map_or("–", Bound::name).to_owned(),
        percent(op.wall_share),
    ];
    format!("| {} |\n", cells.join(" | "))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// The kernels of the programs for steps of some shapes.
#[derive(Serialize)]
pub(super) struct VariantsReport {
    pub(super) device: Device,
    pub(super) model: String,
    pub(super) format: String,
    pub(super) threads: usize,
    pub(super) programs: Vec<ProgramRow>,
}

/// The kernels of one program.
#[derive(Serialize)]
pub(super) struct ProgramRow {
    /// `pp512` or `tg64`.
    pub(super) test: String,
    /// Tokens of a step.
    pub(super) tokens: usize,
    pub(super) ops: Vec<VariantRow>,
}

/// How one kind of op is computed.
#[derive(Serialize)]
pub(super) struct VariantRow {
    pub(super) op: &'static str,
    pub(super) shape: String,
    pub(super) format: String,
    pub(super) variant: String,
    /// Ops of this kind in the program.
    pub(super) count: usize,
}

impl ProgramRow {
    /// The kinds among `ops`, in the order of the program.
    pub(super) fn new(test: String, shape: StepShape, ops: &[OpInfo]) -> Self {
        let mut rows: Vec<VariantRow> = Vec::new();
        for info in ops {
            let (op, shape, format, variant) = (info.name, info.shape(shape), info.format(), info.variant.clone());
            let known = rows
                .iter_mut()
                .find(|row| (row.op, &row.shape, &row.format, &row.variant) == (op, &shape, &format, &variant));
            match known {
                Some(row) => row.count += 1,
                None => rows.push(VariantRow { op, shape, format, variant, count: 1 }),
            }
        }
        Self { test, tokens: shape.tokens, ops: rows }
    }
}

impl VariantsReport {
    pub(super) fn as_json(&self) -> String {
        format!("{:#}\n", json!(self))
    }

    pub(super) fn as_markdown(&self) -> String {
        let mut out = format!("{} {}, {}\n", self.model, self.format.to_ascii_uppercase(), self.device.description);
        for program in &self.programs {
            let plural = if program.tokens == 1 { "" } else { "s" };
            write!(out, "\n### {}: {} token{plural} a step\n\n", program.test, program.tokens)
                .expect("a string takes any text");
            out.push_str("| op | shape | format | count | kernel |\n| --- | --- | --- | ---: | --- |\n");
            for VariantRow { op, shape, format, variant, count } in &program.ops {
                writeln!(out, "| {op} | {shape} | {format} | {count} | {variant} |").expect("a string takes any text");
            }
        }
        out
    }
}
