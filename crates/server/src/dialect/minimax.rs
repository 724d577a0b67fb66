//! MiniMax M2: `<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter>…</invoke>…
//! </minimax:tool_call>`, several calls between one pair of markers.

use super::elements::{self, ElementReader, Elements};
use super::marker::markers;
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    TOOL_CALL = "<minimax:tool_call>";
    TOOL_CALL_END = "</minimax:tool_call>";
}

static ELEMENTS: Elements = Elements {
    opens: TOOL_CALL,
    closes: TOOL_CALL_END,
    call: "<invoke name=",
    call_end: "</invoke>",
    parameter: "<parameter name=",
    parameter_end: "</parameter>",
    value_end: "</parameter>\n",
    has_quotes: true,
    has_lines: false,
    says_strings: false,
};

pub(super) static DIALECT: Dialect = Dialect {
    families: "MiniMax M2",
    written: r#"<minimax:tool_call><invoke name="name"><parameter name="key">value</parameter>…</invoke>…</minimax:tool_call>"#,
    told: None,
    is_shown: |call| call.before.ends_with("<invoke name=\"") && call.is_near(TOOL_CALL.text),
    has_special_tokens: true,
    spelled: &[],
    controls: &[TOOL_CALL, TOOL_CALL_END],
    form: CallForm::Marked(MarkedCalls {
        between: &[TOOL_CALL_END],
        ..MarkedCalls::new(TOOL_CALL, CallStart::Own(|| ElementReader::boxed_new(&ELEMENTS)))
    }),
    grammar: |writer, tools| elements::grammar(&ELEMENTS, writer, tools),
};

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open};
    use crate::dialect::ToolSyntax::MiniMax;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_by_id, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<minimax:tool_call>\n<invoke name=\"called_function\">\n<parameter name=\"called_key\">called_value"
            ),
            Some(MiniMax)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            MiniMax,
            &[(
                Open,
                "hm</think>\n\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">1 < 2\n</parameter>\n\
                 <parameter name=\"n\">[1]</parameter>\n</invoke>\n<invoke name=\"g_2\">\n</invoke>\n</minimax:tool_call>",
                reply("hm", "", &[("f", "{\"s\": \"1 < 2\\n\", \"n\": [1]}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        let broken = "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"s\">x</invoke>";
        check_ended(
            MiniMax,
            &[
                (
                    Plain,
                    "<minimax:tool_call><invoke name=f><parameter name=n>1</parameter></minimax:tool_call> So.",
                    reply("", "So.", &[("f", "{\"n\": 1}")]),
                ),
                (Plain, broken, text(broken)),
                (
                    Plain,
                    "<minimax:tool_call><invoke name=\"f\"></invoke> and <invoke",
                    reply("", "and <invoke", &[("f", "{}")]),
                ),
            ],
        );
    }

    /// Here `*` is what stands before a token.
    #[test]
    fn a_control_token_that_is_spelled_begins_nothing() {
        check_by_id(
            MiniMax,
            &[(
                Plain,
                "a <minimax:tool_call> b *<minimax:tool_call><invoke name=\"f\"><parameter name=\"s\"></minimax:tool_call>\
                 </parameter></invoke>*</minimax:tool_call>",
                reply("", "a <minimax:tool_call> b ", &[("f", "{\"s\": \"</minimax:tool_call>\"}")]),
            )],
        );
    }
}
