//! What is served, as Ollama's clients ask for it; and the routes by which they would change that.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::app::{App, ModelPhase, Serving};
use crate::clock::{unix_time, utc_at, utc_in_a_year};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Fields, applied, hint};
use crate::generation::prepared;
use crate::security::KeyNumber;
use crate::template_profile::ToolForm;

/// Fields of `/api/show`.
pub(crate) const SHOW: &[Field] = &[
    applied("model"),
    applied("name"),
    hint("verbose", "what there is is shown anyway"),
    hint("system", "nothing is rendered here"),
    hint("template", "nothing is rendered here"),
    hint("options", "nothing is generated here"),
];

/// The version of Ollama whose interface these routes follow. Clients ask for it to find out what they may send.
const INTERFACE_VERSION: &str = "0.12.0";

/// The architecture of a model of which nobody says what its files are.
const ARCHITECTURE: &str = "unknown";

/// A model's name with a tag: clients add `latest` to a name without one, and look for that in the list.
pub(super) fn tagged(name: &str) -> String {
    let has_tag = name.rsplit('/').next().is_some_and(|last| last.contains(':'));
    if has_tag { name.to_owned() } else { format!("{name}:latest") }
}

fn architecture(serving: &Serving) -> &str {
    serving.files.as_ref().map_or(ARCHITECTURE, |files| &files.architecture)
}

fn details(serving: &Serving) -> Value {
    let format = if serving.name.ends_with(".gguf") { "gguf" } else { "safetensors" };
    let family = architecture(serving);
    let (size, level) = serving
        .files
        .as_ref()
        .map_or_else(Default::default, |files| (in_millions(files.parameters), files.format.clone()));
    json!({
        "parent_model": "", "format": format, "family": family, "families": [family],
        "parameter_size": size, "quantization_level": level,
    })
}

/// A number of parameters as the interface writes it: `8.0B`, `134.52M`.
fn in_millions(parameters: u64) -> String {
    match parameters as f64 {
        many if many >= 1e9 => format!("{:.1}B", many / 1e9),
        some => format!("{:.2}M", some / 1e6),
    }
}

/// What tells models of these names apart: clients print its beginning, and the files are not hashed.
fn digest(name: &str) -> String {
    Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What the lists say of a model.
fn listed(serving: &Serving) -> Value {
    let name = tagged(&serving.name);
    json!({
        "name": name, "model": name, "modified_at": utc_at(serving.created),
        "size": serving.weight_bytes.unwrap_or_default(), "digest": digest(&name), "details": details(serving),
    })
}

/// What the lists say of a model that is not loaded.
fn listed_absent(app: &App, name: &str) -> Value {
    let (name, started) = (tagged(name), unix_time().saturating_sub(app.inner.started.elapsed().as_secs()));
    let details = json!({
        "parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": "",
    });
    json!({
        "name": name, "model": name, "modified_at": utc_at(started), "size": 0, "digest": digest(&name), "details": details,
    })
}

/// Lists the models that are served, and those that a request loads.
pub(crate) async fn tags(State(app): State<App>) -> Result<Response, ApiError> {
    app.serving_any()?;
    let of_phase = |(name, phase): (&str, ModelPhase)| match phase {
        ModelPhase::Ready(serving) => Some(listed(&serving)),
        ModelPhase::OnDemand(_) => Some(listed_absent(&app, name)),
        ModelPhase::Loading(_) | ModelPhase::Failed(_) => None,
    };
    let models: Vec<Value> = app.models().into_iter().filter_map(of_phase).collect();
    Ok(json_response(StatusCode::OK, &json!({"models": models})))
}

/// Lists the models that are loaded.
pub(crate) async fn ps(State(app): State<App>) -> Result<Response, ApiError> {
    let expiries = app.expiries();
    let expires_at = |name: &str| match expiries.iter().find(|(model, _)| *model == name) {
        Some((_, left)) => utc_at(unix_time() + left.as_secs()),
        // Nothing unloads it.
        None => utc_in_a_year(),
    };
    let running = |serving: &std::sync::Arc<Serving>| {
        let mut model = listed(serving);
        let on_gpu = ["NVIDIA", "Apple"].iter().any(|maker| serving.device.contains(maker));
        model["size_vram"] = if on_gpu { model["size"].clone() } else { 0.into() };
        model["expires_at"] = expires_at(&serving.name).into();
        model["context_length"] = serving.engine.config().context_len.into();
        model
    };
    let models: Vec<Value> = app.serving_any()?.iter().map(running).collect();
    Ok(json_response(StatusCode::OK, &json!({"models": models})))
}

/// Says which of Ollama's interfaces this is.
pub(crate) async fn version(State(app): State<App>) -> Result<Response, ApiError> {
    let answer = json!({"version": INTERFACE_VERSION, "x_hotmetal": {"version": app.version()?}});
    Ok(json_response(StatusCode::OK, &answer))
}

/// Describes a model.
pub(crate) async fn show(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (), notes, _) = prepared(&app, key, request, |body, serving, _| {
        const KNOWN: &[&[Field]] = &[SHOW];
        let mut fields = Fields::new(body, KNOWN)?;
        let (model, name) = (fields.string("model")?, fields.string("name")?);
        serving.check_name(model.as_deref())?;
        serving.check_name(name.as_deref()).map_err(|error| error.with_param("model", "name"))?;
        fields.finish(KNOWN)
    })
    .await?;
    let mut answer = described(&serving);
    notes.attach(&mut answer);
    Ok(json_response(StatusCode::OK, &answer))
}

