//! `/v1/chat/completions`.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use engine::TokenLogprobs;
use serde_json::{Map, Value, json};
use tokenizer::Prompt;
use tokenizer::chat_template::{ChatTemplate, RenderInput};

use crate::app::{App, Serving};
use crate::choice::Delta;
use crate::clock::{local_now, unix_time};
use crate::dialect::{Controls, Function, Part, Reasoning};
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, ignore, only, wrong};
use crate::generation::{self, Format, Plan, prepared};
use crate::grammar::{Asked, AskedKind};
use crate::ids::random_id;
use crate::llama_cpp::build_info;
use crate::logprobs::Scored;
use crate::options::FIXED_VARIABLES;
use crate::prompts::TooLong;
use crate::reply::ReplyReader;
use crate::sampling::{self, Settings};
use crate::security::KeyNumber;
use crate::template_profile::ToolForm;
use crate::tools::{self, ToolChoice};
use crate::{abandoned, generic_tools, grammar, logprobs, messages, prompts, token_rules};

/// Fields of a conversation that is to be rendered; `/apply-template` and `/tokenize` have them too.
pub(crate) const PROMPT_FIELDS: &[Field] = &[
    applied("messages"),
    applied("tools"),
    applied("chat_template_kwargs"),
    applied("reasoning_effort"),
    applied("add_generation_prompt"),
    applied("continue_final_message"),
    only("chat_template", |_| false, "the server's --chat-template says it"),
    only("documents", is_empty, "templates are given messages and tools"),
];

/// Fields of this route alone.
pub(crate) const FIELDS: &[Field] = &[
    applied("max_tokens"),
    applied("max_completion_tokens"),
    applied("n_predict"),
    applied("logprobs"),
    applied("top_logprobs"),
    applied("prompt_logprobs"),
    only("functions", is_empty, "it is the old name of `tools`"),
    hint("prediction", "nothing is speculated from it, and the text is the same"),
    hint("verbosity", "the model decides"),
    only("function_call", |value| value == "none", "it is the old name of `tool_choice`"),
    only("modalities", |value| *value == json!(["text"]), "answers are text"),
    only("audio", |_| false, "answers are text"),
    only("web_search_options", |_| false, "the server opens no connection"),
    only("echo", |value| value == false, "it belongs to /v1/completions"),
];

const KNOWN: &[&[Field]] =
    &[sampling::COMMON, sampling::FIELDS, grammar::FIELDS, token_rules::FIELDS, tools::FIELDS, PROMPT_FIELDS, FIELDS];

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

/// What a conversation is rendered from.
pub(crate) struct Conversation {
    messages: Vec<Value>,
    tools: Vec<Value>,
    extra: Map<String, Value>,
    add_generation_prompt: bool,
    /// The answer goes on with the last message, which is the assistant's.
    continues: bool,
}

impl Conversation {
    /// Takes the fields of a conversation.
    pub(crate) fn take(fields: &mut Fields, serving: &Serving) -> Result<Self, ApiError> {
        let tools = tools::take(fields, serving)?;
        let template = template_of(serving, !tools.is_empty())?;
        let profile = serving.profile(!tools.is_empty());
        let can = template.capabilities();
        let form = serving.tool_form();
        let shows_calls = form != ToolForm::None || (can.tool_calls && can.tool_results);
        let mut messages = fields.required("messages")?;
        let is_prefix = take_prefix(&mut messages)?;
        let messages = messages::check(messages, can, profile, shows_calls)?;
        let mut extra = fields.object("chat_template_kwargs")?.unwrap_or_default();
        if let Some(name) = extra.keys().find(|name| FIXED_VARIABLES.contains(&name.as_str())) {
            let message = format!("`{name}` is what the request's other fields say");
            return Err(ApiError::unsupported(format!("chat_template_kwargs.{name}"), message));
        }
        extra.retain(|name, _| {
            let reads = template.reads(name);
            if !reads {
                ignore(format!("chat_template_kwargs.{name}"));
            }
            reads
        });
        for (name, value) in &serving.template_defaults {
            if template.reads(name) && !extra.contains_key(name) {
                extra.insert(name.clone(), value.clone());
            }
        }
        if let Some(effort) = fields.string("reasoning_effort")? {
            if profile.takes_effort {
                extra.insert("reasoning_effort".to_owned(), effort.into());
            } else {
                ignore("reasoning_effort");
            }
        }
        let continues = fields.boolean("continue_final_message")?.unwrap_or(is_prefix);
        let add_generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(!continues);
        if continues {
            check_continued(&messages, add_generation_prompt)?;
        }
        Ok(Self { messages, tools, extra, add_generation_prompt, continues })
    }

