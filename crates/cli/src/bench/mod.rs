//! `hotmetal bench`: how fast a model runs on this machine, beside what its memory gives in the same minutes.

mod args;
mod compare;
mod report;
mod roofline;
mod run;
mod shapes;
mod statistics;
mod work;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use args::BenchArgs;

use crate::load;
use crate::output::stdout;
use args::{BenchCommand, MeasureArgs, OutputFormat, Test};
use report::{Facts, Report, Row, Variants};
use run::{Loaded, Source, Times, milliseconds};
use statistics::{Percentiles, Summary, median};
use work::Work;

/// The device whose memory we can measure.
const CPU: &str = "cpu";

/// Runs `hotmetal bench`.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    match &args.command {
        Some(BenchCommand::Compare(args)) => compare::compare(args),
        None if args.measure.roofline => roofline::roofline(&args.measure),
        None => measure(&args.measure),
    }
}

fn measure(args: &MeasureArgs) -> Result<()> {
    let tests = args.tests()?;
    // Asks for the device before anything large is made.
    let device = load::backend(&args.target.model_args(None))?.device().clone();
    let facts = Facts::collect(args.repetitions, args.target.shape.as_ref().map(|_| shapes::SEED));
    let mut report = Report::new(&device, facts);
    let thread_counts = args.thread_counts();
    let progress = progress(thread_counts.len() * tests.len() * args.repetitions, "making weights");
    let source = Source::new(&args.target)?;
    for threads in thread_counts {
        progress.set_message(format!("loading {}", source.name()));
        let mut loaded = source.load(&args.target.model_args(threads), &tests)?;
        let mut ceiling = Ceiling::new(args, threads, &tests)?;
        for test in &tests {
            progress.set_message(format!("{} @ {} × {}", test.name(), test.depth, test.batch));
            let times = loaded.driver.measure(test, args.repetitions, &mut || progress.inc(1))?;
            let row = row(&loaded, test, &times, ceiling.beside(test), ceiling.threads, ceiling.isa);
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
    Ok(())
}

/// A bar on stderr; nothing where that is not a terminal.
fn progress(steps: usize, message: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32!} {wide_bar} {pos}/{len} {eta:>4}")
        .expect("the template is a constant and well formed");
    // Drawn between repetitions only: a thread that animates it would take a processor from what is measured.
    ProgressBar::new(steps as u64).with_style(style).with_message(message)
}

/// The read bandwidth of the threads that are measured, taken before and after each decode test: on virtual machines it
/// changes within minutes, so a test is judged by the better of its two neighbours.
struct Ceiling {
    cpu: Option<cpu::CpuBackend>,
    last: f64,
    threads: usize,
    isa: &'static str,
}

impl Ceiling {
    fn new(args: &MeasureArgs, threads: Option<usize>, tests: &[Test]) -> Result<Self> {
        if args.target.device != CPU {
            return Ok(Self { cpu: None, last: 0.0, threads: 1, isa: "none" });
        }
        let cpu = load::cpu_backend(&args.target.model_args(threads))?;
        let (threads, isa) = (cpu.threads(), cpu.isa().level().name());
        let decodes = tests.iter().any(|test| test.generate > 0);
        let last = if decodes { cpu.read_bandwidth() } else { 0.0 };
        Ok(Self { last, threads, isa, cpu: Some(cpu) })
    }

    /// Bytes per second, just after `test`; `None` where nothing is to be compared with it.
    fn beside(&mut self, test: &Test) -> Option<f64> {
        let cpu = self.cpu.as_ref().filter(|_| test.generate > 0)?;
        let now = cpu.read_bandwidth();
        Some(std::mem::replace(&mut self.last, now).max(now))
    }
}

fn row(loaded: &Loaded, test: &Test, times: &Times, ceiling: Option<f64>, threads: usize, isa: &'static str) -> Row {
    let work =
        Work { plan: &loaded.plan, kv_format: loaded.kv_format, active_weight_bytes: loaded.active_weight_bytes };
    let samples: Vec<f64> = times.repetitions.iter().map(|seconds| test.num_tokens() as f64 / seconds).collect();
    let decodes = !times.decode_steps_ms.is_empty();
    let latencies = if decodes { &times.decode_steps_ms } else { &times.prompts_ms };
    let active_bytes = work.active_bytes(test);
    let bandwidth = decodes.then(|| active_bytes as f64 / (median(&times.decode_steps_ms) / 1e3));
    Row {
        test: test.name(),
        model: loaded.model.clone(),
        format: loaded.format.name().to_ascii_lowercase(),
        device: loaded.device.name.clone(),
        threads,
        batch: test.batch,
        depth: test.depth,
        tokens_per_s: Summary::of(&samples),
        samples,
        latency_ms: Percentiles::of(latencies),
        ttft_ms: (test.prompt > 0).then(|| median(&times.prompts_ms)),
        load_ms: milliseconds(loaded.load_time),
        active_bytes,
        bandwidth_gb_s: bandwidth.map(|bytes_per_s| bytes_per_s / 1e9),
        flops_per_s: work.flops(test) / median(&times.repetitions),
        read_bandwidth_gb_s: ceiling.map(|bytes_per_s| bytes_per_s / 1e9),
        roofline_share: bandwidth.zip(ceiling).map(|(bandwidth, ceiling)| bandwidth / ceiling),
        weight_bytes: loaded.weight_bytes,
        num_parameters: loaded.num_parameters,
        variants: Variants { isa: isa.to_owned(), kv_type: format!("{:?}", loaded.kv_format).to_ascii_lowercase() },
    }
}
