//! `hotmetal bench table`: rows of `docs/performance/today.md` in one run, beside what each has to reach on the device
//! that this was said of.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use records::Record;
use serde::Serialize;
use serde_json::json;

use super::args::{OutputFormat, TableArgs, TargetArgs, Test};
use super::clock::Clock;
use super::measured::{Ceiling, measured_row};
use super::progress::progress;
use super::record;
use super::report::{Device, Facts, Row, SCHEMA};
use super::run::Source;
use super::shapes;
use super::statistics::Summary;
use crate::load::device;
use crate::output::stdout;

/// What a figure of the table counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// The more, the better.
    TokensPerSecond,
    /// The fewer, the better.
    MillisecondsPerStep,
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::TokensPerSecond => "tokens/s",
            Self::MillisecondsPerStep => "ms a step",
        }
    }
}

/// The card that the marks of the rows are of, as its driver calls it.
const MARKED_CARD: &str = "NVIDIA H200";

/// Whether the marks of the rows are of `device`: a description begins with the name of the hardware, up to its first comma.
fn has_marks(device: &Device) -> bool {
    device.description.split(',').next() == Some(MARKED_CARD)
}

/// A row: what is measured, and what is expected of it on one H200.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: &'static str,
    format: &'static str,
    prompt: usize,
    depth: usize,
    batch: usize,
    /// The least that counts, and what is wanted. `None` where nobody said.
    marks: Option<[f64; 2]>,
}

/// Decodes one sequence, after so many tokens.
const fn decode(shape: &'static str, format: &'static str, depth: usize, marks: Option<[f64; 2]>) -> Case {
    Case { shape, format, prompt: 0, depth, batch: 1, marks }
}

/// Decodes so many sequences at once.
const fn batch(format: &'static str, batch: usize, marks: [f64; 2]) -> Case {
    Case { batch, ..decode(LLAMA_8B, format, 0, Some(marks)) }
}

/// Reads a prompt.
const fn prefill(shape: &'static str, format: &'static str, marks: [f64; 2]) -> Case {
    Case { prompt: PROMPT, ..decode(shape, format, 0, Some(marks)) }
}

const QWEN: &str = "qwen2.5-0.5b";
const LLAMA_1B: &str = "llama-3.2-1b";
const LLAMA_8B: &str = "llama-3.1-8b";
const DEEP: usize = 8192;
const PROMPT: usize = 2048;

/// Rows of one shape and format stand together: its weights are made once.
static CASES: [Case; 30] = [
    decode(QWEN, "f16", 0, Some([1500.0, 2400.0])),
    prefill(QWEN, "f16", [200_000.0, 350_000.0]),
    decode(QWEN, "q8_0", 0, Some([1800.0, 3200.0])),
    decode(QWEN, "q4_0", 0, Some([2000.0, 3800.0])),
    decode(QWEN, "q4_k_m", 0, None),
    decode(LLAMA_1B, "f16", 0, Some([1250.0, 1500.0])),
    decode(LLAMA_8B, "f16", 0, Some([265.0, 290.0])),
    decode(LLAMA_8B, "f16", DEEP, Some([245.0, 270.0])),
    batch("f16", 8, [4.2, 3.6]),
    batch("f16", 32, [4.6, 3.8]),
    batch("f16", 128, [7.0, 4.8]),
    prefill(LLAMA_8B, "f16", [30_000.0, 40_000.0]),
    decode(LLAMA_8B, "q8_0", 0, Some([430.0, 510.0])),
    decode(LLAMA_8B, "q8_0", DEEP, Some([390.0, 460.0])),
    batch("q8_0", 8, [2.8, 2.1]),
    batch("q8_0", 32, [3.2, 2.3]),
    batch("q8_0", 128, [7.0, 4.0]),
    prefill(LLAMA_8B, "q8_0", [26_000.0, 38_000.0]),
    decode(LLAMA_8B, "q4_0", 0, Some([650.0, 830.0])),
    decode(LLAMA_8B, "q4_0", DEEP, Some([540.0, 700.0])),
    batch("q4_0", 8, [2.2, 1.4]),
    batch("q4_0", 32, [2.8, 1.6]),
    batch("q4_0", 128, [7.0, 4.0]),
    prefill(LLAMA_8B, "q4_0", [25_000.0, 38_000.0]),
    decode(LLAMA_8B, "q4_k_m", 0, Some([600.0, 780.0])),
    decode(LLAMA_8B, "q4_k_m", DEEP, None),
    decode(LLAMA_8B, "int4", 0, Some([650.0, 830.0])),
    decode(LLAMA_8B, "int4", DEEP, Some([540.0, 700.0])),
    prefill(LLAMA_8B, "int4", [25_000.0, 38_000.0]),
    decode("devstral-small", "int4", 0, Some([270.0, 340.0])),
];

