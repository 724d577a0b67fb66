//! Repeated chores of this repository: `cargo xtask --help`.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a tool that reports")]

mod fuzz;
mod kernels;
mod macos;
mod package;
mod performance;
mod sbom;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Chores {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    CheckMacos(macos::CheckMacosArgs),
    Fuzz(fuzz::FuzzArgs),
    Kernels(kernels::KernelsArgs),
    Package(package::PackageArgs),
    Performance(performance::PerformanceArgs),
    Sbom(sbom::SbomArgs),
}

fn main() -> Result<()> {
    match Chores::parse().chore {
        Chore::CheckMacos(args) => macos::check_macos(&args),
        Chore::Fuzz(args) => fuzz::fuzz(&args),
        Chore::Kernels(args) => kernels::kernels(&args),
        Chore::Package(args) => package::package(&args),
        Chore::Performance(args) => performance::performance(&args),
        Chore::Sbom(args) => sbom::sbom(&args),
    }
}
