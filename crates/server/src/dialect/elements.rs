//! Calls that are elements: a function by its name, and in it a parameter by its name for each argument, such as
//! `<function=name><parameter=key>value</parameter></function>`. A string stands as it is, anything else as JSON, and
//! only the function's schema tells which, unless the element says so. Several families write calls like this; they
//! differ in the names of the elements and in what stands around a call.

use serde_json::Value;

use super::function::{Function, is_name};
use super::grammar::{Callable, GrammarWriter, quoted};
use super::literal::python_value;
use super::marker::Marker;
use super::members::{Member, marked_members};
use super::part::{Part, push_part};
use super::reading::{OwnReader, ReadStep, Reading, TextEnd, kept};
use crate::error::ApiError;

/// How a family writes the elements of a call.
#[derive(Debug)]
pub(super) struct Elements {
    /// Stands before a call, or before several.
    pub(super) opens: Marker,
    /// Stands behind them.
    pub(super) closes: Marker,
    /// Begins a call; its name and `>` follow.
    pub(super) call: &'static str,
    pub(super) call_end: &'static str,
    /// Begins a parameter; its name and `>` follow.
    pub(super) parameter: &'static str,
    pub(super) parameter_end: &'static str,
    /// Ends a value in a grammar: `parameter_end` with the space around it.
    pub(super) value_end: &'static str,
    /// Names stand in quotes.
    pub(super) has_quotes: bool,
    /// A value stands on lines of its own.
    pub(super) has_lines: bool,
    /// A parameter says whether it is a string: `string="true"`.
    pub(super) says_strings: bool,
}

/// Reads the calls behind an opening marker.
#[derive(Clone, Debug)]
pub(super) struct ElementReader {
    elements: &'static Elements,
    state: State,
    /// The text begins behind the beginning of a call's element, and only a function that is offered is called.
    is_unopened: bool,
    /// The function that is called, of which so many arguments were read.
    function: Option<Function>,
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The element of a call, with its name.
    Name,
    /// The element of a parameter, or the end of the call.
    Members,
    /// A value that is a string, at its beginning or within it.
    Text { has_begun: bool },
    /// A value that is JSON.
    Json,
    /// Behind a call, where another may stand.
    Next,
}

/// Where a value ends, as far as is known.
enum ValueEnd {
    /// At this byte.
    At(usize),
    /// Not before this byte.
    NotBefore(usize),
}

impl ElementReader {
    pub(super) fn boxed_new(elements: &'static Elements) -> Box<dyn OwnReader> {
        Box::new(Self { elements, state: State::Name, is_unopened: false, function: None, count: 0 })
    }

    /// Of a call that has no opening marker, behind the beginning of its element.
    pub(super) fn unopened(elements: &'static Elements) -> Box<dyn OwnReader> {
        Box::new(Self { elements, state: State::Name, is_unopened: true, function: None, count: 0 })
    }
}

impl OwnReader for ElementReader {
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        match self.state {
            State::Name => self.name(reading, parts, end),
            State::Members => self.members(reading, parts, end),
            State::Text { has_begun } => self.text(has_begun, reading, parts, end),
            State::Json => self.json(reading, parts, end),
            State::Next => self.next(reading, end),
        }
    }

    fn boxed(&self) -> Box<dyn OwnReader> {
        Box::new(self.clone())
    }
}

impl ElementReader {
    fn name(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let is_unopened = self.is_unopened;
        let call = if is_unopened { "" } else { self.elements.call };
        let text = if is_unopened { &reading.buffer } else { reading.buffer.trim_start() };
        let named = text.strip_prefix(call).and_then(|text| self.head(text));
        let may_be = |name: &str| is_function_name(name) && (!is_unopened || reading.is_offered(name));
        let may_come = self.may_be_head(text, call);
        match named {
            Some((head, rest)) if may_be(&head.name) => {
                let function = reading.function(&head.name).cloned();
                let function = function.unwrap_or_else(|| Function { name: head.name, strings: Vec::new() });
                reading.hold_before(rest.to_owned());
                parts.push(Part::Call { name: function.name.clone() });
                push_part(parts, Part::Arguments("{".to_owned()));
                reading.called(&function.name);
                (self.function, self.count, self.is_unopened) = (Some(function), 0, false);
                self.state = State::Members;
                ReadStep::GoOn
            }
            None if end == TextEnd::No && may_come => ReadStep::Wait,
            _ if is_unopened || (named.is_none() && end == TextEnd::Cut && may_come) => {
                // Nothing is wrong with what is there.
                push_part(parts, Part::Content(reading.held.take().unwrap_or_default()));
                ReadStep::Content
            }
            _ => {
                // It is no call after all: the text is what the model said, and one may follow.
                reading.give_back(parts, false, "");
                ReadStep::Content
            }
        }
    }

