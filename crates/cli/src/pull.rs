//! `hotmetal pull`: a model from the Hugging Face hub into the cache.

use anyhow::{Context, Result};
use clap::Args;

use crate::hub::{self, ModelRef, Settings};
use crate::output;

/// Download a model from the Hugging Face hub, or resume and update it; prints where it is
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  hotmetal pull Qwen/Qwen3-0.6B               safetensors and tokenizer
  hotmetal pull Qwen/Qwen3-0.6B-GGUF:Q8_0     one GGUF file, by its quantization or name

Environment: HF_HOME or HF_HUB_CACHE (where), HF_TOKEN (who), HF_ENDPOINT (a mirror), HF_HUB_OFFLINE, HTTPS_PROXY")]
pub(crate) struct PullArgs {
    /// The repository; after a colon, one file of it or a GGUF quantization
    #[arg(value_name = "ORG/REPO[:FILE]")]
    model: String,

    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION", default_value = "main")]
    revision: String,
}

/// Runs `hotmetal pull`.
pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    let context = || format!("cannot pull `{}`", args.model);
    let model: ModelRef = args.model.parse().with_context(context)?;
    let path = hub::pull(&Settings::from_env()?, &model, &args.revision).with_context(context)?;
    output::stdout(&format!("{}\n", path.display()))?;
    Ok(())
}
