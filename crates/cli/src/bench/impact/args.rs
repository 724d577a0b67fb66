//! The flags of `hotmetal bench impact`.

use clap::{Args, ValueEnum};

use super::super::record::RecordArgs;
use crate::load::device::{self, AUTO};

/// Measure what this project's documents claim for its techniques: each against the same model without it, on this device
#[derive(Args, Debug)]
pub(in crate::bench) struct ImpactArgs {
    /// Only these claims, for example fusion,recording
    #[arg(long, value_name = "CLAIM", value_delimiter = ',')]
    pub(super) only: Vec<String>,

    /// Random weights in the shapes of this model, for all claims but the one about experts
    #[arg(long, value_name = "NAME", default_value = "qwen2.5-0.5b")]
    pub(super) shape: String,

    /// Random weights in the shapes of this model, for the claim about experts [default: qwen3-30b-a3b on a GPU, moe-small
    /// on the CPU]
    #[arg(long, value_name = "NAME")]
    moe_shape: Option<String>,

    /// Tokens of the prompt of the claim about attention
    #[arg(long, short = 'p', value_name = "N", default_value_t = 2048)]
    pub(super) n_prompt: usize,

    /// Tokens to generate in each repetition of the others [default: 64 on a GPU, 8 on the CPU]
    #[arg(long, short = 'n', value_name = "N")]
    n_gen: Option<usize>,

    /// How often each side is measured, after a warm-up
    #[arg(long, short = 'r', value_name = "N", default_value_t = 3)]
    pub(super) repetitions: usize,

    /// CPU threads [default: one for each core]
    #[arg(long, short = 't', value_name = "N")]
    pub(super) threads: Option<usize>,

    /// Where to compute, as for `bench`
    #[arg(long, value_name = "DEVICE", default_value = AUTO)]
    device: String,

    /// How to print the result
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = ImpactFormat::Md)]
    pub(super) output: ImpactFormat,

    #[command(flatten)]
    pub(super) record: RecordArgs,
}

/// How the table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ImpactFormat {
    /// A table.
    Md,
    /// One object.
    Json,
}

impl ImpactArgs {
    /// The device that `--device` stands for.
    pub(super) fn device(&self) -> &str {
        device::resolve(&self.device)
    }

    /// The model with experts.
    pub(super) fn moe_shape(&self) -> &str {
        let usual = if device::is_gpu(self.device()) { "qwen3-30b-a3b" } else { "moe-small" };
        self.moe_shape.as_deref().unwrap_or(usual)
    }

    /// Tokens to generate in each repetition.
    pub(super) fn n_gen(&self) -> usize {
        self.n_gen.unwrap_or(if device::is_gpu(self.device()) { 64 } else { 8 })
    }
}
