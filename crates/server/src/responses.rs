//! `/v1/responses`: OpenAI's newer interface. A request becomes the conversation that `/v1/chat/completions` takes, so that
//! both mean the same; the answer is written in items. Nothing is stored: a client sends the whole conversation each time.

mod answer;
pub(crate) mod items;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use self::answer::ResponseFormat;
use crate::app::{App, Serving};
use crate::chat;
use crate::clock::unix_time;
use crate::error::ApiError;
use crate::fields::{self, Field, Fields, applied, hint, ignore, only, wrong};
use crate::generation::{Plan, prepared};
use crate::ids::random_id;
use crate::security::KeyNumber;
use crate::turn::{self, Conversation};

/// `stream_options`.
pub(crate) const STREAM_OPTIONS: &[&[Field]] = &[&[hint("include_obfuscation", "chunks are not padded")]];

/// `text`.
pub(crate) const TEXT: &[&[Field]] = &[&[applied("format"), applied("verbosity")]];

/// `reasoning`.
pub(crate) const REASONING: &[&[Field]] = &[&[
    applied("effort"),
    hint("summary", "reasoning is shown as it is, and not summed up"),
    hint("generate_summary", "reasoning is shown as it is, and not summed up"),
]];

/// A tool.
pub(crate) const TOOL: &[&[Field]] = &[&[
    applied("type"),
    applied("name"),
    applied("description"),
    applied("parameters"),
    hint("strict", "arguments are held to their schema where `tool_choice` makes the model call"),
]];

const ITEMS_MAX: usize = 4096;

/// Fields of this route.
pub(crate) const FIELDS: &[Field] = &[
    applied("model"),
    applied("input"),
    applied("instructions"),
    applied("max_output_tokens"),
    applied("tools"),
    applied("tool_choice"),
    applied("parallel_tool_calls"),
    applied("text"),
    applied("reasoning"),
    applied("stream"),
    applied("stream_options"),
    applied("temperature"),
    applied("top_p"),
    applied("top_k"),
    applied("min_p"),
    applied("presence_penalty"),
    applied("frequency_penalty"),
    applied("repetition_penalty"),
    applied("top_n_sigma"),
    applied("dynatemp_range"),
    applied("dynatemp_exponent"),
    applied("mirostat"),
    applied("mirostat_tau"),
    applied("mirostat_eta"),
    applied("seed"),
    applied("priority"),
    applied("cache_salt"),
    applied("metadata"),
    applied("user"),
    applied("continue_final_message"),
    hint("store", "nothing is stored here; send the whole conversation each time"),
    only("previous_response_id", |_| false, "nothing is stored here; send the whole conversation each time"),
    only("conversation", |_| false, "nothing is stored here; send the whole conversation each time"),
    only("background", |value| value == false, "an answer is given to whoever waits for it"),
    hint("truncation", "a conversation is never cut; send what fits"),
    hint("include", "answers hold all that there is"),
    hint("service_tier", "there is one tier"),
    hint("prompt_cache_key", "the prefix cache serves all prompts; `cache_salt` keeps a prompt apart"),
    hint("prompt_cache_retention", "the prefix cache keeps what it has room for"),
    hint("safety_identifier", "nobody is told who asks"),
    hint("client_metadata", "nothing is kept"),
    only("prompt", |_| false, "there are no stored prompts; `input` is the prompt"),
    hint("top_logprobs", "/v1/chat/completions gives log-probabilities"),
    hint("max_tool_calls", "the server runs no tools of its own"),
];

const KNOWN: &[&[Field]] = &[FIELDS];

/// Fields that the inner request has under the same name.
const SAME: &[&str] = &[
    "model",
    "parallel_tool_calls",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "top_n_sigma",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "seed",
    "priority",
    "cache_salt",
    "metadata",
    "user",
    "continue_final_message",
];

/// Answers a conversation.
pub(crate) async fn responses(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompt, echoed), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    let format = ResponseFormat {
        id: random_id("resp").replacen('-', "_", 1),
        created: unix_time(),
        echoed,
        sequence_number: 0,
    };
    turn::respond(&app, serving, prompt, plan, format).await
}

/// The plan, the prompt's ids, and what of the request an answer repeats.
type Prepared = (Plan, Vec<u32>, Map<String, Value>);

