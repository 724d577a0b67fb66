//! From text to the ids that a model is given: raw, around a gap, or a conversation through the chat template.

use anyhow::{Result, bail};
use serde_json::Value;
use time::OffsetDateTime;
use tokenizer::chat_template::RenderInput;
use tokenizer::{Bounds, FimTexts, ParseSpecial, Prompt};

use super::engine::Model;

impl Model {
    /// The ids of a text to continue, with what the model expects before one.
    pub(crate) fn encode_raw(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>> {
        Ok(self.tokenizer.encode_after_prefix(text, special)?)
    }

    /// The ids that ask for the text between two others, and those that end it.
    pub(crate) fn encode_gap(&self, before: &str, behind: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let Some(markers) = self.tokenizer.fim() else {
            bail!(
                "--suffix asks for the text of a gap, and the vocabulary of `{}` has no tokens that mark one",
                self.name
            );
        };
        // The letters of a mark in a file are letters.
        let before = self.tokenizer.encode(before, ParseSpecial::No)?;
        let behind = self.tokenizer.encode_inside(behind, ParseSpecial::No, &Bounds::NONE)?;
        let texts = FimTexts { prefix: &before, suffix: &behind, ..FimTexts::default() };
        Ok((markers.prompt(self.tokenizer.prefix_ids(), &texts), markers.ids().collect()))
    }

    /// The ids of a conversation that the model is to answer, through its chat template.
    pub(crate) fn encode_chat(&self, messages: &[Value], think: Option<bool>) -> Result<Vec<u32>> {
        let Some(template) = &self.templates.chat else {
            if let Some(fault) = &self.templates.fault {
                bail!(
                    "cannot use the chat template of `{}`: {fault} (--raw works without it, --chat-template replaces it)",
                    self.name
                );
            }
            bail!(
                "`{}` has no chat template: use --raw to continue text, or give one with --chat-template FILE",
                self.name
            );
        };
        let now = OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc());
        let now = time::PrimitiveDateTime::new(now.date(), now.time());
        let text_of = |id: Option<u32>| id.and_then(|id| self.tokenizer.id_to_token(id));
        // Most templates call it `enable_thinking`, which has a field of its own; DeepSeek and Granite `thinking`.
        let extra = think.map(|think| ("thinking".to_owned(), Value::Bool(think))).into_iter().collect();
        let input = RenderInput {
            extra,
            bos_token: text_of(self.tokenizer.bos_id()),
            eos_token: text_of(self.tokenizer.eos_ids().first().copied()),
            enable_thinking: think,
            ..RenderInput::new(messages, now)
        };
        // Special tokens in a message are text: `--raw` is for prompts that are written with them.
        let prompt = Prompt::render(template, &input, &self.tokenizer, ParseSpecial::No)?;
        Ok(prompt.encode(&self.tokenizer)?)
    }
}
