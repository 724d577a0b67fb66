//! `tokenizer.json`, with what `tokenizer_config.json` adds to it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::OnceLock;

use ahash::AHashMap;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, Encoding, Model as _, ModelWrapper, NormalizerWrapper, PostProcessor as _, PostProcessorWrapper, Token,
};

use crate::bpe::{Bpe, BpeOptions};
use crate::error::{TokenizerError, guarded};
use crate::fim::{FimIds, FimMarkers};
use crate::pre_tokenizer::{PreTokenizer, check_normalizer};
use crate::stream_decode::{DecodeRule, Invalid, Leading};
use crate::texts::{Texts, TokenTable};
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
struct TokenizerJson<M> {
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
    model: M,
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

/// `model`, read or not.
enum ModelJson<'a> {
    Bpe(BpeJson),
    Unread(&'a RawValue),
}

/// A `model` that says first that it is BPE, as all do that the library writes today: read with the rest of the file.
/// Any other is an error, and so is one that is malformed; [`ModelJson::Unread`] then finds out what it is.
struct BpeFirst(BpeJson);

impl<'de> Deserialize<'de> for BpeFirst {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = BpeFirst;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model that says first that it is BPE")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<BpeFirst, A::Error> {
                let is_bpe = fields.next_key::<Cow<'de, str>>()?.is_some_and(|name| name == "type")
                    && fields.next_value::<Cow<'de, str>>()? == "BPE";
                if !is_bpe {
                    return Err(de::Error::invalid_type(de::Unexpected::Map, &self));
                }
                let bpe = BpeJson::deserialize(MapAccessDeserializer::new(fields))?;
                if bpe.kind.is_some() { Err(de::Error::duplicate_field("type")) } else { Ok(BpeFirst(bpe)) }
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// `model` of type BPE. Read here rather than by the library, whose reader goes through a tree of
/// JSON values: four times the time for a vocabulary of 150,000.
#[derive(serde::Deserialize)]
struct BpeJson {
    #[serde(rename = "type")]
    kind: Option<IgnoredAny>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: TokenIds,
    merges: Merges,
}

/// `vocab` of a BPE model, in the order of the file: `texts[i]` has the id `ids[i]`.
#[derive(Default)]
struct TokenIds {
    texts: Texts,
    ids: Vec<u32>,
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = TokenIds;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<TokenIds, A::Error> {
                let mut vocab = TokenIds::default();
                while entries.next_key_seed(PushOnto(&mut vocab.texts))?.is_some() {
                    vocab.ids.push(entries.next_value()?);
                }
                Ok(vocab)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl TokenIds {
    /// Whether an id is never that of two texts, here or among the added tokens.
    fn names_each_id_once(&self, added: &AddedTokens) -> bool {
        let mut by_id: Vec<(u32, usize)> = self.ids.iter().copied().zip(0..).collect();
        by_id.sort_unstable();
        let text = |id: u32| {
            let at = by_id.binary_search_by_key(&id, |&(id, _)| id).ok()?;
            self.texts.get(by_id[at].1)
        };
        by_id.array_windows().all(|[a, b]| a.0 != b.0)
            && added.texts().all(|(id, added)| text(id).is_none_or(|text| text == added))
    }
}

/// Reads a string to the end of texts, without a `String` of its own.
struct PushOnto<'a>(&'a mut Texts);

impl<'de> DeserializeSeed<'de> for PushOnto<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for PushOnto<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.0.push(text);
        Ok(())
    }
}

/// Pairs to merge, best first; the two tokens of each one after the other.
#[derive(Default)]
struct Merges(Texts);

impl Merges {
    fn pairs(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        let token = |at| self.0.get(at).expect("two for each pair");
        (0..self.0.len() / 2).map(move |pair| (token(2 * pair), token(2 * pair + 1)))
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Merges, A::Error> {
                let mut merges = Merges::default();
                while pairs.next_element_seed(PushMergeOnto(&mut merges.0))?.is_some() {}
                Ok(merges)
            }
        }
        deserializer.deserialize_seq(Pairs)
    }
}

