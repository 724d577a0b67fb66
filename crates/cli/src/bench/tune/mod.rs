//! `hotmetal tune`: finds how each kernel is launched best on this device, proves it right, and keeps it.

mod args;
mod check;
mod search;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use backend::Tuning;

pub(crate) use args::TuneArgs;

use super::progress::progress;
use super::run::{Loaded, Source};
use super::shapes::Random;
use crate::ceiling::Meter;
use crate::load::device::{self, gpu_backend};
use crate::load::facts::kv_format_of;
use crate::load::tuned::{self, Row, Table, TunedFrom};
use crate::model::settings::ModelSettings;
use crate::output::{note, stdout};
use check::Checks;
use search::{Choice, Found, Search, Tuned};

/// The most rows of a step: beyond that a prompt is cut.
const ROWS_MAX: usize = 8192;

/// Runs `hotmetal tune`.
pub(crate) fn tune(args: &TuneArgs) -> Result<()> {
    check_args(args)?;
    let begun = Instant::now();
    // What is tried is in force at once, wherever a kernel is chosen, and as long as the program runs.
    let live: &'static Tuning = Box::leak(Box::new(Tuning::default()));
    let mut settings = args.target.settings(None);
    settings.device.gpu.tuned = TunedFrom::Tried(gpu::Tuned::by(live));
    let Some(gpu) = gpu_backend(&settings.device)? else {
        bail!(
            "tune is about the kernels of GPUs: expected --device cuda, metal or sim, found `{}`; on processors \
             `bench kernels` compares what there is",
            args.target.device()
        );
    };
    // Cost models reckon with it, and say what there is to be better than.
    let known = Meter::Gpu(gpu).known(args.measure)?;
    let gpu = gpu_backend(&settings.device)?.context("the device was there a moment ago")?;
    let mut table = Table::of(&gpu);
    let source = Source::new(&args.target)?;
    let (mut loaded, mut checks) = load(args, &source, &settings, live)?;
    let of_model = format!("{} {}", loaded.model, loaded.format_name);
    let bar = progress(args.rows.len(), "");
    let wants = |key: &str| args.only.is_empty() || args.only.iter().any(|text| key.contains(text.as_str()));
    let end = Instant::now() + Duration::from_secs(args.budget.min(1 << 20));
    let mut found = Found::default();
    let mut random = Random(args.seed);
    let mut lines = vec![];
    for (place, &rows) in args.rows.iter().enumerate() {
        let test = search::test_of(rows, args.depth);
        let mut on_try = |key: &str| bar.set_message(format!("{rows} rows: {key}"));
        let mut search = Search {
            driver: &mut loaded.driver,
            live,
            checks: &mut checks,
            repetitions: args.repetitions,
            random: Random(random.next()),
            deadline: search::share_of(end, args.rows.len() - place),
            wants: &wants,
            on_try: &mut on_try,
            found: &mut found,
        };
        let tuned = search.tune(&test, rows).with_context(|| format!("cannot tune steps of {rows} rows"))?;
        bar.inc(1);
        let measured_with = match test.generate {
            0 => format!("{of_model}, a prompt of {rows}"),
            _ => format!("{of_model}, {rows} rows at {}", args.depth),
        };
        table.rows.extend(tuned.choices.iter().map(|choice| row(choice, &measured_with)));
        lines.push(line(rows, &tuned));
    }
    bar.finish_and_clear();
    let memory = known.map(|known| known.read_line());
    stdout(&report(&of_model, &table, memory.as_deref(), &lines, &found, begun))?;
    keep(args, table)
}

fn check_args(args: &TuneArgs) -> Result<()> {
    if args.rows.is_empty() {
        bail!("--rows: expected one number of rows at least");
    }
    if let Some(rows) = args.rows.iter().find(|&&rows| !rows.is_power_of_two() || rows > ROWS_MAX) {
        bail!("--rows {rows}: expected a power of two up to {ROWS_MAX}, as programs are made for these");
    }
    if args.repetitions == 0 {
        bail!("-r 0 decides nothing: expected 1 repetition or more");
    }
    if args.target.gpu.batch_invariant {
        bail!("--batch-invariant leaves nothing to tune: there is one way to compute a row then");
    }
    if args.target.gpu.tuned != TunedFrom::Usual {
        bail!("--tuned says what a model is run with; `tune` measures against cost models alone");
    }
    Ok(())
}

