//! The vocabulary inside a GGUF file, as data. What it means to tokenise with it is not known here.

use super::{Metadata, Strings};
use crate::FormatError;

/// Ids of the tokens that mark the text before a gap, the text behind it, and the missing text. An id outside the
/// vocabulary counts as missing, because few requests have a gap and the file serves the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FimTokenIds {
    /// `fim_pre_token_id`, or the older `prefix_token_id`.
    pub prefix: Option<u32>,
    /// `fim_suf_token_id`, or `suffix_token_id`.
    pub suffix: Option<u32>,
    /// `fim_mid_token_id`, or `middle_token_id`.
    pub middle: Option<u32>,
    /// `fim_pad_token_id`.
    pub pad: Option<u32>,
    /// `fim_rep_token_id`: before the name of a repository.
    pub repo: Option<u32>,
    /// `fim_sep_token_id`: between files.
    pub file_sep: Option<u32>,
}

/// The `tokenizer.ggml.*` keys of a GGUF file. Lists that are there have one entry per token; ids are below the
/// number of tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// The kind: `llama` is SentencePiece, `gpt2` byte-level BPE.
    pub model: String,
    /// The pre-tokeniser's name, for byte-level BPE.
    pub pre: Option<String>,
    /// The text of each token, by id.
    pub tokens: Strings,
    /// SentencePiece scores; empty when absent.
    pub scores: Vec<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; empty when absent.
    pub token_types: Vec<i32>,
    /// BPE merges, two tokens separated by a space, in order of rank; empty when absent.
    pub merges: Strings,
    /// Beginning of a sequence.
    pub bos_token_id: Option<u32>,
    /// End of a sequence.
    pub eos_token_id: Option<u32>,
    /// End of a turn.
    pub eot_token_id: Option<u32>,
    /// End of a message, in models that tell it from the end of a turn.
    pub eom_token_id: Option<u32>,
    /// Stands for text that the vocabulary cannot say.
    pub unknown_token_id: Option<u32>,
    /// Padding.
    pub padding_token_id: Option<u32>,
    /// Tokens of fill in the middle.
    pub fim: FimTokenIds,
    /// Whether a prompt starts with `bos_token_id`.
    pub add_bos_token: Option<bool>,
    /// Whether a prompt ends with `eos_token_id`.
    pub add_eos_token: Option<bool>,
    /// Whether text is given a leading space first.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces are collapsed first.
    pub remove_extra_whitespaces: Option<bool>,
}

impl GgufVocabulary {
    /// The vocabulary, or `None` when the file has none.
    pub fn read(metadata: &Metadata) -> Result<Option<Self>, FormatError> {
        let Some(model) = metadata.str("tokenizer.ggml.model")? else { return Ok(None) };
        let tokens = metadata.strings("tokenizer.ggml.tokens")?.ok_or_else(|| FormatError::MissingKey {
            key: "tokenizer.ggml.tokens".into(),
            expected: "the text of each token".into(),
        })?;
        let per_token = |key: &str, len: usize| {
            if len == 0 || len == tokens.len() {
                return Ok(());
            }
            let expected = format!("as long as tokenizer.ggml.tokens ({})", tokens.len());
            Err(FormatError::WrongValue { key: key.into(), expected, found: format!("{len} elements") })
        };
        let scores = metadata.f32s("tokenizer.ggml.scores")?.unwrap_or_default();
        per_token("tokenizer.ggml.scores", scores.len())?;
        let token_types = metadata.i32s("tokenizer.ggml.token_type")?.unwrap_or_default();
        per_token("tokenizer.ggml.token_type", token_types.len())?;
        let token_id = |name: &str| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let Some(id) = metadata.u64(&key)? else { return Ok(None) };
            let in_range = u32::try_from(id).ok().filter(|_| id < tokens.len() as u64);
            let expected = || format!("a token id below {}", tokens.len());
            in_range.map(Some).ok_or_else(|| FormatError::WrongValue {
                key,
                expected: expected(),
                found: id.to_string(),
            })
        };
        let fim_id = |name: &str| token_id(name).ok().flatten();
        let flag = |name: &str| metadata.bool(&format!("tokenizer.ggml.{name}"));
        Ok(Some(Self {
            model: model.into(),
            pre: metadata.str("tokenizer.ggml.pre")?.map(String::from),
            merges: metadata.strings("tokenizer.ggml.merges")?.unwrap_or_default(),
            bos_token_id: token_id("bos")?,
            eos_token_id: token_id("eos")?,
            eot_token_id: token_id("eot")?,
            eom_token_id: token_id("eom")?,
            unknown_token_id: token_id("unknown")?,
            // Published files have ids past the vocabulary here; nothing is padded with it.
            padding_token_id: token_id("padding").ok().flatten(),
            fim: FimTokenIds {
                prefix: fim_id("fim_pre").or_else(|| fim_id("prefix")),
                suffix: fim_id("fim_suf").or_else(|| fim_id("suffix")),
                middle: fim_id("fim_mid").or_else(|| fim_id("middle")),
                pad: fim_id("fim_pad"),
                repo: fim_id("fim_rep"),
                file_sep: fim_id("fim_sep"),
            },
            add_bos_token: flag("add_bos_token")?,
            add_eos_token: flag("add_eos_token")?,
            add_space_prefix: flag("add_space_prefix")?,
            remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
            tokens,
            scores,
            token_types,
        }))
    }
}
