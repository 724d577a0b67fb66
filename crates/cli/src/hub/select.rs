//! Which files of a repository are needed: a rule over names alone, used both for a server's list and for the cache.

use super::error::HubError;

/// Files besides the weights, at the top of a repository, that loading a model may read.
const CONFIG_FILES: [&str; 14] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
    "modules.json",
];

/// Weights that are not read, because a file of that kind can run code or is meant for another program.
const OTHER_WEIGHTS: [&str; 7] = [".bin", ".pth", ".pt", ".ckpt", ".onnx", ".h5", ".msgpack"];

/// The files to pull, or to load, for `wanted` (a file, a quantization, or all that the model needs), sorted.
///
/// Without `wanted`: safetensors with their configuration where there are some, or else the one GGUF model.
/// A GGUF model or checkpoint in several parts is one choice. Errors name what there is to choose from.
pub(crate) fn select(repo: &str, files: &[String], wanted: Option<&str>) -> Result<Vec<String>, HubError> {
    let mut chosen = match wanted {
        Some(wanted) => select_wanted(repo, files, wanted)?,
        None => select_all(repo, files)?,
    };
    chosen.sort();
    chosen.dedup();
    Ok(chosen)
}

fn select_wanted(repo: &str, files: &[String], wanted: &str) -> Result<Vec<String>, HubError> {
    let models = gguf_models(files);
    if let Some(model) = models.iter().find(|model| model.parts.contains(&wanted)) {
        return model.complete(repo);
    }
    if files.iter().any(|file| file == wanted) {
        return Ok(vec![wanted.to_owned()]);
    }
    let matching: Vec<&GgufModel> = models.iter().filter(|model| model.is_quantized_as(wanted)).collect();
    match matching[..] {
        [model] => model.complete(repo),
        [] => Err(HubError::NoSuchFile {
            repo: repo.to_owned(),
            wanted: wanted.to_owned(),
            choice: listed(if models.is_empty() { files.to_vec() } else { first_parts(&models) }),
        }),
        _ => Err(HubError::Ambiguous {
            repo: repo.to_owned(),
            wanted: Some(wanted.to_owned()),
            choice: listed(matching.iter().map(|model| model.parts[0].to_owned()).collect()),
        }),
    }
}

fn select_all(repo: &str, files: &[String]) -> Result<Vec<String>, HubError> {
    let safetensors = safetensors_weights(files);
    if !safetensors.is_empty() {
        check_parts(repo, &safetensors)?;
        let is_read = |file: &str| CONFIG_FILES.contains(&file) || is_pooling(file) || is_additional_template(file);
        let config = files.iter().filter(|file| is_read(file));
        return Ok(safetensors.into_iter().chain(config.map(String::as_str)).map(str::to_owned).collect());
    }
    // A vision projector or an importance matrix lies beside models, but is none.
    let is_aside = |name: &str| ["mmproj", "imatrix"].iter().any(|aside| name.to_ascii_lowercase().contains(aside));
    let models: Vec<GgufModel> = gguf_models(files).into_iter().filter(|model| !is_aside(&model.stem)).collect();
    match &models[..] {
        [model] => model.complete(repo),
        [] => {
            let other = files.iter().find(|file| OTHER_WEIGHTS.iter().any(|ending| file.ends_with(ending)));
            Err(HubError::NoWeights { repo: repo.to_owned(), found: other.cloned() })
        }
        models => Err(HubError::Ambiguous { repo: repo.to_owned(), wanted: None, choice: listed(first_parts(models)) }),
    }
}

/// Whether a file says how the states of a text become one vector, as sentence-transformers keeps it:
/// `1_Pooling/config.json`.
fn is_pooling(file: &str) -> bool {
    let folder = file.strip_suffix("/config.json");
    folder.is_some_and(|folder| folder.ends_with("_Pooling") && !folder.contains('/'))
}

/// Whether a file is a chat template beside the usual one, as transformers keeps them:
/// `additional_chat_templates/tool_use.jinja`.
fn is_additional_template(file: &str) -> bool {
    let name = file.strip_prefix("additional_chat_templates/").and_then(|name| name.strip_suffix(".jinja"));
    name.is_some_and(|name| !name.contains('/'))
}

