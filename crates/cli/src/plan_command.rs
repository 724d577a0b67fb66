//! `hotmetal plan`: what of a model fits into this machine's memory, and how fast it would be, from headers alone.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use formats::{Checkpoint, TensorInfo};
use plan::{KvFormat, Op, Plan, StepInput};
use serde_json::{Value, json};
use tensor::{Tensor, WeightFormat};

use crate::ceiling::{Known, Meter};
use crate::load::facts::{kv_format, weight_bytes};
use crate::load::plan::{optimised, plan_of};
use crate::load::{device, find};
use crate::model::args::ModelArgs;
use crate::{explain, output, units};

/// Show what of a model fits into this memory, and how fast it would be; headers are enough
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it, the built-in model
    #[arg(value_name = "MODEL")]
    model: Option<String>,

    /// How to print it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = PlanFormat::Text)]
    output_format: PlanFormat,

    /// Only show which kernel computes each op, by the rows of a step
    #[arg(long, conflicts_with = "output_format")]
    explain_dispatch: bool,

    /// Measure the device again, and not only where nothing is known of it
    #[arg(long, conflicts_with = "explain_dispatch")]
    measure: bool,

    #[command(flatten)]
    model_args: ModelArgs,
}

/// How `plan` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PlanFormat {
    /// Tables.
    Text,
    /// One object.
    Json,
}

/// Context lengths of the tables, in tokens; those beyond the model's own are left out.
const CONTEXTS: [usize; 8] = [512, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];
/// Sequences at a time.
const SEQUENCES: [usize; 4] = [1, 4, 16, 64];
/// Tokens of the prompt whose speed is foretold.
const PROMPT: usize = 512;

/// What a model takes and what the machine has.
struct Fit {
    weight_bytes: u64,
    /// Bytes of the weights that a decode step reads. It reads one row of the embedding table, which is not counted unless
    /// the head is tied to it, and only the experts that a token takes.
    active_bytes: u64,
    /// Of a mixture, the experts of a layer, and those that a token takes.
    experts: Option<(usize, usize)>,
    kv_bytes_per_token: u64,
    context_len: usize,
    memory_bytes: u64,
    /// What the device reads of its memory, measured, in bytes per second. A device that is no hardware has none.
    bandwidth: Option<f64>,
    /// Seconds from one kernel of a step to the next, measured, on devices that have these.
    boundary: Option<f64>,
    /// Ops of a step, each of which is a kernel, or about one.
    num_ops: usize,
    /// Tokens of a prompt, operations that they take, and operations per second of the device.
    prompt: PromptWork,
}

/// What a prompt takes, and what the device gives.
#[derive(Clone, Debug, Default, PartialEq)]
struct PromptWork {
    tokens: usize,
    flops: u64,
    /// The class of instructions, and its operations per second, measured.
    peak: Option<(String, f64)>,
}

impl PromptWork {
    /// The first [`PROMPT`] tokens, or as many as `plan` has room for.
    fn new(plan: &Plan, kv: KvFormat, peak: Option<(String, f64)>) -> Self {
        let tokens = PROMPT.min(plan.context_len);
        let mut step = StepInput::default();
        step.push_sequence(&vec![0; tokens], 0, &[]);
        step.output_rows.push((tokens - 1) as u32);
        let flops = plan.ops.iter().map(|op| op.cost(plan, &|_| 0, kv).of(&step).flops).sum();
        Self { tokens, flops, peak }
    }

    /// Tokens per second, if arithmetic is all that takes time.
    fn tokens_per_s(&self) -> Option<f64> {
        let (_, ops_per_s) = self.peak.as_ref()?;
        Some(self.tokens as f64 * ops_per_s / self.flops.max(1) as f64)
    }
}

