//! Vocabularies embedded in GGUF files, given as plain data.

use std::sync::OnceLock;

use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper};

use crate::bpe::{Bpe, BpeOptions};
use crate::error::{TokenizerError, guarded};
use crate::fim::{FimIds, FimMarkers};
use crate::load::split_merge;
use crate::pre_tokenizer::{Letters, Named, PreTokenizer};
use crate::spm::Spm;
use crate::stream_decode::{DecodeRule, Invalid, Leading};
use crate::texts::{Texts, TokenTable};
use crate::tokenizer::{AddedTokens, Model, Roles, Tokenizer};
use crate::vocabulary::{TokenBytes, Vocabulary, fallback_byte};

const FILE: &str = "GGUF metadata";
const LOADING: &str = "loading a GGUF vocabulary";

/// SentencePiece's mark for a space.
const SPACE_MARK: &str = "▁";

/// The `tokenizer.ggml.*` values of a GGUF file; each field says which.
#[derive(Clone, Debug, Default)]
pub struct GgufVocabulary {
    /// `model`: `gpt2` (BPE after splits), `llama` (SentencePiece BPE) or `gemma4` (that pre-tokenizer, whatever `pre` says).
    pub model: String,
    /// `pre`: the pre-tokenizer, for `gpt2`. Old files have none: empty.
    pub pre: String,
    /// `tokens`: the text of each id.
    pub tokens: Texts,
    /// `scores`: one for each token, for `llama`; else may be empty.
    pub scores: Vec<f32>,
    /// `token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty.
    pub token_types: Vec<i32>,
    /// `merges`: pairs in the form `a b`, best first, for `gpt2`.
    pub merges: Texts,
    /// `bos_token_id`.
    pub bos_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_id: Option<u32>,
    /// `eot_token_id`: ends a turn, hence a generation.
    pub eot_id: Option<u32>,
    /// `eom_token_id`: ends a message, hence a generation.
    pub eom_id: Option<u32>,
    /// `unknown_token_id`.
    pub unk_id: Option<u32>,
    /// `padding_token_id`.
    pub pad_id: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`, for `llama`.
    pub add_space_prefix: Option<bool>,
    /// `fim_pre_token_id` and the others of fill in the middle.
    pub fim: FimIds,
}

/// `token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenType {
    /// Made from text by merges: normal, unused, undefined.
    Piece,
    Unknown,
    Control,
    UserDefined,
    Byte,
}

/// Control tokens that end a turn in the chat formats in use: many files name but one end token.
const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "<|eot|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
];

impl Tokenizer {
    /// A tokenizer from the vocabulary in a GGUF file.
    ///
    /// # Errors
    /// Kinds and pre-tokenizers that are not covered, by name; arrays of different lengths; ids and
    /// merges that refer to no token.
    pub fn from_gguf(vocabulary: GgufVocabulary) -> Result<Self, TokenizerError> {
        guarded(LOADING, || {
            let mut types = vocabulary.checked_types()?;
            let fim = vocabulary.fim(&mut types);
            let mut tokenizer = match vocabulary.model.as_str() {
                "gpt2" => listed_merges(Named::find(&vocabulary.pre)?, vocabulary, &types)?,
                "gemma4" => listed_merges(Named::find("gemma4")?, vocabulary, &types)?,
                "llama" => sentence_piece(vocabulary, &types)?,
                other => {
                    return Err(TokenizerError::UnknownModel { model: crate::error::shortened(other, 100) });
                }
            };
            tokenizer.set_fim(fim);
            Ok(tokenizer)
        })
    }
}

/// BPE whose merges the file lists.
fn listed_merges(
    named: &Named,
    mut vocabulary: GgufVocabulary,
    types: &[TokenType],
) -> Result<Tokenizer, TokenizerError> {
    vocabulary.add_eos.get_or_insert(named.add_eos);
    let marks = named.letters == Letters::Marks;
    let around = Around::read(&vocabulary, types, named.add_bos, marks)?;
    let merges = std::mem::take(&mut vocabulary.merges);
    let (byte_ids, unk_id) = match named.letters {
        Letters::Bytes => (None, None),
        Letters::Marks => (Some(byte_ids(&vocabulary, types)), vocabulary.unk_id),
    };
    let tables = vocabulary.tables(types, if marks { marked_text() } else { TokenBytes::ByteLevel })?;
    // Control tokens stay out of the model: no text can merge into one. Of tokens with one text the first counts.
    let mut tokens = TokenTable::new(&tables);
    for id in pieces(types) {
        tokens.insert(&tables, id);
    }
    let (ignore_merges, whole_newlines) = (named.ignore_merges, named.whole_newlines);
    let options = BpeOptions { ignore_merges, whole_newlines, byte_ids, unk_id, fuse_unk: marks };
    let pairs = merges.iter().map(|merge| split_merge(merge).ok_or(merge));
    let model = Bpe::new(&tables, tokens, pairs, options)
        .map_err(|error| TokenizerError::field(FILE, "tokenizer.ggml.merges", error.to_string()))?;
    let normalizer = match named.letters {
        Letters::Bytes => named.nfc.then(|| NFC.into()),
        Letters::Marks => Some(to_marks()?.into()),
    };
    let invalid = if marks { Invalid::OnePerByte } else { Invalid::OnePerPart };
    Ok(Tokenizer {
        vocabulary: tables,
        normalizer,
        pre_tokenizer: named.pre_tokenizer(),
        model: Model::Bpe(model),
        added: around.added,
        decode_rule: DecodeRule { leading: Leading::Strip { byte: b' ', count: 0 }, invalid },
        roles: around.roles,
        way: OnceLock::new(),
        fim: None,
    })
}

