//! `hotmetal profile`: where the time of prefill and decode goes, op by op, thread by thread, and on the host.
//!
//! A request runs through the engine as a user's would, while the device records its steps (`backend::profile`); `run`
//! takes the time of what the host does around them, `summary` adds it all up, `trace` writes it down event by event.

mod args;
mod gaps;
mod report;
mod run;
mod stored;
mod summary;
mod trace;

use anyhow::{Context, Result};
use lab::patterns::SEED;
use plan::StepShape;
use tensor::{Tensor, WeightFormat};

pub(crate) use args::ProfileArgs;
pub(crate) use stored::STORED;

use crate::bench::{Device, Facts, Parts, Source, TargetArgs};
use crate::ceiling;
use crate::load::device;
use crate::load::facts::{KV_BLOCK_LEN, kv_format_of, main_format};
use crate::output::{note, stdout};
use args::OutputFormat;
use report::{ProgramRow, Report, VariantsReport};
use run::{Phase, Session};
use summary::{Ceiling, Peak, summarize};
use trace::TraceFile;

/// Runs `hotmetal profile`.
pub(crate) fn profile(args: &ProfileArgs) -> Result<()> {
    if args.variants { variants(args) } else { record(args) }
}

fn record(args: &ProfileArgs) -> Result<()> {
    let phases = args.phases()?;
    // Asks for the device and the file before anything large is made.
    let trace = args.trace.as_deref().map(TraceFile::create).transpose()?;
    let device = device::backend(&args.target.device_settings(args.threads))?.device().clone();
    let facts = Facts::collect(args.repetitions, args.target.shape.as_ref().map(|_| SEED));
    let source = Source::new(&args.target)?;
    let parts = source.open(&args.target.settings(args.threads))?;
    let format = main_format(&parts.weights);
    let meter = Meter::new(&args.target, args.threads, &parts.weights)?;
    let mut session = Session::new(&args.target, parts, args.threads, &phases)?;
    let clock_reading_ns = session.clock_reading_ns();
    let mut before = meter.ceiling()?;
    let (mut all, mut summaries) = (Vec::new(), Vec::new());
    for phase in phases {
        let measured = session.measure(phase, args.repetitions)?;
        let after = meter.ceiling()?;
        let ceiling = std::mem::replace(&mut before, after.clone()).or_better(after);
        if let Phase::Prefill { depth, .. } = phase
            && measured.depth != depth
        {
            note(&format!(
                "{}: {} of the {depth} tokens of --depth came from the cache, which shares whole blocks of {}; the \
                 others were computed with the prompt",
                phase.name(),
                measured.depth,
                KV_BLOCK_LEN
            ));
        }
        summaries.push(summarize(&measured, ceiling, clock_reading_ns));
        all.push(measured);
    }
    if let Some(trace) = trace {
        trace.write(&format!("hotmetal profile, {}", source.name()), &all)?;
    }
    let report = Report {
        profiled: true,
        device: Device::from(&device),
        run: facts,
        model: source.name().to_owned(),
        format: format.name().to_ascii_lowercase(),
        threads: meter.threads(),
        sampling: "greedy".into(),
        decodes_text: session.decodes_text(),
        phases: summaries,
    };
    stdout(&match args.output {
        OutputFormat::Md => report.as_markdown(),
        OutputFormat::Json => report.as_json(),
    })?;
    Ok(())
}

fn variants(args: &ProfileArgs) -> Result<()> {
    let phases = args.phases()?;
    let source = Source::new(&args.target)?;
    let settings = args.target.settings(args.threads);
    let Parts { plan, backend, weights } = source.open(&settings)?;
    let (device, format) = (Device::from(backend.device()), main_format(&weights));
    let kv_format = kv_format_of(settings.cache.format, &weights);
    let num_blocks = run::longest_request(&plan, &phases)?.div_ceil(KV_BLOCK_LEN);
    let kv = plan::KvLayout { format: kv_format, block_len: KV_BLOCK_LEN, num_blocks };
    let mut executable = backend.load(plan, weights, kv)?;
    executable.settle()?;
    let mut programs = Vec::new();
    for phase in phases {
        let shape = StepShape { tokens: phase.tokens_of_a_step(args.target.batch_tokens()), sequences: 1, outputs: 1 };
        programs.push(ProgramRow::new(phase.name(), shape, &executable.variants(shape)?));
    }
    let report = VariantsReport {
        device,
        model: source.name().to_owned(),
        format: format.name().to_ascii_lowercase(),
        threads: device::cpu_backend(&settings.device)?.threads(),
        programs,
    };
    stdout(&match args.output {
        OutputFormat::Md => report.as_markdown(),
        OutputFormat::Json => report.as_json(),
    })?;
    Ok(())
}

/// Measures what the profiled device could do at best.
struct Meter {
    meter: ceiling::Meter,
    /// Formats whose products are measured; F32 is that of ops without matrices.
    formats: Vec<WeightFormat>,
}

impl Meter {
    fn new(target: &TargetArgs, threads: Option<usize>, weights: &[Tensor]) -> Result<Self> {
        let matrices = weights.iter().filter(|weight| weight.shape().len() > 1).map(Tensor::format);
        let mut formats: Vec<_> = matrices.chain([WeightFormat::F32]).collect();
        formats.sort_unstable();
        formats.dedup();
        Ok(Self { meter: ceiling::Meter::new(&target.device_settings(threads))?, formats })
    }

    fn threads(&self) -> usize {
        self.meter.threads()
    }

    fn ceiling(&self) -> Result<Ceiling> {
        let mut peaks = Vec::new();
        for format in &self.formats {
            if let Some(ceiling::Peak { instruction, ops_per_s, .. }) = self.meter.peak_of_format(*format)? {
                let format = format.name().to_ascii_lowercase();
                peaks.push(Peak { format, flops_per_s: ops_per_s, instruction: instruction.into() });
            }
        }
        // Nothing that can be recorded is without one.
        let read_bandwidth_gb_s = self.meter.read_bandwidth()?.context("no room to measure the memory in")? / 1e9;
        Ok(Ceiling { read_bandwidth_gb_s, peaks })
    }
}
