//! `tekken.json`, Mistral's own file: tokens by their bytes, merged by rank as tiktoken does it.
//!
//! The format is that of mistral-common: `vocab` lists bytes by rank, ids are ranks after those of the special tokens,
//! and only so many ranks count as `config.default_vocab_size` has room for.

use std::borrow::Cow;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::IgnoredAny;

use crate::bpe::{Bpe, BpeOptions};
use crate::error::{TokenizerError, guarded, shortened};
use crate::gguf_vocab::{Around, GgufVocabulary, pieces};
use crate::load::{LoadOptions, parse};
use crate::pre_tokenizer::PreTokenizer;
use crate::stream_decode::{DecodeRule, Invalid, Leading};
use crate::texts::{Texts, TokenTable};
use crate::tokenizer::{Model, Tokenizer};
use crate::vocabulary::{TokenBytes, alphabet};

const FILE: &str = "tekken.json";
const LOADING: &str = "loading tekken.json";

/// The most special tokens; published files have 1,000.
const SPECIAL_TOKENS_MAX: u32 = 1 << 16;
/// The longest pattern in bytes; published ones have under 400.
const PATTERN_BYTES_MAX: usize = 1 << 14;
/// The longest special token in bytes; published ones have under 40.
const SPECIAL_BYTES_MAX: usize = 1 << 10;
/// The last version of the format whose files may leave out `special_tokens`.
const DEFAULTS_VERSION_MAX: u32 = 7;

/// The chat template of the versions in [`TEMPLATE_VERSIONS`], with `version` to be set before it.
const TEMPLATE: &str = include_str!("tekken.jinja");
/// The versions whose conversations are known here, with the tokens that they cannot do without.
const TEMPLATE_VERSIONS: [(u32, &[&str]); 3] = [
    (7, &["[TOOL_CONTENT]", "[SYSTEM_PROMPT]"]),
    (11, &["[SYSTEM_PROMPT]", "[CALL_ID]", "[ARGS]"]),
    (13, &["[SYSTEM_PROMPT]", "[ARGS]"]),
];

/// The special tokens of files that list none. Those after them are `<SPECIAL_20>` and so on.
const DEFAULT_SPECIAL_TOKENS: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// The file, with its vocabulary as `V`: [`IgnoredAny`] skips the megabytes of tokens that a reader does not need.
#[derive(serde::Deserialize)]
struct TekkenJson<'a, V = Vec<TokenJson<'a>>> {
    #[serde(borrow)]
    config: ConfigJson<'a>,
    vocab: V,
    #[serde(borrow, default)]
    special_tokens: Option<Vec<SpecialJson<'a>>>,
}

#[derive(serde::Deserialize)]
struct ConfigJson<'a> {
    #[serde(borrow)]
    pattern: Cow<'a, str>,
    default_vocab_size: u32,
    default_num_special_tokens: u32,
    #[serde(borrow, default)]
    version: Option<Cow<'a, str>>,
}

#[derive(serde::Deserialize)]
struct TokenJson<'a> {
    rank: u32,
    #[serde(borrow)]
    token_bytes: Cow<'a, str>,
}

#[derive(serde::Deserialize)]
struct SpecialJson<'a> {
    rank: u32,
    #[serde(borrow)]
    token_str: Cow<'a, str>,
}

impl Tokenizer {
    /// A tokenizer from Mistral's `tekken.json`.
    ///
    /// # Errors
    /// A file that is no JSON, too large or inconsistent; a pattern that does not run in linear time, unless `options`
    /// allow it.
    pub fn from_tekken(tekken_json: &[u8], options: &LoadOptions) -> Result<Self, TokenizerError> {
        guarded(LOADING, || {
            let json: TekkenJson<'_> = parse(FILE, tekken_json)?;
            let pattern = pattern(&json)?;
            let pre_tokenizer = PreTokenizer::from_pattern(FILE, "config", pattern, options.allow_unknown_patterns)?;
            build(vocabulary(&json)?, pre_tokenizer)
        })
    }
}

impl GgufVocabulary {
    /// The vocabulary of `tekken.json` as a GGUF file has it. Its pre-tokenizer is called `tekken`, whatever the pattern
    /// is; its merges are those that merging by rank comes to.
    ///
    /// # Errors
    /// As [`Tokenizer::from_tekken`].
    pub fn from_tekken(tekken_json: &[u8]) -> Result<Self, TokenizerError> {
        guarded(LOADING, || {
            let json: TekkenJson<'_> = parse(FILE, tekken_json)?;
            let mut vocabulary = vocabulary(&json)?;
            let tokenizer = build(vocabulary.clone(), PreTokenizer::default())?;
            let (Model::Bpe(bpe), texts) = (&tokenizer.model, &tokenizer.vocabulary) else { return Ok(vocabulary) };
            for id in json.config.default_num_special_tokens..texts.len() as u32 {
                if let Some((left, right)) = bpe.split_of(texts, id) {
                    vocabulary.merges.push(&format!("{} {}", texts.raw_text(left), texts.raw_text(right)));
                }
            }
            Ok(vocabulary)
        })
    }
}