impl Fit {
    /// Of a model's plan on a device with this memory, of which `known` is known.
    fn new(
        plan: &Plan,
        checkpoint: &Checkpoint,
        kv: KvFormat,
        memory_bytes: u64,
        known: Option<&Known>,
        meter: &Meter,
    ) -> Self {
        let infos: HashMap<_, _> = checkpoint.tensor_infos().map(|info| (info.name.clone(), info)).collect();
        let format_of = |name: &str| infos.get(name).and_then(|info| info.format);
        let formats: Vec<_> = plan.weights.iter().map(|weight| format_of(&weight.name)).collect();
        // The format that most of the matrices' numbers are in.
        let numbers_in = |format: &WeightFormat| -> usize {
            let matrices = plan.weights.iter().zip(&formats).filter(|(weight, _)| weight.shape.len() > 1);
            let of_it = matrices.filter(|(_, found)| **found == Some(*format));
            of_it.map(|(weight, _)| weight.shape.iter().product::<usize>()).sum()
        };
        let main = WeightFormat::ALL.into_iter().max_by_key(numbers_in).unwrap_or(WeightFormat::F32);
        let peak = known.and_then(|known| known.peak(&meter.peak_classes_of(main)));
        let peak = peak.map(|peak| (peak.class.clone(), peak.ops_per_s.value));
        // Formats that a file does not say are those of tensors that several make.
        let all: Option<Vec<_>> = formats.iter().copied().collect();
        let fused = optimised(plan.clone(), &all.unwrap_or_default(), &[]);
        let sizes: HashMap<_, _> =
            checkpoint.tensor_infos().map(|info| (info.name.clone(), read_bytes(&info))).collect();
        let bytes_of = |name: &str| sizes.get(name).copied().unwrap_or(0);
        let (weight_bytes, active_bytes) = weight_bytes(plan, |index| bytes_of(&plan.weights[index].name));
        Self {
            weight_bytes,
            active_bytes,
            experts: plan.ops.iter().find_map(|op| match op {
                Op::ExpertLinear { ids, experts, .. } => Some((experts.count, plan.value(*ids).width)),
                _ => None,
            }),
            kv_bytes_per_token: plan.kv_bytes_per_token(kv) as u64,
            context_len: plan.context_len,
            memory_bytes,
            bandwidth: known.and_then(Known::read_bandwidth),
            boundary: known.and_then(Known::boundary),
            num_ops: fused.ops.len(),
            prompt: PromptWork::new(&fused, kv, peak),
        }
    }

    fn contexts(&self) -> Vec<usize> {
        let mut contexts: Vec<_> = CONTEXTS.into_iter().filter(|&context| context < self.context_len).collect();
        contexts.push(self.context_len);
        contexts
    }

    fn kv_bytes(&self, context: usize, sequences: usize) -> u64 {
        self.kv_bytes_per_token.saturating_mul((context * sequences) as u64)
    }

    /// Whether weights and cache fit together. Weights are mapped, so a model that does not fit still runs, from disk.
    fn fits(&self, context: usize, sequences: usize) -> bool {
        self.weight_bytes.saturating_add(self.kv_bytes(context, sequences)) <= self.memory_bytes
    }

    /// Tokens per second of one sequence at `depth` tokens, if reading memory is all that takes time.
    fn tokens_per_s(&self, depth: usize) -> Option<f64> {
        Some(self.bandwidth? / (self.active_bytes + self.kv_bytes(depth, 1)).max(1) as f64)
    }

    /// The same if what comes between two kernels takes time, too: a kernel for each op.
    fn tokens_per_s_in_kernels(&self, depth: usize) -> Option<f64> {
        let of_memory = 1.0 / self.tokens_per_s(depth)?;
        Some(1.0 / (of_memory + self.boundary? * self.num_ops as f64))
    }
}

/// Bytes of a tensor once it is read: more than in the file where its type is expanded.
fn read_bytes(info: &TensorInfo) -> u64 {
    let shape: Option<Vec<usize>> = info.shape.iter().map(|&dimension| usize::try_from(dimension).ok()).collect();
    let expanded = info.format.zip(shape).and_then(|(format, shape)| Tensor::byte_len(format, &shape).ok());
    expanded.map_or(info.bytes, |bytes| bytes as u64)
}

