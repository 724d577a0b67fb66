//! The messages of a conversation: OpenAI's shape, made into what a chat template takes. This is the one place where that is
//! done: the other routes write their conversations in this shape first.
//!
//! What an answer had comes back with the next request, and more besides: members that this server never wrote, calls whose
//! arguments are no JSON, ids in another server's form. None of that is a reason to refuse a conversation. A member that no
//! template is shown is left out and reported ([`ignore`]); what a template needs and a client left out is put in.

use std::collections::{HashMap, HashSet, VecDeque};

use serde_json::{Map, Value, json};
use tokenizer::chat_template::Capabilities;

use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, hint, ignore, wrong};
use crate::template_profile::TemplateProfile;

/// A call in `tool_calls` of a message.
pub(crate) const CALL: &[&[Field]] =
    &[&[applied("id"), applied("type"), applied("function"), hint("index", "calls have an order anyway")]];

/// `function` of a call.
pub(crate) const CALLED: &[&[Field]] = &[&[applied("name"), applied("arguments"), applied("parameters")]];

/// A part of a content that is text.
pub(crate) const TEXT_PART: &[&[Field]] = &[&[applied("type"), applied("text")]];

/// A part in which an assistant refused.
pub(crate) const REFUSAL_PART: &[&[Field]] = &[&[applied("type"), applied("refusal")]];

const MESSAGES_MAX: usize = 4096;
const PARTS_MAX: usize = 256;

const ROLES: &[&str] = &["system", "developer", "user", "assistant", "tool"];

/// Members of a message, with the roles that may have them.
pub(crate) const MEMBERS: [(&str, &[&str]); 8] = [
    ("role", ROLES),
    ("content", ROLES),
    ("name", ROLES),
    ("tool_calls", &["assistant"]),
    ("reasoning_content", &["assistant"]),
    ("reasoning", &["assistant"]),
    ("refusal", &["assistant"]),
    ("tool_call_id", &["tool"]),
];

/// The messages as templates take them: without nulls that say nothing, and with `developer` called `system`, as all
/// templates but those of one family have it. `shows_calls` says whether calls and their results can be shown at all.
pub(crate) fn check(
    messages: Value,
    template: &Capabilities,
    profile: &TemplateProfile,
    shows_calls: bool,
) -> Result<Vec<Value>, ApiError> {
    let Value::Array(messages) = messages else { return Err(wrong("messages", &messages, "a list of messages")) };
    if messages.is_empty() || messages.len() > MESSAGES_MAX {
        let found = format!("`messages` is a list of {}, expected 1 to {MESSAGES_MAX}", messages.len());
        return Err(ApiError::invalid("messages", found));
    }
    let mut reader = Reader {
        profile,
        shows_calls,
        calls: HashMap::new(),
        ids: HashMap::new(),
        num_calls: 0,
        unanswered: VecDeque::new(),
        answered: HashSet::new(),
    };
    let checked = |(index, message)| reader.message(&format!("messages[{index}]"), message);
    let mut messages = messages.into_iter().enumerate().map(checked).collect::<Result<Vec<_>, _>>()?;
    if !template.system {
        system_into_user(&mut messages)?;
    } else if profile.one_system {
        messages = one_system(messages);
    }
    if template.tool_calls && !template.parallel_tool_calls {
        messages = one_call_a_message(messages);
    }
    Ok(messages)
}

/// Reads messages in their order.
struct Reader<'a> {
    profile: &'a TemplateProfile,
    shows_calls: bool,
    /// Functions by the ids of their calls.
    calls: HashMap<String, String>,
    /// Ids in the template's form by those that the client gave, where the template's have the name in them.
    ids: HashMap<String, String>,
    num_calls: usize,
    /// Ids of the last message's calls, in their order, and those whose results have come.
    unanswered: VecDeque<String>,
    answered: HashSet<String>,
}

