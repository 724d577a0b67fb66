//! From a model's name to its checkpoint: a path, a cached repository, or the model inside the binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use formats::{Checkpoint, TokenizerSource};

use crate::{builtin, gguf_architectures, hub};

/// Whether a positional argument is meant as a model: a path that exists or looks like one, ORG/REPO, or a name without
/// an organisation that is like one in the cache or like Ollama's (`qwen2.5:0.5b`).
pub(crate) fn names_a_model(text: &str) -> bool {
    let is_one_word = !text.is_empty() && !text.contains(char::is_whitespace);
    let has_ending = text.ends_with(".gguf") || text.ends_with(".safetensors");
    let is_path = text.starts_with(['/', '.', '~']) && text.contains('/');
    let is_repo = text.contains('/') && text.parse::<hub::ModelRef>().is_ok();
    if !is_one_word {
        return false;
    }
    Path::new(text).exists() || has_ending || is_path || is_repo || is_tagged(text) || !like(text).is_empty()
}

/// Whether this is a name and a size or version as Ollama writes them; each has a digit somewhere, and no other words have.
fn is_tagged(text: &str) -> bool {
    let is_part = |part: &str| {
        let starts = part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
        starts && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
    };
    let has_letter = |part: &str| part.bytes().any(|b| b.is_ascii_lowercase());
    text.split_once(':').is_some_and(|(name, tag)| {
        is_part(name) && is_part(tag) && has_letter(name) && text.bytes().any(|b| b.is_ascii_digit())
    })
}

/// The most models that a message suggests.
const SUGGESTED_MAX: usize = 3;

/// Models in the cache whose name has the letters and digits of `name`, a name without an organisation; those first that
/// have those of its tag too. None where the cache cannot be read, because this is for messages alone.
fn like(name: &str) -> Vec<String> {
    let (name, tag) = name.split_once(':').unwrap_or((name, ""));
    let [name, tag] = [name, tag].map(letters_and_digits);
    if name.len() < 3 || name.contains('/') {
        return Vec::new();
    }
    let cached = hub::Settings::from_env().and_then(|settings| hub::Cache::new(&settings.cache).repos());
    let ids = cached.unwrap_or_default().into_iter().map(|repo| repo.id.to_string());
    let mut found: Vec<String> = ids.filter(|id| letters_and_digits(id).contains(&name)).collect();
    found.sort_by_key(|id| (!letters_and_digits(id).contains(&tag), id.len()));
    found.truncate(SUGGESTED_MAX);
    found
}

fn letters_and_digits(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
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

/// What to say of a name that has no organisation and is no path.
fn without_organisation(name: &str) -> anyhow::Error {
    let alike = like(name);
    if alike.is_empty() {
        return anyhow!(
            "there is no model `{name}`: a model's name has its organisation (ORG/REPO, as on the hub); `hotmetal pull \
             ORG/REPO` downloads one, and `hotmetal list` shows those that are here"
        );
    }
    anyhow!("there is no model `{name}`; in the cache there is `{}`", alike.join("`, `"))
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
        if !name.contains('/') {
            return Err(without_organisation(name));
        }
        bail!("`{name}` is neither a path nor a model in the cache; `hotmetal pull {name}` downloads it");
    }
    bail!(
        "there is no model at `{name}`: expected a folder, a .gguf or .safetensors file, or the ORG/REPO of a cached \
         model (`hotmetal list` shows them)"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_ollama_has_them_are_no_prompts() {
        for name in ["llama3.2:1b", "qwen2.5:0.5b", "gemma3:latest", "mistral:7b-instruct-q4_0"] {
            assert!(is_tagged(name), "{name}");
        }
        for prompt in ["hi", "note:this", "Answer:42", "1:2", "a: 1", ":3", "x:", "12:30", "R2D2", "what?"] {
            assert!(!is_tagged(prompt), "{prompt}");
        }
    }
}
