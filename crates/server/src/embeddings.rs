//! `/v1/embeddings`, and `/pooling` in vLLM's form: one vector for each text, pooled from what the final norm makes of its
//! tokens.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::{CacheDomain, FinishReason, Pooling};
use serde_json::{Map, Value, json};
use tokenizer::Around;

use crate::app::{App, Serving};
use crate::blocking::blocking;
use crate::clock::unix_time;
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Fields, applied, hint, only, wrong};
use crate::generation::{Watched, failed, prepared};
use crate::ids::random_id;
use crate::prompts::{self, Form, TooLong};
use crate::sampling::{self, cache_domain, labels, priority};
use crate::security::KeyNumber;

/// Texts of one request, as many as OpenAI's interface takes.
const INPUTS_MAX: usize = 2048;
/// Texts that the engine has at a time, of one request: the others' requests come between.
const WAVE: usize = 16;

/// Fields of this route.
pub(crate) const FIELDS: &[Field] = &[
    applied("model"),
    applied("input"),
    applied("encoding_format"),
    applied("dimensions"),
    applied("pooling"),
    applied("normalize"),
    applied("add_special_tokens"),
    applied("parse_special"),
    applied("priority"),
    applied("cache_salt"),
    applied("user"),
    applied("metadata"),
    applied("truncate_prompt_tokens"),
    hint("prompt_cache_key", "the prefix cache serves all prompts; `cache_salt` keeps a prompt apart"),
    only("input_type", |_| false, "the model knows one kind of text; what is to stand before a query is part of it"),
];

const KNOWN: &[&[Field]] = &[FIELDS];

/// Fields of `/pooling` besides.
pub(crate) const POOLING: &[Field] = &[
    only("task", |task| task == "embed", "one vector for each text is what there is here"),
    hint("softmax", "a vector of a text is no list of classes"),
    hint("activation", "a vector of a text is no list of classes"),
    hint("use_activation", "a vector of a text is no list of classes"),
];

/// What a request asks for.
pub(crate) struct Wanted {
    inputs: Vec<Vec<u32>>,
    /// Which of them were too long and were cut.
    cut: Vec<usize>,
    /// What the route calls them.
    pub(crate) input_field: &'static str,
    pooling: Pooling,
    /// Who says so: `request`, `model`, or nobody, which is `default`.
    pooling_from: &'static str,
    normalize: bool,
    base64: bool,
    priority: i8,
    cache_domain: CacheDomain,
    caller: u64,
    /// `user` and `metadata`, given back.
    pub(crate) labels: Map<String, Value>,
}

/// The vectors that were asked for.
pub(crate) struct Computed {
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) prompt_tokens: usize,
    cached_tokens: usize,
}

/// Answers with the embeddings of texts.
pub(crate) async fn embeddings(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let prepare: Prepare = |body, serving, key| prepare_cut(body, serving, key, TooLong::Refused, KNOWN);
    vectors(app, key, request, prepare, |wanted, computed, serving| {
        let entry = |(index, vector)| json!({"object": "embedding", "index": index, "embedding": vector});
        wanted.answer(computed, serving, entry)
    })
    .await
}

/// Answers with the same vectors as vLLM does.
pub(crate) async fn pooling(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    const KNOWN: &[&[Field]] = &[FIELDS, POOLING];
    let prepare: Prepare = |body, serving, key| prepare_cut(body, serving, key, TooLong::Refused, KNOWN);
    vectors(app, key, request, prepare, |wanted, computed, serving| {
        let entry = |(index, vector)| json!({"object": "pooling", "index": index, "data": vector});
        let mut answer = wanted.answer(computed, serving, entry);
        answer["id"] = random_id("pool").into();
        answer["created"] = unix_time().into();
        answer
    })
    .await
}

/// Reads what a request of this key asks for.
type Prepare = fn(Value, &Arc<Serving>, u64) -> Result<Wanted, ApiError>;

