//! `/v1/score` and `/v1/rerank`, in vLLM's form: how near texts are to each other, by the vectors of a model that was
//! trained to make vectors of texts. A model that reads two texts together and judges them is not here.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::{App, Serving};
use crate::clock::unix_time;
use crate::embeddings::{self, Computed, Wanted};
use crate::error::{ApiError, json_response};
use crate::fields::{self, Field, Fields, applied, hint, string, wrong};
use crate::generation::prepared;
use crate::ids::random_id;
use crate::prompts::TooLong;
use crate::security::KeyNumber;

/// Texts of one request: as many as `/v1/embeddings` takes.
const TEXTS_MAX: usize = 2048;

/// Fields of both routes.
pub(crate) const COMMON: &[Field] = &[
    applied("model"),
    applied("truncate_prompt_tokens"),
    applied("add_special_tokens"),
    applied("parse_special"),
    applied("priority"),
    applied("cache_salt"),
    applied("user"),
    applied("metadata"),
];

/// Fields of `/v1/score` alone.
pub(crate) const SCORE: &[Field] = &[applied("text_1"), applied("text_2")];

/// Fields of `/v1/rerank` alone.
pub(crate) const RERANK: &[Field] = &[
    applied("query"),
    applied("documents"),
    applied("top_n"),
    applied("return_documents"),
    hint("rank_fields", "documents are texts"),
];

/// Says how near texts are to other texts.
pub(crate) async fn score(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut wanted, num_left), notes, mut memory) = prepared(&app, key, request, prepare_score).await?;
    memory.shrink_to(wanted.memory(&serving));
    notes.report(&mut wanted.labels);
    let computed = wanted.compute(&app, &serving).await?;
    let (left, right) = computed.vectors.split_at(num_left);
    // One text is compared with each of several, and several each with its own.
    let nearness = |(index, other): (usize, &Vec<f32>)| json!({"index": index, "object": "score", "score": cosine(&left[index % left.len()], other)});
    let data: Vec<Value> = right.iter().enumerate().map(nearness).collect();
    let answer = json!({
        "id": random_id("score"), "object": "list", "created": unix_time(), "model": serving.name, "data": data,
        "usage": usage(&computed), "x_hotmetal": wanted.facts(&computed, &serving),
    });
    Ok(json_response(StatusCode::OK, &answer))
}

/// Puts documents in the order in which they are near to a query.
pub(crate) async fn rerank(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, Reranked { mut wanted, documents, top_n }, notes, mut memory) =
        prepared(&app, key, request, prepare_rerank).await?;
    memory.shrink_to(wanted.memory(&serving));
    notes.report(&mut wanted.labels);
    let computed = wanted.compute(&app, &serving).await?;
    let (query, others) = computed.vectors.split_at(1);
    let mut scores: Vec<(usize, f64)> =
        others.iter().enumerate().map(|(index, other)| (index, cosine(&query[0], other))).collect();
    // Equal ones stay in their order.
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    let result = |(index, score): (usize, f64)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if let Some(documents) = &documents {
            result["document"] = json!({"text": documents[index]});
        }
        result
    };
    let results: Vec<Value> = scores.into_iter().take(top_n).map(result).collect();
    let answer = json!({
        "id": random_id("rerank"), "model": serving.name, "results": results, "usage": usage(&computed),
        "x_hotmetal": wanted.facts(&computed, &serving),
    });
    Ok(json_response(StatusCode::OK, &answer))
}

fn usage(computed: &Computed) -> Value {
    json!({"prompt_tokens": computed.prompt_tokens, "total_tokens": computed.prompt_tokens})
}

