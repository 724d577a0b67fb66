//! functionary 3.2: all of a text is messages, each behind the name of whom it is for: `>>>all`, a line's end and what the
//! user is to see, or `>>>name`, a line's end and the arguments of a call. The prompt ends with the first `>>>`.

use super::call_reader::CallReader;
use super::grammar::{Callable, GrammarWriter, quoted};
use super::part::{Part, push_part};
use super::reading::{OwnReader, ReadStep, Reading, TextEnd, take_until};
use super::{CallForm, Dialect};
use crate::error::ApiError;

/// What stands before whom a message is for.
const OPENER: &str = ">>>";

/// The name of the user.
const ALL: &str = "all";

pub(super) static DIALECT: Dialect = Dialect {
    families: "functionary 3.2",
    written: ">>>name {…}",
    told: None,
    is_shown: |call| call.before.ends_with(OPENER) && call.after.starts_with("\n{"),
    has_special_tokens: false,
    spelled: &[],
    controls: &[],
    form: CallForm::Leading { reader: || Box::new(RecipientReader::Begin), between: &[], frames_all: true },
    grammar,
};

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let arguments = writer.json(tool.parameters.clone());
        format!("{} {arguments}", quoted(&format!("{}\n", tool.name)))
    };
    Ok(tools.iter().map(call).collect())
}

/// Whom a message is for, as far as its text says it.
enum Recipient {
    /// The text may go on to say it.
    Unsaid,
    User,
    Function(String),
    /// The text is no message.
    Nobody,
}

/// Reads such messages.
#[derive(Clone, Debug)]
enum RecipientReader {
    /// The beginning of the text. Some models write what the prompt has written.
    Begin,
    /// What the user is to see.
    Shown,
    /// Behind `>>>` in a text, which may be one of its own.
    Header,
    Call(CallReader),
    /// Behind a call.
    Behind,
}

impl OwnReader for RecipientReader {
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let ended = end != TextEnd::No;
        match self {
            Self::Begin => {
                if let Some(message) = reading.buffer.strip_prefix(OPENER) {
                    reading.buffer = message.to_owned();
                    *self = Self::Header;
                    return ReadStep::GoOn;
                }
                if OPENER.starts_with(&reading.buffer) && !ended {
                    return ReadStep::Wait;
                }
                self.header("", reading, parts, ended)
            }
            Self::Header => self.header(OPENER, reading, parts, ended),
            Self::Shown => {
                let (text, found) = take_until(&mut reading.buffer, OPENER, ended);
                push_part(parts, Part::Content(text));
                if !found {
                    return ReadStep::Wait;
                }
                *self = Self::Header;
                ReadStep::GoOn
            }
            Self::Call(call) => {
                let next = reading.buffer.trim_start();
                let is_next = next.starts_with(OPENER) || (!next.is_empty() && OPENER.starts_with(next) && !ended);
                if call.is_blank() && is_next && !next.starts_with(OPENER) {
                    return ReadStep::Wait;
                }
                if call.is_blank() && is_next {
                    call.leave_out();
                }
                match call.advance(reading, parts, end) {
                    None => *self = Self::Behind,
                    Some(ReadStep::Content) => *self = Self::Shown,
                    Some(step) => return step,
                }
                ReadStep::GoOn
            }
            Self::Behind => {
                let rest = reading.buffer.trim_start().to_owned();
                if let Some(message) = rest.strip_prefix(OPENER) {
                    reading.buffer = message.to_owned();
                    *self = Self::Header;
                } else if OPENER.starts_with(&rest) && (rest.is_empty() || !ended) {
                    return ReadStep::Wait;
                } else {
                    *self = Self::Shown;
                }
                ReadStep::GoOn
            }
        }
    }

    fn boxed(&self) -> Box<dyn OwnReader> {
        Box::new(self.clone())
    }
}

impl RecipientReader {
    /// Reads whom a message is for; `opener` stands before it in the text.
    fn header(&mut self, opener: &str, reading: &mut Reading, parts: &mut Vec<Part>, ended: bool) -> ReadStep {
        match recipient(reading, ended) {
            Recipient::Unsaid => return ReadStep::Wait,
            Recipient::User => {
                reading.buffer.drain(..(ALL.len() + 1).min(reading.buffer.len()));
                *self = Self::Shown;
            }
            Recipient::Function(name) => {
                let line = name.len() + 1;
                reading.held = Some(format!("{opener}{}", &reading.buffer[..line]));
                reading.buffer.drain(..line);
                *self = Self::Call(CallReader::arguments(name));
            }
            Recipient::Nobody => {
                push_part(parts, Part::Content(opener.to_owned()));
                *self = Self::Shown;
            }
        }
        ReadStep::GoOn
    }
}

/// Whom the message at the beginning of the buffer is for: only a function that is offered is called.
fn recipient(reading: &Reading, ended: bool) -> Recipient {
    match reading.buffer.split_once('\n') {
        Some((ALL, _)) => Recipient::User,
        Some((name, _)) if reading.is_offered(name) => Recipient::Function(name.to_owned()),
        Some(_) => Recipient::Nobody,
        // Nothing is left of a message to the user that ends, or is cut, before it has begun.
        None if ended && reading.buffer == ALL => Recipient::User,
        None if ended => Recipient::Nobody,
        None if ALL.starts_with(&reading.buffer) || reading.may_be_offered(&reading.buffer) => Recipient::Unsaid,
        None => Recipient::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Recipients;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(recognised(">>>called_function\n{\"called_key\": \"called_value\"}"), Some(Recipients));
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Recipients,
            &[
                (
                    Plain,
                    "all\nSure.>>>f\n{\"x\": 1}>>>g_2\n{}",
                    reply("", "Sure.", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
                ),
                (
                    Plain,
                    "f\n{\"x\": \">>>all\\n\"}\n>>>all\nDone.",
                    reply("", "Done.", &[("f", "{\"x\": \">>>all\\n\"}")]),
                ),
                // A prompt of Python's in what the user sees, and a function that is not offered.
                (Plain, "all\n>>> print(1)\n>>>h\n{}", text(">>> print(1)\n>>>h\n{}")),
                (Plain, "all the same", text("all the same")),
                (Plain, "fine", text("fine")),
                (Plain, "f\n{\"cut", reply("", "", &[("f", "{\"cut")])),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Recipients,
            &[
                // What the prompt has written is written again, and there are no arguments.
                (Plain, ">>>f\n>>>g_2\n", reply("", "", &[("f", "{}"), ("g_2", "{}")])),
                (Plain, "f\n{x}", text("f\n{x}")),
                (Plain, "all\nx>>>f\n[1]", text("x>>>f\n[1]")),
                (Plain, "all", text("")),
            ],
        );
    }
}
