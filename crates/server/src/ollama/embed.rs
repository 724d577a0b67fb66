//! `/api/embed` and the older `/api/embeddings`: vectors of texts, by what `/v1/embeddings` does.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::models;
use crate::app::{App, Serving};
use crate::blocking::blocking;
use crate::embeddings::{self as openai, Wanted};
use crate::error::{ApiError, json_response};
use crate::fields::{self, Field, Fields, applied, hint};
use crate::generation::prepared;
use crate::prompts::TooLong;
use crate::security::KeyNumber;

const KEEP_ALIVE: Field = hint("keep_alive", "--sleep-idle-seconds of the server says how long a model stays loaded");
const OPTIONS: Field = hint("options", "none of them changes a vector");

/// Fields of `/api/embed`.
pub(crate) const EMBED: &[Field] =
    &[applied("model"), applied("input"), applied("truncate"), applied("dimensions"), OPTIONS, KEEP_ALIVE];

/// Fields of `/api/embeddings`.
pub(crate) const EMBEDDINGS: &[Field] = &[applied("model"), applied("prompt"), OPTIONS, KEEP_ALIVE];

/// What a request asks for.
struct Asked {
    /// The model, as the request names it; nothing, if that is another model's name.
    model: Option<String>,
    /// Nothing, where there is no text: the request asks that the model is loaded.
    wanted: Option<Wanted>,
}

/// Answers with the vectors of texts.
pub(crate) async fn embed(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    respond(app, key, request, prepare_embed, |model, vectors, facts| {
        json!({
            "model": model, "embeddings": vectors, "total_duration": facts.duration_ns, "load_duration": 0,
            "prompt_eval_count": facts.prompt_tokens,
        })
    })
    .await
}

/// Answers with the vector of a text.
pub(crate) async fn embeddings(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    respond(app, key, request, prepare_embeddings, |_, vectors, _| {
        let vector = vectors.into_iter().next().unwrap_or_else(|| json!([]));
        json!({"embedding": vector})
    })
    .await
}

/// What an answer says besides its vectors.
struct Facts {
    duration_ns: u64,
    prompt_tokens: usize,
}

async fn respond(
    app: App,
    key: u64,
    request: Request<Body>,
    prepare: fn(Value, &Arc<Serving>, u64) -> Result<Asked, ApiError>,
    write: fn(&str, Vec<Value>, &Facts) -> Value,
) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let (serving, Asked { model, wanted }, notes, mut memory) = prepared(&app, key, request, prepare).await?;
    let model = model.unwrap_or_else(|| models::tagged(&serving.name));
    let Some(mut wanted) = wanted else {
        let mut answer = write(&model, Vec::new(), &Facts { duration_ns: 1, prompt_tokens: 0 });
        answer["x_hotmetal"] = json!({});
        notes.attach(&mut answer);
        return Ok(json_response(StatusCode::OK, &answer));
    };
    memory.shrink_to(wanted.memory(&serving));
    notes.report(&mut wanted.labels);
    let computed = wanted.compute(&app, &serving).await?;
    let duration_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    blocking(move || {
        let facts = Facts { duration_ns, prompt_tokens: computed.prompt_tokens };
        let x_hotmetal = wanted.facts(&computed, &serving);
        let vectors = computed.vectors.into_iter().map(|vector| wanted.written(vector)).collect();
        let mut answer = write(&model, vectors, &facts);
        answer["x_hotmetal"] = x_hotmetal;
        Ok(json_response(StatusCode::OK, &answer))
    })
    .await
}

fn prepare_embed(body: Value, serving: &Arc<Serving>, key: u64) -> Result<Asked, ApiError> {
    const KNOWN: &[&[Field]] = &[EMBED];
    let mut fields = Fields::new(body, KNOWN)?;
    let model = fields.string("model")?;
    let input = fields.take("input").unwrap_or_default();
    // As this interface does where nothing is said.
    let cuts = fields.boolean("truncate")?.unwrap_or(true);
    let dimensions = fields.take("dimensions");
    fields.finish(KNOWN)?;
    prepare("input", model, input, dimensions, cuts, serving, key)
}

fn prepare_embeddings(body: Value, serving: &Arc<Serving>, key: u64) -> Result<Asked, ApiError> {
    const KNOWN: &[&[Field]] = &[EMBEDDINGS];
    let mut fields = Fields::new(body, KNOWN)?;
    let model = fields.string("model")?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    fields.finish(KNOWN)?;
    prepare("prompt", model, prompt.into(), None, true, serving, key)
}

fn prepare(
    name: &'static str,
    model: Option<String>,
    input: Value,
    dimensions: Option<Value>,
    cuts: bool,
    serving: &Arc<Serving>,
    key: u64,
) -> Result<Asked, ApiError> {
    serving.check_model(model.as_deref())?;
    let model = model.filter(|asked| serving.is_named(asked));
    let says_nothing = match &input {
        Value::String(text) => text.is_empty(),
        Value::Array(texts) => texts.is_empty(),
        other => other.is_null(),
    };
    if says_nothing {
        if let Some(hidden_size) = serving.hidden_size {
            openai::check_dimensions(dimensions, hidden_size)?;
        }
        return Ok(Asked { model, wanted: None });
    }
    let mut inner = Map::new();
    inner.insert("input".to_owned(), input);
    inner.insert("normalize".to_owned(), true.into());
    inner.extend(dimensions.map(|dimensions| ("dimensions".to_owned(), dimensions)));
    let context_len = serving.engine.config().context_len;
    let too_long = if cuts { TooLong::LosesEnd(context_len) } else { TooLong::Refused };
    let rename = |path: &str| match path {
        "input" => name.to_owned(),
        other => other.to_owned(),
    };
    let mut wanted = fields::inner(rename, || openai::prepare_as_openai(inner.into(), serving, key, too_long))?;
    wanted.input_field = name;
    Ok(Asked { model, wanted: Some(wanted) })
}
