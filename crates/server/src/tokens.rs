//! Text to token ids and back, in the dialects of vLLM and llama.cpp, and what a chat template makes of a conversation.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{App, Serving};
use crate::body::read_json;
use crate::chat::{Conversation, PROMPT_FIELDS};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Fields, applied};
use crate::generation::noted;
use crate::logprobs::token_text;
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

/// Fields of `/apply-template` besides those of a conversation.
pub(crate) const APPLY_TEMPLATE: &[Field] = &[applied("model")];

/// Makes an answer of the fields of a body, where it holds up nobody.
async fn answer(
    app: App,
    request: Request<Body>,
    known: &'static [&'static [Field]],
    make: fn(&mut Fields, &Serving) -> Result<Value, ApiError>,
) -> Result<Response, ApiError> {
    app.serving_any()?;
    let body = read_json(request, &app.inner.options).await?;
    let serving: Arc<Serving> = app.serving_of(&body)?;
    let read = move || {
        let mut fields = Fields::new(body, known)?;
        serving.check_model(fields.string("model")?.as_deref())?;
        let answer = make(&mut fields, &serving)?;
        fields.finish(known)?;
        Ok(answer)
    };
    let (mut answer, notes) = noted(&app, read).await?;
    notes.attach(&mut answer);
    Ok(json_response(StatusCode::OK, &answer))
}

pub(crate) async fn tokenize(State(app): State<App>, request: Request<Body>) -> Result<Response, ApiError> {
    answer(app, request, &[TOKENIZE, PROMPT_FIELDS], |fields, serving| {
        let pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        let strings = fields.boolean("return_token_strs")?.unwrap_or(false);
        let ids = tokens_of(fields, serving)?;
        let text = |id: u32| token_text(&serving.tokenizer, id);
        let piece = |&id: &u32| {
            let bytes = serving.tokenizer.token_bytes(id).unwrap_or_default();
            // A piece that is no text is a list of its bytes, as llama.cpp has it.
            let piece = String::from_utf8(bytes).map_or_else(|error| json!(error.into_bytes()), |text| json!(text));
            json!({"id": id, "piece": piece})
        };
        Ok(json!({
            "count": ids.len(),
            "max_model_len": serving.engine.config().context_len,
            "tokens": if pieces { ids.iter().map(piece).collect() } else { json!(ids) },
            "token_strs": strings.then(|| ids.iter().map(|&id| text(id)).collect::<Vec<_>>()),
        }))
    })
    .await
}

fn tokens_of(fields: &mut Fields, serving: &Serving) -> Result<Vec<u32>, ApiError> {
    let tokenizer = &serving.tokenizer;
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
        return Ok(match adds_prefix {
            true => tokenizer.encode_after_prefix(&text, parse_special)?,
            false => tokenizer.encode(&text, parse_special)?,
        });
    }
    Conversation::take(fields, serving)?.encode(serving)
}

/// What the model expects before a text, if it is wanted.
pub(crate) async fn detokenize(State(app): State<App>, request: Request<Body>) -> Result<Response, ApiError> {
    answer(app, request, &[DETOKENIZE], |fields, serving| {
        let ids = fields.token_ids("tokens")?.ok_or_else(|| ApiError::invalid("tokens", "`tokens` is missing"))?;
        let vocab_size = serving.tokenizer.vocab_size();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
            let message = format!("token id {id} is outside the vocabulary of {vocab_size}");
            return Err(ApiError::invalid("tokens", message));
        }
        let text = serving.tokenizer.decode(&ids, fields.boolean("skip_special_tokens")?.unwrap_or(false));
        // One name for each dialect.
        Ok(json!({"prompt": text, "content": text}))
    })
    .await
}

pub(crate) async fn apply_template(State(app): State<App>, request: Request<Body>) -> Result<Response, ApiError> {
    answer(app, request, &[APPLY_TEMPLATE, PROMPT_FIELDS], |fields, serving| {
        Ok(json!({"prompt": Conversation::take(fields, serving)?.render(serving)?.into_text()}))
    })
    .await
}

pub(crate) async fn tokenizer_info(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let serving = app.serving(info::asked_model(&uri).as_deref())?;
    let tokenizer = &serving.tokenizer;
    let token = |id: Option<u32>| id.map(|id| json!({"id": id, "token": tokenizer.id_to_token(id)}));
    let eos: Vec<_> = tokenizer.eos_ids().iter().map(|&id| token(Some(id))).collect();
    let capabilities = serving.chat_template.as_ref().map(|template| {
        let can = template.capabilities();
        json!({
            "system": can.system, "tools": can.tools, "tool_calls": can.tool_calls,
            "parallel_tool_calls": can.parallel_tool_calls, "tool_results": can.tool_results, "thinking": can.thinking,
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
        "model_max_length": serving.engine.config().context_len,
        "chat_template": capabilities,
    });
    Ok(json_response(StatusCode::OK, &info))
}
