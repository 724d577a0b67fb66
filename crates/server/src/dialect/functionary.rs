//! Functionary 3.1: `<function=name>{…}</function>`, as Llama 3.1's own custom tools are written.

use super::grammar::{Callable, GrammarWriter, quoted};
use super::marker::Marker;
use super::{CallForm, CallStart, Dialect, MarkedCalls};
use crate::error::ApiError;

const CALL: Marker = Marker::spelled("<function=");
const NAME_END: Marker = Marker::spelled(">");
const CALL_END: Marker = Marker::spelled("</function>");

pub(super) static DIALECT: Dialect = Dialect {
    families: "functionary 3.1",
    written: "<function=name>{…}</function>",
    told: None,
    is_shown: |call| call.before.ends_with(CALL.text) && call.after.starts_with(">{"),
    has_special_tokens: false,
    spelled: &[],
    controls: &[],
    form: CallForm::Marked(MarkedCalls {
        separator: Some(NAME_END),
        no_arguments: &[CALL_END],
        between: &[CALL_END],
        ..MarkedCalls::new(CALL, CallStart::Name)
    }),
    grammar,
};

fn grammar(writer: &mut GrammarWriter, tools: &[Callable]) -> Result<Vec<String>, ApiError> {
    let call = |tool: &Callable| {
        let arguments = writer.json(tool.parameters.clone());
        let begins = quoted(&format!("{}{}{}", CALL.text, tool.name, NAME_END.text));
        format!("{begins} {arguments} {}", quoted(CALL_END.text))
    };
    Ok(tools.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    use crate::dialect::Reasoning::None as Plain;
    use crate::dialect::ToolSyntax::Functionary;
    use crate::dialect::tests::recognised;
    use crate::reply::tests::{check, check_ended, reply, text};

    #[test]
    fn a_call_in_a_rendered_conversation_tells_the_dialect() {
        assert_eq!(
            recognised("<function=called_function>{\"called_key\": \"called_value\"}</function>"),
            Some(Functionary)
        );
    }

    #[test]
    fn texts_are_taken_apart() {
        check(
            Functionary,
            &[(
                Plain,
                "Sure. <function=f>{\"x\": 1}</function><function=g_2></function>",
                reply("", "Sure. ", &[("f", "{\"x\": 1}"), ("g_2", "{}")]),
            )],
        );
    }

    /// Calls that are not as the template shows them, in answers that the model has ended.
    #[test]
    fn calls_are_read_as_models_write_them() {
        for broken in ["<function=f", "<function=f>{x}</function>", "<function=>{}</function>"] {
            check_ended(Functionary, &[(Plain, broken, text(broken))]);
        }
    }
}
