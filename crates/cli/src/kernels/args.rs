//! The flags of `hotmetal kernels`.

use clap::{Args, Subcommand, ValueEnum};
use gpu::kernel_source::{ARCHITECTURES, Image};

/// List the GPU kernels that this program carries and what each takes, or print the code of one
///
/// Kernels of the CPU are not listed, because they are part of this program's own machine code: `hotmetal kernels dump`
/// says how to look at them.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct KernelsArgs {
    #[command(subcommand)]
    pub(super) command: Option<KernelsCommand>,

    /// Only kernels for this target, for example sm_90a; compute_80 is PTX, which the driver compiles for devices that
    /// came after all others
    #[arg(long, value_name = "TARGET", value_parser = parse_target)]
    pub(super) target: Option<Image>,

    /// Only kernels with one of these in their names, for example q8_0 or attention
    #[arg(long, value_name = "TEXT", value_delimiter = ',')]
    pub(super) only: Vec<String>,

    /// How to print the list
    #[arg(long, short = 'o', value_enum, value_name = "FORMAT", default_value_t = ListFormat::Text)]
    pub(super) output: ListFormat,
}

/// What else `kernels` does.
#[derive(Debug, Subcommand)]
pub(super) enum KernelsCommand {
    Dump(DumpArgs),
}

/// Print the code of one kernel: PTX, or the instructions of a GPU
#[derive(Args, Debug)]
pub(super) struct DumpArgs {
    /// The kernel, as `hotmetal kernels` and `hotmetal profile` name it
    #[arg(value_name = "NAME")]
    pub(super) name: String,

    /// PTX, CUDA's portable assembly, which is the default: this program carries it of every kernel that is not for one
    /// architecture alone
    #[arg(long, conflicts_with = "isa")]
    pub(super) ptx: bool,

    /// The instructions of a GPU; needs nvdisasm or cuobjdump of the CUDA toolkit, on PATH or in $CUDA_HOME/bin
    #[arg(long)]
    pub(super) isa: bool,

    /// With --isa: the architecture [default: sm_90a, or the first that has the kernel]
    #[arg(long, value_name = "TARGET", requires = "isa", value_parser = parse_target)]
    pub(super) target: Option<Image>,
}

/// How the list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ListFormat {
    /// A table for each target.
    Text,
    /// One object.
    Json,
}

/// The image for the target of that name.
fn parse_target(name: &str) -> Result<Image, String> {
    let known = || ARCHITECTURES.iter().map(|image| image.target).collect::<Vec<_>>().join(", ");
    let found = ARCHITECTURES.iter().find(|image| image.target == name);
    found.copied().ok_or_else(|| format!("expected one of {}", known()))
}
