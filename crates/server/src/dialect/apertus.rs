//! Apertus: `<|tools_prefix|>[{"name": {…}}, …]<|tools_suffix|>`, in which the name is the key of the arguments.

use serde_json::json;

use super::call_reader::CallReader;
use super::grammar::{Callable, GrammarWriter};
use super::literal::{NoValue, PYTHON, Scanner};
use super::marker::markers;
use super::part::{Part, push_part};
use super::reading::{OwnReader, ReadStep, Reading, TextEnd};
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

markers! {
    CALLS = "<|tools_prefix|>";
    CALLS_END = "<|tools_suffix|>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Apertus",
    written: r#"<|tools_prefix|>[{"name": {…}}, …]<|tools_suffix|>"#,
    told: None,
    is_shown: |call| call.is_near(CALLS.text) && call.before.ends_with("{\"") && call.after.starts_with("\": {"),
    has_special_tokens: true,
    spelled: &[],
    controls: &[CALLS, CALLS_END],
    form: CallForm::Marked(MarkedCalls {
        between: &[CALLS_END],
        ..MarkedCalls::new(CALLS, CallStart::Own(|| Box::new(KeyedReader::Between { is_first: true })))
    }),
    grammar,
};

/// Reads calls behind their marker.
#[derive(Clone, Debug)]
enum KeyedReader {
    /// Before a call, or behind the last.
    Between { is_first: bool },
    /// The arguments of one.
    Arguments(CallReader),
    /// The brace behind them.
    Close,
}

impl OwnReader for KeyedReader {
    fn advance(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        match self {
            Self::Between { is_first } => {
                let is_first = *is_first;
                self.between(is_first, reading, parts, end)
            }
            Self::Arguments(_) => self.arguments(reading, parts, end),
            Self::Close => {
                let text = reading.buffer.trim_start();
                if text.is_empty() && end == TextEnd::No {
                    return ReadStep::Wait;
                }
                reading.buffer = text.strip_prefix('}').unwrap_or(text).to_owned();
                *self = Self::Between { is_first: false };
                ReadStep::GoOn
            }
        }
    }

    fn boxed(&self) -> Box<dyn OwnReader> {
        Box::new(self.clone())
    }
}

impl KeyedReader {
    fn between(&mut self, is_first: bool, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let text = reading.buffer.trim_start();
        if !is_first && let Some(rest) = text.strip_prefix(']') {
            reading.buffer = rest.to_owned();
            return ReadStep::AfterCall;
        }
        let begins = if is_first { '[' } else { ',' };
        let call = text.strip_prefix(begins).map_or(text, str::trim_start);
        let named = match call.strip_prefix('{') {
            Some(text) => {
                let mut scanner = Scanner::new(text, PYTHON);
                scanner.skip_space();
                scanner.key().map(|name| (name, scanner.rest()))
            }
            None if call.is_empty() => Err(NoValue::Cut),
            None => Err(NoValue::Wrong),
        };
        match named {
            Ok((name, rest)) if !name.is_empty() => {
                let rest = rest.to_owned();
                reading.held.get_or_insert_default();
                reading.hold_before(rest);
                *self = Self::Arguments(CallReader::arguments(name));
                ReadStep::GoOn
            }
            Err(NoValue::Cut) if end == TextEnd::No => ReadStep::Wait,
            Err(NoValue::Cut) if end == TextEnd::Cut => {
                // Nothing is wrong with what is there.
                push_part(parts, Part::Content(reading.held.take().unwrap_or_default()));
                ReadStep::Content
            }
            _ if reading.held.is_some() => {
                reading.give_back(parts, false, "");
                ReadStep::Content
            }
            _ => ReadStep::AfterCall,
        }
    }

    fn arguments(&mut self, reading: &mut Reading, parts: &mut Vec<Part>, end: TextEnd) -> ReadStep {
        let Self::Arguments(reader) = self else { return ReadStep::Content };
        if let Some(step) = reader.advance(reading, parts, end) {
            return step;
        }
        *self = Self::Close;
        ReadStep::GoOn
    }
}

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let (calls, ends) = (writer.marker(CALLS), writer.marker(CALLS_END));
    let call = |tool: &Callable| {
        let arguments = writer.json(tool.parameters.clone());
        let begins = super::grammar::quoted(&format!("[{{{}: ", json!(tool.name)));
        format!("{calls} {begins} {arguments} \"}}]\" {ends}")
    };
    Ok(tools.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Apertus;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("<|tools_prefix|>[{\"called_function\": {\"called_key\": \"called_value\"}}]<|tools_suffix|>"),
            Some(Apertus)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Apertus,
            &[(
                Plain,
                "Sure. <|tools_prefix|>[{\"f\": {\"x\": {\"y\": 1}}}, {\"g_2\": {}}]<|tools_suffix|>",
                reply("", "Sure. ", &[("f", "{\"x\": {\"y\": 1}}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(Apertus, &[(Plain, "<|tools_prefix|>{\"f\": null}", reply("", "", &[("f", "{}")]))]);
        for broken in ["<|tools_prefix|>[", "<|tools_prefix|>[{\"f\": {x}}]", "<|tools_prefix|>[{\"f\": {\"x\": 1"] {
            check_ended(Apertus, &[(Plain, broken, text(broken))]);
        }
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            Apertus,
            &[(
                Plain,
                "<|tools_prefix|>[ *<|tools_prefix|>[{\"f\": {\"s\": \"<|tools_suffix|>\"}}]*<|tools_suffix|>",
                reply("", "<|tools_prefix|>[ ", &[("f", "{\"s\": \"<|tools_suffix|>\"}")]),
            )],
        );
    }
}