fn described(serving: &Serving) -> Value {
    let context_len = serving.engine.config().context_len;
    let defaults = &serving.defaults;
    let parameters = [
        ("temperature", defaults.temperature.to_string()),
        ("top_k", defaults.top_k.to_string()),
        ("top_p", defaults.top_p.to_string()),
        ("min_p", defaults.min_p.to_string()),
        ("repeat_penalty", defaults.repetition_penalty.to_string()),
        ("num_ctx", context_len.to_string()),
    ];
    let parameters = parameters.map(|(name, value)| format!("{name} {value}")).join("\n");
    let architecture = architecture(serving);
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), architecture.into());
    info.extend(serving.files.as_ref().map(|files| ("general.parameter_count".to_owned(), files.parameters.into())));
    info.insert(format!("{architecture}.context_length"), context_len.into());
    info.insert(format!("{architecture}.vocab_size"), serving.engine.config().vocab_size.into());
    info.extend(serving.hidden_size.map(|size| (format!("{architecture}.embedding_length"), size.into())));
    let template = serving.chat_template.as_ref().map_or("", |template| template.source());
    json!({
        "license": "", "modelfile": format!("FROM {}", serving.name), "parameters": parameters, "template": template,
        "details": details(serving), "model_info": info, "capabilities": capabilities(serving),
        "modified_at": utc_at(serving.created),
        "x_hotmetal": {"device": serving.device, "context_len": context_len},
    })
}

/// What a client may ask of the model.
fn capabilities(serving: &Serving) -> Vec<&'static str> {
    let chats = serving.has_head && serving.chat_template.is_some();
    let embeds = serving.pooling.is_some() || serving.pooling_asked.is_some();
    let all = [
        ("completion", serving.has_head),
        ("tools", chats && serving.tool_form() != ToolForm::None),
        ("thinking", chats && serving.profile(false).thinks),
        ("insert", serving.has_head && serving.fim.is_some()),
        ("embedding", serving.hidden_size.is_some() && (!serving.has_head || embeds)),
    ];
    all.into_iter().filter(|(_, can)| *can).map(|(name, _)| name).collect()
}

/// Refuses what would change which models there are, with the command that does it.
pub(crate) async fn refused(uri: Uri) -> ApiError {
    let what = uri.path().trim_start_matches("/api/").split('/').next().unwrap_or_default();
    let remedy = match what {
        "pull" => "run `hotmetal pull NAME` on the server's machine, and serve it with `hotmetal serve NAME`",
        "create" => "run `hotmetal quantize` on the server's machine, and serve its file with `hotmetal serve FILE`",
        "copy" => "start `hotmetal serve NAME --alias OTHER` on the server's machine",
        "delete" => "run `hotmetal rm NAME` on the server's machine",
        _ => "copy the file to the server's machine, and serve it with `hotmetal serve FILE`",
    };
    let message = format!("no client changes which models this server has: {remedy}");
    ApiError::refused(StatusCode::FORBIDDEN, "models_are_fixed", message)
}

/// What `GET /` tells programs that ask whether Ollama runs here.
pub(crate) const RUNNING: &str = "Ollama is running: Hotmetal answers its routes here\n";

/// Whether a request for `/` comes from such a program: browsers say that they take HTML.
pub(crate) fn is_running_probe(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| !accept.contains("text/html"))
}
