//! `hotmetal bench`: how fast a model runs on this machine, beside what its memory gives in the same minutes.

mod args;
mod clock;
mod compare;
mod gpu_roofline;
mod html;
mod kernels;
mod report;
mod roofline;
mod run;
mod serve;
mod shapes;
mod startup;
mod statistics;
mod table;
mod work;
mod workload;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use tensor::WeightFormat;

pub(crate) use args::{BenchArgs, TargetArgs, with_long_pg};
pub(crate) use report::{Device, Facts};
pub(crate) use run::{Parts, Source};
pub(crate) use shapes::SEED;
pub(crate) use statistics::{Percentiles, median};

use crate::ceiling::{Meter, Peak};
use crate::explain;
use crate::load::device::{self, CPU, DeviceSettings};
use crate::load::facts::kv_format_of;
use crate::output::stdout;
use args::{BenchCommand, MeasureArgs, OutputFormat, Test};
use clock::Clock;
use report::{Report, Row, Variants};
use run::{Loaded, Times, milliseconds};
use statistics::{Summary, twentieths};
use work::Work;

/// Runs `hotmetal bench`.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    match &args.command {
        Some(BenchCommand::Kernels(args)) => kernels::kernels(args),
        Some(BenchCommand::Compare(args)) => compare::compare(args),
        Some(BenchCommand::Report(args)) => html::report(args),
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
    let device = device::backend(&args.target.device_settings(None))?.device().clone();
    let facts = Facts::collect(args.repetitions, args.target.shape.as_ref().map(|_| shapes::SEED));
    let mut report = Report::new(&device, facts);
    let thread_counts = args.thread_counts();
    // What batch invariance costs is measured beside it; the CPU has it for nothing.
    let has_price =
        args.target.gpu.batch_invariant && device::gpu_backend(&args.target.device_settings(None))?.is_some();
    let times = if has_price { 2 } else { 1 };
    let progress = progress(thread_counts.len() * tests.len() * args.repetitions * times, "making weights");
    let source = Source::new(&args.target)?;
    for threads in thread_counts {
        progress.set_message(format!("loading {}", source.name()));
        let default_rates = match has_price {
            true => default_rates(args, &source, threads, &tests, &progress)?,
            false => Vec::new(),
        };
        let mut loaded = source.load(&args.target.settings(threads), &tests, args.target.batch_tokens())?;
        loaded.driver.clock = args.clock;
        let mut ceiling = Ceiling::new(&args.target.device_settings(threads), args.clock, &tests, loaded.format)?;
        for (index, test) in tests.iter().enumerate() {
            progress.set_message(format!("{} @ {} × {}", test.name(), test.depth, test.batch));
            let mut row = measured_row(&mut loaded, test, args.repetitions, &mut ceiling, &mut || progress.inc(1))?;
            row.default_tokens_per_s = default_rates.get(index).copied();
            if args.output == OutputFormat::Jsonl {
                progress.suspend(|| stdout(&report.as_json_line(&row)))?;
            }
            report.rows.push(row);
        }
    }
    progress.finish_and_clear();
    match args.output {
        OutputFormat::Md => stdout(&report.as_markdown())?,
        OutputFormat::Csv => stdout(&report.as_csv())?,
        OutputFormat::Json => stdout(&report.as_json())?,
        OutputFormat::Jsonl => {}
    }
    match &args.report {
        Some(path) => html::write(path, &[report], &[]),
        None => Ok(()),
    }
}

/// The median tokens per second of each test without `--batch-invariant`. That model is gone when this returns: a device need
/// not hold two.
fn default_rates(
    args: &MeasureArgs,
    source: &Source<'_>,
    threads: Option<usize>,
    tests: &[Test],
    progress: &ProgressBar,
) -> Result<Vec<f64>> {
    let mut settings = args.target.settings(threads);
    settings.device.gpu.batch_invariant = false;
    let mut loaded = source.load(&settings, tests, args.target.batch_tokens())?;
    let mut rates = Vec::with_capacity(tests.len());
    for test in tests {
        let times = loaded.driver.measure(test, args.repetitions, &mut || progress.inc(1))?;
        rates.push(test.num_tokens() as f64 / median(&times.repetitions));
    }
    Ok(rates)
}

/// A bar on stderr; nothing where that is not a terminal.
fn progress(steps: usize, message: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32!} {wide_bar} {pos}/{len} {eta:>4}")
        .expect("the template is a constant and well formed");
    // Drawn between repetitions only: a thread that animates it would take a processor from what is measured.
    ProgressBar::new(steps as u64).with_style(style).with_message(message)
}

/// What the device that is measured reads and computes at most, taken before and after each test: on virtual machines it
/// changes within minutes, so a test is judged by the better of its two neighbours.
struct Ceiling {
    meter: Meter,
    clock: Clock,
    last_read: Option<f64>,
    last_peak: Option<Peak>,
}

