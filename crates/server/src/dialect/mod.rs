//! Chat dialects: how models write calls of tools and reasoning. One file for each dialect of calls, which fills a
//! [`Dialect`]: how a chat template shows it, its markers, how its calls are read from a text, and the grammar of a
//! call that is forced. The list in `dialects!` has them all.
//!
//! What a chat template shows is found out in `template_profile.rs`, and `reply.rs` takes a text apart by what its
//! dialect says of it.

mod call_reader;
mod controls;
mod elements;
mod expressions;
mod function;
mod grammar;
mod literal;
mod marker;
mod members;
mod part;
mod reading;
mod reasoning;

mod apertus;
mod apriel;
mod command;
mod deepseek;
mod deepseek_dsml;
mod deepseek_fenced;
mod functionary;
mod gemma4;
mod glm;
mod harmony;
mod hermes;
mod kimi;
mod lfm2;
mod llama3;
mod minimax;
mod mistral;
mod nemotron;
mod phi4;
mod pythonic;
mod qwen3_coder;
mod recipients;
mod seed_oss;

pub(crate) use self::call_reader::CallReader;
pub(crate) use self::controls::Controls;
pub(crate) use self::function::Function;
pub(crate) use self::grammar::{Callable, forced_call};
pub(crate) use self::harmony::{MessageReader, shows_final_message};
pub(crate) use self::hermes::{TOOL_CALL, TOOL_CALL_END, write as write_in_words};
pub(crate) use self::marker::{ById, CONTROL, Marker};
pub(crate) use self::part::{Part, push_part};
pub(crate) use self::reading::{OwnReader, ReadStep, Reading, TextEnd, take_until, take_until_any};
pub(crate) use self::reasoning::{Reasoning, THINK_TAGS, ThoughtTags};

use serde_json::Value;

use self::grammar::GrammarWriter;
use crate::error::ApiError;

/// How a family of models writes calls of tools.
pub(crate) struct Dialect {
    /// Models that write it, for `docs/dialects.md`.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test makes the page"))]
    pub(crate) families: &'static str,
    /// A call, for `docs/dialects.md`.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test makes the page"))]
    pub(crate) written: &'static str,
    /// How models know the form whose template describes tools and shows no calls.
    pub(crate) told: Option<Told>,
    /// Whether this is how a chat template writes a call.
    pub(crate) is_shown: fn(&ShownCall) -> bool,
    /// Whether calls begin with tokens that are special, which no text holds.
    pub(crate) has_special_tokens: bool,
    /// Markers that count by their text, whether or not the vocabulary has them as tokens.
    pub(crate) spelled: &'static [Marker],
    /// Tokens that count by their ids, and not by their text, where the vocabulary has all of them.
    pub(crate) controls: &'static [Marker],
    /// How its calls stand in a text.
    pub(crate) form: CallForm,
    /// Alternatives, in Lark's notation, of a call of one of these tools.
    grammar: fn(&mut GrammarWriter, &[Callable]) -> Result<Vec<String>, ApiError>,
}

/// A form that some chat templates tell their models of, and leave to them: there, calls in a conversation are part of
/// the text.
pub(crate) struct Told {
    /// What such a template writes where it describes tools.
    marker: &'static str,
    /// The calls of a message, as the model writes them.
    pub(crate) write: fn(&[Value]) -> String,
}

/// Makes a reader of its own, at its beginning.
pub(crate) type NewReader = fn() -> Box<dyn OwnReader>;

/// How calls stand in a text.
pub(crate) enum CallForm {
    /// A call is all of the content, and the name of a function that is offered is all that tells it.
    Bare {
        /// What may stand before it.
        tag: &'static str,
        /// What may stand between two calls, and is dropped.
        between: &'static [Marker],
    },
    /// Calls are all of the content, and this reader tells them from text.
    Leading {
        reader: NewReader,
        /// What may stand behind them, and is dropped.
        between: &'static [Marker],
        /// Whether the reader is for all texts, also those of a model that is offered nothing to call.
        frames_all: bool,
    },
    /// Calls begin with a marker, wherever in the content.
    Marked(MarkedCalls),
    /// Calls are messages, which are read before there is any content: see [`MessageReader`].
    Messages,
}

