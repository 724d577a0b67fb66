//! The flags of `hotmetal bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};

use super::clock::Clock;
use super::record::RecordArgs;
use super::report::Row;
use crate::load::args::{GpuArgs, KvType, parse_isa};
use crate::load::device::{self, AUTO, DeviceSettings};
use crate::load::plan::{SHARED_SLOT, pass};
use crate::load::sizes::{self, CacheSettings};
use crate::model::settings::ModelSettings;

/// Measure how fast a model runs here, beside what the memory gives
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(super) command: Option<BenchCommand>,

    #[command(flatten)]
    pub(super) measure: MeasureArgs,
}

/// What else `bench` does.
#[derive(Debug, Subcommand)]
pub(super) enum BenchCommand {
    Kernels(Box<KernelsArgs>),
    Compare(CompareArgs),
    History(super::history::HistoryArgs),
    Impact(Box<super::impact::ImpactArgs>),
    Report(ReportArgs),
    Serve(Box<super::serve::args::ServeArgs>),
    Table(Box<TableArgs>),
}

/// Measure the rows of docs/performance/today.md in one run, beside what the device gives, and on an H200 what each
/// must reach
#[derive(Args, Debug)]
pub(super) struct TableArgs {
    /// Only rows with one of these in their names, for example 'q8_0 decode' or qwen
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub(super) only: Vec<String>,

    /// Only print the names of the rows
    #[arg(long)]
    pub(super) list: bool,

    /// Tokens to generate in rows that decode
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    pub(super) n_gen: usize,

    /// How often each row is measured, after a warm-up
    #[arg(long, short = 'r', value_name = "N", default_value_t = 3)]
    pub(super) repetitions: usize,

    /// Show the figures of other programs from these records beside ours: they name the command, the device, and of
    /// each program the version and the bytes of its weights
    #[arg(long, value_name = "RECORD.json")]
    pub(super) peers: Vec<PathBuf>,

    /// Where to compute, as for `bench`
    #[arg(long, value_name = "DEVICE", default_value = AUTO)]
    pub(super) device: String,

    #[command(flatten)]
    pub(super) gpu: GpuArgs,

    /// How to print the result: md, json, or jsonl (each row as soon as it is measured)
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Md)]
    pub(super) output: OutputFormat,

    #[command(flatten)]
    pub(super) record: RecordArgs,
}

/// Make one page of results of `bench -o json` and `bench kernels -o json`, or print those of `profile -o json` again
#[derive(Args, Debug)]
pub(super) struct ReportArgs {
    /// Results to show together
    #[arg(value_name = "RESULT.json", required = true)]
    pub(super) results: Vec<PathBuf>,

    /// The page to write; profiles are printed, and have none
    #[arg(long, short = 'o', value_name = "OUT.html")]
    pub(super) output: Option<PathBuf>,
}

/// Measure each op of a model by itself, and the steps from a textbook loop to the shipped kernel
#[derive(Args, Debug)]
pub(super) struct KernelsArgs {
    /// The model whose ops and shapes are measured, as for `bench`; without it, the built-in model
    #[arg(value_name = "MODEL", conflicts_with = "shape")]
    pub(super) model: Option<String>,

    /// A known model's shapes instead of a file's
    #[arg(long, value_name = "NAME")]
    pub(super) shape: Option<String>,

    /// Measure all ops (those that fused ops are made of, and the ladder, too), formats, instruction sets and numbers of rows
    /// that no flag narrows down, which takes long
    #[arg(long)]
    pub(super) all: bool,

    /// Ops to measure, as plans name them, or gemv for the ladder [default: those of the model as it runs]
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub(super) op: Vec<String>,

    /// Formats of the matrices [default: Q8_0 and Q4_0; with --all all]
    #[arg(long, value_name = "FORMAT", value_delimiter = ',')]
    pub(super) format: Vec<String>,

