//! `/props` and `/slots`: what a model is generated with, and how busy it is, as llama.cpp's clients ask for it.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde_json::{Value, json};

use crate::app::{App, ModelPhase, Serving};
use crate::error::{ApiError, json_response};
use crate::info::{asked_model, query};
use crate::sampling::describe;

/// What answers call this program: a text that changes with its version.
pub(crate) fn build_info(version: &str) -> String {
    format!("hotmetal-{version}")
}

/// Shows the defaults of a model, and its chat template.
pub(crate) async fn props(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    app.serving_any()?;
    // Of several that are loaded on demand, those who ask for none want to know what program this is.
    let asked = asked_model(&uri);
    let meant = app.meant(asked.as_deref());
    let found = if asked.is_none() { meant.ok() } else { Some(meant?) };
    let found = found.map(|index| app.models().swap_remove(index));
    let serving = match found {
        Some((name, ModelPhase::OnDemand(_))) => return Ok(json_response(StatusCode::OK, &asleep(&app, name)?)),
        Some((name, phase)) => phase.serving(name)?,
        None => return Ok(json_response(StatusCode::OK, &asleep(&app, "")?)),
    };
    let config = serving.engine.config();
    let text = |id: Option<u32>| id.and_then(|id| serving.tokenizer.id_to_token(id));
    let template = serving.chat_template.as_ref();
    let can = template.map(|template| template.capabilities());
    let props = json!({
        "default_generation_settings": {"id": 0, "n_ctx": config.context_len, "params": parameters(&serving)},
        "total_slots": config.max_sequences,
        "model_alias": serving.name,
        // Where the file lies is nobody's business.
        "model_path": serving.name,
        "chat_template": template.map_or("", |template| template.source()),
        "chat_template_caps": {
            "supports_system_role": can.is_some_and(|can| can.system),
            "supports_tools": serving.template(true).is_some_and(|template| template.supports_tools()),
            "supports_tool_calls": serving.template(true).is_some_and(|template| template.supports_tool_calls()),
        },
        "bos_token": text(serving.tokenizer.bos_id()).unwrap_or_default(),
        "eos_token": text(serving.tokenizer.eos_ids().first().copied()).unwrap_or_default(),
        "modalities": {"vision": false, "audio": false},
        "build_info": build_info(serving.version),
        "is_sleeping": false,
    });
    Ok(json_response(StatusCode::OK, &props))
}

/// What is shown of a model that is not loaded: looking at it loads none.
fn asleep(app: &App, name: &str) -> Result<Value, ApiError> {
    Ok(json!({
        "model_alias": name, "model_path": name, "modalities": {"vision": false, "audio": false},
        "build_info": build_info(app.version()?), "is_sleeping": true,
    }))
}

/// What a text is generated with that says nothing of it.
fn parameters(serving: &Serving) -> Value {
    let mut parameters = describe(&serving.defaults);
    let most = serving.max_tokens.map_or(json!(-1), |most| json!(most));
    for (name, value) in [
        ("seed", serving.seed.map_or(json!(-1), |seed| json!(seed))),
        ("n_predict", most.clone()),
        ("max_tokens", most),
        ("repeat_penalty", parameters["repetition_penalty"].clone()),
        ("stop", json!([])),
        ("stream", json!(false)),
        ("n_probs", json!(0)),
        ("min_keep", json!(0)),
        ("grammar", json!("")),
        ("ignore_eos", json!(false)),
    ] {
        parameters[name] = value;
    }
    parameters
}

/// Shows the places for texts: as many as run at a time. Any place serves any text, so the first ones are those that are
/// taken; no place shows a text, which is its client's.
pub(crate) async fn slots(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    if !app.inner.options.has_slots {
        let message = "this server was started with --no-slots";
        return Err(ApiError::refused(StatusCode::NOT_IMPLEMENTED, "no_slots", message));
    }
    let serving = app.serving(asked_model(&uri).as_deref())?;
    let (config, stats) = (serving.engine.config(), serving.engine.stats());
    if query(&uri, "fail_on_no_slot").is_some() && stats.num_running >= config.max_sequences {
        return Err(ApiError::unavailable("no_slot", "all places for texts are taken; try again later"));
    }
    let slot = |id: usize| {
        json!({
            "id": id, "n_ctx": config.context_len, "speculative": false, "is_processing": id < stats.num_running,
        })
    };
    let slots: Vec<Value> = (0..config.max_sequences).map(slot).collect();
    Ok(json_response(StatusCode::OK, &slots.into()))
}
