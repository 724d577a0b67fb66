//! Text of a model: its tokenizer, and the chat templates of its files or of `--chat-template`.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use formats::{Checkpoint, TokenizerFiles, TokenizerSource};
use tokenizer::chat_template::ChatTemplate;
use tokenizer::{FimIds, GgufVocabulary, LoadOptions, SideFiles, Texts, Tokenizer, TokenizerError};

use crate::files;
use crate::load::named_templates;
use crate::output::note;

/// The chat templates of a model.
pub(crate) struct ChatTemplates {
    /// That of conversations, if there is one that can be used.
    pub(crate) chat: Option<ChatTemplate>,
    /// That of conversations with tools, if the model's files have one for them.
    pub(crate) tools: Option<ChatTemplate>,
    /// Why the template in the model's files cannot be used, if it cannot.
    pub(crate) fault: Option<String>,
}

impl ChatTemplates {
    /// The templates in the model's files, or `file` for all conversations.
    ///
    /// # Errors
    /// A `file` that cannot be used. A template in the model's files that cannot be is noted, because continuing text
    /// needs none.
    pub(crate) fn load(checkpoint: &Checkpoint, file: Option<&Path>) -> Result<Self> {
        let (chat, fault) = match load_chat_template(checkpoint, file) {
            Ok(template) => (template, None),
            // `--chat-template` asks for this template, so it must work.
            Err(error) if file.is_some() => return Err(error),
            Err(error) => {
                note(&format!("{error:#}"));
                (None, error.source().map(ToString::to_string))
            }
        };
        let tools = match file {
            // It is for all conversations.
            Some(_) => None,
            None => load_tool_template(checkpoint),
        };
        Ok(Self { chat, tools, fault })
    }
}

/// The tokenizer of a vocabulary; `allow_unknown_patterns` accepts patterns that may take very long on hostile text.
pub(crate) fn load_tokenizer(vocabulary: TokenizerSource, allow_unknown_patterns: bool) -> Result<Tokenizer> {
    let texts = |strings: formats::gguf::Strings| {
        let (text, ends) = strings.into_parts();
        Texts::from_parts(text, ends).expect("the parts of whole strings")
    };
    let options = LoadOptions { allow_unknown_patterns };
    let hinted = |error: TokenizerError| {
        let hint = "; --allow-unknown-patterns accepts such a pattern from a source that you trust";
        let hint = if matches!(error, TokenizerError::UnknownPattern { .. }) { hint } else { "" };
        anyhow!("{error}{hint}")
    };
    match vocabulary {
        TokenizerSource::HuggingFace { tokenizer_json, tokenizer_config } => {
            let config = serde_json::to_vec(&tokenizer_config)?;
            Tokenizer::from_json(&tokenizer_json, Some(&config), &options).map_err(hinted)
        }
        TokenizerSource::Tekken { tekken_json } => Tokenizer::from_tekken(&tekken_json, &options).map_err(hinted),
        TokenizerSource::VocabMerges { vocab_json, merges_txt, beside } => with_side_files(&beside, |beside| {
            Tokenizer::from_vocab_merges(&vocab_json, &merges_txt, beside, &options).map_err(hinted)
        }),
        TokenizerSource::SentencePiece { model, beside } => {
            with_side_files(&beside, |beside| Ok(Tokenizer::from_sentence_piece(&model, beside)?))
        }
        TokenizerSource::Gguf(v) => Ok(Tokenizer::from_gguf(GgufVocabulary {
            model: v.model,
            pre: v.pre.unwrap_or_default(),
            tokens: texts(v.tokens),
            scores: v.scores,
            token_types: v.token_types,
            merges: texts(v.merges),
            bos_id: v.bos_token_id,
            eos_id: v.eos_token_id,
            eot_id: v.eot_token_id,
            eom_id: v.eom_token_id,
            unk_id: v.unknown_token_id,
            pad_id: v.padding_token_id,
            add_bos: v.add_bos_token,
            add_eos: v.add_eos_token,
            add_space_prefix: v.add_space_prefix,
            fim: FimIds {
                prefix: v.fim.prefix,
                suffix: v.fim.suffix,
                middle: v.fim.middle,
                pad: v.fim.pad,
                repo: v.fim.repo,
                file_sep: v.fim.file_sep,
            },
        })?),
        TokenizerSource::None => bail!(
            "the model has no tokenizer: a folder needs tokenizer.json beside the weights (or tekken.json, vocab.json \
             with merges.txt, or tokenizer.model), a GGUF file its tokenizer.ggml keys"
        ),
    }
}

/// Calls `read` with the files beside a vocabulary.
pub(crate) fn with_side_files<T>(beside: &TokenizerFiles, read: impl FnOnce(SideFiles<'_>) -> Result<T>) -> Result<T> {
    let config = serde_json::to_vec(&beside.tokenizer_config)?;
    read(SideFiles {
        tokenizer_config: Some(&config),
        added_tokens: beside.added_tokens.as_deref(),
        special_tokens_map: beside.special_tokens_map.as_deref(),
    })
}

/// Whether the value of `--chat-template` is a template, and no file with one, as llama.cpp and vLLM take it.
fn is_template(value: &Path) -> bool {
    let text = value.to_string_lossy();
    text.contains("{{") || text.contains("{%")
}

/// Whether it is a word, and no file of that name is there.
fn is_name(value: &Path) -> bool {
    let text = value.to_string_lossy();
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') && !value.exists()
}

fn named_template(name: &str) -> Result<&'static str> {
    named_templates::named(name).with_context(|| {
        format!(
            "--chat-template: there is no file `{name}`, and no template has that name; known are {}",
            named_templates::names()
        )
    })
}

fn load_chat_template(checkpoint: &Checkpoint, file: Option<&Path>) -> Result<Option<ChatTemplate>> {
    let source = match file {
        Some(text) if is_template(text) => Some(text.to_string_lossy().into_owned()),
        Some(name) if is_name(name) => Some(named_template(&name.to_string_lossy())?.to_owned()),
        Some(path) => Some(files::read_text(path, "the chat template", files::SETTINGS_BYTES_MAX)?),
        None => checkpoint.chat_templates.default.clone(),
    };
    let Some(source) = source else { return Ok(None) };
    let template = ChatTemplate::new(&source)
        .context("cannot use the model's chat template (--raw works without it, --chat-template replaces it)")?;
    for warning in template.warnings() {
        tracing::info!("{warning}");
    }
    Ok(Some(template))
}

/// The template that the model has for conversations with tools (`tool_use`, as transformers names it). One that cannot
/// be used is reported, and the other is used for them.
fn load_tool_template(checkpoint: &Checkpoint) -> Option<ChatTemplate> {
    let named = &checkpoint.chat_templates.named;
    let (_, source) = named.iter().find(|(name, _)| name == "tool_use")?;
    match ChatTemplate::new(source) {
        Ok(template) => Some(template),
        Err(error) => {
            note(&format!("the model's template for tools (`tool_use`) cannot be used: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_a_name_a_text_or_a_file() {
        for (value, is_text) in [("{{ messages[0].content }}", true), ("{% if x %}", true), ("a/file.jinja", false)] {
            assert_eq!(is_template(Path::new(value)), is_text, "{value}");
            assert!(!is_name(Path::new(value)), "{value}");
        }
        assert!(is_name(Path::new("chatml")) && is_name(Path::new("no-such")));
        let refusal = named_template("no-such").unwrap_err().to_string();
        assert!(refusal.contains("`no-such`") && refusal.contains("llama3"), "{refusal}");
    }
}
