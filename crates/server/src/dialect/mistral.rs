//! Mistral, in three forms behind `[TOOL_CALLS]`: a list of objects with name and arguments, then a name with arguments
//! for each marker, and for a while a name with an id and arguments.

use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

markers! {
    TOOL_CALLS = "[TOOL_CALLS]";
    ARGS = "[ARGS]";
    CALL_ID = "[CALL_ID]";
}

/// `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`.
pub(super) static LIST_FORM: Dialect = Dialect {
    families: "Mistral v0.3, Nemo, Small 2409",
    written: r#"[TOOL_CALLS][{"name": …, "arguments": {…}}, …]"#,
    told: None,
    is_shown: |call| call.is_near(TOOL_CALLS.text) && call.begins_object(),
    has_special_tokens: true,
    spelled: &[],
    controls: &[TOOL_CALLS],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled("["), Marker::spelled("]"), Marker::spelled(",")],
        has_list: true,
        ..MarkedCalls::new(TOOL_CALLS, CallStart::List)
    }),
    grammar: |writer, tools| {
        let object = writer.call_object(tools, "arguments");
        Ok(vec![format!("{} \"[\" {object} \"]\"", writer.marker(TOOL_CALLS))])
    },
};

/// `[TOOL_CALLS]name[ARGS]{…}`.
pub(super) static ARGS_FORM: Dialect = Dialect {
    families: "Devstral, Magistral, Ministral 3",
    written: "[TOOL_CALLS]name[ARGS]{…}",
    told: None,
    is_shown: |call| call.before.ends_with(TOOL_CALLS.text) && call.after.starts_with(ARGS.text),
    has_special_tokens: true,
    spelled: &[],
    controls: &[TOOL_CALLS, ARGS],
    form: CallForm::Marked(MarkedCalls {
        separator: Some(ARGS),
        no_arguments: &[TOOL_CALLS],
        ..MarkedCalls::new(TOOL_CALLS, CallStart::Name)
    }),
    grammar: |writer, tools| each(writer, tools, None),
};

/// `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`.
pub(super) static IDS_FORM: Dialect = Dialect {
    families: "Mistral Small 3.2",
    written: "[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}",
    told: None,
    is_shown: |call| call.before.ends_with(TOOL_CALLS.text) && call.after.starts_with("[CALL_ID]call00001[ARGS]"),
    has_special_tokens: true,
    spelled: &[],
    controls: &[TOOL_CALLS, CALL_ID, ARGS],
    form: CallForm::Marked(MarkedCalls {
        id: Some(CALL_ID),
        separator: Some(ARGS),
        no_arguments: &[TOOL_CALLS],
        ..MarkedCalls::new(TOOL_CALLS, CallStart::Name)
    }),
    grammar: |writer, tools| each(writer, tools, Some(CALL_ID)),
};

