//! Apriel and Hunyuan: `<tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>`.

use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    CALLS = "<tool_calls>";
    CALLS_END = "</tool_calls>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Apriel, MiniMax M1",
    written: r#"<tool_calls>[{"name": …, "arguments": {…}}, …]</tool_calls>"#,
    told: None,
    is_shown: |call| call.is_near(CALLS.text) && call.begins_object(),
    has_special_tokens: false,
    spelled: &[CALLS, CALLS_END],
    controls: &[],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled("["), Marker::spelled("]"), Marker::spelled(","), Marker::spelled(CALLS_END.text)],
        has_list: true,
        ..MarkedCalls::new(Marker::spelled(CALLS.text), CallStart::List)
    }),
    grammar: |writer, tools| {
        let object = writer.call_object(tools, "arguments");
        Ok(vec![writer.list_of_call(CALLS, &object, CALLS_END)])
    },
};

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Apriel;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                r#"<tool_calls>[{"name": "called_function", "arguments": {"called_key": "called_value"}}]</tool_calls>"#
            ),
            Some(Apriel)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Apriel,
            &[(
                Plain,
                r#"Sure. <tool_calls>[{"name": "f", "arguments": {"x": [1]}}, {"name": "g_2", "arguments": {}}]</tool_calls>"#,
                reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Apriel,
            &[
                // What ends the list is missing, and calls that are no JSON.
                (Plain, r#"<tool_calls>{"name": "f", "arguments": {"x": 1}}"#, reply("", "", &[("f", "{\"x\": 1}")])),
                (
                    Plain,
                    r#"<tool_calls>[{"name": "f", "arguments": {x}}]</tool_calls>"#,
                    text(r#"<tool_calls>[{"name": "f", "arguments": {x}}]</tool_calls>"#),
                ),
            ],
        );
    }
}