impl Reader<'_> {
    fn message(&mut self, at: &str, message: Value) -> Result<Value, ApiError> {
        let Value::Object(mut message) = message else {
            return Err(wrong(at, &message, "an object with `role` and `content`"));
        };
        let inside = |field: &str| format!("{at}.{field}");
        let role = match message.get("role") {
            Some(Value::String(role)) => role.clone(),
            other => return Err(wrong(&inside("role"), other.unwrap_or(&Value::Null), "a string")),
        };
        if !ROLES.contains(&role.as_str()) {
            return Err(wrong(&inside("role"), &json!(role), format!("one of {}", ROLES.join(", "))));
        }
        message.retain(|name, value| {
            // `content` may be null where tools are called, and some templates print it.
            if name == "content" {
                return true;
            }
            let known = MEMBERS.iter().any(|(member, roles)| member == name && roles.contains(&role.as_str()));
            let says_nothing = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
            if !known && !says_nothing {
                ignore(inside(name));
            }
            known && !says_nothing
        });
        for name in ["name", "tool_call_id", "reasoning_content", "reasoning", "refusal"] {
            if let Some(value) = message.get(name).filter(|value| !value.is_string()) {
                return Err(wrong(&inside(name), value, "a string"));
            }
        }
        // As templates call them.
        let shown = if role == "developer" { "system" } else { &*role };
        message.insert("role".to_owned(), shown.into());
        self.thoughts(at, &mut message);
        if let Some(calls) = message.get_mut("tool_calls") {
            if !self.shows_calls {
                let error = "this model's chat template cannot show calls of tools";
                return Err(ApiError::unsupported(inside("tool_calls"), error));
            }
            self.calls(&inside("tool_calls"), calls)?;
        }
        if role == "tool" {
            if !self.shows_calls {
                let error = "this model's chat template cannot show results of tools";
                return Err(ApiError::unsupported(inside("role"), error));
            }
            self.result(&mut message);
        }
        content(&inside("content"), &role, &mut message)?;
        if message.contains_key("name") && !self.profile.shows_name(shown) {
            message.shift_remove("name");
            ignore(inside("name"));
        }
        Ok(Value::Object(message))
    }

    /// What the model thought, under one name; left out where the template never shows it.
    fn thoughts(&self, at: &str, message: &mut Map<String, Value>) {
        let (thought, other) = (message.shift_remove("reasoning_content"), message.shift_remove("reasoning"));
        let name = if thought.is_some() { "reasoning_content" } else { "reasoning" };
        if thought.is_some() && other.is_some() && thought != other {
            ignore(format!("{at}.reasoning"));
        }
        let Some(thought) = thought.or(other).filter(|thought| *thought != "") else { return };
        if self.profile.shows_reasoning {
            message.insert("reasoning_content".to_owned(), thought);
        } else {
            ignore(format!("{at}.{name}"));
        }
    }

    fn calls(&mut self, at: &str, calls: &mut Value) -> Result<(), ApiError> {
        let Some(calls) = calls.as_array_mut() else { return Err(wrong(at, calls, "a list of tool calls")) };
        self.unanswered.clear();
        self.answered.clear();
        for (index, call) in calls.iter_mut().enumerate() {
            *call = self.call(&format!("{at}[{index}]"), call.take())?;
        }
        Ok(())
    }

    fn call(&mut self, at: &str, call: Value) -> Result<Value, ApiError> {
        if !call.is_object() || !call["function"].is_object() {
            let expected = "{\"id\": …, \"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}";
            return Err(wrong(at, &call, expected));
        }
        let within = |error: ApiError| error.within(at);
        let mut fields = Fields::inside(at, call, CALL)?;
        let given = fields.string("id").map_err(within)?.filter(|id| !id.is_empty());
        if let Some(kind) = fields.take("type").filter(|kind| kind != "function") {
            ignore(format!("{at}.type"));
            drop(kind);
        }
        let inside = format!("{at}.function");
        let function = fields.required("function").map_err(within)?;
        let within = |error: ApiError| error.within(&inside);
        let mut function = Fields::inside(&inside, function, CALLED)?;
        let name = function.required("name").map_err(within)?;
        let name = crate::fields::string("name", name).map_err(within)?;
        let given_arguments = function.take("arguments").or_else(|| function.take("parameters"));
        let arguments = arguments(given_arguments.as_ref()).unwrap_or_else(|| {
            // A call that was cut by `max_tokens`, say. Templates show an object, and make something else of a text each.
            ignore(format!("{inside}.arguments"));
            Map::new()
        });
        let given = given.unwrap_or_else(|| format!("call{:05}", self.calls.len() % 100_000));
        if self.profile.names_in_ids {
            self.ids.insert(given.clone(), format!("functions.{name}:{}", self.num_calls));
        }
        self.num_calls += 1;
        let id = self.id(&given);
        self.calls.insert(id.clone(), name.clone());
        self.unanswered.push_back(id.clone());
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    }

    /// The result of a call: with the call's id in the template's form, and the function's name where it wants that.
    fn result(&mut self, message: &mut Map<String, Value>) {
        let given = message.get("tool_call_id").and_then(Value::as_str).map(|id| self.id(id));
        // Some clients send results in the order of the calls, and no ids.
        let next = || {
            while self.unanswered.pop_front_if(|id| self.answered.contains(id)).is_some() {}
            self.unanswered.front().cloned()
        };
        let Some(id) = given.or_else(next) else { return };
        self.answered.insert(id.clone());
        if let Some(name) = self.calls.get(&id).filter(|_| self.profile.shows_name("tool")) {
            message.entry("name").or_insert_with(|| name.as_str().into());
        }
        message.insert("tool_call_id".to_owned(), id.into());
    }

    /// An id as the template takes it. Mistral's take nine letters and digits: of another id, those are made of its hash, so
    /// that a call and its result still agree. Kimi's have the name and a number.
    fn id(&self, id: &str) -> String {
        if let Some(id) = self.ids.get(id) {
            return id.clone();
        }
        let is_nine = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_nine || !self.profile.nine_letter_ids { id.to_owned() } else { nine_letters(id) }
    }
}

