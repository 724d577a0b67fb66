//! Messages from OpenAI's shape into the shape that templates are written for.

use std::io::{self, Write};

use serde::Serialize as _;
use serde_json::ser::Formatter;
use serde_json::{Map, Value as Json};

use super::TemplateError;
use super::capabilities::{Capabilities, Content};

/// Names under which reasoning is passed; templates read the first, or `thinking`.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// `messages` as the template is to see them.
pub(super) fn messages(messages: &[Json], capabilities: &Capabilities) -> Result<Vec<Json>, TemplateError> {
    let prepare = |(index, message): (usize, &Json)| {
        let Json::Object(message) = message else {
            return Err(TemplateError::Message {
                index,
                problem: "expected an object with `role` and `content`".to_owned(),
            });
        };
        let mut message = message.clone();
        arguments_of(&mut message).for_each(parse_arguments);
        if capabilities.text_arguments {
            arguments_of(&mut message).for_each(write_arguments);
        }
        adapt_content(index, &mut message, capabilities)?;
        Ok(Json::Object(alias_reasoning(message)))
    };
    messages.iter().enumerate().map(prepare).collect()
}

/// The arguments of a message's tool calls.
fn arguments_of(message: &mut Map<String, Json>) -> impl Iterator<Item = &mut Json> {
    let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| {
        let is_function = call.get("function").is_some();
        let named = if is_function { call.get_mut("function") } else { Some(call) };
        named.and_then(|named| named.get_mut("arguments"))
    })
}

/// OpenAI passes the arguments of a tool call as a string of JSON; templates expect the object in it. Text that holds
/// no object is kept: it is what the model wrote.
fn parse_arguments(arguments: &mut Json) {
    let parsed = arguments.as_str().and_then(|text| serde_json::from_str::<Map<String, Json>>(text).ok());
    if let Some(object) = parsed {
        *arguments = Json::Object(object);
    }
}

/// Some templates expect the text.
fn write_arguments(arguments: &mut Json) {
    if arguments.is_object() {
        let mut text = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced);
        // A value that was parsed can be written, and is UTF-8.
        if arguments.serialize(&mut serializer).is_ok() {
            *arguments = String::from_utf8_lossy(&text).into();
        }
    }
}

/// JSON as Python writes it, which is what models have seen: with a space behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

fn adapt_content(
    index: usize,
    message: &mut Map<String, Json>,
    capabilities: &Capabilities,
) -> Result<(), TemplateError> {
    let Some(content) = message.get_mut("content") else { return Ok(()) };
    match (&*content, capabilities.content) {
        (Json::Null, _) if !capabilities.null_content => *content = Json::from(""),
        (Json::Array(parts), Content::Strings) => *content = Json::from(joined_text(index, parts)?),
        (Json::String(text), Content::Parts) => *content = serde_json::json!([{ "type": "text", "text": text }]),
        _ => {}
    }
    Ok(())
}

fn joined_text(index: usize, parts: &[Json]) -> Result<String, TemplateError> {
    let text = |part: &Json| {
        let text = part.as_str().or_else(|| part.get("text")?.as_str()).map(str::to_owned);
        text.ok_or_else(|| {
            let kind = part.get("type").and_then(Json::as_str).unwrap_or("unknown");
            let problem = format!("this chat template takes only text, found a content part of type `{kind}`");
            TemplateError::Message { index, problem }
        })
    };
    Ok(parts.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Reasoning under each name that templates read, as transformers passes it.
fn alias_reasoning(mut message: Map<String, Json>) -> Map<String, Json> {
    let given = REASONING_FIELDS.iter().find_map(|name| message.get(*name).filter(|value| !value.is_null()).cloned());
    let Some(reasoning) = given else { return message };
    message.insert("reasoning_content".to_owned(), reasoning.clone());
    if message.contains_key("thinking") {
        return message;
    }
    // First, as in transformers: a template that prints whole messages shows the order.
    let mut aliased = Map::from_iter([("thinking".to_owned(), reasoning)]);
    aliased.extend(message);
    aliased
}