/// `▁` for spaces.
fn to_marks() -> Result<Replace, TokenizerError> {
    Replace::new(" ", SPACE_MARK).map_err(|error| TokenizerError::library(LOADING, error))
}

/// Tokens whose texts have `▁` for spaces, and of which some are bytes.
fn marked_text() -> TokenBytes {
    TokenBytes::Text { replace: vec![(SPACE_MARK.to_owned(), " ".to_owned())], byte_fallback: true }
}

/// The token of each byte, of several the first.
fn byte_ids(vocabulary: &GgufVocabulary, types: &[TokenType]) -> Box<[Option<u32>; 256]> {
    let mut byte_ids = Box::new([None; 256]);
    for ((id, token), kind) in (0u32..).zip(vocabulary.tokens.iter()).zip(types) {
        if let (TokenType::Byte, Some(byte)) = (kind, fallback_byte(token)) {
            byte_ids[usize::from(byte)].get_or_insert(id);
        }
    }
    byte_ids
}

pub(crate) fn sentence_piece(mut vocabulary: GgufVocabulary, types: &[TokenType]) -> Result<Tokenizer, TokenizerError> {
    if vocabulary.scores.len() != vocabulary.tokens.len() {
        let (scores, tokens) = (vocabulary.scores.len(), vocabulary.tokens.len());
        let message = format!("has {scores} values for {tokens} tokens; model `llama` needs one for each");
        return Err(TokenizerError::field(FILE, "tokenizer.ggml.scores", message));
    }
    let around = Around::read(&vocabulary, types, true, true)?;
    let byte_ids = byte_ids(&vocabulary, types);
    let unk_id = vocabulary.unk_id;
    let space_prefix = vocabulary.add_space_prefix.unwrap_or(true);
    let mut normalizers: Vec<NormalizerWrapper> = vec![to_marks()?.into()];
    if space_prefix {
        normalizers.insert(0, Prepend::new(SPACE_MARK.to_owned()).into());
    }
    let scores = std::mem::take(&mut vocabulary.scores);
    let tables = vocabulary.tables(types, marked_text())?;
    let model = Spm::new(&tables, pieces(types), scores, byte_ids, unk_id);
    Ok(Tokenizer {
        vocabulary: tables,
        normalizer: Some(Sequence::new(normalizers).into()),
        pre_tokenizer: PreTokenizer::default(),
        model: Model::Spm(model),
        added: around.added,
        decode_rule: DecodeRule {
            leading: Leading::Strip { byte: b' ', count: usize::from(space_prefix) },
            invalid: Invalid::OnePerByte,
        },
        roles: around.roles,
        way: OnceLock::new(),
        fim: None,
    })
}

/// What text may merge into. User-defined tokens are found in the text first, but merges name them.
pub(crate) fn pieces(types: &[TokenType]) -> impl Iterator<Item = u32> {
    let is_piece = |kind: &TokenType| matches!(kind, TokenType::Piece | TokenType::UserDefined);
    (0u32..).zip(types).filter(move |(_, kind)| is_piece(kind)).map(|(id, _)| id)
}

/// What is found in a text before the model sees it, and put around it.
pub(crate) struct Around {
    pub(crate) added: AddedTokens,
    pub(crate) roles: Roles,
}

impl Around {
    pub(crate) fn read(
        vocabulary: &GgufVocabulary,
        types: &[TokenType],
        add_bos: bool,
        marks: bool,
    ) -> Result<Self, TokenizerError> {
        let roles = vocabulary.roles(add_bos, types)?;
        let added = AddedTokens::new(vocabulary.added_tokens(types, marks), None);
        Ok(Self { added: added.map_err(|error| TokenizerError::library(LOADING, error))?, roles })
    }
}

impl GgufVocabulary {
    /// One type for each token.
    pub(crate) fn checked_types(&self) -> Result<Vec<TokenType>, TokenizerError> {
        let tokens = self.tokens.len();
        if tokens == 0 || u32::try_from(tokens).is_err() {
            let message = format!("has {tokens} tokens; between 1 and 2^32 - 1 are needed");
            return Err(TokenizerError::field(FILE, "tokenizer.ggml.tokens", message));
        }
        if self.token_types.is_empty() {
            return Ok(self.guessed_types());
        }
        if self.token_types.len() != tokens {
            let types = self.token_types.len();
            let message = format!("has {types} values for {tokens} tokens; one for each is needed");
            return Err(TokenizerError::field(FILE, "tokenizer.ggml.token_type", message));
        }
        let types = self.token_types.iter().map(|kind| match kind {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            6 => TokenType::Byte,
            _ => TokenType::Piece,
        });
        Ok(types.collect())
    }

