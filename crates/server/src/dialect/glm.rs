//! GLM: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>`. A string stands as it is,
//! anything else as JSON, and only the function's schema tells which.

use serde_json::Value;

use super::function::{Function, is_name};
use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::markers;
use super::members::{Member, marked_members};
use super::part::{Part, push_part};
use super::reading::{OwnReader, ReadStep, Reading, TextEnd};
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

markers! {
    TOOL_CALL = "<tool_call>";
    TOOL_CALL_END = "</tool_call>";
    KEY = "<arg_key>";
    KEY_END = "</arg_key>";
    VALUE = "<arg_value>";
    VALUE_END = "</arg_value>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "GLM-4.5 and later, Ling 3, Laguna",
    written: "<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>…</tool_call>",
    told: None,
    is_shown: |call| {
        let after = call.after.trim_start();
        call.before.ends_with(TOOL_CALL.text) && after.starts_with("<arg_key>called_key</arg_key>")
    },
    has_special_tokens: true,
    spelled: &[],
    controls: &[TOOL_CALL, TOOL_CALL_END, KEY, KEY_END, VALUE, VALUE_END],
    form: CallForm::Marked(MarkedCalls {
        between: &[TOOL_CALL_END],
        ..MarkedCalls::new(TOOL_CALL, CallStart::Own(|| Box::new(CallReader::Name)))
    }),
    grammar,
};

/// Reads a call behind its marker.
#[derive(Clone, Debug)]
enum CallReader {
    /// A name, up to the first key or the end of the call.
    Name,
    /// Keys and values of this function, of which so many came before.
    Members { function: Function, count: usize },
}

impl OwnReader for CallReader {
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        match self {
            Self::Name => self.name(reading, parts, end),
            Self::Members { function, count } => member(function, count, reading, parts, end),
        }
    }

    fn boxed(&self) -> Box<dyn OwnReader> {
        Box::new(self.clone())
    }
}

impl CallReader {
    fn name(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let text = reading.buffer.trim_start();
        let length = text.find(|c: char| !is_name(c));
        let (name, rest) = text.split_at(length.unwrap_or(text.len()));
        let rest = rest.trim_start();
        let markers = [KEY, TOOL_CALL_END, TOOL_CALL].map(|marker| reading.in_calls(marker));
        // A call of a function that is offered may lack its end, too.
        let has_ended = end == TextEnd::Ended && rest.is_empty() && reading.is_offered(name);
        if !name.is_empty() && (has_ended || markers.iter().any(|marker| rest.starts_with(marker))) {
            let known = reading.function(name).cloned();
            let function = known.unwrap_or_else(|| Function { name: name.to_owned(), strings: Vec::new() });
            reading.hold_before(rest.to_owned());
            parts.push(Part::Call { name: function.name.clone() });
            push_part(parts, Part::Arguments("{".to_owned()));
            reading.called(&function.name);
            *self = Self::Members { function, count: 0 };
            return ReadStep::GoOn;
        }
        let may_come = text.is_empty() || (!name.is_empty() && markers.iter().any(|marker| marker.starts_with(rest)));
        if end == TextEnd::No && may_come {
            return ReadStep::Wait;
        }
        // It is no call after all: the text is what the model said, and one may follow.
        reading.give_back(parts, false, "");
        ReadStep::Content
    }
}