fn nine_letters(id: &str) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    // FNV-1a, of 64 bits: the same on every machine, since it becomes part of a prompt.
    let mut hash =
        id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let letter = |_| {
        let letter = char::from(LETTERS[(hash % 62) as usize]);
        hash /= 62;
        letter
    };
    (0..9).map(letter).collect()
}

/// The arguments of a call, as models and clients write them: an object, its JSON as a text, that text as JSON again,
/// nothing, or an empty text. `None` of anything else.
pub(crate) fn arguments(given: Option<&Value>) -> Option<Map<String, Value>> {
    match given {
        None | Some(Value::Null) => Some(Map::new()),
        Some(Value::Object(arguments)) => Some(arguments.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Some(Map::new()),
        Some(Value::String(text)) => match serde_json::from_str(text).ok()? {
            Value::Object(arguments) => Some(arguments),
            Value::Null => Some(Map::new()),
            Value::String(inner) => serde_json::from_str(&inner).ok(),
            _ => None,
        },
        Some(_) => None,
    }
}

fn content(at: &str, role: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    let calls = message.contains_key("tool_calls");
    let refusal = message.shift_remove("refusal");
    // In its place: some templates print a message as it is.
    let content = match message.get_mut("content").map(Value::take) {
        Some(Value::String(text)) => Value::String(text),
        Some(Value::Array(parts)) if parts.len() > PARTS_MAX => {
            return Err(ApiError::invalid(
                at,
                format!("`{at}` has {} parts, at most {PARTS_MAX} are taken", parts.len()),
            ));
        }
        Some(Value::Array(parts)) if !parts.is_empty() || !matches!(role, "assistant" | "tool") => {
            let part = |(index, part)| text_part(&format!("{at}[{index}]"), role, part).transpose();
            parts.into_iter().enumerate().filter_map(part).collect::<Result<Value, _>>()?
        }
        None | Some(Value::Null | Value::Array(_)) if role == "assistant" => match refusal {
            // Where nothing is called, a template that prints what is null would print that word.
            None if calls => Value::Null,
            refusal => refusal.unwrap_or_else(|| "".into()),
        },
        None | Some(Value::Null | Value::Array(_)) if role == "tool" => "".into(),
        other => return Err(wrong(at, &other.unwrap_or(Value::Null), "a string or a list of text parts")),
    };
    message.insert("content".to_owned(), content);
    Ok(())
}

/// A part as templates take it: its text alone. Nothing of one that is an echo.
fn text_part(at: &str, role: &str, part: Value) -> Result<Option<Value>, ApiError> {
    let kind = part.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (known, name) = match kind.as_str() {
        "text" | "input_text" | "output_text" => (TEXT_PART, "text"),
        "refusal" if role == "assistant" => (REFUSAL_PART, "refusal"),
        "thinking" | "reasoning" | "redacted_thinking" if role == "assistant" => {
            ignore(at);
            return Ok(None);
        }
        _ => {
            let error = format!("`{at}` has to be {{\"type\": \"text\", \"text\": …}}: this model takes text only");
            return Err(ApiError::unsupported(at, error));
        }
    };
    let within = |error: ApiError| error.within(at);
    let mut fields = Fields::inside(at, part, known)?;
    let text = fields.required(name).and_then(|text| crate::fields::string(name, text)).map_err(within)?;
    Ok(Some(json!({"type": "text", "text": text})))
}

/// The text of a content: its parts one a line.
pub(crate) fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

/// For templates that show one call a message: each call of a message with several has its own, with its result behind it.
fn one_call_a_message(messages: Vec<Value>) -> Vec<Value> {
    let mut split: Vec<Value> = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = match message.get_mut("tool_calls") {
            Some(Value::Array(calls)) if calls.len() > 1 => std::mem::take(calls),
            _ => {
                split.push(message);
                continue;
            }
        };
        let mut results: HashMap<String, Vec<Value>> = HashMap::new();
        let mut others = Vec::new();
        let ids: HashSet<&str> = calls.iter().filter_map(|call| call["id"].as_str()).collect();
        while let Some(result) = messages.next_if(|next| next["role"] == "tool") {
            match result["tool_call_id"].as_str().filter(|id| ids.contains(id)) {
                Some(id) => results.entry(id.to_owned()).or_default().push(result),
                None => others.push(result),
            }
        }
        for (index, call) in calls.iter().enumerate() {
            let mut one = message.clone();
            if index > 0 {
                // It was said and thought once.
                one["content"] = "".into();
                one.as_object_mut().map(|one| one.shift_remove("reasoning_content"));
            }
            one["tool_calls"] = json!([call]);
            split.push(one);
            split.extend(call["id"].as_str().and_then(|id| results.remove(id)).into_iter().flatten());
        }
        split.extend(others);
    }
    split
}