    /// Whether tools are offered.
    fn has_tools(&self) -> bool {
        !self.tools.is_empty()
    }

    /// The conversation as the template is given it: without tools where these are told in words.
    fn shown(&self, serving: &Serving) -> (Cow<'_, [Value]>, &[Value]) {
        let says_tools = |message: &Value| message["role"] == "tool" || !message["tool_calls"].is_null();
        let is_generic =
            serving.tool_form() == ToolForm::Generic && (self.has_tools() || self.messages.iter().any(says_tools));
        let (template, profile) = (serving.template(self.has_tools()), serving.profile(self.has_tools()));
        let system = template.is_some_and(|template| template.capabilities().system);
        let (mut messages, tools): (Cow<'_, [Value]>, &[Value]) = match is_generic {
            true => (generic_tools::in_words(self.messages.clone(), &self.tools, system).into(), &[]),
            false => (Cow::Borrowed(&self.messages), &self.tools),
        };
        let told = profile.tools.filter(|_| profile.calls_are_text && !is_generic);
        if let Some(told) = told.and_then(|syntax| syntax.dialect().told.as_ref())
            && messages.iter().any(|message| !message["tool_calls"].is_null())
        {
            let shown = |message: Value| match message["tool_calls"].is_null() {
                true => message,
                false => generic_tools::with_calls_in_text(message, told.write),
            };
            messages = messages.into_owned().into_iter().map(shown).collect::<Vec<_>>().into();
        }
        if messages::repeats(&messages, profile) {
            messages = messages::in_turns(messages.into_owned(), profile).into();
        }
        if let Some(last) = self.continues.then(|| messages.to_mut().last_mut()).flatten() {
            last["content"] = format!("{}{GOES_ON}", messages::text_of(&last["content"])).into();
        }
        (messages, tools)
    }

    /// What the model sees.
    pub(crate) fn render(&self, serving: &Serving) -> Result<Prompt, ApiError> {
        let tokenizer = &serving.tokenizer;
        let text_of = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
        let (messages, tools) = self.shown(serving);
        let input = RenderInput {
            tools: Some(tools).filter(|tools| !tools.is_empty()),
            add_generation_prompt: self.add_generation_prompt,
            bos_token: text_of(tokenizer.bos_id()),
            eos_token: text_of(tokenizer.eos_ids().first().copied()),
            extra: self.extra.clone(),
            ..RenderInput::new(&messages, local_now())
        };
        let rendered =
            Prompt::render(template_of(serving, self.has_tools())?, &input, tokenizer, serving.special_in_messages);
        let mut prompt = rendered.map_err(|error| ApiError::invalid("messages", error.to_string()))?;
        if self.continues {
            prompt.truncate(continued(prompt.text(), &self.given())?);
        }
        Ok(prompt)
    }

    /// The words that the answer goes on with.
    fn given(&self) -> String {
        self.messages.last().map(|last| messages::text_of(&last["content"])).unwrap_or_default()
    }

    /// How the answer to this prompt begins, and its reader.
    fn reader(&self, prompt: &str, serving: &Serving) -> (Reasoning, ReplyReader) {
        let syntax = serving.tool_form().syntax().filter(|syntax| self.has_tools() || syntax.frames_all());
        let tags = serving.profile(self.has_tools()).thought_tags();
        let reader = |reasoning| ReplyReader::new(reasoning, syntax, Function::offered(&self.tools)).thinking_in(tags);
        let reasoning = serving.profile(self.has_tools()).reasoning(prompt);
        let given = if self.continues { self.given() } else { String::new() };
        if given.trim().is_empty() {
            return (reasoning, reader(reasoning));
        }
        if reasoning == Reasoning::Channels {
            return (reasoning, reader(reasoning).within_content());
        }
        // The given words may have begun a thought.
        let thinks = tags.are_open_in(&given);
        let reasoning = if thinks { Reasoning::Open } else { Reasoning::None };
        (reasoning, if thinks { reader(reasoning) } else { reader(reasoning).within_content() })
    }

    /// The ids that the model sees, however many they are.
    pub(crate) fn encode(&self, serving: &Serving) -> Result<Vec<u32>, ApiError> {
        Ok(self.render(serving)?.encode_within(&serving.tokenizer, &abandoned::bounds(usize::MAX))?)
    }
}

/// Whether an answer can go on with this message.
pub(crate) fn can_go_on(message: &Value) -> bool {
    message["role"] == "assistant" && message["tool_calls"].is_null() && !message["content"].is_null()
}

