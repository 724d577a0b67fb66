//! Phi-4-mini and Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>`, or one object without a
//! list. Granite has no token that ends the list.

use serde_json::{Value, json};

use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls, Told};

markers! {
    CALLS = "<|tool_call|>";
    CALLS_END = "<|/tool_call|>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Phi-4-mini, Granite 3",
    written: r#"<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>"#,
    // Granite 3, and Phi-4-mini in its first template.
    told: Some(Told { marker: "<|tool_call|>", write }),
    is_shown: |call| call.is_near(CALLS.text) && (call.begins_object() || call.is_near("arguments")),
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

/// Calls in a conversation, as Granite's models write them.
fn write(calls: &[Value]) -> String {
    let call = |call: &Value| json!({"name": call["function"]["name"], "arguments": call["function"]["arguments"]});
    format!("{}{}", CALLS.text, calls.iter().map(call).collect::<Value>())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Phi4;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                r#"<|tool_call|>[{"name": "called_function", "arguments": {"called_key": "called_value"}}]<|/tool_call|>"#
            ),
            Some(Phi4)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Phi4,
            &[(
                Plain,
                r#"Sure. <|tool_call|>[{"name": "f", "arguments": {"x": [1]}}, {"name": "g_2", "arguments": {}}]<|/tool_call|>"#,
                reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Phi4,
            &[
                // What ends the list is missing, and calls that are no JSON.
                (Plain, r#"<|tool_call|>{"name": "f", "arguments": {"x": 1}}"#, reply("", "", &[("f", "{\"x\": 1}")])),
                (
                    Plain,
                    r#"<|tool_call|>[{"name": "f", "arguments": {x}}]<|/tool_call|>"#,
                    text(r#"<|tool_call|>[{"name": "f", "arguments": {x}}]<|/tool_call|>"#),
                ),
            ],
        );
    }
}
