//! LFM2: `<|tool_call_start|>[name(key=value, …), …]<|tool_call_end|>`. Some of its templates show the calls as JSON
//! objects in the same list, and both are read.

use serde_json::Value;

use super::expressions::{self, ExpressionReader, Expressions};
use super::literal::{PYTHON, python};
use super::marker::markers;
use super::{CallForm, CallStart, Dialect, MarkedCalls, Told};

markers! {
    CALLS_BEGIN = "<|tool_call_start|>";
    CALLS_END = "<|tool_call_end|>";
}

static CALLS: Expressions = Expressions {
    bare_tags: None,
    has_list: true,
    prefix: "",
    opens: "(",
    equals: "=",
    closes: ")",
    notations: [PYTHON; 2],
    quote: None,
};

pub(super) static DIALECT: Dialect = Dialect {
    families: "LFM2, LFM2.5",
    written: "<|tool_call_start|>[name(key=value, …), …]<|tool_call_end|>",
    // The first of these models.
    told: Some(Told { marker: "<|tool_list_start|>", write }),
    is_shown: |call| call.is_near(CALLS_BEGIN.text),
    has_special_tokens: true,
    spelled: &[],
    controls: &[CALLS_BEGIN, CALLS_END],
    form: CallForm::Marked(MarkedCalls {
        between: &[CALLS_END],
        ..MarkedCalls::new(CALLS_BEGIN, CallStart::Own(|| ExpressionReader::boxed_new(&CALLS)))
    }),
    grammar: |writer, tools| {
        let around = [format!("{} \"[\"", writer.marker(CALLS_BEGIN)), format!("\"]\" {}", writer.marker(CALLS_END))];
        expressions::grammar(&CALLS, around, writer, tools)
    },
};

/// Calls in a conversation.
fn write(calls: &[Value]) -> String {
    let call = |call: &Value| {
        let arguments = call["function"]["arguments"].as_object().into_iter().flatten();
        let arguments: Vec<String> = arguments.map(|(key, value)| format!("{key}={}", python(value))).collect();
        format!("{}({})", call["function"]["name"].as_str().unwrap_or_default(), arguments.join(", "))
    };
    let calls: Vec<String> = calls.iter().map(call).collect();
    format!("{}[{}]{}", CALLS_BEGIN.text, calls.join(", "), CALLS_END.text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Lfm2;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        for text in [
            "<|tool_call_start|>[called_function(called_key='called_value')]<|tool_call_end|>",
            "<|tool_call_start|>[{\"name\": \"called_function\", \"arguments\": {}}]<|tool_call_end|>",
        ] {
            assert_eq!(recognised(text), Some(Lfm2), "{text}");
        }
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Lfm2,
            &[
                (
                    Plain,
                    "<|tool_call_start|>[f(s=\"x\", n=2), g_2()]<|tool_call_end|>Looking.",
                    reply("", "Looking.", &[("f", "{\"s\": \"x\", \"n\": 2}"), ("g_2", "{}")]),
                ),
                (
                    Plain,
                    "Hm. <|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}, g_2(a=1)]<|tool_call_end|>",
                    reply("", "Hm. ", &[("f", "{\"x\": 1}"), ("g_2", "{\"a\": 1}")]),
                ),
                (Plain, "<|tool_call_start|>f()<|tool_call_end|>", called("{}")),
            ],
        );
    }

    /// What stands in a conversation is what is read.
    #[test]
    fn calls_are_written_as_they_are_read() {
        let arguments = json!({"s": "it's \"x\"\n", "l": [1, true, null], "o": {"k": -1.5}});
        let calls = [json!({"function": {"name": "f", "arguments": arguments}})];
        let written = super::write(&calls);
        assert_eq!(
            written,
            "<|tool_call_start|>[f(s=\"it's \\\"x\\\"\\n\", l=[1, True, None], o={\"k\": -1.5})]<|tool_call_end|>"
        );
        let read = "{\"s\": \"it's \\\"x\\\"\\n\", \"l\": [1,true,null], \"o\": {\"k\":-1.5}}";
        check(Lfm2, &[(Plain, &written, called(read))]);
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        for broken in
            ["<|tool_call_start|>[]<|tool_call_end|>", "<|tool_call_start|>", "<|tool_call_start|>[{\"name\": 1}]"]
        {
            check_ended(Lfm2, &[(Plain, broken, text(broken))]);
        }
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            Lfm2,
            &[
                (Plain, "<|tool_call_start|>[f()]", text("<|tool_call_start|>[f()]")),
                (
                    Plain,
                    "*<|tool_call_start|>[f(s='<|tool_call_end|>')]*<|tool_call_end|>",
                    called("{\"s\": \"<|tool_call_end|>\"}"),
                ),
            ],
        );
    }
}
