//! `/v1/messages`: Anthropic's interface. A request becomes the conversation that `/v1/chat/completions` takes, so that both
//! mean the same; the answer is written in blocks.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::{App, Serving};
use crate::chat;
use crate::choice::Finish;
use crate::error::{ApiError, json_response};
use crate::fields::{self, Field, Fields, applied, hint, ignore, only, string, wrong};
use crate::generation::{Plan, Progress, prepared};
use crate::ids::random_id;
use crate::security::KeyNumber;
use crate::tools;
use crate::turn::{self, Block, BlockKind, Change, Conversation, NamedEvent, TurnFormat};

/// A message.
pub(crate) const MESSAGE: &[&[Field]] = &[&[applied("role"), applied("content")]];

/// The result of a call.
pub(crate) const RESULT_BLOCK: &[&[Field]] = &[&[
    applied("type"),
    applied("tool_use_id"),
    applied("content"),
    applied("is_error"),
    hint("cache_control", tools::CACHED),
]];

/// A thought that comes back.
pub(crate) const THINKING_BLOCK: &[&[Field]] =
    &[&[applied("type"), applied("thinking"), hint("signature", "it is an echo")]];

/// A call that comes back.
pub(crate) const USE_BLOCK: &[&[Field]] =
    &[&[applied("type"), applied("id"), applied("name"), applied("input"), hint("cache_control", tools::CACHED)]];

/// A block of text.
pub(crate) const TEXT_BLOCK: &[&[Field]] =
    &[&[applied("type"), applied("text"), hint("cache_control", tools::CACHED), hint("citations", "nothing is cited")]];

/// `thinking`.
pub(crate) const THINKING: &[&[Field]] = &[&[applied("type"), applied("budget_tokens")]];

/// `output_config`.
pub(crate) const OUTPUT_CONFIG: &[&[Field]] = &[&[applied("effort")]];

/// A tool.
pub(crate) const TOOL: &[&[Field]] = &[&[
    applied("type"),
    applied("name"),
    applied("description"),
    applied("input_schema"),
    hint("cache_control", tools::CACHED),
    hint("strict", "arguments are held to their schema where `tool_choice` makes the model call"),
    hint("eager_input_streaming", "arguments are streamed anyway"),
]];

/// `tool_choice`.
pub(crate) const CHOICE: &[&[Field]] = &[&[applied("type"), applied("name"), applied("disable_parallel_tool_use")]];

const MESSAGES_MAX: usize = 4096;

/// Fields of a conversation, which `/v1/messages/count_tokens` has too.
pub(crate) const PROMPT_FIELDS: &[Field] = &[
    applied("model"),
    applied("messages"),
    applied("system"),
    applied("tools"),
    applied("tool_choice"),
    applied("thinking"),
    applied("output_config"),
    hint("context_management", "a conversation is never cut; send what fits"),
    hint("betas", "there is one interface"),
    hint("cache_control", tools::CACHED),
    only("mcp_servers", |value| value.as_array().is_some_and(Vec::is_empty), "the server opens no connection"),
];

/// Fields of generating alone.
pub(crate) const FIELDS: &[Field] = &[
    applied("max_tokens"),
    applied("metadata"),
    applied("stop_sequences"),
    applied("stream"),
    applied("temperature"),
    applied("top_k"),
    applied("top_p"),
    applied("min_p"),
    applied("seed"),
    applied("priority"),
    applied("cache_salt"),
    hint("service_tier", "there is one tier"),
    hint("container", "nothing is run here"),
];

const KNOWN: &[&[Field]] = &[PROMPT_FIELDS, FIELDS];

/// Answers a conversation.
pub(crate) async fn messages(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompt), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    let format = Messages { id: random_id("msg").replacen('-', "_", 1), model: serving.name.clone(), begun: false };
    turn::respond(&app, serving, prompt, plan, format).await
}

/// Says how many tokens a conversation has.
pub(crate) async fn count_tokens(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (_, tokens, notes, _) = prepared(&app, key, request, |body, serving, key| {
        let mut fields = Fields::new(body, &[PROMPT_FIELDS])?;
        let (_, prompt) = inner(&mut fields, Map::new(), None, serving, key, usize::MAX)?;
        fields.finish(&[PROMPT_FIELDS])?;
        Ok(prompt.len())
    })
    .await?;
    let mut answer = json!({"input_tokens": tokens});
    notes.attach(&mut answer);
    Ok(json_response(StatusCode::OK, &answer))
}