impl Case {
    /// What `--only` looks in: `llama-3.1-8b f16 decode @8192`.
    fn name(&self) -> String {
        let Self { shape, format, prompt, depth, batch, .. } = self;
        match (prompt, depth, batch) {
            (0, 0, 1) => format!("{shape} {format} decode"),
            (0, depth, 1) => format!("{shape} {format} decode @{depth}"),
            (0, _, batch) => format!("{shape} {format} batch {batch}"),
            (prompt, ..) => format!("{shape} {format} prefill {prompt}"),
        }
    }

    fn test(&self, n_gen: usize) -> Test {
        let Self { prompt, depth, batch, .. } = *self;
        Test { prompt, generate: if prompt > 0 { 0 } else { n_gen }, depth, batch }
    }

    /// Batches are told by the time of a step.
    fn unit(&self) -> Unit {
        if self.batch > 1 { Unit::MillisecondsPerStep } else { Unit::TokensPerSecond }
    }
}

/// A row that was measured.
#[derive(Debug, Serialize)]
struct Measured {
    name: String,
    unit: &'static str,
    /// The median of the repetitions, the worst and the best of them.
    value: f64,
    worst: f64,
    best: f64,
    /// Of the device that was measured; `None` where the marks are of another.
    must: Option<f64>,
    goal: Option<f64>,
    /// More than 1 is better than it must be.
    of_must: Option<f64>,
    /// How far it is from the goal, in percent: negative where it falls short.
    gap_percent: Option<f64>,
    /// What other programs gave, as the records of `--peers` say.
    peers: BTreeMap<String, f64>,
    /// By the best of them: more than 1 is better than every one.
    of_peer: Option<f64>,
    /// As `bench -o json` has it, with the ceilings that were measured beside it.
    row: Row,
}

impl Measured {
    /// `has_marks` says whether the marks of the case are of the device that gave `row`.
    fn new(case: &Case, row: Row, peers: &Peers, has_marks: bool) -> Self {
        let marks = case.marks.filter(|_| has_marks);
        let (must, goal) = (marks.map(|[must, _]| must), marks.map(|[_, goal]| goal));
        let Summary { median, min, max, .. } = row.tokens_per_s;
        let in_unit = |tokens_per_s: f64| match case.unit() {
            Unit::TokensPerSecond => tokens_per_s,
            Unit::MillisecondsPerStep => 1e3 * case.batch as f64 / tokens_per_s,
        };
        let value = in_unit(median);
        let times_as_good_as = |other: f64| match case.unit() {
            Unit::TokensPerSecond => value / other,
            Unit::MillisecondsPerStep => other / value,
        };
        let (name, unit) = (case.name(), case.unit().name());
        let peers = peers.of(&name, unit);
        let of_must = must.map(times_as_good_as);
        let gap_percent = goal.map(|goal| 100.0 * (times_as_good_as(goal) - 1.0));
        let of_peer = peers.values().map(|&peer| times_as_good_as(peer)).reduce(f64::min);
        let (worst, best) = (in_unit(min), in_unit(max));
        Self { name, unit, value, worst, best, must, goal, of_must, gap_percent, peers, of_peer, row }
    }
}

/// What other programs gave: from records of theirs, never from memory.
struct Peers {
    records: Vec<Record>,
}

