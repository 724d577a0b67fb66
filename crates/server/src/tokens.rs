//! Text to token ids and back, in the dialects of vLLM and llama.cpp, and what a chat template makes of a conversation.

use std::io;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};
use tokenizer::Around;

use crate::abandoned;
use crate::app::{App, Serving};
use crate::blocking::blocking;
use crate::body::read_json;
use crate::chat::{Conversation, PROMPT_FIELDS};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Fields, applied};
use crate::generation::noted;
use crate::held_response::held_response;
use crate::logprobs::token_text;
use crate::memory::Permit;
use crate::security::KeyNumber;
use crate::{info, prompts};

/// Fields of `/tokenize`: `prompt` or `messages` as vLLM has it, `content` as llama.cpp has it.
pub(crate) const TOKENIZE: &[Field] = &[
    applied("model"),
    applied("prompt"),
    applied("content"),
    applied("add_special_tokens"),
    applied("add_special"),
    applied("parse_special"),
    applied("return_token_strs"),
    applied("with_pieces"),
];

/// Fields of `/detokenize`.
pub(crate) const DETOKENIZE: &[Field] = &[applied("model"), applied("tokens"), applied("skip_special_tokens")];

/// Fields of `/apply-template`, and of the count of tokens, besides those of a conversation.
pub(crate) const APPLY_TEMPLATE: &[Field] = &[applied("model")];

/// Makes an answer of the fields of a body, where it holds up nobody.
async fn answer<T: Serialize + Send + 'static>(
    app: App,
    key: u64,
    request: Request<Body>,
    known: &'static [&'static [Field]],
    make: fn(&mut Fields, &Arc<Serving>, &mut Permit) -> Result<T, ApiError>,
) -> Result<Response, ApiError> {
    app.serving_any()?;
    let (body, mut memory) = app.unless_stopped(read_json(request, &app, key)).await?;
    let serving: Arc<Serving> = app.serving_for(&body).await?;
    let read = move || {
        let mut fields = Fields::new(body, known)?;
        serving.check_model(fields.string("model")?.as_deref())?;
        let answer = make(&mut fields, &serving, &mut memory)?;
        fields.finish(known)?;
        Ok((answer, memory))
    };
    let ((answer, mut memory), notes) = noted(&app, read).await?;
    let write = move || {
        let mut facts = json!({});
        notes.attach(&mut facts);
        let answer = Noted { answer, x_hotmetal: facts.get("x_hotmetal") };
        let failed = |error: serde_json::Error| ApiError::internal("internal", error.to_string());
        // Counted first: a text that grows by itself takes twice the memory, and an answer of pieces is many times as long as
        // what it was asked of.
        let mut count = Count(0);
        serde_json::to_writer(&mut count, &answer).map_err(failed)?;
        memory.grow(count.0)?;
        let mut text = Vec::with_capacity(count.0);
        serde_json::to_writer(&mut text, &answer).map_err(failed)?;
        drop(answer);
        memory.shrink_to(text.len());
        Ok(held_response(text, memory))
    };
    app.unless_stopped(blocking(write)).await
}

/// An answer with what its client is told of its request.
#[derive(Serialize)]
struct Noted<'a, T> {
    #[serde(flatten)]
    answer: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    x_hotmetal: Option<&'a Value>,
}

/// Counts what is written.
struct Count(usize);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        abandoned::check().map_err(|_| io::Error::other("nobody waits for it any more"))?;
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `/tokenize` answers. Ids are written as they come: a list of JSON values takes thirty bytes and more for each.
#[derive(Serialize)]
struct Tokenized {
    count: usize,
    max_model_len: usize,
    tokens: Tokens,
    token_strs: Option<Tokens>,
}

/// The tokens of a text, written as one of the interfaces has them.
struct Tokens {
    ids: Arc<Vec<u32>>,
    serving: Arc<Serving>,
    form: Form,
}

enum Form {
    Ids,
    Texts,
    /// With its id.
    Pieces,
}

impl Serialize for Tokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tokenizer = &self.serving.tokenizer;
        let piece = |&id: &u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            // A piece that is no text is a list of its bytes, as llama.cpp has it.
            let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), |text| json!(text));
            json!({"id": id, "piece": piece})
        };
        match self.form {
            Form::Ids => serializer.collect_seq(&*self.ids),
            Form::Texts => serializer.collect_seq(self.ids.iter().map(|&id| token_text(tokenizer, id))),
            Form::Pieces => serializer.collect_seq(self.ids.iter().map(piece)),
        }
    }
}

pub(crate) async fn tokenize(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    answer(app, key, request, &[TOKENIZE, PROMPT_FIELDS], |fields, serving, memory| {
        let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        let strings = fields.boolean("return_token_strs")?.unwrap_or(false);
        let ids = Arc::new(tokens_of(fields, serving)?);
        // The text is gone, and its ids are left.
        memory.shrink_to(ids.capacity() * size_of::<u32>());
        let tokens = |form| Tokens { ids: Arc::clone(&ids), serving: Arc::clone(serving), form };
        Ok(Tokenized {
            count: ids.len(),
            max_model_len: serving.engine.config().context_len,
            tokens: tokens(if pieces { Form::Pieces } else { Form::Ids }),
            token_strs: strings.then(|| tokens(Form::Texts)),
        })
    })
    .await
}