fn prepare(body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Plan, Vec<u32>), ApiError> {
    let mut fields = Fields::new(body, KNOWN)?;
    let mut chat = Map::new();
    if !fields.has("max_tokens") {
        return Err(ApiError::invalid("max_tokens", "`max_tokens` is missing"));
    }
    let max_tokens = fields.token_limit("max_tokens", 1)?;
    chat.extend(max_tokens.map(|count| ("max_tokens".to_owned(), count.into())));
    if let Some(stop) = fields.take("stop_sequences") {
        if !stop.is_array() {
            return Err(wrong("stop_sequences", &stop, "a list of strings"));
        }
        chat.insert("stop".to_owned(), stop);
    }
    for name in ["metadata", "stream", "temperature", "top_k", "top_p", "min_p", "seed", "priority", "cache_salt"] {
        chat.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    let (plan, prompt) = inner(&mut fields, chat, max_tokens, serving, key, serving.engine.config().context_len)?;
    fields.finish(KNOWN)?;
    Ok((plan, prompt))
}

/// The inner request of a conversation of at most `tokens_max` tokens, with what `chat` holds besides.
fn inner(
    fields: &mut Fields,
    mut chat: Map<String, Value>,
    max_tokens: Option<usize>,
    serving: &Arc<Serving>,
    key: u64,
    tokens_max: usize,
) -> Result<(Plan, Vec<u32>), ApiError> {
    let mut conversation = Conversation::default();
    if let Some(system) = fields.take("system") {
        let text = texts("system", system)?;
        conversation.push("system", json!({"role": "system", "content": text}));
    }
    let messages = match fields.required("messages")? {
        Value::Array(messages) if (1..=MESSAGES_MAX).contains(&messages.len()) => messages,
        other => return Err(wrong("messages", &other, format!("a list of 1 to {MESSAGES_MAX} messages"))),
    };
    for (index, message) in messages.into_iter().enumerate() {
        conversation.take_message(&format!("messages[{index}]"), message)?;
    }
    // An answer goes on with the words that it is given.
    if conversation.messages.last().is_some_and(|last| last["role"] == "assistant") {
        chat.insert("continue_final_message".to_owned(), true.into());
    }
    take_tools(fields, &mut chat)?;
    let reasoning_max = thinking(fields, &mut chat, max_tokens, serving)?;
    chat.extend(fields.take("model").map(|model| ("model".to_owned(), model)));
    chat.insert("messages".to_owned(), conversation.messages.into());
    let origins = conversation.origins;
    let rename = |name: &str| outer_name(name, &origins);
    let (mut plan, prompt, _) = fields::inner(rename, || chat::prepare_within(chat.into(), serving, key, tokens_max))?;
    plan.settings.text.reasoning_max = reasoning_max;
    Ok((plan, prompt))
}

/// What this interface calls a field of the inner request.
fn outer_name(name: &str, origins: &[String]) -> String {
    if let Some((index, rest)) = name.strip_prefix("messages[").and_then(|rest| rest.split_once(']')) {
        let origin = index.parse().ok().and_then(|index: usize| origins.get(index));
        return origin.map_or_else(
            || "messages".to_owned(),
            |origin| match rest {
                ".role" | ".tool_calls" => origin.clone(),
                rest => format!("{origin}{rest}"),
            },
        );
    }
    match name {
        "stop" => "stop_sequences".to_owned(),
        "chat_template_kwargs" => "thinking".to_owned(),
        "reasoning_effort" => "output_config.effort".to_owned(),
        "continue_final_message" => "messages".to_owned(),
        "parallel_tool_calls" => "tool_choice".to_owned(),
        name => name.replace(".function.parameters", ".input_schema").replace(".function", ""),
    }
}

impl Conversation {
    /// Adds a text of the user's, to the last message if that is the user's too.
    fn push_user(&mut self, at: &str, text: &str) {
        match self.messages.last_mut() {
            Some(last) if last["role"] == "user" => chat::append(last, "content", &format!("\n{text}")),
            _ => self.push(at, json!({"role": "user", "content": text})),
        }
    }

    fn take_message(&mut self, at: &str, message: Value) -> Result<(), ApiError> {
        if !message.is_object() {
            return Err(wrong(at, &message, "an object with `role` and `content`"));
        }
        let within = |error: ApiError| error.within(at);
        let mut fields = Fields::inside(at, message, MESSAGE)?;
        let role = fields.required("role").and_then(|role| string("role", role)).map_err(within)?;
        let content = fields.required("content").map_err(within)?;
        let at_content = format!("{at}.content");
        let blocks = match content {
            Value::String(text) => vec![json!({"type": "text", "text": text})],
            Value::Array(blocks) => blocks,
            other => return Err(wrong(&at_content, &other, "a string or a list of blocks")),
        };
        match role.as_str() {
            "user" => self.take_user(&at_content, blocks),
            "assistant" => self.take_assistant(&at_content, blocks),
            // Instructions that come between two turns.
            "system" => {
                let text = texts(&at_content, blocks.into())?;
                self.push(&at_content, json!({"role": "system", "content": text}));
                Ok(())
            }
            other => Err(wrong(&format!("{at}.role"), &json!(other), "user, assistant or system")),
        }
    }

    fn take_user(&mut self, at: &str, blocks: Vec<Value>) -> Result<(), ApiError> {
        for (index, block) in blocks.into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            match block["type"].as_str() {
                Some("text") => self.push_user(&at, &text_block(&at, block)?),
                Some("tool_result") => {
                    let within = |error: ApiError| error.within(&at);
                    let mut fields = Fields::inside(&at, block, RESULT_BLOCK)?;
                    let id = fields.required("tool_use_id").and_then(|id| string("tool_use_id", id)).map_err(within)?;
                    let is_error = fields.boolean("is_error").map_err(within)?.unwrap_or(false);
                    let content = match fields.take("content") {
                        Some(content) => texts(&format!("{at}.content"), content)?,
                        None => String::new(),
                    };
                    // Templates know results, not whether they are good ones: the text says it.
                    let content = if is_error { format!("Error: {content}") } else { content };
                    self.push_result(&at, &id, &content);
                }
                _ => return Err(no_such_block(&at, "text and tool_result")),
            }
        }
        Ok(())
    }

    fn take_assistant(&mut self, at: &str, blocks: Vec<Value>) -> Result<(), ApiError> {
        let mut message = json!({"role": "assistant", "content": null});
        let mut calls = Vec::new();
        for (index, block) in blocks.into_iter().enumerate() {
            let at = format!("{at}[{index}]");
            let within = |error: ApiError| error.within(&at);
            match block["type"].as_str() {
                Some("text") => chat::append(&mut message, "content", &text_block(&at, block)?),
                Some("thinking") => {
                    let mut fields = Fields::inside(&at, block, THINKING_BLOCK)?;
                    let thought =
                        fields.required("thinking").and_then(|text| string("thinking", text)).map_err(within)?;
                    chat::append(&mut message, "reasoning_content", &thought);
                }
                // Another server's own, which nobody here can read.
                Some("redacted_thinking" | "server_tool_use" | "web_search_tool_result" | "web_fetch_tool_result") => {
                    ignore(at);
                }
                Some("tool_use") => {
                    let mut fields = Fields::inside(&at, block, USE_BLOCK)?;
                    let mut text = |name: &'static str| {
                        fields.required(name).and_then(|value| string(name, value)).map_err(within)
                    };
                    let (id, name) = (text("id")?, text("name")?);
                    let input = fields.object("input").map_err(within)?.unwrap_or_default();
                    let function = json!({"name": name, "arguments": input});
                    calls.push(json!({"id": id, "type": "function", "function": function}));
                }
                _ => return Err(no_such_block(&at, "text, thinking and tool_use")),
            }
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.push(at, message);
        Ok(())
    }
}