impl Peers {
    fn read(paths: &[PathBuf]) -> Result<Self> {
        let read = |path: &PathBuf| {
            let record = record::read(path)?;
            if record.command.is_none() || record.rows.iter().all(|row| row.peers.is_empty()) {
                bail!(
                    "`{}` has no figures of other programs, or not the command that gave them (`rows[].peers`, `run.command`)",
                    path.display()
                );
            }
            Ok(record)
        };
        Ok(Self { records: paths.iter().map(read).collect::<Result<_>>()? })
    }

    /// What they say of a quantity, by the program; of two that say something, the later one holds.
    fn of(&self, name: &str, unit: &str) -> BTreeMap<String, f64> {
        let rows = self.records.iter().flat_map(|record| &record.rows);
        let of_quantity = rows.filter(|row| row.name == name && row.unit == unit);
        of_quantity.flat_map(|row| row.peers.iter().cloned()).collect()
    }

    /// Where the figures come from.
    fn line(&self) -> String {
        let of = |record: &Record| {
            let command = record.command.as_deref().unwrap_or_default();
            format!("Peers of {} are those of {}: `{command}`.\n", record.day(), record.device)
        };
        self.records.iter().map(of).collect()
    }
}

/// Runs `hotmetal bench table`.
pub(super) fn table(args: &TableArgs) -> Result<()> {
    let is_asked =
        |case: &&Case| args.only.is_empty() || args.only.iter().any(|only| case.name().contains(only.as_str()));
    let cases: Vec<&Case> = CASES.iter().filter(is_asked).collect();
    if cases.is_empty() {
        bail!("no row has one of `{}` in its name; --list shows them", args.only.join("`, `"));
    }
    if args.repetitions == 0 || args.n_gen == 0 {
        bail!("nothing to measure: expected 1 repetition or more (-r) of 1 token or more (-n)");
    }
    if args.list {
        return Ok(stdout(&cases.iter().map(|case| format!("{}\n", case.name())).collect::<String>())?);
    }
    if args.output == OutputFormat::Csv {
        bail!("the table is printed as md, json or jsonl");
    }
    let peers = Peers::read(&args.peers)?;
    let target = |case: &Case| TargetArgs {
        model: None,
        shape: Some(case.shape.to_owned()),
        format: Some(case.format.to_owned()),
        device: args.device.clone(),
        gpu: args.gpu.clone(),
        isa: None,
        no_repack: false,
        kv_type: None,
        batch_tokens: None,
    };
    // Asks for the device before anything large is made.
    let device: Device = device::backend(&target(cases[0]).device_settings(None))?.device().into();
    let facts = Facts::collect(args.repetitions, Some(shapes::SEED));
    let progress = progress(cases.len() * args.repetitions, "making weights");
    let mut measured = Vec::with_capacity(cases.len());
    let mut ceilings = vec![];
    for of_one_model in cases.chunk_by(|a, b| (a.shape, a.format) == (b.shape, b.format)) {
        let target = target(of_one_model[0]);
        progress.set_message(format!("making {} {}", of_one_model[0].shape, of_one_model[0].format));
        let source = Source::new(&target)?;
        // Many sequences of many tokens would not fit.
        let (batches, alone): (Vec<&Case>, Vec<&Case>) = of_one_model.iter().copied().partition(|case| case.batch > 1);
        for cases in [alone, batches].into_iter().filter(|cases| !cases.is_empty()) {
            let tests: Vec<_> = cases.iter().map(|case| case.test(args.n_gen)).collect();
            let mut loaded = source.load(&target.settings(None), &tests, target.batch_tokens())?;
            let mut ceiling = Ceiling::new(&target.device_settings(None), Clock::Wall, &tests, loaded.format)?;
            for (case, test) in cases.into_iter().zip(&tests) {
                progress.set_message(case.name());
                let row = measured_row(&mut loaded, test, args.repetitions, &mut ceiling, &mut || progress.inc(1))?;
                let row = Measured::new(case, row, &peers, has_marks(&device));
                if args.output == OutputFormat::Jsonl {
                    progress.suspend(|| stdout(&format!("{}\n", json!(row))))?;
                }
                measured.push((case, row));
            }
            ceilings.push(ceiling);
        }
    }
    ceilings.iter().for_each(Ceiling::keep);
    progress.finish_and_clear();
    // As they are listed, though batches were measured last.
    measured.sort_by_key(|(case, _)| CASES.iter().position(|listed| std::ptr::eq(listed, *case)));
    let rows: Vec<_> = measured.into_iter().map(|(_, measured)| measured).collect();
    let result = json!({"schema": SCHEMA, "device": device, "run": facts, "rows": rows});
    match args.output {
        OutputFormat::Md => stdout(&as_markdown(&rows, &peers, &device, &facts.line(&device)))?,
        OutputFormat::Json => stdout(&format!("{result:#}\n"))?,
        OutputFormat::Csv | OutputFormat::Jsonl => {}
    }
    args.record.keep(&result, &device, &facts, None)
}