/// Calls that begin with a marker.
pub(crate) struct MarkedCalls {
    /// The marker.
    pub(crate) opener: Marker,
    /// What stands behind it.
    pub(crate) first: CallStart,
    /// Begins a call whose opener the model has left out, and what reads it: only a function that is offered is called.
    pub(crate) unopened: Option<(Marker, NewReader)>,
    /// Stands before the name of each call, where the opener opens a list of them.
    pub(crate) each: Option<Marker>,
    /// Stands between a name and an id, which is not read because the answer has ids of its own.
    pub(crate) id: Option<Marker>,
    /// Stands between a name (with its id) and the arguments.
    pub(crate) separator: Option<Marker>,
    /// The name in what stands where a name does.
    pub(crate) name: fn(&str) -> &str,
    /// Each of these may stand where arguments are left out.
    pub(crate) no_arguments: &'static [Marker],
    /// What may stand between two calls and behind the last, and is dropped.
    pub(crate) between: &'static [Marker],
    /// Whether an object behind a call is another call.
    pub(crate) has_list: bool,
}

impl MarkedCalls {
    /// Calls of which each is one thing behind this marker.
    const fn new(opener: Marker, first: CallStart) -> Self {
        let (unopened, each, id, separator) = (None, None, None, None);
        Self {
            opener,
            first,
            unopened,
            each,
            id,
            separator,
            name: all_of,
            no_arguments: &[],
            between: &[],
            has_list: false,
        }
    }
}

/// A name that stands alone.
const fn all_of(name: &str) -> &str {
    name
}

/// What stands behind the marker of a call.
#[derive(Clone, Copy)]
pub(crate) enum CallStart {
    /// An object with a name and arguments.
    Object,
    /// A name.
    Name,
    /// Calls, or what stands between them.
    List,
    /// What this reader reads.
    Own(NewReader),
}

/// A rendered conversation, in which the model calls `called_function` with `{"called_key": "called_value"}` in a call
/// with the id `call00001`.
pub(crate) struct ShownCall<'a> {
    /// What stands before the name.
    pub(crate) before: &'a str,
    /// What stands behind it.
    pub(crate) after: &'a str,
}

impl ShownCall<'_> {
    /// Whether a marker stands close before the name.
    fn is_near(&self, marker: &str) -> bool {
        self.before.rfind(marker).is_some_and(|at| self.before.len() - at < 64)
    }

    /// Whether the name is that of an object which begins with it.
    fn begins_object(&self) -> bool {
        self.before.ends_with("\"name\": \"") || self.before.ends_with("\"name\":\"")
    }
}

