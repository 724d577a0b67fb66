//! DeepSeek's V3.1:
//! `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>`.

use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::markers;
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

markers! {
    CALLS = "<｜tool▁calls▁begin｜>";
    CALL = "<｜tool▁call▁begin｜>";
    SEPARATOR = "<｜tool▁sep｜>";
    CALL_END = "<｜tool▁call▁end｜>";
    CALLS_END = "<｜tool▁calls▁end｜>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "DeepSeek V3.1",
    written: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}…",
    told: None,
    is_shown: |call| call.before.ends_with(CALL.text) && call.after.starts_with("<｜tool▁sep｜>{"),
    has_special_tokens: true,
    spelled: &[],
    controls: &[CALLS, CALL, SEPARATOR, CALL_END, CALLS_END],
    form: CallForm::Marked(MarkedCalls {
        each: Some(CALL),
        separator: Some(SEPARATOR),
        no_arguments: &[CALL_END, CALLS_END, CALL],
        between: &[CALL_END, CALLS_END],
        ..MarkedCalls::new(CALLS, CallStart::List)
    }),
    grammar,
};

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let (name, arguments) = (quoted(&tool.name), writer.json(tool.parameters.clone()));
        let [calls, call, separator, end, ends] =
            [CALLS, CALL, SEPARATOR, CALL_END, CALLS_END].map(|marker| writer.marker(marker));
        format!("{calls} {call} {name} {separator} {arguments} {end} {ends}")
    };
    Ok(tools.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Tagged};
    use crate::dialect::ToolSyntax::DeepSeek;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_by_id, check_ended, reply};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>called_function<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
            Some(DeepSeek)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            DeepSeek,
            &[
                (
                    Tagged,
                    "<think>hm</think>Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}\
             <｜tool▁call▁end｜><｜tool▁call▁begin｜>g_2<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                    reply("hm", "Sure.", &[("f", "{\"x\": \"<｜tool▁call▁end｜>\"}"), ("g_2", "{}")]),
                ),
                (Plain, "a <｜tool▁cal b", reply("", "a <｜tool▁cal b", &[])),
                (
                    Plain,
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"cut",
                    reply("", "", &[("f", "{\"cut")]),
                ),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            DeepSeek,
            &[
                // Arguments as a string, as nothing, and left out, in each form.
                (
                    Tagged,
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁call▁begin｜>g_2<｜tool▁sep｜>\"{}\"\
             <｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                    reply("", "", &[("f", "{}"), ("g_2", "{}")]),
                ),
            ],
        );
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            DeepSeek,
            &[
                (
                    Tagged,
                    "*<think>It ends with </think>, I think.*</think>I write <｜tool▁calls▁begin｜>: *<｜tool▁calls▁begin｜>\
             *<｜tool▁call▁begin｜>f*<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}*<｜tool▁call▁end｜>*<｜tool▁calls▁end｜>",
                    reply(
                        "It ends with </think>, I think.",
                        "I write <｜tool▁calls▁begin｜>: ",
                        &[("f", "{\"x\": \"<｜tool▁call▁end｜>\"}")],
                    ),
                ),
                (Tagged, "<think>aloud</think>", reply("", "<think>aloud</think>", &[])),
                (
                    Plain,
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}",
                    reply("", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", &[]),
                ),
            ],
        );
    }
}