fn tokens_of(fields: &mut Fields, serving: &Serving) -> Result<Vec<u32>, ApiError> {
    // vLLM's name for a text puts what the model expects before it, and llama.cpp's does not, if nothing is said.
    let text = match fields.string("prompt")? {
        Some(prompt) => Some((prompt, fields.boolean("add_special_tokens")?.unwrap_or(true))),
        None => match fields.string("content")? {
            Some(content) => Some((content, fields.boolean("add_special")?.unwrap_or(false))),
            None => None,
        },
    };
    if let Some((text, adds_prefix)) = text {
        let parse_special = prompts::parse_special(fields)?;
        let around = if adds_prefix { Around::Prefix } else { Around::Nothing };
        return Ok(serving.tokenizer.encode_within(&text, parse_special, around, &abandoned::bounds(usize::MAX))?);
    }
    Conversation::take(fields, serving)?.encode(serving)
}

/// The text of ids, by the names of both interfaces.
struct Detokenized(String);

impl Serialize for Detokenized {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("prompt", &self.0)?;
        map.serialize_entry("content", &self.0)?;
        map.end()
    }
}

pub(crate) async fn detokenize(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    answer(app, key, request, &[DETOKENIZE], |fields, serving, memory| {
        let ids = fields.token_ids("tokens")?.ok_or_else(|| ApiError::invalid("tokens", "`tokens` is missing"))?;
        let vocab_size = serving.tokenizer.vocab_size();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            let message = format!("token id {id} is outside the vocabulary of {vocab_size}");
            return Err(ApiError::invalid("tokens", message));
        }
        // A token may be a hundred times as long as its id; a text that grows takes twice its length, and bytes that are no
        // text become three each.
        let bytes = ids.iter().map(|&id| serving.tokenizer.token_bytes(id).map_or(0, |bytes| bytes.len()));
        memory.grow(bytes.sum::<usize>().saturating_mul(6))?;
        abandoned::check()?;
        let text = serving.tokenizer.decode(&ids, fields.boolean("skip_special_tokens")?.unwrap_or(false));
        drop(ids);
        memory.shrink_to(text.capacity());
        Ok(Detokenized(text))
    })
    .await
}

pub(crate) async fn apply_template(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    answer(app, key, request, &[APPLY_TEMPLATE, PROMPT_FIELDS], |fields, serving, _| {
        Ok(json!({"prompt": Conversation::take(fields, serving)?.render(serving)?.into_text()}))
    })
    .await
}

/// Says how many tokens a conversation has, as llama.cpp does.
pub(crate) async fn input_tokens(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    answer(app, key, request, &[APPLY_TEMPLATE, PROMPT_FIELDS], |fields, serving, _| {
        let tokens = Conversation::take(fields, serving)?.encode(serving)?.len();
        Ok(json!({"object": "response.input_tokens", "input_tokens": tokens}))
    })
    .await
}

pub(crate) async fn tokenizer_info(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    app.serving_any()?;
    let serving = app.loaded(app.meant(info::asked_model(&uri).as_deref())?).await?;
    let tokenizer = &serving.tokenizer;
    let token = |id: Option<u32>| id.map(|id| json!({"id": id, "token": tokenizer.id_to_token(id)}));
    let eos: Vec<_> = tokenizer.eos_ids().iter().map(|&id| token(Some(id))).collect();
    let capabilities = serving.chat_template.as_ref().map(|template| {
        let can = template.capabilities();
        let with_tools = serving.template(true).unwrap_or(template).capabilities();
        json!({
            "system": can.system, "tools": with_tools.tools, "tool_calls": with_tools.tool_calls,
            "parallel_tool_calls": with_tools.parallel_tool_calls, "tool_results": with_tools.tool_results,
            "thinking": can.thinking,
        })
    });
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
    let info = json!({
        // As `tokenizer_config.json` names them.
        "bos_token": text(tokenizer.bos_id()),
        "eos_token": text(tokenizer.eos_ids().first().copied()),
        "unk_token": text(tokenizer.unk_id()),
        "pad_token": text(tokenizer.pad_id()),
        "vocab_size": tokenizer.vocab_size(),
        "bos": token(tokenizer.bos_id()),
        "eos": eos,
        "unk": token(tokenizer.unk_id()),
        "pad": token(tokenizer.pad_id()),
        "add_bos": tokenizer.add_bos(),
        "fim": serving.fim.map(|fim| json!({
            "prefix": token(Some(fim.prefix)), "suffix": token(Some(fim.suffix)), "middle": token(fim.middle),
            "pad": token(fim.pad), "repo": token(fim.repo), "file_sep": token(fim.file_sep),
            "suffix_first": fim.suffix_first,
        })),
        "model_max_length": serving.engine.config().context_len,
        // As vLLM has it; what it can show stands beside it.
        "chat_template": serving.chat_template.as_ref().map(|template| template.source()),
        "chat_template_capabilities": capabilities,
    });
    Ok(json_response(StatusCode::OK, &info))
}