    /// Instruction sets of the CPU kernels [default: the one that models run at; with --all each that this processor has]
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', value_parser = parse_isa)]
    pub(super) isa: Vec<cpu::IsaLevel>,

    /// Use weights as files have them: the kernels of `bench --no-repack`
    #[arg(long)]
    pub(super) no_repack: bool,

    /// Rows that an op computes at once: tokens of a step [default: 1, 16 and 512; with --all 1, 2, 4, 8, 16, 64 and 512]
    #[arg(long, short = 'm', value_name = "M", value_delimiter = ',')]
    pub(super) rows: Vec<usize>,

    /// CPU threads [default: one for each core]
    #[arg(long, short = 't', value_name = "N", value_delimiter = ',')]
    pub(super) threads: Vec<usize>,

    /// Tokens in the cache before the rows of an attention
    #[arg(long, short = 'd', value_name = "N", default_value_t = 1024)]
    pub(super) depth: usize,

    /// Samples of each time, after a warm-up
    #[arg(long, short = 'r', value_name = "N", default_value_t = 5)]
    pub(super) repetitions: usize,

    /// MiB of weights that are gone through before the first are read again [default: as much as no cache holds]
    #[arg(long, value_name = "MIB")]
    pub(super) rotate: Option<u64>,

    /// Where to compute: auto (the first NVIDIA GPU, the CPU without one), cpu, cuda or cuda:N (an NVIDIA GPU), metal or
    /// metal:N (an Apple GPU), or reference
    /// (plain f64, for comparison)
    #[arg(long, value_name = "DEVICE", default_value = AUTO)]
    pub(super) device: String,

    #[command(flatten)]
    pub(super) gpu: GpuArgs,

    /// NVIDIA GPU: measure cuBLASLt, if it is installed, beside products of F16 and BF16 matrices: the product alone, without
    /// norm, gate, bias or residual, and with results of 16 bits
    #[arg(long)]
    pub(super) vendor: bool,

    /// Element type of the KV cache [default: f16]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(super) kv_type: Option<KvType>,

    /// How to print the result
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Md)]
    pub(super) output: OutputFormat,

    /// Also write the result as a page with plots
    #[arg(long, value_name = "OUT.html")]
    pub(super) report: Option<PathBuf>,
}

impl KernelsArgs {
    /// The device that `--device` stands for.
    pub(super) fn device(&self) -> &str {
        device::resolve(&self.device)
    }

    /// The device that is measured, with these threads and this instruction set.
    pub(super) fn device_settings(&self, threads: Option<usize>, isa: Option<cpu::IsaLevel>) -> DeviceSettings {
        let (name, gpu) = (self.device().to_owned(), self.gpu.settings());
        DeviceSettings { name, gpu, threads, isa, repack: !self.no_repack }
    }

    /// Whether `op` was asked for.
    pub(super) fn wants(&self, op: &str) -> bool {
        self.op.is_empty() || self.names(op)
    }

    /// Whether a flag names `op`.
    pub(super) fn names(&self, op: &str) -> bool {
        self.op.iter().any(|wanted| wanted == op)
    }

    /// Whether flags leave anything to choose, and the choice is the quick set.
    pub(super) fn is_quick(&self) -> bool {
        let leaves = self.op.is_empty() || self.format.is_empty() || self.rows.is_empty() || self.isa.is_empty();
        !self.all && leaves
    }

    /// The numbers of rows.
    pub(super) fn rows(&self) -> &[usize] {
        match (self.rows.is_empty(), self.all) {
            (false, _) => &self.rows,
            (true, false) => &[1, 16, 512],
            (true, true) => &[1, 2, 4, 8, 16, 64, 512],
        }
    }
}

/// Compare two results of `bench -o json`, row by row, or two of `profile -o json`, op by op
#[derive(Args, Debug)]
pub(super) struct CompareArgs {
    /// The result before
    #[arg(value_name = "A.json")]
    pub(super) before: PathBuf,

    /// The result after
    #[arg(value_name = "B.json")]
    pub(super) after: PathBuf,
}

