//! What is served, whether it is, how it fares.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{App, Phase, Serving};
use crate::error::{ApiError, json_response};

pub(crate) async fn models(State(app): State<App>) -> Result<Response, ApiError> {
    let serving = app.serving()?;
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": [describe(&serving)]})))
}

pub(crate) async fn model(State(app): State<App>, Path(name): Path<String>) -> Result<Response, ApiError> {
    let serving = app.serving()?;
    serving.check_model(Some(&name))?;
    Ok(json_response(StatusCode::OK, &describe(&serving)))
}

fn describe(serving: &Serving) -> Value {
    let config = serving.engine.config();
    json!({
        "id": serving.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "hotmetal",
        "max_model_len": config.context_len,
        "x_hotmetal": {
            "device": serving.device,
            "version": serving.version,
            "context_len": config.context_len,
            "vocab_size": config.vocab_size,
            "kv_tokens": config.kv.num_blocks * config.kv.block_len,
            "max_sequences": config.max_sequences,
            "max_batch_tokens": config.max_batch_tokens,
            "load_ms": serving.load_time.as_millis() as u64,
            "sampling": crate::sampling::describe(&serving.defaults),
            "embedding_size": serving.hidden_size,
            "chat": serving.chat_template.is_some(),
            "system": serving.chat_template.as_ref().is_some_and(|template| template.supports_system()),
        },
    })
}

/// 200 once requests are answered; before and after that 503, with how far it is.
pub(crate) async fn health(State(app): State<App>) -> Response {
    let elapsed_s = app.inner.started.elapsed().as_secs_f64();
    let (status, body) = match app.phase() {
        Phase::Ready(_) => (StatusCode::OK, json!({"status": "ok"})),
        Phase::Loading { what } => {
            let body = json!({"status": "loading", "model": what, "elapsed_s": elapsed_s});
            (StatusCode::SERVICE_UNAVAILABLE, body)
        }
        Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "draining"})),
        Phase::Failed { why } => (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "failed", "reason": why})),
    };
    let mut response = json_response(status, &body);
    if status != StatusCode::OK {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

pub(crate) async fn version(State(app): State<App>) -> Result<Response, ApiError> {
    Ok(json_response(StatusCode::OK, &json!({"version": app.serving()?.version})))
}

/// Prometheus' text format.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let serving = match app.phase() {
        Phase::Ready(serving) => Some(serving),
        _ => None,
    };
    let mut response = Response::new(Body::from(app.inner.metrics.write(serving.as_deref())));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

pub(crate) async fn not_found(uri: Uri) -> ApiError {
    ApiError::refused(StatusCode::NOT_FOUND, "not_found", format!("there is no route `{}` here", uri.path()))
}

pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take {method}", uri.path());
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
