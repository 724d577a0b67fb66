//! The flags of `hotmetal verify`.

use clap::{Args, ValueEnum};
use tensor::WeightFormat;

use crate::load::args::{GpuArgs, KvType, parse_isa};
use crate::load::facts::parse_weight_format;

/// Check that kernels and models compute here what they should
///
/// Without MODEL: every kernel at every instruction set of this processor, in every weight format, on ragged shapes,
/// against the plain reference; then a tiny random model of each architecture in each format op by op, and the built-in
/// model. With MODEL: that model, op by op and in 128 greedy tokens. Fails when anything is not as it should be.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it, kernels and small
    /// models
    #[arg(value_name = "MODEL")]
    pub(super) model: Option<String>,

    /// What to compare models with: reference, another device, or an instruction set of this processor
    #[arg(long, value_name = "DEVICE", default_value = "reference")]
    pub(super) against: String,

    /// Where to compute: cpu, an instruction set of this processor, cuda or cuda:N, metal or metal:N, auto (the first NVIDIA
    /// GPU, the CPU without one), reference, or sim
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(super) device: String,

    #[command(flatten)]
    pub(super) gpu: GpuArgs,

    /// CPU threads of each kernel; with 1, one check runs on each processor at a time [default: kernels on one and on
    /// one for each core, models on one for each core]
    #[arg(long, short = 't', value_name = "N")]
    pub(super) threads: Option<usize>,

    /// Only these instruction sets of the CPU [default: every one that it has]
    #[arg(long, value_name = "LEVEL", value_delimiter = ',', value_parser = parse_isa)]
    pub(super) isa: Vec<cpu::IsaLevel>,

    /// Only the kernels of these ops, and no models: linear, norm_glu, …
    #[arg(long, value_name = "OP", value_delimiter = ',', conflicts_with = "model")]
    pub(super) op: Vec<String>,

    /// Only models, and no kernels on their own
    #[arg(long, conflicts_with_all = ["model", "op", "quick"])]
    pub(super) only_models: bool,

    /// Only these weight formats [default: every one]
    #[arg(long, value_name = "FORMAT", value_delimiter = ',', value_parser = parse_weight_format, conflicts_with = "model")]
    pub(super) format: Vec<WeightFormat>,

    /// Every op in every format, but a quarter of the shapes; with --op, and where an op has shapes of its own, only those
    #[arg(long, conflicts_with = "model")]
    pub(super) quick: bool,

    /// Element type of the KV cache of models [default: f32 for F32 weights, f16 for all others]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(super) kv_type: Option<KvType>,

    /// What the text to compare begins with [default: a sentence]
    #[arg(long, short = 'p', value_name = "TEXT")]
    pub(super) prompt: Option<String>,

    /// Greedy tokens to compare; 0 for none
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128)]
    pub(super) n_predict: usize,

    /// Only show which kernel computes each op, by the rows of a step
    #[arg(long)]
    pub(super) explain_dispatch: bool,

    /// How to print the result
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Text)]
    pub(super) output: OutputFormat,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// The worst of everything, and a verdict.
    Text,
    /// Everything, in one object.
    Json,
}

impl VerifyArgs {
    /// Whether weights in `format` are asked for.
    pub(super) fn wants_format(&self, format: WeightFormat) -> bool {
        self.format.is_empty() || self.format.contains(&format)
    }
}
