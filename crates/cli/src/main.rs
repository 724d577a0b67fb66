//! `hotmetal`: runs open-weight language models on the machine in front of you.
//!
//! One file a command. This crate is the only one that reads arguments and environment, that names concrete backends, and
//! that prints. It knows nothing of kernels.

#![forbid(unsafe_code)]

mod bench;
mod builtin;
mod ceiling;
mod completions;
mod dialects;
mod doctor;
mod eval;
mod expert_names;
mod explain;
mod files;
mod gate;
mod generate;
mod gguf_architectures;
mod hub;
mod inspect;
mod interrupt;
mod kernels;
mod list;
mod load;
mod man;
mod model;
mod models_folder;
mod on_demand;
mod output;
mod packing;
mod plan_command;
#[cfg(debug_assertions)]
mod planted;
mod profile;
mod program;
mod prompt_line;
mod pull;
mod quantize;
mod repl;
mod rm;
mod run;
mod sampling_args;
mod serve;
mod units;
mod verify;
mod word_wrap;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::output::{Colours, OutputError, note};

/// Runs open-weight language models on the machine in front of you.
#[derive(Parser)]
#[command(name = "hotmetal", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    /// Say more on standard error; twice for still more
    #[arg(long, short = 'v', global = true, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Read model files into memory whole, and map none: for file systems whose pages come slowly, or that cannot map.
    /// Takes the file's size in memory, and the time to read it at the start
    #[arg(long, global = true)]
    no_mmap: bool,

    /// Whether errors and warnings have colours: always, never, or auto: on a terminal, unless NO_COLOR is set or TERM is
    /// `dumb`
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    color: Colours,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(Box<run::RunArgs>),
    #[command(aliases = ["server", "start"])]
    Serve(Box<serve::ServeArgs>),
    Bench(Box<bench::BenchArgs>),
    Tune(Box<bench::TuneArgs>),
    Verify(verify::VerifyArgs),
    Gate(gate::GateArgs),
    Profile(Box<profile::ProfileArgs>),
    Kernels(kernels::KernelsArgs),
    Eval(Box<eval::EvalArgs>),
    Quantize(quantize::QuantizeArgs),
    #[command(alias = "show")]
    Inspect(inspect::InspectArgs),
    Plan(plan_command::PlanArgs),
    #[command(alias = "ls")]
    List(list::ListArgs),
    #[command(aliases = ["get", "download"])]
    Pull(pull::PullArgs),
    #[command(aliases = ["remove", "delete"])]
    Rm(rm::RmArgs),
    Doctor(doctor::DoctorArgs),
    Completions(completions::CompletionsArgs),
    #[command(hide = true)]
    Man(man::ManArgs),
}

/// The exit code of a command line that makes no sense, which is clap's.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let colours = Colours::in_args(&args);
    output::choose_colours(colours);
    let translated = match dialects::translated(args.into_iter()) {
        Ok(translated) => translated,
        Err(error) => {
            note(&format!("error: {error}"));
            return ExitCode::from(USAGE);
        }
    };
    let command = Cli::command().color(colours.of_clap());
    let matches = command.get_matches_from(bench::with_long_pg(translated.args.into_iter()));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // What the scan above could not tell from a prompt, the parser can.
    output::choose_colours(cli.color);
    start_logging(cli.verbose);
    translated.notes.iter().for_each(|text| note(text));
    if cli.no_mmap {
        mapped::read_instead_of_mapping();
    }
    #[cfg(unix)]
    if let Err(error) = mapped::install_sigbus_message() {
        tracing::warn!("a model file that is truncated while in use will end the program without a message: {error}");
    }
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::serve(args),
        Command::Bench(args) => bench::bench(args, &profile::STORED),
        Command::Tune(args) => bench::tune(args),
        Command::Verify(args) => verify::verify(args),
        Command::Gate(args) => gate::gate(args),
        Command::Profile(args) => profile::profile(args),
        Command::Kernels(args) => kernels::kernels(args),
        Command::Eval(args) => eval::eval(args),
        Command::Quantize(args) => quantize::quantize(args),
        Command::Inspect(args) => inspect::inspect(args),
        Command::Plan(args) => plan_command::plan(args),
        Command::List(args) => list::list(args),
        Command::Pull(args) => pull::pull(args),
        Command::Rm(args) => rm::rm(args),
        Command::Doctor(args) => doctor::doctor(args),
        Command::Completions(args) => completions::completions(args, &mut Cli::command()),
        Command::Man(args) => man::man(args, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if matches!(error.downcast_ref(), Some(OutputError::ReaderGone)) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {}", chain(&error)));
            ExitCode::FAILURE
        }
    }
}

/// The chain of causes on one line, each cause once: libraries often put their cause into their own message.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Logs go to stderr: warnings always, more with `-v`.
fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => tracing::Level::WARN,
        1 => tracing::Level::INFO,
        2 => tracing::Level::DEBUG,
        _ => tracing::Level::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(output::is_coloured())
        .without_time()
        .with_target(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_chain_says_each_cause_once() {
        let error = anyhow::anyhow!("disk full").context("cannot write: disk full").context("cannot save");
        assert_eq!(chain(&error), "cannot save: cannot write: disk full");
    }
}
