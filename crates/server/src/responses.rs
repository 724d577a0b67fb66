//! `/v1/responses`: OpenAI's newer interface. A request becomes the conversation that `/v1/chat/completions` takes, so that
//! both mean the same; the answer is written in items. Nothing is stored: a client sends the whole conversation each time.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::{App, Serving};
use crate::chat;
use crate::choice::Finish;
use crate::clock::unix_time;
use crate::error::ApiError;
use crate::fields::{self, Field, Fields, applied, hint, ignore, only, string, wrong};
use crate::generation::{Plan, Progress, prepared};
use crate::ids::random_id;
use crate::security::KeyNumber;
use crate::turn::{self, Block, BlockKind, Change, Conversation, NamedEvent, TurnFormat};

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
    let format =
        Responses { id: random_id("resp").replacen('-', "_", 1), created: unix_time(), echoed, sequence_number: 0 };
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
    const KNOWN: &[&[Field]] = &[&[hint("include_obfuscation", "chunks are not padded")]];
    match fields.take("stream_options") {
        Some(options) if options.is_object() => {
            if !is_stream {
                ignore("stream_options");
            }
            Fields::inside("stream_options", options, KNOWN).map(drop)
        }
        Some(other) => Err(wrong("stream_options", &other, "an object")),
        None => Ok(()),
    }
}

/// `text`: the format as the inner request has it, and the verbosity.
fn text_format(fields: &mut Fields) -> Result<(Option<Value>, Option<Value>), ApiError> {
    const TEXT: &[&[Field]] = &[&[applied("format"), applied("verbosity")]];
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
    const KNOWN: &[&[Field]] = &[&[
        applied("effort"),
        hint("summary", "reasoning is shown as it is, and not summed up"),
        hint("generate_summary", "reasoning is shown as it is, and not summed up"),
    ]];
    let Some(reasoning) = fields.take("reasoning") else { return Ok(None) };
    if !reasoning.is_object() {
        return Err(wrong("reasoning", &reasoning, "an object with `effort`"));
    }
    let within = |error: ApiError| error.within("reasoning");
    Fields::inside("reasoning", reasoning, KNOWN)?.string("effort").map_err(within)
}

/// The tools as an answer repeats them: with `type` beside the function's own fields.
fn take_tools(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    const TOOL: &[&[Field]] = &[&[
        applied("type"),
        applied("name"),
        applied("description"),
        applied("parameters"),
        hint("strict", "arguments are held to their schema where `tool_choice` makes the model call"),
    ]];
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

impl Conversation {
    /// The assistant's message that is being put together: its reasoning, text and calls are items of their own here.
    fn assistant(&mut self, at: &str) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.push(at, json!({"role": "assistant", "content": null}));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn take_item(&mut self, at: &str, item: Value) -> Result<(), ApiError> {
        const MESSAGE: &[&[Field]] = &[&[
            applied("type"),
            applied("role"),
            applied("content"),
            hint("id", "it is an echo"),
            hint("status", "it is an echo"),
        ]];
        const CALL: &[&[Field]] = &[&[
            applied("type"),
            applied("call_id"),
            applied("name"),
            applied("arguments"),
            hint("id", "it is an echo"),
            hint("status", "it is an echo"),
        ]];
        const RESULT: &[&[Field]] = &[&[
            applied("type"),
            applied("call_id"),
            applied("output"),
            hint("id", "it is an echo"),
            hint("status", "it is an echo"),
        ]];
        const REASONING: &[&[Field]] = &[&[
            applied("type"),
            applied("content"),
            hint("summary", "the model is shown what it thought"),
            hint("encrypted_content", "nobody here can read it"),
            hint("id", "it is an echo"),
            hint("status", "it is an echo"),
        ]];
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
                    "`{at}` is an item of type `{other}`; message, function_call, function_call_output and reasoning are \
                     taken"
                );
                return Err(ApiError::unsupported(at, message));
            }
        }
        Ok(())
    }
}

/// A string, or parts that hold text.
fn texts(at: &str, content: Value) -> Result<String, ApiError> {
    const PART: &[&[Field]] =
        &[&[applied("type"), applied("text"), hint("annotations", "it is an echo"), hint("logprobs", "it is an echo")]];
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

/// How this interface writes a turn.
struct Responses {
    id: String,
    created: u64,
    /// What of the request an answer repeats.
    echoed: Map<String, Value>,
    /// Of a stream's next event.
    sequence_number: u64,
}

impl Responses {
    fn response(&self, status: &str, output: Vec<Value>, progress: Option<&Progress>) -> Value {
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": null,
            "incomplete_details": null, "output": output,
        });
        for (name, value) in &self.echoed {
            response[name] = value.clone();
        }
        response["usage"] = progress.map_or(Value::Null, |progress| {
            json!({
                "input_tokens": progress.prompt_tokens,
                "input_tokens_details": {"cached_tokens": progress.cached_tokens},
                "output_tokens": progress.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": progress.reasoning_tokens},
                "total_tokens": progress.prompt_tokens + progress.generated_tokens,
            })
        });
        if let Some(progress) = progress {
            response["x_hotmetal"] = progress.facts.clone();
        }
        response
    }

    fn ended(&self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        let is_cut = finish.reason == "length";
        let status = |index: usize| if is_cut && index + 1 == blocks.len() { "incomplete" } else { "completed" };
        let items = blocks.iter().enumerate().map(|(index, block)| item(block, status(index))).collect();
        let mut response = self.response(if is_cut { "incomplete" } else { "completed" }, items, Some(progress));
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        response
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> NamedEvent {
        data["type"] = name.into();
        data["sequence_number"] = self.sequence_number.into();
        self.sequence_number += 1;
        NamedEvent { name, data }
    }
}

