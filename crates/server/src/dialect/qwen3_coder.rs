//! Qwen3-Coder, Qwen 3.5 and 3.6, Nemotron 3 and others:
//! `<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>`, each on a line of its own.

use super::elements::{self, ElementReader, Elements};
use super::marker::{Marker, markers};
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    TOOL_CALL = "<tool_call>";
    TOOL_CALL_END = "</tool_call>";
}

static ELEMENTS: Elements = Elements {
    opens: Marker::spelled(TOOL_CALL.text),
    closes: Marker::spelled(TOOL_CALL_END.text),
    call: "<function=",
    call_end: "</function>",
    parameter: "<parameter=",
    parameter_end: "</parameter>",
    value_end: "\n</parameter>\n",
    has_quotes: false,
    has_lines: true,
    says_strings: false,
};

pub(super) static DIALECT: Dialect = Dialect {
    families: "Qwen3-Coder, Qwen 3.5 and 3.6, Nemotron 3, Step 3.5",
    written: "<tool_call><function=name><parameter=key>value</parameter>…</function></tool_call>",
    told: None,
    is_shown: |call| call.before.ends_with("<function=") && call.is_near(TOOL_CALL.text) && call.after.starts_with('>'),
    has_special_tokens: false,
    spelled: &[TOOL_CALL, TOOL_CALL_END],
    controls: &[],
    form: CallForm::Marked(MarkedCalls {
        between: &[Marker::spelled(TOOL_CALL_END.text)],
        // The smaller of these models often begin like this.
        unopened: Some((Marker::spelled(ELEMENTS.call), || ElementReader::unopened(&ELEMENTS))),
        ..MarkedCalls::new(Marker::spelled(TOOL_CALL.text), CallStart::Own(|| ElementReader::boxed_new(&ELEMENTS)))
    }),
    grammar: |writer, tools| elements::grammar(&ELEMENTS, writer, tools),
};

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open};
    use crate::dialect::ToolSyntax::Qwen3Coder;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("<tool_call>\n<function=called_function>\n<parameter=called_key>\ncalled_value\n</parameter>"),
            Some(Qwen3Coder)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Qwen3Coder,
            &[
                (
                    Open,
                    "hm\n</think>\n\nSure.\n<tool_call>\n<function=f>\n<parameter=s>\n5 \"a\"\n\n</parameter>\n<parameter=n>\n\
                     5\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g_2>\n</function>\n</tool_call>",
                    reply("hm\n", "Sure.\n", &[("f", "{\"s\": \"5 \\\"a\\\"\\n\", \"n\": 5}"), ("g_2", "{}")]),
                ),
                // Values as Python prints them, values that only look like JSON, and none.
                (
                    Plain,
                    "<tool_call><function=f><parameter=a>True</parameter><parameter=b>['x']</parameter><parameter=c>\nx y\n\
                     </parameter><parameter=s></parameter></function></tool_call> done",
                    reply("", "done", &[("f", "{\"a\": true, \"b\": [\"x\"], \"c\": \"x y\", \"s\": \"\"}")]),
                ),
                // Two calls between one pair of markers.
                (
                    Plain,
                    "<tool_call>\n<function=f>\n</function>\n<function=g_2></function>\n</tool_call>",
                    reply("", "", &[("f", "{}"), ("g_2", "{}")]),
                ),
                // An end that stands within a string ends nothing.
                (
                    Plain,
                    "<tool_call><function=f><parameter=s>\na </parameter> b\n</parameter>\n</function></tool_call>",
                    called("{\"s\": \"a </parameter> b\"}"),
                ),
                // What is cut is cut.
                (
                    Plain,
                    "<tool_call>\n<function=f>\n<parameter=s>\nlong\ntex</para",
                    reply("", "", &[("f", "{\"s\": \"long\\ntex")]),
                ),
                (Plain, "<tool_call>\n<func", text("<tool_call>\n<func")),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Qwen3Coder,
            &[
                // What ends a call is missing.
                (Plain, "<tool_call>\n<function=f>\n<parameter=n>\n5\n</parameter>", called("{\"n\": 5}")),
                (Plain, "<tool_call><function=f>\n</tool_call>", called("{}")),
                (
                    Plain,
                    "<tool_call><function=f>\n<tool_call><function=g_2></function>",
                    reply("", "", &[("f", "{}"), ("g_2", "{}")]),
                ),
                // What begins a call is missing.
                (
                    Plain,
                    "Sure. <function=f>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
                    reply("", "Sure. ", &[("f", "{\"n\": 5}")]),
                ),
                (Plain, "<function=h>\n</function> <function=", text("<function=h>\n</function> <function=")),
                (Plain, "Say <function=g_2 x>", text("Say <function=g_2 x>")),
                // No name, no element, a value without an end, and text where a parameter should stand.
                (Plain, "<tool_call><function=></function>", text("<tool_call><function=></function>")),
                (Plain, "<tool_call>f()</tool_call>", text("<tool_call>f()</tool_call>")),
                (Plain, "<tool_call><function=f><parameter=s>\nx", text("<tool_call><function=f><parameter=s>\nx")),
                (Plain, "<tool_call><function=f> x</function>", text("<tool_call><function=f> x</function>")),
            ],
        );
    }
}
