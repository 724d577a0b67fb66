//! gpt-oss: messages with channels, `<|channel|>analysis<|message|>…<|end|><|start|>assistant…`. A message to a
//! function is a call of it: `<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>`.

use super::call_reader::CallReader;
use super::function::is_name;
use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::{Marker, markers};
use super::part::{Part, push_part};
use super::reading::{OwnReader, ReadStep, Reading, TextEnd, kept};
use super::{CallForm, Dialect};
use crate::error::ApiError;

markers! {
    START = "<|start|>";
    CHANNEL = "<|channel|>";
    CONSTRAIN = "<|constrain|>";
    MESSAGE = "<|message|>";
    END = "<|end|>";
    CALL = "<|call|>";
    RETURN = "<|return|>";
}

/// The tokens that messages are written with, calls among them.
pub(super) const CONTROLS: &[Marker] = &[START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];

pub(super) static DIALECT: Dialect = Dialect {
    families: "gpt-oss",
    written: "<|channel|>commentary to=functions.name <|constrain|>json<|message|>{…}<|call|>",
    told: None,
    is_shown: |call| call.before.ends_with("to=functions.") && call.after.starts_with("<|channel|>commentary"),
    has_special_tokens: true,
    spelled: &[],
    controls: CONTROLS,
    form: CallForm::Messages,
    grammar,
};

/// Whether a rendered conversation has this answer of the assistant's as a message of the channel for the user.
pub(crate) fn shows_final_message(text: &str, answer: &str) -> bool {
    text.contains(&format!("<|channel|>final<|message|>{answer}"))
}

/// Reads a text that is messages.
#[derive(Clone, Debug)]
pub(crate) enum MessageReader {
    /// What stands before a message, up to `<|message|>`.
    Header,
    /// A message of thoughts.
    Analysis,
    /// A message that the user is to see: `final`, and `commentary` to nobody.
    Shown,
    /// A message to a function.
    Call(CallReader),
}

impl OwnReader for MessageReader {
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        match self {
            Self::Header => self.header(reading, parts, end != TextEnd::No),
            _ => self.message(reading, parts, end),
        }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self, Self::Analysis)
    }

    fn boxed(&self) -> Box<dyn OwnReader> {
        Box::new(self.clone())
    }
}

impl MessageReader {
    fn header(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, ended: bool) -> ReadStep {
        let beginnings = [reading.in_reasoning(START), reading.in_reasoning(CHANNEL), " to="];
        let is_header = beginnings.iter().any(|beginning| reading.buffer.starts_with(beginning));
        let may_be = beginnings.iter().any(|beginning| beginning.starts_with(reading.buffer.as_str()));
        if !is_header && (reading.buffer.is_empty() || (may_be && !ended)) {
            return ReadStep::Wait;
        }
        if !is_header {
            // No message of any channel: the text is what the model said.
            return ReadStep::Content;
        }
        let begins = reading.in_reasoning(MESSAGE);
        let Some(at) = reading.buffer.find(begins) else {
            if ended {
                push_part(parts, Part::Content(std::mem::take(&mut reading.buffer)));
            }
            return ReadStep::Wait;
        };
        let message = reading.buffer.split_off(at + begins.len());
        let header = std::mem::replace(&mut reading.buffer, message);
        let name_of = |to: &str| to.split(|c| !is_name(c)).next().unwrap_or_default().to_owned();
        // The model may leave out that it is a function.
        let to = header.split_once("to=functions.").map(|(_, to)| name_of(to)).or_else(|| {
            let name = header.split_once("to=").map(|(_, to)| name_of(to));
            name.filter(|name| reading.is_offered(name))
        });
        let names = |channel: &str| {
            header.split_once(reading.in_reasoning(CHANNEL)).is_some_and(|(_, named)| named.starts_with(channel))
        };
        *self = match to {
            Some(name) if !name.is_empty() => {
                reading.held = Some(header);
                Self::Call(CallReader::arguments(name))
            }
            _ if names("analysis") => Self::Analysis,
            _ => Self::Shown,
        };
        ReadStep::GoOn
    }

