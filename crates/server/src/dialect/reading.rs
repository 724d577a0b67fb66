//! A text that is being taken apart: what the readers of all dialects share.

use std::fmt::Debug;

use super::function::Function;
use super::marker::{ById, Marker};
use super::part::{Part, push_part};

/// The warning about a call that could not be read.
const UNREADABLE: &str = "a call of a tool could not be read, and stands in the text as the model wrote it";

/// Whether the text goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextEnd {
    /// More may come.
    No,
    /// The model has ended it.
    Ended,
    /// It may generate no more.
    Cut,
}

/// What becomes of a call or a message that has a reader of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// Nothing is certain before more text comes.
    Wait,
    /// It goes on with what is there.
    GoOn,
    /// It is over, or was none; content follows.
    Content,
    /// It was a call, and others may follow.
    AfterCall,
}

/// Reads a call, or all messages of a text, that no other dialect writes alike.
pub(crate) trait OwnReader: Debug + Send + Sync {
    /// Takes what is certain out of the buffer.
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep;

    /// Whether what comes next is reasoning.
    fn is_reasoning(&self) -> bool {
        false
    }

    /// The same reader, once more.
    fn boxed(&self) -> Box<dyn OwnReader>;
}

impl Clone for Box<dyn OwnReader> {
    fn clone(&self) -> Self {
        self.boxed()
    }
}

/// What was read of a text and is not given out yet, and what is known of its calls.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// Text that was not taken apart yet.
    pub(crate) buffer: String,
    /// What stands before a call that is being read, from its first marker: if it is no call, that is text again.
    pub(crate) held: Option<String>,
    /// Which tokens are marked by [`super::CONTROL`]: what only looks like one is text.
    pub(crate) by_id: ById,
    /// Calls that are whole.
    pub(crate) num_calls: usize,
    /// Functions that are offered: text that looks like a call of another is text, where the dialect does not tell.
    functions: Vec<Function>,
    /// What a reader of the answer should know of its calls.
    warnings: Vec<String>,
}

impl Reading {
    /// Of an empty text, whose model is offered these functions.
    pub(crate) fn new(functions: Vec<Function>) -> Self {
        let (buffer, warnings) = (String::new(), Vec::new());
        Self { buffer, held: None, by_id: ById::default(), num_calls: 0, functions, warnings }
    }

    /// What a reader of the answer should know of its calls.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Adds a warning, once.
    pub(crate) fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// A call could not be read.
    pub(crate) fn warn_unreadable(&mut self) {
        self.warn(UNREADABLE.to_owned());
    }

    /// The function of this name, if it is offered.
    pub(crate) fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|function| function.name == name)
    }

    /// Whether a function of this name is offered.
    pub(crate) fn is_offered(&self, name: &str) -> bool {
        self.function(name).is_some()
    }

    /// Whether the name of a function that is offered may begin like this.
    pub(crate) fn may_be_offered(&self, beginning: &str) -> bool {
        self.functions.iter().any(|function| function.name.starts_with(beginning))
    }

    /// How a marker of calls stands in the text.
    pub(crate) fn in_calls(&self, marker: Marker) -> &'static str {
        marker.of(self.by_id.calls)
    }

    /// How a marker of reasoning does, or of a message of gpt-oss.
    pub(crate) fn in_reasoning(&self, marker: Marker) -> &'static str {
        marker.of(self.by_id.reasoning)
    }

    /// Adds to what is held, if anything is.
    pub(crate) fn hold(&mut self, text: &str) {
        if let Some(held) = &mut self.held {
            held.push_str(text);
        }
    }

    /// Goes on with `rest`, which ends the buffer, and holds what stands before it.
    pub(crate) fn hold_before(&mut self, rest: String) {
        let read = self.buffer.len() - rest.len();
        let before = std::mem::replace(&mut self.buffer, rest);
        self.hold(&before[..read]);
    }

    /// What was held is no call: it is text again, with what was read behind it.
    pub(crate) fn give_back(&mut self, parts: &mut Vec<Part>, announced: bool, read: &str) {
        let mut text = self.held.take().unwrap_or_default();
        // Without a marker in it, this text alone does not show that a call was meant.
        if text.contains(|character: char| !character.is_whitespace()) {
            self.warn_unreadable();
        }
        text.push_str(read);
        push_part(parts, if announced { Part::NoCall(text) } else { Part::Content(text) });
    }

    /// A call of this function has begun, beyond doubt.
    pub(crate) fn called(&mut self, name: &str) {
        if !self.is_offered(name) {
            self.warn(format!("the model called `{name}`, which is none of the tools that it was offered"));
        }
    }

    /// A call is whole.
    pub(crate) fn call_is_whole(&mut self) {
        self.held = None;
        self.num_calls += 1;
    }
}

/// Takes the text before `marker`, and the marker; without one, all that cannot be its beginning.
pub(crate) fn take_until(buffer: &mut String, marker: &str, ended: bool) -> (String, bool) {
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

/// The same of the first of `markers` that comes, which it names.
pub(crate) fn take_until_any<'m>(buffer: &mut String, markers: &[&'m str], ended: bool) -> (String, Option<&'m str>) {
    let first = markers.iter().filter_map(|marker| Some((buffer.find(marker)?, *marker))).min();
    if let Some((_, marker)) = first {
        return (take_until(buffer, marker, ended).0, Some(marker));
    }
    let keep = markers.iter().map(|marker| kept(buffer, marker)).max().filter(|_| !ended).unwrap_or(0);
    let rest = buffer.split_off(buffer.len() - keep);
    (std::mem::replace(buffer, rest), None)
}

/// Bytes at the end of a text that may be the beginning of `marker`.
pub(super) fn kept(text: &str, marker: &str) -> usize {
    let mut lengths = (1..marker.len()).rev().filter(|&length| marker.is_char_boundary(length));
    lengths.find(|&length| text.ends_with(&marker[..length])).unwrap_or(0)
}