/// Computes what a request asks for, and answers in the form of its route.
async fn vectors(
    app: App,
    key: u64,
    request: Request<Body>,
    prepare: Prepare,
    answer: impl FnOnce(&Wanted, Computed, &Serving) -> Value + Send + 'static,
) -> Result<Response, ApiError> {
    let (serving, mut wanted, notes, mut memory) = prepared(&app, key, request, prepare).await?;
    // The ids of all texts wait here, and the vectors come; texts and bodies are gone.
    memory.shrink_to(wanted.memory(&serving));
    notes.report(&mut wanted.labels);
    let computed = wanted.compute(&app, &serving).await?;
    // Of two thousand texts it is megabytes of numbers.
    blocking(move || Ok(json_response(StatusCode::OK, &answer(&wanted, computed, &serving)))).await
}

/// A vector of a part of the features is one only of models that were trained for it.
pub(crate) fn check_dimensions(dimensions: Option<Value>, hidden_size: usize) -> Result<(), ApiError> {
    match dimensions {
        Some(dimensions) if dimensions != hidden_size => {
            Err(wrong("dimensions", &dimensions, format!("{hidden_size}, the width of this model's vectors")))
        }
        _ => Ok(()),
    }
}

/// What a request to `/v1/embeddings` asks for, with this done about texts that are too long.
pub(crate) fn prepare_as_openai(
    body: Value,
    serving: &Arc<Serving>,
    key: u64,
    too_long: TooLong,
) -> Result<Wanted, ApiError> {
    prepare_cut(body, serving, key, too_long, KNOWN)
}

/// The same, to a route with these fields.
fn prepare_cut(
    body: Value,
    serving: &Arc<Serving>,
    key: u64,
    too_long: TooLong,
    known: &[&[Field]],
) -> Result<Wanted, ApiError> {
    let mut fields = Fields::new(body, known)?;
    serving.check_model(fields.string("model")?.as_deref())?;
    let Some(hidden_size) = serving.hidden_size else {
        let message =
            "this model gives no hidden states here, so it makes no embeddings: its head is no projection of a norm";
        return Err(ApiError::refused(StatusCode::BAD_REQUEST, "no_embeddings", message));
    };
    // Another interface's own says it in its place.
    let too_long = match too_long {
        TooLong::Refused => sampling::too_long(&mut fields, serving)?,
        other => other,
    };
    let form = Form { around: Around::Both, gap: None, too_long };
    let inputs = prompts::take(&mut fields, "input", INPUTS_MAX, form, serving)?;
    let context_len = serving.engine.config().context_len;
    if let Some(index) = inputs.iter().position(|input| input.ids.len() > context_len) {
        let found = inputs[index].ids.len();
        let message = format!("`input[{index}]` has {found} tokens, and the context holds {context_len}");
        return Err(ApiError::context_exceeded("input", message, found, context_len));
    }
    check_dimensions(fields.take("dimensions"), hidden_size)?;
    let asked = fields.string("pooling")?;
    let (pooling, pooling_from) = match (asked.as_deref(), serving.pooling_asked, serving.pooling.as_deref()) {
        (Some("mean"), ..) => (Pooling::Mean, "request"),
        (Some("last"), ..) => (Pooling::Last, "request"),
        (Some(other), ..) => return Err(wrong("pooling", &json!(other), "mean or last")),
        (None, Some(pooling), _) => (pooling, "server"),
        (None, None, Some("mean")) => (Pooling::Mean, "model"),
        (None, None, Some("last")) => (Pooling::Last, "model"),
        (None, None, Some(other)) => {
            let message = format!(
                "this model was trained with the pooling `{other}`, which is not here; `pooling` asks for mean or last"
            );
            return Err(ApiError::refused(StatusCode::BAD_REQUEST, "no_embeddings", message));
        }
        // What a model that was never trained for embeddings does best.
        (None, None, None) => (Pooling::Mean, "default"),
    };
    let base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => return Err(wrong("encoding_format", &json!(other), "float or base64")),
    };
    let wanted = Wanted {
        cut: inputs.iter().enumerate().filter(|(_, input)| input.is_cut).map(|(index, _)| index).collect(),
        input_field: "input",
        inputs: inputs.into_iter().map(|input| input.ids).collect(),
        pooling,
        pooling_from,
        normalize: fields.boolean("normalize")?.or(serving.normalize).unwrap_or(true),
        base64,
        priority: priority(&mut fields)?,
        cache_domain: cache_domain(key, fields.string("cache_salt")?.as_deref()),
        caller: key,
        labels: labels(&mut fields)?,
    };
    fields.finish(known)?;
    Ok(wanted)
}

