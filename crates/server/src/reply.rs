//! What a model's text is made of: reasoning, content, calls of tools. Taken apart as it comes, so that a stream shows
//! each part as soon as it is certain; the parts do not depend on how the text was cut.

use serde_json::Value;

use crate::messages::arguments;

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
        matches!(self, Self::MistralList | Self::MistralArgs | Self::DeepSeek | Self::Glm | Self::Harmony)
    }

    /// Tokens that count by their ids, and not by their text, where the vocabulary has all of them.
    pub(crate) fn controls(self) -> &'static [Marker] {
        match self {
            Self::MistralList => &[TOOL_CALLS],
            Self::MistralArgs => &[TOOL_CALLS, ARGS],
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
    fn separator(self) -> Marker {
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
    fn of(self, by_id: bool) -> &'static str {
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

/// A part of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Content(String),
    Reasoning(String),
    /// A call of this function begins.
    Call {
        name: String,
    },
    /// The next piece of the last call's arguments.
    Arguments(String),
}

/// What is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// The beginning, where reasoning may open.
    Start,
    Reasoning,
    /// Space before content, which is dropped after reasoning.
    AfterReasoning,
    /// The beginning of content, where Llama 3 may write a call.
    ContentStart,
    Content,
    /// A name, up to `[ARGS]`.
    CallName,
    /// The object of a call, or the arguments alone.
    Call(CallReader),
    /// A name, up to GLM's first key or the end of the call.
    GlmName,
    /// What stands before a message of gpt-oss, up to `<|message|>`.
    ChannelHeader,
    /// A message of gpt-oss.
    Channel(Channel),
    /// GLM's keys and values, of which so many came before.
    GlmArguments(usize),
    /// Between or behind calls.
    AfterCall,
}

/// What a message of gpt-oss is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Analysis,
    /// What the user is to see: `final`, and `commentary` to nobody.
    Shown,
    /// To a function.
    Call,
}

/// Takes a text apart.
#[derive(Clone, Debug)]
pub(crate) struct ReplyReader {
    syntax: Option<ToolSyntax>,
    /// Which tokens are marked by [`CONTROL`]: what only looks like one is text.
    by_id: ById,
    /// Functions that are offered: text that looks like a call of another is text, where syntax does not tell.
    functions: Vec<Function>,
    /// Of the call that gpt-oss is writing.
    arguments: String,
    /// The function that GLM's values belong to.
    called: Option<Function>,
    mode: Mode,
    buffer: String,
    /// Some of the reasoning was given out.
    has_thought: bool,
    num_calls: usize,
    /// Something began as a call, and was none that can be read.
    has_misread: bool,
}

impl ReplyReader {
    pub(crate) fn new(reasoning: Reasoning, syntax: Option<ToolSyntax>, functions: Vec<Function>) -> Self {
        let mode = match reasoning {
            Reasoning::None => Mode::ContentStart,
            Reasoning::Tagged => Mode::Start,
            Reasoning::Open => Mode::Reasoning,
            Reasoning::Channels => Mode::ChannelHeader,
        };
        Self {
            syntax,
            by_id: ById::default(),
            functions,
            arguments: String::new(),
            called: None,
            mode,
            buffer: String::new(),
            has_thought: false,
            num_calls: 0,
            has_misread: false,
        }
    }

    /// The same, of a text in which these tokens are marked by [`CONTROL`].
    pub(crate) fn by_id(self, by_id: ById) -> Self {
        Self { by_id, ..self }
    }

