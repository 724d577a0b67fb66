//! Ollama's interface: `/api/chat` and `/api/generate`, which answer by lines of JSON, vectors, and what is served. A
//! request becomes the one that `/v1/chat/completions`, `/v1/completions` or `/v1/embeddings` takes, so that all mean the
//! same; the answer is written as Ollama's clients read it.
//!
//! Nothing here fetches, writes or deletes a model: those routes are refused with the command that does it.

mod answer;
mod embed;
mod models;
pub(crate) mod options;
pub(crate) mod request;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;

use crate::app::App;
use crate::error::{ApiError, json_response};
use crate::generation::prepared;
use crate::security::KeyNumber;
use crate::turn;
use answer::{Lines, Place};
use request::Wanted;

pub(crate) use embed::{EMBED, EMBEDDINGS, embed, embeddings};
pub(crate) use models::{RUNNING, SHOW, is_running_probe, ps, refused, show, tags, version};
pub(crate) use request::{CHAT, COMMON, GENERATE};

/// Answers a conversation.
pub(crate) async fn chat(
    state: State<App>,
    key: Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    answer(state, key, request, Place::Message).await
}

/// Answers a prompt, or goes on with it.
pub(crate) async fn generate(
    state: State<App>,
    key: Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    answer(state, key, request, Place::Response).await
}

async fn answer(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
    place: Place,
) -> Result<Response, ApiError> {
    let prepare = match place {
        Place::Message => request::chat,
        Place::Response => request::generate,
    };
    let (serving, Wanted { model, work }, notes, memory) = prepared(&app, key, request, prepare).await?;
    let format = Lines::new(place, model.unwrap_or_else(|| models::tagged(&serving.name)));
    let Some((mut plan, prompt)) = work else {
        return Ok(json_response(StatusCode::OK, &format.loaded(notes)));
    };
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    turn::respond(&app, serving, prompt, plan, format).await
}