/// Makes [`ToolSyntax`] of the list.
macro_rules! dialects {
    ($($(#[$attribute:meta])* $name:ident = $dialect:expr;)*) => {
        /// How a model writes calls of tools; known by what its chat template makes of one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum ToolSyntax {
            $($(#[$attribute])* $name,)*
        }

        impl ToolSyntax {
            /// All of them, in the order of the list.
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            /// What its file says of it.
            pub(crate) fn dialect(self) -> &'static Dialect {
                match self {
                    $(Self::$name => &$dialect,)*
                }
            }
        }
    };
}

impl ToolSyntax {
    /// The first of the list that a chat template tells of in this text, in which it describes tools.
    pub(crate) fn told_in(text: &str) -> Option<Self> {
        let is_told = |told: &Told| text.contains(told.marker);
        Self::ALL.iter().copied().find(|syntax| syntax.dialect().told.as_ref().is_some_and(is_told))
    }

    /// Whether a text has to be read by this dialect even where nothing is offered to call.
    pub(crate) fn frames_all(self) -> bool {
        matches!(self.dialect().form, CallForm::Leading { frames_all: true, .. })
    }

    /// The first of the list that a chat template shows.
    pub(crate) fn recognised(call: &ShownCall) -> Option<Self> {
        Self::ALL.iter().copied().find(|syntax| (syntax.dialect().is_shown)(call))
    }
}

// The first that a chat template shows is meant: those that look at more of it stand before those that look at less.
dialects! {
    /// `[TOOL_CALLS]name[ARGS]{…}`, as Mistral's newer models have it.
    MistralArgs = mistral::ARGS_FORM;
    /// `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, as Mistral's models had it for a while.
    MistralIds = mistral::IDS_FORM;
    /// `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…`, as DeepSeek's V3.1 has it.
    DeepSeek = deepseek::DIALECT;
    /// The same with `function` in the place of the name, which stands behind `<｜tool▁sep｜>`, and the arguments in a fence
    /// of Markdown's, as DeepSeek's V3 and R1 have it.
    DeepSeekFenced = deepseek_fenced::DIALECT;
    /// `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`, as gpt-oss has it.
    Harmony = harmony::DIALECT;
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`, as GLM has it.
    Glm = glm::DIALECT;
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`, as Mistral's older models have it.
    MistralList = mistral::LIST_FORM;
    /// `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`, as Qwen3-Coder has it.
    Qwen3Coder = qwen3_coder::DIALECT;
    /// `<seed:tool_call><function=name><parameter=key>value</parameter>…</function></seed:tool_call>`, as Seed-OSS.
    SeedOss = seed_oss::DIALECT;
    /// `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter>…</invoke>…</minimax:tool_call>`.
    MiniMax = minimax::DIALECT;
    /// `<｜DSML｜function_calls><｜DSML｜invoke name="name">…</｜DSML｜invoke>…</｜DSML｜function_calls>`, as DeepSeek's V3.2.
    DeepSeekV32 = deepseek_dsml::V3_DIALECT;
    /// The same within `<｜DSML｜tool_calls>`, as DeepSeek's V4 has it.
    DeepSeekV4 = deepseek_dsml::V4_DIALECT;
    /// `<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}…`, as Kimi.
    Kimi = kimi::DIALECT;
    /// `<|tool_call>call:name{key:value,…}<tool_call|>`, as Gemma 4 has it.
    Gemma4 = gemma4::DIALECT;
    /// `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}, …]<|END_ACTION|>`, as Command R7B and later have it.
    Command = command::DIALECT;
    /// `<|tools_prefix|>[{"name": {…}}, …]<|tools_suffix|>`, as Apertus has it.
    Apertus = apertus::DIALECT;
    /// `<|tool_call_start|>[name(key=value, …), …]<|tool_call_end|>`, as LFM2 has it.
    Lfm2 = lfm2::DIALECT;
    /// `<TOOLCALL>[{"name": …, "arguments": {…}}, …]</TOOLCALL>`, as Nemotron's Nano 2 has it.
    Nemotron = nemotron::DIALECT;
    /// `<tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>`, as Apriel has it.
    Apriel = apriel::DIALECT;
    /// `<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>`, as Phi-4-mini has it.
    Phi4 = phi4::DIALECT;
    /// `<function=name>{…}</function>`, as functionary 3.1 has it.
    Functionary = functionary::DIALECT;
    /// `>>>name`, a line's end and `{…}`, as functionary 3.2 has it, where `>>>all` stands before a text.
    Recipients = recipients::DIALECT;
    /// `[name(key=value, …), …]` and nothing else, as Llama 4 has it with a template for it.
    Pythonic = pythonic::DIALECT;
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes and Qwen have it.
    Hermes = hermes::DIALECT;
    /// `{"name": …, "parameters": {…}}` and nothing else, as Llama 3 has it.
    Llama3 = llama3::DIALECT;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dialect of a rendered conversation with a call of `called_function`.
    pub(super) fn recognised(text: &str) -> Option<ToolSyntax> {
        let (before, after) = text.split_once("called_function").unwrap();
        ToolSyntax::recognised(&ShownCall { before, after })
    }

    #[test]
    fn a_call_in_no_known_dialect_is_none() {
        for text in ["<call>called_function</call>", "called_function", "\"name\": \"called_function\", \"args\": 1"] {
            assert_eq!(recognised(text), None, "{text}");
        }
    }

    /// The reader of replies asks for them.
    #[test]
    fn a_name_before_arguments_has_a_separator_behind_it() {
        for syntax in ToolSyntax::ALL {
            let CallForm::Marked(calls) = &syntax.dialect().form else { continue };
            let has_names = matches!(calls.first, CallStart::Name) || calls.each.is_some();
            assert_eq!(has_names, calls.separator.is_some(), "{syntax:?}");
        }
    }

    /// Each marker counts either by its text or by its id, and what is written with special tokens has some that do.
    #[test]
    fn a_marker_counts_in_one_way() {
        for syntax in ToolSyntax::ALL {
            let dialect = syntax.dialect();
            assert!(!dialect.spelled.iter().any(|marker| dialect.controls.contains(marker)), "{syntax:?}");
            assert_eq!(dialect.has_special_tokens, !dialect.controls.is_empty(), "{syntax:?}");
        }
    }
}
