//! Where the time of a phase went. Every nanosecond of wall time is in exactly one part: an op (its work and its waits,
//! as the mean of all lanes), the edges of the device's steps, or the host; so the parts add up to the wall time. What a
//! device repeats of a step to measure it is no part of it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use backend::profile::{Cost, Part, StepRecord};
use lab::statistics::{Percentiles, median};
use serde::{Deserialize, Serialize};

use super::gaps::{GapRow, gaps};
use super::run::{Measured, Trial};

/// What the machine gives, measured before and after the phase: on virtual machines it changes within minutes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Ceiling {
    /// What the same threads read from memory.
    pub(super) read_bandwidth_gb_s: f64,
    pub(super) peaks: Vec<Peak>,
}

/// The most that the same threads compute with the vectors that products of weights in a format can be made of.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Peak {
    pub(super) format: String,
    pub(super) flops_per_s: f64,
    pub(super) instruction: Cow<'static, str>,
}

impl Ceiling {
    /// The better of two measurements: everything that disturbs one makes it lower.
    pub(super) fn or_better(mut self, other: Self) -> Self {
        self.read_bandwidth_gb_s = self.read_bandwidth_gb_s.max(other.read_bandwidth_gb_s);
        for (peak, other) in self.peaks.iter_mut().zip(other.peaks) {
            if other.flops_per_s > peak.flops_per_s {
                *peak = other;
            }
        }
        self
    }

    /// The peak of ops with matrices in `format`, the highest where there are several (`bf16+q8_0`); that of F32 without.
    fn flops_per_s(&self, format: &str) -> Option<f64> {
        let format = if format.is_empty() { "f32" } else { format };
        let of_format = self.peaks.iter().filter(|peak| format.split('+').any(|name| name == peak.format));
        of_format.map(|peak| peak.flops_per_s).max_by(f64::total_cmp)
    }
}

/// The result of a phase.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Summary {
    /// `pp512` or `tg64`, as `bench` names them.
    pub(super) test: String,
    /// Tokens that were in the cache when it began.
    pub(super) depth: usize,
    pub(super) repetitions: usize,
    /// Of all recorded runs together, as all that follows.
    pub(super) steps: usize,
    pub(super) tokens: usize,
    pub(super) wall_ms: f64,
    /// The sum of `ops` and `rest` by the wall time: 1, or something is missing.
    pub(super) parts_share: f64,
    /// By the median run.
    pub(super) tokens_per_s: f64,
    /// By the median of the runs in between, which were not recorded.
    pub(super) unrecorded_tokens_per_s: f64,
    /// Weights and cache that all ops had to move, by the wall time.
    pub(super) bandwidth_gb_s: f64,
    pub(super) flops_per_s: f64,
    /// The time that the ceiling allows all ops, by the wall time.
    pub(super) roofline_share: f64,
    /// Largest share first.
    pub(super) ops: Vec<OpRow>,
    /// What is not an op, in the order of a step.
    pub(super) rest: Vec<RestRow>,
    /// Stretches in which no lane computed; none in profiles that were kept before 2026-11-29.
    pub(super) gaps: Option<GapRow>,
    pub(super) threads: Vec<ThreadRow>,
    pub(super) recording: Recording,
    pub(super) ceiling: Ceiling,
}

/// One kind of op: the same shape, format and kernel in every layer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct OpRow {
    pub(super) op: Cow<'static, str>,
    pub(super) shape: String,
    pub(super) format: String,
    pub(super) variant: String,
    pub(super) count: usize,
    pub(super) total_ms: f64,
    pub(super) mean_us: f64,
    /// None in profiles that were kept before 2026-11-29, as `p99_us` and `bound_by`.
    pub(super) p50_us: Option<f64>,
    pub(super) p95_us: f64,
    pub(super) p99_us: Option<f64>,
    /// What it takes where none begins before the one ahead has ended, on average; none where `mean_us` is of such steps.
    pub(super) alone_us: Option<f64>,
    /// Of `total_ms`, what threads waited for each other, on average.
    pub(super) wait_ms: f64,
    /// Weights and cache that had to be moved, by the total time; none where nothing had to.
    pub(super) bandwidth_gb_s: Option<f64>,
    pub(super) flops_per_s: Option<f64>,
    /// The time that the ceiling allows by the time it took: the tighter of memory and arithmetic. More than 1 where the
    /// bytes came from a cache.
    pub(super) roofline_share: Option<f64>,
    /// Which of the two is the tighter; none where nothing had to be moved.
    pub(super) bound_by: Option<Bound>,
    pub(super) wall_share: f64,
}