/// The ceilings of one test; `None` where nothing is to be compared with it.
struct Beside {
    /// Bytes per second, where tokens are decoded.
    read: Option<f64>,
    /// Where a prompt is computed alone.
    peak: Option<Peak>,
}

impl Ceiling {
    fn new(settings: &DeviceSettings, clock: Clock, tests: &[Test], format: WeightFormat) -> Result<Self> {
        let meter = Meter::new(settings)?;
        let mut ceiling = Self { meter, clock, last_read: None, last_peak: None };
        if tests.iter().any(|test| test.generate > 0) {
            ceiling.last_read = ceiling.read()?;
        }
        if tests.iter().any(|test| test.generate == 0) {
            ceiling.last_peak = ceiling.meter.peak_of_format(format)?;
        }
        Ok(ceiling)
    }

    /// The ceilings of `test`, just after it.
    fn beside(&mut self, test: &Test, format: WeightFormat) -> Result<Beside> {
        if test.generate > 0 {
            let now = self.read()?;
            let before = std::mem::replace(&mut self.last_read, now);
            return Ok(Beside { read: before.into_iter().chain(now).reduce(f64::max), peak: None });
        }
        let now = self.meter.peak_of_format(format)?;
        let before = std::mem::replace(&mut self.last_peak, now);
        let best = before.into_iter().chain(now).max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s));
        Ok(Beside { read: None, peak: best })
    }

    /// In the time of the clock that steps are measured by.
    fn read(&self) -> Result<Option<f64>> {
        match (&self.meter, self.clock) {
            (Meter::Cpu(_), Clock::Cpu) => Ok(Some(clock::read_bandwidth_of_this_thread())),
            (meter, _) => meter.read_bandwidth(),
        }
    }
}

/// Runs a test, and says what it gave beside what the device can do.
fn measured_row(
    loaded: &mut Loaded,
    test: &Test,
    repetitions: usize,
    ceiling: &mut Ceiling,
    on_repetition: &mut dyn FnMut(),
) -> Result<Row> {
    let times = loaded.driver.measure(test, repetitions, on_repetition)?;
    let kernels = loaded.driver.kernels(test)?;
    let beside = ceiling.beside(test, loaded.format)?;
    Ok(row(loaded, test, &times, &beside, ceiling, kernels))
}

fn row(loaded: &Loaded, test: &Test, times: &Times, beside: &Beside, ceiling: &Ceiling, kernels: Vec<String>) -> Row {
    let work =
        Work { plan: &loaded.plan, kv_format: loaded.kv_format, active_weight_bytes: loaded.active_weight_bytes };
    let samples: Vec<f64> = times.repetitions.iter().map(|seconds| test.num_tokens() as f64 / seconds).collect();
    let decodes = !times.decode_steps_ms.is_empty();
    let latencies = if decodes { &times.decode_steps_ms } else { &times.prompts_ms };
    let active_bytes = work.active_bytes(test);
    let bandwidth = decodes.then(|| active_bytes as f64 / (median(&times.decode_steps_ms) / 1e3));
    let flops_per_s = work.flops(test) / median(&times.repetitions);
    let of_read = bandwidth.zip(beside.read).map(|(bandwidth, read)| bandwidth / read);
    Row {
        test: test.name(),
        model: loaded.model.clone(),
        format: loaded.format_name.clone(),
        device: loaded.device.name.clone(),
        threads: ceiling.meter.threads(),
        batch: test.batch,
        depth: test.depth,
        clock: ceiling.clock.name().to_owned(),
        tokens_per_s: Summary::of(&samples),
        samples,
        default_tokens_per_s: None,
        latency_ms: Percentiles::of(latencies),
        latency_quantiles_ms: twentieths(latencies),
        ttft_ms: (test.prompt > 0).then(|| median(&times.prompts_ms)),
        load_ms: milliseconds(loaded.load_time),
        active_bytes,
        bandwidth_gb_s: bandwidth.map(|bytes_per_s| bytes_per_s / 1e9),
        flops_per_s,
        read_bandwidth_gb_s: beside.read.map(|bytes_per_s| bytes_per_s / 1e9),
        peak_flops_per_s: beside.peak.map(|peak| peak.ops_per_s),
        peak_class: beside.peak.map(|peak| peak.class.to_owned()),
        roofline_share: of_read.or_else(|| beside.peak.map(|peak| flops_per_s / peak.ops_per_s)),
        weight_bytes: loaded.weight_bytes,
        num_parameters: loaded.num_parameters,
        variants: Variants {
            isa: ceiling.meter.isa().to_owned(),
            kv_type: format!("{:?}", loaded.kv_format).to_ascii_lowercase(),
            kernels,
        },
    }
}
