//! `hotmetal man`: pages for `man`, which packages carry.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Write a page for man(1) of the program and of each command
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// The folder to write them to: hotmetal.1, hotmetal-run.1 and so on
    folder: PathBuf,
}

/// Runs `hotmetal man` for the whole command line, which `command` describes.
pub(crate) fn man(args: &ManArgs, command: clap::Command) -> Result<()> {
    let context = || format!("cannot write pages of man to `{}`", args.folder.display());
    fs::create_dir_all(&args.folder).with_context(context)?;
    clap_mangen::generate_to(command, &args.folder).with_context(context)
}
