//! The items of `input`, as messages of the inner request.

use serde_json::{Value, json};

use crate::chat;
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, ignore, string, wrong};
use crate::quoting::shown;
use crate::turn::Conversation;

/// A message among the items of `input`.
pub(crate) const MESSAGE: &[&[Field]] = &[&[
    applied("type"),
    applied("role"),
    applied("content"),
    hint("id", "it is an echo"),
    hint("status", "it is an echo"),
]];

/// A call that comes back.
pub(crate) const CALL: &[&[Field]] = &[&[
    applied("type"),
    applied("call_id"),
    applied("name"),
    applied("arguments"),
    hint("id", "it is an echo"),
    hint("status", "it is an echo"),
]];

/// The result of a call.
pub(crate) const RESULT: &[&[Field]] = &[&[
    applied("type"),
    applied("call_id"),
    applied("output"),
    hint("id", "it is an echo"),
    hint("status", "it is an echo"),
]];

/// A thought that comes back.
pub(crate) const REASONING: &[&[Field]] = &[&[
    applied("type"),
    applied("content"),
    hint("summary", "the model is shown what it thought"),
    hint("encrypted_content", "nobody here can read it"),
    hint("id", "it is an echo"),
    hint("status", "it is an echo"),
]];

/// A part of a content.
pub(crate) const PART: &[&[Field]] =
    &[&[applied("type"), applied("text"), hint("annotations", "it is an echo"), hint("logprobs", "it is an echo")]];

impl Conversation {
    /// The assistant's message that is being put together: its reasoning, text and calls are items of their own here.
    fn assistant(&mut self, at: &str) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.push(at, json!({"role": "assistant", "content": null}));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    pub(super) fn take_item(&mut self, at: &str, item: Value) -> Result<(), ApiError> {
        if !item.is_object() {
            return Err(wrong(at, &item, "an item: an object"));
        }
        let within = |error: ApiError| error.within(at);
        let text = |fields: &mut Fields, name: &'static str| {
            fields.required(name).and_then(|value| string(name, value)).map_err(within)
        };
        let kind = match &item["type"] {
            Value::Null => "message".to_owned(),
            Value::String(kind) => kind.clone(),
            other => return Err(wrong(&format!("{at}.type"), other, "a string")),
        };
        match kind.as_str() {
            "message" => {
                let mut fields = Fields::inside(at, item, MESSAGE)?;
                let role = text(&mut fields, "role")?;
                let content = match fields.take("content") {
                    None if role == "assistant" => String::new(),
                    content => texts(&format!("{at}.content"), content.unwrap_or_default())?,
                };
                match role.as_str() {
                    "assistant" => chat::append(self.assistant(at), "content", &content),
                    "user" | "system" | "developer" => self.push(at, json!({"role": role, "content": content})),
                    other => {
                        let expected = "user, system, developer or assistant";
                        return Err(wrong(&format!("{at}.role"), &json!(other), expected));
                    }
                }
            }
            "function_call" => {
                let mut fields = Fields::inside(at, item, CALL)?;
                let (id, name) = (text(&mut fields, "call_id")?, text(&mut fields, "name")?);
                // What cannot be read of them is told where calls of all routes are read.
                let arguments = fields.take("arguments");
                let function = json!({"name": name, "arguments": arguments});
                let call = json!({"id": id, "type": "function", "function": function});
                match &mut self.assistant(at)["tool_calls"] {
                    Value::Array(calls) => calls.push(call),
                    none => *none = json!([call]),
                }
            }
            "function_call_output" => {
                let mut fields = Fields::inside(at, item, RESULT)?;
                let id = text(&mut fields, "call_id")?;
                let output = fields.take("output");
                let output = output.map_or(Ok(String::new()), |output| texts(&format!("{at}.output"), output))?;
                self.push_result(at, &id, &output);
            }
            "reasoning" => {
                let mut fields = Fields::inside(at, item, REASONING)?;
                if let Some(content) = fields.take("content") {
                    let thought = texts(&format!("{at}.content"), content)?;
                    chat::append(self.assistant(at), "reasoning_content", &thought);
                }
            }
            // Calls of tools that another server ran, and their results: nobody here can show them.
            other if other.ends_with("_call") || other.ends_with("_call_output") || other == "compaction" => ignore(at),
            other => {
                let message = format!(
                    "`{at}` is an item of type `{}`; message, function_call, function_call_output and reasoning are \
                     taken",
                    shown(other)
                );
                return Err(ApiError::unsupported(at, message));
            }
        }
        Ok(())
    }
}

/// A string, or parts that hold text.
fn texts(at: &str, content: Value) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(at, &other, "a string or a list of text parts")),
    };
    let mut whole = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        let at = format!("{at}[{index}]");
        if part["type"] == "refusal"
            && let Value::String(refusal) = &part["refusal"]
        {
            // It is what the assistant said.
            whole.push(refusal.clone());
            continue;
        }
        if !matches!(part["type"].as_str(), Some("input_text" | "output_text" | "reasoning_text" | "text")) {
            let message = format!(
                "`{at}` is no part that is taken here; input_text and output_text are, as this model takes text only"
            );
            return Err(ApiError::unsupported(at, message));
        }
        let within = |error: ApiError| error.within(&at);
        let mut part = Fields::inside(&at, part, PART)?;
        whole.push(part.required("text").and_then(|text| string("text", text)).map_err(within)?);
    }
    Ok(whole.join("\n"))
}
