//! The flags of `hotmetal tune`.

use std::path::PathBuf;

use clap::Args;

use super::super::args::TargetArgs;

/// Measure how each kernel is launched best on this device, for the shapes of a model, and keep what won
///
/// Every way to launch a kernel is first held to exact arithmetic, and one that computes anything else is named and left
/// out. The others are timed in whole steps of the model. `run`, `serve` and `bench` take what won from then on. On
/// processors all ways have the same bits: how many columns a thread takes, who prepares rows, how far ahead weights are
/// asked for, how rows pass over them, and whether weights are repacked at all.
#[derive(Args, Debug)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,

    /// CPU threads, which a table of processors is of [default: one for each core]
    #[arg(long, short = 't', value_name = "N")]
    pub(super) threads: Option<usize>,

    /// Rows of the steps to tune: up to 128 one of each sequence, beyond that a prompt
    #[arg(long, short = 'm', value_name = "N", value_delimiter = ',')]
    #[arg(default_value = "1,2,4,8,16,32,64,128,256,512,1024,2048")]
    pub(super) rows: Vec<usize>,

    /// Tokens in the cache of each sequence that a step of one row each has
    #[arg(long, short = 'd', value_name = "N", default_value_t = 512)]
    pub(super) depth: usize,

    /// Samples of each time that decides, taken in turns
    #[arg(long, short = 'r', value_name = "N", default_value_t = 7)]
    pub(super) repetitions: usize,

    /// Only kernels with one of these in their names, for example gemm_narrow
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub(super) only: Vec<String>,

    /// Seconds that all of it may take; what is not tried by then keeps its way
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(super) budget: u64,

    /// What the order follows from in which ways are tried
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) seed: u64,

    /// Measure what the device reads and computes at most again, and not only where nothing is known of it
    #[arg(long)]
    pub(super) measure: bool,

    /// Measure and print, and keep no choices
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Also write the table to this file, which --tuned takes
    #[arg(long, value_name = "OUT.json")]
    pub(super) export: Option<PathBuf>,
}
