//! Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}
//! <|tool_call_end|>…<|tool_calls_section_end|>`. What stands before the arguments is the id of the call, in which the
//! name is: `functions.name:0`, counted through the conversation.

use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::markers;
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

markers! {
    CALLS = "<|tool_calls_section_begin|>";
    CALL = "<|tool_call_begin|>";
    SEPARATOR = "<|tool_call_argument_begin|>";
    CALL_END = "<|tool_call_end|>";
    CALLS_END = "<|tool_calls_section_end|>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Kimi K2",
    written: "<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}…",
    told: None,
    is_shown: |call| {
        call.before.ends_with("<|tool_call_begin|>functions.")
            && call.after.trim_start_matches([':', '0']).starts_with(SEPARATOR.text)
    },
    has_special_tokens: true,
    spelled: &[],
    controls: &[CALLS, CALL, SEPARATOR, CALL_END, CALLS_END],
    form: CallForm::Marked(MarkedCalls {
        each: Some(CALL),
        separator: Some(SEPARATOR),
        name: name_in_id,
        no_arguments: &[CALL_END, CALLS_END, CALL],
        between: &[CALL_END, CALLS_END],
        ..MarkedCalls::new(CALLS, CallStart::List)
    }),
    grammar,
};

/// The name in `functions.name:0`. Models leave out either end of it.
fn name_in_id(id: &str) -> &str {
    let name = id.strip_prefix("functions.").unwrap_or(id);
    let numbered = name.rsplit_once(':');
    match numbered {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let number = writer.rule("NUMBER", "", "/[0-9]{1,3}/");
    let call = |tool: &Callable| {
        let (name, arguments) = (quoted(&format!("functions.{}:", tool.name)), writer.json(tool.parameters.clone()));
        let [calls, call, separator, end, ends] =
            [CALLS, CALL, SEPARATOR, CALL_END, CALLS_END].map(|marker| writer.marker(marker));
        format!("{calls} {call} {name} {number} {separator} {arguments} {end} {ends}")
    };
    Ok(tools.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Tagged};
    use crate::dialect::ToolSyntax::Kimi;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.called_function:0<|tool_call_argument_begin|>{}"
            ),
            Some(Kimi)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Kimi,
            &[(
                Tagged,
                "<think>hm</think>Sure. <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>\
                 {\"x\": 1}<|tool_call_end|><|tool_call_begin|>functions.g_2:1<|tool_call_argument_begin|>{}<|tool_call_end|>\
                 <|tool_calls_section_end|>",
                reply("hm", "Sure. ", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        let broken = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{x";
        check_ended(
            Kimi,
            &[
                (
                    Plain,
                    "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|><|tool_call_end|>",
                    reply("", "", &[("f", "{}")]),
                ),
                (Plain, broken, text(broken)),
            ],
        );
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            Kimi,
            &[(
                Plain,
                "<|tool_calls_section_begin|> *<|tool_calls_section_begin|>*<|tool_call_begin|>functions.f:0\
                 *<|tool_call_argument_begin|>{\"s\": \"<|tool_call_end|>\"}*<|tool_call_end|>*<|tool_calls_section_end|>",
                reply("", "<|tool_calls_section_begin|> ", &[("f", "{\"s\": \"<|tool_call_end|>\"}")]),
            )],
        );
    }
}