/// The chat template of a model that has `tekken.json` and no template: Mistral's own format of that version, with the
/// special tokens spelled out. `None` for a version whose format is not known here, or a file without tokens of it.
///
/// # Errors
/// A file that is no JSON, or has no `config` or no `vocab`. What is in `vocab` is not looked at.
pub fn tekken_chat_template(tekken_json: &[u8]) -> Result<Option<String>, TokenizerError> {
    let json: TekkenJson<'_, IgnoredAny> = parse(FILE, tekken_json)?;
    let Some(number) = version_number(&json) else { return Ok(None) };
    let Some(&(number, needed)) = TEMPLATE_VERSIONS.iter().find(|(known, _)| *known == number) else { return Ok(None) };
    let count = json.config.default_num_special_tokens.min(SPECIAL_TOKENS_MAX);
    let tokens = special_tokens(&json, count)?;
    let has_all = needed.iter().all(|needed| tokens.iter().any(|token| token == needed));
    Ok(has_all.then(|| format!("{{%- set version = {number} -%}}\n{TEMPLATE}")))
}

/// The number in `config.version`, such as `v7`.
fn version_number<V>(json: &TekkenJson<'_, V>) -> Option<u32> {
    json.config.version.as_deref()?.strip_prefix('v')?.parse().ok()
}

fn build(vocabulary: GgufVocabulary, pre_tokenizer: PreTokenizer) -> Result<Tokenizer, TokenizerError> {
    let mut types = vocabulary.checked_types()?;
    let fim = vocabulary.fim(&mut types);
    let mut around = Around::read(&vocabulary, &types, true, false)?;
    around.roles.eos.truncate(1);
    let specials = vocabulary.token_types.iter().take_while(|&&kind| kind == CONTROL).count();
    let tables = vocabulary.tables(&types, TokenBytes::ByteLevel)?;
    let mut tokens = TokenTable::new(&tables);
    for id in pieces(&types) {
        if let Some(other) = tokens.insert(&tables, id) {
            let message = format!("is that of vocab[{}], too; each token has its own", other as usize - specials);
            let field = format!("vocab[{}].token_bytes", id as usize - specials);
            return Err(TokenizerError::field(FILE, field, message));
        }
    }
    let options = BpeOptions { ignore_merges: true, ..BpeOptions::default() };
    let model = Bpe::by_rank(&tables, tokens, options);
    let mut tokenizer = Tokenizer {
        vocabulary: tables,
        normalizer: None,
        pre_tokenizer,
        model: Model::Bpe(model),
        added: around.added,
        decode_rule: DecodeRule { leading: Leading::Strip { byte: b' ', count: 0 }, invalid: Invalid::OnePerPart },
        roles: around.roles,
        way: OnceLock::new(),
        fim: None,
    };
    tokenizer.set_fim(fim);
    Ok(tokenizer)
}

fn pattern<'a>(json: &'a TekkenJson<'_>) -> Result<&'a str, TokenizerError> {
    let pattern = &json.config.pattern;
    let refused = |message| Err(TokenizerError::field(FILE, "config.pattern", message));
    match pattern.len() {
        0 => refused("is empty: nothing says how text is cut into words".to_owned()),
        1..=PATTERN_BYTES_MAX => Ok(pattern.as_ref()),
        bytes => refused(format!("has {bytes} bytes, more than the limit of {PATTERN_BYTES_MAX}")),
    }
}

