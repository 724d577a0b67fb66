//! Nemotron Nano 2 and Llama Nemotron: `<TOOLCALL>[{"name": …, "arguments": {…}}, …]</TOOLCALL>`.

use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    CALLS = "<TOOLCALL>";
    CALLS_END = "</TOOLCALL>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Nemotron Nano 2",
    written: r#"<TOOLCALL>[{"name": …, "arguments": {…}}, …]</TOOLCALL>"#,
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
    use crate::dialect::ToolSyntax::Nemotron;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                r#"<TOOLCALL>[{"name": "called_function", "arguments": {"called_key": "called_value"}}]</TOOLCALL>"#
            ),
            Some(Nemotron)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Nemotron,
            &[(
                Plain,
                r#"Sure. <TOOLCALL>[{"name": "f", "arguments": {"x": [1]}}, {"name": "g_2", "arguments": {}}]</TOOLCALL>"#,
                reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Nemotron,
            &[
                // What ends the list is missing, and calls that are no JSON.
                (Plain, r#"<TOOLCALL>{"name": "f", "arguments": {"x": 1}}"#, reply("", "", &[("f", "{\"x\": 1}")])),
                (
                    Plain,
                    r#"<TOOLCALL>[{"name": "f", "arguments": {x}}]</TOOLCALL>"#,
                    text(r#"<TOOLCALL>[{"name": "f", "arguments": {x}}]</TOOLCALL>"#),
                ),
            ],
        );
    }
}