/// Reads a pair to merge: `"a b"`, or `["a", "b"]` where tokens may contain spaces.
struct PushMergeOnto<'a>(&'a mut Texts);

impl<'de> DeserializeSeed<'de> for PushMergeOnto<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PushMergeOnto<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge, as \"a b\" or [\"a\", \"b\"]")
    }

    fn visit_str<E: de::Error>(self, pair: &str) -> Result<(), E> {
        let (a, b) = split_merge(pair).ok_or_else(|| E::invalid_value(de::Unexpected::Str(pair), &self))?;
        self.0.push(a);
        self.0.push(b);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<(), A::Error> {
        for _ in 0..2 {
            if pair.next_element_seed(PushOnto(self.0))?.is_none() {
                return Err(de::Error::invalid_length(0, &"two tokens"));
            }
        }
        match pair.next_element::<IgnoredAny>()? {
            None => Ok(()),
            Some(_) => Err(de::Error::invalid_length(3, &"two tokens")),
        }
    }
}

/// The two tokens of `"a b"`; neither has a space in it.
pub(crate) fn split_merge(pair: &str) -> Option<(&str, &str)> {
    // A loop over bytes: half the time of `split_once` on texts this short.
    let mut spaces = pair.bytes().enumerate().filter(|&(_, byte)| byte == b' ').map(|(at, _)| at);
    let (at, None) = (spaces.next()?, spaces.next()) else { return None };
    (at > 0 && at + 1 < pair.len()).then(|| (&pair[..at], &pair[at + 1..]))
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
        // Twice the time, but only for files that are rare, or no good.
        let json = match parse(FILE, tokenizer_json) {
            Ok(json) => TokenizerJson::<BpeFirst>::with_model(json, |BpeFirst(bpe)| ModelJson::Bpe(bpe)),
            Err(_) => TokenizerJson::<&RawValue>::with_model(parse(FILE, tokenizer_json)?, ModelJson::Unread),
        };
        let config: Option<TokenizerConfig> = match tokenizer_config {
            Some(config) => parse(CONFIG_FILE, config)?,
            None => None,
        };
        let config = config.unwrap_or_default();
        guarded(LOADING, || build(json, &config, options))
    }
}