/// `token_type` of normal and control tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// All of the vocabulary but its merges.
fn vocabulary(json: &TekkenJson<'_>) -> Result<GgufVocabulary, TokenizerError> {
    let ConfigJson { default_vocab_size: size, default_num_special_tokens: special_count, .. } = json.config;
    if special_count > SPECIAL_TOKENS_MAX {
        let message = format!("is {special_count}, more than the limit of {SPECIAL_TOKENS_MAX}");
        return Err(TokenizerError::field(FILE, "config.default_num_special_tokens", message));
    }
    let listed = json.vocab.len();
    let used = size.checked_sub(special_count).map(|used| used as usize);
    let Some(used) = used.filter(|used| (256..=listed).contains(used)) else {
        let message = format!(
            "is {size}; with {special_count} special tokens and {listed} in `vocab` it must be between {} and {}",
            u64::from(special_count) + 256,
            u64::from(special_count) + listed as u64
        );
        return Err(TokenizerError::field(FILE, "config.default_vocab_size", message));
    };

    let mut tokens = Texts::default();
    let special_tokens = special_tokens(json, special_count)?;
    special_tokens.iter().for_each(|token| tokens.push(token));
    let chars = alphabet();
    let (mut bytes, mut text) = (Vec::new(), String::new());
    for (rank, token) in json.vocab.iter().take(used).enumerate() {
        let wrong =
            |field: &str, message: String| Err(TokenizerError::field(FILE, format!("vocab[{rank}].{field}"), message));
        if token.rank as usize != rank {
            return wrong(
                "rank",
                format!("is {}, but tokens stand in the order of their ranks: {rank} is due", token.rank),
            );
        }
        bytes.clear();
        if let Err(error) = STANDARD.decode_vec(token.token_bytes.as_bytes(), &mut bytes) {
            let found = shortened(&token.token_bytes, 40);
            return wrong("token_bytes", format!("is `{found}`, which is not base64: {error}"));
        }
        if rank < 256 && bytes != [rank as u8] || bytes.is_empty() {
            let found = shortened(&token.token_bytes, 40);
            let message = format!("is `{found}`; the first 256 tokens are the bytes in order, and none is empty");
            return wrong("token_bytes", message);
        }
        text.clear();
        text.extend(bytes.iter().map(|&byte| chars[usize::from(byte)]));
        tokens.push(&text);
    }
    let id_of = |name: &str| (0u32..).zip(&special_tokens).find(|(_, token)| *token == name).map(|(id, _)| id);
    let needed = |name: &str| {
        let missing = || TokenizerError::field(FILE, "special_tokens", format!("has no `{name}`, which is needed"));
        id_of(name).ok_or_else(missing)
    };
    let mut token_types = vec![CONTROL; special_tokens.len()];
    token_types.resize(tokens.len(), NORMAL);
    Ok(GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: "tekken".to_owned(),
        bos_id: Some(needed("<s>")?),
        eos_id: Some(needed("</s>")?),
        unk_id: id_of("<unk>"),
        pad_id: id_of("<pad>"),
        add_bos: Some(true),
        add_eos: Some(false),
        tokens,
        token_types,
        ..GgufVocabulary::default()
    })
}

/// The text of each special token; ranks that the file gives to none are fillers.
fn special_tokens<V>(json: &TekkenJson<'_, V>, count: u32) -> Result<Vec<String>, TokenizerError> {
    let wrong = |field: String, message: String| Err(TokenizerError::field(FILE, field, message));
    let mut tokens: Vec<String> = vec![String::new(); count as usize];
    match &json.special_tokens {
        Some(listed) => {
            for (index, special) in listed.iter().enumerate() {
                let field = |name: &str| format!("special_tokens[{index}].{name}");
                let bytes = special.token_str.len();
                if !(1..=SPECIAL_BYTES_MAX).contains(&bytes) {
                    let message = format!("has {bytes} bytes; between 1 and {SPECIAL_BYTES_MAX} are allowed");
                    return wrong(field("token_str"), message);
                }
                match tokens.get_mut(special.rank as usize) {
                    None => {
                        let message = format!(
                            "is {}, not below `config.default_num_special_tokens`, which is {count}",
                            special.rank
                        );
                        return wrong(field("rank"), message);
                    }
                    Some(text) if text.is_empty() => text.push_str(&special.token_str),
                    Some(text) => {
                        let message = format!("is {}, which `{}` has already", special.rank, shortened(text, 40));
                        return wrong(field("rank"), message);
                    }
                }
            }
        }
        None => {
            if version_number(json).is_some_and(|number| number > DEFAULTS_VERSION_MAX) {
                let version = shortened(json.config.version.as_deref().unwrap_or_default(), 20);
                let message = format!("is missing; files of version `{version}` (`config.version`) list them");
                return wrong("special_tokens".to_owned(), message);
            }
            tokens.iter_mut().zip(DEFAULT_SPECIAL_TOKENS).for_each(|(token, name)| token.push_str(name));
        }
    }
    for (rank, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
        *token = format!("<SPECIAL_{rank}>");
    }
    let mut sorted: Vec<&str> = tokens.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    match sorted.array_windows().find(|[a, b]| a == b) {
        Some([twice, _]) => wrong("special_tokens".to_owned(), format!("has `{}` twice", shortened(twice, 40))),
        None => Ok(tokens),
    }
}
