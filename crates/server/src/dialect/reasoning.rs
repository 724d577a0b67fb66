//! Reasoning: between `<think>` and `</think>` or tags that another family has, or in messages of a channel of its own.

use serde_json::Value;

use super::grammar::GrammarWriter;
use super::harmony;
use super::marker::{Marker, markers};

markers! {
    THINK = "<think>";
    THINK_END = "</think>";
    SEED_THINK = "<seed:think>";
    SEED_THINK_END = "</seed:think>";
    CHANNEL = "<|channel>";
    CHANNEL_END = "<channel|>";
    START_THINKING = "<|START_THINKING|>";
    END_THINKING = "<|END_THINKING|>";
    START_RESPONSE = "<|START_RESPONSE|>";
    END_RESPONSE = "<|END_RESPONSE|>";
    MISTRAL_THINK = "[THINK]";
    MISTRAL_THINK_END = "[/THINK]";
}

/// What a family writes around its thoughts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ThoughtTags {
    /// What opens a thought, what closes it, and what stands around the answer behind it.
    markers: &'static [Marker],
    /// The first words of each thought, which say what it is.
    pub(crate) label: &'static str,
}

/// What most models write, and all of whose template nothing else is known.
pub(crate) static THINK_TAGS: ThoughtTags = ThoughtTags { markers: &[THINK, THINK_END], label: "" };

/// All of them. The first that a template shows is taken.
static ALL_TAGS: [&ThoughtTags; 5] = [
    &THINK_TAGS,
    // Seed-OSS.
    &ThoughtTags { markers: &[SEED_THINK, SEED_THINK_END], label: "" },
    // Gemma 4.
    &ThoughtTags { markers: &[CHANNEL, CHANNEL_END], label: "thought\n" },
    // Command R7B and later.
    &ThoughtTags { markers: &[START_THINKING, END_THINKING, START_RESPONSE, END_RESPONSE], label: "" },
    // Mistral's models that reason.
    &ThoughtTags { markers: &[MISTRAL_THINK, MISTRAL_THINK_END], label: "" },
];

impl ThoughtTags {
    /// Those that a rendered conversation has thoughts in, or the place for them.
    pub(crate) fn shown_in(texts: &[String]) -> Option<&'static Self> {
        let is_shown =
            |tags: &&&Self| texts.iter().any(|text| tags.markers[..2].iter().any(|marker| text.contains(marker.text)));
        ALL_TAGS.iter().find(is_shown).copied()
    }

    pub(crate) fn open(&self) -> Marker {
        self.markers[0]
    }

    pub(crate) fn close(&self) -> Marker {
        self.markers[1]
    }

    /// What stands around an answer, and is dropped.
    pub(crate) fn frames(&self) -> &'static [Marker] {
        &self.markers[2..]
    }

    /// Whether a prompt ends where a thought has just been opened.
    pub(crate) fn are_open_behind(&self, prompt: &str) -> bool {
        let prompt = prompt.trim_end();
        prompt.strip_suffix(self.label.trim_end()).unwrap_or(prompt).trim_end().ends_with(self.open().text)
    }

    /// Whether a thought is open at the end of this text.
    pub(crate) fn are_open_in(&self, text: &str) -> bool {
        text.rfind(self.open().text) > text.rfind(self.close().text)
    }
}

/// How a text may begin with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// There is none: `<think>` is text like any other.
    None,
    /// The text begins with `<think>`, or what its family has for it, if the model thinks.
    Tagged,
    /// The prompt has opened it: the text goes on thinking until `</think>`, or what its family has for it.
    Open,
    /// The text is messages of gpt-oss, each with a channel: see `harmony.rs`.
    Channels,
}

impl Reasoning {
    /// Tokens that count by their ids, and not by their text, where the vocabulary has all of them.
    pub(crate) fn controls(self, tags: &ThoughtTags) -> &'static [Marker] {
        match self {
            Self::None => &[],
            Self::Tagged | Self::Open => tags.markers,
            Self::Channels => harmony::CONTROLS,
        }
    }

    /// What may, or has to, stand before a call or an answer that is forced.
    pub(super) fn grammar_before(self, tags: &ThoughtTags, writer: &mut GrammarWriter) -> String {
        match self {
            // Whether it begins to think is the model's to say where nothing forces it; here it is to call.
            Self::None | Self::Tagged => String::new(),
            Self::Open => {
                let thoughts = writer.text_until(tags.close());
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
