//! Reasoning: between `<think>` and `</think>`, or in messages of a channel of its own.

use serde_json::Value;

use super::grammar::GrammarWriter;
use super::harmony;
use super::marker::{Marker, markers};

markers! {
    THINK = "<think>";
    THINK_END = "</think>";
}

/// How a text may begin with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// There is none: `<think>` is text like any other.
    None,
    /// The text begins with `<think>`, if the model thinks.
    Tagged,
    /// The prompt has opened it: the text goes on thinking until `</think>`.
    Open,
    /// The text is messages of gpt-oss, each with a channel: see `harmony.rs`.
    Channels,
}

impl Reasoning {
    /// Tokens that count by their ids, and not by their text, where the vocabulary has all of them.
    pub(crate) fn controls(self) -> &'static [Marker] {
        match self {
            Self::None => &[],
            Self::Tagged | Self::Open => &[THINK, THINK_END],
            Self::Channels => harmony::CONTROLS,
        }
    }

    /// What may, or has to, stand before a call or an answer that is forced.
    pub(super) fn grammar_before(self, writer: &mut GrammarWriter) -> String {
        match self {
            // Whether it begins to think is the model's to say where nothing forces it; here it is to call.
            Self::None | Self::Tagged => String::new(),
            Self::Open => {
                let thoughts = writer.text_until(THINK_END);
                let space = writer.rule("SPACE", "", "/\\n{1,2}/");
                format!("{thoughts} {space}?")
            }
            Self::Channels => harmony::grammar_of_thoughts(writer),
        }
    }

    /// An answer that is JSON of this schema.
    pub(super) fn grammar_of_answer(self, writer: &mut GrammarWriter, schema: Value) -> String {
        let json = writer.json(schema);
        if self == Self::Channels { harmony::grammar_of_answer(writer, &json) } else { json }
    }
}

/// Whether the text of a rendered conversation has thoughts in tags, or the place for them.
pub(crate) fn shows_thoughts(text: &str) -> bool {
    text.contains(THINK.text) || text.contains(THINK_END.text)
}

/// Whether a thought is open at the end of this text.
pub(crate) fn ends_in_thought(text: &str) -> bool {
    text.rfind(THINK.text) > text.rfind(THINK_END.text)
}
