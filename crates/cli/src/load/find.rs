//! From a model's name to its checkpoint: a path, a cached repository, or the model inside the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use formats::{Checkpoint, TokenizerSource};

use crate::{builtin, gguf_architectures, hub};

/// Whether a positional argument is meant as a model: a path that exists or looks like one, or ORG/REPO.
pub(crate) fn names_a_model(text: &str) -> bool {
    let is_one_word = !text.is_empty() && !text.contains(char::is_whitespace);
    let has_ending = text.ends_with(".gguf") || text.ends_with(".safetensors");
    let is_path = text.starts_with(['/', '.', '~']) && text.contains('/');
    let is_repo = text.contains('/') && text.parse::<hub::ModelRef>().is_ok();
    is_one_word && (Path::new(text).exists() || has_ending || is_path || is_repo)
}

/// Opens the checkpoint that `name` stands for (the built-in one without a name); with `headers_only`, files whose data
/// has not arrived yet are enough. Returns it with its name for messages.
pub(crate) fn open(name: Option<&str>, headers_only: bool) -> Result<(Checkpoint, String)> {
    let Some(name) = name else {
        let checkpoint = builtin::open().context("the built-in model is damaged: please report it")?;
        return Ok((checkpoint, builtin::NAME.to_owned()));
    };
    let path = locate(name)?;
    let open_file = |path: &Path| mapped::map(path).map_err(Into::into);
    let architectures = gguf_architectures::all();
    let checkpoint = match headers_only {
        true => Checkpoint::open_headers(&path, &open_file, architectures),
        false => Checkpoint::open(&path, &open_file, architectures),
    };
    let mut checkpoint = checkpoint.with_context(|| format!("cannot load `{name}`"))?;
    settle_chat_template(&mut checkpoint);
    Ok((checkpoint, name.to_owned()))
}

/// Mistral's own format, for a model that has tekken.json and no chat template.
fn settle_chat_template(checkpoint: &mut Checkpoint) {
    if let (None, TokenizerSource::Tekken { tekken_json }) = (&checkpoint.chat_templates.default, &checkpoint.tokenizer)
    {
        // The tokenizer says what is wrong with the file when it is loaded.
        checkpoint.chat_templates.default = tokenizer::tekken_chat_template(tekken_json).ok().flatten();
    }
}

/// Bytes of the weights of the model that `name` stands for, as its file has them.
pub(crate) fn weight_bytes(name: &str) -> Result<u64> {
    let (checkpoint, _) = open(Some(name), true)?;
    Ok(checkpoint.tensor_infos().map(|info| info.bytes).sum())
}

/// The path that a model's name stands for.
pub(crate) fn locate(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.exists() {
        return Ok(path.to_owned());
    }
    if [".gguf", ".safetensors"].iter().any(|ending| name.ends_with(ending)) && !name.contains(':') {
        bail!("there is no model at `{name}`: no such file; check the spelling and the current directory");
    }
    let is_repo = name.parse::<hub::ModelRef>().is_ok();
    if is_repo {
        if let Some(path) = hub::resolve(name)? {
            return Ok(path);
        }
        bail!("`{name}` is neither a path nor a model in the cache; `hotmetal pull {name}` downloads it");
    }
    bail!(
        "there is no model at `{name}`: expected a folder, a .gguf or .safetensors file, or the ORG/REPO of a cached \
         model (`hotmetal list` shows them)"
    );
}
