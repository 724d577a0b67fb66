//! `hotmetal bench table`: rows of `docs/performance/today.md` in one run, beside what each has to reach on the device
//! that this was said of.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use lab::patterns::SEED;
use lab::statistics::Summary;
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

/// The name of the hardware: what a description begins with, up to its first comma. A person writes "one" before it.
fn hardware(description: &str) -> &str {
    let name = description.split(',').next().unwrap_or_default();
    name.strip_prefix("one ").unwrap_or(name)
}

/// Whether the marks of the rows are of `device`.
fn has_marks(device: &Device) -> bool {
    hardware(&device.description) == MARKED_CARD
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
    /// What other programs gave on the same hardware, as the records of `--peers` say.
    peers: BTreeMap<String, f64>,
    /// By the best of those: more than 1 is better than every one.
    of_peer: Option<f64>,
    /// All that other programs gave, on other hardware too, and what these figures are worth nothing without.
    peer_sources: Vec<Peer>,
    /// As `bench -o json` has it, with the ceilings that were measured beside it.
    row: Row,
}

impl Measured {
    /// `row` is what `device` gave.
    fn new(case: &Case, row: Row, peers: &Peers, device: &Device) -> Self {
        let marks = case.marks.filter(|_| has_marks(device));
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
        let peer_sources = peers.of(&name, unit);
        // What another device gave says nothing about this program.
        let here = peer_sources.iter().filter(|peer| peer.is_on(device));
        let peers: BTreeMap<_, _> = here.map(|peer| (peer.program.clone(), peer.value)).collect();
        let of_must = must.map(times_as_good_as);
        let gap_percent = goal.map(|goal| 100.0 * (times_as_good_as(goal) - 1.0));
        let of_peer = peers.values().map(|&peer| times_as_good_as(peer)).reduce(f64::min);
        let (worst, best) = (in_unit(min), in_unit(max));
        Self { name, unit, value, worst, best, must, goal, of_must, gap_percent, peers, of_peer, peer_sources, row }
    }
}

/// What another program gave, and what that is worth nothing without.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Peer {
    program: String,
    value: f64,
    version: String,
    /// Of the weights that it read.
    weight_bytes: f64,
    /// What it computed on, to a person.
    device: String,
    command: String,
    day: String,
}

impl Peer {
    /// As a cell has it: with the device, where that is another than `ours`.
    fn cell(&self, ours: &Device) -> String {
        let elsewhere = match self.is_on(ours) {
            true => String::new(),
            false => format!(" on {}", hardware(&self.device)),
        };
        format!("{} {}{elsewhere}", self.program, figure(self.value))
    }

    fn is_on(&self, device: &Device) -> bool {
        hardware(&self.device) == hardware(&device.description)
    }
}

/// What other programs gave: from records of theirs, never from memory.
struct Peers {
    /// Each with the name and the unit of its quantity, as the records have them.
    found: Vec<(String, String, Peer)>,
}

impl Peers {
    fn read(paths: &[PathBuf]) -> Result<Self> {
        let mut found = Vec::new();
        for path in paths {
            let record = record::read(path)?;
            let of_record = Self::of_record(&record);
            found.extend(of_record.with_context(|| format!("`{}` gives no figures of others", path.display()))?);
        }
        Ok(Self { found })
    }

    /// Refuses a record that does not say of each figure which program gave it, how, on what and of how many bytes.
    fn of_record(record: &Record) -> Result<Vec<(String, String, Peer)>> {
        let Record { device, command, rows, .. } = record;
        let command = command.clone().filter(|command| !command.is_empty());
        let command = command.context("`run.command` is missing: the command that measured them")?;
        if device.is_empty() {
            bail!("`device.description` is empty: what they were measured on");
        }
        let mut found = Vec::new();
        for row in rows {
            for (program, value) in &row.peers {
                let missing = |field: &str, what: &str| {
                    format!("`rows[].{field}` of `{program}` is missing in `{}`: {what}", row.name)
                };
                let version = row.peer_versions.iter().find(|(name, version)| name == program && !version.is_empty());
                let (_, version) = version.with_context(|| missing("peer_versions", "which build it is"))?;
                let bytes = row.peer_weight_bytes.iter().find(|(name, bytes)| name == program && *bytes > 0.0);
                let (_, weight_bytes) =
                    bytes.with_context(|| missing("peer_weight_bytes", "of how many bytes of weights it is"))?;
                let peer = Peer {
                    program: program.clone(),
                    value: *value,
                    version: version.clone(),
                    weight_bytes: *weight_bytes,
                    device: device.clone(),
                    command: command.clone(),
                    day: record.day().to_owned(),
                };
                found.push((row.name.clone(), row.unit.clone(), peer));
            }
        }
        if found.is_empty() {
            bail!("`rows[].peers` is missing: the figures");
        }
        Ok(found)
    }