    /// Types for a file without them: tokens with a role are control tokens.
    fn guessed_types(&self) -> Vec<TokenType> {
        let control = [self.bos_id, self.eos_id, self.eot_id, self.eom_id, self.pad_id];
        let kind = |(id, token): (u32, &str)| {
            if self.unk_id == Some(id) {
                TokenType::Unknown
            } else if control.contains(&Some(id)) {
                TokenType::Control
            } else if self.model != "gpt2" && fallback_byte(token).is_some() {
                TokenType::Byte
            } else {
                TokenType::Piece
            }
        };
        (0u32..).zip(self.tokens.iter()).map(kind).collect()
    }

    /// The markers of a gap, which become control tokens: text never makes one.
    pub(crate) fn fim(&self, types: &mut [TokenType]) -> Option<FimMarkers> {
        // A look at the first byte keeps the search short: it goes over all tokens.
        let marks = (0u32..).zip(self.tokens.iter()).filter(|(_, token)| token.starts_with(['<', '[', '▁']));
        let marks: Vec<(u32, &str)> = marks.filter(|(_, token)| token.ends_with(['>', ']'])).collect();
        let named = self.fim.below(types.len());
        let fim = FimMarkers::find(&named, |text| marks.iter().find(|(_, token)| *token == text).map(|(id, _)| *id))?;
        for &(id, _) in &marks {
            if fim.ids().any(|mark| mark == id) {
                types[id as usize] = TokenType::Control;
            }
        }
        Some(fim)
    }

    /// The tables of all tokens.
    pub(crate) fn tables(self, types: &[TokenType], token_bytes: TokenBytes) -> Result<Vocabulary, TokenizerError> {
        let mut tables = Vocabulary::new(FILE, self.tokens, 0..types.len() as u32, token_bytes)?;
        let special = |kind: &TokenType| matches!(kind, TokenType::Control | TokenType::Unknown);
        tables.mark_special((0u32..).zip(types).filter(|(_, kind)| special(kind)).map(|(id, _)| id));
        Ok(tables)
    }

    /// Tokens that are found in the text before the model sees it.
    fn added_tokens(&self, types: &[TokenType], marks: bool) -> Vec<(u32, AddedToken)> {
        let mut added = Vec::new();
        for (id, kind) in (0u32..).zip(types) {
            let special = match kind {
                TokenType::Control | TokenType::Unknown => true,
                TokenType::UserDefined => false,
                TokenType::Piece | TokenType::Byte => continue,
            };
            let token = self.tokens.get(id as usize).unwrap_or_default();
            if token.is_empty() {
                continue;
            }
            // Runs of spaces are written with marks, but stand as spaces in a text.
            let text = if marks && !special { token.replace(SPACE_MARK, " ") } else { token.to_owned() };
            added.push((id, AddedToken::from(text, special).normalized(false)));
        }
        added
    }

    fn roles(&self, add_bos: bool, types: &[TokenType]) -> Result<Roles, TokenizerError> {
        let checked = |key: &str, id: Option<u32>| match id {
            Some(id) if id as usize >= self.tokens.len() => Err(TokenizerError::field(
                FILE,
                format!("tokenizer.ggml.{key}"),
                format!("is {id}, but the vocabulary has {} tokens", self.tokens.len()),
            )),
            id => Ok(id),
        };
        let bos = checked("bos_token_id", self.bos_id)?;
        let eos = checked("eos_token_id", self.eos_id)?;
        let mut ends: Vec<u32> = eos.into_iter().collect();
        ends.extend(checked("eot_token_id", self.eot_id)?);
        ends.extend(checked("eom_token_id", self.eom_id)?);
        let controls = (0u32..).zip(types).filter(|(_, kind)| **kind == TokenType::Control);
        let controls: Vec<(u32, &str)> =
            controls.map(|(id, _)| (id, self.tokens.get(id as usize).unwrap_or_default())).collect();
        // In the Harmony format `<|end|>` ends a message in the middle of a generation.
        let harmony = controls.iter().any(|(_, token)| *token == "<|call|>");
        for &(id, token) in &controls {
            if TURN_ENDS.contains(&token) && !(harmony && token == "<|end|>") {
                ends.push(id);
            }
        }
        let mut seen = Vec::new();
        ends.retain(|id| {
            let new = !seen.contains(id);
            seen.push(*id);
            new
        });
        let with = |wanted: bool, id: Option<u32>| id.filter(|_| wanted).into_iter().collect();
        Ok(Roles {
            bos,
            unk: checked("unknown_token_id", self.unk_id)?,
            pad: checked("padding_token_id", self.pad_id)?,
            prefix: with(self.add_bos.unwrap_or(add_bos), bos),
            suffix: with(self.add_eos.unwrap_or(false), eos),
            eos: ends,
        })
    }
}
