//! How models write calls and reasoning, and the markers that they use.

use tokenizer::Tokenizer;

/// How a model writes calls of tools; known by what its chat template makes of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToolSyntax {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen have it.
    Hermes,
    /// `{"name": …, "parameters": {…}}` and nothing else, as Llama 3 has it.
    Llama3,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, as Mistral's models have it.
    MistralList,
    /// `[TOOL_CALLS]name[ARGS]{…}`, as Mistral's newer models have it.
    MistralArgs,
    /// `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, as Mistral's models had it for a while. The id is not read, because the answer
    /// has ids of its own.
    MistralIds,
    /// `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>`, as DeepSeek's
    /// V3.1 has it.
    DeepSeek,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`, as GLM has it: a string stands as it
    /// is, anything else as JSON, and only the function's schema tells which.
    Glm,
    /// ` to=functions.name<|channel|>commentary <|constrain|>json<|message|>{…}<|call|>`, as gpt-oss has it: see
    /// [`Reasoning::Channels`].
    Harmony,
}

/// A function that is offered, as far as reading its calls depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// Its parameters that are strings.
    pub(crate) strings: Vec<String>,
}

impl ToolSyntax {
    /// Whether calls begin with tokens that are special, which no text holds.
    pub(crate) fn has_special_tokens(self) -> bool {
        !matches!(self, Self::Hermes | Self::Llama3)
    }

    /// Markers that count by their text, whether or not the vocabulary has them as tokens.
    pub(crate) fn spelled(self) -> &'static [Marker] {
        match self {
            Self::Hermes => &[TOOL_CALL, TOOL_CALL_END],
            _ => &[],
        }
    }

    /// Tokens that count by their ids, and not by their text, where the vocabulary has all of them.
    pub(crate) fn controls(self) -> &'static [Marker] {
        match self {
            Self::MistralList => &[TOOL_CALLS],
            Self::MistralArgs => &[TOOL_CALLS, ARGS],
            Self::MistralIds => &[TOOL_CALLS, CALL_ID, ARGS],
            Self::DeepSeek => {
                &[DEEPSEEK_CALLS, DEEPSEEK_CALL, DEEPSEEK_SEPARATOR, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END]
            }
            Self::Glm => &[TOOL_CALL, TOOL_CALL_END, GLM_KEY, GLM_KEY_END, GLM_VALUE, GLM_VALUE_END],
            // Those of its messages.
            Self::Harmony => Reasoning::Channels.controls(),
            Self::Hermes | Self::Llama3 => &[],
        }
    }

    /// What stands between a name and its arguments, where they are not one object.
    pub(super) fn separator(self) -> Marker {
        match self {
            Self::DeepSeek => DEEPSEEK_SEPARATOR,
            _ => ARGS,
        }
    }
}

/// Stands before the text of a token that counts by its id. It is no character, and no text that is interchanged holds it;
/// whoever marks takes it out of the rest.
pub(crate) const CONTROL: char = '\u{fdd0}';

/// A text that means something beside the letters in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Where it counts however it is spelled.
    pub(crate) text: &'static str,
    /// Where it counts only as a token, behind [`CONTROL`].
    marked: &'static str,
}

impl Marker {
    pub(super) fn of(self, by_id: bool) -> &'static str {
        if by_id { self.marked } else { self.text }
    }
}

macro_rules! markers {
    ($($name:ident = $text:literal;)*) => {
        $(pub(crate) const $name: Marker = Marker { text: $text, marked: concat!("\u{fdd0}", $text) };)*
    };
}

markers! {
    THINK = "<think>";
    THINK_END = "</think>";
    TOOL_CALL = "<tool_call>";
    TOOL_CALL_END = "</tool_call>";
    TOOL_CALLS = "[TOOL_CALLS]";
    ARGS = "[ARGS]";
    CALL_ID = "[CALL_ID]";
    GLM_KEY = "<arg_key>";
    GLM_KEY_END = "</arg_key>";
    GLM_VALUE = "<arg_value>";
    GLM_VALUE_END = "</arg_value>";
    DEEPSEEK_CALLS = "<｜tool▁calls▁begin｜>";
    DEEPSEEK_CALL = "<｜tool▁call▁begin｜>";
    DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>";
    DEEPSEEK_CALL_END = "<｜tool▁call▁end｜>";
    DEEPSEEK_CALLS_END = "<｜tool▁calls▁end｜>";
    CHANNEL_START = "<|start|>";
    CHANNEL_NAME = "<|channel|>";
    CHANNEL_TYPE = "<|constrain|>";
    CHANNEL_MESSAGE = "<|message|>";
    CHANNEL_END = "<|end|>";
    CHANNEL_CALL = "<|call|>";
    CHANNEL_RETURN = "<|return|>";
}

/// Which tokens count by their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ById {
    /// Those that calls are written with.
    pub(crate) calls: bool,
    /// Those that reasoning is written with, and the messages of gpt-oss.
    pub(crate) reasoning: bool,
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
    /// The text is messages of gpt-oss, each with a channel: `<|channel|>analysis<|message|>…<|end|><|start|>assistant…`.
    Channels,
}

impl Reasoning {
    /// Tokens that count by their ids, and not by their text, where the vocabulary has all of them.
    pub(crate) fn controls(self) -> &'static [Marker] {
        match self {
            Self::None => &[],
            Self::Tagged | Self::Open => &[THINK, THINK_END],
            Self::Channels => {
                &[CHANNEL_START, CHANNEL_NAME, CHANNEL_TYPE, CHANNEL_MESSAGE, CHANNEL_END, CHANNEL_CALL, CHANNEL_RETURN]
            }
        }
    }
}

/// Tokens that count by their ids, of those that a model writes calls and reasoning with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controls {
    /// With their texts.
    pub(crate) tokens: Vec<(u32, String)>,
    pub(crate) by_id: ById,
}

impl Controls {
    /// Of each kind none where the vocabulary lacks one of them, and text is all that can be looked at.
    pub(crate) fn of(reasoning: Reasoning, syntax: Option<ToolSyntax>, tokenizer: &Tokenizer) -> Self {
        let find = |markers: &[Marker]| {
            let found =
                markers.iter().map(|marker| Some((tokenizer.token_to_id(marker.text)?, marker.text.to_owned())));
            found.collect::<Option<Vec<_>>>().unwrap_or_default()
        };
        let calls = find(syntax.map_or(&[], ToolSyntax::controls));
        let mut tokens = find(reasoning.controls());
        let by_id = ById { calls: !calls.is_empty(), reasoning: !tokens.is_empty() };
        tokens.extend(calls);
        tokens.sort_unstable();
        tokens.dedup();
        Self { tokens, by_id }
    }
}