fn item_id(block: &Block) -> String {
    let prefix = match block.kind {
        BlockKind::Text => "msg",
        BlockKind::Reasoning => "rs",
        BlockKind::Call(_) => "fc",
    };
    format!("{prefix}_{}", block.id)
}

fn part(block: &Block) -> Value {
    match block.kind {
        BlockKind::Reasoning => json!({"type": "reasoning_text", "text": block.text}),
        _ => json!({"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}),
    }
}

fn item(block: &Block, status: &str) -> Value {
    let id = item_id(block);
    match &block.kind {
        BlockKind::Text => {
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": [part(block)]})
        }
        BlockKind::Reasoning => {
            json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": [part(block)]})
        }
        BlockKind::Call(name) => json!({
            "id": id, "type": "function_call", "status": status, "call_id": format!("call_{}", block.id), "name": name,
            "arguments": block.text,
        }),
    }
}

impl TurnFormat for Responses {
    fn begin(&mut self) -> Vec<NamedEvent> {
        let response = self.response("in_progress", Vec::new(), None);
        vec![
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
        ]
    }

    fn changed(&mut self, blocks: &[Block], change: Change, _: &Progress) -> Vec<NamedEvent> {
        let (Change::Opened(index) | Change::Added(index, _) | Change::Closed(index)) = change;
        let block = &blocks[index];
        let at = |more: Value| {
            let mut data = json!({"item_id": item_id(block), "output_index": index});
            for (name, value) in more.as_object().into_iter().flatten() {
                data[name] = value.clone();
            }
            data
        };
        let in_part = |more: Value| {
            let mut data = at(more);
            data["content_index"] = 0.into();
            data
        };
        match (change, &block.kind) {
            (Change::Opened(_), kind) => {
                let mut begun = item(&Block { text: String::new(), ..block.clone() }, "in_progress");
                let is_call = matches!(kind, BlockKind::Call(_));
                let empty = part(&Block { text: String::new(), ..block.clone() });
                if !is_call {
                    begun["content"] = json!([]);
                }
                let added = json!({"output_index": index, "item": begun});
                let mut events = vec![self.event("response.output_item.added", added)];
                if !is_call {
                    events.push(self.event("response.content_part.added", in_part(json!({"part": empty}))));
                }
                events
            }
            (Change::Added(_, text), BlockKind::Text) => {
                let data = in_part(json!({"delta": text, "logprobs": []}));
                vec![self.event("response.output_text.delta", data)]
            }
            (Change::Added(_, text), BlockKind::Reasoning) => {
                vec![self.event("response.reasoning_text.delta", in_part(json!({"delta": text})))]
            }
            (Change::Added(_, text), BlockKind::Call(_)) => {
                vec![self.event("response.function_call_arguments.delta", at(json!({"delta": text})))]
            }
            (Change::Closed(_), kind) => {
                let done = match kind {
                    BlockKind::Text => {
                        ("response.output_text.done", in_part(json!({"text": block.text, "logprobs": []})))
                    }
                    BlockKind::Reasoning => ("response.reasoning_text.done", in_part(json!({"text": block.text}))),
                    BlockKind::Call(name) => {
                        let data = at(json!({"name": name, "arguments": block.text}));
                        ("response.function_call_arguments.done", data)
                    }
                };
                let mut events = vec![self.event(done.0, done.1)];
                if !matches!(kind, BlockKind::Call(_)) {
                    events.push(self.event("response.content_part.done", in_part(json!({"part": part(block)}))));
                }
                let done = json!({"output_index": index, "item": item(block, "completed")});
                events.push(self.event("response.output_item.done", done));
                events
            }
        }
    }

    fn end(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Vec<NamedEvent> {
        let response = self.ended(blocks, finish, progress);
        let name = if finish.reason == "length" { "response.incomplete" } else { "response.completed" };
        vec![self.event(name, json!({"response": response}))]
    }

    fn failed(&mut self, blocks: &[Block], error: &ApiError) -> Vec<NamedEvent> {
        let items = blocks.iter().map(|block| item(block, "incomplete")).collect();
        let mut response = self.response("failed", items, None);
        let error = &error.to_json()["error"];
        response["error"] = json!({"code": error["code"], "message": error["message"]});
        vec![self.event("response.failed", json!({"response": response}))]
    }

    fn whole(&mut self, blocks: &[Block], finish: &Finish, progress: &Progress) -> Value {
        self.ended(blocks, finish, progress)
    }
}

/// The format of an answer, for tests without a server.
#[cfg(test)]
pub(crate) fn tests_format() -> impl TurnFormat {
    Responses { id: "resp".to_owned(), created: 0, echoed: Map::new(), sequence_number: 0 }
}
