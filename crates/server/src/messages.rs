//! The messages of a conversation: OpenAI's shape, checked field by field before a template sees them.

use serde_json::{Map, Value, json};
use tokenizer::chat_template::Capabilities;

use crate::body;
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, only, wrong};
use crate::tools::Dialect;

const MESSAGES_MAX: usize = 4096;
const PARTS_MAX: usize = 256;

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];

/// Fields of a message, with the roles that may have them. Others may be there where they hold nothing, as in OpenAI's
/// own answers that come back.
const FIELDS: [(&str, &[&str]); 7] = [
    ("role", ROLES),
    ("content", ROLES),
    ("name", ROLES),
    ("tool_calls", &["assistant"]),
    ("reasoning_content", &["assistant"]),
    ("reasoning", &["assistant"]),
    ("tool_call_id", &["tool"]),
];

/// The messages as templates take them: without nulls that say nothing, and with `developer` called `system`, as all
/// templates but those of one family have it.
pub(crate) fn check(messages: Value, template: &Capabilities, dialect: &Dialect) -> Result<Vec<Value>, ApiError> {
    let Value::Array(messages) = messages else { return Err(wrong("messages", &messages, "a list of messages")) };
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        let found = format!("`messages` is a list of {}, expected 1 to {MESSAGES_MAX}", messages.len());
        return Err(ApiError::invalid("messages", found));
    }
    let checked = |(index, message)| check_message(index, message, template, dialect);
    messages.into_iter().enumerate().map(checked).collect()
}

fn check_message(index: usize, message: Value, template: &Capabilities, dialect: &Dialect) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let Value::Object(mut message) = message else {
        return Err(wrong(&format!("messages[{index}]"), &message, "an object with `role` and `content`"));
    };
    let role = match message.get("role") {
        Some(Value::String(role)) => role.clone(),
        other => return Err(wrong(&at("role"), other.unwrap_or(&Value::Null), "a string")),
    };
    if !ROLES.contains(&role.as_str()) {
        return Err(wrong(&at("role"), &json!(role), format!("one of {}", ROLES.join(", "))));
    }
    // `content` may be null where tools are called, and some templates print it.
    message.retain(|name, value| name == "content" || !is_empty(value));
    for name in message.keys() {
        let known = FIELDS.iter().find(|(field, _)| field == name);
        if !known.is_some_and(|(_, roles)| roles.contains(&role.as_str())) {
            let error = format!("`{name}` is no field that is applied here for a message of role `{role}`");
            return Err(ApiError::unsupported(at(name), error));
        }
    }
    check_content(&at("content"), &role, &message)?;
    for name in ["name", "tool_call_id", "reasoning_content", "reasoning"] {
        if let Some(value) = message.get(name).filter(|value| !value.is_string()) {
            return Err(wrong(&at(name), value, "a string"));
        }
    }
    if let Some(calls) = message.get("tool_calls") {
        check_tool_calls(&at("tool_calls"), calls)?;
    }
    let cannot = |field: &str, what: &str| {
        let error = format!("this model's chat template cannot show {what}");
        Err(ApiError::unsupported(at(field), error))
    };
    match role.as_str() {
        "developer" | "system" if !template.system => return cannot("role", "a system message"),
        "tool" if !template.tool_results => return cannot("role", "results of tools"),
        "assistant" if message.contains_key("tool_calls") && !template.tool_calls => {
            return cannot("tool_calls", "calls of tools");
        }
        _ => {}
    }
    if role == "developer" {
        message.insert("role".to_owned(), "system".into());
    }
    // What no conversation with this template shows would be ignored.
    let role = message["role"].as_str().unwrap_or_default();
    if message.contains_key("name") && !dialect.shows_name(role) {
        return cannot("name", &format!("the name in a message of role `{role}`; leave it out"));
    }
    let reasoning = ["reasoning_content", "reasoning"].map(|name| message.get(name));
    let given = ["reasoning_content", "reasoning"].into_iter().find(|name| message.contains_key(*name));
    if let Some(field) = given.filter(|_| !dialect.shows_reasoning) {
        return cannot(field, "what the model thought in earlier turns; leave it out");
    }
    if let [Some(a), Some(b)] = reasoning
        && a != b
    {
        let error = "`reasoning` contradicts `reasoning_content`: they are two names of one field";
        return Err(ApiError::invalid(at("reasoning"), error));
    }
    Ok(Value::Object(message))
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn check_content(at: &str, role: &str, message: &Map<String, Value>) -> Result<(), ApiError> {
    match message.get("content") {
        Some(Value::String(_)) => Ok(()),
        None | Some(Value::Null) if role == "assistant" => Ok(()),
        Some(Value::Array(parts)) if parts.len() <= PARTS_MAX => {
            parts.iter().enumerate().try_for_each(|(index, part)| check_part(&format!("{at}[{index}]"), part))
        }
        Some(Value::Array(parts)) => {
            Err(ApiError::invalid(at, format!("`{at}` has {} parts, at most {PARTS_MAX} are taken", parts.len())))
        }
        other => Err(wrong(at, other.unwrap_or(&Value::Null), "a string or a list of text parts")),
    }
}

fn check_part(at: &str, part: &Value) -> Result<(), ApiError> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
    let text = part.get("text").is_some_and(Value::is_string);
    if kind == "text" && text && part.as_object().is_some_and(|part| part.len() == 2) {
        return Ok(());
    }
    let error = format!("`{at}` has to be {{\"type\": \"text\", \"text\": …}}: this model takes text only");
    Err(ApiError::unsupported(at, error))
}

fn check_tool_calls(at: &str, calls: &Value) -> Result<(), ApiError> {
    let Some(calls) = calls.as_array() else { return Err(wrong(at, calls, "a list of tool calls")) };
    calls.iter().enumerate().try_for_each(|(index, call)| check_tool_call(&format!("{at}[{index}]"), call))
}

fn check_tool_call(at: &str, call: &Value) -> Result<(), ApiError> {
    const CALL: &[&[Field]] = &[&[
        applied("id"),
        only("type", |value| value == "function", "functions are what can be called"),
        applied("function"),
    ]];
    const FUNCTION: &[&[Field]] = &[&[applied("name"), applied("arguments")]];
    let function = &call["function"];
    if !call.is_object() || !function.is_object() {
        let expected = "{\"id\": …, \"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}";
        return Err(wrong(at, call, expected));
    }
    let within = |error: ApiError| error.within(at);
    let mut fields = Fields::new(call.clone(), CALL).map_err(within)?;
    if fields.string("id").map_err(within)?.is_none_or(|id| id.is_empty()) {
        return Err(wrong(&format!("{at}.id"), &call["id"], "the text that the call's result names"));
    }
    let inside = format!("{at}.function");
    let within = |error: ApiError| error.within(&inside);
    let mut function = Fields::new(function.clone(), FUNCTION).map_err(within)?;
    if function.string("name").map_err(within)?.is_none() {
        return Err(wrong(&format!("{inside}.name"), &Value::Null, "the name of the function"));
    }
    match function.required("arguments").map_err(within)? {
        Value::Object(_) => Ok(()),
        // Templates show the object; of other text each makes something else, or nothing.
        Value::String(text) if body::parse(text.as_bytes()).is_ok_and(|arguments| arguments.is_object()) => Ok(()),
        other => Err(wrong(&format!("{inside}.arguments"), &other, "the JSON text of an object")),
    }
}