fn no_such_block(at: &str, known: &str) -> ApiError {
    ApiError::unsupported(
        at,
        format!("`{at}` is no block that is taken here; {known} are, as this model takes text only"),
    )
}

/// The text of a text block.
fn text_block(at: &str, block: Value) -> Result<String, ApiError> {
    if block["type"] != "text" {
        return Err(no_such_block(at, "text blocks"));
    }
    let within = |error: ApiError| error.within(at);
    let mut fields = Fields::inside(at, block, TEXT_BLOCK)?;
    fields.required("text").and_then(|text| string("text", text)).map_err(within)
}

/// A string, or text blocks, one a line.
fn texts(at: &str, content: Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(blocks) => {
            let text = |(index, block)| text_block(&format!("{at}[{index}]"), block);
            Ok(blocks.into_iter().enumerate().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
        }
        other => Err(wrong(at, &other, "a string or a list of text blocks")),
    }
}

/// Takes `thinking`: tells the template, and says how many tokens of reasoning there may be.
fn thinking(
    fields: &mut Fields,
    chat: &mut Map<String, Value>,
    max_tokens: Option<usize>,
    serving: &Serving,
) -> Result<Option<usize>, ApiError> {
    let effort = output_config(fields)?;
    chat.extend(effort.map(|effort| ("reasoning_effort".to_owned(), effort)));
    let Some(thinking) = fields.take("thinking") else { return Ok(None) };
    if !thinking.is_object() {
        return Err(wrong("thinking", &thinking, "an object with `type`"));
    }
    let within = |error: ApiError| error.within("thinking");
    let mut thinking = Fields::inside("thinking", thinking, THINKING)?;
    let kind = thinking.required("type").and_then(|kind| string("type", kind)).map_err(within)?;
    let enabled = match kind.as_str() {
        "enabled" => true,
        "disabled" => false,
        // As the model likes, which is what a template does that is told nothing.
        "adaptive" => return Ok(None),
        other => return Err(wrong("thinking.type", &json!(other), "enabled, disabled or adaptive")),
    };
    chat::switch_thinking(chat, enabled, "thinking", serving);
    let mut budget = None;
    if enabled {
        budget =
            thinking.integer("budget_tokens", 1, i64::from(u32::MAX)).map_err(within)?.map(|budget| budget as usize);
        if let (Some(budget), Some(max_tokens)) = (budget, max_tokens)
            && budget >= max_tokens
        {
            let message = format!("a budget of {budget} leaves nothing of `max_tokens`: {max_tokens}");
            return Err(ApiError::invalid("thinking.budget_tokens", message));
        }
    }
    thinking.finish(THINKING).map_err(within)?;
    Ok(budget)
}