/// The checkpoint's own safetensors at the top of the repository: the shards where there is an index, or
/// `model.safetensors`, or else whatever there is except a second copy under the name `consolidated`.
fn safetensors_weights(files: &[String]) -> Vec<&str> {
    let top: Vec<&str> =
        files.iter().map(String::as_str).filter(|f| f.ends_with(".safetensors") && !f.contains('/')).collect();
    let of = |keep: &dyn Fn(&str) -> bool| -> Vec<&str> { top.iter().copied().filter(|f| keep(f)).collect() };
    let shards = of(&|file| file.starts_with("model-") && split_part(file, ".safetensors").is_some());
    let single = of(&|file| file == "model.safetensors");
    let has_index = files.iter().any(|file| file == "model.safetensors.index.json");
    if !shards.is_empty() && (has_index || single.is_empty()) {
        shards
    } else if !single.is_empty() {
        single
    } else {
        of(&|file| !file.starts_with("consolidated"))
    }
}

/// Shards say how many they are; fewer mean an unfinished upload, or pull.
fn check_parts(repo: &str, shards: &[&str]) -> Result<(), HubError> {
    let Some((stem, _, count)) = shards.first().and_then(|file| split_part(file, ".safetensors")) else {
        return Ok(());
    };
    if shards.len() == count { Ok(()) } else { Err(missing_parts(repo, stem, shards.len(), count)) }
}

fn missing_parts(repo: &str, stem: &str, found: usize, count: usize) -> HubError {
    HubError::MissingParts { repo: repo.to_owned(), stem: stem.to_owned(), found, count }
}

/// One GGUF model: a file, or the parts `STEM-00001-of-00003.gguf` and so on, in order.
struct GgufModel<'a> {
    stem: String,
    count: usize,
    parts: Vec<&'a str>,
}

impl GgufModel<'_> {
    /// Its files, if none is missing.
    fn complete(&self, repo: &str) -> Result<Vec<String>, HubError> {
        if self.parts.len() != self.count {
            return Err(missing_parts(repo, &self.stem, self.parts.len(), self.count));
        }
        Ok(self.parts.iter().map(|part| (*part).to_owned()).collect())
    }

    /// `Q8_0` is the end of `model-Q8_0`, `model.q8_0`, or the folder in `Q8_0/model`; it is not in `model-IQ8_0`.
    fn is_quantized_as(&self, quant: &str) -> bool {
        let quant = quant.to_ascii_lowercase();
        let stem = self.stem.to_ascii_lowercase();
        let mut components = stem.rsplit('/');
        let name = components.next().unwrap_or_default();
        let ends =
            name.strip_suffix(&quant).is_some_and(|before| before.is_empty() || before.ends_with(['-', '.', '_']));
        ends || components.any(|folder| folder == quant)
    }
}

/// GGUF files by model, in order of name.
fn gguf_models(files: &[String]) -> Vec<GgufModel<'_>> {
    let mut models: Vec<GgufModel> = Vec::new();
    let mut sorted: Vec<&str> = files.iter().map(String::as_str).filter(|file| file.ends_with(".gguf")).collect();
    sorted.sort_unstable();
    for file in sorted {
        let (stem, count) = match split_part(file, ".gguf") {
            Some((stem, _, count)) => (stem, count),
            None => (file.trim_end_matches(".gguf"), 1),
        };
        match models.iter_mut().find(|model| model.stem == stem && model.count == count && count > 1) {
            Some(model) => model.parts.push(file),
            None => models.push(GgufModel { stem: stem.to_owned(), count, parts: vec![file] }),
        }
    }
    models
}

/// `model-00002-of-00007.gguf` → (`model`, 2, 7).
fn split_part<'a>(file: &'a str, ending: &str) -> Option<(&'a str, usize, usize)> {
    let (rest, count) = file.strip_suffix(ending)?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| digits.parse::<usize>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((stem, part, count))
}

fn first_parts(models: &[GgufModel]) -> Vec<String> {
    models.iter().map(|model| model.parts[0].to_owned()).collect()
}

/// Names for a message, one a line, not too many.
fn listed(names: Vec<String>) -> String {
    const SHOWN: usize = 40;
    let mut text: String = names.iter().take(SHOWN).map(|name| format!("\n  {name}")).collect();
    if names.len() > SHOWN {
        text += &format!("\n  … and {} more", names.len() - SHOWN);
    }
    text
}