/// Runs `hotmetal plan`.
pub(crate) fn plan(args: &PlanArgs) -> Result<()> {
    if args.model_args.quant.is_some() {
        bail!(
            "`plan` does not take --quant, which run, serve and eval do: quantise the model first with `hotmetal quantize`"
        );
    }
    let settings = args.model_args.settings();
    if args.explain_dispatch {
        let (mut checkpoint, name) = find::open(args.model.as_deref(), false)?;
        return explain::of_checkpoint(&mut checkpoint, &name, &settings);
    }
    let (mut checkpoint, name) = find::open(args.model.as_deref(), true)?;
    settings.rope.apply(&mut checkpoint.config, settings.cache.ctx_size)?;
    checkpoint.sort_features();
    let plan = plan_of(&checkpoint)?;
    let backend = device::backend(&settings.device)?;
    let kv = kv_format(settings.cache.format, checkpoint.tensor_infos().map(|info| info.format));
    let device = backend.device();
    let meter = Meter::new(&settings.device)?;
    let known = meter.known(args.measure)?;
    let fit = Fit::new(&plan, &checkpoint, kv, device.memory_bytes, known.as_ref(), &meter);
    let text = match args.output_format {
        PlanFormat::Text => as_text(&fit, &plan, &name, kv, &device.description, known.as_ref())?,
        PlanFormat::Json => format!("{}\n", as_json(&fit, &plan, &name, &device.description, known.as_ref())),
    };
    output::stdout(&text)?;
    Ok(())
}

fn as_text(
    fit: &Fit,
    plan: &Plan,
    name: &str,
    kv: KvFormat,
    device: &str,
    known: Option<&Known>,
) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    writeln!(out, "model      {name}: {}, {} layers", plan.model_type, plan.kv_layers.len())?;
    let (all, active) = (units::bytes(fit.weight_bytes), units::bytes(fit.active_bytes));
    match fit.experts {
        None => writeln!(out, "weights    {all} ({active} read for each token)")?,
        Some((count, of_token)) => {
            writeln!(out, "weights    {all}, of which {active} are read for each token")?;
            writeln!(out, "experts    {count} in a layer, {of_token} for each token")?;
        }
    }
    writeln!(out, "KV cache   {} a token ({kv:?})", units::bytes(fit.kv_bytes_per_token))?;
    writeln!(out, "device     {device}")?;
    writeln!(out, "memory     {}", units::bytes(fit.memory_bytes))?;
    let read_line = known.map_or_else(|| "not measured on this device".to_owned(), Known::read_line);
    writeln!(out, "bandwidth  {read_line}")?;
    if let Some(boundary) = fit.boundary {
        writeln!(out, "kernels    {:.2} µs from one to the next, {} ops in a step", boundary * 1e6, fit.num_ops)?;
    }
    if let (Some((class, ops_per_s)), Some(rate)) = (&fit.prompt.peak, fit.prompt.tokens_per_s()) {
        let (tokens, tops) = (fit.prompt.tokens, ops_per_s / 1e12);
        writeln!(out, "prompt     {tokens} tokens at {rate:.0} tok/s at most, by {tops:.1} TOP/s of {class}")?;
    }
    writeln!(out, "\nWeights and KV cache, context × sequences (✗ does not fit):\n")?;
    write!(out, "{:>9}", "context")?;
    for sequences in SEQUENCES {
        write!(out, "{:>14}", format!("× {sequences}"))?;
    }
    write!(out, "   tok/s at this depth, at most")?;
    writeln!(out, "{}", if fit.boundary.is_some() { "   with a kernel for each op" } else { "" })?;
    for context in fit.contexts() {
        write!(out, "{context:>9}")?;
        for sequences in SEQUENCES {
            let bytes = units::bytes(fit.weight_bytes.saturating_add(fit.kv_bytes(context, sequences)));
            write!(out, "{:>14}", if fit.fits(context, sequences) { bytes } else { format!("✗ {bytes}") })?;
        }
        match fit.tokens_per_s(context) {
            Some(rate) => write!(out, "{rate:>12.1}")?,
            None => write!(out, "{:>12}", "–")?,
        }
        match fit.tokens_per_s_in_kernels(context) {
            Some(rate) => writeln!(out, "{rate:>31.1}")?,
            None => writeln!(out)?,
        }
    }
    if !fit.fits(1, 1) {
        writeln!(
            out,
            "\nThe weights alone are larger than the free memory: the model would run at the speed of the disk. A more \
             strongly quantised file, or a smaller model, fits."
        )?;
    }
    Ok(out)
}