    fn message(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let ended = end != TextEnd::No;
        let next = reading.in_reasoning(START);
        let [message_end, call_end, text_end] = [END, CALL, RETURN].map(|end| reading.in_reasoning(end));
        let ends = [message_end, call_end, text_end, next];
        let first = ends.into_iter().filter_map(|end| Some((reading.buffer.find(end)?, end))).min();
        let text = match first {
            Some((at, end)) => {
                let rest = reading.buffer.split_off(if end == next { at } else { at + end.len() });
                let mut text = std::mem::replace(&mut reading.buffer, rest);
                text.truncate(at);
                text
            }
            None => {
                // What may be the beginning of an end waits.
                let keep = |end: &&str| kept(&reading.buffer, end);
                let keep = if ended { 0 } else { ends.iter().map(keep).max().unwrap_or(0) };
                let rest = reading.buffer.split_off(reading.buffer.len() - keep);
                std::mem::replace(&mut reading.buffer, rest)
            }
        };
        let is_over = first.is_some() || (ended && matches!(self, Self::Call(_)));
        match self {
            Self::Analysis => push_part(parts, Part::Reasoning(text)),
            Self::Shown | Self::Header => push_part(parts, Part::Content(text)),
            Self::Call(reader) => {
                // All of the message, for the case that it is none.
                let behind = text[reader.push(&text)..].to_owned();
                // The token that ends a call ends the text, and is no part of it.
                if is_over && (first.is_some() || end == TextEnd::Ended) {
                    reader.end();
                }
                let announced = reader.announced;
                reader.take_parts(parts);
                if reader.has_failed() {
                    let read = format!("{}{behind}", reader.raw);
                    reading.give_back(parts, announced, &read);
                    *self = Self::Shown;
                } else if is_over && reader.is_whole() {
                    reading.called(reader.name.as_deref().unwrap_or_default());
                    reading.call_is_whole();
                }
            }
        }
        if !is_over {
            return ReadStep::Wait;
        }
        *self = Self::Header;
        ReadStep::GoOn
    }
}

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let arguments = writer.json(tool.parameters.clone());
        let [channel, kind, begins] = [CHANNEL, CONSTRAIN, MESSAGE].map(|marker| writer.marker(marker));
        let header = quoted(&format!("commentary to=functions.{} ", tool.name));
        // The token that would end the message ends the text.
        format!("{channel} {header} {kind} \"json\" {begins} {arguments}")
    };
    Ok(tools.iter().map(call).collect())
}

/// Thoughts that may stand before a call or an answer, and the beginning of the message behind them.
pub(super) fn grammar_of_thoughts(writer: &mut GrammarWriter) -> String {
    let [channel, begins, starts] = [CHANNEL, MESSAGE, START].map(|marker| writer.marker(marker));
    let thoughts = writer.text_until(END);
    format!("({channel} \"analysis\" {begins} {thoughts} {starts} \"assistant\")?")
}

/// The message with an answer.
pub(super) fn grammar_of_answer(writer: &GrammarWriter, answer: &str) -> String {
    let [channel, begins] = [CHANNEL, MESSAGE].map(|marker| writer.marker(marker));
    format!("{channel} \"final\" {begins} {answer}")
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::Channels;
    use crate::dialect::ToolSyntax::Harmony;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<|start|>assistant to=functions.called_function<|channel|>commentary json<|message|>{}<|call|>"
            ),
            Some(Harmony)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Harmony,
            &[
                (
                    Channels,
                    "<|channel|>analysis<|message|>I < think<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>\
             <|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\": \"<|\"}",
                    reply("I < think", "Let me see.", &[("f", "{\"x\": \"<|\"}")]),
                ),
                (
                    Channels,
                    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>commentary \
             to=functions.g_2<|message|>{\"a\": 1}<|call|>",
                    reply("", "", &[("f", "{}"), ("g_2", "{\"a\": 1}")]),
                ),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Harmony,
            &[
                // Arguments as a string, as nothing, and left out, in each form.
                (Channels, "<|channel|>commentary to=functions.f<|message|><|call|>", called("{}")),
                (Channels, "<|channel|>commentary to=f<|message|>\"{\\\"x\\\": 1}\"", called(r#"{"x": 1}"#)),
                // Members that are no JSON, names that contradict each other, and no name.
                (
                    Channels,
                    "<|channel|>commentary to=functions.f<|message|>{x}<|call|>",
                    text("<|channel|>commentary to=functions.f<|message|>{x}"),
                ),
            ],
        );
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            Harmony,
            &[
                (
                    Channels,
                    "*<|channel|>analysis*<|message|>It is <|end|><|start|>assistant<|channel|>final<|message|>x.*<|end|>*<|start|>\
             assistant*<|channel|>commentary to=functions.f *<|constrain|>json*<|message|>{\"x\": \"<|call|>\"}*<|call|>",
                    reply(
                        "It is <|end|><|start|>assistant<|channel|>final<|message|>x.",
                        "",
                        &[("f", "{\"x\": \"<|call|>\"}")],
                    ),
                ),
                (Channels, "<|channel|>analysis<|message|>x", reply("", "<|channel|>analysis<|message|>x", &[])),
            ],
        );
    }
}
