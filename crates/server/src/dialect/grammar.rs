//! Grammars of a call that a model has to make, in the form that it writes calls.

use serde_json::{Map, Value, json};

use super::controls::Controls;
use super::marker::Marker;
use super::{Reasoning, ThoughtTags, ToolSyntax};
use crate::error::ApiError;
use crate::grammar::escaped;
use crate::schema::bounded_space;

/// A tool that may be called.
pub(crate) struct Callable {
    pub(crate) name: String,
    /// Where in the request the schema of its arguments stands.
    pub(crate) at: String,
    pub(crate) parameters: Value,
}

/// The grammar, in Lark's notation, of a call of one of `tools`, or of JSON of the schema `answer`.
pub(crate) fn forced_call(
    tools: &[Callable],
    answer: Option<Value>,
    syntax: ToolSyntax,
    (reasoning, tags): (Reasoning, &ThoughtTags),
    controls: &Controls,
) -> Result<String, ApiError> {
    let mut writer = GrammarWriter { controls, rules: String::new(), count: 0 };
    let before = reasoning.grammar_before(tags, &mut writer);
    let mut calls = (syntax.dialect().grammar)(&mut writer, tools)?;
    calls.extend(answer.map(|schema| reasoning.grammar_of_answer(&mut writer, schema)));
    Ok(format!("start: {before} ({})\n{}", calls.join(" | "), writer.rules))
}

/// A grammar that is being written.
pub(super) struct GrammarWriter<'a> {
    controls: &'a Controls,
    rules: String,
    count: usize,
}

impl GrammarWriter<'_> {
    /// A marker: the token, where it counts as one.
    pub(super) fn marker(&self, marker: Marker) -> String {
        let token = self.controls.tokens.iter().find(|(_, text)| *text == marker.text);
        token.map_or_else(|| quoted(marker.text), |(id, _)| format!("<[{id}]>"))
    }

    /// A rule of its own; returns its name.
    pub(super) fn rule(&mut self, name: &str, attributes: &str, body: &str) -> String {
        let name = format!("{name}{}", self.count);
        self.count += 1;
        self.rules.push_str(&format!("{name}{attributes}: {body}\n"));
        name
    }

    /// JSON of this schema.
    pub(super) fn json(&mut self, schema: Value) -> String {
        self.rule("json", "", &format!("%json {}", bounded_space(schema)))
    }

    /// Any text up to a marker, and the marker.
    pub(super) fn text_until(&mut self, marker: Marker) -> String {
        let end = self.marker(marker);
        if end.starts_with('<') {
            let text = self.rule("TEXT", "", "/(?s:.+)/");
            return format!("{text}? {end}");
        }
        self.rule("text", "[lazy]", &format!("/(?s:.*){}/", escaped(marker.text)))
    }

    /// A list with one call, which is `object`, between two markers.
    pub(super) fn list_of_call(&self, opens: Marker, object: &str, closes: Marker) -> String {
        format!("{} \"[\" {object} \"]\" {}", self.marker(opens), self.marker(closes))
    }

    /// An object with the name of one of `tools` and, in the member `arguments`, arguments of its schema.
    pub(super) fn call_object(&mut self, tools: &[Callable], arguments: &str) -> String {
        self.named_object(tools, "name", arguments)
    }

    /// The same, with the name in the member `name`.
    pub(super) fn named_object(&mut self, tools: &[Callable], name: &str, arguments: &str) -> String {
        let call = |(index, tool): (usize, &Callable)| {
            let parameters = moved(&tool.parameters, &format!("anyOf/{index}/properties/{arguments}"));
            let properties =
                Map::from_iter([(name.to_owned(), json!({"const": tool.name})), (arguments.to_owned(), parameters)]);
            json!({
                "type": "object", "properties": properties, "required": [name, arguments], "additionalProperties": false,
            })
        };
        self.json(json!({"anyOf": tools.iter().enumerate().map(call).collect::<Vec<_>>()}))
    }
}

/// A schema that stands at `place` in another: what it refers to in itself is there now.
fn moved(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(members) => {
            let member = |(keyword, value): (&String, &Value)| {
                let value = match (keyword.as_str(), value) {
                    // Those hold values, not schemas.
                    ("enum" | "const" | "default" | "example" | "examples", _) => value.clone(),
                    ("$ref", Value::String(to)) => match to.strip_prefix('#') {
                        Some(rest) => format!("#/{place}{rest}").into(),
                        None => value.clone(),
                    },
                    _ => moved(value, place),
                };
                (keyword.clone(), value)
            };
            members.iter().map(member).collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(|item| moved(item, place)).collect(),
        _ => schema.clone(),
    }
}

/// A text as Lark quotes it, which is as JSON does.
pub(super) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