/// The side of the roofline that an op is on.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Bound {
    /// Moving its bytes at the bandwidth takes longer than computing at the peak.
    Memory,
    /// Computing takes longer.
    Arithmetic,
}

impl Bound {
    /// As tables and results call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arithmetic => "arithmetic",
        }
    }
}

/// Time that belongs to no op.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct RestRow {
    pub(super) part: Cow<'static, str>,
    pub(super) total_ms: f64,
    /// A step.
    pub(super) mean_us: f64,
    pub(super) wall_share: f64,
}

/// What one lane did.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct ThreadRow {
    pub(super) thread: String,
    pub(super) work_ms: f64,
    /// At the barriers of ops.
    pub(super) wait_ms: f64,
    /// Without a step, or before its first op and after its last.
    pub(super) idle_ms: f64,
}

/// What recording cost.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Recording {
    /// A step and thread.
    pub(super) clock_readings: f64,
    pub(super) clock_reading_ns: f64,
    /// Readings of the slowest thread and handing over, by the wall time.
    pub(super) wall_share: f64,
}

/// Where the time of `measured` went.
pub(super) fn summarize(measured: &Measured, ceiling: Ceiling, clock_reading_ns: f64) -> Summary {
    let trials = &measured.recorded;
    let wall_ns: f64 = trials.iter().map(Trial::wall_ns).sum();
    let mut groups = BTreeMap::new();
    let mut threads = Vec::new();
    let mut rest = Rest { between_steps: wall_ns, ..Rest::default() };
    let mut gap_lengths_ns = Vec::new();
    let (mut num_steps, mut num_tokens, mut num_events) = (0, 0, 0);
    for step in trials.iter().flat_map(|trial| &trial.steps) {
        let record = &step.record;
        num_steps += 1;
        num_tokens += record.shape.tokens;
        num_events += record.events.len();
        add_ops(record, &mut groups);
        add_lanes(record, &mut threads, &mut rest);
        gap_lengths_ns.extend(gaps(record).iter().map(|gap| between(gap.begin_ns, gap.end_ns)));
        rest.schedule += between(step.begin_ns, record.begin_ns);
        rest.record += between(record.measured_ns, record.recorded_ns);
        rest.sample += between(record.recorded_ns, step.sampled_ns);
        rest.decode_text += between(step.sampled_ns, step.end_ns);
        rest.between_steps -= between(step.begin_ns, step.end_ns) - step.measured_ns() as f64;
    }
    for thread in &mut threads {
        thread.idle_ms = wall_ns / 1e6 - thread.work_ms - thread.wait_ms;
    }
    let clock_readings = num_events as f64 / (num_steps * threads.len()).max(1) as f64;
    let recording_ns = clock_readings * clock_reading_ns * num_steps as f64 + rest.record;
    let sum_of =
        |figure: &dyn Fn(&Kind, &Group) -> f64| groups.iter().map(|(kind, group)| figure(kind, group)).sum::<f64>();
    let bandwidth_gb_s = sum_of(&|_, group| group.bytes) / wall_ns;
    let flops_per_s = sum_of(&|_, group| group.flops) / wall_ns * 1e9;
    let roofline_share = sum_of(&|kind, group| group.bound(kind, &ceiling).0) / wall_ns;
    let mut ops: Vec<_> = groups.into_iter().map(|(kind, group)| group.into_row(kind, &ceiling, wall_ns)).collect();
    ops.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms));
    let rest = rest.into_rows(num_steps, wall_ns);
    let parts_ms = ops.iter().map(|op| op.total_ms).chain(rest.iter().map(|part| part.total_ms)).sum::<f64>();
    let tokens = num_tokens as f64 / trials.len().max(1) as f64;
    let recorded_ns: Vec<_> = trials.iter().map(Trial::wall_ns).collect();
    Summary {
        test: measured.phase.name(),
        depth: measured.depth,
        repetitions: trials.len(),
        steps: num_steps,
        tokens: num_tokens,
        wall_ms: wall_ns / 1e6,
        parts_share: parts_ms * 1e6 / wall_ns,
        tokens_per_s: tokens / (median(&recorded_ns) / 1e9),
        unrecorded_tokens_per_s: tokens / (median(&measured.unrecorded_ns) / 1e9),
        bandwidth_gb_s,
        flops_per_s,
        roofline_share,
        ops,
        rest,
        gaps: Some(GapRow::of(&gap_lengths_ns)),
        threads,
        recording: Recording { clock_readings, clock_reading_ns, wall_share: recording_ns / wall_ns },
        ceiling,
    }
}