/// A call of each tool by its name, with an id where a marker stands before one.
fn each(writer: &mut GrammarWriter, tools: &[Callable], id: Option<Marker>) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let arguments = writer.json(tool.parameters.clone());
        let id = id.map(|marker| format!("{} {} ", writer.marker(marker), writer.rule("ID", "", "/[a-zA-Z0-9]{9}/")));
        let (calls, separator) = (writer.marker(TOOL_CALLS), writer.marker(ARGS));
        format!("{calls} {} {}{separator} {arguments}", quoted(&tool.name), id.unwrap_or_default())
    };
    Ok(tools.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::{MistralArgs, MistralIds, MistralList};
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("[TOOL_CALLS][{\"name\": \"called_function\", \"arguments\": {}, \"id\": \"call00001\"}]"),
            Some(MistralList)
        );
        assert_eq!(recognised("[TOOL_CALLS]called_function[ARGS]{}"), Some(MistralArgs));
        assert_eq!(recognised("[TOOL_CALLS]called_function[CALL_ID]call00001[ARGS]{}"), Some(MistralIds));
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            MistralList,
            &[(
                Plain,
                "Sure. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": [1]}}, {\"name\": \"g_2\", \"arguments\": {}}]",
                reply("", "Sure. ", &[("f", "{\"x\": [1]}"), ("g_2", "{}")]),
            )],
        );
        check(
            MistralArgs,
            &[
                (
                    Plain,
                    "[TOOL_CALLS]f[ARGS]{\"x\": {\"y\": 1}}[TOOL_CALLS]g_2[ARGS]{}",
                    reply("", "", &[("f", "{\"x\": {\"y\": 1}}"), ("g_2", "{}")]),
                ),
                (Plain, "[TOOL_CALLS]f", reply("", "[TOOL_CALLS]f", &[])),
            ],
        );
        check(
            MistralIds,
            &[
                (
                    Plain,
                    "Hm.[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{\"x\": 1}[TOOL_CALLS]g_2[ARGS]{}",
                    reply("", "Hm.", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
                ),
                (Plain, "[TOOL_CALLS]f[CALL_ID]a1", reply("", "[TOOL_CALLS]f[CALL_ID]a1", &[])),
                (Plain, "[TOOL_CALLS]f[CALL_ID]a[ARGS]no", reply("", "[TOOL_CALLS]f[CALL_ID]a[ARGS]no", &[])),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            MistralList,
            &[
                // Arguments as a string, as nothing, and left out, in each form.
                (
                    Plain,
                    r#"[TOOL_CALLS][{"name": "f", "arguments": "{\"x\": 1}"}, {"name": "g_2", "arguments": null}]"#,
                    reply("", "", &[("f", r#"{"x": 1}"#), ("g_2", "{}")]),
                ),
                (Plain, r#"[TOOL_CALLS]{"name": "f", "arguments": {}}"#, called("{}")),
                // What ends a call is missing.
                (Plain, r#"[TOOL_CALLS][{"name": "f", "arguments": {}}"#, called("{}")),
                // Members that are no JSON, names that contradict each other, and no name.
                (Plain, "[TOOL_CALLS] [", text("[TOOL_CALLS] [")),
                (Plain, "[TOOL_CALLS][{\"name\": 1}]", text("[TOOL_CALLS][{\"name\": 1}]")),
            ],
        );
        check_ended(
            MistralArgs,
            &[
                // Arguments as a string, as nothing, and left out, in each form.
                (Plain, r#"[TOOL_CALLS]f[ARGS]"{\"x\": 1}""#, called(r#"{"x": 1}"#)),
                (Plain, "[TOOL_CALLS]f[ARGS]null", called("{}")),
                (Plain, "[TOOL_CALLS]f[ARGS] ", called("{}")),
                (Plain, "[TOOL_CALLS]f[ARGS][TOOL_CALLS]g_2[ARGS]{}", reply("", "", &[("f", "{}"), ("g_2", "{}")])),
                // Members that are no JSON, names that contradict each other, and no name.
                (Plain, "[TOOL_CALLS] [ARGS]{}", text("[TOOL_CALLS] [ARGS]{}")),
                (Plain, "[TOOL_CALLS]f[ARGS]{x}", text("[TOOL_CALLS]f[ARGS]{x}")),
                (Plain, "[TOOL_CALLS]f[ARGS]no", text("[TOOL_CALLS]f[ARGS]no")),
            ],
        );
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        let list = r#"[{"name": "f", "arguments": {"x": "[TOOL_CALLS]"}}]"#;
        check_by_id(
            MistralList,
            &[
                (Plain, &format!("*[TOOL_CALLS]{list}"), reply("", "", &[("f", r#"{"x": "[TOOL_CALLS]"}"#)])),
                (Plain, &format!("[TOOL_CALLS]{list}"), reply("", &format!("[TOOL_CALLS]{list}"), &[])),
                (
                    Plain,
                    &format!("[TOOL_CALLS] is how I call. *[TOOL_CALLS]{list}"),
                    reply("", "[TOOL_CALLS] is how I call. ", &[("f", r#"{"x": "[TOOL_CALLS]"}"#)]),
                ),
            ],
        );
        check_by_id(
            MistralArgs,
            &[
                (Plain, "a *[TOOL_CALLS]f*[ARGS]{\"x\": 1}", reply("", "a ", &[("f", "{\"x\": 1}")])),
                (Plain, "[TOOL_CALLS]f[ARGS]{}", reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
                (Plain, "[TOOL_CALLS]f*[ARGS]{}", reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
                (Plain, "*[TOOL_CALLS]f[ARGS]{}", reply("", "[TOOL_CALLS]f[ARGS]{}", &[])),
                (Plain, "*[ARGS]{}", reply("", "[ARGS]{}", &[])),
            ],
        );
        check_by_id(
            MistralIds,
            &[
                (
                    Plain,
                    "a *[TOOL_CALLS]f*[CALL_ID]a1B2c3D4e*[ARGS]{\"x\": 1}*[TOOL_CALLS]g_2*[CALL_ID]a1B2c3D4f*[ARGS]{}",
                    reply("", "a ", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
                ),
                (Plain, "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}", reply("", "[TOOL_CALLS]f[CALL_ID]a[ARGS]{}", &[])),
            ],
        );
    }
}
