//! `tokenizer.json`, with what `tokenizer_config.json` adds to it.

use std::borrow::Cow;
use std::fmt;

use ahash::AHashMap;
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, Encoding, Model as _, ModelWrapper, NormalizerWrapper, PostProcessor as _, PostProcessorWrapper, Token,
};

use crate::error::{TokenizerError, guarded};
use crate::pre_tokenizer::{PreTokenizer, check_normalizer};
use crate::stream_decode::{DecodeRule, Invalid, Leading};
use crate::tokenizer::{AddedTokens, Model, Roles, Tokenizer};
use crate::vocabulary::{TokenBytes, Vocabulary};

/// The largest `tokenizer.json` or `tokenizer_config.json` that is read; real ones have under 40 MiB.
pub const JSON_BYTES_MAX: usize = 256 << 20;

const FILE: &str = "tokenizer.json";
const CONFIG_FILE: &str = "tokenizer_config.json";
const LOADING: &str = "loading tokenizer.json";

/// What a caller may allow.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// Accept patterns that need a backtracking engine. They may take long, or give up with an error.
    pub allow_unknown_patterns: bool,
}

/// `tokenizer.json`; truncation and padding do not concern inference and are not read.
#[derive(serde::Deserialize)]
struct TokenizerJson<'a> {
    #[serde(default)]
    added_tokens: Vec<AddedTokenJson>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(serde::Deserialize)]
struct AddedTokenJson {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// The kind of `model`, read before the rest of it.
#[derive(serde::Deserialize)]
struct ModelKind<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<Cow<'a, str>>,
}

/// `model` of type BPE. Read here rather than by the library, whose reader goes through a tree of
/// JSON values: four times the time for a vocabulary of 150,000.
#[derive(serde::Deserialize)]
struct BpeJson {
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: AHashMap<String, u32>,
    merges: Vec<Merge>,
}

