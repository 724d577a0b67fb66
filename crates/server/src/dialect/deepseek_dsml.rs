//! DeepSeek V3.2: `<｜DSML｜function_calls><｜DSML｜invoke name="name"><｜DSML｜parameter name="key" string="true">value
//! </｜DSML｜parameter>…</｜DSML｜invoke>…</｜DSML｜function_calls>`. Each parameter says whether it is a string. V4 has
//! `tool_calls` where V3.2 has `function_calls`.

use super::elements::{self, ElementReader, Elements};
use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls, ShownCall};

markers! {
    /// The one token in each of these elements.
    DSML = "｜DSML｜";
}

const fn elements(opens: Marker, closes: Marker) -> Elements {
    Elements {
        opens,
        closes,
        call: "<｜DSML｜invoke name=",
        call_end: "</｜DSML｜invoke>",
        parameter: "<｜DSML｜parameter name=",
        parameter_end: "</｜DSML｜parameter>",
        value_end: "</｜DSML｜parameter>\n",
        has_quotes: true,
        has_lines: false,
        says_strings: true,
    }
}

static V3_ELEMENTS: Elements =
    elements(Marker::spelled("<｜DSML｜function_calls>"), Marker::spelled("</｜DSML｜function_calls>"));
static V4_ELEMENTS: Elements =
    elements(Marker::spelled("<｜DSML｜tool_calls>"), Marker::spelled("</｜DSML｜tool_calls>"));

/// As V3.2 writes calls.
pub(super) static V3_DIALECT: Dialect = Dialect {
    families: "DeepSeek V3.2",
    written: "<｜DSML｜function_calls><｜DSML｜invoke name=\"name\"><｜DSML｜parameter name=\"key\" string=\"true\">\
              value</｜DSML｜parameter>…",
    told: None,
    is_shown: |call| is_invoked(call) && call.is_near("<｜DSML｜function_calls>"),
    has_special_tokens: false,
    // The token is special, and shown because of this.
    spelled: &[DSML],
    controls: &[],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled("</｜DSML｜function_calls>")],
        ..MarkedCalls::new(
            Marker::spelled("<｜DSML｜function_calls>"),
            CallStart::Own(|| ElementReader::boxed_new(&V3_ELEMENTS)),
        )
    }),
    grammar: |writer, tools| elements::grammar(&V3_ELEMENTS, writer, tools),
};

/// As V4 writes them.
pub(super) static V4_DIALECT: Dialect = Dialect {
    families: "DeepSeek V4",
    written: "<｜DSML｜tool_calls><｜DSML｜invoke name=\"name\"><｜DSML｜parameter name=\"key\" string=\"true\">\
              value</｜DSML｜parameter>…",
    told: None,
    is_shown: |call| is_invoked(call) && call.is_near("<｜DSML｜tool_calls>"),
    has_special_tokens: false,
    // The token is special, and shown because of this.
    spelled: &[DSML],
    controls: &[],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled("</｜DSML｜tool_calls>")],
        ..MarkedCalls::new(
            Marker::spelled("<｜DSML｜tool_calls>"),
            CallStart::Own(|| ElementReader::boxed_new(&V4_ELEMENTS)),
        )
    }),
    grammar: |writer, tools| elements::grammar(&V4_ELEMENTS, writer, tools),
};

fn is_invoked(call: &ShownCall) -> bool {
    call.before.ends_with("<｜DSML｜invoke name=\"")
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open};
    use crate::dialect::ToolSyntax::{DeepSeekV4, DeepSeekV32};
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"called_function\">\n<｜DSML｜parameter name="),
            Some(DeepSeekV32)
        );
        assert_eq!(
            recognised("<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"called_function\">\n<｜DSML｜parameter name="),
            Some(DeepSeekV4)
        );
    }

    /// Whether an argument is a string is what its element says, whatever the schema says.
    #[test]
    fn texts_are_taken_apart() {
        check(
            DeepSeekV32,
            &[(
                Open,
                "hm</think>Sure.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">\
                 5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"s\" string=\"false\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
                 <｜DSML｜invoke name=\"g_2\">\n\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
                reply("hm", "Sure.\n\n", &[("f", "{\"a\": \"5\", \"s\": 5}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            DeepSeekV4,
            &[(
                Plain,
                "Hm.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
                reply("", "Hm.\n\n", &[("f", "{}")]),
            )],
        );
        let broken = "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜param";
        check_ended(
            DeepSeekV32,
            &[
                (Plain, broken, text(broken)),
                (
                    Plain,
                    "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\">5</｜DSML｜parameter>",
                    reply("", "", &[("f", "{\"s\": \"5\"}")]),
                ),
            ],
        );
    }
}
