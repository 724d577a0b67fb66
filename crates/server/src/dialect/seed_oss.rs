//! Seed-OSS: `<seed:tool_call><function=name><parameter=key>value</parameter>…</function></seed:tool_call>`.

use super::elements::{self, ElementReader, Elements};
use super::marker::markers;
use super::{CallForm, CallStart, Dialect, MarkedCalls};

markers! {
    TOOL_CALL = "<seed:tool_call>";
    TOOL_CALL_END = "</seed:tool_call>";
}

static ELEMENTS: Elements = Elements {
    opens: TOOL_CALL,
    closes: TOOL_CALL_END,
    call: "<function=",
    call_end: "</function>",
    parameter: "<parameter=",
    parameter_end: "</parameter>",
    value_end: "</parameter>\n",
    has_quotes: false,
    has_lines: false,
    says_strings: false,
};

pub(super) static DIALECT: Dialect = Dialect {
    families: "Seed-OSS",
    written: "<seed:tool_call><function=name><parameter=key>value</parameter>…</function></seed:tool_call>",
    told: None,
    is_shown: |call| call.before.ends_with("<function=") && call.is_near(TOOL_CALL.text),
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
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::SeedOss;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised(
                "<seed:tool_call>\n<function=called_function>\n<parameter=called_key>called_value</parameter>\n"
            ),
            Some(SeedOss)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            SeedOss,
            &[(
                Plain,
                "Sure.<seed:tool_call>\n<function=f>\n<parameter=s>two\nlines</parameter>\n<parameter=n>1.5</parameter>\n\
                 </function>\n</seed:tool_call>\n<seed:tool_call>\n<function=g_2>\n</function>\n</seed:tool_call>",
                reply("", "Sure.", &[("f", "{\"s\": \"two\\nlines\", \"n\": 1.5}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        let broken = "<seed:tool_call>{\"name\": \"f\"}</seed:tool_call>";
        check_ended(SeedOss, &[(Plain, broken, text(broken))]);
    }
}
