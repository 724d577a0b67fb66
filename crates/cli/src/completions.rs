//! `hotmetal completions`: a completion script for a shell.

use anyhow::Result;
use clap::Args;
use clap_complete::Shell;

use crate::output;

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_help = "\
Install it, for example, with:
  bash   hotmetal completions bash > ~/.local/share/bash-completion/completions/hotmetal
  zsh    hotmetal completions zsh > \"${fpath[1]}/_hotmetal\"
  fish   hotmetal completions fish > ~/.config/fish/completions/hotmetal.fish")]
pub(crate) struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs `hotmetal completions` for the whole command line, which `command` describes.
pub(crate) fn completions(args: &CompletionsArgs, command: &mut clap::Command) -> Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new(); // since writing straight to a closed stdout would panic
    clap_complete::generate(args.shell, command, name, &mut script);
    output::stdout(&String::from_utf8_lossy(&script))?;
    Ok(())
}
