//! Gemma 4: `<|tool_call>call:name{key:value,…}<tool_call|>`, in which strings stand between `<|"|>`.

use super::expressions::{self, ExpressionReader, Expressions};
use super::literal::Notation;
use super::marker::markers;
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    TOOL_CALL = "<|tool_call>";
    TOOL_CALL_END = "<tool_call|>";
    QUOTE = "<|\"|>";
}

static CALLS: Expressions = Expressions {
    bare_tags: None,
    has_list: false,
    prefix: "call:",
    opens: "{",
    equals: ":",
    closes: "}",
    // Nothing escapes within the model's own quotes. Those of JSON are taken too, whose escapes are not read.
    notations: [
        Notation { quotes: &[QUOTE.text, "\""], num_escaping: 0, bare_keys: true },
        Notation { quotes: &[QUOTE.marked, "\""], num_escaping: 0, bare_keys: true },
    ],
    quote: Some(QUOTE),
};

pub(super) static DIALECT: Dialect = Dialect {
    families: "Gemma 4",
    written: "<|tool_call>call:name{key:value,…}<tool_call|>",
    told: None,
    is_shown: |call| call.before.ends_with("<|tool_call>call:") && call.after.starts_with('{'),
    has_special_tokens: true,
    spelled: &[],
    controls: &[TOOL_CALL, TOOL_CALL_END, QUOTE],
    form: CallForm::Marked(MarkedCalls {
        between: &[TOOL_CALL_END],
        ..MarkedCalls::new(TOOL_CALL, CallStart::Own(|| ExpressionReader::boxed_new(&CALLS)))
    }),
    grammar: |writer, tools| {
        let around = [writer.marker(TOOL_CALL), writer.marker(TOOL_CALL_END)];
        expressions::grammar(&CALLS, around, writer, tools)
    },
};

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Gemma4;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<|turn>model\n<|tool_call>call:called_function{called_key:<|\"|>called_value<|\"|>}<tool_call|>"
            ),
            Some(Gemma4)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Gemma4,
            &[
                (
                    Plain,
                    "Sure.<|tool_call>call:f{a:<|\"|>x, \"y\"}<|\"|>,b:[1,<|\"|>z<|\"|>],c:{k:true,<|\"|>l<|\"|>:null}}<tool_call|>\
                     <|tool_call>call:g_2{}<tool_call|>",
                    reply(
                        "",
                        "Sure.",
                        &[
                            ("f", "{\"a\": \"x, \\\"y\\\"}\", \"b\": [1,\"z\"], \"c\": {\"k\":true,\"l\":null}}"),
                            ("g_2", "{}"),
                        ],
                    ),
                ),
                (Plain, "<|tool_call>call:f{a:1.5,b:<|\"|>cut", reply("", "", &[("f", "{\"a\": 1.5")])),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        for broken in ["<|tool_call>call:f{a}<tool_call|>", "<|tool_call>f{}", "<|tool_call>call:f{a:<|\"|>x"] {
            check_ended(Gemma4, &[(Plain, broken, text(broken))]);
        }
        check_ended(Gemma4, &[(Plain, "<|tool_call>call:f{\"a\": \"b\"}", reply("", "", &[("f", "{\"a\": \"b\"}")]))]);
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            Gemma4,
            &[(
                Plain,
                "<|tool_call> is *<|tool_call>call:f{a:*<|\"|><tool_call|>*<|\"|>}*<tool_call|>",
                reply("", "<|tool_call> is ", &[("f", "{\"a\": \"<tool_call|>\"}")]),
            )],
        );
    }
}