/// The vectors that a request needs, and how many of them are of its first texts.
fn prepare_score(body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Wanted, usize), ApiError> {
    const KNOWN: &[&[Field]] = &[COMMON, SCORE];
    let mut fields = Fields::new(body, KNOWN)?;
    let (left, right) = (texts("text_1", &mut fields)?, texts("text_2", &mut fields)?);
    if left.len() != 1 && left.len() != right.len() {
        let message = format!(
            "`text_1` has {} texts and `text_2` {}: send one text, or as many as the other has",
            left.len(),
            right.len()
        );
        return Err(ApiError::invalid("text_1", message));
    }
    let num_left = left.len();
    let inputs = left.into_iter().chain(right).collect();
    let wanted = vectors(&mut fields, inputs, "text_2", serving, key)?;
    fields.finish(KNOWN)?;
    Ok((wanted, num_left))
}

/// What a request to put documents in order needs.
struct Reranked {
    wanted: Wanted,
    /// The texts, where the answer has them.
    documents: Option<Vec<String>>,
    top_n: usize,
}

fn prepare_rerank(body: Value, serving: &Arc<Serving>, key: u64) -> Result<Reranked, ApiError> {
    const KNOWN: &[&[Field]] = &[COMMON, RERANK];
    let mut fields = Fields::new(body, KNOWN)?;
    let query = fields.required("query").and_then(|query| string("query", query))?;
    let documents = texts("documents", &mut fields)?;
    // 0 is no limit, as in vLLM.
    let top_n = fields.count("top_n")?.filter(|&count| count > 0).unwrap_or(documents.len());
    let returns = fields.boolean("return_documents")?.unwrap_or(true);
    let inputs = std::iter::once(query).chain(documents.iter().cloned()).collect();
    let wanted = vectors(&mut fields, inputs, "documents", serving, key)?;
    fields.finish(KNOWN)?;
    Ok(Reranked { wanted, documents: returns.then_some(documents), top_n })
}

/// A text or several, each with at least one letter; a document may be an object with its `text`.
fn texts(name: &'static str, fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.required(name)? {
        Value::Array(items) if (1..=TEXTS_MAX).contains(&items.len()) => items,
        text @ Value::String(_) => vec![text],
        other => return Err(wrong(name, &other, format!("a text, or a list of 1 to {TEXTS_MAX} texts"))),
    };
    let text = |item: Value| match item {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::Object(mut object)
            if object.get("text").is_some_and(|text| text.as_str().is_some_and(|t| !t.is_empty())) =>
        {
            string(name, object.shift_remove("text").unwrap_or_default())
        }
        other => Err(wrong(name, &other, "texts that are not empty")),
    };
    items.into_iter().map(text).collect()
}

/// What computes the vectors of `inputs`, most of which come from the field `name`.
fn vectors(
    fields: &mut Fields,
    inputs: Vec<String>,
    name: &'static str,
    serving: &Arc<Serving>,
    key: u64,
) -> Result<Wanted, ApiError> {
    if serving.pooling.is_none() && serving.pooling_asked.is_none() {
        let message = "this model was not trained to make vectors of texts, so it does not say how near they are; serve \
                       an embedding model";
        return Err(ApiError::refused(StatusCode::BAD_REQUEST, "no_embeddings", message));
    }
    let mut inner = Map::new();
    inner.insert("input".to_owned(), inputs.into());
    for field in COMMON {
        inner.extend(fields.take(field.name).map(|value| (field.name.to_owned(), value)));
    }
    let rename = |path: &str| match path.strip_prefix("input") {
        Some(_) => name.to_owned(),
        None => path.to_owned(),
    };
    fields::inner(rename, || embeddings::prepare_as_openai(inner.into(), serving, key, TooLong::Refused))
}

/// The cosine of the angle between two vectors, from -1 to 1; 0 where one has no length.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    if lengths > 0.0 { dot(a, b) / lengths } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cosine_says_how_near_vectors_are() {
        assert!((cosine(&[3.0, 4.0], &[6.0, 8.0]) - 1.0).abs() < 1e-12);
        assert!((cosine(&[1.0, 0.0], &[-2.0, 0.0]) + 1.0).abs() < 1e-12);
        assert_eq!((cosine(&[1.0, 0.0], &[0.0, 5.0]), cosine(&[0.0, 0.0], &[1.0, 1.0])), (0.0, 0.0));
    }
}
