//! Command R7B, Command A and later: `<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": {…}}, …]
//! <|END_ACTION|>`.

use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    CALLS = "<|START_ACTION|>";
    CALLS_END = "<|END_ACTION|>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Command R7B, Command A",
    written: r#"<|START_ACTION|>[{"tool_name": …, "parameters": {…}}, …]<|END_ACTION|>"#,
    told: None,
    is_shown: |call| call.before.contains(CALLS.text) && call.before.ends_with("\"tool_name\": \""),
    has_special_tokens: true,
    spelled: &[],
    controls: &[CALLS, CALLS_END],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled("["), Marker::spelled("]"), Marker::spelled(","), CALLS_END],
        has_list: true,
        ..MarkedCalls::new(CALLS, CallStart::List)
    }),
    grammar: |writer, tools| {
        let object = writer.named_object(tools, "tool_name", "parameters");
        Ok(vec![writer.list_of_call(CALLS, &object, CALLS_END)])
    },
};

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Command;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                r#"<|START_ACTION|>[{"tool_name": "called_function", "parameters": {"called_key": "called_value"}}]<|END_ACTION|>"#
            ),
            Some(Command)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Command,
            &[(
                Plain,
                r#"Sure. <|START_ACTION|>[{"tool_name": "f", "parameters": {"x": [1]}}, {"tool_name": "g_2", "parameters": {}}]<|END_ACTION|>"#,
                reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Command,
            &[
                // What ends the list is missing, and calls that are no JSON.
                (
                    Plain,
                    r#"<|START_ACTION|>{"tool_name": "f", "parameters": {"x": 1}}"#,
                    reply("", "", &[("f", "{\"x\": 1}")]),
                ),
                (
                    Plain,
                    r#"<|START_ACTION|>[{"tool_name": "f", "parameters": {x}}]<|END_ACTION|>"#,
                    text(r#"<|START_ACTION|>[{"tool_name": "f", "parameters": {x}}]<|END_ACTION|>"#),
                ),
            ],
        );
    }
}