/// `output_config`: how much effort the answer is worth, as the inner request has it.
fn output_config(fields: &mut Fields) -> Result<Option<Value>, ApiError> {
    let Some(config) = fields.take("output_config") else { return Ok(None) };
    Ok(Fields::inside("output_config", config, OUTPUT_CONFIG)?.take("effort"))
}

/// Takes `tools` and `tool_choice`, as the inner request has them.
fn take_tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(), ApiError> {
    match fields.take("tools") {
        None => {}
        Some(Value::Array(tools)) => {
            let tool = |(index, tool): (usize, Value)| {
                let at = format!("tools[{index}]");
                if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
                    // Left to those who know which kinds there are, with its name.
                    return Ok(json!({"type": kind}));
                }
                let mut fields = Fields::inside(&at, tool, TOOL)?;
                let mut function = Map::new();
                for (name, inner) in [("name", "name"), ("description", "description"), ("input_schema", "parameters")]
                {
                    function.extend(fields.take(name).map(|value| (inner.to_owned(), value)));
                }
                Ok(json!({"type": "function", "function": function}))
            };
            let tools = tools.into_iter().enumerate().map(tool).collect::<Result<Vec<_>, ApiError>>()?;
            chat.insert("tools".to_owned(), tools.into());
        }
        Some(other) => return Err(wrong("tools", &other, "a list of tools")),
    }
    let Some(choice) = fields.take("tool_choice") else { return Ok(()) };
    if !choice.is_object() {
        return Err(wrong("tool_choice", &choice, "an object with `type`"));
    }
    let within = |error: ApiError| error.within("tool_choice");
    let mut choice = Fields::inside("tool_choice", choice, CHOICE)?;
    let kind = choice.required("type").and_then(|kind| string("type", kind)).map_err(within)?;
    let inner = match kind.as_str() {
        "auto" | "none" => json!(kind),
        "any" => json!("required"),
        "tool" => {
            let name = choice.required("name").and_then(|name| string("name", name)).map_err(within)?;
            json!({"type": "function", "function": {"name": name}})
        }
        other => return Err(wrong("tool_choice.type", &json!(other), "auto, any, tool or none")),
    };
    chat.insert("tool_choice".to_owned(), inner);
    if let Some(single) = choice.boolean("disable_parallel_tool_use").map_err(within)? {
        chat.insert("parallel_tool_calls".to_owned(), (!single).into());
    }
    choice.finish(CHOICE).map_err(within)
}

/// How this interface writes a turn.
struct Messages {
    id: String,
    model: String,
    /// A stream has said that the message begins.
    begun: bool,
}