/// Whether one message follows another that the template does not let it follow.
pub(crate) fn repeats(messages: &[Value], profile: &TemplateProfile) -> bool {
    messages.windows(2).any(|pair| joins(&pair[0], &pair[1], profile))
}

fn joins(before: &Value, message: &Value, profile: &TemplateProfile) -> bool {
    let are = |first: &str, second: &str| before["role"] == first && message["role"] == second;
    let no_calls = before["tool_calls"].is_null() && message["tool_calls"].is_null();
    (profile.alternates && no_calls && (are("user", "user") || are("assistant", "assistant")))
        || (profile.answers_results && are("tool", "user"))
}

/// For templates that refuse it if somebody speaks twice in a row, or a user behind a result: such messages are one, with a
/// text below the other.
pub(crate) fn in_turns(messages: Vec<Value>, profile: &TemplateProfile) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        match turns.last_mut().filter(|last| joins(last, &message, profile)) {
            Some(last) => {
                let text = format!("{}\n{}", text_of(&last["content"]), text_of(&message["content"]));
                last["content"] = text.into();
            }
            None => turns.push(message),
        }
    }
    turns
}

/// For templates that show no system message: what it says stands before the next text of the user's, as llama.cpp has it,
/// and is a text of the user's where none follows.
fn system_into_user(messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let mut said = String::new();
    let mut has_user = false;
    for mut message in std::mem::take(messages) {
        if message["role"] == "system" {
            said.push_str(&text_of(&message["content"]));
            said.push_str("\n\n");
            continue;
        }
        if message["role"] == "user" {
            has_user = true;
            if !said.is_empty() {
                message["content"] = format!("{said}{}", text_of(&message["content"])).into();
                said.clear();
            }
        }
        messages.push(message);
    }
    if said.is_empty() {
        return Ok(());
    }
    if has_user {
        messages.push(json!({"role": "user", "content": said.trim_end()}));
        return Ok(());
    }
    let error = "this model's chat template cannot show a system message, and there is no user's message to say it in";
    Err(ApiError::unsupported("messages", error))
}

/// For templates that show one system message, the first: those at the beginning are one, and a later one becomes the user's,
/// in its place. Programs put instructions that change between two turns there.
fn one_system(messages: Vec<Value>) -> Vec<Value> {
    let mut shown: Vec<Value> = Vec::with_capacity(messages.len());
    for mut message in messages {
        if message["role"] == "system" {
            match shown.as_mut_slice() {
                [] => {}
                [first] if first["role"] == "system" => {
                    let text = format!("{}\n\n{}", text_of(&first["content"]), text_of(&message["content"]));
                    first["content"] = text.into();
                    continue;
                }
                _ => message["role"] = "user".into(),
            }
        }
        shown.push(message);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_nine_letters_stay_apart_and_the_same() {
        assert_eq!(nine_letters("toolu_0123456789"), nine_letters("toolu_0123456789"));
        let ids: std::collections::HashSet<_> = (0..5000).map(|index| nine_letters(&format!("call_{index}"))).collect();
        assert_eq!(ids.len(), 5000);
        assert!(ids.iter().all(|id| id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())));
    }

    #[test]
    fn arguments_are_read_as_they_are_written() {
        let object = json!({"city": "A"});
        for given in [object.clone(), json!(object.to_string()), json!(json!(object.to_string()).to_string())] {
            assert_eq!(arguments(Some(&given)).map(Value::from), Some(object.clone()), "{given}");
        }
        for nothing in [json!(null), json!(""), json!(" "), json!({}), json!("{}"), json!("null")] {
            assert_eq!(arguments(Some(&nothing)), Some(Map::new()), "{nothing}");
        }
        for other in [json!("{\"city\": "), json!(7), json!([1]), json!("[1]")] {
            assert_eq!(arguments(Some(&other)), None, "{other}");
        }
    }
}
