//! How a model was trained to make one vector of a text, as far as its files say.

use bytes::Bytes;
use serde_json::Value as Json;

use crate::config::ModelConfig;
use crate::gguf::Metadata;
use crate::{FormatError, json};

/// The list of what sentence-transformers does one after the other.
pub(crate) const MODULES: &str = "modules.json";

/// How a model was trained to make one vector of a text. Empty of a model that was trained to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmbeddingConfig {
    /// The name of its pooling: `mean`, `last`, `cls`, or whatever the files say.
    pub pooling: Option<String>,
    /// Whether vectors are brought to length 1.
    pub normalize: Option<bool>,
}

impl EmbeddingConfig {
    /// From `{architecture}.pooling_type` of a GGUF file, llama.cpp's number.
    pub(crate) fn from_gguf(metadata: &Metadata, architecture: &str) -> Result<Self, FormatError> {
        let pooling = match metadata.u64(&format!("{architecture}.pooling_type"))? {
            // A model without pooling was not trained for it.
            None | Some(0) => None,
            Some(1) => Some("mean".to_owned()),
            Some(2) => Some("cls".to_owned()),
            Some(3) => Some("last".to_owned()),
            Some(4) => Some("rank".to_owned()),
            Some(other) => Some(format!("type {other}")),
        };
        Ok(Self { pooling, normalize: None })
    }

    /// From sentence-transformers' `modules.json`, and the `config.json` in the folder that it names for pooling; `read`
    /// gives a file, if it is there.
    pub(crate) fn from_modules(modules: &Bytes, read: impl Fn(&str) -> Option<Bytes>) -> Result<Self, FormatError> {
        let modules = json::parse(modules, "the JSON").map_err(|error| error.in_file(MODULES))?;
        // Anything but a list names no module.
        let modules = modules.as_array().map(Vec::as_slice).unwrap_or_default();
        let of_kind = |kind: &str| {
            modules
                .iter()
                .find(|module| module["type"].as_str().is_some_and(|name| name.rsplit('.').next() == Some(kind)))
        };
        let folder = of_kind("Pooling").and_then(|module| module["path"].as_str());
        // A name, and no way out of the model's folder.
        let folder = folder.filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        let pooling = match folder.map(|folder| format!("{folder}/config.json")) {
            None => None,
            Some(name) => match read(&name) {
                None => None,
                Some(bytes) => pooling(&ModelConfig::read(&name, &bytes)?.into_value()),
            },
        };
        Ok(Self { pooling, normalize: Some(of_kind("Normalize").is_some()) })
    }
}

/// What the configuration of a pooling module says: a name, or in older ones a switch for each.
fn pooling(config: &Json) -> Option<String> {
    let short = |mode: &str| match mode {
        "lasttoken" => "last".to_owned(),
        other => other.to_owned(),
    };
    if let Some(mode) = config["pooling_mode"].as_str() {
        return Some(short(mode));
    }
    let switches = config.as_object()?;
    let on = switches.iter().filter(|(_, value)| **value == Json::Bool(true));
    let modes: Vec<String> = on
        .filter_map(|(name, _)| name.strip_prefix("pooling_mode_"))
        .map(|mode| short(mode.strip_suffix("_tokens").or(mode.strip_suffix("_token")).unwrap_or(mode)))
        .collect();
    (!modes.is_empty()).then(|| modes.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(modules: &str, pooling: &str) -> Result<EmbeddingConfig, FormatError> {
        let file = Bytes::from(pooling.to_owned());
        let find = |name: &str| (name == "1_Pooling/config.json").then(|| file.clone());
        EmbeddingConfig::from_modules(&Bytes::from(modules.to_owned()), find)
    }

    const MODULES: &str = r#"[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}"#;

    #[test]
    fn modules_say_how_vectors_are_made() {
        let found = |end: &str, pooling: &str| {
            let found = read(&format!("{MODULES}{end}"), pooling).unwrap();
            (found.pooling, found.normalize)
        };
        let normalize = r#", {"idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]"#;
        let some = |name: &str| Some(name.to_owned());
        let last = r#"{"pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true, "include_prompt": true}"#;
        assert_eq!(found(normalize, last), (some("last"), Some(true)));
        assert_eq!(found("]", r#"{"pooling_mode_mean_tokens": true}"#), (some("mean"), Some(false)));
        assert_eq!(found("]", r#"{"pooling_mode": "lasttoken"}"#), (some("last"), Some(false)));
        assert_eq!(found("]", r#"{"pooling_mode_cls_token": true}"#), (some("cls"), Some(false)));
        assert_eq!(
            found("]", r#"{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}"#).0,
            some("cls and max")
        );
        assert_eq!(found("]", "{}").0, None);
    }

    #[test]
    fn what_modules_name_is_inside_the_folder() {
        let out = r#"[{"path": "../1_Pooling", "type": "x.Pooling"}]"#;
        let any = |_: &str| -> Option<Bytes> { panic!("nothing is to be read") };
        assert_eq!(EmbeddingConfig::from_modules(&Bytes::from(out), any).unwrap().pooling, None);
        assert!(read("", "{}").is_err() && read("[", "{}").is_err() && read(&format!("{MODULES}]"), "[").is_err());
        for other in ["[{}, 3, null]", "{}", "3", r#"[{"type": 1, "path": []}]"#] {
            assert_eq!(
                read(other, "{}").unwrap(),
                EmbeddingConfig { pooling: None, normalize: Some(false) },
                "{other}"
            );
        }
    }
}