    /// How a marker of calls stands in the text.
    fn in_calls(&self, marker: Marker) -> &'static str {
        marker.of(self.by_id.calls)
    }

    /// How a marker of reasoning does, or of a message of gpt-oss.
    fn in_reasoning(&self, marker: Marker) -> &'static str {
        marker.of(self.by_id.reasoning)
    }

    /// Calls that are whole.
    pub(crate) fn num_calls(&self) -> usize {
        self.num_calls
    }

    /// Whether something began as a call and could not be read as one: its text is content.
    pub(crate) fn has_misread(&self) -> bool {
        self.has_misread
    }

    /// Whether what comes next is reasoning, as far as is known.
    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self.mode, Mode::Reasoning | Mode::Channel(Channel::Analysis))
    }

    /// Takes the next piece of text; adds what is certain now.
    pub(crate) fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.buffer.push_str(text);
        self.advance_all(parts, false);
    }

    /// The text has ended; adds what was held back.
    pub(crate) fn finish(&mut self, parts: &mut Vec<Part>) {
        self.advance_all(parts, true);
    }

    fn advance_all(&mut self, parts: &mut Vec<Part>, ended: bool) {
        let before = parts.len().saturating_sub(1);
        while self.advance(parts, ended) {}
        if self.by_id != ById::default() {
            // A token that began nothing is text.
            for part in &mut parts[before..] {
                match part {
                    Part::Content(text) | Part::Reasoning(text) | Part::Arguments(text) | Part::Call { name: text } => {
                        text.retain(|character| character != CONTROL);
                    }
                }
            }
        }
    }

    /// One thing more, if there is one to say.
    fn advance(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        match &mut self.mode {
            Mode::Start => self.start(ended),
            Mode::Reasoning => self.reasoning(parts, ended),
            Mode::AfterReasoning => {
                let trimmed = self.buffer.trim_start().len();
                self.buffer.drain(..self.buffer.len() - trimmed);
                let found = trimmed > 0;
                if found {
                    self.mode = Mode::ContentStart;
                }
                found
            }
            Mode::ContentStart => self.content_start(ended),
            Mode::Content => self.content(parts, ended),
            Mode::CallName => self.call_name(parts, ended),
            Mode::Call(_) => self.call(parts, ended),
            Mode::ChannelHeader => self.channel_header(parts, ended),
            Mode::Channel(channel) => {
                let channel = *channel;
                self.channel(channel, parts, ended)
            }
            Mode::GlmName => self.glm_name(parts, ended),
            Mode::GlmArguments(count) => {
                let count = *count;
                self.glm_arguments(count, parts, ended)
            }
            Mode::AfterCall => self.after_call(ended),
        }
    }

    fn start(&mut self, ended: bool) -> bool {
        let think = self.in_reasoning(THINK);
        let rest = self.buffer.trim_start();
        if let Some(thought) = rest.strip_prefix(think) {
            self.buffer = thought.to_owned();
            self.mode = Mode::Reasoning;
            return true;
        }
        if (think.starts_with(rest) && !ended) || self.buffer.is_empty() {
            return false;
        }
        self.mode = Mode::ContentStart;
        true
    }

    fn reasoning(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        if !self.has_thought {
            let trimmed = self.buffer.trim_start_matches('\n').len();
            self.buffer.drain(..self.buffer.len() - trimmed);
            // Some models open what the prompt has opened already.
            let begin = self.in_reasoning(THINK);
            if self.buffer.starts_with(begin) {
                self.buffer.drain(..begin.len());
                return true;
            }
            if !ended && !self.buffer.is_empty() && begin.starts_with(self.buffer.as_str()) {
                return false;
            }
        }
        let end = self.in_reasoning(THINK_END);
        let (text, found) = take_until(&mut self.buffer, end, ended);
        self.has_thought |= !text.is_empty();
        push_part(parts, Part::Reasoning(text));
        if found {
            self.mode = Mode::AfterReasoning;
        }
        found
    }

    fn content_start(&mut self, ended: bool) -> bool {
        if self.buffer.is_empty() {
            return false;
        }
        if self.syntax != Some(ToolSyntax::Llama3) {
            self.mode = Mode::Content;
            return true;
        }
        const TAG: &str = "<|python_tag|>";
        let rest = self.buffer.trim_start();
        let call = rest.strip_prefix(TAG).unwrap_or(rest).trim_start();
        if call.starts_with('{') {
            self.buffer = call.to_owned();
            self.mode = Mode::Call(CallReader::object());
        } else if ended || !(rest.is_empty() || TAG.starts_with(rest) || call.is_empty()) {
            self.mode = Mode::Content;
        } else {
            return false;
        }
        true
    }

    fn content(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let (opener, mode) = match self.syntax {
            Some(ToolSyntax::Hermes) => (TOOL_CALL, Mode::Call(CallReader::object())),
            Some(ToolSyntax::Glm) => (TOOL_CALL, Mode::GlmName),
            Some(ToolSyntax::MistralList) => (TOOL_CALLS, Mode::AfterCall),
            Some(ToolSyntax::MistralArgs) => (TOOL_CALLS, Mode::CallName),
            Some(ToolSyntax::DeepSeek) => (DEEPSEEK_CALLS, Mode::AfterCall),
            Some(ToolSyntax::Llama3 | ToolSyntax::Harmony) | None => {
                push_part(parts, Part::Content(std::mem::take(&mut self.buffer)));
                return false;
            }
        };
        let opener = self.in_calls(opener);
        let (text, found) = take_until(&mut self.buffer, opener, ended);
        push_part(parts, Part::Content(text));
        if found {
            self.mode = mode;
        }
        found
    }

    fn call_name(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let separator = self.syntax.map_or("", |syntax| self.in_calls(syntax.separator()));
        let Some((name, rest)) = self.buffer.split_once(separator) else {
            if ended && !self.buffer.is_empty() {
                push_part(parts, Part::Content(std::mem::take(&mut self.buffer)));
            }
            return false;
        };
        let (name, rest) = (name.trim().to_owned(), rest.to_owned());
        self.mode = Mode::Call(CallReader::arguments(name));
        self.buffer = rest;
        true
    }

    fn call(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let Mode::Call(reader) = &mut self.mode else { return false };
        let read = reader.push(&self.buffer);
        self.buffer.drain(..read);
        let is_offered = |name: &String| {
            self.syntax != Some(ToolSyntax::Llama3) || self.functions.iter().any(|function| function.name == *name)
        };
        let is_call = reader.state != CallState::Failed
            && reader.name.as_ref().is_none_or(is_offered)
            // Without a marker before it, an object with a name is as likely an answer.
            && !(self.syntax == Some(ToolSyntax::Llama3) && reader.is_whole() && !reader.has_arguments());
        if !reader.announced && (!is_call || (ended && !reader.is_certain())) {
            // It is no call after all: the text is what the model said.
            let opener = match (self.syntax, &reader.name) {
                (Some(ToolSyntax::Hermes), _) => TOOL_CALL.text.to_owned(),
                (Some(syntax @ (ToolSyntax::MistralArgs | ToolSyntax::DeepSeek)), Some(name)) => {
                    format!("{name}{}", syntax.separator().text)
                }
                _ => String::new(),
            };
            push_part(parts, Part::Content(format!("{opener}{}", reader.raw)));
            self.has_misread |= self.syntax != Some(ToolSyntax::Llama3);
            self.mode = Mode::Content;
            return true;
        }
        reader.take_parts(parts);
        let is_whole = reader.is_whole();
        if is_whole || !is_call {
            self.num_calls += usize::from(is_whole);
            self.mode = Mode::AfterCall;
        }
        is_whole || !is_call
    }

    fn channel_header(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let beginnings = [self.in_reasoning(CHANNEL_START), self.in_reasoning(CHANNEL_NAME), " to="];
        let is_header = beginnings.iter().any(|beginning| self.buffer.starts_with(beginning));
        let may_be = beginnings.iter().any(|beginning| beginning.starts_with(self.buffer.as_str()));
        if !is_header && (self.buffer.is_empty() || (may_be && !ended)) {
            return false;
        }
        if !is_header {
            // No message of any channel: the text is what the model said.
            self.mode = Mode::Content;
            return true;
        }
        let begins = self.in_reasoning(CHANNEL_MESSAGE);
        let Some(at) = self.buffer.find(begins) else {
            if ended {
                push_part(parts, Part::Content(std::mem::take(&mut self.buffer)));
            }
            return false;
        };
        let message = self.buffer.split_off(at + begins.len());
        let header = std::mem::replace(&mut self.buffer, message);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let to = header.split_once("to=functions.").map(|(_, to)| to.split(|c| !is_name(c)).next().unwrap_or_default());
        let names = |channel: &str| {
            header.split_once(self.in_reasoning(CHANNEL_NAME)).is_some_and(|(_, named)| named.starts_with(channel))
        };
        self.mode = Mode::Channel(match to {
            Some(name) if !name.is_empty() => {
                parts.push(Part::Call { name: name.to_owned() });
                Channel::Call
            }
            _ if names("analysis") => Channel::Analysis,
            _ => Channel::Shown,
        });
        true
    }

    fn channel(&mut self, channel: Channel, parts: &mut Vec<Part>, ended: bool) -> bool {
        let next = self.in_reasoning(CHANNEL_START);
        let ends = [CHANNEL_END, CHANNEL_CALL, CHANNEL_RETURN].map(|end| self.in_reasoning(end));
        let ends = [ends[0], ends[1], ends[2], next];
        let first = ends.into_iter().filter_map(|end| Some((self.buffer.find(end)?, end))).min();
        let text = match first {
            Some((at, end)) => {
                let rest = self.buffer.split_off(if end == next { at } else { at + end.len() });
                let mut text = std::mem::replace(&mut self.buffer, rest);
                text.truncate(at);
                text
            }
            None => {
                // What may be the beginning of an end waits.
                let keep = |end: &&str| kept(&self.buffer, end);
                let keep = if ended { 0 } else { ends.iter().map(keep).max().unwrap_or(0) };
                let rest = self.buffer.split_off(self.buffer.len() - keep);
                std::mem::replace(&mut self.buffer, rest)
            }
        };
        let is_over = first.is_some() || (ended && channel == Channel::Call);
        push_part(
            parts,
            match channel {
                Channel::Analysis => Part::Reasoning(text),
                Channel::Shown => Part::Content(text),
                Channel::Call => {
                    self.arguments.push_str(&text);
                    Part::Arguments(text)
                }
            },
        );
        if is_over {
            // The token that ends a call ends the text, and is no part of it: whole is what is JSON.
            let arguments = std::mem::take(&mut self.arguments);
            let is_whole = serde_json::from_str::<Value>(&arguments).is_ok_and(|arguments| arguments.is_object());
            self.num_calls += usize::from(channel == Channel::Call && is_whole);
            self.mode = Mode::ChannelHeader;
        }
        is_over
    }

    fn glm_name(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let text = self.buffer.trim_start();
        let length = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
        let (name, rest) = text.split_at(length.unwrap_or(text.len()));
        let rest = rest.trim_start();
        let markers = [GLM_KEY, TOOL_CALL_END].map(|marker| self.in_calls(marker));
        if !name.is_empty() && markers.iter().any(|marker| rest.starts_with(marker)) {
            let known = self.functions.iter().find(|function| function.name == name).cloned();
            let function = known.unwrap_or_else(|| Function { name: name.to_owned(), strings: Vec::new() });
            parts.push(Part::Call { name: function.name.clone() });
            push_part(parts, Part::Arguments("{".to_owned()));
            self.called = Some(function);
            self.buffer = rest.to_owned();
            self.mode = Mode::GlmArguments(0);
            return true;
        }
        if !ended && (text.is_empty() || (!name.is_empty() && markers.iter().any(|marker| marker.starts_with(rest)))) {
            return false;
        }
        // It is no call after all: the text is what the model said, and one may follow.
        push_part(parts, Part::Content(TOOL_CALL.text.to_owned()));
        self.mode = Mode::Content;
        true
    }

    /// The next key with its value, as a member of an object; or the end of that.
    fn glm_arguments(&mut self, count: usize, parts: &mut Vec<Part>, ended: bool) -> bool {
        let text = self.buffer.trim_start();
        let (ends, begins) = (self.in_calls(TOOL_CALL_END), self.in_calls(GLM_KEY));
        if let Some(rest) = text.strip_prefix(ends) {
            push_part(parts, Part::Arguments("}".to_owned()));
            self.num_calls += 1;
            self.buffer = rest.to_owned();
            self.mode = Mode::AfterCall;
            return true;
        }
        let Some(member) = text.strip_prefix(begins) else {
            let may_come = [begins, ends].iter().any(|marker| marker.starts_with(text));
            if may_come {
                return false;
            }
            self.buffer = text.to_owned();
            self.mode = Mode::Content;
            return true;
        };
        let split = || {
            let (key, rest) = member.split_once(self.in_calls(GLM_KEY_END))?;
            let value = rest.trim_start().strip_prefix(self.in_calls(GLM_VALUE))?;
            let (value, rest) = value.split_once(self.in_calls(GLM_VALUE_END))?;
            Some((key.trim(), value, rest.to_owned()))
        };
        let Some((key, value, rest)) = split() else {
            // What is cut is cut.
            if ended {
                self.buffer.clear();
            }
            return false;
        };
        let is_string = self.called.as_ref().is_some_and(|function| function.strings.iter().any(|name| name == key));
        let value = match serde_json::from_str::<Value>(value) {
            Ok(value) if !is_string => value,
            _ => Value::String(value.to_owned()),
        };
        let comma = if count > 0 { ", " } else { "" };
        push_part(parts, Part::Arguments(format!("{comma}{}: {value}", Value::String(key.to_owned()))));
        self.buffer = rest;
        self.mode = Mode::GlmArguments(count + 1);
        true
    }

    /// Drops what stands between calls, and finds out what comes.
    fn after_call(&mut self, ended: bool) -> bool {
        let rest = self.buffer.trim_start().to_owned();
        if rest.is_empty() {
            return false;
        }
        let closers: &[&str] = match self.syntax {
            Some(ToolSyntax::Hermes) => &[TOOL_CALL_END.text],
            Some(ToolSyntax::MistralList) => &["[", "]", ","],
            Some(ToolSyntax::Llama3) => &[";"],
            Some(ToolSyntax::DeepSeek) => &[self.in_calls(DEEPSEEK_CALL_END), self.in_calls(DEEPSEEK_CALLS_END)],
            _ => &[],
        };
        let next = self.in_calls(DEEPSEEK_CALL);
        if self.syntax == Some(ToolSyntax::DeepSeek) {
            if let Some(name) = rest.strip_prefix(next) {
                self.buffer = name.to_owned();
                self.mode = Mode::CallName;
                return true;
            }
            if !ended && next.starts_with(&rest) {
                return false;
            }
        }
        if let Some(rest) = closers.iter().find_map(|closer| rest.strip_prefix(closer)) {
            self.buffer = rest.to_owned();
            return true;
        }
        if !ended && closers.iter().any(|closer| closer.starts_with(&rest)) {
            return false;
        }
        let is_next =
            rest.starts_with('{') && matches!(self.syntax, Some(ToolSyntax::MistralList | ToolSyntax::Llama3));
        self.mode = if is_next { Mode::Call(CallReader::object()) } else { Mode::Content };
        self.buffer = rest;
        true
    }
}