/// Nanoseconds from one edge to the next.
fn between(begin_ns: u64, end_ns: u64) -> f64 {
    end_ns as f64 - begin_ns as f64
}

/// What makes two ops of one kind: name, shape, format, variant.
type Kind = (&'static str, String, String, String);

/// All ops of one kind.
#[derive(Default)]
struct Group {
    /// Nanoseconds of each, its waits included.
    elapsed_ns: Vec<f64>,
    /// Nanoseconds of all of them, one by one; 0 where that was not measured.
    alone_ns: f64,
    wait_ns: f64,
    bytes: f64,
    flops: f64,
}

/// Adds the ops of a step to those of their kind. An op took what its events took, as the mean of all lanes.
fn add_ops(record: &StepRecord, groups: &mut BTreeMap<Kind, Group>) {
    let num_lanes = record.lanes.len().max(1) as f64;
    let mut times = vec![(0.0, 0.0); record.ops.len()];
    for event in &record.events {
        let (elapsed, waited) = &mut times[event.op as usize];
        let ns = between(event.begin_ns, event.end_ns) / num_lanes;
        *elapsed += ns;
        if event.part == Part::Wait {
            *waited += ns;
        }
    }
    let alone = record.alone_ns.iter().copied().chain(std::iter::repeat(0));
    let ops = record.ops.iter().zip(&record.costs).zip(times).zip(alone);
    for (((op, &Cost { bytes, flops }), (elapsed, waited)), alone_ns) in ops {
        let group = groups.entry((op.name, op.shape(record.shape), op.format(), op.variant.clone())).or_default();
        group.elapsed_ns.push(elapsed);
        group.alone_ns += alone_ns as f64;
        group.wait_ns += waited;
        group.bytes += bytes as f64;
        group.flops += flops as f64;
    }
}

/// Adds what each lane did in a step, and the step's edges: what lies before a lane's first event, and what no event covers
/// after that.
fn add_lanes(record: &StepRecord, threads: &mut Vec<ThreadRow>, rest: &mut Rest) {
    for name in record.lanes.iter().skip(threads.len()) {
        threads.push(ThreadRow { thread: name.clone(), work_ms: 0.0, wait_ms: 0.0, idle_ms: 0.0 });
    }
    let num_lanes = record.lanes.len().max(1) as f64;
    for (lane, thread) in threads.iter_mut().enumerate() {
        let events = || record.events.iter().filter(|event| usize::from(event.lane) == lane);
        let mut covered = 0.0;
        for event in events() {
            let ns = between(event.begin_ns, event.end_ns);
            covered += ns;
            match event.part {
                Part::Work => thread.work_ms += ns / 1e6,
                Part::Wait => thread.wait_ms += ns / 1e6,
            }
        }
        let first = events().map(|event| event.begin_ns).min().unwrap_or(record.end_ns);
        let submitted = record.submitted_ns.min(first);
        rest.submit += between(record.begin_ns, submitted) / num_lanes;
        rest.begin_step += between(submitted, first) / num_lanes;
        rest.end_step += (between(first, record.end_ns) - covered) / num_lanes;
    }
}

impl Group {
    /// Nanoseconds that the ceiling allows, and for what: for the bytes or for the arithmetic, whichever takes longer.
    fn bound(&self, (_, _, format, _): &Kind, ceiling: &Ceiling) -> (f64, Bound) {
        let memory_ns = self.bytes / ceiling.read_bandwidth_gb_s;
        let arithmetic_ns = ceiling.flops_per_s(format).map_or(0.0, |peak| self.flops / peak * 1e9);
        if arithmetic_ns > memory_ns { (arithmetic_ns, Bound::Arithmetic) } else { (memory_ns, Bound::Memory) }
    }

    fn into_row(self, kind: Kind, ceiling: &Ceiling, wall_ns: f64) -> OpRow {
        let (allowed_ns, bound) = self.bound(&kind, ceiling);
        let (op, shape, format, variant) = kind;
        let Self { elapsed_ns, alone_ns, wait_ns, bytes, flops } = self;
        let total_ns: f64 = elapsed_ns.iter().sum();
        let Percentiles { p50, p95, p99, .. } = Percentiles::of(&elapsed_ns);
        OpRow {
            op: op.into(),
            shape,
            format,
            variant,
            count: elapsed_ns.len(),
            total_ms: total_ns / 1e6,
            mean_us: total_ns / elapsed_ns.len() as f64 / 1e3,
            p50_us: Some(p50 / 1e3),
            p95_us: p95 / 1e3,
            p99_us: Some(p99 / 1e3),
            alone_us: (alone_ns > 0.0).then(|| alone_ns / elapsed_ns.len() as f64 / 1e3),
            wait_ms: wait_ns / 1e6,
            // An op that another hides adds nothing to a replay, and has no rate.
            bandwidth_gb_s: (bytes > 0.0 && total_ns > 0.0).then(|| bytes / total_ns),
            flops_per_s: (flops > 0.0 && total_ns > 0.0).then(|| flops / total_ns * 1e9),
            roofline_share: (bytes > 0.0 && total_ns > 0.0).then(|| allowed_ns / total_ns),
            bound_by: (bytes > 0.0).then_some(bound),
            wall_share: total_ns / wall_ns,
        }
    }
}

/// Nanoseconds that belong to no op, in the order of a step.
#[derive(Default)]
struct Rest {
    /// The engine chooses the sequences and writes the step down.
    schedule: f64,
    /// The host hands the step to a device that runs beside it, until the first op begins.
    submit: f64,
    /// The device gets ready, and its lanes wake up.
    begin_step: f64,
    /// The lanes come to rest.
    end_step: f64,
    /// The price of a record, beyond its clock readings.
    record: f64,
    /// The engine samples and takes the tokens in.
    sample: f64,
    decode_text: f64,
    between_steps: f64,
}

impl Rest {
    fn into_rows(self, num_steps: usize, wall_ns: f64) -> Vec<RestRow> {
        let parts = [
            ("schedule", self.schedule),
            ("submit", self.submit),
            ("begin step", self.begin_step),
            ("end step", self.end_step),
            ("record", self.record),
            ("sample", self.sample),
            ("decode text", self.decode_text),
            ("between steps", self.between_steps),
        ];
        let row = |(part, ns): (&'static str, f64)| RestRow {
            part: part.into(),
            total_ms: ns / 1e6,
            mean_us: ns / num_steps.max(1) as f64 / 1e3,
            wall_share: ns / wall_ns,
        };
        parts.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use backend::profile::{Event, OpInfo};
    use plan::StepShape;
    use serde_json::json;

    use super::super::run::{Phase, Step};
    use super::*;

    fn event(op: u32, lane: u16, part: Part, begin_ns: u64, end_ns: u64) -> Event {
        Event { op, lane, part, begin_ns, end_ns }
    }

    /// How long the parts of the step were measured behind it, which no figure may show.
    const MEASURED_NS: u64 = 5000;

    /// A run from 0 to 1000, but for that, with one step: scheduled from 10, on the device from 100 to 900, two ops on two lanes.
    fn measured() -> Measured {
        let ops = ["first", "second"].map(|name| OpInfo::own(name, "plain".to_owned()));
        let record = StepRecord {
            shape: StepShape { tokens: 4, sequences: 1, outputs: 1 },
            begin_ns: 100,
            submitted_ns: 106,
            end_ns: 900,
            measured_ns: 900 + MEASURED_NS,
            recorded_ns: 910 + MEASURED_NS,
            ops: ops.into(),
            costs: vec![Cost { bytes: 2400, flops: 1200 }, Cost::default()],
            lanes: ["a".to_owned(), "b".to_owned()].into(),
            events: vec![
                event(0, 0, Part::Work, 110, 310),
                event(0, 0, Part::Wait, 310, 410),
                event(1, 0, Part::Work, 410, 890),
                event(0, 1, Part::Work, 130, 410),
                // A gap, as a device may leave one.
                event(1, 1, Part::Work, 500, 880),
            ],
            alone_ns: vec![300, 0],
        };
        let step = Step { begin_ns: 10, record, sampled_ns: 950 + MEASURED_NS, end_ns: 990 + MEASURED_NS };
        let recorded = vec![Trial { begin_ns: 0, end_ns: 1000 + MEASURED_NS, depth: 0, steps: vec![step] }];
        Measured { phase: Phase::Prefill { tokens: 4, depth: 0 }, depth: 0, recorded, unrecorded_ns: vec![800.0] }
    }

    /// Of F32 and Q8_0.
    fn ceiling_of(read_bandwidth_gb_s: f64, peaks: [f64; 2]) -> Ceiling {
        let peak = |(format, flops_per_s): (&str, f64)| Peak {
            format: format.to_owned(),
            flops_per_s,
            instruction: "".into(),
        };
        Ceiling { read_bandwidth_gb_s, peaks: ["f32", "q8_0"].into_iter().zip(peaks).map(peak).collect() }
    }

    fn ceiling() -> Ceiling {
        ceiling_of(10.0, [4e9, 8e9])
    }

    #[test]
    fn every_nanosecond_is_in_one_part() {
        let summary = summarize(&measured(), ceiling(), 2.0);
        assert!((summary.parts_share - 1.0).abs() < 1e-9, "{}", summary.parts_share);
        let rest: Vec<_> = summary.rest.iter().map(|row| (&*row.part, (row.total_ms * 1e6).round())).collect();
        let expected = [
            ("schedule", 90.0),
            ("submit", 6.0),
            ("begin step", 14.0),
            ("end step", 60.0),
            ("record", 10.0),
            ("sample", 40.0),
            ("decode text", 40.0),
            ("between steps", 20.0),
        ];
        assert_eq!(rest, expected);
        assert_eq!((summary.steps, summary.tokens, summary.repetitions), (1, 4, 1));
        assert_eq!((summary.tokens_per_s, summary.unrecorded_tokens_per_s), (4.0 / 1e-6, 4.0 / 0.8e-6));
    }

    #[test]
    fn of_two_ceilings_the_better_counts() {
        let other = || ceiling_of(9.0, [5e9, 7e9]);
        for best in [ceiling().or_better(other()), other().or_better(ceiling())] {
            assert_eq!(best.read_bandwidth_gb_s, 10.0);
            assert_eq!((best.flops_per_s(""), best.flops_per_s("q8_0")), (Some(5e9), Some(8e9)));
            assert_eq!((best.flops_per_s("f32+q8_0"), best.flops_per_s("bf16")), (Some(8e9), None));
        }
    }

    #[test]
    fn an_op_is_on_the_side_of_the_roofline_that_takes_longer() {
        for (read_bandwidth_gb_s, bound) in [(7.9, Bound::Memory), (8.1, Bound::Arithmetic)] {
            let summary = summarize(&measured(), ceiling_of(read_bandwidth_gb_s, [4e9, 8e9]), 2.0);
            // 2400 bytes take 300 ns at 8 GB/s, and 1200 operations at 4 GFLOP/s.
            assert_eq!(summary.ops[1].bound_by, Some(bound), "{read_bandwidth_gb_s} GB/s");
            assert_eq!(json!(bound), bound.name());
        }
    }

    #[test]
    fn percentiles_are_of_the_ops_of_a_kind_and_gaps_are_where_no_lane_works() {
        let mut measured = measured();
        let step = &mut measured.recorded[0].steps[0].record;
        // A hundred and one of a kind, which take 1 to 101 ns on one lane, with gaps of 1 ns between them and of 10 ns ahead
        // of the first; the last ends where the step does.
        step.ops = vec![step.ops[0].clone(); 101].into();
        step.costs = vec![Cost::default(); 101];
        step.lanes = ["a".to_owned()].into();
        step.alone_ns = vec![];
        let mut at = step.submitted_ns + 10;
        step.events.clear();
        for op in 0..101 {
            step.events.push(event(op, 0, Part::Work, at, at + 1 + u64::from(op)));
            at += 2 + u64::from(op);
        }
        step.end_ns = at - 1;
        step.measured_ns = step.end_ns;
        let summary = summarize(&measured, ceiling(), 2.0);
        let [op] = &summary.ops[..] else { panic!("one kind: {:?}", summary.ops) };
        let percentiles = [op.p50_us, Some(op.p95_us), op.p99_us].map(|us| (us.unwrap() * 1e3).round());
        assert_eq!((op.count, percentiles), (101, [51.0, 96.0, 100.0]));
        let gaps = summary.gaps.unwrap();
        assert_eq!((gaps.count, (gaps.total_ms * 1e6).round()), (101, 100.0 + 10.0));
        assert_eq!([gaps.p50_us, gaps.p95_us, gaps.p99_us].map(|us| (us * 1e3).round()), [1.0, 1.0, 1.0]);
        assert!((summary.parts_share - 1.0).abs() < 1e-9, "{}", summary.parts_share);
    }

    #[test]
    fn gaps_say_between_which_ops_they_are() {
        let measured = measured();
        let found = gaps(&measured.recorded[0].steps[0].record);
        let found: Vec<_> = found.iter().map(|gap| (gap.after, gap.before, gap.begin_ns, gap.end_ns)).collect();
        // While lane b does nothing, lane a works.
        assert_eq!(found, [(None, Some(0), 106, 110), (Some(1), None, 890, 900)]);
        let mut record = measured.recorded[0].steps[0].record.clone();
        record.events.retain(|event| event.lane == 1);
        let found: Vec<_> = gaps(&record).iter().map(|gap| (gap.after, gap.before, gap.begin_ns, gap.end_ns)).collect();
        assert_eq!(found, [(None, Some(0), 106, 130), (Some(0), Some(1), 410, 500), (Some(1), None, 880, 900)]);
    }

    #[test]
    fn ops_are_means_of_their_lanes() {
        let summary = summarize(&measured(), ceiling(), 2.0);
        let [second, first] = &summary.ops[..] else { panic!("two kinds: {:?}", summary.ops) };
        assert_eq!((&*first.op, &*second.op), ("first", "second"));
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found}, not {expected}");
        near(first.total_ms * 1e6, 290.0);
        near(first.wait_ms * 1e6, 50.0);
        near(second.total_ms * 1e6, 430.0);
        near(first.alone_us.unwrap() * 1e3, 300.0);
        assert_eq!(second.alone_us, None);
        near(first.wall_share, 0.29);
        near(first.bandwidth_gb_s.unwrap(), 2400.0 / 290.0);
        near(first.flops_per_s.unwrap(), 1200.0 / 290.0 * 1e9);
        // Memory allows 240 ns, arithmetic 300: the tighter of the two, and more than it took.
        near(first.roofline_share.unwrap(), 300.0 / 290.0);
        assert_eq!((first.bound_by, second.bound_by), (Some(Bound::Arithmetic), None));
        assert_eq!((second.bandwidth_gb_s, second.flops_per_s, second.roofline_share), (None, None, None));
        let threads: Vec<_> = summary.threads.iter().map(|t| (t.thread.as_str(), (t.idle_ms * 1e6).round())).collect();
        assert_eq!(threads, [("a", 220.0), ("b", 340.0)]);
        // All in all, by the wall time.
        near(summary.bandwidth_gb_s, 2.4);
        near(summary.flops_per_s, 1.2e9);
        near(summary.roofline_share, 0.3);
        near(summary.recording.clock_readings, 2.5);
        near(summary.recording.wall_share, (5.0 + 10.0) / 1000.0);
    }
}