/// Which model is measured, and where.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it, the built-in model
    #[arg(value_name = "MODEL", conflicts_with = "shape")]
    pub(crate) model: Option<String>,

    /// Random weights in the exact shapes of this model, made in memory
    #[arg(long, value_name = "NAME")]
    pub(crate) shape: Option<String>,

    /// Format of the matrices of --shape, as files that `quantize` writes have them: q4_0 (the head in more bits), q4_k_m or
    /// another; or int4 (groups of 128), or int4_asym (with zero points) [default: q8_0]
    #[arg(long, value_name = "FORMAT", requires = "shape")]
    pub(crate) format: Option<String>,

    /// Where to compute: auto (the first NVIDIA GPU, the CPU without one), cpu, cuda or cuda:N (an NVIDIA GPU), metal or
    /// metal:N (an Apple GPU), or reference
    /// (plain f64, for comparison)
    #[arg(long, value_name = "DEVICE", default_value = AUTO)]
    pub(crate) device: String,

    #[command(flatten)]
    pub(crate) gpu: GpuArgs,

    /// Instruction set of the CPU kernels [default: the best there is]
    #[arg(long, value_name = "LEVEL", value_parser = parse_isa)]
    pub(crate) isa: Option<cpu::IsaLevel>,

    /// Use Q8_0 weights where the file has them, without the copy that streams better
    #[arg(long)]
    pub(crate) no_repack: bool,

    /// Element type of the KV cache [default: f32 for F32 weights, f16 for all others]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) kv_type: Option<KvType>,

    /// Tokens of a prompt computed in one step [default: as run and serve do, 2048 on an NVIDIA GPU, else 512]
    #[arg(long, alias = "ubatch-size", value_name = "N", value_parser = at_least_one)]
    pub(crate) batch_tokens: Option<usize>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&tokens| tokens > 0).ok_or_else(|| "expected a number from 1 on".to_owned())
}

impl TargetArgs {
    /// Tokens of a prompt that a step computes at most.
    pub(crate) fn batch_tokens(&self) -> usize {
        self.batch_tokens.unwrap_or_else(|| sizes::batch_tokens(self.device()))
    }

    /// The device that `--device` stands for: figures are of one device, so a model that does not fit it is refused.
    pub(crate) fn device(&self) -> &str {
        device::resolve(&self.device)
    }

    /// The device that is measured, with this number of threads.
    pub(crate) fn device_settings(&self, threads: Option<usize>) -> DeviceSettings {
        let (name, gpu) = (self.device().to_owned(), self.gpu.settings());
        DeviceSettings { name, gpu, threads, isa: self.isa, repack: !self.no_repack }
    }

    /// As the loader takes the flags, with this number of threads.
    pub(crate) fn settings(&self, threads: Option<usize>) -> ModelSettings {
        let cache = CacheSettings { ctx_size: None, format: self.kv_type.map(Into::into) };
        ModelSettings { cache, ..ModelSettings::on(self.device_settings(threads)) }
    }
}