/// Takes the text before `marker`, and the marker; without one, all that cannot be its beginning.
fn take_until(buffer: &mut String, marker: &str, ended: bool) -> (String, bool) {
    if let Some(at) = buffer.find(marker) {
        let rest = buffer.split_off(at + marker.len());
        let mut text = std::mem::replace(buffer, rest);
        text.truncate(at);
        return (text, true);
    }
    let keep = if ended { 0 } else { kept(buffer, marker) };
    let rest = buffer.split_off(buffer.len() - keep);
    (std::mem::replace(buffer, rest), false)
}

/// Bytes at the end of a text that may be the beginning of `marker`.
fn kept(text: &str, marker: &str) -> usize {
    let mut lengths = (1..marker.len()).rev().filter(|&length| marker.is_char_boundary(length));
    lengths.find(|&length| text.ends_with(&marker[..length])).unwrap_or(0)
}

/// Appends a part, to the last one if both are of a kind.
pub(crate) fn push_part(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (_, Part::Content(text) | Part::Reasoning(text) | Part::Arguments(text)) if text.is_empty() => {}
        (Some(Part::Content(before)), Part::Content(text))
        | (Some(Part::Reasoning(before)), Part::Reasoning(text))
        | (Some(Part::Arguments(before)), Part::Arguments(text)) => before.push_str(&text),
        (_, part) => parts.push(part),
    }
}

