//! What a model's text is made of: reasoning, content, calls of tools. Taken apart as it comes, so that a stream shows
//! each part as soon as it is certain; the parts do not depend on how the text was cut. How calls and reasoning stand
//! in the text is the dialect's to say (`dialect/`).

pub(crate) use crate::dialect::{
    ById, CONTROL, Function, Part, Reasoning, THINK_TAGS, ThoughtTags, ToolSyntax, push_part,
};
use crate::dialect::{
    CallForm, CallReader, CallStart, MarkedCalls, Marker, MessageReader, OwnReader, ReadStep, Reading, TextEnd,
    take_until, take_until_any,
};

mod overlooked;

use overlooked::ShownText;

/// What is being read.
#[derive(Clone, Debug)]
enum Mode {
    /// The beginning, where reasoning may open.
    Start,
    Reasoning,
    /// Space before content, which is dropped after reasoning.
    AfterReasoning,
    /// The beginning of content, where all of it may be a call.
    ContentStart,
    Content,
    /// A name, up to what separates it from its arguments.
    CallName,
    /// The object of a call, or the arguments alone.
    Call(CallReader),
    /// A call, or messages, which the dialect reads by itself.
    Own(Box<dyn OwnReader>),
    /// Between or behind calls.
    AfterCall,
}

/// Takes a text apart.
#[derive(Clone, Debug)]
pub(crate) struct ReplyReader {
    syntax: Option<ToolSyntax>,
    mode: Mode,
    reading: Reading,
    /// What stands around a thought.
    tags: &'static ThoughtTags,
    /// The prompt has opened the thought.
    is_open: bool,
    /// What a thought begins with that says what it is was read, or is not there.
    has_label: bool,
    /// Some of the reasoning was given out.
    has_thought: bool,
    shown: ShownText,
}

impl ReplyReader {
    /// A reader of a text that may begin with reasoning in this way, whose calls are written with `syntax`; without one
    /// there are none. These functions are offered.
    pub(crate) fn new(reasoning: Reasoning, syntax: Option<ToolSyntax>, functions: Vec<Function>) -> Self {
        let mode = match reasoning {
            Reasoning::None => Mode::ContentStart,
            Reasoning::Tagged | Reasoning::Open => Mode::Start,
            Reasoning::Channels => Mode::Own(Box::new(MessageReader::Header)),
        };
        let is_open = reasoning == Reasoning::Open;
        let (reading, tags) = (Reading::new(functions), &THINK_TAGS);
        let shown = ShownText::default();
        Self { syntax, mode, reading, tags, is_open, has_label: false, has_thought: false, shown }
    }

    /// The same, of a text whose thoughts stand between these tags.
    pub(crate) fn thinking_in(self, tags: &'static ThoughtTags) -> Self {
        Self { tags, ..self }
    }

    /// The same, of a text in which these tokens are marked by [`CONTROL`].
    pub(crate) fn by_id(mut self, by_id: ById) -> Self {
        self.reading.by_id = by_id;
        self
    }

    /// The same, of a text that goes on in the middle of content.
    pub(crate) fn within_content(self) -> Self {
        let mode = match self.mode {
            Mode::Own(_) => Mode::Own(Box::new(MessageReader::Shown)),
            _ => Mode::Content,
        };
        Self { mode, ..self }
    }

    /// What a reader of the answer should know of its calls.
    pub(crate) fn warnings(&self) -> &[String] {
        self.reading.warnings()
    }

    /// Calls that are whole.
    pub(crate) fn num_calls(&self) -> usize {
        self.reading.num_calls
    }

    /// Whether what comes next is reasoning, as far as is known.
    pub(crate) fn is_reasoning(&self) -> bool {
        match &self.mode {
            Mode::Start => self.is_open,
            Mode::Reasoning => true,
            Mode::Own(reader) => reader.is_reasoning(),
            _ => false,
        }
    }

