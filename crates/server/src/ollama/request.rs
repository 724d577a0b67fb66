//! What a request of `/api/chat` or `/api/generate` becomes: a conversation for the chat route, or a text for the route
//! of texts.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::options;
use crate::app::Serving;
use crate::error::ApiError;
use crate::fields::{self, Field, Fields, applied, hint, ignore, only, string, wrong};
use crate::generation::Plan;
use crate::turn::Conversation;
use crate::{chat as openai, completions, tools};

/// A message.
pub(crate) const MESSAGE: &[&[Field]] = &[&[
    applied("role"),
    applied("content"),
    applied("thinking"),
    applied("tool_calls"),
    applied("tool_call_id"),
    applied("tool_name"),
    applied("name"),
    only("images", is_empty, "this model takes text only"),
]];

/// Fields of both routes.
pub(crate) const COMMON: &[Field] = &[
    applied("model"),
    applied("stream"),
    applied("options"),
    applied("format"),
    applied("think"),
    hint("keep_alive", "--sleep-idle-seconds of the server says how long a model stays loaded"),
    only("logprobs", |value| value == false, "/v1/chat/completions gives them"),
    only("top_logprobs", |value| value == 0, "/v1/chat/completions gives them"),
    only("truncate", |value| value == false, "a prompt is never cut; send what fits"),
    only("shift", |value| value == false, "a text ends where the context does"),
];

/// Fields of `/api/chat` alone.
pub(crate) const CHAT: &[Field] = &[applied("messages"), applied("tools")];

/// Fields of `/api/generate` alone.
pub(crate) const GENERATE: &[Field] = &[
    applied("prompt"),
    applied("suffix"),
    applied("system"),
    applied("raw"),
    only("template", |value| value == "", "the server's --chat-template says it, and `raw` does without one"),
    only("context", is_empty, "`messages` of /api/chat hold what was said before"),
    only("images", is_empty, "this model takes text only"),
];

const CHAT_KNOWN: &[&[Field]] = &[COMMON, CHAT];
const GENERATE_KNOWN: &[&[Field]] = &[COMMON, GENERATE];

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// What a request asks for.
pub(super) struct Wanted {
    /// The model, as the request names it; nothing, if that is another model's name.
    pub(super) model: Option<String>,
    /// What is to be generated from which prompt; without it, that the model is loaded.
    pub(super) work: Option<(Plan, Vec<u32>)>,
}

/// A request of `/api/chat`.
pub(super) fn chat(body: Value, serving: &Arc<Serving>, key: u64) -> Result<Wanted, ApiError> {
    let mut fields = Fields::new(body, CHAT_KNOWN)?;
    let (model, mut inner) = common(&mut fields, serving)?;
    let messages = match fields.take("messages") {
        None => Vec::new(),
        Some(Value::Array(messages)) => messages,
        Some(other) => return Err(wrong("messages", &other, "a list of messages")),
    };
    inner.extend(fields.take("tools").map(|tools| ("tools".to_owned(), tools)));
    take_think(&mut fields, &mut inner, serving)?;
    fields.finish(CHAT_KNOWN)?;
    if messages.is_empty() {
        // Nothing is generated; tools that could not be shown are refused all the same.
        if let Some(tools) = inner.remove("tools") {
            tools::take(&mut Fields::new(json!({"tools": tools}), &[&[applied("tools")]])?, serving)?;
        }
        return Ok(Wanted { model, work: None });
    }
    let mut reader = Messages::default();
    for (index, message) in messages.into_iter().enumerate() {
        reader.take(&format!("messages[{index}]"), message)?;
    }
    let work = converse(reader.conversation, inner, "messages", serving, key)?;
    Ok(Wanted { model, work: Some(work) })
}