/// What to measure and how.
#[derive(Args, Debug)]
pub(super) struct MeasureArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,

    /// Prompt lengths to measure in tokens; 0 for none
    #[arg(long, short = 'p', value_name = "N", value_delimiter = ',', default_value = "512")]
    pub(super) n_prompt: Vec<usize>,

    /// Numbers of tokens to generate; 0 for none
    #[arg(long, short = 'n', value_name = "N", value_delimiter = ',', default_value = "128")]
    pub(super) n_gen: Vec<usize>,

    /// A prompt of P tokens and N generated ones, timed together; several as 512+128,64+32 or by giving it again. As in
    /// llama-bench, -pg 512,128 is one
    #[arg(long, value_name = "P+N", value_parser = parse_pg)]
    pg: Vec<PromptsAndGenerated>,

    /// Tokens that are in the cache already when a test begins
    #[arg(long, short = 'd', alias = "n-depth", value_name = "N", value_delimiter = ',', default_value = "0")]
    pub(super) depth: Vec<usize>,

    /// Sequences to decode at once
    #[arg(long, short = 'b', value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(super) batch: Vec<usize>,

    /// CPU threads [default: one for each core]
    #[arg(long, short = 't', value_name = "N", value_delimiter = ',')]
    pub(super) threads: Vec<usize>,

    /// How often each test is repeated, after a warm-up
    #[arg(long, short = 'r', value_name = "N", default_value_t = 5)]
    pub(super) repetitions: usize,

    /// Measure without something, beside the same with it: fusion=OP without the pass that makes this fused op, fusion=all
    /// without any, pass=PASS without any other pass over the plan (restrict_outputs computes the last layer for the
    /// rows that are wanted), recording with each launch of a step submitted by itself; may be given for several. The
    /// result says what it is worth
    #[arg(long, value_name = "fusion=OP|pass=PASS|recording", value_delimiter = ',', value_parser = parse_without)]
    #[arg(conflicts_with_all = ["roofline", "startup", "explain_dispatch"])]
    pub(super) without: Vec<LeftOut>,

    /// What times a step; cpu is the processor time of one thread, which a busy machine falsifies little
    #[arg(long, value_enum, value_name = "CLOCK", default_value_t = Clock::Wall)]
    pub(super) clock: Clock,

    /// Only show which kernel computes each op, by the rows of a step
    #[arg(long, conflicts_with_all = ["n_prompt", "n_gen", "pg", "depth", "batch", "report", "roofline", "startup"])]
    pub(super) explain_dispatch: bool,

    /// Measure the device instead of a model: reading and copying, each class of instructions; of a GPU, launches and barriers too
    #[arg(long, conflicts_with_all = ["model", "shape", "n_prompt", "n_gen", "pg", "depth", "batch", "kv_type"])]
    pub(super) roofline: bool,

    /// Measure from the start of a new process to its first token, with the model's file in the system's cache and without
    #[arg(long, conflicts_with_all = ["roofline", "n_prompt", "n_gen", "pg", "depth", "batch", "kv_type", "report"])]
    pub(super) startup: bool,

    /// How to print the result
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT")]
    pub(super) output: Option<OutputFormat>,

    /// Also write the result as a page with plots
    #[arg(long, value_name = "OUT.html", conflicts_with = "roofline")]
    pub(super) report: Option<PathBuf>,

    #[command(flatten)]
    pub(super) record: RecordArgs,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A table with the columns of llama-bench, and more to their right.
    Md,
    /// One line a row, with a header.
    Csv,
    /// One object: what `bench compare` reads.
    Json,
    /// One object a row, as soon as it is measured.
    Jsonl,
}

/// One measurement: `prompt` tokens at once and then `generate` one by one, after `depth` tokens, in `batch` sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) prompt: usize,
    pub(super) generate: usize,
    pub(super) depth: usize,
    pub(super) batch: usize,
}

impl Test {
    /// `pp512`, `tg128` or `pg512+128`.
    pub(super) fn name(&self) -> String {
        match (self.prompt, self.generate) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, generate) => format!("tg{generate}"),
            (prompt, generate) => format!("pg{prompt}+{generate}"),
        }
    }

    /// Tokens in the cache of a sequence when the test ends.
    pub(super) fn kv_len(&self) -> usize {
        self.depth.saturating_add(self.prompt).saturating_add(self.generate)
    }

    /// Tokens that one repetition computes, over all sequences.
    pub(super) fn num_tokens(&self) -> usize {
        (self.prompt + self.generate) * self.batch
    }
}

/// What is left out for comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LeftOut {
    /// Passes that do not change the plan.
    Passes(Vec<&'static str>),
    /// Steps are not recorded: each launch is submitted by itself.
    Recording,
}

