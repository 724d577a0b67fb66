//! `hotmetal pull`: a model from the Hugging Face hub into the cache.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::hub::{self, Look, ModelRef, Settings};
use crate::{gguf_architectures, output};

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

    /// Fetch the weights of a model that this program does not compute, too
    #[arg(long)]
    anyway: bool,
}

/// Whether this program computes a model, as far as its configuration tells.
struct IsComputed;

impl IsComputed {
    fn is(config: &Value) -> Result<(), String> {
        let mut config = config.clone();
        if let Some(fields) = config.as_object_mut() {
            // How weights are packed is not for the models to know.
            fields.remove("quantization_config");
        }
        models::build_plan(&config, &plan::AnyShape).map(drop).map_err(|error| error.to_string())
    }
}

impl Look for IsComputed {
    fn config(&self, json: &[u8]) -> Result<(), String> {
        // One that is no JSON is reported when the model is loaded.
        serde_json::from_slice(json).map_or(Ok(()), |config| Self::is(&config))
    }

    fn gguf(&self, first_bytes: Vec<u8>) -> Option<Result<(), String>> {
        let config = formats::Checkpoint::config_of_gguf_header(first_bytes.into(), gguf_architectures::all()).ok()?;
        Some(Self::is(&config))
    }
}

/// Runs `hotmetal pull`.
pub(crate) fn pull(args: &PullArgs) -> Result<()> {
    // Ollama's names, such as llama3.2, are none of the hub's, whose names without an organisation are few.
    let hint = match args.model.contains('/') {
        true => "",
        false => " (a model's name has its organisation, as on https://huggingface.co: Qwen/Qwen3-0.6B)",
    };
    let context = || format!("cannot pull `{}`{hint}", args.model);
    let model: ModelRef = args.model.parse().with_context(context)?;
    let look = (!args.anyway).then_some(&IsComputed as &dyn Look);
    let path = hub::pull(&Settings::from_env()?, &model, &args.revision, look).with_context(context)?;
    output::stdout(&format!("{}\n", path.display()))?;
    Ok(())
}
