//! Calls that are expressions, `name(key=value, …)`, as Python writes them or in a like way. Several families write
//! calls like this; they differ in what stands around a call, and in how they write values.

use serde_json::Value;

use super::call_reader::CallReader;
use super::function::is_name;
use super::grammar::{Callable, GrammarWriter, quoted};
use super::literal::{NoValue, Notation, Scanner};
use super::marker::Marker;
use super::members::{Member, members, text_value};
use super::part::{Part, push_part};
use super::reading::{OwnReader, ReadStep, Reading, TextEnd};
use crate::error::ApiError;

/// How a family writes calls.
#[derive(Debug)]
pub(super) struct Expressions {
    /// Where calls are all of the content, and the name of a function that is offered is all that tells them: what may
    /// stand before them.
    pub(super) bare_tags: Option<&'static [&'static str]>,
    /// Calls stand in a list.
    pub(super) has_list: bool,
    /// Stands before a name.
    pub(super) prefix: &'static str,
    /// Stands between a name and the first argument.
    pub(super) opens: &'static str,
    /// Stands between a key and a value.
    pub(super) equals: &'static str,
    /// Stands behind the last argument.
    pub(super) closes: &'static str,
    /// How values are written, where markers count by their text and by their ids.
    pub(super) notations: [Notation; 2],
    /// Stands around a string; without one, strings are JSON's in a grammar.
    pub(super) quote: Option<Marker>,
}

/// Reads calls, behind their marker if they have one.
#[derive(Clone, Debug)]
pub(super) struct ExpressionReader {
    style: &'static Expressions,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// The beginning: of the content, or behind the marker.
    Start,
    /// A name, and what opens its arguments.
    Name,
    /// An argument, of which so many came before, or the end of the call.
    Arguments { count: usize },
    /// A call that is an object with a name and arguments, as these models sometimes write it.
    Object(CallReader),
    /// Behind a call, where another may stand.
    Next,
}

impl ExpressionReader {
    pub(super) fn boxed_new(style: &'static Expressions) -> Box<dyn OwnReader> {
        Box::new(Self { style, state: State::Start })
    }
}

impl OwnReader for ExpressionReader {
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        match &mut self.state {
            State::Start => self.start(reading, parts, end),
            State::Name => self.name(reading, parts, end),
            State::Arguments { count } => {
                let count = *count;
                self.argument(count, reading, parts, end)
            }
            State::Object(_) => self.object(reading, parts, end),
            State::Next => self.next(reading, end),
        }
    }

    fn boxed(&self) -> Box<dyn OwnReader> {
        Box::new(self.clone())
    }
}

impl Expressions {
    fn scanner<'t>(&self, text: &'t str, reading: &Reading) -> Scanner<'t> {
        Scanner::new(text, self.notations[usize::from(reading.by_id.calls)])
    }
}

/// The name at the beginning of a call, and what stands behind what opens its arguments.
fn name<'t>(style: &Expressions, mut scanner: Scanner<'t>) -> Result<(&'t str, &'t str), NoValue> {
    scanner.skip_space();
    if !scanner.take(style.prefix)? {
        return Err(NoValue::Wrong);
    }
    let name = scanner.word(is_name)?;
    if name.is_empty() || !scanner.take(style.opens)? {
        return Err(NoValue::Wrong);
    }
    Ok((name, scanner.rest()))
}

/// A key with its value.
type Argument = (String, Value);

/// The next argument, and what stands behind it and a comma. Without one, the arguments end there.
fn argument<'t>(style: &Expressions, mut scanner: Scanner<'t>) -> Result<(Option<Argument>, &'t str), NoValue> {
    scanner.skip_space();
    if scanner.take(style.closes)? {
        return Ok((None, scanner.rest()));
    }
    let key = if style.equals == ":" {
        scanner.key()?
    } else {
        let key = scanner.word(|c| c.is_alphanumeric() || c == '_')?;
        scanner.skip_space();
        if key.is_empty() || !scanner.take(style.equals)? {
            return Err(NoValue::Wrong);
        }
        key.to_owned()
    };
    let value = scanner.value()?;
    scanner.skip_space();
    if !scanner.take(",")? {
        let rest = scanner.rest();
        return if scanner.take(style.closes)? { Ok((Some((key, value)), rest)) } else { Err(NoValue::Wrong) };
    }
    Ok((Some((key, value)), scanner.rest()))
}

impl ExpressionReader {
    fn start(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let mut text = reading.buffer.trim_start();
        if let Some(tags) = self.style.bare_tags {
            let tag = tags.iter().find(|tag| text.starts_with(**tag));
            let may_be_tag = tags.iter().any(|tag| tag.starts_with(text));
            text = tag.map_or(text, |tag| text[tag.len()..].trim_start());
            let first = text.strip_prefix('[').map(|list| name(self.style, self.style.scanner(list, reading)));
            let (is_call, may_come) = match first {
                Some(Ok((name, _))) => (reading.is_offered(name), false),
                Some(Err(NoValue::Cut)) => (false, true),
                Some(Err(NoValue::Wrong)) => (false, false),
                None => (false, text.is_empty() || may_be_tag),
            };
            if !is_call {
                return if may_come && end == TextEnd::No { ReadStep::Wait } else { ReadStep::Content };
            }
            reading.held = Some(String::new());
        } else if self.style.has_list && text.is_empty() && end == TextEnd::No {
            return ReadStep::Wait;
        }
        if self.style.has_list && text.starts_with('[') {
            reading.hold_before(text[1..].to_owned());
        }
        self.state = State::Name;
        self.name(reading, parts, end)
    }