impl<M> TokenizerJson<M> {
    fn with_model<N>(self, convert: impl FnOnce(M) -> N) -> TokenizerJson<N> {
        let Self { added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model } = self;
        TokenizerJson { added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model: convert(model) }
    }
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(file: &'static str, json: &'a [u8]) -> Result<T, TokenizerError> {
    if json.len() > JSON_BYTES_MAX {
        return Err(TokenizerError::TooLarge { file, bytes: json.len(), limit: JSON_BYTES_MAX });
    }
    // The reader bounds the depth, at 128.
    serde_json::from_slice(json).map_err(|error| TokenizerError::Json { file, message: error.to_string() })
}

fn build(
    json: TokenizerJson<ModelJson<'_>>,
    config: &TokenizerConfig,
    options: &LoadOptions,
) -> Result<Tokenizer, TokenizerError> {
    check_normalizer(FILE, "normalizer", &json.normalizer)?;
    let normalizer = Option::<NormalizerWrapper>::deserialize(&json.normalizer).map_err(part("normalizer"))?;
    let pre_tokenizer = PreTokenizer::from_json(FILE, &json.pre_tokenizer, options.allow_unknown_patterns)?;
    let (token_bytes, decode_rule) = read_decoder(&json.decoder)?;
    check_ids_of_added(&json.added_tokens)?;

    let id_of = |text: &str| json.added_tokens.iter().find(|added| added.token.content == text).map(|added| added.id);
    let fim = FimMarkers::find(&FimIds::default(), id_of);
    let is_mark = |id: u32| fim.is_some_and(|fim| fim.ids().any(|mark| mark == id));
    let added = json.added_tokens.into_iter().map(|AddedTokenJson { id, token }| match is_mark(id) {
        true => (id, AddedToken { special: true, normalized: false, ..token }),
        false => (id, token),
    });
    let added = AddedTokens::new(added.collect(), normalizer.as_ref())
        .map_err(|error| TokenizerError::library(LOADING, error))?;

    let bpe = match json.model {
        ModelJson::Bpe(bpe) => Ok(bpe),
        ModelJson::Unread(model) => {
            let kind: ModelKind<'_> = serde_json::from_str(model.get()).map_err(part("model"))?;
            match kind.kind.as_deref() {
                // GPT-2's files are older than the field.
                Some("BPE") | None => Ok(serde_json::from_str(model.get()).map_err(part("model"))?),
                Some(_) => Err(model),
            }
        }
    };
    let (vocabulary, model, unk) = match bpe {
        Ok(bpe) => {
            let unk = bpe.unk_token.clone();
            let (vocabulary, model) = bpe_model(bpe, &added, token_bytes)?;
            (vocabulary, model, unk)
        }
        Err(other) => {
            let value: Value = serde_json::from_str(other.get()).map_err(part("model"))?;
            let model = ModelWrapper::deserialize(&value).map_err(part("model"))?;
            let vocab: AHashMap<String, u32> = model.get_vocab().into_iter().collect();
            // A list of pieces may have a piece twice. The map has the last of its ids, and the model may give any.
            let known: HashSet<u32> = vocab.values().copied().collect();
            let ids = 0..u32::try_from(model.get_vocab_size()).unwrap_or(u32::MAX);
            let others = ids.filter(|id| !known.contains(id)).filter_map(|id| Some((model.id_to_token(id)?, id)));
            let vocabulary = vocabulary_of(&vocab, others, &added, token_bytes)?;
            let unk = value.get("unk_token").and_then(Value::as_str).map(str::to_owned);
            (vocabulary, Model::Library(Box::new(model)), unk)
        }
    };

    let mut tokenizer = Tokenizer {
        vocabulary,
        normalizer,
        pre_tokenizer,
        model,
        added,
        decode_rule,
        roles: Roles::default(),
        way: OnceLock::new(),
        fim: None,
    };
    check_post_processor("post_processor", &json.post_processor)?;
    let post_processor =
        Option::<PostProcessorWrapper>::deserialize(&json.post_processor).map_err(part("post_processor"))?;
    tokenizer.roles = read_roles(&tokenizer, config, post_processor, unk.as_deref())?;
    tokenizer.set_fim(fim);
    Ok(tokenizer)
}

fn part(field: &'static str) -> impl FnOnce(serde_json::Error) -> TokenizerError {
    move |error| TokenizerError::field(FILE, field, format!("is not usable: {error}"))
}

/// A BPE model as ours, or as the library's where ours leaves something out.
fn bpe_model(
    mut json: BpeJson,
    added: &AddedTokens,
    token_bytes: TokenBytes,
) -> Result<(Vocabulary, Model), TokenizerError> {
    let affix = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    let affixes = affix(&json.continuing_subword_prefix) || affix(&json.end_of_word_suffix);
    if affixes || !json.vocab.names_each_id_once(added) {
        let vocab = json.vocab.texts.iter().map(str::to_owned).zip(json.vocab.ids.iter().copied()).collect();
        return library_bpe(vocab, json, added, token_bytes);
    }

    let TokenIds { texts, ids } = std::mem::take(&mut json.vocab);
    let vocabulary = vocabulary_with(texts, &ids, added, token_bytes.clone())?;
    let mut tokens = TokenTable::new(&vocabulary);
    let twice = ids.iter().filter(|&&id| tokens.insert(&vocabulary, id).is_some()).count();
    let unk_id = json.unk_token.as_ref().map(|unk| tokens.get(&vocabulary, unk));
    if twice > 0 || unk_id == Some(None) {
        let vocab = ids.iter().map(|&id| (vocabulary.raw_text(id).to_owned(), id)).collect();
        return library_bpe(vocab, json, added, token_bytes);
    }

    check_added(added, |text| tokens.get(&vocabulary, text))?;
    let byte_id = |byte| tokens.get(&vocabulary, &format!("<0x{byte:02X}>"));
    let options = BpeOptions {
        ignore_merges: json.ignore_merges.unwrap_or(false),
        whole_newlines: false,
        byte_ids: json.byte_fallback.unwrap_or(false).then(|| Box::new(std::array::from_fn(byte_id))),
        unk_id: unk_id.flatten(),
        fuse_unk: json.fuse_unk.unwrap_or(false),
    };
    let model = Bpe::new(&vocabulary, tokens, json.merges.pairs().map(Ok), options)
        .map_err(|error| TokenizerError::field(FILE, "model.merges", error.to_string()))?;
    Ok((vocabulary, Model::Bpe(model)))
}

fn library_bpe(
    vocab: AHashMap<String, u32>,
    json: BpeJson,
    added: &AddedTokens,
    token_bytes: TokenBytes,
) -> Result<(Vocabulary, Model), TokenizerError> {
    let vocabulary = vocabulary_of(&vocab, [], added, token_bytes)?;
    if let Some(prefix) = json.continuing_subword_prefix.as_deref() {
        // The library cuts the prefix off without looking.
        if let Some((_, b)) = json.merges.pairs().find(|(_, b)| !b.starts_with(prefix)) {
            return Err(TokenizerError::field(
                FILE,
                "model.merges",
                format!(
                    "has `{b}` on the right, which lacks the prefix `{prefix}` (`model.continuing_subword_prefix`)"
                ),
            ));
        }
    }
    let merges = json.merges.pairs().map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges)
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
    let model =
        builder.build().map_err(|error| TokenizerError::field(FILE, "model", format!("is not usable: {error}")))?;
    Ok((vocabulary, Model::Library(Box::new(ModelWrapper::BPE(model)))))
}