/// A request of `/api/generate`.
pub(super) fn generate(body: Value, serving: &Arc<Serving>, key: u64) -> Result<Wanted, ApiError> {
    let mut fields = Fields::new(body, GENERATE_KNOWN)?;
    let (model, mut inner) = common(&mut fields, serving)?;
    let mut text =
        |name: &'static str| Ok::<_, ApiError>(fields.string(name)?.filter(|text: &String| !text.is_empty()));
    let (prompt, suffix, system) = (text("prompt")?, text("suffix")?, text("system")?);
    let raw = fields.boolean("raw")?.unwrap_or(false);
    if prompt.is_none() && suffix.is_none() {
        take_think(&mut fields, &mut inner, serving)?;
        fields.finish(GENERATE_KNOWN)?;
        return Ok(Wanted { model, work: None });
    }
    // Without a template, a prompt is a text that goes on. A template that cannot be used is said to be one.
    let has_template = serving.template(false).is_some() || serving.template_fault.is_some();
    if raw || suffix.is_some() || !has_template {
        if let Some(system) = system {
            let message = "`system` is shown by the chat template, which `raw` and `suffix` do without";
            drop(system);
            return Err(ApiError::invalid("system", message));
        }
        if fields.take("think").is_some_and(|think| think != false) {
            ignore("think");
        }
        fields.finish(GENERATE_KNOWN)?;
        // Where nobody asked for a raw text, the words are a user's.
        if !raw {
            inner.insert("parse_special".to_owned(), false.into());
        }
        inner.insert("prompt".to_owned(), prompt.unwrap_or_default().into());
        inner.extend(suffix.map(|suffix| ("suffix".to_owned(), suffix.into())));
        // That route's own default is short.
        inner.entry("max_tokens").or_insert((-1).into());
        let rename = |name: &str| outer_name(name, &[]);
        let (mut plan, prompt) = fields::inner(rename, || completions::prepare_one(inner.into(), serving, key))?;
        plan.max_tokens_field = "options.num_predict";
        return Ok(Wanted { model, work: Some((plan, prompt)) });
    }
    take_think(&mut fields, &mut inner, serving)?;
    fields.finish(GENERATE_KNOWN)?;
    let mut conversation = Conversation::default();
    if let Some(system) = system {
        conversation.push("system", json!({"role": "system", "content": system}));
    }
    conversation.push("prompt", json!({"role": "user", "content": prompt}));
    let work = converse(conversation, inner, "prompt", serving, key)?;
    Ok(Wanted { model, work: Some(work) })
}

/// Takes the fields that both routes have, into an inner request, and the model's name.
fn common(fields: &mut Fields, serving: &Serving) -> Result<(Option<String>, Map<String, Value>), ApiError> {
    let model = fields.string("model")?;
    serving.check_model(model.as_deref())?;
    let model = model.filter(|asked| serving.is_named(asked));
    let mut inner = Map::new();
    // Streams are what this interface sends where nothing is said.
    inner.insert("stream".to_owned(), fields.boolean("stream")?.unwrap_or(true).into());
    options::take(fields, &mut inner)?;
    match fields.take("format") {
        None => {}
        Some(Value::String(format)) if format.is_empty() => {}
        Some(Value::String(format)) if format == "json" => {
            inner.insert("response_format".to_owned(), json!({"type": "json_object"}));
        }
        Some(schema @ Value::Object(_)) => {
            inner.insert("json_schema".to_owned(), schema);
        }
        Some(other) => return Err(wrong("format", &other, "\"json\" or a JSON schema")),
    }
    Ok((model, inner))
}