/// The model on the device, ready to be timed, and its ops, ready to be checked.
fn load(
    args: &TuneArgs,
    source: &Source<'_>,
    settings: &ModelSettings,
    live: &'static Tuning,
) -> Result<(Loaded, Checks)> {
    let begun = Instant::now();
    let parts = source.open(settings)?;
    let kv_format = kv_format_of(settings.cache.format, &parts.weights);
    let checks = Checks::new(device::backend(&settings.device)?, live, &parts.plan, &parts.weights, kv_format)?;
    let tests: Vec<_> = args.rows.iter().map(|&rows| search::test_of(rows, args.depth)).collect();
    let batch_tokens = args.rows.iter().copied().max().unwrap_or(1).max(args.target.batch_tokens());
    Ok((source.load_parts(parts, begun, settings, &tests, batch_tokens)?, checks))
}

fn row(choice: &Choice, measured_with: &str) -> Row {
    Row {
        key: choice.key.clone(),
        choice: choice.choice.clone(),
        instead_of: choice.instead_of.clone(),
        measured_with: measured_with.to_owned(),
        step_gain_percent: (choice.gain * 1e4).round() / 100.0,
    }
}

/// A line of the table of steps.
fn line(rows: usize, tuned: &Tuned) -> String {
    let Tuned { before, after, choices } = tuned;
    let gain = 100.0 * (before / after - 1.0);
    format!("| {rows} | {:.3} | {:.3} | {gain:.1} % | {} |", before * 1e3, after * 1e3, choices.len())
}

fn report(
    of_model: &str,
    table: &Table,
    memory: Option<&str>,
    lines: &[String],
    found: &Found,
    begun: Instant,
) -> String {
    let mut out = format!("{of_model} on {}\n", table.device);
    memory.iter().for_each(|line| out.push_str(&format!("memory: {line}\n")));
    out.push('\n');
    out.push_str("| rows | ms a step | tuned | faster by | choices |\n| ---: | ---: | ---: | ---: | ---: |\n");
    lines.iter().for_each(|line| out.push_str(&format!("{line}\n")));
    if !table.rows.is_empty() {
        out.push_str("\n| kernel and shape | launched with | instead of | of the step |\n| --- | --- | --- | ---: |\n");
    }
    for Row { key, choice, instead_of, step_gain_percent, .. } in &table.rows {
        out.push_str(&format!("| {key} | {choice} | {instead_of} | {step_gain_percent} % |\n"));
    }
    let seconds = begun.elapsed().as_secs_f64();
    out.push_str(&format!("\n{} ways were tried in {seconds:.0} s.\n", found.tried));
    for (key, way, why) in &found.wrong {
        out.push_str(&format!("wrong and left out: {key} with {way}: {why}\n"));
    }
    for key in &found.unchecked {
        out.push_str(&format!("left as it is, because nothing here can check it: {key}\n"));
    }
    if !found.left.is_empty() {
        let left = found.left.len();
        out.push_str(&format!("{left} were left as they are, because --budget was used up\n"));
    }
    out
}

/// Writes the winners to the user's table and to the file of `--export`.
fn keep(args: &TuneArgs, table: Table) -> Result<()> {
    if let Some(path) = &args.export {
        table.write(path)?;
        note(&format!("written to {}", path.display()));
    }
    if args.dry_run {
        return Ok(());
    }
    if table.rows.is_empty() {
        note("nothing is faster than what the cost models choose: no table is written");
        return Ok(());
    }
    let path = tuned::file_of(&table.device)
        .context("there is no folder for the table: neither XDG_CACHE_HOME nor a home is known; use --export")?;
    // What an earlier run found of other shapes stays, as long as it is of the same kernels.
    let kept = Table::read(&path).ok().filter(|kept| kept.is_of_the_same(&table));
    let mut all = kept.unwrap_or_else(|| table.without_rows());
    all.merge(&table.rows);
    all.write(&path)?;
    let device = device::resolve(&args.target.device);
    note(&format!("kept in {}: {device} computes so from now on; --tuned off goes back", path.display()));
    Ok(())
}
