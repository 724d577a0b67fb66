//! `hotmetal bench`: how fast a model runs on this machine, beside what its memory gives in the same minutes.

mod args;
mod clock;
mod compare;
mod gpu_roofline;
mod history;
mod html;
mod impact;
mod kernels;
mod measured;
mod progress;
mod record;
mod report;
mod roofline;
mod run;
mod serve;
mod shapes;
mod startup;
mod table;
mod tune;
mod work;
mod workload;

use anyhow::Result;
use indicatif::ProgressBar;
use lab::patterns::SEED;
use lab::statistics::median;
use serde_json::{Value, json};

pub(crate) use args::{BenchArgs, TargetArgs, with_long_pg};
pub(crate) use compare::warn_of_difference;
pub(crate) use record::{RecordArgs, read_all as read_records};
pub(crate) use report::{Device, Facts, SCHEMA};
pub(crate) use run::{Parts, Source};
pub(crate) use tune::{TuneArgs, tune};

use crate::explain;
use crate::load::device;
use crate::load::facts::kv_format_of;
use crate::output::stdout;
use args::{BenchCommand, MeasureArgs, OutputFormat, Test};
use measured::{Ceiling, measured_row};
use progress::progress;
use report::Report;

/// A result that was kept, with the name of its file.
type Kept<'a> = (&'a str, Value);

/// What reads profiles that were kept. Given to this module, because `crate::profile` is built on it.
pub(crate) struct Profiles {
    /// Whether it is what `hotmetal profile -o json` prints.
    pub(crate) is_profile: fn(&Value) -> bool,
    /// The table of a profile, from the file of that name.
    pub(crate) printed: fn(&str, Value) -> Result<String>,
    /// What changed from the first to the second.
    pub(crate) compared: fn(Kept<'_>, Kept<'_>) -> Result<String>,
}

/// Runs `hotmetal bench`.
pub(crate) fn bench(args: &BenchArgs, profiles: &Profiles) -> Result<()> {
    match &args.command {
        Some(BenchCommand::Kernels(args)) => kernels::kernels(args),
        Some(BenchCommand::Compare(args)) => compare::compare(args, profiles),
        Some(BenchCommand::History(args)) => history::history(args),
        Some(BenchCommand::Impact(args)) => impact::impact(args),
        Some(BenchCommand::Report(args)) => html::report(args, profiles),
        Some(BenchCommand::Serve(args)) => serve::serve(args),
        Some(BenchCommand::Table(args)) => table::table(args),
        None if args.measure.explain_dispatch => explain_dispatch(&args.measure),
        None if args.measure.startup => startup::startup(&args.measure),
        None if args.measure.roofline => roofline::roofline(&args.measure),
        None => measure(&args.measure),
    }
}

fn explain_dispatch(args: &MeasureArgs) -> Result<()> {
    let source = Source::new(&args.target)?;
    let settings = args.target.settings(args.thread_counts()[0]);
    let Parts { plan, backend, weights } = source.open(&settings)?;
    let kv_format = kv_format_of(settings.cache.format, &weights);
    Ok(stdout(&explain::dispatch(source.name(), plan, &*backend, weights, kv_format)?)?)
}

fn measure(args: &MeasureArgs) -> Result<()> {
    let tests = args.tests()?;
    args.clock.check(&args.threads)?;
    // Asks for the device before anything large is made.
    let thread_counts = args.thread_counts();
    // Of the number of threads, where there is one: a table of tuned choices is of that.
    let threads = if let [threads] = thread_counts[..] { threads } else { None };
    let device = device::backend(&args.target.device_settings(threads))?.device().clone();
    let facts = Facts::collect(args.repetitions, args.target.shape.as_ref().map(|_| SEED));
    let mut report = Report::new(&device, facts);
    // What batch invariance costs is measured beside it; the CPU has it for nothing. So is what a fusion or a recording
    // gives.
    let is_gpu = || anyhow::Ok(device::gpu_backend(&args.target.device_settings(None))?.is_some());
    let has_price = !args.without.is_empty() || args.target.gpu.batch_invariant && is_gpu()?;
    let times = if has_price { 2 } else { 1 };
    let progress = progress(thread_counts.len() * tests.len() * args.repetitions * times, "making weights");
    let source = Source::new(&args.target)?;
    let mut ceilings = vec![];
    for threads in thread_counts {
        progress.set_message(format!("loading {}", source.name()));
        // Refused, where it must be, before anything is measured.
        let settings = args.settings_without(threads)?;
        let defaults = match has_price {
            true => measure_defaults(args, &source, threads, &tests, &progress)?,
            false => Vec::new(),
        };
        let mut loaded = source.load(&settings, &tests, args.target.batch_tokens())?;
        loaded.driver.clock = args.clock;
        let mut ceiling = Ceiling::new(&args.target.device_settings(threads), args.clock, &tests, loaded.format)?;
        for (index, test) in tests.iter().enumerate() {
            progress.set_message(format!("{} @ {} × {}", test.name(), test.depth, test.batch));
            let mut row = measured_row(&mut loaded, test, args.repetitions, &mut ceiling, &mut || progress.inc(1))?;
            if let Some(default) = defaults.get(index) {
                row.default_tokens_per_s = Some(default.tokens_per_s);
                row.has_default_tokens = Some(default.tokens == loaded.driver.tokens());
                args.check_same_tokens(&row)?;
            }
            if args.output() == OutputFormat::Jsonl {
                progress.suspend(|| stdout(&report.as_json_line(&row)))?;
            }
            report.rows.push(row);
        }
        ceilings.push(ceiling);
    }
    ceilings.iter().for_each(Ceiling::keep);
    progress.finish_and_clear();
    match args.output() {
        // A line of nineteen cells is broken on most terminals; who asks for more gets them all.
        OutputFormat::Md if args.output.is_none() && is_for_a_reader() => stdout(&report.as_columns())?,
        OutputFormat::Md => stdout(&report.as_markdown())?,
        OutputFormat::Csv => stdout(&report.as_csv())?,
        OutputFormat::Json => stdout(&report.as_json())?,
        OutputFormat::Jsonl => {}
    }
    args.record.keep(&json!(report), &report.device, &report.run, None)?;
    match &args.report {
        Some(path) => html::write(path, &[report], &[]),
        None => Ok(()),
    }
}

/// Whether somebody reads the result as it is printed, and has not asked for more with `-v`.
fn is_for_a_reader() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout()) && !tracing::enabled!(tracing::Level::INFO)
}

/// A test without `--batch-invariant` and `--without`.
struct DefaultRun {
    /// The median.
    tokens_per_s: f64,
    /// Those that were chosen.
    tokens: Vec<u32>,
}

/// Measures each test without `--batch-invariant` and `--without`. That model is gone when this returns: a device need
/// not hold two.
fn measure_defaults(
    args: &MeasureArgs,
    source: &Source<'_>,
    threads: Option<usize>,
    tests: &[Test],
    progress: &ProgressBar,
) -> Result<Vec<DefaultRun>> {
    let mut settings = args.target.settings(threads);
    settings.device.gpu.batch_invariant = false;
    let mut loaded = source.load(&settings, tests, args.target.batch_tokens())?;
    loaded.driver.clock = args.clock;
    let mut defaults = Vec::with_capacity(tests.len());
    for test in tests {
        let times = loaded.driver.measure(test, args.repetitions, &mut || progress.inc(1))?;
        let tokens_per_s = test.num_tokens() as f64 / median(&times.repetitions);
        defaults.push(DefaultRun { tokens_per_s, tokens: loaded.driver.tokens().to_vec() });
    }
    Ok(defaults)
}