    /// How calls stand in the text, if there may be any.
    fn form(&self) -> Option<&'static CallForm> {
        self.syntax.map(|syntax| &syntax.dialect().form)
    }

    /// The same, of calls that begin with a marker.
    fn marked_calls(&self) -> Option<&'static MarkedCalls> {
        match self.form() {
            Some(CallForm::Marked(calls)) => Some(calls),
            _ => None,
        }
    }

    /// What may stand before a call where nothing marks one.
    fn bare_tag(&self) -> Option<&'static str> {
        match self.form() {
            Some(CallForm::Bare { tag, .. }) => Some(tag),
            _ => None,
        }
    }

    /// Takes the next piece of text; adds what is certain now.
    pub(crate) fn push(&mut self, text: &str, parts: &mut Vec<Part>) {
        self.reading.buffer.push_str(text);
        self.advance_all(parts, TextEnd::No);
    }

    /// The text has ended, by the model's will or because it was `cut`; adds what was held back. A call that was cut
    /// stays what there is of it; one that the model left like that is text.
    pub(crate) fn finish(&mut self, parts: &mut Vec<Part>, cut: bool) {
        self.advance_all(parts, if cut { TextEnd::Cut } else { TextEnd::Ended });
        if !self.has_thought {
            self.shown.check_thought(self.tags, &mut self.reading);
        }
        if let Some(calls) = self.marked_calls() {
            self.shown.check_call(calls.opener.text, &mut self.reading);
        }
    }

    fn advance_all(&mut self, parts: &mut Vec<Part>, end: TextEnd) {
        let mut new = Vec::new();
        while self.advance(&mut new, end) {}
        for mut part in new {
            // What was held as a call and came back is shown as well.
            if let Part::Content(text) | Part::NoCall(text) = &part {
                self.shown.push(text);
            }
            if self.reading.by_id != ById::default() {
                let (Part::Content(text)
                | Part::Reasoning(text)
                | Part::Arguments(text)
                | Part::NoCall(text)
                | Part::Call { name: text }) = &mut part;
                // A token that began nothing is text.
                text.retain(|character| character != CONTROL);
            }
            push_part(parts, part);
        }
    }

    /// One thing more, if there is one to say.
    fn advance(&mut self, parts: &mut Vec<Part>, end: TextEnd) -> bool {
        let ended = end != TextEnd::No;
        match &mut self.mode {
            Mode::Start => self.start(ended),
            Mode::Reasoning => self.reasoning(parts, ended),
            Mode::AfterReasoning => {
                let trimmed = self.reading.buffer.trim_start().len();
                self.reading.buffer.drain(..self.reading.buffer.len() - trimmed);
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
            Mode::Own(reader) => match reader.advance(&mut self.reading, parts, end) {
                ReadStep::Wait => false,
                ReadStep::GoOn => true,
                ReadStep::Content => {
                    self.mode = Mode::Content;
                    true
                }
                ReadStep::AfterCall => {
                    self.mode = Mode::AfterCall;
                    true
                }
            },
            Mode::AfterCall => self.after_call(parts, ended),
        }
    }

    fn start(&mut self, ended: bool) -> bool {
        let think = self.reading.in_reasoning(self.tags.open());
        let rest = self.reading.buffer.trim_start();
        if let Some(thought) = rest.strip_prefix(think) {
            // Some models open what the prompt has opened.
            self.reading.buffer = thought.to_owned();
            self.mode = Mode::Reasoning;
            return true;
        }
        if (think.starts_with(rest) && !ended) || self.reading.buffer.is_empty() {
            return false;
        }
        self.mode = if self.is_open { Mode::Reasoning } else { Mode::ContentStart };
        true
    }

    fn reasoning(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        if !self.has_thought {
            let trimmed = self.reading.buffer.trim_start_matches('\n').len();
            self.reading.buffer.drain(..self.reading.buffer.len() - trimmed);
            if !self.has_label {
                let label = self.tags.label;
                let may_come = label.len() > trimmed && label.starts_with(&self.reading.buffer);
                if may_come && !ended {
                    return false;
                }
                self.has_label = true;
                if self.reading.buffer.starts_with(label) {
                    self.reading.buffer.drain(..label.len());
                    return true;
                }
            }
        }
        let end = self.reading.in_reasoning(self.tags.close());
        let (text, found) = take_until(&mut self.reading.buffer, end, ended);
        self.has_thought |= !text.is_empty();
        push_part(parts, Part::Reasoning(text));
        if found {
            self.mode = Mode::AfterReasoning;
        }
        found
    }

    fn content_start(&mut self, ended: bool) -> bool {
        if self.reading.buffer.is_empty() {
            return false;
        }
        let tag = match self.form() {
            Some(CallForm::Bare { tag, .. }) => tag,
            Some(CallForm::Leading { reader, .. }) => {
                self.mode = Mode::Own(reader());
                return true;
            }
            _ => {
                self.mode = Mode::Content;
                return true;
            }
        };
        let rest = self.reading.buffer.trim_start();
        let call = rest.strip_prefix(tag).unwrap_or(rest).trim_start();
        if call.starts_with('{') {
            let call = call.to_owned();
            self.reading.held = Some(self.reading.buffer[..self.reading.buffer.len() - call.len()].to_owned());
            self.reading.buffer = call;
            self.mode = Mode::Call(CallReader::object());
        } else if ended || !(rest.is_empty() || tag.starts_with(rest) || call.is_empty()) {
            self.mode = Mode::Content;
        } else {
            return false;
        }
        true
    }

    fn content(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let calls = self.marked_calls();
        let opener = calls.map(|calls| self.reading.in_calls(calls.opener));
        let unopened = calls.and_then(|calls| calls.unopened);
        let frames = self.tags.frames().iter().map(|frame| self.reading.in_reasoning(*frame));
        let unopened_text = unopened.map(|(marker, _)| marker.text);
        let markers: Vec<&str> = opener.into_iter().chain(unopened_text).chain(frames).collect();
        let (text, found) = take_until_any(&mut self.reading.buffer, &markers, ended);
        push_part(parts, Part::Content(text));
        let begins_call = found.is_some() && found == opener;
        if let Some(&MarkedCalls { opener, first, .. }) = calls.filter(|_| begins_call) {
            self.reading.held = Some(opener.text.to_owned());
            self.mode = match first {
                CallStart::Object => Mode::Call(CallReader::object()),
                CallStart::Name => Mode::CallName,
                CallStart::List => Mode::AfterCall,
                CallStart::Own(reader) => Mode::Own(reader()),
            };
        }
        if let Some((marker, reader)) = unopened.filter(|_| found.is_some() && found == unopened_text) {
            self.reading.held = Some(marker.text.to_owned());
            self.mode = Mode::Own(reader());
        }
        // What stands around an answer is dropped.
        found.is_some()
    }

    fn call_name(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let Some(&MarkedCalls { id, separator: Some(separator), name: name_in, .. }) = self.marked_calls() else {
            self.mode = Mode::Content;
            return true;
        };
        let Some((name, rest)) = self.reading.buffer.split_once(self.reading.in_calls(separator)) else {
            if ended && (!self.reading.buffer.is_empty() || self.reading.held.is_some()) {
                let text = std::mem::take(&mut self.reading.buffer);
                self.reading.give_back(parts, false, &text);
            }
            return false;
        };
        let (name, rest) = (name.to_owned(), rest.to_owned());
        let with_id = id.and_then(|marker| {
            let (called, id) = name.split_once(self.reading.in_calls(marker))?;
            Some((called.trim().to_owned(), format!("{called}{}{id}", marker.text)))
        });
        let (called, written) = with_id.unwrap_or_else(|| (name.trim().to_owned(), name));
        let called = name_in(&called).to_owned();
        if called.is_empty() {
            // A call without a name calls no tool.
            self.reading.give_back(parts, false, &format!("{written}{}", separator.text));
            self.reading.buffer = rest;
            self.mode = Mode::Content;
            return true;
        }
        self.reading.hold(&written);
        self.reading.hold(separator.text);
        self.mode = Mode::Call(CallReader::arguments(called));
        self.reading.buffer = rest;
        true
    }

    fn call(&mut self, parts: &mut Vec<Part>, end: TextEnd) -> bool {
        let Mode::Call(mut reader) = std::mem::replace(&mut self.mode, Mode::AfterCall) else { return false };
        let ends_bare = reader.is_blank() && reader.name.is_some();
        let after = self.marked_calls().map_or(&[][..], |calls| calls.no_arguments);
        let rest = self.reading.buffer.trim_start();
        let (is_after, may_be) =
            after.iter().map(|marker| self.reading.in_calls(*marker)).fold((false, false), |found, text| {
                (found.0 || rest.starts_with(text), found.1 || (!rest.is_empty() && text.starts_with(rest)))
            });
        if ends_bare && is_after {
            // The space may have come in a piece of its own, which the reader has taken.
            let space = self.reading.buffer.len() - rest.len();
            self.reading.buffer.drain(..space);
            reader.leave_out();
        } else if ends_bare && may_be && end == TextEnd::No {
            self.mode = Mode::Call(reader);
            return false;
        } else {
            let read = reader.push(&self.reading.buffer);
            self.reading.buffer.drain(..read);
        }
        if end == TextEnd::Ended {
            reader.end();
        }
        // Where nothing marks a call, its name does.
        let unknown = reader.name.clone().filter(|name| !self.reading.is_offered(name));
        let is_text = self.bare_tag().is_some() && unknown.is_some();
        let announced = reader.announced;
        if !is_text {
            reader.take_parts(parts);
        }
        if reader.has_failed() || is_text || (end == TextEnd::Cut && !reader.announced) {
            let cut = end == TextEnd::Cut && !reader.has_failed();
            if let Some(name) = unknown.filter(|_| is_text) {
                self.reading.warn(format!(
                    "the text looks like a call of `{name}`, which is none of the tools that were offered"
                ));
            }
            if cut {
                // Nothing is wrong with what is there.
                let held = self.reading.held.take().unwrap_or_default();
                push_part(parts, Part::Content(format!("{held}{}", reader.raw)));
            } else {
                if reader.has_begun && !is_text {
                    self.reading.warn_unreadable();
                }
                self.reading.give_back(parts, announced, &reader.raw);
            }
            self.mode = Mode::Content;
            return true;
        }
        if reader.is_whole() {
            self.reading.called(&reader.name.unwrap_or_default());
            self.reading.call_is_whole();
            return true;
        }
        self.mode = Mode::Call(reader);
        false
    }

    /// Drops what stands between calls, and finds out what comes.
    fn after_call(&mut self, parts: &mut Vec<Part>, ended: bool) -> bool {
        let rest = self.reading.buffer.trim_start().to_owned();
        if rest.is_empty() {
            if ended && self.reading.held.is_some() {
                let space = std::mem::take(&mut self.reading.buffer);
                self.reading.give_back(parts, false, &space);
            }
            return false;
        }
        let (between, each, has_list): (&[Marker], _, _) = match self.form() {
            Some(CallForm::Marked(calls)) => (calls.between, calls.each, calls.has_list),
            Some(CallForm::Bare { between, .. }) => (between, None, true),
            Some(CallForm::Leading { between, .. }) => (between, None, false),
            Some(CallForm::Messages) | None => (&[], None, false),
        };
        let space = self.reading.buffer[..self.reading.buffer.len() - rest.len()].to_owned();
        if let Some(marker) = each {
            let next = self.reading.in_calls(marker);
            if let Some(name) = rest.strip_prefix(next) {
                let held = self.reading.held.get_or_insert_default();
                held.push_str(&space);
                held.push_str(marker.text);
                self.reading.buffer = name.to_owned();
                self.mode = Mode::CallName;
                return true;
            }
            if !ended && next.starts_with(&rest) {
                return false;
            }
        }
        let mut between = between.iter().map(|marker| self.reading.in_calls(*marker));
        if let Some(behind) = between.clone().find_map(|text| rest.strip_prefix(text)) {
            self.reading.hold(&format!("{space}{}", &rest[..rest.len() - behind.len()]));
            self.reading.buffer = behind.to_owned();
            return true;
        }
        if !ended && between.any(|text| text.starts_with(&rest)) {
            return false;
        }
        if has_list && rest.starts_with('{') {
            self.reading.hold(&space);
            self.mode = Mode::Call(CallReader::object());
        } else {
            if self.reading.held.is_some() {
                self.reading.give_back(parts, false, &space);
            }
            self.mode = Mode::Content;
        }
        self.reading.buffer = rest;
        true
    }
}

#[cfg(test)]
pub(crate) mod tests;