    fn members(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let text = reading.buffer.trim_start();
        let parameter = text.strip_prefix(self.elements.parameter).and_then(|text| self.head(text));
        if let Some((head, rest)) = parameter
            && !head.name.is_empty()
        {
            let is_string = head.is_string.unwrap_or_else(|| {
                self.function.as_ref().is_some_and(|function| function.strings.contains(&head.name))
            });
            let comma = if self.count > 0 { ", " } else { "" };
            let quote = if is_string { "\"" } else { "" };
            let member = format!("{comma}{}: {quote}", Value::String(head.name));
            reading.hold_before(rest.to_owned());
            push_part(parts, Part::Arguments(member));
            self.state = if is_string { State::Text { has_begun: false } } else { State::Json };
            self.count += 1;
            return ReadStep::GoOn;
        }
        let ends = text.starts_with(self.elements.call_end);
        let others =
            [self.elements.call, reading.in_calls(self.elements.closes), reading.in_calls(self.elements.opens)];
        let is_over =
            ends || others.iter().any(|other| text.starts_with(other)) || (end == TextEnd::Ended && text.is_empty());
        if is_over {
            // The end, or what stands where the end is missing.
            let rest = if ends { &text[self.elements.call_end.len()..] } else { text };
            reading.hold_before(rest.to_owned());
            push_part(parts, Part::Arguments("}".to_owned()));
            reading.call_is_whole();
            self.state = State::Next;
            return ReadStep::GoOn;
        }
        let may_come = self.may_be_head(text, self.elements.parameter)
            || self.elements.call_end.starts_with(text)
            || others.iter().any(|other| other.starts_with(text));
        self.wait_or_give_back(may_come, reading, parts, end)
    }

    /// What was read of a call that the text has not decided on.
    fn wait_or_give_back(
        &self,
        may_come: bool,
        reading: &mut Reading,
        parts: &mut Vec<Part>,
        end: TextEnd,
    ) -> ReadStep {
        match end {
            TextEnd::No if may_come => ReadStep::Wait,
            // What is cut is cut.
            TextEnd::Cut if may_come => {
                reading.buffer.clear();
                ReadStep::Wait
            }
            TextEnd::Ended if may_come => {
                let read = std::mem::take(&mut reading.buffer);
                reading.give_back(parts, true, &read);
                ReadStep::Content
            }
            _ => {
                reading.give_back(parts, true, "");
                ReadStep::Content
            }
        }
    }

    fn text(&mut self, has_begun: bool, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        if !has_begun {
            if reading.buffer.is_empty() && end == TextEnd::No {
                return ReadStep::Wait;
            }
            if self.elements.has_lines && reading.buffer.starts_with('\n') {
                reading.hold_before(reading.buffer[1..].to_owned());
            }
            self.state = State::Text { has_begun: true };
            return ReadStep::GoOn;
        }
        match self.value_end(reading, end) {
            ValueEnd::At(at) => {
                let value = self.without_line(&reading.buffer[..at]);
                push_part(parts, Part::Arguments(format!("{}\"", escaped(value))));
                let rest = reading.buffer[at + self.elements.parameter_end.len()..].to_owned();
                reading.hold_before(rest);
                self.state = State::Members;
                ReadStep::GoOn
            }
            ValueEnd::NotBefore(at) => {
                let shown = self.without_line(&reading.buffer[..at]).len();
                push_part(parts, Part::Arguments(escaped(&reading.buffer[..shown])));
                reading.hold_before(reading.buffer[shown..].to_owned());
                self.wait_or_give_back(true, reading, parts, end)
            }
        }
    }

    fn json(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let ValueEnd::At(at) = self.value_end(reading, end) else {
            return self.wait_or_give_back(true, reading, parts, end);
        };
        let written = &reading.buffer[..at];
        let text = written.strip_prefix('\n').filter(|_| self.elements.has_lines).unwrap_or(written);
        let text = self.without_line(text);
        let json = serde_json::from_str::<Value>(text.trim()).ok();
        let value = json.or_else(|| python_value(text.trim())).unwrap_or_else(|| Value::String(text.to_owned()));
        push_part(parts, Part::Arguments(value.to_string()));
        let rest = reading.buffer[at + self.elements.parameter_end.len()..].to_owned();
        reading.hold_before(rest);
        self.state = State::Members;
        ReadStep::GoOn
    }