impl Wanted {
    /// Computes the vectors, some texts at a time.
    pub(crate) async fn compute(&self, app: &App, serving: &Serving) -> Result<Computed, ApiError> {
        let (mut vectors, mut prompt_tokens, mut cached_tokens) = (Vec::with_capacity(self.inputs.len()), 0, 0);
        let begun = std::time::Instant::now();
        for wave in self.inputs.chunks(WAVE) {
            let requests = wave.iter().map(|ids| self.request(ids)).collect();
            let running = serving.engine.submit(requests).await;
            let running = running.map_err(|error| error.into_api(self.input_field, self.input_field));
            let running = running.inspect_err(|_| serving.metrics.refused())?;
            let tokens = wave.iter().map(Vec::len).sum::<usize>();
            serving.metrics.started(tokens);
            prompt_tokens += tokens;
            let mut found = vec![None; wave.len()];
            let mut watched = Watched::new(app, running, begun);
            while let Some((place, output)) = watched.next().await? {
                if let Some(FinishReason::Error(failure)) = &output.finish {
                    return Err(failed(failure));
                }
                cached_tokens += output.usage.cached_tokens;
                found[place] = output.embedding;
            }
            for vector in found {
                let message = "the engine ended a request without its embedding, which is a bug";
                vectors.push(vector.ok_or_else(|| ApiError::internal("no_embedding", message))?);
            }
        }
        serving.metrics.finished(std::iter::empty(), 0, begun.elapsed());
        Ok(Computed { vectors, prompt_tokens, cached_tokens })
    }

    /// The memory of the ids, and of the vectors with the numbers that are written for them.
    pub(crate) fn memory(&self, serving: &Serving) -> usize {
        let ids: usize = self.inputs.iter().map(Vec::len).sum();
        let features = self.inputs.len() * serving.hidden_size.unwrap_or_default();
        ids * size_of::<u32>() + features * (size_of::<f32>() + size_of::<Value>())
    }

    fn request(&self, ids: &[u32]) -> engine::Request {
        engine::Request {
            caller: Some(self.caller),
            priority: self.priority,
            cache_domain: self.cache_domain,
            ..engine::Request::embedding(ids.to_vec(), self.pooling)
        }
    }

    /// The answer with all vectors, each with its place as `entry` writes it.
    fn answer(&self, computed: Computed, serving: &Serving, entry: impl Fn((usize, Value)) -> Value) -> Value {
        let (prompt_tokens, facts) = (computed.prompt_tokens, self.facts(&computed, serving));
        let vectors = computed.vectors.into_iter().map(|vector| self.written(vector));
        let data: Vec<Value> = vectors.enumerate().map(entry).collect();
        json!({
            "object": "list", "data": data, "model": serving.name,
            "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
            "x_hotmetal": facts,
        })
    }

    /// `x_hotmetal`.
    pub(crate) fn facts(&self, computed: &Computed, serving: &Serving) -> Value {
        let mut facts = json!({
            "device": serving.device, "context_len": serving.engine.config().context_len,
            "embedding": "hidden states of the final norm", "pooling": self.pooling.name(),
            "pooling_from": self.pooling_from, "normalized": self.normalize,
            "dimensions": computed.vectors.first().map_or(0, Vec::len), "cached_tokens": computed.cached_tokens,
        });
        if !self.cut.is_empty() {
            facts["truncated"] = json!(self.cut);
        }
        for (name, value) in &self.labels {
            facts[name] = value.clone();
        }
        facts
    }

    /// A vector as the answer has it: numbers, or the base64 of their 32 bits, low byte first.
    pub(crate) fn written(&self, mut vector: Vec<f32>) -> Value {
        if self.normalize {
            normalize(&mut vector);
        }
        if self.base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|feature| feature.to_le_bytes()).collect();
            return BASE64_STANDARD.encode(bytes).into();
        }
        vector.into()
    }
}

/// To length 1; a vector of zeros stays what it is.
fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&feature| f64::from(feature).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|feature| *feature = (f64::from(*feature) / length) as f32);
    }
}
