//! Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Most models have seen this form, so it is
//! also the one in which tools are told to models whose template shows none (`generic_tools.rs`).

use serde_json::Value;

use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls, Told};
use crate::error::ApiError;

markers! {
    TOOL_CALL = "<tool_call>";
    TOOL_CALL_END = "</tool_call>";
}

pub(super) static DIALECT: Dialect = Dialect {
    families: "Hermes, Qwen 2.5 and 3, Granite 4, EXAONE 4, MiMo, Bielik 3, SmolLM3",
    written: r#"<tool_call>{"name": …, "arguments": {…}}</tool_call>"#,
    told: Some(Told { marker: "<tool_call>\n{\"name\": ", write }),
    is_shown: |call| call.is_near(TOOL_CALL.text) && (call.begins_object() || call.is_near("arguments")),
    has_special_tokens: false,
    spelled: &[TOOL_CALL, TOOL_CALL_END],
    controls: &[],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled(TOOL_CALL_END.text)],
        ..MarkedCalls::new(TOOL_CALL, CallStart::Object)
    }),
    grammar,
};

/// Calls as the model writes them.
pub(crate) fn write(calls: &[Value]) -> String {
    let call = |call: &Value| format!("{}\n{}\n{}", TOOL_CALL.text, call["function"], TOOL_CALL_END.text);
    calls.iter().map(call).collect::<Vec<_>>().join("\n")
}

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let object = writer.call_object(tools, "arguments");
    let (begins, ends) = (format!("{}\n", TOOL_CALL.text), format!("\n{}", TOOL_CALL_END.text));
    Ok(vec![format!("{} {object} {}", quoted(&begins), quoted(&ends))])
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open, Tagged};
    use crate::dialect::ToolSyntax::Hermes;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        for text in [
            "<tool_call>\n{\"name\": \"called_function\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>{\"arguments\":{\"called_key\":\"called_value\"},\"name\":\"called_function\"}</tool_call>",
        ] {
            assert_eq!(recognised(text), Some(Hermes), "{text}");
        }
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Hermes,
            &[
                (
                    Plain,
                    "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
                    reply("", "Let me see.\n", &[("f", "{\"x\": 1}")]),
                ),
                (
                    Tagged,
                    "<think>hm</think>\n<tool_call>{\"arguments\": {} , \"name\": \"f\"}</tool_call>\n<tool_call>\n{\"name\": \"g_2\", \"arguments\": {\"k\": \"</tool_call>\"}}\n</tool_call>",
                    reply("hm", "", &[("f", "{}"), ("g_2", "{\"k\": \"</tool_call>\"}")]),
                ),
                (Plain, "<tool_call>not json</tool_call>", reply("", "<tool_call>not json</tool_call>", &[])),
                (Plain, "a <tool_cal b", reply("", "a <tool_cal b", &[])),
                (
                    Plain,
                    "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"cut",
                    reply("", "", &[("f", "{\"x\": \"cut")]),
                ),
                (Plain, "<tool_call>{\"name\": 7}", reply("", "<tool_call>{\"name\": 7}", &[])),
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": {"a": [1, {"b": "}\"]"}], "c": "\\"}}</tool_call>"#,
                    reply("", "", &[("f", r#"{"a": [1, {"b": "}\"]"}], "c": "\\"}"#)]),
                ),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Hermes,
            &[
                // Arguments as a string, as nothing, and left out, in each form.
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": "{\"x\": \"A\"}"}</tool_call>"#,
                    called(r#"{"x": "A"}"#),
                ),
                (Plain, r#"<tool_call>{"arguments": "{\"x\": 1}", "name": "f"}</tool_call>"#, called(r#"{"x": 1}"#)),
                (Plain, r#"<tool_call>{"name": "f", "arguments": null}</tool_call>"#, called("{}")),
                // As a client sends a call back.
                (
                    Plain,
                    r#"<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}</tool_call>"#,
                    called(r#"{"x":1}"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"function": {"name": "f", "arguments": "{\"x\": 1}"}, "id": "c"}</tool_call>"#,
                    called(r#"{"x": 1}"#),
                ),
                (Plain, r#"<tool_call>{"function": {"name": "f"}}</tool_call>"#, called("{}")),
                (
                    Plain,
                    r#"<tool_call>{"function": {"name": "f", "arguments": [1]}}</tool_call>"#,
                    text(r#"<tool_call>{"function": {"name": "f", "arguments": [1]}}</tool_call>"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"function": {"name": ""}}</tool_call>"#,
                    text(r#"<tool_call>{"function": {"name": ""}}</tool_call>"#),
                ),
                (Plain, r#"<tool_call>{"name": "f", "arguments": ""}</tool_call>"#, called("{}")),
                (Plain, r#"<tool_call>{"name": "f"}</tool_call>"#, called("{}")),
                (Plain, r#"<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>"#, called(r#"{"x": 1}"#)),
                // What ends a call is missing.
                (Plain, r#"<tool_call>{"name": "f", "arguments": {"x": 1}}"#, called(r#"{"x": 1}"#)),
                (Plain, r#"<tool_call>{"name": "f", "arguments": {"x": 1}"#, called(r#"{"x": 1}"#)),
                (Plain, r#"<tool_call>{"name": "f", "arguments": "{}""#, called("{}")),
                (
                    Plain,
                    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n<tool_call>\n{\"name\": \"g_2\", \"arguments\": {}}",
                    reply("", "", &[("f", "{}"), ("g_2", "{}")]),
                ),
                // A function that nobody offered: a marker says that it was to be a call.
                (Plain, r#"<tool_call>{"name": "h", "arguments": {}}</tool_call>"#, reply("", "", &[("h", "{}")])),
                // Thoughts that are opened twice, or by nobody but the model.
                (Open, "<think>\nhm</think>So.", reply("hm", "So.", &[])),
                (Tagged, "<think>hm</think>So.", reply("hm", "So.", &[])),
                // What cannot be read is what the model wrote.
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": {x: 1}}</tool_call>"#,
                    text(r#"<tool_call>{"name": "f", "arguments": {x: 1}}</tool_call>"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": "x"}</tool_call>"#,
                    text(r#"<tool_call>{"name": "f", "arguments": "x"}</tool_call>"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#,
                    text(r#"<tool_call>{"name": "f", "arguments": [1]}</tool_call>"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": {"x": "lo"#,
                    text(r#"<tool_call>{"name": "f", "arguments": {"x": "lo"#),
                ),
                (Plain, r#"<tool_call>{"name": "f""#, text(r#"<tool_call>{"name": "f""#)),
                (Plain, "a <tool_call>", text("a <tool_call>")),
                // Members that are no JSON, names that contradict each other, and no name.
                (
                    Plain,
                    r#"<tool_call>{"name": "f", x y z}</tool_call>"#,
                    text(r#"<tool_call>{"name": "f", x y z}</tool_call>"#),
                ),
                (Plain, r#"<tool_call>{"name": "f", "x": y}"#, text(r#"<tool_call>{"name": "f", "x": y}"#)),
                (Plain, r#"<tool_call>{"name": "f", "arguments": {},}</tool_call>"#, called("{}")),
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": {}, "name": "g_2"}"#,
                    text(r#"<tool_call>{"name": "f", "arguments": {}, "name": "g_2"}"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"name": "", "arguments": {}}"#,
                    text(r#"<tool_call>{"name": "", "arguments": {}}"#),
                ),
                (
                    Plain,
                    r#"<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g_2", "arguments": {x}}</tool_call>"#,
                    reply("", r#"<tool_call>{"name": "g_2", "arguments": {x}}</tool_call>"#, &[("f", "{}")]),
                ),
            ],
        );
    }
}
