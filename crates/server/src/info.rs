//! What is served, whether it is, how it fares.

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{Absence, App, ModelPhase, Phase, Serving};
use crate::error::{ApiError, json_response};
use crate::prometheus;
use crate::quoting::shown;

pub(crate) async fn models(State(app): State<App>) -> Result<Response, ApiError> {
    app.serving_any()?;
    let models = app.models().into_iter();
    let data: Vec<_> = models.filter_map(|(name, phase)| described(&app, name, &phase)).collect();
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
}

pub(crate) async fn model(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let not_text = |_| ApiError::invalid("model", "the model in the path is not UTF-8; `/v1/models` lists the models");
    let Path(name) = name.map_err(not_text)?;
    app.serving_any()?;
    let (name, phase) = app.models().swap_remove(app.meant(Some(&name))?);
    let found = match described(&app, name, &phase) {
        Some(found) => found,
        None => describe(&*phase.serving(name)?),
    };
    Ok(json_response(StatusCode::OK, &found))
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

/// What the list says of a model that answers, or that a request loads.
fn described(app: &App, name: &str, phase: &ModelPhase) -> Option<Value> {
    let status = match phase {
        ModelPhase::Ready(serving) => return Some(describe(serving)),
        ModelPhase::Loading(_) | ModelPhase::Failed(_) => return None,
        // As llama.cpp's router names them.
        ModelPhase::OnDemand(Absence::Loading(_)) => json!({"value": "loading"}),
        ModelPhase::OnDemand(Absence::Unloaded { has_failed: false }) => json!({"value": "unloaded"}),
        ModelPhase::OnDemand(Absence::Unloaded { has_failed: true }) => json!({"value": "unloaded", "failed": true}),
    };
    let created = app.started_at();
    Some(json!({"id": name, "object": "model", "created": created, "owned_by": "hotmetal", "status": status}))
}

fn describe(serving: &Serving) -> Value {
    let config = serving.engine.config();
    json!({
        "id": serving.name,
        "object": "model",
        "created": serving.created,
        "owned_by": "hotmetal",
        "max_model_len": config.context_len,
        "status": {"value": "loaded"},
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
        if let Some((_, ModelPhase::Loading(loading))) = app.models().iter().find(|(name, _)| *name == what) {
            loading.write(&mut body);
        }
        body
    };
    let failed = |why: &str| json!({"status": "failed", "reason": why});
    let phase = app.phase();
    let models = app.models();
    let has_failed = models.iter().any(|(_, phase)| matches!(phase, ModelPhase::Failed(_)));
    let (is_well, mut body) = match (&phase, asked_model(&uri)) {
        (Phase::Draining, _) => (false, json!({"status": "draining"})),
        (Phase::Failed { why }, _) => (false, failed(why)),
        (_, Some(asked)) => match models.iter().find(|(name, _)| *name == asked).map(|(_, phase)| phase) {
            Some(ModelPhase::Ready(_)) => (true, json!({"status": "ok"})),
            // A request is answered, though it has to wait.
            Some(ModelPhase::OnDemand(absence)) => {
                let mut body = json!({"status": "ok"});
                if let Absence::Loading(loading) = absence {
                    loading.write(&mut body);
                }
                (true, body)
            }
            Some(ModelPhase::Loading(_)) => (false, loading(&asked)),
            Some(ModelPhase::Failed(failure)) => (false, failed(&failure.to_string())),
            None => return Err(app.no_such_model(&asked)),
        },
        // Others answer, so requests may come.
        (Phase::Ready(_), None) if has_failed => (true, json!({"status": "degraded"})),
        (Phase::Ready(_), None) => (true, json!({"status": "ok"})),
        (Phase::Loading { what }, None) => (false, loading(&what[0])),
    };
    if models.len() != 1 {
        body["models"] = models.iter().map(|(name, phase)| ((*name).to_owned(), json!(word(phase)))).collect();
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

fn word(phase: &ModelPhase) -> &'static str {
    match phase {
        ModelPhase::OnDemand(Absence::Unloaded { .. }) => "unloaded",
        ModelPhase::Loading(_) | ModelPhase::OnDemand(Absence::Loading(_)) => "loading",
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
    let models = app.models().into_iter().filter(|_| is_up);
    let mut response =
        Response::new(Body::from(prometheus::write(&app.inner.metrics, app.inner.memory.held(), models)));
    let content_type = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    // llama-server's, from which its clients know that it was started anew.
    let started = app.started_at();
    response.headers_mut().insert("process-start-time-unix", started.into());
    response
}

pub(crate) async fn not_found(uri: Uri) -> ApiError {
    ApiError::refused(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is no route `{}` here; /openapi.json lists those that there are", shown(uri.path())),
    )
}

pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take {}", shown(uri.path()), shown(method.as_str()));
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