fn as_markdown(rows: &[Measured], peers: &Peers, device: &Device, run: &str) -> String {
    let has_marks = has_marks(device);
    let (marks, lines) = match has_marks {
        true => (" must | of must | goal | gap to goal |", " ---: | ---: | ---: | ---: |"),
        false => ("", ""),
    };
    let mut out = format!(
        "| case | | median | worst to best |{marks} peer | of peer | of ceiling | ceiling |\n\
         | --- | --- | ---: | ---: |{lines} ---: | ---: | ---: | --- |\n"
    );
    let figure = |value: f64| if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") };
    let dash = || "–".to_owned();
    let or_dash = |value: Option<f64>| value.map_or_else(dash, figure);
    let times = |value: &Option<f64>| value.map_or_else(dash, |value| format!("{value:.2}"));
    for measured in rows {
        let Measured { name, unit, value, worst, best, must, goal, of_must, gap_percent, peers, of_peer, row } =
            measured;
        let ceiling = match (row.read_bandwidth_gb_s, row.peak_flops_per_s, &row.peak_class) {
            (Some(read), ..) => format!("{read:.0} GB/s read"),
            (None, Some(peak), Some(class)) => format!("{:.0} TOP/s of {class}", peak / 1e12),
            _ => dash(),
        };
        let share = row.roofline_share.map_or_else(dash, |share| format!("{:.0} %", 100.0 * share));
        let gap = gap_percent.map_or_else(dash, |gap| format!("{gap:+.1} %"));
        let marks = match has_marks {
            true => format!(" {} | {} | {} | {gap} |", or_dash(*must), times(of_must), or_dash(*goal)),
            false => String::new(),
        };
        // A peer that nobody measured is left blank.
        let peer =
            peers.iter().map(|(name, value)| format!("{name} {}", figure(*value))).collect::<Vec<_>>().join(", ");
        let _ = writeln!(
            out,
            "| {name} | {unit} | {} | {} to {} |{marks} {peer} | {} | {share} | {ceiling} |",
            figure(*value),
            figure(*worst),
            figure(*best),
            times(of_peer),
        );
    }
    let missed = rows.iter().filter(|row| row.of_must.is_some_and(|of_must| of_must < 1.0)).count();
    let with_marks = rows.iter().filter(|row| row.must.is_some()).count();
    let of_marks = match has_marks {
        true => format!(
            "{missed} of {with_marks} rows miss what they must. \"Must\" and \"goal\" are of one H200; the gap is \
             negative where the goal is missed."
        ),
        false => format!(
            "What rows must reach is known of one {MARKED_CARD} only, and this is another device: {}.",
            device.description
        ),
    };
    let _ = write!(out, "\n{of_marks} A ceiling was measured beside its row.\n{}{run}\n", peers.line());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_model_stand_together_and_have_names_of_their_own() {
        let names: std::collections::BTreeSet<_> = CASES.iter().map(Case::name).collect();
        assert_eq!(names.len(), CASES.len());
        let models: Vec<_> =
            CASES.chunk_by(|a, b| (a.shape, a.format) == (b.shape, b.format)).map(|of| &of[0]).collect();
        let distinct: std::collections::BTreeSet<_> = models.iter().map(|case| (case.shape, case.format)).collect();
        assert_eq!(distinct.len(), models.len(), "weights are made once");
        for case in &CASES {
            shapes::plan_of(case.shape).unwrap();
            shapes::MatrixFormats::named(case.format).unwrap();
            // A goal is harder to reach than what must be.
            let is_harder = |[must, goal]: [f64; 2]| if case.batch > 1 { goal < must } else { goal > must };
            assert!(case.marks.is_none_or(is_harder), "{}", case.name());
        }
    }

    /// What a table says of a row that takes `samples` tokens a second on a device of this description.
    fn printed(case: &Case, samples: &[f64], description: &str) -> (Measured, String) {
        let device = Device::from(&backend::DeviceInfo {
            name: "cuda".to_owned(),
            description: description.to_owned(),
            memory_bytes: 1,
            driver: None,
        });
        let none = Peers { records: vec![] };
        let measured = || Measured::new(case, Row::of_samples(samples), &none, has_marks(&device));
        let printed = as_markdown(&[measured()], &none, &device, "facts");
        (measured(), printed)
    }

    #[test]
    fn marks_stand_beside_the_device_that_they_are_of() {
        let h200 = "NVIDIA H200, compute capability 9.0, 139.8 GiB";
        let decode = decode(LLAMA_8B, "f16", 0, Some([265.0, 290.0]));
        let (row, table) = printed(&decode, &[261.0], h200);
        assert_eq!((row.must, row.goal), (Some(265.0), Some(290.0)));
        assert!((row.gap_percent.unwrap() + 10.0).abs() < 1e-9, "{row:?}");
        assert!(table.contains("| must | of must | goal | gap to goal |"), "{table}");
        assert!(table.contains("| 265 | 0.98 | 290 | -10.0 % |") && table.contains("1 of 1 rows miss"), "{table}");
        // Of a time the shorter is the better: 8 texts in 3 ms, where 3.6 are the goal.
        let (row, table) = printed(&batch("f16", 8, [4.2, 3.6]), &[8.0 / 3e-3], h200);
        assert!((row.gap_percent.unwrap() - 20.0).abs() < 1e-9 && table.contains("| 3.60 | +20.0 % |"), "{table}");
        let no_marks = Case { marks: None, ..decode };
        assert!(printed(&no_marks, &[261.0], h200).1.contains("| – | – | – | – |"));

        for other in ["NVIDIA H200 NVL, compute capability 9.0", "NVIDIA H100 80GB HBM3, x", "AMD EPYC, 2 threads"] {
            let (row, table) = printed(&decode, &[261.0], other);
            assert_eq!((row.must, row.goal, row.of_must, row.gap_percent), (None, None, None, None));
            assert!(!table.contains("must |") && !table.contains("gap"), "{table}");
            assert!(
                table.contains(&format!("of one NVIDIA H200 only, and this is another device: {other}.")),
                "{table}"
            );
            let columns = |line: &str| line.matches(" |").count();
            let lines: Vec<_> = table.lines().take(3).map(columns).collect();
            assert!(lines.iter().all(|&columns| columns == lines[0]), "{table}");
        }
    }

    #[test]
    fn figures_of_peers_come_from_records_with_their_command() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("2026-11-25-abc.json");
        let write = |run: serde_json::Value, peers: serde_json::Value| {
            let row = json!({"name": "m q8_0 decode", "unit": "tokens/s", "value": 1, "peers": peers});
            let record = json!({"device": {"description": "one H200"}, "run": run, "rows": [row]});
            std::fs::write(&path, record.to_string()).unwrap();
            Peers::read(std::slice::from_ref(&path))
        };
        let run = json!({"date": "2026-11-25", "command": ["llama-bench", "-m", "m"]});
        let peers = write(run.clone(), json!({"llama.cpp b7000": 250.0})).unwrap();
        assert_eq!(peers.of("m q8_0 decode", "tokens/s")["llama.cpp b7000"], 250.0);
        assert!(peers.of("m q8_0 decode", "ms a step").is_empty());
        assert!(peers.line().contains("one H200: `llama-bench -m m`"), "{}", peers.line());
        assert!(write(run, json!({})).is_err());
        assert!(write(json!({"date": "2026-11-25"}), json!({"x": 1.0})).is_err());
    }
}