fn prepare(body: Value, serving: &Arc<Serving>, key: u64) -> Result<Prepared, ApiError> {
    let mut fields = Fields::new(body, KNOWN)?;
    let mut chat = Map::new();
    for &name in SAME {
        chat.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    let max_tokens = fields.token_limit("max_output_tokens", 1)?;
    chat.extend(max_tokens.map(|count| ("max_tokens".to_owned(), count.into())));
    let is_stream = chat.get("stream").is_some_and(|stream| *stream == true);
    stream_options(&mut fields, is_stream)?;
    let (format, verbosity) = text_format(&mut fields)?;
    chat.extend(format.clone().map(|format| ("response_format".to_owned(), format)));
    chat.extend(verbosity.map(|verbosity| ("verbosity".to_owned(), verbosity)));
    let effort = reasoning(&mut fields)?;
    chat.extend(effort.clone().map(|effort| ("reasoning_effort".to_owned(), effort.into())));
    let tools = take_tools(&mut fields)?;
    let tool_choice = fields.take("tool_choice");
    if let Some(choice) = &tool_choice {
        let inner = match choice {
            Value::Object(choice) if choice.len() == 2 && choice.get("type").is_some_and(|kind| kind == "function") => {
                json!({"type": "function", "function": {"name": choice.get("name")}})
            }
            other => other.clone(),
        };
        chat.insert("tool_choice".to_owned(), inner);
    }
    if !tools.is_empty() {
        let inner = |tool: &Value| {
            // Of another kind, it is left to those who know which there are.
            if tool["type"] != "function" {
                return json!({"type": tool["type"]});
            }
            let mut function = tool.clone();
            if let Some(function) = function.as_object_mut() {
                function.shift_remove("type");
            }
            json!({"type": "function", "function": function})
        };
        chat.insert("tools".to_owned(), tools.iter().map(inner).collect());
    }

    let mut conversation = Conversation::default();
    let instructions = fields.string("instructions")?;
    if let Some(instructions) = &instructions {
        conversation.push("instructions", json!({"role": "system", "content": instructions}));
    }
    match fields.required("input")? {
        Value::String(text) => conversation.push("input", json!({"role": "user", "content": text})),
        Value::Array(items) if (1..=ITEMS_MAX).contains(&items.len()) => {
            for (index, item) in items.into_iter().enumerate() {
                conversation.take_item(&format!("input[{index}]"), item)?;
            }
        }
        other => return Err(wrong("input", &other, format!("a text, or a list of 1 to {ITEMS_MAX} items"))),
    }
    if conversation.messages.last().is_some_and(chat::can_go_on) {
        // The answer goes on with what the assistant has said last.
        chat.entry("continue_final_message").or_insert_with(|| true.into());
    }
    chat.insert("messages".to_owned(), conversation.messages.into());
    let metadata = chat.get("metadata").cloned();
    let origins = conversation.origins;
    let rename = |name: &str| outer_name(name, &origins);
    let (mut plan, prompt, _) = fields::inner(rename, || chat::prepare(chat.into(), serving, key))?;
    fields.finish(KNOWN)?;
    (plan.prompt_field, plan.max_tokens_field) = ("input", "max_output_tokens");

    let sampling = &plan.settings.sampling;
    let described = crate::sampling::describe(sampling);
    let echoed = json!({
        "model": serving.name, "instructions": instructions, "max_output_tokens": max_tokens,
        "temperature": described["temperature"], "top_p": described["top_p"],
        "tools": tools, "tool_choice": tool_choice.unwrap_or_else(|| json!("auto")),
        "parallel_tool_calls": !plan.settings.text.one_call,
        "text": {"format": outer_format(format)}, "reasoning": {"effort": effort, "summary": null},
        "metadata": metadata.unwrap_or_else(|| json!({})), "store": false, "previous_response_id": null,
        "truncation": "disabled", "background": false,
    });
    let Value::Object(echoed) = echoed else { return Err(ApiError::internal("internal", "an object is none: a bug")) };
    Ok((plan, prompt, echoed))
}

/// What this interface calls a field of the inner request.
fn outer_name(name: &str, origins: &[String]) -> String {
    if let Some((index, rest)) = name.strip_prefix("messages[").and_then(|rest| rest.split_once(']')) {
        let origin = index.parse().ok().and_then(|index: usize| origins.get(index));
        return origin.map_or_else(
            || "input".to_owned(),
            |origin| match rest {
                ".role" | ".tool_calls" | ".content" => origin.clone(),
                rest => format!("{origin}{rest}"),
            },
        );
    }
    if let Some(rest) = name.strip_prefix("response_format") {
        return format!("text.format{}", rest.replace(".json_schema", ""));
    }
    match name {
        "messages" => "input".to_owned(),
        "max_tokens" => "max_output_tokens".to_owned(),
        "reasoning_effort" => "reasoning.effort".to_owned(),
        "verbosity" => "text.verbosity".to_owned(),
        name => name.replace(".function", ""),
    }
}

fn stream_options(fields: &mut Fields, is_stream: bool) -> Result<(), ApiError> {
    match fields.take("stream_options") {
        Some(options) if options.is_object() => {
            if !is_stream {
                ignore("stream_options");
            }
            Fields::inside("stream_options", options, STREAM_OPTIONS).map(drop)
        }
        Some(other) => Err(wrong("stream_options", &other, "an object")),
        None => Ok(()),
    }
}

/// `text`: the format as the inner request has it, and the verbosity.
fn text_format(fields: &mut Fields) -> Result<(Option<Value>, Option<Value>), ApiError> {
    let Some(text) = fields.take("text") else { return Ok((None, None)) };
    if !text.is_object() {
        return Err(wrong("text", &text, "an object with `format`"));
    }
    let mut text = Fields::inside("text", text, TEXT)?;
    let verbosity = text.take("verbosity");
    let Some(format) = text.take("format") else { return Ok((None, verbosity)) };
    let Value::Object(mut format) = format else {
        return Err(wrong("text.format", &format, "an object with `type`"));
    };
    if format.get("type").is_some_and(|kind| kind == "json_schema") {
        let kind = format.shift_remove("type");
        return Ok((Some(json!({"type": kind, "json_schema": format})), verbosity));
    }
    Ok((Some(format.into()), verbosity))
}

/// The format as an answer repeats it.
fn outer_format(format: Option<Value>) -> Value {
    match format {
        None => json!({"type": "text"}),
        Some(mut format) => match format["json_schema"].take() {
            Value::Object(mut schema) => {
                schema.insert("type".to_owned(), json!("json_schema"));
                schema.into()
            }
            _ => json!({"type": format["type"]}),
        },
    }
}

fn reasoning(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(reasoning) = fields.take("reasoning") else { return Ok(None) };
    if !reasoning.is_object() {
        return Err(wrong("reasoning", &reasoning, "an object with `effort`"));
    }
    let within = |error: ApiError| error.within("reasoning");
    Fields::inside("reasoning", reasoning, REASONING)?.string("effort").map_err(within)
}

/// The tools as an answer repeats them: with `type` beside the function's own fields.
fn take_tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    match fields.take("tools") {
        None => Ok(Vec::new()),
        Some(Value::Array(tools)) => {
            for (index, tool) in tools.iter().enumerate() {
                let at = format!("tools[{index}]");
                if !tool.is_object() {
                    return Err(wrong(&at, tool, "an object with `type` and `name`"));
                }
            }
            let mut taken = Vec::with_capacity(tools.len());
            for (index, mut tool) in tools.into_iter().enumerate() {
                if tool["type"] == "function" {
                    Fields::inside(&format!("tools[{index}]"), tool.clone(), TOOL)?;
                    let known = |name: &str| TOOL[0].iter().any(|field| field.name == name && name != "strict");
                    tool.as_object_mut().into_iter().for_each(|tool| tool.retain(|name, _| known(name)));
                }
                taken.push(tool);
            }
            Ok(taken)
        }
        Some(other) => Err(wrong("tools", &other, "a list of tools")),
    }
}

/// The format of an answer, for tests without a server.
#[cfg(test)]
pub(crate) fn tests_format() -> impl turn::TurnFormat {
    ResponseFormat { id: "resp".to_owned(), created: 0, echoed: Map::new(), sequence_number: 0 }
}
