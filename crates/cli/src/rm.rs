//! `hotmetal rm`: models out of the cache.

use std::io::{self, BufRead, IsTerminal};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::hub::{Cache, ModelRef, Settings};
use crate::{output, units};

/// Remove models from the cache
#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// What to remove: a repository, or one file or quantization of it
    #[arg(value_name = "ORG/REPO[:FILE]", required = true)]
    models: Vec<String>,

    /// Remove this branch, tag or commit only
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,

    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

/// Runs `hotmetal rm`.
pub(crate) fn rm(args: &RmArgs) -> Result<()> {
    let models = args
        .models
        .iter()
        .map(|model| {
            model.parse().with_context(|| {
                format!("cannot remove `{model}`: only models in the cache are removed, by name; delete files yourself")
            })
        })
        .collect::<Result<Vec<ModelRef>>>()?;
    let cache = Cache::new(&Settings::from_env()?.cache);
    if !args.yes {
        confirm(&cache, &args.models)?;
    }
    for model in &models {
        let freed =
            cache.remove(model, args.revision.as_deref()).with_context(|| format!("cannot remove `{model}`"))?;
        output::note(&format!("removed {model}: {} freed", units::bytes(freed)));
    }
    Ok(())
}

fn confirm(cache: &Cache, models: &[String]) -> Result<()> {
    if !io::stdin().is_terminal() {
        bail!("nobody can be asked, since standard input is not a terminal: pass --yes to remove without a question");
    }
    output::note(&format!("remove {} from `{}`? [y/N]", models.join(", "), cache.root().display()));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => bail!("nothing was removed"),
    }
}
