//! Llama 3: `{"name": …, "parameters": {…}}` and nothing else, perhaps behind `<|python_tag|>`. Nothing marks a call,
//! so only the name of a function that is offered makes one of it.

use super::grammar::{Callable, GrammarWriter};
use super::marker::Marker;
use super::{CallForm, Dialect};
use crate::error::ApiError;

pub(super) static DIALECT: Dialect = Dialect {
    families: "Llama 3.1 to 3.3",
    written: r#"{"name": …, "parameters": {…}}"#,
    told: None,
    is_shown: |call| call.begins_object() && call.after.find("parameters").is_some_and(|at| at < 16),
    has_special_tokens: false,
    spelled: &[],
    controls: &[],
    form: CallForm::Bare { tag: "<|python_tag|>", between: &[Marker::spelled(";")] },
    grammar,
};

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    Ok(vec![writer.call_object(tools, "parameters")])
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Llama3;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{called, check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("{\"name\": \"called_function\", \"parameters\": {\"called_key\": \"called_value\"}}<|eot_id|>"),
            Some(Llama3)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Llama3,
            &[
                (Plain, "{\"name\": \"f\", \"parameters\": {\"x\": \"{\"}}", reply("", "", &[("f", "{\"x\": \"{\"}")])),
                (
                    Plain,
                    "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g_2\", \"parameters\": {}}",
                    reply("", "", &[("f", "{}"), ("g_2", "{}")]),
                ),
                (
                    Plain,
                    "{\"name\": \"unknown\", \"parameters\": {}}",
                    reply("", "{\"name\": \"unknown\", \"parameters\": {}}", &[]),
                ),
                (Plain, "{\"answer\": 42}", reply("", "{\"answer\": 42}", &[])),
                (Plain, "Plain {\"name\": \"f\"}", reply("", "Plain {\"name\": \"f\"}", &[])),
            ],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        check_ended(
            Llama3,
            &[
                // Arguments as a string, as nothing, and left out, in each form.
                (Plain, r#"{"name": "f", "parameters": "{\"x\": 1}"}"#, called(r#"{"x": 1}"#)),
                (Plain, r#"{"name": "f", "arguments": {"x": 1}}"#, called(r#"{"x": 1}"#)),
                (Plain, r#"{"type": "function", "name": "f", "parameters": null}"#, called("{}")),
                (Plain, r#"{"name": "f"}"#, called("{}")),
                // A function that nobody offered: a marker says that it was to be a call.
                (Plain, r#"{"name": "h", "parameters": {}}"#, text(r#"{"name": "h", "parameters": {}}"#)),
                // Members that are no JSON, names that contradict each other, and no name.
                (Plain, r#"{"name": "f", "parameters": {"x": 1,}}"#, text(r#"{"name": "f", "parameters": {"x": 1,}}"#)),
            ],
        );
    }
}