    fn next(&mut self, reading: &mut Reading, end: TextEnd) -> ReadStep {
        let text = reading.buffer.trim_start();
        if text.starts_with(self.elements.call) {
            reading.held = Some(String::new());
            self.state = State::Name;
            return ReadStep::GoOn;
        }
        let closes = reading.in_calls(self.elements.closes);
        if end == TextEnd::No && !text.starts_with(closes) {
            let may_come = self.elements.call.starts_with(text) || closes.starts_with(text);
            if may_come {
                return ReadStep::Wait;
            }
        }
        ReadStep::AfterCall
    }

    /// Where the value at the beginning of the buffer ends: at a `parameter_end` behind which another parameter stands,
    /// or the end of the call. One that stands within a text, such as this file, ends nothing.
    fn value_end(&self, reading: &Reading, end: TextEnd) -> ValueEnd {
        let (text, marker) = (reading.buffer.as_str(), self.elements.parameter_end);
        let followers = [
            self.elements.parameter,
            self.elements.call_end,
            self.elements.call,
            reading.in_calls(self.elements.closes),
            reading.in_calls(self.elements.opens),
        ];
        let mut from = 0;
        while let Some(at) = text[from..].find(marker).map(|at| from + at) {
            let behind = text[at + marker.len()..].trim_start();
            let is_followed = followers.iter().any(|follower| behind.starts_with(follower));
            if is_followed || (end == TextEnd::Ended && behind.is_empty()) {
                return ValueEnd::At(at);
            }
            if end != TextEnd::Ended && followers.iter().any(|follower| follower.starts_with(behind)) {
                return ValueEnd::NotBefore(at);
            }
            from = at + marker.len();
        }
        ValueEnd::NotBefore(text.len() - kept(text, marker))
    }

    /// A value without the line break that stands before its end.
    fn without_line<'t>(&self, value: &'t str) -> &'t str {
        if self.elements.has_lines { value.strip_suffix('\n').unwrap_or(value) } else { value }
    }

    /// Splits what stands behind the name of an element: its own name and what it says of itself, and the rest.
    fn head<'t>(&self, text: &'t str) -> Option<(Head, &'t str)> {
        let (head, rest) = text.split_once('>')?;
        let quoted = head.strip_prefix('"').and_then(|head| head.split_once('"'));
        let (name, attributes) = match quoted.filter(|_| self.elements.has_quotes) {
            Some((name, attributes)) => (name, attributes),
            None => (head.trim(), ""),
        };
        let is_string = match attributes.trim() {
            "string=\"true\"" if self.elements.says_strings => Some(true),
            "string=\"false\"" if self.elements.says_strings => Some(false),
            _ => None,
        };
        Some((Head { name: name.to_owned(), is_string }, rest))
    }

    /// Whether a text may become an element of this beginning.
    fn may_be_head(&self, text: &str, beginning: &str) -> bool {
        beginning.starts_with(text) || text.strip_prefix(beginning).is_some_and(|head| !head.contains('>'))
    }
}

/// What an element says in its beginning.
struct Head {
    name: String,
    is_string: Option<bool>,
}

fn is_function_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(is_name)
}

/// A piece of a string, as it stands in JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A call of each tool.
pub(super) fn grammar(
    elements: &'static Elements,
    writer: &mut GrammarWriter,
    tools: &[Callable],
) -> Result<Vec<String>, ApiError> {
    let quote = if elements.has_quotes { "\"" } else { "" };
    let line = if elements.has_lines { "\n" } else { "" };
    let call = |tool: &Callable| {
        let before = |_: &GrammarWriter, member: &Member| {
            let kind = match (elements.says_strings, member.is_string) {
                (false, _) => "",
                (true, true) => " string=\"true\"",
                (true, false) => " string=\"false\"",
            };
            quoted(&format!("{}{quote}{}{quote}{kind}>{line}", elements.parameter, member.name))
        };
        let members = marked_members(writer, tool, before, Marker::spelled(elements.value_end))?;
        let begins = quoted(&format!("\n{}{quote}{}{quote}>\n", elements.call, tool.name));
        let ends = quoted(&format!("{}\n", elements.call_end));
        let (opens, closes) = (writer.marker(elements.opens), writer.marker(elements.closes));
        Ok(format!("{opens} {begins} {members} {ends} {closes}"))
    };
    tools.iter().map(call).collect()
}
