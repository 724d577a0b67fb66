//! The flags of `hotmetal profile`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use super::run::Phase;
use crate::bench::TargetArgs;

/// Recorded decode steps: some hundred MiB of events on a machine with many processors.
const MAX_STEPS: usize = 8192;

/// Show where the time of prefill and decode goes: op by op, thread by thread, and on the host
#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,

    /// Tokens of the prompt; 0 leaves prefill out
    #[arg(long, short = 'p', value_name = "N", default_value_t = 512)]
    pub(super) n_prompt: usize,

    /// Tokens to generate; 0 leaves decode out
    #[arg(long, short = 'n', value_name = "N", default_value_t = 64)]
    pub(super) n_gen: usize,

    /// Tokens that are in the cache already when a run begins
    #[arg(long, short = 'd', alias = "n-depth", value_name = "N", default_value_t = 0)]
    pub(super) depth: usize,

    /// CPU threads [default: one for each core]
    #[arg(long, short = 't', value_name = "N")]
    pub(super) threads: Option<usize>,

    /// How often prefill and decode run recorded, each in alternation with a run that is not
    #[arg(long, short = 'r', value_name = "N", default_value_t = 3)]
    pub(super) repetitions: usize,

    /// Write every recorded event to this file, for ui.perfetto.dev or chrome://tracing
    #[arg(long, value_name = "FILE", conflicts_with = "variants")]
    pub(super) trace: Option<PathBuf>,

    /// Only list which kernel computes each op at this instruction set and these sizes
    #[arg(long, conflicts_with_all = ["depth", "repetitions"])]
    pub(super) variants: bool,

    /// How to print the result
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Md)]
    pub(super) output: OutputFormat,
}

/// How a result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A table for prefill and one for decode.
    Md,
    /// One object.
    Json,
}

impl ProfileArgs {
    /// What is to be run, prefill first.
    pub(super) fn phases(&self) -> Result<Vec<Phase>> {
        if self.repetitions == 0 {
            bail!("-r 0 records nothing: expected 1 repetition or more");
        }
        if self.n_gen.saturating_mul(self.repetitions) > MAX_STEPS {
            bail!(
                "-n {} and -r {}: expected {MAX_STEPS} tokens in all at most, because every event is kept",
                self.n_gen,
                self.repetitions
            );
        }
        let mut phases = Vec::new();
        if self.n_prompt > 0 {
            phases.push(Phase::Prefill { tokens: self.n_prompt, depth: self.depth });
        }
        if self.n_gen > 0 {
            phases.push(Phase::Decode { tokens: self.n_gen, depth: self.depth });
        }
        if phases.is_empty() {
            bail!("nothing to profile: give a prompt length with -p or tokens to generate with -n");
        }
        Ok(phases)
    }
}