/// Takes `think`: whether the model is to think, or how much.
fn take_think(fields: &mut Fields, inner: &mut Map<String, Value>, serving: &Serving) -> Result<(), ApiError> {
    match fields.take("think") {
        None => {}
        Some(Value::Bool(enabled)) => openai::switch_thinking(inner, enabled, "think", serving),
        Some(Value::String(effort)) if ["low", "medium", "high"].contains(&&*effort) => {
            openai::switch_thinking(inner, true, "think", serving);
            inner.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(other) => return Err(wrong("think", &other, "true, false, \"low\", \"medium\" or \"high\"")),
    }
    Ok(())
}

/// The plan and the prompt of a conversation.
fn converse(
    conversation: Conversation,
    mut inner: Map<String, Value>,
    prompt_field: &'static str,
    serving: &Arc<Serving>,
    key: u64,
) -> Result<(Plan, Vec<u32>), ApiError> {
    let Conversation { messages, origins } = conversation;
    // An answer goes on with the words that it is given.
    if messages.last().is_some_and(openai::can_go_on) {
        inner.insert("continue_final_message".to_owned(), true.into());
    }
    inner.insert("messages".to_owned(), messages.into());
    let rename = |name: &str| outer_name(name, &origins);
    let (mut plan, prompt, _) = fields::inner(rename, || openai::prepare(inner.into(), serving, key))?;
    (plan.prompt_field, plan.max_tokens_field) = (prompt_field, "options.num_predict");
    Ok((plan, prompt))
}

/// What this interface calls a field of the inner request. `origins` are the paths of its messages.
fn outer_name(name: &str, origins: &[String]) -> String {
    if let Some((index, rest)) = name.strip_prefix("messages[").and_then(|rest| rest.split_once(']')) {
        let origin = index.parse().ok().and_then(|index: usize| origins.get(index));
        let Some(origin) = origin else { return "messages".to_owned() };
        if !origin.starts_with("messages[") {
            // A text of `/api/generate`, which is a field of its own.
            return origin.clone();
        }
        let rest = match rest {
            ".name" => ".tool_name",
            rest => rest,
        };
        return format!("{origin}{}", rest.replace(".reasoning_content", ".thinking"));
    }
    for inner in ["response_format", "json_schema"] {
        if let Some(rest) = name.strip_prefix(inner) {
            return format!("format{rest}");
        }
    }
    match name {
        "max_completion_tokens" => "options.num_predict".to_owned(),
        "chat_template_kwargs" | "chat_template_kwargs.enable_thinking" | "reasoning_effort" => "think".to_owned(),
        // A prompt is the last message of what it becomes.
        "messages" | "continue_final_message" => match origins.last() {
            Some(origin) if !origin.starts_with("messages[") => origin.clone(),
            _ => "messages".to_owned(),
        },
        name => options::outer_name(name).unwrap_or_else(|| name.to_owned()),
    }
}

/// Reads the messages of a conversation in their order.
#[derive(Default)]
struct Messages {
    conversation: Conversation,
    num_calls: usize,
    /// The ids of the last message's calls, with the names of their functions, whose results have not come.
    unanswered: VecDeque<(String, String)>,
}

impl Messages {
    fn take(&mut self, at: &str, message: Value) -> Result<(), ApiError> {
        if !message.is_object() {
            return Err(wrong(at, &message, "an object with `role` and `content`"));
        }
        let mut fields = Fields::inside(at, message, MESSAGE)?;
        let mut inner = Map::new();
        for (outer, name) in [
            ("role", "role"),
            ("content", "content"),
            ("thinking", "reasoning_content"),
            ("tool_calls", "tool_calls"),
            ("tool_call_id", "tool_call_id"),
            ("name", "name"),
            ("tool_name", "name"),
        ] {
            inner.extend(fields.take(outer).map(|value| (name.to_owned(), value)));
        }
        if let Some(Value::Array(calls)) = inner.get_mut("tool_calls") {
            self.unanswered.clear();
            calls.iter_mut().for_each(|call| self.call(call));
        }
        if inner.get("role").is_some_and(|role| role == "tool") {
            self.result(at, &mut inner)?;
        }
        self.conversation.push(at, inner.into());
        Ok(())
    }

    /// Gives a call an id, if it has none.
    fn call(&mut self, call: &mut Value) {
        let Some(call) = call.as_object_mut() else { return };
        if let Some(function) = call.get_mut("function").and_then(Value::as_object_mut) {
            // Calls stand in their order anyway, and this server's answers have it.
            function.shift_remove("index");
        }
        let given = call.get("id").and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
        let id = given.unwrap_or_else(|| format!("call{:05}", self.num_calls % 100_000));
        self.num_calls += 1;
        let name = call.get("function").and_then(|function| function["name"].as_str()).unwrap_or_default();
        self.unanswered.push_back((id.clone(), name.to_owned()));
        call.insert("id".to_owned(), id.into());
    }

    /// Finds the call that a result belongs to: by its id, else by the function's name, else in the order of the calls.
    fn result(&mut self, at: &str, result: &mut Map<String, Value>) -> Result<(), ApiError> {
        let name = result.get("name").cloned().map(|name| string("tool_name", name)).transpose();
        let name = name.map_err(|error| error.within(at))?;
        let place = match (result.get("tool_call_id").and_then(Value::as_str), &name) {
            (Some(id), _) => self.unanswered.iter().position(|(call, _)| call == id),
            (None, Some(name)) => self.unanswered.iter().position(|(_, called)| called == name).or(Some(0)),
            (None, None) => Some(0),
        };
        if let Some((id, _)) = place.and_then(|place| self.unanswered.remove(place)) {
            result.insert("tool_call_id".to_owned(), id.into());
        }
        // The templates that show the name of a result know it by the call.
        result.shift_remove("name");
        Ok(())
    }
}
