//! `hotmetal tune`: finds how each kernel is launched best on this device, proves it right, and keeps it.

mod args;
mod search;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use backend::{Tuned, Tuning};
use lab::check::Checks;
use lab::patterns::Random;

pub(crate) use args::TuneArgs;

use super::progress::progress;
use super::run::{Loaded, Source};
use crate::ceiling::Meter;
use crate::load::device;
use crate::load::facts::kv_format_of;
use crate::load::tuned::{Row, Table, TunedFrom};
use crate::model::settings::ModelSettings;
use crate::output::{note, stdout};
use search::{Choice, Found, Search, TunedSteps};

/// The most rows of a step: beyond that a prompt is cut.
const ROWS_MAX: usize = 8192;

/// Runs `hotmetal tune`.
pub(crate) fn tune(args: &TuneArgs) -> Result<()> {
    check_args(args)?;
    let begun = Instant::now();
    // What is tried is in force at once, wherever a kernel is chosen, and as long as the program runs.
    let live: &'static Tuning = Box::leak(Box::new(Tuning::default()));
    let mut settings = args.target.settings(args.threads);
    settings.device.gpu.tuned = TunedFrom::Tried(Tuned::by(live));
    let meter = meter(args, &settings)?;
    // Cost models reckon with it, and it says what there is to be better than.
    let known = meter.known(args.measure)?;
    let mut table = match &meter {
        Meter::Gpu(gpu) => Table::of(gpu),
        Meter::Cpu(_) => Table::of_cpu(&untuned_cpu(&settings)?),
        Meter::None => unreachable!("`meter` refuses it"),
    };
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
    if let (Meter::Cpu(_), true) = (&meter, settings.device.repack && wants("layout")) {
        let choice = layout(args, &source, &settings, &mut loaded, &mut found)?;
        let measured_with = format!("{of_model}, {} rows at {}", args.rows[0], args.depth);
        table.rows.extend(choice.iter().map(|choice| row(choice, &measured_with)));
    }
    bar.finish_and_clear();
    let memory = known.map(|known| known.read_line());
    stdout(&report(&of_model, &table, memory.as_deref(), &lines, &found, begun))?;
    keep(args, table)
}

/// What measures the device that is tuned.
fn meter(args: &TuneArgs, settings: &ModelSettings) -> Result<Meter> {
    match Meter::new(&settings.device)? {
        Meter::None => bail!(
            "tune is about kernels of GPUs and processors: expected --device cpu, cuda, metal or sim, found `{}`",
            args.target.device()
        ),
        meter => Ok(meter),
    }
}

/// The processors as they compute without any table.
fn untuned_cpu(settings: &ModelSettings) -> Result<cpu::CpuBackend> {
    let mut settings = settings.device.clone();
    settings.gpu.tuned = TunedFrom::Nowhere;
    device::cpu_backend(&settings)
}

/// Compares steps with repacked weights and steps with weights as the file has them, and says which are shorter. Both must
/// choose the same tokens.
fn layout(
    args: &TuneArgs,
    source: &Source<'_>,
    settings: &ModelSettings,
    loaded: &mut Loaded,
    found: &mut Found,
) -> Result<Option<Choice>> {
    let rows = args.rows[0];
    let test = search::test_of(rows, args.depth);
    let mut in_rows = settings.clone();
    in_rows.device.repack = false;
    let parts = source.open(&in_rows)?;
    let key = cpu::CpuBackend::layout_key(&parts.weights);
    let [panels, in_place] = [cpu::CpuBackend::IN_PANELS, cpu::CpuBackend::IN_ROWS].map(str::to_owned);
    let batch_tokens = test.kv_len().max(args.target.batch_tokens());
    let mut other = source.load_parts(parts, Instant::now(), &in_rows, &[test], batch_tokens)?;
    found.tried += 1;
    let mut rounds = vec![vec![], vec![]];
    for _ in 0..args.repetitions {
        for (driver, times) in [&mut loaded.driver, &mut other.driver].into_iter().zip(&mut rounds) {
            times.push(search::sample(driver, &test)?);
        }
        if loaded.driver.tokens() != other.driver.tokens() {
            let why = "it chooses other tokens than repacked weights".to_owned();
            found.wrong.push((key, in_place, why));
            return Ok(None);
        }
    }
    let gain = search::winner(&rounds).map(|(_, gain)| gain);
    Ok(gain.map(|gain| Choice { key, choice: in_place, instead_of: panels, gain }))
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
    let backend = device::backend(&settings.device)?;
    #[cfg(debug_assertions)]
    let backend = crate::planted::wrong_way(backend, live);
    let checks = Checks::new(backend, live, &parts.plan, &parts.weights, kv_format)?;
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
fn line(rows: usize, tuned: &TunedSteps) -> String {
    let TunedSteps { before, after, choices } = tuned;
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
    let path = table
        .file()
        .context("there is no folder for the table: neither XDG_CACHE_HOME nor a home is known; use --export")?;
    // What an earlier run found of other shapes stays, as long as it is of the same kernels.
    let kept = Table::read_kept(&path).ok().filter(|kept| kept.is_of_the_same(&table));
    let mut all = kept.unwrap_or_else(|| table.without_rows());
    all.merge(&table.rows);
    all.keep(&path)?;
    let device = device::resolve(&args.target.device);
    note(&format!("kept in {}: {device} computes so from now on; --tuned off goes back", path.display()));
    Ok(())
}
