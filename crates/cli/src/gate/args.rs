//! The flags of `hotmetal gate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::bench::RecordArgs;
use crate::load::args::{GpuArgs, KvType};
use crate::load::device::AUTO;

/// Say in one verdict whether this program is still right and as fast as it was
///
/// P1: 128 greedy tokens are those of the reference. P2: every result of every op is within its tolerance. P3: all numbers
/// are finite for 512 tokens. P4: the program prints the text that it must. P5: decoding is no slower than the last
/// record of this machine, beyond noise. Each check is a process of its own, so a crash is a failed check. Fails if one
/// does.
#[derive(Args, Debug)]
pub(crate) struct GateArgs {
    /// A directory, a .gguf or .safetensors file, or a cached ORG/REPO or ORG/REPO:FILE; without it, the built-in model
    #[arg(value_name = "MODEL")]
    pub(super) model: Option<String>,

    /// Only these checks [default: all]
    #[arg(long, value_enum, ignore_case = true, value_name = "CHECK", value_delimiter = ',')]
    pub(super) only: Vec<CheckId>,

    /// What P1 and P2 compare with: another device, an instruction set of this processor, or the reference in plain f64
    /// [default: reference for the CPU, cpu for others]
    #[arg(long, value_name = "DEVICE")]
    pub(super) against: Option<String>,

    /// Keep the figures and the verdict as a record, with this word in the name of its file
    #[arg(long, value_name = "NAME")]
    pub(super) wave: Option<String>,

    /// The folder of records: P5 compares with the newest one there, and --wave writes there
    #[arg(long, value_name = "FOLDER", default_value = RecordArgs::FOLDER)]
    pub(super) records: PathBuf,

    /// What records call this machine [default: its processor and how many there are, or its GPU]
    #[arg(long, value_name = "NAME", value_parser = RecordArgs::folder_name)]
    pub(super) machine: Option<String>,

    /// How often P5 measures each length, after a warm-up
    #[arg(long, short = 'r', value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..))]
    pub(super) repetitions: u64,

    /// Where to compute, as for `run`
    #[arg(long, value_name = "DEVICE", default_value = AUTO)]
    pub(super) device: String,

    #[command(flatten)]
    pub(super) gpu: GpuArgs,

    /// CPU threads [default: one for each core]
    #[arg(long, short = 't', value_name = "N")]
    pub(super) threads: Option<usize>,

    /// Element type of the KV cache [default: f32 for F32 weights, f16 for all others]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(super) kv_type: Option<KvType>,

    /// How to print the verdict
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Text)]
    pub(super) output: OutputFormat,
}

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum CheckId {
    P1,
    P2,
    P3,
    P4,
    P5,
}

impl CheckId {
    pub(super) const ALL: [Self; 5] = [Self::P1, Self::P2, Self::P3, Self::P4, Self::P5];

    /// As the flags and the result call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::P1 => "P1",
            Self::P2 => "P2",
            Self::P3 => "P3",
            Self::P4 => "P4",
            Self::P5 => "P5",
        }
    }

    /// What it asks.
    pub(super) fn question(self) -> &'static str {
        match self {
            Self::P1 => "greedy text",
            Self::P2 => "each op",
            Self::P3 => "finite numbers",
            Self::P4 => "printed text",
            Self::P5 => "speed",
        }
    }
}

/// How a verdict is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A line for each check, and the verdict.
    Text,
    /// One object.
    Json,
}