/// `fusion=norm_glu`, `fusion=all`, `pass=restrict_outputs` or `recording`.
fn parse_without(text: &str) -> Result<LeftOut, String> {
    let names = || plan::FUSIONS.iter().map(|fusion| fusion.name).chain([SHARED_SLOT]);
    let expected = || {
        let names = names().collect::<Vec<_>>().join(", ");
        format!("expected recording, pass=PASS, or fusion=OP with one of all, {names}")
    };
    if text == "recording" {
        return Ok(LeftOut::Recording);
    }
    if let Some(name) = text.strip_prefix("pass=") {
        return pass(name).map(|name| LeftOut::Passes(vec![name]));
    }
    let name = text.strip_prefix("fusion=").ok_or_else(expected)?;
    match names().find(|&known| known == name) {
        Some(known) => Ok(LeftOut::Passes(vec![known])),
        None if name == "all" => Ok(LeftOut::Passes(names().collect())),
        None => Err(expected()),
    }
}

impl MeasureArgs {
    /// The passes that do not change the plan.
    fn without_passes(&self) -> Vec<&'static str> {
        let passes = self.without.iter().filter_map(|left_out| match left_out {
            LeftOut::Passes(names) => Some(names),
            LeftOut::Recording => None,
        });
        passes.flatten().copied().collect()
    }

    /// As the loader takes the flags, with this number of threads and without what `--without` names.
    pub(super) fn settings_without(&self, threads: Option<usize>) -> Result<ModelSettings> {
        let mut settings = self.target.settings(threads);
        settings.without_passes = self.without_passes();
        if self.without.contains(&LeftOut::Recording) {
            settings.device = settings.device.without_recording()?;
        }
        Ok(settings)
    }

    /// Refuses a row without recording whose tokens are not those of recorded steps: the same launches in the same order
    /// must choose the same tokens, or two computations would be compared.
    pub(super) fn check_same_tokens(&self, row: &Row) -> Result<()> {
        if self.without == [LeftOut::Recording]
            && !self.target.gpu.batch_invariant
            && row.has_default_tokens == Some(false)
        {
            bail!(
                "{}: steps without recording chose other tokens than recorded ones, so the two cannot be compared; \
                 `hotmetal verify --device {}` checks the device",
                row.label(),
                self.target.device()
            );
        }
        Ok(())
    }

    /// How the result is printed where it is not for a terminal.
    pub(super) fn output(&self) -> OutputFormat {
        self.output.unwrap_or(OutputFormat::Md)
    }

    /// The tests that the flags ask for, by ascending depth, so that a filled cache is used again.
    pub(super) fn tests(&self) -> Result<Vec<Test>> {
        /// Beyond any machine: a mistyped number should not overflow.
        const MAX_BATCH: usize = 4096;
        if self.repetitions == 0 {
            bail!("-r 0 measures nothing: expected 1 repetition or more");
        }
        if let Some(batch) = self.batch.iter().find(|&&batch| batch == 0 || batch > MAX_BATCH) {
            bail!("--batch {batch}: expected 1 to {MAX_BATCH} sequences");
        }
        let mut depths = self.depth.clone();
        depths.sort_unstable();
        depths.dedup();
        let mut tests = Vec::new();
        for depth in depths {
            // A prompt is computed alone: batches are a matter of decoding.
            let prompts = self.n_prompt.iter().map(|&prompt| Test { prompt, generate: 0, depth, batch: 1 });
            tests.extend(prompts.filter(|test| test.prompt > 0));
            for &batch in &self.batch {
                let decodes = self.n_gen.iter().map(|&generate| Test { prompt: 0, generate, depth, batch });
                let both = self.pg.iter().flat_map(|PromptsAndGenerated(both)| both);
                let both = both.map(|&(prompt, generate)| Test { prompt, generate, depth, batch });
                tests.extend(decodes.chain(both).filter(|test| test.generate > 0));
            }
        }
        if tests.is_empty() {
            bail!("nothing to measure: give prompt lengths with -p, tokens to generate with -n, or both with --pg");
        }
        Ok(tests)
    }

    /// The thread counts to measure with; `None` is one thread for each core.
    pub(super) fn thread_counts(&self) -> Vec<Option<usize>> {
        if self.threads.is_empty() { vec![None] } else { self.threads.iter().copied().map(Some).collect() }
    }
}

