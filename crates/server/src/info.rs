//! What is served, whether it is, how it fares.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{App, ModelPhase, Phase, Serving};
use crate::error::{ApiError, json_response};
use crate::prometheus;

pub(crate) async fn models(State(app): State<App>) -> Result<Response, ApiError> {
    let data: Vec<_> = app.serving_any()?.iter().map(|serving| describe(serving)).collect();
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
}

pub(crate) async fn model(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let not_text = |_| ApiError::invalid("model", "the model in the path is not UTF-8; `/v1/models` lists the models");
    let Path(name) = name.map_err(not_text)?;
    Ok(json_response(StatusCode::OK, &describe(&*app.serving(Some(&name))?)))
}

/// The model that the query of a route without a body names.
pub(crate) fn asked_model(uri: &Uri) -> Option<String> {
    query(uri, "model")
}

/// The value of a parameter of a query.
pub(crate) fn query(uri: &Uri, wanted: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    pairs.find_map(|(name, value)| (name == wanted).then(|| value.into_owned()))
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

/// 200 once requests are answered; before and after that 503, with how far it is. Of one of several models, if the query
/// names it.
pub(crate) async fn health(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let elapsed_s = app.inner.started.elapsed().as_secs_f64();
    let loading = |what: &str| {
        // llama.cpp's clients look for this error, and wait.
        let error = json!({"code": 503, "message": "Loading model", "type": "unavailable_error"});
        let mut body = json!({"status": "loading", "model": what, "elapsed_s": elapsed_s, "error": error});
        if let Some((_, ModelPhase::Loading(loading))) = app.models().find(|(name, _)| *name == what) {
            loading.write(&mut body);
        }
        body
    };
    let failed = |why: &str| json!({"status": "failed", "reason": why});
    let phase = app.phase();
    let is_one = app.models().count() == 1;
    let (is_well, mut body) = match (&phase, asked_model(&uri)) {
        (Phase::Draining, _) => (false, json!({"status": "draining"})),
        (Phase::Failed { why }, _) => (false, failed(why)),
        (_, Some(asked)) => match app.models().find(|(name, _)| *name == asked).map(|(_, phase)| phase) {
            Some(ModelPhase::Ready(_)) => (true, json!({"status": "ok"})),
            Some(ModelPhase::Loading(_)) => (false, loading(&asked)),
            Some(ModelPhase::Failed(failure)) => (false, failed(&failure.to_string())),
            None => return Err(app.no_such_model(&asked)),
        },
        (Phase::Ready(ready), None) if ready.len() == app.models().count() => (true, json!({"status": "ok"})),
        // Others answer, so requests may come.
        (Phase::Ready(_), None) => (true, json!({"status": "degraded"})),
        (Phase::Loading { what }, None) => (false, loading(&what[0])),
    };
    if !is_one {
        body["models"] = app.models().map(|(name, phase)| (name.to_owned(), json!(word(&phase)))).collect();
    }
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut response = json_response(status, &body);
    if !is_well {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    Ok(response)
}

/// How many texts run or wait: of one model, if the query names it.
pub(crate) async fn load(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let models = match asked_model(&uri) {
        Some(asked) => vec![app.serving(Some(&asked))?],
        None => app.serving_any()?,
    };
    let texts = |serving: &std::sync::Arc<Serving>| {
        let stats = serving.engine.stats();
        stats.num_running + stats.num_waiting
    };
    let load: usize = models.iter().map(texts).sum();
    Ok(json_response(StatusCode::OK, &json!({"server_load": load})))
}

fn word(phase: &ModelPhase<'_>) -> &'static str {
    match phase {
        ModelPhase::Loading(_) => "loading",
        ModelPhase::Ready(_) => "ok",
        ModelPhase::Failed(_) => "failed",
    }
}

pub(crate) async fn version(State(app): State<App>) -> Result<Response, ApiError> {
    Ok(json_response(StatusCode::OK, &json!({"version": app.version()?})))
}

/// Prometheus' text format.
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    // Of a server that shuts down, no more than what it still does.
    let is_up = matches!(app.phase(), Phase::Ready(_) | Phase::Loading { .. });
    let models = app.models().filter(|_| is_up);
    let mut response =
        Response::new(Body::from(prometheus::write(&app.inner.metrics, app.inner.memory.held(), models)));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}

pub(crate) async fn not_found(uri: Uri) -> ApiError {
    ApiError::refused(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is no route `{}` here; /openapi.json lists those that there are", uri.path()),
    )
}

pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take {method}", uri.path());
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
