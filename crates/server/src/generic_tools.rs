//! Tools for models whose chat template shows none: they are described in the system message, calls are read in the form
//! that most models have seen (Hermes'), and calls and results of earlier turns are shown in that form as text.
//!
//! How well a model calls that was never trained to is its own matter; a small one hardly ever does. A client that wants an
//! error instead starts the server with `--no-generic-tools`.

use serde_json::{Value, json};

use crate::dialect::{TOOL_CALL, TOOL_CALL_END, write_in_words};
use crate::messages::text_of;

/// The messages with tools, calls and results in words. Roles are then `system`, `user` and `assistant` alone.
pub(crate) fn in_words(messages: Vec<Value>, tools: &[Value], shows_system: bool) -> Vec<Value> {
    let mut written: Vec<Value> = Vec::with_capacity(messages.len() + 1);
    for message in messages {
        match message["role"].as_str() {
            Some("tool") => {
                let text = format!("<tool_response>\n{}\n</tool_response>", text_of(&message["content"]));
                // Results of several calls are one turn: many templates want the user and the assistant to take turns.
                match written.last_mut().filter(|last| is_results(last)) {
                    Some(last) => last["content"] = format!("{}\n{text}", text_of(&last["content"])).into(),
                    None => written.push(json!({"role": "user", "content": text})),
                }
            }
            Some("assistant") if !message["tool_calls"].is_null() => {
                written.push(with_calls_in_text(message, write_in_words));
            }
            _ => written.push(message),
        }
    }
    if !tools.is_empty() {
        describe(&mut written, tools, shows_system);
    }
    written
}

/// A message whose calls are part of its text, as `write` writes them.
pub(crate) fn with_calls_in_text(mut message: Value, write: impl Fn(&[Value]) -> String) -> Value {
    let calls = message["tool_calls"].take();
    let text = text_of(&message["content"]);
    let between = if text.is_empty() { "" } else { "\n" };
    let calls = write(calls.as_array().map_or(&[][..], Vec::as_slice));
    message["content"] = format!("{text}{between}{calls}").into();
    if let Some(message) = message.as_object_mut() {
        message.shift_remove("tool_calls");
    }
    message
}

fn is_results(message: &Value) -> bool {
    message["role"] == "user" && message["content"].as_str().is_some_and(|text| text.starts_with("<tool_response>"))
}

/// Puts what there is to call into the system message, or before the user's first text where the template shows none.
fn describe(messages: &mut Vec<Value>, tools: &[Value], shows_system: bool) {
    let signatures: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
    let (begin, end) = (TOOL_CALL.text, TOOL_CALL_END.text);
    let text = format!(
        "You may call functions to help with the user's request. These are the functions, each as JSON:\n<tools>\n{}\n\
         </tools>\nTo call one, write a JSON object with its name and arguments between {begin} and {end}:\n\
         {begin}\n{{\"name\": \"the function's name\", \"arguments\": {{\"argument\": \"value\"}}}}\n{end}\n\
         The result then comes between <tool_response> and </tool_response>. Answer without a call where none is needed.",
        signatures.join("\n")
    );
    let role = if shows_system { "system" } else { "user" };
    match messages.iter_mut().find(|message| message["role"] == role) {
        Some(message) if shows_system => {
            message["content"] = format!("{}\n\n{text}", text_of(&message["content"])).into();
        }
        Some(message) => message["content"] = format!("{text}\n\n{}", text_of(&message["content"])).into(),
        None => messages.insert(0, json!({"role": role, "content": text})),
    }
}