fn as_json(fit: &Fit, plan: &Plan, name: &str, device: &str, known: Option<&Known>) -> Value {
    let rows: Vec<_> = fit
        .contexts()
        .into_iter()
        .flat_map(|context| SEQUENCES.map(|sequences| (context, sequences)))
        .map(|(context, sequences)| {
            json!({
                "context": context, "sequences": sequences, "kv_bytes": fit.kv_bytes(context, sequences),
                "fits": fit.fits(context, sequences),
            })
        })
        .collect();
    let speeds: Vec<_> = fit
        .contexts()
        .into_iter()
        .map(|depth| {
            json!({
                "depth": depth, "tokens_per_s_max": fit.tokens_per_s(depth),
                "tokens_per_s_in_kernels": fit.tokens_per_s_in_kernels(depth),
            })
        })
        .collect();
    json!({
        "model": name, "model_type": plan.model_type, "device": device, "weight_bytes": fit.weight_bytes,
        "active_bytes": fit.active_bytes, "experts": fit.experts.map(|(count, _)| count),
        "experts_per_token": fit.experts.map(|(_, of_token)| of_token), "kv_bytes_per_token": fit.kv_bytes_per_token,
        "context_len": fit.context_len, "memory_bytes": fit.memory_bytes,
        "bandwidth_gb_s": fit.bandwidth.map(|bandwidth| bandwidth / 1e9),
        "bandwidth_measured_at": known.and_then(Known::read_at),
        "kernel_boundary_us": fit.boundary.map(|seconds| seconds * 1e6), "ops": fit.num_ops,
        "memory": rows, "decode": speeds,
        "prompt": {
            "tokens": fit.prompt.tokens, "tokens_per_s_max": fit.prompt.tokens_per_s(),
            "peak_class": fit.prompt.peak.as_ref().map(|(class, _)| class),
            "peak_ops_per_s": fit.prompt.peak.as_ref().map(|(_, ops_per_s)| ops_per_s),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> Fit {
        Fit {
            weight_bytes: 1000,
            active_bytes: 800,
            experts: None,
            kv_bytes_per_token: 2,
            context_len: 600,
            memory_bytes: 2500,
            bandwidth: Some(1e6),
            boundary: None,
            num_ops: 10,
            prompt: PromptWork::default(),
        }
    }

    #[test]
    fn what_fits_is_weights_and_cache_together() {
        let fit = fit();
        assert_eq!(fit.contexts(), [512, 600]);
        assert!(fit.fits(600, 1) && fit.fits(750, 1) && !fit.fits(751, 1) && !fit.fits(600, 2));
    }

    #[test]
    fn speed_is_bandwidth_over_the_bytes_of_a_token() {
        assert!((fit().tokens_per_s(0).unwrap() - 1250.0).abs() < 1e-9);
        assert!((fit().tokens_per_s(100).unwrap() - 1000.0).abs() < 1e-9);
        assert_eq!(Fit { bandwidth: None, ..fit() }.tokens_per_s(0), None);
    }

    #[test]
    fn what_comes_between_kernels_takes_time_for_each_op() {
        assert_eq!(fit().tokens_per_s_in_kernels(0), None);
        // 800 µs of reading, and 10 of 20 µs.
        let fit = Fit { boundary: Some(2e-5), ..fit() };
        assert!((fit.tokens_per_s_in_kernels(0).unwrap() - 1000.0).abs() < 1e-9);
    }

    #[test]
    fn a_prompt_takes_as_long_as_its_arithmetic() {
        let prompt = PromptWork { tokens: 512, flops: 1 << 20, peak: None };
        assert_eq!(prompt.tokens_per_s(), None);
        let prompt = PromptWork { peak: Some(("f32_fma".to_owned(), f64::from(1 << 21))), ..prompt };
        assert_eq!(prompt.tokens_per_s(), Some(1024.0));
    }
}