/// Reads a call: an object with a name and arguments, or the arguments alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CallReader {
    /// All that was read.
    raw: String,
    state: CallState,
    /// The object is the arguments, of a function whose name came before it.
    is_bare: bool,
    name: Option<String>,
    /// The call was given out.
    announced: bool,
    /// Open objects and lists.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Where the member that is being read begins, and its value.
    member: usize,
    value: Option<usize>,
    /// Whether that value is the arguments.
    in_arguments: bool,
    /// What of the arguments is certain, as places in `raw`, and how much of it was given out.
    arguments: Option<(usize, usize)>,
    given_out: usize,
    /// The arguments where they are written as something else than an object: an object's JSON as a string, or nothing.
    respelled: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CallState {
    #[default]
    Open,
    Inside,
    Whole,
    Failed,
}

impl CallReader {
    fn object() -> Self {
        Self::default()
    }

    fn arguments(name: String) -> Self {
        Self { is_bare: true, name: Some(name), ..Self::default() }
    }

    fn is_whole(&self) -> bool {
        self.state == CallState::Whole
    }

    /// Reads up to the end of the call; returns how many bytes that took.
    fn push(&mut self, text: &str) -> usize {
        for (at, character) in text.char_indices() {
            if matches!(self.state, CallState::Whole | CallState::Failed) {
                return at;
            }
            self.raw.push(character);
            self.read(character);
        }
        text.len()
    }

