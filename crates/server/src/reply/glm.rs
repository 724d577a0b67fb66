//! Calls as GLM writes them: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`.

use serde_json::Value;

use super::{
    End, Function, GLM_KEY, GLM_KEY_END, GLM_VALUE, GLM_VALUE_END, Mode, Part, ReplyReader, TOOL_CALL, TOOL_CALL_END,
    push_part,
};

impl ReplyReader {
    pub(super) fn glm_name(&mut self, parts: &mut Vec<Part>, end: End) -> bool {
        let text = self.buffer.trim_start();
        let length = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')));
        let (name, rest) = text.split_at(length.unwrap_or(text.len()));
        let rest = rest.trim_start();
        let markers = [GLM_KEY, TOOL_CALL_END, TOOL_CALL].map(|marker| self.in_calls(marker));
        // A call of a function that is offered may lack its end, too.
        let has_ended = end == End::Ended && rest.is_empty() && self.is_offered(name);
        if !name.is_empty() && (has_ended || markers.iter().any(|marker| rest.starts_with(marker))) {
            let known = self.functions.iter().find(|function| function.name == name).cloned();
            let function = known.unwrap_or_else(|| Function { name: name.to_owned(), strings: Vec::new() });
            let rest = rest.to_owned();
            let read = self.buffer[..self.buffer.len() - rest.len()].to_owned();
            self.hold(&read);
            parts.push(Part::Call { name: function.name.clone() });
            push_part(parts, Part::Arguments("{".to_owned()));
            self.called(&function.name);
            self.called = Some(function);
            self.buffer = rest;
            self.mode = Mode::GlmArguments(0);
            return true;
        }
        let may_come = text.is_empty() || (!name.is_empty() && markers.iter().any(|marker| marker.starts_with(rest)));
        if end == End::No && may_come {
            return false;
        }
        // It is no call after all: the text is what the model said, and one may follow.
        self.give_back(parts, false, "");
        self.mode = Mode::Content;
        true
    }

    /// The next key with its value, as a member of an object; or the end of that.
    pub(super) fn glm_arguments(&mut self, count: usize, parts: &mut Vec<Part>, end: End) -> bool {
        let text = self.buffer.trim_start();
        let (ends, begins) = (self.in_calls(TOOL_CALL_END), self.in_calls(GLM_KEY));
        let Some(member) = text.strip_prefix(begins) else {
            let may_come = [begins, ends].iter().any(|marker| marker.starts_with(text));
            if may_come && !text.starts_with(ends) && end != End::Ended {
                return false;
            }
            // The end, or text that stands where the end is missing.
            self.buffer = text.strip_prefix(ends).unwrap_or(text).to_owned();
            push_part(parts, Part::Arguments("}".to_owned()));
            self.num_calls += 1;
            self.held = None;
            self.mode = Mode::AfterCall;
            return true;
        };
        let split = || {
            let (key, rest) = member.split_once(self.in_calls(GLM_KEY_END))?;
            let value = rest.trim_start().strip_prefix(self.in_calls(GLM_VALUE))?;
            let (value, rest) = value.split_once(self.in_calls(GLM_VALUE_END))?;
            Some((key.trim(), value, rest.to_owned()))
        };
        let Some((key, value, rest)) = split() else {
            match end {
                End::No => {}
                // What is cut is cut.
                End::Cut => self.buffer.clear(),
                End::Ended => {
                    let read = std::mem::take(&mut self.buffer);
                    self.give_back(parts, true, &read);
                    self.mode = Mode::Content;
                }
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
        let read = self.buffer[..self.buffer.len() - rest.len()].to_owned();
        self.hold(&read);
        self.buffer = rest;
        self.mode = Mode::GlmArguments(count + 1);
        true
    }
}