    /// What they say of a quantity, by the program and the hardware; of two that say something, the later one holds.
    fn of(&self, name: &str, unit: &str) -> Vec<Peer> {
        let of_quantity = self.found.iter().filter(|(of, in_unit, _)| of == name && in_unit == unit);
        let by_program = of_quantity.map(|(.., peer)| ((&peer.program, hardware(&peer.device)), peer));
        by_program.collect::<BTreeMap<_, _>>().into_values().cloned().collect()
    }

    /// Where the figures come from.
    fn line(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (.., Peer { program, version, device, command, day, .. }) in &self.found {
            let line = format!("{program} ({version}), {day}, on {device}: `{command}`.\n");
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines.concat()
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
    let facts = Facts::collect(args.repetitions, Some(SEED));
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
                let row = Measured::new(case, row, &peers, &device);
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

fn figure(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
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
    let dash = || "–".to_owned();
    let or_dash = |value: Option<f64>| value.map_or_else(dash, figure);
    let times = |value: &Option<f64>| value.map_or_else(dash, |value| format!("{value:.2}"));
    for measured in rows {
        let Measured {
            name,
            unit,
            value,
            worst,
            best,
            must,
            goal,
            of_must,
            gap_percent,
            peers: _,
            of_peer,
            peer_sources,
            row,
        } = measured;
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
        let peer = peer_sources.iter().map(|peer| peer.cell(device)).collect::<Vec<_>>().join(", ");
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
    use super::super::shapes;
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
        printed_beside(&Peers { found: vec![] }, case, samples, description)
    }

    fn printed_beside(peers: &Peers, case: &Case, samples: &[f64], description: &str) -> (Measured, String) {
        let device = Device::from(&backend::DeviceInfo {
            name: "cuda".to_owned(),
            description: description.to_owned(),
            memory_bytes: 1,
            driver: None,
        });
        let measured = || Measured::new(case, Row::of_samples(samples), peers, &device);
        let printed = as_markdown(&[measured()], peers, &device, "facts");
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
    fn figures_of_peers_come_from_records_that_say_how_they_were_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("2026-11-25-abc.json");
        let of = |record: &serde_json::Value| {
            std::fs::write(&path, record.to_string()).unwrap();
            Peers::read(std::slice::from_ref(&path))
        };
        let whole = json!({
            "device": {"description": "one NVIDIA H200, with the same driver"},
            "run": {"date": "2026-11-25", "command": ["llama-bench", "-m", "m"]},
            "rows": [{
                "name": "llama-3.1-8b f16 decode", "unit": "tokens/s", "value": 1, "peers": {"llama.cpp": 250.0},
                "peer_versions": {"llama.cpp": "b7000"}, "peer_weight_bytes": {"llama.cpp": 16e9},
            }],
        });
        let peers = of(&whole).unwrap();
        let [peer] = &peers.of("llama-3.1-8b f16 decode", "tokens/s")[..] else { panic!("one") };
        assert_eq!((peer.value, peer.weight_bytes, &*peer.version), (250.0, 16e9, "b7000"));
        assert!(peers.of("llama-3.1-8b f16 decode", "ms a step").is_empty());
        assert!(peers.line().starts_with("llama.cpp (b7000), 2026-11-25, on one NVIDIA H200"), "{}", peers.line());

        let decode = decode(LLAMA_8B, "f16", 0, None);
        let (row, table) = printed_beside(&peers, &decode, &[500.0], "NVIDIA H200, compute capability 9.0");
        assert_eq!((row.of_peer, row.peers["llama.cpp"]), (Some(2.0), 250.0));
        assert!(table.contains("| llama.cpp 250 | 2.00 |"), "{table}");
        // Of another device: said so, and compared with nothing.
        let (row, table) = printed_beside(&peers, &decode, &[500.0], "AMD EPYC, 2 threads");
        assert!(row.of_peer.is_none() && row.peers.is_empty() && row.peer_sources.len() == 1, "{row:?}");
        assert!(table.contains("| llama.cpp 250 on NVIDIA H200 | – |"), "{table}");

        for (field, pointer) in [
            ("`run.command` is missing", "/run/command"),
            ("`device.description` is", "/device/description"),
            ("`rows[].peers` is missing", "/rows/0/peers"),
            ("`rows[].peer_versions` of `llama.cpp` is missing in `llama-3.1-8b f16 decode`", "/rows/0/peer_versions"),
            ("`rows[].peer_weight_bytes` of `llama.cpp` is missing", "/rows/0/peer_weight_bytes"),
        ] {
            let mut without = whole.clone();
            *without.pointer_mut(pointer).unwrap() = json!(null);
            let error = format!("{:#}", of(&without).err().unwrap());
            assert!(error.contains(field) && error.contains("2026-11-25-abc.json"), "{field}: {error}");
        }
        let mut empty = whole.clone();
        empty["device"]["description"] = json!("");
        assert!(format!("{:#}", of(&empty).err().unwrap()).contains("`device.description` is empty"));
        let mut no_build = whole;
        no_build["rows"][0]["peer_versions"]["llama.cpp"] = json!("");
        assert!(format!("{:#}", of(&no_build).err().unwrap()).contains("which build it is"));
    }
}