/// A pair to merge: `"a b"`, or `["a", "b"]` where tokens may contain spaces.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge, as \"a b\" or [\"a\", \"b\"]")
            }

            fn visit_str<E: de::Error>(self, pair: &str) -> Result<Merge, E> {
                match split_merge(pair) {
                    Some((a, b)) => Ok(Merge(a.to_owned(), b.to_owned())),
                    None => Err(E::invalid_value(de::Unexpected::Str(pair), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                let missing = |_| de::Error::invalid_length(0, &"two tokens");
                let a = pair.next_element()?.ok_or(()).map_err(missing)?;
                let b = pair.next_element()?.ok_or(()).map_err(missing)?;
                match pair.next_element::<de::IgnoredAny>()? {
                    None => Ok(Merge(a, b)),
                    Some(_) => Err(de::Error::invalid_length(3, &"two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

/// The two tokens of `"a b"`; neither has a space in it.
pub(crate) fn split_merge(pair: &str) -> Option<(&str, &str)> {
    let (a, b) = pair.split_once(' ')?;
    (!a.is_empty() && !b.is_empty() && !b.contains(' ')).then_some((a, b))
}

/// `tokenizer_config.json`: the names of tokens with a role.
#[derive(Default, serde::Deserialize)]
struct TokenizerConfig {
    bos_token: Option<TokenName>,
    eos_token: Option<TokenName>,
    unk_token: Option<TokenName>,
    pad_token: Option<TokenName>,
    add_bos_token: Option<bool>,
    add_eos_token: Option<bool>,
}

/// A token by its text, or by an object around it.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TokenName {
    Text(String),
    Object { content: String },
}

impl TokenName {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl Tokenizer {
    /// Loads `tokenizer.json`, and with it `tokenizer_config.json` where there is one.
    ///
    /// # Errors
    /// Files that are no JSON, too large or inconsistent; parts that this crate does not cover; a
    /// pattern that does not run in linear time, unless `options` allow it.
    pub fn from_json(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        options: &LoadOptions,
    ) -> Result<Self, TokenizerError> {
        let json: TokenizerJson<'_> = parse(FILE, tokenizer_json)?;
        let config: Option<TokenizerConfig> = match tokenizer_config {
            Some(config) => parse(CONFIG_FILE, config)?,
            None => None,
        };
        let config = config.unwrap_or_default();
        guarded(LOADING, || build(json, &config, options))
    }
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, json: &'a [u8]) -> Result<T, TokenizerError> {
    if json.len() > JSON_BYTES_MAX {
        return Err(TokenizerError::TooLarge { file, bytes: json.len(), limit: JSON_BYTES_MAX });
    }
    // The reader bounds the depth, at 128.
    serde_json::from_slice(json).map_err(|error| TokenizerError::Json { file, message: error.to_string() })
}

fn build(
    json: TokenizerJson<'_>,
    config: &TokenizerConfig,
    options: &LoadOptions,
) -> Result<Tokenizer, TokenizerError> {
    let library = |error| TokenizerError::library(LOADING, error);
    let part = |field: &'static str| {
        move |error: serde_json::Error| TokenizerError::field(FILE, field, format!("is not usable: {error}"))
    };

    check_normalizer(FILE, "normalizer", &json.normalizer)?;
    let normalizer = Option::<NormalizerWrapper>::deserialize(&json.normalizer).map_err(part("normalizer"))?;
    let pre_tokenizer = PreTokenizer::from_json(FILE, &json.pre_tokenizer, options.allow_unknown_patterns)?;
    let (token_bytes, decode_rule) = read_decoder(&json.decoder)?;

    let added = json.added_tokens.into_iter().map(|added| (added.id, added.token));
    let added = AddedTokens::new(added.collect(), normalizer.as_ref()).map_err(library)?;
    let added_texts: Vec<(u32, String)> = added.texts().collect();
    let vocabulary = |model: &mut dyn Iterator<Item = (&str, u32)>| {
        let mut tokens: Vec<(u32, &str)> = Vec::new();
        for (text, id) in model {
            if let Some(other) = added.token_to_id(text).filter(|&other| other != id) {
                return Err(TokenizerError::field(
                    FILE,
                    "added_tokens",
                    format!("gives `{text}` the id {other}, but `model.vocab` gives it {id}"),
                ));
            }
            tokens.push((id, text));
        }
        tokens.extend(added_texts.iter().map(|(id, text)| (*id, text.as_str())));
        Vocabulary::new(FILE, tokens.into_iter(), |id| added.is_special(id), &token_bytes)
    };

    let kind: ModelKind<'_> = serde_json::from_str(json.model.get()).map_err(part("model"))?;
    let (model, vocabulary, unk) = match kind.kind.as_deref() {
        // GPT-2's files are older than the field.
        Some("BPE") | None => {
            let bpe: BpeJson = serde_json::from_str(json.model.get()).map_err(part("model"))?;
            let vocabulary = vocabulary(&mut bpe.vocab.iter().map(|(text, &id)| (text.as_str(), id)))?;
            let unk = bpe.unk_token.clone();
            (ModelWrapper::BPE(build_bpe(bpe)?), vocabulary, unk)
        }
        Some(_) => {
            let value: Value = serde_json::from_str(json.model.get()).map_err(part("model"))?;
            let model = ModelWrapper::deserialize(&value).map_err(part("model"))?;
            let texts = model.get_vocab();
            let vocabulary = vocabulary(&mut texts.iter().map(|(text, &id)| (text.as_str(), id)))?;
            let unk = value.get("unk_token").and_then(Value::as_str).map(str::to_owned);
            (model, vocabulary, unk)
        }
    };

    let mut tokenizer = Tokenizer {
        vocabulary,
        normalizer,
        pre_tokenizer,
        model: Model::Library(Box::new(model)),
        added,
        decode_rule,
        roles: Roles::default(),
    };
    check_post_processor("post_processor", &json.post_processor)?;
    let post_processor =
        Option::<PostProcessorWrapper>::deserialize(&json.post_processor).map_err(part("post_processor"))?;
    tokenizer.roles = read_roles(&tokenizer, config, post_processor, unk.as_deref())?;
    Ok(tokenizer)
}

fn build_bpe(json: BpeJson) -> Result<BPE, TokenizerError> {
    if let Some(prefix) = json.continuing_subword_prefix.as_deref() {
        // The library cuts the prefix off without looking.
        if let Some(Merge(_, b)) = json.merges.iter().find(|merge| !merge.1.starts_with(prefix)) {
            return Err(TokenizerError::field(
                FILE,
                "model.merges",
                format!(
                    "has `{b}` on the right, which lacks the prefix `{prefix}` (`model.continuing_subword_prefix`)"
                ),
            ));
        }
    }
    let merges = json.merges.into_iter().map(|Merge(a, b)| (a, b)).collect();
    let mut builder = BPE::builder()
        .vocab_and_merges(json.vocab, merges)
        .fuse_unk(json.fuse_unk.unwrap_or(false))
        .byte_fallback(json.byte_fallback.unwrap_or(false))
        .ignore_merges(json.ignore_merges.unwrap_or(false));
    if let Some(unk_token) = json.unk_token {
        builder = builder.unk_token(unk_token);
    }
    if let Some(prefix) = json.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = json.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder.build().map_err(|error| TokenizerError::field(FILE, "model", format!("is not usable: {error}")))
}

/// One step of `decoder`.
#[derive(serde::Deserialize)]
#[serde(tag = "type")]
enum DecoderJson {
    ByteLevel {},
    Metaspace {
        replacement: char,
        #[serde(default)]
        prepend_scheme: Option<String>,
        #[serde(default)]
        add_prefix_space: Option<bool>,
    },
    Replace {
        pattern: ReplaceJson,
        content: String,
    },
    ByteFallback {},
    Fuse {},
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

#[derive(serde::Deserialize)]
enum ReplaceJson {
    String(String),
}

/// The decoder as a rule for single tokens and one for the text as a whole.
fn read_decoder(json: &Value) -> Result<(TokenBytes, DecodeRule), TokenizerError> {
    let unusable = |found: String| {
        TokenizerError::field(
            FILE,
            "decoder",
            format!(
                "{found}; covered are ByteLevel, Metaspace, and a Sequence of Replace (of a text), ByteFallback, \
                 Fuse and Strip (at the start), in this order"
            ),
        )
    };
    let steps: Vec<&Value> = match json.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.iter().collect(),
        None if json.is_null() => return Err(unusable("is missing".to_owned())),
        None => vec![json],
    };
    let steps: Vec<DecoderJson> = steps
        .into_iter()
        .map(DecoderJson::deserialize)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(format!("is not usable: {error}")))?;

    let no_strip = Leading::Strip { byte: b' ', count: 0 };
    match steps.as_slice() {
        [DecoderJson::ByteLevel {}] => {
            let rule = DecodeRule { leading: no_strip, invalid: Invalid::OnePerPart };
            return Ok((TokenBytes::ByteLevel, rule));
        }
        [DecoderJson::Metaspace { replacement, prepend_scheme, add_prefix_space }] => {
            let never = prepend_scheme.as_deref() == Some("never") || *add_prefix_space == Some(false);
            let bytes =
                TokenBytes::Text { replace: vec![(replacement.to_string(), " ".to_owned())], byte_fallback: false };
            let rule = DecodeRule {
                leading: if never { no_strip } else { Leading::InFirstToken(*replacement) },
                invalid: Invalid::OnePerPart,
            };
            return Ok((bytes, rule));
        }
        _ => {}
    }

    let (mut replace, mut byte_fallback, mut fused) = (Vec::new(), false, false);
    let mut leading = no_strip;
    for step in steps {
        match step {
            DecoderJson::Replace { pattern: ReplaceJson::String(from), content }
                if !byte_fallback && !fused && !from.is_empty() =>
            {
                replace.push((from, content))
            }
            DecoderJson::ByteFallback {} if !fused => byte_fallback = true,
            DecoderJson::Fuse {} => fused = true,
            DecoderJson::Strip { content, start, stop: 0 } if fused && content.is_ascii() => {
                leading = Leading::Strip { byte: u8::try_from(content).expect("ASCII"), count: start };
            }
            _ => return Err(unusable("has steps in an order that is not covered".to_owned())),
        }
    }
    let invalid = if byte_fallback { Invalid::OnePerByte } else { Invalid::OnePerPart };
    let bytes = TokenBytes::Text { replace, byte_fallback };
    Ok((bytes, DecodeRule { leading, invalid }))
}

fn read_roles(
    tokenizer: &Tokenizer,
    config: &TokenizerConfig,
    post_processor: Option<PostProcessorWrapper>,
    unk: Option<&str>,
) -> Result<Roles, TokenizerError> {
    let id_of = |field: &str, name: &Option<TokenName>| match name {
        None => Ok(None),
        Some(name) => tokenizer.token_to_id(name.text()).map(Some).ok_or_else(|| {
            TokenizerError::field(CONFIG_FILE, field, format!("names `{}`, which `{FILE}` does not have", name.text()))
        }),
    };
    let (mut prefix, mut suffix) = match post_processor {
        Some(post_processor) => around_text(&post_processor)?,
        None => Default::default(),
    };
    if let Some(&id) = prefix.iter().chain(&suffix).find(|&&id| tokenizer.id_to_token(id).is_none()) {
        let message = format!("adds the id {id}, which is no token");
        return Err(TokenizerError::field(FILE, "post_processor", message));
    }
    let first_special = |ids: &[u32]| ids.iter().copied().find(|&id| tokenizer.is_special(id));
    let bos = id_of("bos_token", &config.bos_token)?.or_else(|| first_special(&prefix));
    let eos = id_of("eos_token", &config.eos_token)?.or_else(|| first_special(&suffix));
    if let Some(wanted) = config.add_bos_token {
        set_presence(&mut prefix, bos, wanted, 0);
    }
    if let Some(wanted) = config.add_eos_token {
        let end = suffix.len();
        set_presence(&mut suffix, eos, wanted, end);
    }
    Ok(Roles {
        bos,
        eos: eos.into_iter().collect(),
        unk: match id_of("unk_token", &config.unk_token)? {
            Some(id) => Some(id),
            None => unk.and_then(|unk| tokenizer.token_to_id(unk)),
        },
        pad: id_of("pad_token", &config.pad_token)?,
        prefix,
        suffix,
    })
}

/// Puts `id` into `ids`, or takes it out.
fn set_presence(ids: &mut Vec<u32>, id: Option<u32>, wanted: bool, at: usize) {
    let Some(id) = id else { return };
    if !wanted {
        ids.retain(|&other| other != id);
    } else if !ids.contains(&id) {
        ids.insert(at, id);
    }
}

/// Refuses a template that uses a token without saying what it is: the library would panic.
fn check_post_processor(path: &str, json: &Value) -> Result<(), TokenizerError> {
    let list = |field| json.get(field).and_then(Value::as_array).into_iter().flatten();
    for (index, part) in list("processors").enumerate() {
        check_post_processor(&format!("{path}.processors[{index}]"), part)?;
    }
    for part in list("single").chain(list("pair")) {
        let id = part.get("SpecialToken").and_then(|token| token.get("id"));
        if let Some(id) = id.and_then(Value::as_str)
            && json.get("special_tokens").is_none_or(|tokens| tokens.get(id).is_none())
        {
            let message = format!("uses `{id}`, which its `special_tokens` do not have");
            return Err(TokenizerError::field(FILE, path, message));
        }
    }
    Ok(())
}

/// What the post-processor puts before and after a text, found by giving it one token.
fn around_text(post_processor: &PostProcessorWrapper) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    const TEXT: u32 = u32::MAX;
    let text = Encoding::from_tokens(vec![Token::new(TEXT, "x".to_owned(), (0, 1))], 0);
    let processed =
        post_processor.process(text, None, true).map_err(|error| TokenizerError::library(LOADING, error))?;
    let ids = processed.get_ids();
    match ids.split(|&id| id == TEXT).collect::<Vec<_>>().as_slice() {
        [prefix, suffix] => Ok((prefix.to_vec(), suffix.to_vec())),
        _ => Err(TokenizerError::field(FILE, "post_processor", "does not hold the text exactly once")),
    }
}