    fn read(&mut self, character: char) {
        let at = self.raw.len();
        match character {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' if self.depth > 0 => self.in_string = !self.in_string,
            _ if self.in_string => {}
            '{' | '[' => self.open(character, at),
            '}' | ']' => self.close(at),
            ':' if self.depth == 1 && self.value.is_none() => self.end_key(at),
            ',' if self.depth == 1 => self.end_member(at),
            _ if self.depth == 0 && !character.is_whitespace() => self.state = CallState::Failed,
            _ => {}
        }
        let is_inside = self.depth > usize::from(!self.is_bare);
        if self.in_arguments && is_inside {
            self.extend_arguments(at);
        }
    }

    fn open(&mut self, character: char, at: usize) {
        self.depth += 1;
        if self.depth == 1 {
            self.state = if character == '{' { CallState::Inside } else { CallState::Failed };
            self.member = at;
            self.in_arguments = self.is_bare;
        }
        if self.in_arguments
            && self.arguments.is_none()
            && self.depth == 1 + usize::from(!self.is_bare)
            && character == '{'
        {
            self.arguments = Some((at - 1, at));
        }
    }

    fn close(&mut self, at: usize) {
        if self.depth == 0 {
            self.state = CallState::Failed;
            return;
        }
        self.depth -= 1;
        if self.in_arguments && self.depth == usize::from(!self.is_bare) {
            self.extend_arguments(at);
        }
        if self.depth == 0 {
            self.end_member(at);
            // A function that takes nothing is called with nothing by some models, and with no member for it by others.
            let fails = self.state == CallState::Failed || self.name.as_ref().is_none_or(String::is_empty);
            self.state = if fails { CallState::Failed } else { CallState::Whole };
        }
    }

    fn extend_arguments(&mut self, at: usize) {
        if let Some((_, end)) = &mut self.arguments {
            *end = at;
        }
    }

    fn end_key(&mut self, at: usize) {
        if self.is_bare {
            return;
        }
        self.value = Some(at);
        match serde_json::from_str::<String>(self.raw[self.member..at - 1].trim()) {
            Ok(key) => self.in_arguments = key == "arguments" || key == "parameters",
            Err(_) => self.state = CallState::Failed,
        }
    }

    fn end_member(&mut self, at: usize) {
        let value = self.value.take().map(|start| self.raw[start..at - 1].trim().to_owned());
        if let Some(value) = value {
            let key =
                serde_json::from_str::<String>(self.raw[self.member..].split(':').next().unwrap_or_default().trim());
            match (key.as_deref(), serde_json::from_str::<Value>(&value)) {
                (Ok("name"), Ok(Value::String(name))) => self.name = Some(name),
                (Ok("name"), _) => self.state = CallState::Failed,
                (Ok("arguments" | "parameters"), Ok(value)) if !value.is_object() => match arguments(Some(&value)) {
                    Some(read) if self.arguments.is_none() => self.respelled = Some(Value::Object(read).to_string()),
                    _ => self.state = CallState::Failed,
                },
                (Ok("arguments" | "parameters"), Err(_)) => self.state = CallState::Failed,
                _ => {}
            }
        }
        self.member = at;
        self.in_arguments = self.is_bare;
    }

    /// Whether a call of a known function has begun, with arguments that can be given out as they come.
    fn is_certain(&self) -> bool {
        let begun = self.arguments.is_some() && self.state == CallState::Inside;
        self.name.is_some() && (begun || self.is_whole())
    }

    /// Whether there is a member with arguments.
    fn has_arguments(&self) -> bool {
        self.arguments.is_some() || self.respelled.is_some()
    }

