//! What a model's text is made of: reasoning, content, calls of tools. Taken apart as it comes, so that a stream shows
//! each part as soon as it is certain; the parts do not depend on how the text was cut.

mod call;
mod channels;
mod glm;
mod syntax;

use self::call::CallReader;
pub(crate) use self::syntax::*;

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
    /// The last call was none: this is the text that it was made of.
    NoCall(String),
}

/// The warning about a call that could not be read.
const UNREADABLE: &str = "a call of a tool could not be read, and stands in the text as the model wrote it";

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

/// Whether the text goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    No,
    /// The model has ended it.
    Ended,
    /// It may generate no more.
    Cut,
}

/// What a message of gpt-oss is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Channel {
    Analysis,
    /// What the user is to see: `final`, and `commentary` to nobody.
    Shown,
    /// To a function.
    Call(CallReader),
}

/// Takes a text apart.
#[derive(Clone, Debug)]
pub(crate) struct ReplyReader {
    syntax: Option<ToolSyntax>,
    /// Which tokens are marked by [`CONTROL`]: what only looks like one is text.
    by_id: ById,
    /// Functions that are offered: text that looks like a call of another is text, where syntax does not tell.
    functions: Vec<Function>,
    /// The function that GLM's values belong to.
    called: Option<Function>,
    mode: Mode,
    buffer: String,
    /// What stands before a call that is being read, from its first marker: if it is no call, that is text again.
    held: Option<String>,
    /// The prompt has opened the thought.
    is_open: bool,
    /// What a reader of the answer should know of its calls.
    warnings: Vec<String>,
    /// Some of the reasoning was given out.
    has_thought: bool,
    num_calls: usize,
}

impl ReplyReader {
    pub(crate) fn new(reasoning: Reasoning, syntax: Option<ToolSyntax>, functions: Vec<Function>) -> Self {
        let mode = match reasoning {
            Reasoning::None => Mode::ContentStart,
            Reasoning::Tagged | Reasoning::Open => Mode::Start,
            Reasoning::Channels => Mode::ChannelHeader,
        };
        Self {
            syntax,
            by_id: ById::default(),
            functions,
            called: None,
            mode,
            buffer: String::new(),
            held: None,
            is_open: reasoning == Reasoning::Open,
            warnings: Vec::new(),
            has_thought: false,
            num_calls: 0,
        }
    }

    /// The same, of a text in which these tokens are marked by [`CONTROL`].
    pub(crate) fn by_id(self, by_id: ById) -> Self {
        Self { by_id, ..self }
    }

    /// The same, of a text that goes on in the middle of content.
    pub(crate) fn within_content(self) -> Self {
        let mode = match self.mode {
            Mode::ChannelHeader => Mode::Channel(Channel::Shown),
            _ => Mode::Content,
        };
        Self { mode, ..self }
    }

    /// What a reader of the answer should know of its calls.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    fn is_offered(&self, name: &str) -> bool {
        self.functions.iter().any(|function| function.name == name)
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

    /// Whether what comes next is reasoning, as far as is known.
    pub(crate) fn is_reasoning(&self) -> bool {
        let is_open = self.mode == Mode::Start && self.is_open;
        is_open || matches!(self.mode, Mode::Reasoning | Mode::Channel(Channel::Analysis))
    }