impl Messages {
    fn message(&self, content: Vec<Value>, finish: Option<&Finish>, progress: &Progress) -> Value {
        let (reason, sequence) = finish.map_or((Value::Null, Value::Null), stop_reason);
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content,
            "stop_reason": reason, "stop_sequence": sequence, "usage": usage(progress),
        })
    }

    /// A stream's first event, once it is known what of the prompt was cached.
    fn begin(&mut self, progress: &Progress) -> Option<NamedEvent> {
        if std::mem::replace(&mut self.begun, true) {
            return None;
        }
        let mut message = self.message(Vec::new(), None, progress);
        message["usage"]["output_tokens"] = 0.into();
        Some(event("message_start", json!({"message": message})))
    }
}

fn event(name: &'static str, mut data: Value) -> NamedEvent {
    data["type"] = name.into();
    NamedEvent { name, data }
}

fn stop_reason(finish: &Finish) -> (Value, Value) {
    match (finish.reason, &finish.stop) {
        ("tool_calls", _) => (json!("tool_use"), Value::Null),
        ("length", _) => (json!("max_tokens"), Value::Null),
        (_, Value::String(stop)) => (json!("stop_sequence"), json!(stop)),
        _ => (json!("end_turn"), Value::Null),
    }
}

/// Tokens of the prompt that were cached count apart, as in this interface.
fn usage(progress: &Progress) -> Value {
    json!({
        "input_tokens": progress.prompt_tokens - progress.cached_tokens,
        "cache_read_input_tokens": progress.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": progress.generated_tokens,
    })
}

fn block_json(block: &Block) -> Value {
    match &block.kind {
        BlockKind::Text => json!({"type": "text", "text": block.text}),
        BlockKind::Reasoning => json!({"type": "thinking", "thinking": block.text, "signature": ""}),
        BlockKind::Call(name) => {
            let mut call = json!({"type": "tool_use", "id": format!("toolu_{}", block.id), "name": name, "input": {}});
            match serde_json::from_str::<Value>(&block.text) {
                Ok(input) => call["input"] = input,
                // Cut by `max_tokens`: what there is of it.
                Err(_) => call["x_hotmetal"] = json!({"partial_json": block.text}),
            }
            call
        }
    }
}

impl TurnFormat for Messages {
    fn begin(&mut self) -> Vec<NamedEvent> {
        Vec::new()
    }

    fn changed(&mut self, blocks: &[Block], change: Change, progress: &Progress) -> Vec<NamedEvent> {
        let mut events = Vec::from_iter(self.begin(progress));
        events.push(match change {
            Change::Opened(index) => {
                let block = Block { text: String::new(), ..blocks[index].clone() };
                let mut content_block = block_json(&block);
                if let Some(block) = content_block.as_object_mut() {
                    block.shift_remove("x_hotmetal");
                }
                event("content_block_start", json!({"index": index, "content_block": content_block}))
            }
            Change::Added(index, text) => {
                let delta = match blocks[index].kind {
                    BlockKind::Text => json!({"type": "text_delta", "text": text}),
                    BlockKind::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
                    BlockKind::Call(_) => json!({"type": "input_json_delta", "partial_json": text}),
                };
                event("content_block_delta", json!({"index": index, "delta": delta}))
            }
            Change::Closed(index) => event("content_block_stop", json!({"index": index})),
        });
        events
    }

    fn end(&mut self, _: &[Block], finish: &Finish, progress: &Progress) -> Vec<NamedEvent> {
        let (reason, sequence) = stop_reason(finish);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        let last = json!({"delta": delta, "usage": usage(progress), "x_hotmetal": progress.facts});
        let mut events = Vec::from_iter(self.begin(progress));
        events.extend([event("message_delta", last), event("message_stop", json!({}))]);
        events
    }

    fn failed(&mut self, _: &[Block], error: &ApiError) -> Vec<NamedEvent> {
        vec![event("error", error.to_anthropic_json())]
    }

    fn whole(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        let mut message = self.message(blocks.iter().map(block_json).collect(), Some(finish), progress);
        message["x_hotmetal"] = progress.facts.clone();
        message
    }
}

/// The format of an answer, for tests without a server.
#[cfg(test)]
pub(crate) fn tests_format() -> impl TurnFormat {
    Messages { id: "msg".to_owned(), model: "tiny".to_owned(), begun: false }
}