/// The quantization in a GGUF file's name, for lists: `model-Q4_K_M.gguf` → `Q4_K_M`.
pub(crate) fn quantization(file: &str) -> Option<String> {
    let stem = match split_part(file, ".gguf") {
        Some((stem, ..)) => stem,
        None => file.strip_suffix(".gguf")?,
    };
    let name = stem.rsplit('/').next()?.to_ascii_uppercase();
    let last = name.rsplit(['-', '.']).next()?;
    let known = ["Q", "IQ", "TQ", "F16", "F32", "BF16", "MXFP4", "NVFP4"];
    let is_quant = known.iter().any(|start| match last.strip_prefix(start) {
        Some(rest) if start.ends_with('Q') => rest.starts_with(|c: char| c.is_ascii_digit()),
        Some(rest) => rest.is_empty() || rest.starts_with('_'),
        None => false,
    });
    is_quant.then(|| last.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(files: &[&str], wanted: Option<&str>) -> Result<Vec<String>, HubError> {
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        select("org/repo", &files, wanted)
    }

    const SHARDED: [&str; 12] = [
        ".gitattributes",
        "README.md",
        "config.json",
        "consolidated.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "onnx/model.onnx",
        "original/consolidated.00.pth",
        "pytorch_model.bin",
        "tokenizer.json",
        "tokenizer_config.json",
    ];

    #[test]
    fn a_checkpoint_is_its_shards_and_configuration_and_nothing_else() {
        let expected = [
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        assert_eq!(pick(&SHARDED, None).unwrap(), expected);
    }

    #[test]
    fn what_is_read_from_folders_comes_with_the_checkpoint() {
        let files = [
            "model.safetensors",
            "modules.json",
            "1_Pooling/config.json",
            "2_Normalize/config.json",
            "x/1_Pooling/config.json",
            "additional_chat_templates/tool_use.jinja",
            "additional_chat_templates/x/tool_use.jinja",
            "additional_chat_templates/notes.md",
        ];
        let expected =
            ["1_Pooling/config.json", "additional_chat_templates/tool_use.jinja", "model.safetensors", "modules.json"];
        assert_eq!(pick(&files, None).unwrap(), expected);
    }

    #[test]
    fn one_safetensors_file_needs_no_index() {
        let files = ["config.json", "model.safetensors", "model.safetensors.bin", "x/model.safetensors", "a.gguf"];
        assert_eq!(pick(&files, None).unwrap(), ["config.json", "model.safetensors"]);
        assert_eq!(pick(&["consolidated.safetensors", "weights.safetensors"], None).unwrap(), ["weights.safetensors"]);
    }

    #[test]
    fn a_missing_shard_is_named() {
        let error = pick(&SHARDED[..5], None).unwrap_err().to_string();
        assert!(error.contains("1 of 2"), "{error}");
    }

    #[test]
    fn a_quantization_is_found_in_any_usual_spelling() {
        let files = [
            "m-Q4_K_M.gguf",
            "m-Q4_K_S.gguf",
            "m.q8_0.gguf",
            "BF16/m-00001-of-00002.gguf",
            "BF16/m-00002-of-00002.gguf",
        ];
        assert_eq!(pick(&files, Some("Q8_0")).unwrap(), ["m.q8_0.gguf"]);
        assert_eq!(pick(&files, Some("q4_k_m")).unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(pick(&files, Some("bf16")).unwrap(), &files[3..]);
        assert_eq!(pick(&files, Some("BF16/m-00002-of-00002.gguf")).unwrap(), &files[3..]);
        assert!(pick(&files, Some("Q4_K")).is_err());
        assert!(pick(&["m-IQ8_0.gguf"], Some("Q8_0")).is_err());
    }

    #[test]
    fn a_choice_that_is_not_ours_is_listed() {
        let error = pick(&["a-Q8_0.gguf", "b-Q8_0.gguf"], Some("Q8_0")).unwrap_err().to_string();
        assert!(error.contains("\n  a-Q8_0.gguf\n  b-Q8_0.gguf"), "{error}");
        let error = pick(&["m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj-F16.gguf"], None).unwrap_err().to_string();
        assert!(error.contains("m-Q4_0.gguf") && !error.contains("mmproj"), "{error}");
        let error = pick(&["m-Q4_0.gguf", "README.md"], Some("Q8_0")).unwrap_err().to_string();
        assert!(error.contains("`Q8_0`") && error.contains("m-Q4_0.gguf"), "{error}");
        assert_eq!(pick(&["m-Q4_0.gguf", "mmproj-F16.gguf"], None).unwrap(), ["m-Q4_0.gguf"]);
    }

    #[test]
    fn pickled_weights_are_refused_by_name() {
        let error = pick(&["pytorch_model.bin", "config.json"], None).unwrap_err().to_string();
        assert!(error.contains("pytorch_model.bin"), "{error}");
        assert!(pick(&["README.md"], None).is_err());
        assert!(pick(&[], None).is_err());
    }

    #[test]
    fn quantizations_are_read_from_names() {
        assert_eq!(quantization("m-Q4_K_M.gguf").as_deref(), Some("Q4_K_M"));
        assert_eq!(quantization("BF16/m.bf16-00001-of-00002.gguf").as_deref(), Some("BF16"));
        assert_eq!(quantization("Qwen3-0.6B.gguf"), None);
        assert_eq!(quantization("Quill.gguf"), None);
    }
}