    /// Takes the next piece of text; adds what is certain now.
    pub(crate) fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.buffer.push_str(text);
        self.advance_all(parts, End::No);
    }

    /// The text has ended, by the model's will or because it was `cut`; adds what was held back. A call that was cut stays
    /// what there is of it; one that the model left like that is text.
    pub(crate) fn finish(&mut self, parts: &mut Vec<Part>, cut: bool) {
        self.advance_all(parts, if cut { End::Cut } else { End::Ended });
    }

    fn advance_all(&mut self, parts: &mut Vec<Part>, end: End) {
        while self.advance(parts, end) {}
        if self.by_id != ById::default() {
            // A token that began nothing is text.
            for part in parts {
                match part {
                    Part::Content(text)
                    | Part::Reasoning(text)
                    | Part::Arguments(text)
                    | Part::NoCall(text)
                    | Part::Call { name: text } => {
                        text.retain(|character| character != CONTROL);
                    }
                }
            }
        }
    }

    /// One thing more, if there is one to say.
    fn advance(&mut self, parts: &mut Vec<Part>, end: End) -> bool {
        let ended = end != End::No;
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
            Mode::Call(_) => self.call(parts, end),
            Mode::ChannelHeader => self.channel_header(parts, ended),
            Mode::Channel(_) => self.channel(parts, end),
            Mode::GlmName => self.glm_name(parts, end),
            Mode::GlmArguments(count) => {
                let count = *count;
                self.glm_arguments(count, parts, end)
            }
            Mode::AfterCall => self.after_call(parts, ended),
        }
    }

    fn start(&mut self, ended: bool) -> bool {
        let think = self.in_reasoning(THINK);
        let rest = self.buffer.trim_start();
        if let Some(thought) = rest.strip_prefix(think) {
            // Some models open what the prompt has opened.
            self.buffer = thought.to_owned();
            self.mode = Mode::Reasoning;
            return true;
        }
        if (think.starts_with(rest) && !ended) || self.buffer.is_empty() {
            return false;
        }
        self.mode = if self.is_open { Mode::Reasoning } else { Mode::ContentStart };
        true
    }

    fn reasoning(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        if !self.has_thought {
            let trimmed = self.buffer.trim_start_matches('\n').len();
            self.buffer.drain(..self.buffer.len() - trimmed);
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
            let call = call.to_owned();
            self.held = Some(self.buffer[..self.buffer.len() - call.len()].to_owned());
            self.buffer = call;
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
            Some(ToolSyntax::MistralArgs | ToolSyntax::MistralIds) => (TOOL_CALLS, Mode::CallName),
            Some(ToolSyntax::DeepSeek) => (DEEPSEEK_CALLS, Mode::AfterCall),
            Some(ToolSyntax::Llama3 | ToolSyntax::Harmony) | None => {
                push_part(parts, Part::Content(std::mem::take(&mut self.buffer)));
                return false;
            }
        };
        let marker = self.in_calls(opener);
        let (text, found) = take_until(&mut self.buffer, marker, ended);
        push_part(parts, Part::Content(text));
        if found {
            self.held = Some(opener.text.to_owned());
            self.mode = mode;
        }
        found
    }

    /// What was held is no call: it is text again, with what was read behind it.
    fn give_back(&mut self, parts: &mut Vec<Part>, announced: bool, read: &str) {
        let mut text = self.held.take().unwrap_or_default();
        // Without a marker in it, this text alone does not show that a call was meant.
        if text.contains(|character: char| !character.is_whitespace()) {
            self.warn(UNREADABLE.to_owned());
        }
        text.push_str(read);
        push_part(parts, if announced { Part::NoCall(text) } else { Part::Content(text) });
    }

    /// A call of this function has begun.
    fn called(&mut self, name: &str) {
        if !self.is_offered(name) {
            self.warn(format!("the model called `{name}`, which is none of the tools that it was offered"));
        }
    }

    fn call_name(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let separator = self.syntax.map(|syntax| syntax.separator()).unwrap_or(ARGS);
        let Some((name, rest)) = self.buffer.split_once(self.in_calls(separator)) else {
            if ended && (!self.buffer.is_empty() || self.held.is_some()) {
                let text = std::mem::take(&mut self.buffer);
                self.give_back(parts, false, &text);
            }
            return false;
        };
        let (name, rest) = (name.to_owned(), rest.to_owned());
        let (called, written) = match name.split_once(self.in_calls(CALL_ID)) {
            Some((called, id)) if self.syntax == Some(ToolSyntax::MistralIds) => {
                (called.trim().to_owned(), format!("{called}{}{id}", CALL_ID.text))
            }
            _ => (name.trim().to_owned(), name),
        };
        if called.is_empty() {
            // A call without a name calls no tool.
            self.give_back(parts, false, &format!("{written}{}", separator.text));
            self.buffer = rest;
            self.mode = Mode::Content;
            return true;
        }
        self.hold(&written);
        self.hold(separator.text);
        self.mode = Mode::Call(CallReader::arguments(called));
        self.buffer = rest;
        true
    }

    /// Adds to what is held, if anything is.
    fn hold(&mut self, text: &str) {
        if let Some(held) = &mut self.held {
            held.push_str(text);
        }
    }

    fn call(&mut self, parts: &mut Vec<Part>, end: End) -> bool {
        let Mode::Call(mut reader) = std::mem::replace(&mut self.mode, Mode::AfterCall) else { return false };
        let ends_bare = reader.is_blank() && reader.name.is_some();
        let after: &[Marker] = match self.syntax {
            Some(ToolSyntax::DeepSeek) => &[DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END, DEEPSEEK_CALL],
            Some(ToolSyntax::MistralArgs | ToolSyntax::MistralIds) => &[TOOL_CALLS],
            _ => &[],
        };
        let rest = self.buffer.trim_start();
        let (is_after, may_be) =
            after.iter().map(|marker| self.in_calls(*marker)).fold((false, false), |found, text| {
                (found.0 || rest.starts_with(text), found.1 || (!rest.is_empty() && text.starts_with(rest)))
            });
        if ends_bare && is_after {
            reader.leave_out();
        } else if ends_bare && may_be && end == End::No {
            self.mode = Mode::Call(reader);
            return false;
        } else {
            let read = reader.push(&self.buffer);
            self.buffer.drain(..read);
        }
        if end == End::Ended {
            reader.end();
        }
        // Where nothing marks a call, its name does.
        let unknown = reader.name.clone().filter(|name| !self.is_offered(name));
        let is_text = self.syntax == Some(ToolSyntax::Llama3) && unknown.is_some();
        let announced = reader.announced;
        if !is_text {
            reader.take_parts(parts);
        }
        if reader.has_failed() || is_text || (end == End::Cut && !reader.announced) {
            let cut = end == End::Cut && !reader.has_failed();
            if let Some(name) = unknown.filter(|_| is_text) {
                self.warn(format!(
                    "the text looks like a call of `{name}`, which is none of the tools that were offered"
                ));
            }
            if cut {
                // Nothing is wrong with what is there.
                let held = self.held.take().unwrap_or_default();
                push_part(parts, Part::Content(format!("{held}{}", reader.raw)));
            } else {
                if reader.has_begun && !is_text {
                    self.warn(UNREADABLE.to_owned());
                }
                self.give_back(parts, announced, &reader.raw);
            }
            self.mode = Mode::Content;
            return true;
        }
        if reader.is_whole() {
            self.called(&reader.name.unwrap_or_default());
            self.held = None;
            self.num_calls += 1;
            return true;
        }
        self.mode = Mode::Call(reader);
        false
    }

    /// Drops what stands between calls, and finds out what comes.
    fn after_call(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let rest = self.buffer.trim_start().to_owned();
        if rest.is_empty() {
            if ended && self.held.is_some() {
                let space = std::mem::take(&mut self.buffer);
                self.give_back(parts, false, &space);
            }
            return false;
        }
        let closers: &[&str] = match self.syntax {
            Some(ToolSyntax::Hermes) => &[TOOL_CALL_END.text],
            Some(ToolSyntax::MistralList) => &["[", "]", ","],
            Some(ToolSyntax::Llama3) => &[";"],
            Some(ToolSyntax::DeepSeek) => &[self.in_calls(DEEPSEEK_CALL_END), self.in_calls(DEEPSEEK_CALLS_END)],
            Some(ToolSyntax::Glm) => &[self.in_calls(TOOL_CALL_END)],
            _ => &[],
        };
        let space = self.buffer[..self.buffer.len() - rest.len()].to_owned();
        let next = self.in_calls(DEEPSEEK_CALL);
        if self.syntax == Some(ToolSyntax::DeepSeek) {
            if let Some(name) = rest.strip_prefix(next) {
                let held = self.held.get_or_insert_default();
                held.push_str(&space);
                held.push_str(DEEPSEEK_CALL.text);
                self.buffer = name.to_owned();
                self.mode = Mode::CallName;
                return true;
            }
            if !ended && next.starts_with(&rest) {
                return false;
            }
        }
        if let Some(behind) = closers.iter().find_map(|closer| rest.strip_prefix(closer)) {
            self.hold(&format!("{space}{}", &rest[..rest.len() - behind.len()]));
            self.buffer = behind.to_owned();
            return true;
        }
        if !ended && closers.iter().any(|closer| closer.starts_with(&rest)) {
            return false;
        }
        let is_next =
            rest.starts_with('{') && matches!(self.syntax, Some(ToolSyntax::MistralList | ToolSyntax::Llama3));
        if is_next {
            self.hold(&space);
            self.mode = Mode::Call(CallReader::object());
        } else {
            if self.held.is_some() {
                self.give_back(parts, false, &space);
            }
            self.mode = Mode::Content;
        }
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
        (Some(Part::Arguments(_) | Part::Call { .. }), Part::NoCall(text)) => {
            // Arguments follow their call at once.
            while parts.pop_if(|last| matches!(last, Part::Arguments(_))).is_some() {}
            let is_here = parts.pop_if(|last| matches!(last, Part::Call { .. })).is_some();
            push_part(parts, if is_here { Part::Content(text) } else { Part::NoCall(text) });
        }
        (Some(Part::Content(before)), Part::Content(text))
        | (Some(Part::Reasoning(before)), Part::Reasoning(text))
        | (Some(Part::Arguments(before)), Part::Arguments(text)) => before.push_str(&text),
        (_, part) => parts.push(part),
    }
}

#[cfg(test)]
mod tests;
