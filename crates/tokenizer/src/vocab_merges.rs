//! `vocab.json` and `merges.txt`: byte-level BPE as GPT-2 and Qwen publish it beside, or before, `tokenizer.json`.
//!
//! They are put together to the `tokenizer.json` that says the same, so both give the same tokens.

use std::collections::BTreeMap;

use ahash::AHashMap;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokenizers::AddedToken;

use crate::error::{TokenizerError, shortened};
use crate::load::{JSON_BYTES_MAX, LoadOptions, parse, split_merge};
use crate::pre_tokenizer::QWEN2;
use crate::side_files::{Beside, CONFIG_FILE, SideFiles};
use crate::tokenizer::Tokenizer;

const VOCAB_FILE: &str = "vocab.json";
const MERGES_FILE: &str = "merges.txt";

/// What `tokenizer_class` says of these files.
struct Class {
    normalizer: Value,
    pre_tokenizer: Value,
    /// Tokens with a role, where no file names them and the vocabulary has them.
    roles: &'static [&'static str],
}

const END: &str = "<|endoftext|>";

impl Class {
    fn find(beside: &Beside) -> Result<Self, TokenizerError> {
        let refused = |message| Err(TokenizerError::field(CONFIG_FILE, "tokenizer_class", message));
        let Some(class) = beside.config.get("tokenizer_class").and_then(Value::as_str) else {
            return refused(format!("is missing: it says how `{MERGES_FILE}` cuts text into words"));
        };
        let prefix = beside.flag("add_prefix_space").unwrap_or(false);
        match class.strip_suffix("Fast").unwrap_or(class) {
            "GPT2Tokenizer" => Ok(Self {
                normalizer: Value::Null,
                pre_tokenizer: json!({"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": true}),
                roles: &["bos_token", "eos_token", "unk_token"],
            }),
            "Qwen2Tokenizer" => Ok(Self {
                normalizer: json!({"type": "NFC"}),
                pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false},
                    {"type": "ByteLevel", "add_prefix_space": prefix, "use_regex": false},
                ]}),
                roles: &["eos_token", "pad_token", "unk_token"],
            }),
            _ => refused(format!(
                "is `{}`; `{VOCAB_FILE}` and `{MERGES_FILE}` are read for GPT2Tokenizer and Qwen2Tokenizer alone: put \
                 the model's tokenizer.json beside them",
                shortened(class, 60)
            )),
        }
    }
}

/// `tokenizer.json`, as far as it is read.
#[derive(Serialize)]
struct TokenizerJson<'a> {
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: ModelJson<'a>,
}

#[derive(Serialize)]
struct ModelJson<'a> {
    r#type: &'static str,
    vocab: &'a RawValue,
    merges: Vec<&'a str>,
}

/// Files that say together what `tokenizer.json` and its `tokenizer_config.json` say.
#[derive(Clone, Debug)]
pub struct EquivalentJson {
    /// `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Vec<u8>,
}

impl EquivalentJson {
    /// The `tokenizer.json` that says what `vocab.json` and `merges.txt` say with the files beside them.
    ///
    /// # Errors
    /// Files that are malformed or too large; a `tokenizer_class` that is not covered, by name.
    pub fn from_vocab_merges(vocab: &[u8], merges: &[u8], beside: SideFiles<'_>) -> Result<Self, TokenizerError> {
        let mut beside = beside.read()?;
        let class = Class::find(&beside)?;
        let ids: AHashMap<String, u32> = parse(VOCAB_FILE, vocab)?;
        let id_of = |text: &str| ids.get(text).copied();
        let mut added: BTreeMap<u32, Value> = BTreeMap::new();
        for (id, token) in &beside.added {
            added.insert(*id, added_json(*id, token));
        }
        let is_added = |text: &str| beside.added.iter().any(|(_, token)| token.content == text);
        let mut special = beside.special.clone();
        for role in class.roles {
            if !beside.config.contains_key(*role) && (is_added(END) || id_of(END).is_some()) {
                beside.config.insert((*role).to_owned(), END.into());
                special.push(END.to_owned());
            }
        }
        for text in special.iter().filter(|text| !is_added(text)) {
            if let Some(id) = id_of(text) {
                added.insert(id, added_json(id, &AddedToken::from(text.as_str(), true).normalized(false)));
            }
        }
        let json = TokenizerJson {
            added_tokens: added.into_values().collect(),
            normalizer: class.normalizer,
            pre_tokenizer: class.pre_tokenizer,
            decoder: json!({"type": "ByteLevel"}),
            model: ModelJson { r#type: "BPE", vocab: parse(VOCAB_FILE, vocab)?, merges: read_merges(merges)? },
        };
        let written = |error: serde_json::Error| TokenizerError::field(VOCAB_FILE, "", error.to_string());
        Ok(Self {
            tokenizer_json: serde_json::to_vec(&json).map_err(written)?,
            tokenizer_config: serde_json::to_vec(&beside.config).map_err(written)?,
        })
    }
}

impl Tokenizer {
    /// Loads `vocab.json` and `merges.txt`, with the files beside them.
    ///
    /// # Errors
    /// As [`EquivalentJson::from_vocab_merges`]; merges and roles that name no token.
    pub fn from_vocab_merges(
        vocab: &[u8],
        merges: &[u8],
        beside: SideFiles<'_>,
        options: &LoadOptions,
    ) -> Result<Self, TokenizerError> {
        let json = EquivalentJson::from_vocab_merges(vocab, merges, beside)?;
        Self::from_json(&json.tokenizer_json, Some(&json.tokenizer_config), options).map_err(in_its_file)
    }
}

/// An entry of `added_tokens`.
fn added_json(id: u32, token: &AddedToken) -> Value {
    json!({
        "id": id, "content": token.content, "single_word": token.single_word, "lstrip": token.lstrip,
        "rstrip": token.rstrip, "normalized": token.normalized, "special": token.special,
    })
}

/// The pairs of `merges.txt`, one a line after one that gives the version.
fn read_merges(merges: &[u8]) -> Result<Vec<&str>, TokenizerError> {
    if merges.len() > JSON_BYTES_MAX {
        return Err(TokenizerError::TooLarge { file: MERGES_FILE, bytes: merges.len(), limit: JSON_BYTES_MAX });
    }
    let text = std::str::from_utf8(merges).map_err(|error| {
        let line = 1 + merges[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        TokenizerError::field(MERGES_FILE, format!("line {line}"), "is not UTF-8")
    })?;
    let mut pairs = Vec::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || index == 0 && line.starts_with("#version") {
            continue;
        }
        if split_merge(line).is_none() {
            let message = format!("is `{}`, which is not two tokens with one space between", shortened(line, 40));
            return Err(TokenizerError::field(MERGES_FILE, format!("line {}", index + 1), message));
        }
        pairs.push(line);
    }
    Ok(pairs)
}

/// Says of an error in the `tokenizer.json` that was put together which file it came from.
fn in_its_file(error: TokenizerError) -> TokenizerError {
    match error {
        TokenizerError::Field { file: "tokenizer.json", field, message } => {
            let file = match field.as_str() {
                "model.merges" => MERGES_FILE,
                "added_tokens" => CONFIG_FILE,
                _ => VOCAB_FILE,
            };
            TokenizerError::Field { file, field, message }
        }
        TokenizerError::Json { file: "tokenizer.json", message } => TokenizerError::Json { file: VOCAB_FILE, message },
        other => other,
    }
}
