//! What stands beside a vocabulary without `tokenizer.json`: `tokenizer_config.json`, `added_tokens.json` and
//! `special_tokens_map.json`.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::error::{TokenizerError, shortened};
use crate::load::parse;

pub(crate) const CONFIG_FILE: &str = "tokenizer_config.json";
const ADDED_FILE: &str = "added_tokens.json";
const MAP_FILE: &str = "special_tokens_map.json";

/// Keys of tokens with a role; the tokens are special.
const ROLES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

/// The bytes of these files, where a checkpoint has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct SideFiles<'a> {
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a [u8]>,
    /// `added_tokens.json`.
    pub added_tokens: Option<&'a [u8]>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<&'a [u8]>,
}

/// These files, read. Of what two of them say, `tokenizer_config.json` counts.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) config: Map<String, Value>,
    /// Tokens beside or beyond those of the vocabulary, by id.
    pub(crate) added: Vec<(u32, AddedToken)>,
    /// Texts of all tokens with a role, and of those that `additional_special_tokens` names.
    pub(crate) special: Vec<String>,
}

/// An entry of `added_tokens_decoder`.
#[derive(serde::Deserialize)]
struct AddedJson {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl SideFiles<'_> {
    pub(crate) fn read(&self) -> Result<Beside, TokenizerError> {
        fn object(file: &'static str, json: Option<&[u8]>) -> Result<Map<String, Value>, TokenizerError> {
            json.map_or_else(|| Ok(Map::new()), |json| parse(file, json))
        }
        let mut config = object(CONFIG_FILE, self.tokenizer_config)?;
        let map = object(MAP_FILE, self.special_tokens_map)?;
        for key in ROLES.into_iter().chain(["additional_special_tokens"]) {
            if let Some(value) = map.get(key).filter(|_| !config.contains_key(key)) {
                config.insert(key.to_owned(), value.clone());
            }
        }
        let roles = ROLES.iter().filter_map(|key| config.get(*key));
        let more = config.get("additional_special_tokens").and_then(Value::as_array).into_iter().flatten();
        let special: Vec<String> = roles.chain(more).filter_map(text_of).map(str::to_owned).collect();

        let mut added: IndexMap<u32, AddedToken> = IndexMap::new();
        if let Some(decoder) = config.get("added_tokens_decoder").filter(|decoder| !decoder.is_null()) {
            let wrong = |key: &str, message: String| {
                let field = format!("added_tokens_decoder.{}", shortened(key, 40));
                TokenizerError::field(CONFIG_FILE, field, message)
            };
            let decoder = decoder.as_object().ok_or_else(|| {
                TokenizerError::field(CONFIG_FILE, "added_tokens_decoder", "is no object of tokens by id")
            })?;
            for (key, token) in decoder {
                let id = key.parse().map_err(|_| wrong(key, "is not under an id".to_owned()))?;
                let token: AddedJson = serde::Deserialize::deserialize(token)
                    .map_err(|error: serde_json::Error| wrong(key, format!("is not usable: {error}")))?;
                if token.content.is_empty() {
                    return Err(wrong(key, "has no text".to_owned()));
                }
                let AddedJson { content, single_word, lstrip, rstrip, normalized, special } = token;
                let token = AddedToken::from(content, special)
                    .single_word(single_word)
                    .lstrip(lstrip)
                    .rstrip(rstrip)
                    .normalized(normalized.unwrap_or(!special));
                added.insert(id, token);
            }
        }
        for (text, id) in object(ADDED_FILE, self.added_tokens)? {
            let field = || shortened(&text, 40);
            let Some(id) = id.as_u64().and_then(|id| u32::try_from(id).ok()) else {
                return Err(TokenizerError::field(ADDED_FILE, field(), "has no id"));
            };
            match added.get(&id) {
                Some(token) if token.content == text => {}
                Some(token) => {
                    let other = shortened(&token.content, 40);
                    let message = format!("has the id {id}, which is that of `{other}`");
                    return Err(TokenizerError::field(ADDED_FILE, field(), message));
                }
                None => {
                    let special = special.contains(&text);
                    added.insert(id, AddedToken::from(text, special).normalized(!special));
                }
            }
        }
        let mut added: Vec<(u32, AddedToken)> = added.into_iter().collect();
        added.sort_unstable_by_key(|(id, _)| *id);
        let mut texts: Vec<&str> = added.iter().map(|(_, token)| token.content.as_str()).collect();
        texts.sort_unstable();
        if let Some([twice, _]) = texts.array_windows().find(|[a, b]| a == b) {
            let message = format!("gives `{}` two ids", shortened(twice, 40));
            return Err(TokenizerError::field(CONFIG_FILE, "added_tokens_decoder", message));
        }
        Ok(Beside { config, added, special })
    }
}

impl Beside {
    /// The text of the token under a key.
    pub(crate) fn token(&self, key: &str) -> Option<&str> {
        self.config.get(key).and_then(text_of)
    }

    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        self.config.get(key).and_then(Value::as_bool)
    }
}

/// A token by its text, or by an object around it.
fn text_of(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