/// The tables of a model's tokens and the added ones. `others` are tokens whose texts `vocab` has with another id.
fn vocabulary_of(
    vocab: &AHashMap<String, u32>,
    others: impl IntoIterator<Item = (String, u32)>,
    added: &AddedTokens,
    token_bytes: TokenBytes,
) -> Result<Vocabulary, TokenizerError> {
    check_added(added, |text| vocab.get(text).copied())?;
    let (mut texts, mut ids): (Texts, Vec<u32>) = (vocab.keys().collect(), vocab.values().copied().collect());
    for (text, id) in others {
        texts.push(&text);
        ids.push(id);
    }
    vocabulary_with(texts, &ids, added, token_bytes)
}

fn vocabulary_with(
    mut texts: Texts,
    ids: &[u32],
    added: &AddedTokens,
    token_bytes: TokenBytes,
) -> Result<Vocabulary, TokenizerError> {
    let (added_ids, added_texts): (Vec<u32>, Vec<String>) = added.texts().unzip();
    added_texts.iter().for_each(|text| texts.push(text));
    let ids = ids.iter().chain(&added_ids).copied();
    let mut vocabulary = Vocabulary::new(FILE, texts, ids, token_bytes)?;
    vocabulary.mark_special(added_ids.iter().copied().filter(|&id| added.is_special(id)));
    Ok(vocabulary)
}

/// Refuses two added tokens with one id, because a text would find only the last of them.
fn check_ids_of_added(added: &[AddedTokenJson]) -> Result<(), TokenizerError> {
    let mut texts = AHashMap::with_capacity(added.len());
    for AddedTokenJson { id, token } in added {
        if let Some(other) = texts.insert(id, &token.content).filter(|other| **other != token.content) {
            let message = format!("gives `{other}` and `{}` the id {id}; give each an id of its own", token.content);
            return Err(TokenizerError::field(FILE, "added_tokens", message));
        }
    }
    Ok(())
}

/// Refuses an added token to which the model gives another id.
fn check_added(added: &AddedTokens, model_id: impl Fn(&str) -> Option<u32>) -> Result<(), TokenizerError> {
    for (text, id) in added.ids() {
        if let Some(other) = model_id(text).filter(|&other| other != id) {
            let message = format!("gives `{text}` the id {id}, but `model.vocab` gives it {other}");
            return Err(TokenizerError::field(FILE, "added_tokens", message));
        }
    }
    Ok(())
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
