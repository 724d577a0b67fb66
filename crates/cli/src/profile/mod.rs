//! `hotmetal profile`: where the time of prefill and decode goes, op by op, thread by thread, and on the host.
//!
//! A request runs through the engine as a user's would, while the device records its steps (`backend::profile`); `run`
//! takes the time of what the host does around them, `summary` adds it all up, `trace` writes it down event by event.

mod args;
mod report;
mod run;
mod summary;
mod trace;

use anyhow::Result;
use plan::StepShape;
use tensor::WeightFormat;

pub(crate) use args::ProfileArgs;

use crate::bench::{Device, Facts, Parts, SEED, Source, TargetArgs, main_format};
use crate::load;
use crate::output::{note, stdout};
use args::OutputFormat;
use report::{ProgramRow, Report, VariantsReport};
use run::{Phase, Session};
use summary::{Ceiling, summarize};
use trace::TraceFile;

/// Runs `hotmetal profile`.
pub(crate) fn profile(args: &ProfileArgs) -> Result<()> {
    if args.variants { variants(args) } else { record(args) }
}

fn record(args: &ProfileArgs) -> Result<()> {
    let phases = args.phases()?;
    // Asks for the device and the file before anything large is made.
    let trace = args.trace.as_deref().map(TraceFile::create).transpose()?;
    let device = load::backend(&args.target.model_args(args.threads))?.device().clone();
    let facts = Facts::collect(args.repetitions, args.target.shape.as_ref().map(|_| SEED));
    let source = Source::new(&args.target)?;
    let parts = source.open(&args.target.model_args(args.threads))?;
    let format = main_format(&parts.weights);
    let mut session = Session::new(&args.target, parts, args.threads, &phases)?;
    let meter = Meter::new(&args.target, args.threads, format)?;
    let clock_reading_ns = session.clock_reading_ns();
    let mut before = meter.ceiling();
    let (mut all, mut summaries) = (Vec::new(), Vec::new());
    for phase in phases {
        let measured = session.measure(phase, args.repetitions)?;
        let after = meter.ceiling();
        let ceiling = std::mem::replace(&mut before, after).or_better(after);
        if let Phase::Prefill { depth, .. } = phase
            && measured.depth != depth
        {
            note(&format!(
                "{}: {} of the {depth} tokens of --depth came from the cache, which shares whole blocks of {}; the \
                 others were computed with the prompt",
                phase.name(),
                measured.depth,
                load::KV_BLOCK_LEN
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
        sampling: "greedy",
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
    let model_args = args.target.model_args(args.threads);
    let Parts { plan, backend, weights } = source.open(&model_args)?;
    let (device, format) = (Device::from(backend.device()), main_format(&weights));
    let kv_format = load::kv_format(&model_args, weights.iter().map(|weight| Some(weight.format())));
    let num_blocks = plan.context_len.div_ceil(load::KV_BLOCK_LEN);
    let kv = plan::KvLayout { format: kv_format, block_len: load::KV_BLOCK_LEN, num_blocks };
    let mut executable = backend.load(plan, weights, kv)?;
    let mut programs = Vec::new();
    for phase in phases {
        let shape = StepShape { tokens: phase.tokens_of_a_step(), sequences: 1, outputs: 1 };
        programs.push(ProgramRow::new(phase.name(), shape, &executable.variants(shape)?));
    }
    let report = VariantsReport {
        device,
        model: source.name().to_owned(),
        format: format.name().to_ascii_lowercase(),
        threads: load::cpu_backend(&model_args)?.threads(),
        programs,
    };
    stdout(&match args.output {
        OutputFormat::Md => report.as_markdown(),
        OutputFormat::Json => report.as_json(),
    })?;
    Ok(())
}

/// Measures what the threads of the profiled device could do at best.
struct Meter {
    cpu: cpu::CpuBackend,
    format: WeightFormat,
}

impl Meter {
    fn new(target: &TargetArgs, threads: Option<usize>, format: WeightFormat) -> Result<Self> {
        Ok(Self { cpu: load::cpu_backend(&target.model_args(threads))?, format })
    }

    fn threads(&self) -> usize {
        self.cpu.threads()
    }

    fn ceiling(&self) -> Ceiling {
        let peak = cpu::peak_of_format(self.format, self.threads());
        Ceiling {
            read_bandwidth_gb_s: self.cpu.read_bandwidth() / 1e9,
            peak_flops_per_s: peak.map(|peak| peak.ops_per_s),
            peak_instruction: peak.map(|peak| peak.instruction),
        }
    }
}
