//! `config.json`, `generation_config.json` and `tokenizer_config.json`, with getters whose errors name the key.

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::{FormatError, error::shown, json};

/// A JSON configuration file: the object as it is in the file, and typed access to it.
///
/// A getter returns `None` for a key that is missing or null, and an error that names file, key, what was found and
/// what was expected for a value of another type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelConfig {
    file: String,
    map: Map<String, Value>,
}

impl ModelConfig {
    /// Reads the JSON object in `bytes`; `file` names it in errors.
    pub fn read(file: &str, bytes: &[u8]) -> Result<Self, FormatError> {
        let map = json::parse_object(bytes, "the JSON").map_err(|error| error.in_file(file))?;
        Ok(Self { file: file.into(), map })
    }

    /// An object that is already there; `file` names it in errors.
    pub fn new(file: &str, map: Map<String, Value>) -> Self {
        Self { file: file.into(), map }
    }

    /// The whole object.
    pub fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    /// The whole object, taken out.
    pub fn into_value(self) -> Value {
        self.map.into()
    }

    /// The value under `key`, unless it is missing or null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// A non-negative integer.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    /// A number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, FormatError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Token ids, written as one integer or as a list: `eos_token_id`. Empty when missing.
    pub fn token_ids(&self, key: &str) -> Result<Vec<u32>, FormatError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.typed(key, "a token id or a list of them", |value| match value {
            Value::Array(list) => list.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// A special token, written as its text or as an object with `content`: `eos_token`.
    pub fn token_text(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.typed(key, "a token's text, or an object with its `content`", |value| {
            value.as_str().or_else(|| value.get("content")?.as_str())
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| self.wrong(key, expected, value))
    }

    fn wrong(&self, key: &str, expected: &str, value: &Value) -> FormatError {
        let found = match value {
            Value::Number(_) | Value::String(_) | Value::Bool(_) => shown(&value.to_string()),
            other => json::kind(other).into(),
        };
        FormatError::WrongValue { key: key.into(), expected: expected.into(), found }.in_file(&self.file)
    }
}

fn template_text(file: &str, jinja: &Bytes) -> Result<String, FormatError> {
    let text = std::str::from_utf8(jinja);
    text.map(String::from).map_err(|_| FormatError::NotUtf8 { what: "the template".into() }.in_file(file))
}

/// The chat templates of a checkpoint: the default one, and others by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChatTemplates {
    /// The template that is used unless another is asked for.
    pub default: Option<String>,
    /// Others, such as `tool_use`, in the file's order.
    pub named: Vec<(String, String)>,
}

impl ChatTemplates {
    /// The templates of a folder: `chat_template.jinja` comes before `chat_template` in `tokenizer_config.json`, which
    /// comes before `chat_template.json`, as in transformers.
    pub(crate) fn read(
        tokenizer_config: &ModelConfig,
        jinja: Option<&Bytes>,
        json_file: Option<&ModelConfig>,
    ) -> Result<Self, FormatError> {
        let mut templates = Self::in_key(tokenizer_config)?;
        if let Some(jinja) = jinja {
            templates.default = Some(template_text("chat_template.jinja", jinja)?);
        }
        if let (None, Some(json_file)) = (&templates.default, json_file) {
            templates.default = Self::in_key(json_file)?.default;
        }
        Ok(templates)
    }

    /// Adds the template in a file of its own, which comes before one of the same name in `tokenizer_config.json`.
    pub(crate) fn insert(&mut self, name: &str, file: &str, jinja: &Bytes) -> Result<(), FormatError> {
        let text = template_text(file, jinja)?;
        match self.named.iter_mut().find(|(known, _)| known == name) {
            Some((_, template)) => *template = text,
            None => self.named.push((name.into(), text)),
        }
        Ok(())
    }

    /// `chat_template`: a string, or a list of `{"name", "template"}` of which one is named `default`.
    fn in_key(config: &ModelConfig) -> Result<Self, FormatError> {
        const KEY: &str = "chat_template";
        let expected = "a string, or a list of objects with `name` and `template`";
        match config.get(KEY) {
            None => Ok(Self::default()),
            Some(Value::String(template)) => Ok(Self { default: Some(template.clone()), named: Vec::new() }),
            Some(Value::Array(list)) => {
                let mut templates = Self::default();
                for entry in list {
                    let text = |key: &str| entry.get(key).and_then(Value::as_str).map(String::from);
                    let (Some(name), Some(template)) = (text("name"), text("template")) else {
                        return Err(config.wrong(KEY, expected, entry));
                    };
                    if name == "default" {
                        templates.default = Some(template);
                    } else {
                        templates.named.push((name, template));
                    }
                }
                Ok(templates)
            }
            Some(other) => Err(config.wrong(KEY, expected, other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    fn config(text: &str) -> ModelConfig {
        ModelConfig::read("config.json", text.as_bytes()).unwrap()
    }

    #[test]
    fn getters_tell_missing_from_wrong() {
        let config =
            config(r#"{"a": 3, "b": null, "c": "x", "eos_token_id": [1, 2], "bos_token_id": 7, "d": [1, -1]}"#);
        assert_eq!(config.u64("a").unwrap(), Some(3));
        assert_eq!((config.u64("b").unwrap(), config.u64("missing").unwrap()), (None, None));
        assert_eq!(config.token_ids("eos_token_id").unwrap(), [1, 2]);
        assert_eq!(config.token_ids("bos_token_id").unwrap(), [7]);
        let error = config.u64("c").unwrap_err();
        assert_eq!(error.to_string(), "cannot read `config.json`");
        let cause = error.source().unwrap().to_string();
        assert_eq!(cause, "key `c` must be a non-negative integer, found \"x\"");
        assert!(config.token_ids("d").is_err());
    }

    #[test]
    fn special_tokens_are_text_or_objects() {
        let config =
            config(r#"{"eos_token": "</s>", "bos_token": {"content": "<s>", "lstrip": false}, "unk_token": 1}"#);
        assert_eq!(config.token_text("eos_token").unwrap(), Some("</s>"));
        assert_eq!(config.token_text("bos_token").unwrap(), Some("<s>"));
        assert!(config.token_text("unk_token").is_err());
    }

    #[test]
    fn templates_come_from_three_places_in_order() {
        let one = config(r#"{"chat_template": "A"}"#);
        let list = config(
            r#"{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
        );
        let jinja = Bytes::from_static(b"J");
        let default =
            |c: &ModelConfig, j: Option<&Bytes>, f: Option<&ModelConfig>| ChatTemplates::read(c, j, f).unwrap().default;
        assert_eq!(default(&one, None, None).as_deref(), Some("A"));
        assert_eq!(default(&one, Some(&jinja), None).as_deref(), Some("J"));
        assert_eq!(default(&ModelConfig::default(), None, Some(&one)).as_deref(), Some("A"));
        let list = ChatTemplates::read(&list, None, None).unwrap();
        assert_eq!(list.default.as_deref(), Some("D"));
        assert_eq!(list.named, [("tool_use".into(), "T".into())]);
        assert!(ChatTemplates::read(&config(r#"{"chat_template": [{"name": "x"}]}"#), None, None).is_err());
    }
}
