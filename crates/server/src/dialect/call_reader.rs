//! A call, read as it comes: an object with a name and arguments, or the arguments alone.
//!
//! Templates show arguments as an object. Cohere's models call the name `tool_name`, and the arguments are `parameters`
//! there and with Llama 3. Models also write them as a string that holds the object's JSON, as `null`,
//! as an empty string, or leave them out; all of these mean what was meant. Arguments that are an object are given out
//! while they come, the others when they are whole.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::part::{Part, push_part};
use super::reading::{ReadStep, Reading, TextEnd};

/// Reads one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallReader {
    /// All that was read.
    pub(crate) raw: String,
    state: CallState,
    /// The text is the arguments, of a function whose name came before them.
    is_bare: bool,
    pub(crate) name: Option<String>,
    /// The call was given out.
    pub(crate) announced: bool,
    /// A call had begun beyond doubt at some character, whether or not the text was cut there.
    pub(crate) has_begun: bool,
    /// Open objects and lists.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Where the member that is being read begins, and its value.
    member: usize,
    value: Option<usize>,
    /// Whether that value is the arguments.
    in_arguments: bool,
    /// Arguments that are an object, as places in `raw`: where they begin, and what of them was read.
    object: Option<(usize, usize)>,
    /// Arguments that were written in another way, as the object that they mean.
    meant: Option<String>,
    given_out: usize,
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
    pub(crate) fn object() -> Self {
        Self::default()
    }

    pub(crate) fn arguments(name: String) -> Self {
        Self { is_bare: true, name: Some(name), in_arguments: true, ..Self::default() }
    }

    /// Takes what the text holds next of the call's object. Returns what comes of it; `None` once the call is made.
    pub(super) fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> Option<ReadStep> {
        let read = self.push(&reading.buffer);
        reading.buffer.drain(..read);
        if end == TextEnd::Ended {
            self.end();
        }
        let announced = self.announced;
        self.take_parts(parts);
        if self.is_whole() {
            let name = self.name.take().unwrap_or_default();
            reading.called(&name);
            reading.call_is_whole();
            return None;
        }
        if self.has_failed() {
            let raw = std::mem::take(&mut self.raw);
            reading.give_back(parts, announced, &raw);
            return Some(ReadStep::Content);
        }
        if end == TextEnd::Cut && !self.announced {
            // The text was cut in what may have become a call.
            let held = reading.held.take().unwrap_or_default();
            push_part(parts, Part::Content(format!("{held}{}", std::mem::take(&mut self.raw))));
            return Some(ReadStep::Content);
        }
        Some(ReadStep::Wait)
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.state == CallState::Whole
    }

    /// Whether the text is no call.
    pub(crate) fn has_failed(&self) -> bool {
        self.state == CallState::Failed
    }

    /// Whether nothing but space was read.
    pub(crate) fn is_blank(&self) -> bool {
        self.raw.trim_start().is_empty()
    }

    /// Reads up to the end of the call; returns how many bytes that took.
    pub(crate) fn push(&mut self, text: &str) -> usize {
        for (at, character) in text.char_indices() {
            if matches!(self.state, CallState::Whole | CallState::Failed) {
                return at;
            }
            self.raw.push(character);
            self.read(character);
            self.has_begun |= self.is_certain();
        }
        text.len()
    }

    /// The text has ended, and the model has ended it: a call is whole if no more than its last brace is missing, or if
    /// its arguments are missing behind the name that calls them.
    pub(crate) fn end(&mut self) {
        if matches!(self.state, CallState::Whole | CallState::Failed) {
            return;
        }
        if self.is_bare && self.is_blank() {
            self.leave_out();
        } else if !self.is_bare && self.depth == 1 && !self.in_string {
            let written = self.raw.clone();
            self.raw.push('}');
            self.read('}');
            let has_arguments = written.contains("arguments") || written.contains("parameters");
            if !self.is_whole() || !has_arguments {
                self.state = CallState::Failed;
            }
            self.raw = written;
        } else {
            self.state = CallState::Failed;
        }
    }

    /// There are no arguments.
    pub(crate) fn leave_out(&mut self) {
        self.meant = Some("{}".to_owned());
        self.state = CallState::Whole;
    }

    fn read(&mut self, character: char) {
        let at = self.raw.len();
        if self.is_bare && self.depth == 0 {
            self.read_bare(character, at);
            return;
        }
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
        if let Some((_, end)) = self.object.as_mut().filter(|_| self.in_arguments) {
            let is_inside = self.depth > usize::from(!self.is_bare);
            if is_inside {
                *end = at;
            }
        }
    }

    /// Arguments that stand alone, while they are no object.
    fn read_bare(&mut self, character: char, at: usize) {
        let written = self.raw.trim_start();
        match character {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' if self.in_string => {
                self.in_string = false;
                let written = written.to_owned();
                self.mean(&written);
            }
            _ if self.in_string => {}
            _ if written.is_empty() => {}
            '{' if written.len() == 1 => self.open(character, at),
            '"' if written.len() == 1 => self.in_string = true,
            _ if written == "null" => self.leave_out(),
            _ if "null".starts_with(written) => {}
            _ => self.state = CallState::Failed,
        }
    }

    fn open(&mut self, character: char, at: usize) {
        self.depth += 1;
        if self.depth == 1 {
            self.state = if character == '{' { CallState::Inside } else { CallState::Failed };
            self.member = at;
        }
        let begins = self.depth == 1 + usize::from(!self.is_bare);
        if character == '{' && begins && self.in_arguments && self.object.is_none() {
            self.object = Some((at - 1, at));
        }
    }

    fn close(&mut self, at: usize) {
        if self.depth == 0 {
            self.state = CallState::Failed;
            return;
        }
        self.depth -= 1;
        if self.in_arguments
            && self.depth == usize::from(!self.is_bare)
            && let Some((_, end)) = &mut self.object
        {
            *end = at;
        }
        if self.depth > 0 {
            return;
        }
        if self.is_bare {
            let written = self.raw.clone();
            self.mean(written.trim_start());
            return;
        }
        self.end_member(at);
        if self.state == CallState::Failed {
            return;
        }
        if self.name.is_none() {
            self.state = CallState::Failed;
        } else if self.object.is_none() && self.meant.is_none() {
            self.leave_out();
        } else {
            self.state = CallState::Whole;
        }
    }

    fn end_key(&mut self, at: usize) {
        if self.is_bare {
            return;
        }
        self.value = Some(at);
        match serde_json::from_str::<String>(self.raw[self.member..at - 1].trim()) {
            // Two of them would contradict each other.
            Ok(key) if key == "arguments" || key == "parameters" => {
                self.in_arguments = self.object.is_none() && self.meant.is_none();
            }
            Ok(_) => {}
            Err(_) => self.state = CallState::Failed,
        }
    }

    fn end_member(&mut self, at: usize) {
        let value = self.value.take().map(|start| self.raw[start..at - 1].trim().to_owned());
        // A member that is not JSON may hold what the model meant; the call without it would be another call.
        let is_json = match &value {
            Some(value) => serde_json::from_str::<IgnoredAny>(value).is_ok(),
            None => self.is_bare || self.raw[self.member..at - 1].trim().is_empty(),
        };
        if !is_json {
            self.state = CallState::Failed;
        }
        if let Some(value) = value {
            let key =
                serde_json::from_str::<String>(self.raw[self.member..].split(':').next().unwrap_or_default().trim());
            match (key.as_deref(), serde_json::from_str::<Value>(&value)) {
                // A second name would contradict the first, which may be sent already; an empty one names no tool.
                (Ok("name" | "tool_name"), Ok(Value::String(name)))
                    if !name.is_empty() && self.name.as_ref().is_none_or(|known| *known == name) =>
                {
                    self.name = Some(name);
                }
                (Ok("name" | "tool_name"), _) => self.state = CallState::Failed,
                (Ok("arguments" | "parameters"), _) if self.in_arguments => self.mean(&value),
                // The call as it stands in a conversation of OpenAI's interface.
                (Ok("function"), Ok(Value::Object(function)))
                    if self.name.is_none() && self.object.is_none() && self.meant.is_none() =>
                {
                    self.wrapped(&function);
                }
                _ => {}
            }
        }
        if !self.is_bare {
            self.member = at;
            self.in_arguments = false;
        }
    }

    /// Takes a call that stands in a member of its own.
    fn wrapped(&mut self, function: &Map<String, Value>) {
        let Some(name) = function.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) else { return };
        self.name = Some(name.to_owned());
        match function.get("arguments").or_else(|| function.get("parameters")) {
            Some(arguments @ Value::Object(_)) => self.meant = Some(arguments.to_string()),
            Some(arguments) => self.mean(&arguments.to_string()),
            None => self.meant = Some("{}".to_owned()),
        }
    }

    /// Takes arguments that are whole, as they were written.
    fn mean(&mut self, written: &str) {
        let is_object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).is_ok();
        let meant = match serde_json::from_str::<Value>(written) {
            // They are given out as they stand.
            Ok(Value::Object(_)) => None,
            Ok(Value::Null) => Some("{}".to_owned()),
            Ok(Value::String(text)) if text.trim().is_empty() => Some("{}".to_owned()),
            Ok(Value::String(text)) if is_object(&text) => Some(text.trim().to_owned()),
            _ => {
                self.state = CallState::Failed;
                return;
            }
        };
        self.meant = meant;
        if self.is_bare {
            self.state = CallState::Whole;
        }
    }

    /// Whether a call has begun beyond doubt.
    fn is_certain(&self) -> bool {
        let has_begun = self.state == CallState::Inside && (self.object.is_some() || self.meant.is_some());
        self.name.is_some() && (has_begun || self.is_whole())
    }

    /// Gives out what is certain.
    pub(crate) fn take_parts(&mut self, parts: &mut Vec<Part>) {
        let Some(name) = self.name.clone().filter(|_| self.is_certain()) else { return };
        if !self.announced {
            self.announced = true;
            parts.push(Part::Call { name });
        }
        let certain = match (self.object, &self.meant) {
            (Some((start, end)), _) => &self.raw[start..end],
            (None, Some(meant)) => meant,
            (None, None) => return,
        };
        push_part(parts, Part::Arguments(certain[self.given_out..].to_owned()));
        self.given_out = certain.len();
    }
}