    /// Gives out what is certain.
    fn take_parts(&mut self, parts: &mut Vec<Part>) {
        let Some(name) = self.name.clone().filter(|_| self.is_certain() || self.announced) else { return };
        if !self.announced {
            self.announced = true;
            parts.push(Part::Call { name });
        }
        let Some((start, end)) = self.arguments else {
            if self.is_whole() {
                push_part(parts, Part::Arguments(self.respelled.take().unwrap_or_else(|| "{}".to_owned())));
            }
            return;
        };
        let certain = &self.raw[start..end];
        push_part(parts, Part::Arguments(certain[self.given_out..].to_owned()));
        self.given_out = certain.len();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A reply put together: reasoning, content, calls with their arguments.
    #[derive(Clone, Debug, Default, PartialEq)]
    struct Reply {
        reasoning: String,
        content: String,
        calls: Vec<(String, String)>,
    }

    fn read(mut reader: ReplyReader, pieces: &[&str]) -> Reply {
        let mut reply = Reply::default();
        let mut parts = Vec::new();
        for piece in pieces {
            reader.push(piece, &mut parts);
            add(&mut reply, &mut parts);
        }
        reader.finish(&mut parts);
        add(&mut reply, &mut parts);
        reply
    }

    fn add(reply: &mut Reply, parts: &mut Vec<Part>) {
        for part in parts.drain(..) {
            match part {
                Part::Content(text) => reply.content.push_str(&text),
                Part::Reasoning(text) => reply.reasoning.push_str(&text),
                Part::Call { name } => reply.calls.push((name, String::new())),
                Part::Arguments(text) => reply.calls.last_mut().unwrap().1.push_str(&text),
            }
        }
    }

    fn reader(reasoning: Reasoning, syntax: Option<ToolSyntax>) -> ReplyReader {
        let function = |name: &str| Function { name: name.to_owned(), strings: vec!["s".to_owned()] };
        ReplyReader::new(reasoning, syntax, vec![function("f"), function("g_2")])
    }

    fn reply(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Reply {
        let calls = calls.iter().map(|&(name, arguments)| (name.to_owned(), arguments.to_owned())).collect();
        Reply { reasoning: reasoning.to_owned(), content: content.to_owned(), calls }
    }

    /// Where control tokens are known by their ids, text that looks like one is text, however it is cut. Here `*` is what
    /// stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        use Reasoning::{Channels, None as Plain, Open, Tagged};
        use ToolSyntax::{DeepSeek, Glm, Harmony, MistralArgs, MistralList};
        let list = r#"[{"name": "f", "arguments": {"x": "[TOOL_CALLS]"}}]"#;
        let cases = [
            (Plain, MistralArgs, "a *[TOOL_CALLS]f*[ARGS]{\"x\": 1}".to_owned(), reply("", "a ", &[("f", "{\"x\": 1}")])),
            (Plain, MistralArgs, "[TOOL_CALLS]f[ARGS]{}".to_owned(), reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
            (Plain, MistralArgs, "[TOOL_CALLS]f*[ARGS]{}".to_owned(), reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
            (Plain, MistralArgs, "*[TOOL_CALLS]f[ARGS]{}".to_owned(), reply("", "f[ARGS]{}", &[])),
            (Plain, MistralArgs, "*[ARGS]{}".to_owned(), reply("", "[ARGS]{}", &[])),
            (Plain, MistralList, format!("*[TOOL_CALLS]{list}"), reply("", "", &[("f", r#"{"x": "[TOOL_CALLS]"}"#)])),
            (Plain, MistralList, format!("[TOOL_CALLS]{list}"), reply("", &format!("[TOOL_CALLS]{list}"), &[])),
            (
                Plain,
                MistralList,
                format!("[TOOL_CALLS] is how I call. *[TOOL_CALLS]{list}"),
                reply("", "[TOOL_CALLS] is how I call. ", &[("f", r#"{"x": "[TOOL_CALLS]"}"#)]),
            ),
            (
                Tagged,
                DeepSeek,
                "*<think>It ends with </think>, I think.*</think>I write <｜tool▁calls▁begin｜>: *<｜tool▁calls▁begin｜>\
                 *<｜tool▁call▁begin｜>f*<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}*<｜tool▁call▁end｜>*<｜tool▁calls▁end｜>"
                    .to_owned(),
                reply(
                    "It ends with </think>, I think.",
                    "I write <｜tool▁calls▁begin｜>: ",
                    &[("f", "{\"x\": \"<｜tool▁call▁end｜>\"}")],
                ),
            ),
            (Tagged, DeepSeek, "<think>aloud</think>".to_owned(), reply("", "<think>aloud</think>", &[])),
            (
                Plain,
                DeepSeek,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}".to_owned(),
                reply("", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", &[]),
            ),
            (
                Open,
                Glm,
                "Not </think> but*</think>Sure: <tool_call>f</tool_call> is *<tool_call>f\n*<arg_key>s*</arg_key>\n\
                 *<arg_value></arg_value> & </tool_call>*</arg_value>*<arg_key>n*</arg_key>*<arg_value>5*</arg_value>*</tool_call>"
                    .to_owned(),
                reply(
                    "Not </think> but",
                    "Sure: <tool_call>f</tool_call> is ",
                    &[("f", "{\"s\": \"</arg_value> & </tool_call>\", \"n\": 5}")],
                ),
            ),
            (Plain, Glm, "*<tool_call>f</tool_call>".to_owned(), reply("", "<tool_call>f</tool_call>", &[])),
            (Plain, Glm, "*<tool_call>]*<tool_call>f*</tool_call>".to_owned(), reply("", "<tool_call>]", &[("f", "{}")])),
            (
                Channels,
                Harmony,
                "*<|channel|>analysis*<|message|>It is <|end|><|start|>assistant<|channel|>final<|message|>x.*<|end|>*<|start|>\
                 assistant*<|channel|>commentary to=functions.f *<|constrain|>json*<|message|>{\"x\": \"<|call|>\"}*<|call|>"
                    .to_owned(),
                reply(
                    "It is <|end|><|start|>assistant<|channel|>final<|message|>x.",
                    "",
                    &[("f", "{\"x\": \"<|call|>\"}")],
                ),
            ),
            (
                Channels,
                Harmony,
                "<|channel|>analysis<|message|>x".to_owned(),
                reply("", "<|channel|>analysis<|message|>x", &[]),
            ),
        ];
        for (reasoning, syntax, text, expected) in cases {
            let text = text.replace('*', "\u{fdd0}");
            let reader = || reader(reasoning, Some(syntax)).by_id(ById { calls: true, reasoning: true });
            assert_eq!(read(reader(), &[&text]), expected, "{text}");
            let pieces: Vec<String> = text.chars().map(String::from).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            assert_eq!(read(reader(), &pieces), expected, "{text} in pieces");
        }
    }

    /// Texts of each family, with what they are made of.
    fn cases() -> Vec<(Reasoning, Option<ToolSyntax>, &'static str, Reply)> {
        use Reasoning::Channels;
        use Reasoning::{None as Plain, Open, Tagged};
        use ToolSyntax::{DeepSeek, Glm, Harmony, Hermes, Llama3, MistralArgs, MistralList};
        let f = r#"{"a": [1, {"b": "}\"]"}], "c": "\\"}"#;
        vec![
            (Plain, None, "<think>a</think> b", reply("", "<think>a</think> b", &[])),
            (Tagged, None, "<think>\na < b\n</think>\n\nSo.", reply("a < b\n", "So.", &[])),
            (Tagged, None, "\n<think>\n\n</think>\n\nSo.", reply("", "So.", &[])),
            (Tagged, None, "No thought, <b>", reply("", "No thought, <b>", &[])),
            (Tagged, None, "<thin", reply("", "<thin", &[])),
            (Open, None, "I think</thi</think>yes", reply("I think</thi", "yes", &[])),
            (Open, None, "never ends </th", reply("never ends </th", "", &[])),
            (Open, None, "<think>twice</think>yes", reply("twice", "yes", &[])),
            // Arguments as models write them: as a string, as nothing, not at all, and under the other name.
            (
                Plain,
                Some(Hermes),
                r#"<tool_call>{"name": "f", "arguments": "{\"city\": \"A\"}"}</tool_call>"#,
                reply("", "", &[("f", r#"{"city":"A"}"#)]),
            ),
            (Plain, Some(Hermes), r#"<tool_call>{"name": "f", "arguments": null}"#, reply("", "", &[("f", "{}")])),
            (Plain, Some(Hermes), r#"<tool_call>{"name": "f", "arguments": ""}"#, reply("", "", &[("f", "{}")])),
            (
                Plain,
                Some(Hermes),
                "<tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"f\", \"parameters\": {\"x\": 1}} So.",
                reply("", "So.", &[("f", "{}"), ("f", "{\"x\": 1}")]),
            ),
            (
                Plain,
                Some(Llama3),
                r#"{"name": "f", "parameters": "{\"x\": 1}"}"#,
                reply("", "", &[("f", r#"{"x":1}"#)]),
            ),
            (Plain, Some(Llama3), r#"{"name": "f"}"#, reply("", r#"{"name": "f"}"#, &[])),
            (
                Plain,
                Some(MistralList),
                r#"[TOOL_CALLS][{"name": "f", "arguments": "{}"}, {"name": "g_2", "arguments": {"x": 1}}]"#,
                reply("", "", &[("f", "{}"), ("g_2", r#"{"x": 1}"#)]),
            ),
            // What is no call is text, and never a call without its arguments.
            (
                Plain,
                Some(Hermes),
                r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#,
                reply("", r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#, &[]),
            ),
            (
                Plain,
                Some(Hermes),
                r#"<tool_call>{"name": "f", "arguments": "Paris"}</tool_call>"#,
                reply("", r#"<tool_call>{"name": "f", "arguments": "Paris"}</tool_call>"#, &[]),
            ),
            (
                Plain,
                Some(Hermes),
                r#"<tool_call>{"name": "f", "arguments": "#,
                reply("", r#"<tool_call>{"name": "f", "arguments": "#, &[]),
            ),
            (
                Plain,
                Some(Hermes),
                "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
                reply("", "Let me see.\n", &[("f", "{\"x\": 1}")]),
            ),
            (
                Tagged,
                Some(Hermes),
                "<think>hm</think>\n<tool_call>{\"arguments\": {} , \"name\": \"f\"}</tool_call>\n<tool_call>\n{\"name\": \"g_2\", \"arguments\": {\"k\": \"</tool_call>\"}}\n</tool_call>",
                reply("hm", "", &[("f", "{}"), ("g_2", "{\"k\": \"</tool_call>\"}")]),
            ),
            (Plain, Some(Hermes), "<tool_call>not json</tool_call>", reply("", "<tool_call>not json</tool_call>", &[])),
            (Plain, Some(Hermes), "a <tool_cal b", reply("", "a <tool_cal b", &[])),
            (
                Plain,
                Some(Hermes),
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"cut",
                reply("", "", &[("f", "{\"x\": \"cut")]),
            ),
            (Plain, Some(Hermes), "<tool_call>{\"name\": 7}", reply("", "<tool_call>{\"name\": 7}", &[])),
            (
                Plain,
                Some(Llama3),
                "{\"name\": \"f\", \"parameters\": {\"x\": \"{\"}}",
                reply("", "", &[("f", "{\"x\": \"{\"}")]),
            ),
            (
                Plain,
                Some(Llama3),
                "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g_2\", \"parameters\": {}}",
                reply("", "", &[("f", "{}"), ("g_2", "{}")]),
            ),
            (
                Plain,
                Some(Llama3),
                "{\"name\": \"unknown\", \"parameters\": {}}",
                reply("", "{\"name\": \"unknown\", \"parameters\": {}}", &[]),
            ),
            (Plain, Some(Llama3), "{\"answer\": 42}", reply("", "{\"answer\": 42}", &[])),
            (Plain, Some(Llama3), "Plain {\"name\": \"f\"}", reply("", "Plain {\"name\": \"f\"}", &[])),
            (
                Plain,
                Some(MistralList),
                "Sure. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": [1]}}, {\"name\": \"g_2\", \"arguments\": {}}]",
                reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
            ),
            (
                Plain,
                Some(MistralArgs),
                "[TOOL_CALLS]f[ARGS]{\"x\": {\"y\": 1}}[TOOL_CALLS]g_2[ARGS]{}",
                reply("", "", &[("f", "{\"x\": {\"y\": 1}}"), ("g_2", "{}")]),
            ),
            (Plain, Some(MistralArgs), "[TOOL_CALLS]f", reply("", "f", &[])),
            (
                Tagged,
                Some(DeepSeek),
                "<think>hm</think>Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}\
                 <｜tool▁call▁end｜><｜tool▁call▁begin｜>g_2<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                reply("hm", "Sure.", &[("f", "{\"x\": \"<｜tool▁call▁end｜>\"}"), ("g_2", "{}")]),
            ),
            (
                Tagged,
                Some(Glm),
                "<think>hm</think>Sure.\n<tool_call>f<arg_key>s</arg_key><arg_value>5</arg_value><arg_key>n</arg_key>\
                 <arg_value>5</arg_value><arg_key>t</arg_key><arg_value>a \"b\"</arg_value></tool_call>\n<tool_call>g_2\n</tool_call>",
                reply("hm", "Sure.\n", &[("f", "{\"s\": \"5\", \"n\": 5, \"t\": \"a \\\"b\\\"\"}"), ("g_2", "{}")]),
            ),
            (
                Plain,
                Some(Glm),
                "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>{\"a\": [1]}</arg_value>\n</tool_call>",
                reply("", "", &[("f", "{\"n\": {\"a\":[1]}}")]),
            ),
            (Plain, Some(Glm), "<tool_call>two words</tool_call>", reply("", "<tool_call>two words</tool_call>", &[])),
            (
                Plain,
                Some(Glm),
                "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>m</arg_key><arg_va",
                reply("", "", &[("f", "{\"n\": 1")]),
            ),
            (
                Channels,
                Some(Harmony),
                "<|channel|>analysis<|message|>I < think<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>\
                 <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\": \"<|\"}",
                reply("I < think", "Let me see.", &[("f", "{\"x\": \"<|\"}")]),
            ),
            (
                Channels,
                Some(Harmony),
                "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary \
                 to=functions.g_2<|message|>{\"a\": 1}<|call|>",
                reply("", "", &[("f", "{}"), ("g_2", "{\"a\": 1}")]),
            ),
            (Channels, None, "<|channel|>final<|message|>So.<|return|>", reply("", "So.", &[])),
            (Channels, None, "<|channel|>analysis<|message|>cut <|e", reply("cut <|e", "", &[])),
            (Channels, None, "No channel at all", reply("", "No channel at all", &[])),
            (Channels, None, "<|chan", reply("", "<|chan", &[])),
            (Plain, Some(DeepSeek), "a <｜tool▁cal b", reply("", "a <｜tool▁cal b", &[])),
            (
                Plain,
                Some(DeepSeek),
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"cut",
                reply("", "", &[("f", "{\"cut")]),
            ),
            (
                Plain,
                Some(Hermes),
                Box::leak(format!("<tool_call>{{\"name\": \"f\", \"arguments\": {f}}}</tool_call>").into_boxed_str()),
                reply("", "", &[("f", f)]),
            ),
        ]
    }

    #[test]
    fn texts_are_taken_apart() {
        for (reasoning, syntax, text, expected) in cases() {
            assert_eq!(read(reader(reasoning, syntax), &[text]), expected, "{text}");
        }
    }

    #[test]
    fn the_parts_do_not_depend_on_how_the_text_was_cut() {
        for (reasoning, syntax, text, expected) in cases() {
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(read(reader(reasoning, syntax), &characters), expected, "{text}");
            for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
                assert_eq!(read(reader(reasoning, syntax), &[&text[..cut], &text[cut..]]), expected, "{text} at {cut}");
            }
        }
    }

    #[test]
    fn a_call_is_shown_as_soon_as_it_is_certain() {
        let mut reader = reader(Reasoning::None, Some(ToolSyntax::Hermes));
        let mut parts = Vec::new();
        reader.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"lo", &mut parts);
        assert_eq!(parts, [Part::Call { name: "f".to_owned() }, Part::Arguments("{\"x\": \"lo".to_owned())]);
        assert_eq!(reader.num_calls(), 0);
        parts.clear();
        reader.push("ng\"}}", &mut parts);
        assert_eq!(parts, [Part::Arguments("ng\"}".to_owned())]);
        assert_eq!(reader.num_calls(), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]
        #[test]
        fn any_text_in_any_pieces_is_taken_apart_alike(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "{", "}", "[", "]", "\"", "\\",
                    ":", ",", ";", "\"name\"", "\"f\"", "\"arguments\"", "\"parameters\"", " ", "\n", "a", "é", "<", "<t", "1",
                    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜",
                    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|channel|>", "analysis", "final", " to=functions.f",
                    "<|message|>", "<|end|>", "<|start|>", "<|call|>",
                ]), 0..24),
            which in 0usize..8,
            reasoning in 0usize..4,
            marks in prop::collection::vec(any::<bool>(), 24),
            calls in any::<bool>(),
            thoughts in any::<bool>(),
        ) {
            use ToolSyntax::{DeepSeek, Glm, Harmony, Hermes, Llama3, MistralArgs, MistralList};
            let known = [Hermes, Llama3, MistralList, MistralArgs, DeepSeek, Glm, Harmony];
            let syntax = which.checked_sub(1).map(|which| known[which]);
            let reasoning = [Reasoning::None, Reasoning::Tagged, Reasoning::Open, Reasoning::Channels][reasoning];
            let whole = read(reader(reasoning, syntax), &[&pieces.concat()]);
            prop_assert_eq!(read(reader(reasoning, syntax), &pieces), whole);
            // As tokens, too, or some of them.
            let marked: Vec<String> = pieces.iter().zip(marks.iter().cycle()).map(|(piece, mark)| {
                let is_token = *mark && piece.starts_with(['<', '[']) && piece.len() > 2;
                if is_token { format!("{CONTROL}{piece}") } else { (*piece).to_owned() }
            }).collect();
            let pieces: Vec<&str> = marked.iter().map(String::as_str).collect();
            let reader = || reader(reasoning, syntax).by_id(ById { calls, reasoning: thoughts });
            prop_assert_eq!(read(reader(), &pieces), read(reader(), &[&pieces.concat()]));
        }
    }
}
