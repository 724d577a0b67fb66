//! DeepSeek V3 and R1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, a line of ` ```json `, the
//! arguments, a line of ` ``` `, and `<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>`.

use super::deepseek::{CALL, CALL_END, CALLS, CALLS_END, SEPARATOR};
use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::Marker;
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

const FENCE: Marker = Marker::spelled("```json");
const FENCE_END: Marker = Marker::spelled("```");

pub(super) static DIALECT: Dialect = Dialect {
    families: "DeepSeek V3 and R1 with a template for it",
    written: "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name ```json {…} ```<｜tool▁call▁end｜>…",
    told: None,
    is_shown: |call| call.before.ends_with(SEPARATOR.text) && call.after.trim_start().starts_with(FENCE.text),
    has_special_tokens: true,
    spelled: &[],
    controls: &[CALLS, CALL, SEPARATOR, CALL_END, CALLS_END],
    form: CallForm::Marked(MarkedCalls {
        each: Some(CALL),
        separator: Some(FENCE),
        name: name_behind_kind,
        no_arguments: &[FENCE_END, CALL_END, CALLS_END, CALL],
        between: &[FENCE_END, CALL_END, CALLS_END],
        ..MarkedCalls::new(CALLS, CallStart::List)
    }),
    grammar,
};

/// The name in `function<｜tool▁sep｜>name`.
fn name_behind_kind(called: &str) -> &str {
    called.rsplit_once(SEPARATOR.text).map_or(called, |(_, name)| name.trim())
}

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let arguments = writer.json(tool.parameters.clone());
        let [calls, call, separator, end, ends] =
            [CALLS, CALL, SEPARATOR, CALL_END, CALLS_END].map(|marker| writer.marker(marker));
        let (begins, closes) = (quoted(&format!("{}\n{}\n", tool.name, FENCE.text)), quoted("\n```"));
        format!("{calls} {call} \"function\" {separator} {begins} {arguments} {closes} {end} {ends}")
    };
    Ok(tools.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open};
    use crate::dialect::ToolSyntax::DeepSeekFenced;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>called_function\n```json\n{}\n```<｜tool▁call▁end｜>"
            ),
            Some(DeepSeekFenced)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            DeepSeekFenced,
            &[(
                Open,
                "hm</think>\n\nSure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"x\": \"```\"}\n```\
                 <｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g_2\n```json\n{}\n```<｜tool▁call▁end｜>\
                 <｜tool▁calls▁end｜>",
                reply("hm", "Sure.", &[("f", "{\"x\": \"```\"}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        let broken = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{x";
        check_ended(
            DeepSeekFenced,
            &[
                // Without what kind of call it is, without lines, without arguments, and without an end.
                (
                    Plain,
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f```json{\"x\": 1}```<｜tool▁call▁end｜>",
                    reply("", "", &[("f", "{\"x\": 1}")]),
                ),
                (
                    Plain,
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n```",
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
            DeepSeekFenced,
            &[(
                Plain,
                "<｜tool▁calls▁begin｜> *<｜tool▁calls▁begin｜>*<｜tool▁call▁begin｜>function*<｜tool▁sep｜>f\n```json\n\
                 {\"s\": \"<｜tool▁call▁end｜>\"}\n```*<｜tool▁call▁end｜>*<｜tool▁calls▁end｜>",
                reply("", "<｜tool▁calls▁begin｜> ", &[("f", "{\"s\": \"<｜tool▁call▁end｜>\"}")]),
            )],
        );
    }
}