/// Lengths of prompts, each with how many tokens follow.
#[derive(Clone, Debug, PartialEq)]
struct PromptsAndGenerated(Vec<(usize, usize)>);

/// `512+128`, several of them behind commas, or `512,128` for one.
fn parse_pg(text: &str) -> Result<PromptsAndGenerated, String> {
    let of = |part: &str, between| {
        let (prompt, generate) = part.split_once(between)?;
        Some((prompt.parse().ok()?, generate.parse().ok()?)).filter(|&(prompt, generate)| prompt > 0 && generate > 0)
    };
    let pairs = if text.contains('+') {
        text.split(',').map(|part| of(part, '+')).collect()
    } else {
        of(text, ',').map(|pair| vec![pair])
    };
    pairs.map(PromptsAndGenerated).ok_or_else(|| "expected P+N, for example 512+128".to_owned())
}

/// Arguments of the program, with `-pg` of `bench`, as llama-bench writes it, as `--pg`: a letter more than short flags have.
pub(crate) fn with_long_pg(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let (mut is_bench, mut index) = (None, 0);
    args.map(move |arg| {
        // The first that is no flag, behind the name of the program, is the command.
        if index > 0 && is_bench.is_none() && !arg.as_encoded_bytes().starts_with(b"-") {
            is_bench = Some(arg == "bench");
        }
        index += 1;
        if is_bench == Some(true) && arg == "-pg" { "--pg".into() } else { arg }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_left_out_by_the_op_that_it_makes() {
        assert_eq!(parse_without("fusion=norm_glu"), Ok(LeftOut::Passes(vec!["norm_glu"])));
        let all = plan::FUSIONS.iter().map(|fusion| fusion.name).chain(["shared_slot"]).collect();
        assert_eq!(parse_without("fusion=all"), Ok(LeftOut::Passes(all)));
        assert_eq!(parse_without("recording"), Ok(LeftOut::Recording));
        for pass in ["restrict_outputs", "shared_slot", "norm_glu"] {
            assert_eq!(parse_without(&format!("pass={pass}")), Ok(LeftOut::Passes(vec![pass])));
        }
        let error = parse_without("pass=rewrite").unwrap_err();
        assert!(error.starts_with("rewrite cannot be left out: every pass replaces ops by it"), "{error}");
        assert!(parse_without("pass=glu").is_err_and(|error| error.contains("one of restrict_outputs, shared_slot")));
        for wrong in ["norm_glu", "fusion=", "fusion=glu", "capture"] {
            assert!(parse_without(wrong).is_err_and(|error| error.contains("fusion=OP with one of all, logits")));
        }
    }

    #[test]
    fn prompts_and_generated_are_read_as_ours_and_as_llama_bench_writes_them() {
        let read = |text| parse_pg(text).map(|PromptsAndGenerated(both)| both);
        assert_eq!(read("512+128"), Ok(vec![(512, 128)]));
        assert_eq!(read("512,128"), Ok(vec![(512, 128)]));
        assert_eq!(read("512+128,64+32"), Ok(vec![(512, 128), (64, 32)]));
        for wrong in ["512", "512+0", "0,128", "512,128,64", "512+128,64", "512+", "a,b", ""] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let args = |args: &[&str]| with_long_pg(args.iter().map(OsString::from)).collect::<Vec<_>>();
        assert_eq!(args(&["hotmetal", "-v", "bench", "-pg", "8,4"]), ["hotmetal", "-v", "bench", "--pg", "8,4"]);
        assert_eq!(args(&["hotmetal", "run", "bench", "-pg"]), ["hotmetal", "run", "bench", "-pg"]);
    }
}