/// Whether the last message says itself that the answer goes on with it: `prefix` in DeepSeek's and Mistral's interfaces,
/// `partial` in Moonshot's and Qwen's.
fn take_prefix(messages: &mut Value) -> Result<bool, ApiError> {
    let Some(messages) = messages.as_array_mut() else { return Ok(false) };
    let at = messages.len().saturating_sub(1);
    let Some(last) = messages.last_mut().and_then(Value::as_object_mut) else { return Ok(false) };
    if last.get("role").is_none_or(|role| role != "assistant") {
        return Ok(false);
    }
    let mut is_prefix = false;
    for name in ["prefix", "partial"] {
        match last.shift_remove(name) {
            None | Some(Value::Null | Value::Bool(false)) => {}
            Some(Value::Bool(true)) => is_prefix = true,
            Some(value) => return Err(wrong(&format!("messages[{at}].{name}"), &value, "true or false")),
        }
    }
    Ok(is_prefix)
}

/// That the last message can be gone on with.
fn check_continued(messages: &[Value], add_generation_prompt: bool) -> Result<(), ApiError> {
    if add_generation_prompt {
        let message =
            "`continue_final_message` goes on with the last message, and `add_generation_prompt` begins another";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    if !messages.last().is_some_and(can_go_on) {
        let message = "`continue_final_message` needs a last message of the assistant's, with a text";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    Ok(())
}

/// Stands where an answer goes on, while the conversation is rendered: what the text ends with may stand in what the template
/// writes behind a message, too. The space shows whether the template takes spaces off a message.
const GOES_ON: &str = "\u{fdd1}goes-on\u{fdd1} ";

/// How much of a conversation that was rendered with [`GOES_ON`] behind its last message lies before it, in bytes. Where the
/// template takes spaces off a message, they are taken off here too: so the model has seen messages.
fn continued(text: &str, said: &str) -> Result<usize, ApiError> {
    let Some(end) = text.rfind(GOES_ON.trim_end()) else {
        let message = "this model's chat template does not show the last message, so nothing can go on with it";
        return Err(ApiError::unsupported("continue_final_message", message));
    };
    let keeps_space = text[end..].starts_with(GOES_ON);
    let ends_in_space = !keeps_space && said.ends_with(char::is_whitespace);
    Ok(if ends_in_space { text[..end].trim_end().len() } else { end })
}

fn template_of(serving: &Serving, with_tools: bool) -> Result<&ChatTemplate, ApiError> {
    serving.template(with_tools).ok_or_else(|| {
        let why = match &serving.template_fault {
            Some(fault) => format!("this model's chat template cannot be used ({fault})"),
            None => "this model has no chat template".to_owned(),
        };
        let message = format!(
            "{why}, so it holds no conversations: /v1/completions continues text, and the server's --chat-template \
             gives it another"
        );
        ApiError::unsupported("messages", message)
    })
}

/// Answers a conversation.
pub(crate) async fn chat_completions(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompt, wants_logprobs), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    let format = ChatFormat {
        id: random_id("chatcmpl"),
        created: unix_time(),
        wants_logprobs,
        return_token_ids: plan.settings.return_token_ids,
        num_calls: vec![0; plan.settings.num_completions],
        prompt_ids: plan.settings.return_token_ids.then(|| prompt.clone()),
        scored: plan.prompt_logprobs.map(|_| Scored::new(&prompt)),
        serving: Arc::clone(&serving),
    };
    generation::respond(&app, serving, vec![prompt], plan, format).await
}

/// What a request asks for: the plan, the prompt's ids, and whether the answer shows log-probabilities.
pub(crate) fn prepare(body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Plan, Vec<u32>, bool), ApiError> {
    prepare_within(body, serving, key, serving.engine.config().context_len)
}

/// [`prepare`], for a prompt of at most so many tokens.
pub(crate) fn prepare_within(
    body: Value,
    serving: &Arc<Serving>,
    key: u64,
    tokens_max: usize,
) -> Result<(Plan, Vec<u32>, bool), ApiError> {
    let mut fields = Fields::new(body, KNOWN)?;
    let mut conversation = Conversation::take(&mut fields, serving)?;
    let mut settings = Settings::take(&mut fields, serving, key)?;
    settings.take_times(&mut fields)?;
    let (max_tokens, max_tokens_field) = max_tokens(&mut fields)?;
    settings.sampling.logprobs = top_logprobs(&mut fields)?;
    let prompt_logprobs = logprobs::asked_of_prompt(&mut fields, settings.stream)?;
    let too_long = sampling::too_long(&mut fields, serving)?;
    settings.check_length(max_tokens)?;
    let choice = ToolChoice::take(&mut fields, &conversation.tools)?;
    fields.finish(KNOWN)?;
    if choice.none {
        settings.compile(serving)?;
    }
    let answer = match settings.asked.take() {
        // The answer to the results of the call will be held to it.
        Some(asked) if choice.is_forced() => {
            ignore(asked.name);
            None
        }
        Some(Asked { kind: AskedKind::Schema(schema), .. }) => Some(schema.held),
        Some(asked) => {
            let message =
                "a text that keeps to a grammar calls no tool: offer none, say `none`, or ask for a JSON schema";
            return Err(ApiError::invalid(asked.name, message));
        }
        None => None,
    };
    if choice.none {
        conversation.tools.clear();
    }
    let wants_logprobs = settings.sampling.logprobs.is_some();
    settings.sampling.check(serving.engine.config().vocab_size)?;
    let prompt = conversation.render(serving)?;
    let syntax = serving.tool_form().syntax().filter(|_| conversation.has_tools());
    let (reasoning, reader) = conversation.reader(prompt.text(), serving);
    if (choice.is_forced() || answer.is_some()) && conversation.continues && reasoning == Reasoning::Channels {
        let message = "this model writes a call as a message of its own, and not in one that goes on";
        return Err(ApiError::unsupported("continue_final_message", message));
    }
    if let Some(grammar) = choice.grammar(&conversation.tools, answer, reasoning, serving)? {
        settings.grammar = Some(grammar);
    }
    let tags = serving.profile(conversation.has_tools()).thought_tags();
    let controls = Controls::of(reasoning, tags, syntax, &serving.tokenizer);
    let is_special = |(id, _): &(u32, String)| serving.tokenizer.is_special(*id);
    let special_markers = syntax
        .map_or(&[][..], |syntax| syntax.dialect().spelled)
        .iter()
        .any(|marker| serving.tokenizer.token_to_id(marker.text).is_some_and(|id| serving.tokenizer.is_special(id)));
    if reasoning == Reasoning::Channels
        || special_markers
        || syntax.is_some_and(|syntax| syntax.dialect().has_special_tokens)
        || controls.tokens.iter().any(is_special)
    {
        // The tokens that calls begin with are special, and those that name channels.
        settings.text.skip_special = false;
    }
    settings.text.reply = Some(reader.by_id(controls.by_id));
    settings.text.controls = controls.tokens;
    settings.text.one_call = choice.one_call || choice.is_forced();
    abandoned::check()?;
    let tokens_max = if too_long == TooLong::Refused { tokens_max } else { usize::MAX };
    let ids = prompt.encode_within(&serving.tokenizer, &abandoned::bounds(tokens_max));
    let ids = ids.map_err(|error| prompts::too_long(error, "messages", "messages", serving))?;
    let (ids, is_cut) = prompts::cut(ids, serving.tokenizer.prefix_ids(), &[], too_long);
    if is_cut {
        settings.labels.insert("prompt_truncated".to_owned(), true.into());
    }
    let plan = Plan { settings, max_tokens, prompt_logprobs, prompt_field: "messages", max_tokens_field, memory: None };
    Ok((plan, ids, wants_logprobs))
}

/// The newer name of the field, the older one, and llama.cpp's; several, if they agree.
fn max_tokens(fields: &mut Fields) -> Result<(Option<usize>, &'static str), ApiError> {
    let mut found: Option<(usize, &'static str)> = None;
    for name in ["max_completion_tokens", "max_tokens", "n_predict"] {
        match (fields.token_limit(name, 1)?, found) {
            (Some(count), Some((other, first))) if count != other => {
                return Err(ApiError::invalid(name, format!("`{name}` contradicts `{first}`")));
            }
            (Some(count), None) => found = Some((count, name)),
            _ => {}
        }
    }
    Ok(found.map_or((None, "max_tokens"), |(count, name)| (Some(count), name)))
}

fn top_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    match fields.count("top_logprobs")? {
        Some(0) if !wanted => Ok(None),
        Some(_) if !wanted => Err(ApiError::invalid("top_logprobs", "`top_logprobs` goes with `logprobs`: true")),
        count => Ok(wanted.then_some(count.unwrap_or(0))),
    }
}

/// Tells the template of a request that another interface's became whether the model is to think, if it has a switch for
/// it; otherwise reports the field `name`, which asks for that.
pub(crate) fn switch_thinking(chat: &mut Map<String, Value>, enabled: bool, name: &str, serving: &Serving) {
    // A model may have another template for conversations with tools.
    let has_tools = chat.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
    let profile = serving.profile(has_tools);
    if profile.switches_thinking {
        chat.insert("chat_template_kwargs".to_owned(), json!({"enable_thinking": enabled}));
    } else if enabled != profile.thinks {
        ignore(name);
    }
}

struct ChatFormat {
    id: String,
    created: u64,
    wants_logprobs: bool,
    return_token_ids: bool,
    /// Calls of each choice that have begun.
    num_calls: Vec<usize>,
    prompt_ids: Option<Vec<u32>>,
    /// The log-probabilities of the prompt, if they are asked for.
    scored: Option<Scored>,
    serving: Arc<Serving>,
}

impl ChatFormat {
    /// What a choice has besides its text.
    fn choice(&self, index: usize, name: &str, message: Value, delta: &Delta) -> Value {
        let logprobs = self.wants_logprobs.then(|| logprobs::chat(&self.serving.tokenizer, &delta.tokens));
        delta.entry(index, (name, message), logprobs, self.return_token_ids)
    }
}

impl Format for ChatFormat {
    fn envelope(&self, choices: Vec<Value>, is_chunk: bool) -> Value {
        let object = if is_chunk { "chat.completion.chunk" } else { "chat.completion" };
        let mut envelope = json!({
            "id": self.id, "object": object, "created": self.created, "model": self.serving.name,
            "system_fingerprint": build_info(self.serving.version), "choices": choices,
        });
        if let Some(ids) = self.prompt_ids.as_ref().filter(|_| !is_chunk) {
            envelope["prompt_token_ids"] = json!(ids);
        }
        if let Some(scored) = self.scored.as_ref().filter(|_| !is_chunk) {
            envelope["prompt_logprobs"] = scored.to_json(&self.serving.tokenizer);
        }
        envelope
    }

    fn scored(&mut self, _: usize, logprobs: Vec<TokenLogprobs>) {
        if let Some(scored) = &mut self.scored {
            scored.push(logprobs);
        }
    }

    fn opening(&mut self) -> Vec<Value> {
        let message = json!({"role": "assistant", "content": ""});
        let choice = |index| self.choice(index, "delta", message.clone(), &Delta::default());
        (0..self.num_calls.len()).map(choice).collect()
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Option<Value> {
        let says_nothing = delta.parts.is_empty() && delta.finish.is_none();
        let hides_ids = !self.return_token_ids || delta.token_ids.is_empty();
        let hides_logprobs = !self.wants_logprobs || delta.tokens.is_empty();
        if says_nothing && hides_ids && hides_logprobs {
            return None;
        }
        let mut message = json!({});
        let mut calls = Vec::new();
        for part in &delta.parts {
            match part {
                Part::Content(text) | Part::NoCall(text) => append(&mut message, "content", text),
                Part::Reasoning(text) => append(&mut message, "reasoning_content", text),
                Part::Call { name } => {
                    let function = json!({"name": name, "arguments": ""});
                    let number = self.num_calls[index];
                    calls.push(json!({"index": number, "id": call_id(), "type": "function", "function": function}));
                    self.num_calls[index] += 1;
                }
                Part::Arguments(text) => {
                    let number = self.num_calls[index].saturating_sub(1);
                    calls.push(json!({"index": number, "function": {"arguments": text}}));
                }
            }
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        Some(self.choice(index, "delta", message, &delta))
    }

    fn whole(&mut self, index: usize, text: Delta) -> Value {
        let mut message = json!({"role": "assistant", "content": null, "refusal": null});
        let mut calls: Vec<(&str, String)> = Vec::new();
        for part in &text.parts {
            match (part, calls.last_mut()) {
                (Part::Content(text) | Part::NoCall(text), _) => append(&mut message, "content", text),
                (Part::Reasoning(text), _) => append(&mut message, "reasoning_content", text),
                (Part::Call { name }, _) => calls.push((name, String::new())),
                (Part::Arguments(text), Some((_, arguments))) => arguments.push_str(text),
                (Part::Arguments(_), None) => {}
            }
        }
        if calls.is_empty() {
            append(&mut message, "content", "");
        } else {
            let call = |(name, arguments): (&str, String)| json!({"id": call_id(), "type": "function", "function": {"name": name, "arguments": arguments}});
            message["tool_calls"] = calls.into_iter().map(call).collect();
        }
        self.choice(index, "message", message, &text)
    }
}

/// Appends to a text in a message; a `null` is none yet.
pub(crate) fn append(message: &mut Value, name: &str, text: &str) {
    match &mut message[name] {
        Value::String(before) => before.push_str(text),
        none => *none = text.into(),
    }
}

/// Nine letters and digits: what Mistral's templates ask of an id.
fn call_id() -> String {
    let id = random_id("");
    id[id.len() - 9..].to_owned()
}