    fn name(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let text = reading.buffer.trim_start();
        let is_list = self.style.has_list;
        if is_list && text.starts_with('{') {
            reading.hold_before(text.to_owned());
            self.state = State::Object(CallReader::object());
            return ReadStep::GoOn;
        }
        if is_list && reading.num_calls > 0 && reading.held.as_deref() == Some(",") && text.starts_with(']') {
            // A comma behind the last call, which Python allows.
            reading.held = None;
            self.state = State::Next;
            return ReadStep::GoOn;
        }
        match name(self.style, self.style.scanner(text, reading)) {
            Ok((name, rest)) => {
                let (name, rest) = (name.to_owned(), rest.to_owned());
                reading.hold_before(rest);
                reading.called(&name);
                parts.push(Part::Call { name });
                push_part(parts, Part::Arguments("{".to_owned()));
                self.state = State::Arguments { count: 0 };
                ReadStep::GoOn
            }
            Err(NoValue::Cut) if end == TextEnd::No => ReadStep::Wait,
            Err(NoValue::Cut) if end == TextEnd::Cut => {
                // Nothing is wrong with what is there.
                push_part(parts, Part::Content(reading.held.take().unwrap_or_default()));
                ReadStep::Content
            }
            Err(_) => {
                reading.give_back(parts, false, "");
                ReadStep::Content
            }
        }
    }

    fn argument(&mut self, count: usize, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        match argument(self.style, self.style.scanner(&reading.buffer, reading)) {
            Ok((Some((key, value)), rest)) => {
                let comma = if count > 0 { ", " } else { "" };
                push_part(parts, Part::Arguments(format!("{comma}{}: {value}", Value::String(key))));
                reading.hold_before(rest.to_owned());
                self.state = State::Arguments { count: count + 1 };
                ReadStep::GoOn
            }
            Ok((None, rest)) => {
                push_part(parts, Part::Arguments("}".to_owned()));
                reading.buffer = rest.to_owned();
                reading.call_is_whole();
                self.state = State::Next;
                ReadStep::GoOn
            }
            Err(NoValue::Cut) if end == TextEnd::No => ReadStep::Wait,
            Err(NoValue::Cut) if end == TextEnd::Cut => {
                // What is cut is cut.
                reading.buffer.clear();
                ReadStep::Wait
            }
            Err(_) => {
                reading.give_back(parts, true, "");
                ReadStep::Content
            }
        }
    }

    fn object(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let State::Object(reader) = &mut self.state else { return ReadStep::Content };
        if let Some(step) = reader.advance(reading, parts, end) {
            return step;
        }
        self.state = State::Next;
        ReadStep::GoOn
    }

    fn next(&mut self, reading: &mut Reading, end: TextEnd) -> ReadStep {
        if !self.style.has_list {
            return ReadStep::AfterCall;
        }
        let text = reading.buffer.trim_start();
        if let Some(rest) = text.strip_prefix(',') {
            reading.held = Some(",".to_owned());
            reading.buffer = rest.to_owned();
            self.state = State::Name;
            return ReadStep::GoOn;
        }
        if let Some(rest) = text.strip_prefix(']') {
            reading.buffer = rest.to_owned();
        } else if text.is_empty() && end == TextEnd::No {
            return ReadStep::Wait;
        }
        ReadStep::AfterCall
    }
}

/// A call of each tool, with values in JSON, which all these notations are read with.
pub(super) fn grammar(
    style: &'static Expressions,
    around: [String; 2],
    writer: &mut GrammarWriter,
    tools: &[Callable],
) -> Result<Vec<String>, ApiError> {
    let comma = quoted(if style.equals == ":" { "," } else { ", " });
    let call = |tool: &Callable| {
        // Each tail is the arguments behind one that stands there; the last is empty.
        let mut tail = String::new();
        let mut all = String::new();
        for member in members(tool)?.into_iter().rev() {
            let begins = quoted(&format!("{}{}", member.name, style.equals));
            let is_required = member.is_required;
            let value = value(style, writer, tool, member)?;
            // The first argument has no comma before it, and one that may be left out leaves the next to be first.
            all = match (is_required, all.is_empty()) {
                (true, _) => format!("{begins} {value} {tail}"),
                (false, true) => format!("({begins} {value} {tail})?"),
                (false, false) => format!("({begins} {value} {tail} | {all})"),
            };
            let optional = if is_required { "" } else { "?" };
            let rest = format!("({comma} {begins} {value}){optional} {tail}");
            tail = writer.rule("tail", "", rest.trim());
        }
        let begins = quoted(&format!("{}{}{}", style.prefix, tool.name, style.opens));
        let [before, after] = &around;
        Ok(format!("{before} {begins} {all} {} {after}", quoted(style.closes)))
    };
    tools.iter().map(call).collect()
}

/// The value of an argument.
fn value(style: &Expressions, writer: &mut GrammarWriter, tool: &Callable, member: Member) -> Result<String, ApiError> {
    let Some(quote) = style.quote.filter(|_| member.is_string) else {
        return Ok(writer.json(member.schema));
    };
    let text = text_value(writer, tool, &member, quote)?;
    Ok(format!("{} {text}", writer.marker(quote)))
}
