//! Llama 3.2 and 4 with a template for it, ToolACE and others: `[name(key=value, …), …]` and nothing else. Nothing
//! marks a call, so only the name of a function that is offered makes one of it.

use super::expressions::{self, ExpressionReader, Expressions};
use super::literal::PYTHON;
use super::marker::Marker;
use super::{CallForm, Dialect};

static CALLS: Expressions = Expressions {
    bare_tags: Some(&["<|python_start|>", "<|python_tag|>"]),
    has_list: true,
    prefix: "",
    opens: "(",
    equals: "=",
    closes: ")",
    notations: [PYTHON; 2],
    quote: None,
};

pub(super) static DIALECT: Dialect = Dialect {
    families: "Llama 3.2 and 4 with a template for it, ToolACE",
    written: "[name(key=value, …), …]",
    told: None,
    is_shown: |call| call.before.ends_with('[') && call.after.starts_with("(called_key="),
    has_special_tokens: false,
    spelled: &[],
    controls: &[],
    form: CallForm::Leading {
        reader: || ExpressionReader::boxed_new(&CALLS),
        between: &[Marker::spelled("<|python_end|>")],
        frames_all: false,
    },
    grammar: |writer, tools| expressions::grammar(&CALLS, ["\"[\"".to_owned(), "\"]\"".to_owned()], writer, tools),
};

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::{None as Plain, Open};
    use crate::dialect::ToolSyntax::Pythonic;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(recognised("[called_function(called_key=\"called_value\")]<|eot_id|>"), Some(Pythonic));
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Pythonic,
            &[
                (
                    Plain,
                    "[f(a=1, b='x, (y)', c=[True, None]), g_2()]",
                    reply("", "", &[("f", "{\"a\": 1, \"b\": \"x, (y)\", \"c\": [true,null]}"), ("g_2", "{}")]),
                ),
                (Plain, "<|python_start|>[f(s=\"a\\\"b\")]<|python_end|>", called("{\"s\": \"a\\\"b\"}")),
                (Open, "hm</think>\n[f()]", reply("hm", "", &[("f", "{}")])),
                (Plain, "[f(a={'k': 1.5}, s='cut", reply("", "", &[("f", "{\"a\": {\"k\":1.5}")])),
                // No function that is offered, no list of calls, and a list behind words.
                (Plain, "[h(a=1)]", text("[h(a=1)]")),
                (Plain, "[1, 2]", text("[1, 2]")),
                (Plain, "[f", text("[f")),
                (Plain, "So: [f()]", text("So: [f()]")),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Pythonic,
            &[
                (Plain, "[f(a=1)", called("{\"a\": 1}")),
                (Plain, "[ f( a = 1, ), ] \n", called("{\"a\": 1}")),
                // No keys, no values, no end.
                (Plain, "[f(1)]", text("[f(1)]")),
                (Plain, "[f(a=b)]", text("[f(a=b)]")),
                (Plain, "[f(a=1", text("[f(a=1")),
                (Plain, "[f(a=1), x]", reply("", ", x]", &[("f", "{\"a\": 1}")])),
            ],
        );
    }
}
