//! The flags of `hotmetal doctor`.

use clap::{Args, ValueEnum};

use crate::model::args::ModelArgs;

/// Check this machine: processor, memory, cache, and that the built-in model says what it must
///
/// With --full or --metal: everything that can be wrong with a device, from the simplest on, each in a process of its
/// own, so that a crash ends none but itself: the device, copies, each kernel, one step op by op, 128 greedy tokens,
/// batches, and how fast it is. The report is to be pasted whole into an issue.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Everything that can be wrong with the device, in one report to paste
    #[arg(long)]
    pub(super) full: bool,

    /// As --full --device metal
    #[arg(long, conflicts_with_all = ["full", "device", "part"])]
    pub(super) metal: bool,

    /// Only one part of the report
    #[arg(long, value_enum, value_name = "PART", hide = true, conflicts_with = "full")]
    pub(super) part: Option<ReportPart>,

    /// In the full report: also measure random weights in the exact shapes of this model [default: qwen2.5-0.5b on a
    /// GPU]
    #[arg(long, value_name = "NAME")]
    pub(super) shape: Option<String>,

    /// Measure the bandwidth again, and not only where nothing is known of this device
    #[arg(long, conflicts_with_all = ["full", "metal", "part"])]
    pub(super) measure: bool,

    #[command(flatten)]
    pub(super) model_args: ModelArgs,
}

/// What the full report asks for in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReportPart {
    Device,
    Copies,
    Text,
}