/// The next key with its value, as a member of an object; or the end of that.
fn member(
    function: &Function,
    count: &mut usize,
    reading: &mut Reading,
    parts: &mut Vec<Part>,
    end: TextEnd,
) -> ReadStep {
    let text = reading.buffer.trim_start();
    let (ends, begins) = (reading.in_calls(TOOL_CALL_END), reading.in_calls(KEY));
    let Some(member) = text.strip_prefix(begins) else {
        let may_come = [begins, ends].iter().any(|marker| marker.starts_with(text));
        if may_come && !text.starts_with(ends) && end != TextEnd::Ended {
            return ReadStep::Wait;
        }
        // The end, or text that stands where the end is missing.
        reading.buffer = text.strip_prefix(ends).unwrap_or(text).to_owned();
        push_part(parts, Part::Arguments("}".to_owned()));
        reading.call_is_whole();
        return ReadStep::AfterCall;
    };
    let split = || {
        let (key, rest) = member.split_once(reading.in_calls(KEY_END))?;
        let value = rest.trim_start().strip_prefix(reading.in_calls(VALUE))?;
        let (value, rest) = value.split_once(reading.in_calls(VALUE_END))?;
        Some((key.trim(), value, rest.to_owned()))
    };
    let Some((key, value, rest)) = split() else {
        return match end {
            TextEnd::No => ReadStep::Wait,
            // What is cut is cut.
            TextEnd::Cut => {
                reading.buffer.clear();
                ReadStep::Wait
            }
            TextEnd::Ended => {
                let read = std::mem::take(&mut reading.buffer);
                reading.give_back(parts, true, &read);
                ReadStep::Content
            }
        };
    };
    let is_string = function.strings.iter().any(|name| name == key);
    let value = match serde_json::from_str::<Value>(value) {
        Ok(value) if !is_string => value,
        _ => Value::String(value.to_owned()),
    };
    let comma = if *count > 0 { ", " } else { "" };
    push_part(parts, Part::Arguments(format!("{comma}{}: {value}", Value::String(key.to_owned()))));
    reading.hold_before(rest);
    *count += 1;
    ReadStep::GoOn
}

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let before = |writer: &GrammarWriter, member: &Member| {
            let [key, key_end, value] = [KEY, KEY_END, VALUE].map(|marker| writer.marker(marker));
            format!("{key} {} {key_end} {value}", quoted(member.name))
        };
        let members = marked_members(writer, tool, before, VALUE_END)?;
        let (begins, ends) = (writer.marker(TOOL_CALL), writer.marker(TOOL_CALL_END));
        Ok(format!("{begins} {} {members} {ends}", quoted(&tool.name)))
    };
    tools.iter().map(call).collect()
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open, Tagged};
    use crate::dialect::ToolSyntax::Glm;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_by_id, check_ended, reply};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<tool_call>called_function\n<arg_key>called_key</arg_key>\n<arg_value>called_value</arg_value>"
            ),
            Some(Glm)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Glm,
            &[
                (
                    Tagged,
                    "<think>hm</think>Sure.\n<tool_call>f<arg_key>s</arg_key><arg_value>5</arg_value><arg_key>n</arg_key>\
             <arg_value>5</arg_value><arg_key>t</arg_key><arg_value>a \"b\"</arg_value></tool_call>\n<tool_call>g_2\n</tool_call>",
                    reply("hm", "Sure.\n", &[("f", "{\"s\": \"5\", \"n\": 5, \"t\": \"a \\\"b\\\"\"}"), ("g_2", "{}")]),
                ),
                (
                    Plain,
                    "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>{\"a\": [1]}</arg_value>\n</tool_call>",
                    reply("", "", &[("f", "{\"n\": {\"a\":[1]}}")]),
                ),
                (Plain, "<tool_call>two words</tool_call>", reply("", "<tool_call>two words</tool_call>", &[])),
                (
                    Plain,
                    "<tool_call>f<arg_key>n</arg_key><arg_value>1</arg_value><arg_key>m</arg_key><arg_va",
                    reply("", "", &[("f", "{\"n\": 1")]),
                ),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Glm,
            &[
                // What ends a call is missing.
                (Plain, "<tool_call>f<arg_key>n</arg_key><arg_value>5</arg_value>", called("{\"n\": 5}")),
                (Plain, "<tool_call>f", called("{}")),
                (Plain, "<tool_call>f<tool_call>g_2</tool_call>", reply("", "", &[("f", "{}"), ("g_2", "{}")])),
                // Members that are no JSON, names that contradict each other, and no name.
                (Plain, "<tool_call>f<arg_key>n</arg_key><arg", reply("", "<tool_call>f<arg_key>n</arg_key><arg", &[])),
            ],
        );
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            Glm,
            &[
                (
                    Open,
                    "Not </think> but*</think>Sure: <tool_call>f</tool_call> is *<tool_call>f\n*<arg_key>s*</arg_key>\n\
             *<arg_value></arg_value> & </tool_call>*</arg_value>*<arg_key>n*</arg_key>*<arg_value>5*</arg_value>*</tool_call>",
                    reply(
                        "Not </think> but",
                        "Sure: <tool_call>f</tool_call> is ",
                        &[("f", "{\"s\": \"</arg_value> & </tool_call>\", \"n\": 5}")],
                    ),
                ),
                (Plain, "*<tool_call>f</tool_call>", reply("", "<tool_call>f</tool_call>", &[])),
                (Plain, "*<tool_call>]*<tool_call>f*</tool_call>", reply("", "<tool_call>]", &[("f", "{}")])),
            ],
        );
    }
}
