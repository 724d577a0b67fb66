//! `/infill`: the text of a gap, in llama.cpp's own form, as the plugins of editors ask for it.
//!
//! The tokens around the texts are the vocabulary's ([`FimMarkers`]). A plugin sends as much of a file as it likes, and
//! asks again with each key that is pressed; so a prompt that does not fit is cut here, which no other route does, and
//! the answer says so (`truncated`).

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use tokenizer::{Around, FimMarkers, FimTexts, ParseSpecial};

use crate::abandoned;
use crate::app::{App, Serving};
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, only, string, wrong};
use crate::generation::{Plan, prepared};
use crate::grammar;
use crate::llama_cpp::text::{self, NativeText, TextForm};
use crate::llama_cpp::{self, samplers};
use crate::sampling::{self, Settings, described};
use crate::security::KeyNumber;

/// A text of `input_extra`.
pub(crate) const CHUNK: &[&[Field]] = &[&[applied("text"), applied("filename")]];

/// Other files of one request, at most.
const CHUNKS_MAX: usize = 1024;

/// What llama.cpp calls a repository, and a file, that nobody names.
const REPO_NAME: &str = "myproject";
const FILE_NAME: &str = "filename";

/// Fields of this route alone.
pub(crate) const FIELDS: &[Field] = &[
    applied("input_prefix"),
    applied("input_suffix"),
    applied("input_extra"),
    applied("prompt"),
    only("n", |value| value == 1, "an answer has one text"),
];

const KNOWN: &[&[Field]] = &[sampling::COMMON, llama_cpp::COMMON, grammar::FIELDS, FIELDS];

/// Fills a gap.
pub(crate) async fn infill(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompt, filling), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    text::respond(&app, serving, vec![prompt], plan, vec![filling]).await
}

fn prepare(mut body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Plan, Vec<u32>, NativeText), ApiError> {
    if let Some(body) = body.as_object_mut() {
        samplers::leave_out(body);
    }
    let mut fields = Fields::new(body, KNOWN)?;
    let mut settings = Settings::take(&mut fields, serving, key)?;
    let Some(markers) = &serving.fim else {
        let message = "this model's vocabulary has no tokens that mark a gap, so it fills none";
        return Err(ApiError::refused(StatusCode::BAD_REQUEST, "no_infill", message));
    };
    // What is too long is cut.
    let bounds = abandoned::bounds(usize::MAX);
    let encode = |text: &str| serving.tokenizer.encode_within(text, ParseSpecial::No, Around::Nothing, &bounds);
    let prefix = encode(&string("input_prefix", fields.required("input_prefix")?)?)?;
    let inside = |text: &str| serving.tokenizer.encode_inside(text, ParseSpecial::No, &bounds);
    let suffix = inside(&string("input_suffix", fields.required("input_suffix")?)?)?;
    let begun = inside(&fields.string("prompt")?.unwrap_or_default())?;
    let files = files(&mut fields, serving, markers)?;
    let (form, max_tokens) = TextForm::take(&mut fields)?;
    fields.finish(KNOWN)?;

    let texts = FimTexts { context: &[], prefix: &prefix, suffix: &suffix, begun: &begun };
    let before = serving.tokenizer.prefix_ids();
    let (prompt, truncated) =
        fitting_prompt(markers, before, &texts, &files, max_tokens, serving.engine.config().context_len)?;
    settings.compile(serving)?;
    settings.end_at(markers);
    form.ask(&mut settings, serving)?;
    let described = described(&settings, serving.most_tokens(max_tokens));
    let filling = NativeText::new(serving, &Arc::new(form), prompt.clone(), truncated, described);
    let plan = Plan {
        settings,
        max_tokens,
        // A prompt without text behind it puts the prompt into the cache: plugins do so while nobody types.
        prompt_logprobs: (max_tokens == Some(0)).then_some(0),
        prompt_field: "input_prefix",
        max_tokens_field: "n_predict",
        memory: None,
    };
    Ok((plan, prompt, filling))
}

/// Other files of a request, as ids.
#[derive(Debug, Default)]
struct Files {
    /// What stands before all of them.
    head: Vec<u32>,
    /// Each with its name, in the order of the request.
    chunks: Vec<Vec<u32>>,
    /// What stands between them and the file with the gap.
    tail: Vec<u32>,
}

/// Takes `input_extra`: in the form of a repository as far as the vocabulary has tokens for that, else as plain text.
fn files(fields: &mut Fields, serving: &Serving, markers: &FimMarkers) -> Result<Files, ApiError> {
    let chunks = match fields.take("input_extra") {
        None => return Ok(Files::default()),
        Some(Value::Array(chunks)) if chunks.len() <= CHUNKS_MAX => chunks,
        Some(other) => {
            let expected = format!("a list of at most {CHUNKS_MAX} objects with `text` and `filename`");
            return Err(wrong("input_extra", &other, expected));
        }
    };
    if chunks.is_empty() {
        return Ok(Files::default());
    }
    let encode = |mark: Option<u32>, text: &str| {
        let bounds = abandoned::bounds(usize::MAX);
        let ids = serving.tokenizer.encode_within(text, ParseSpecial::No, Around::Nothing, &bounds)?;
        Ok::<_, ApiError>(mark.into_iter().chain(ids).collect::<Vec<u32>>())
    };
    let marked = |mark: Option<u32>, name: &str| match mark {
        Some(_) => encode(mark, &format!("{name}\n")),
        None => Ok(Vec::new()),
    };
    let chunk = |(index, chunk): (usize, Value)| {
        let at = format!("input_extra[{index}]");
        let within = |error: ApiError| error.within(&at);
        let mut chunk = Fields::inside(&at, chunk, CHUNK)?;
        let text = chunk.required("text").and_then(|text| string("text", text)).map_err(within)?;
        let name = chunk.string("filename").map_err(within)?;
        // A file ends with its line.
        let end = if text.ends_with('\n') { "" } else { "\n" };
        match (markers.file_sep, name) {
            (None, None) => encode(None, &format!("{text}{end}")),
            (mark, name) => encode(mark, &format!("{}\n{text}{end}", name.as_deref().unwrap_or(FILE_NAME))),
        }
    };
    Ok(Files {
        head: marked(markers.repo, REPO_NAME)?,
        chunks: chunks.into_iter().enumerate().map(chunk).collect::<Result<_, _>>()?,
        tail: marked(markers.file_sep, FILE_NAME)?,
    })
}

/// The prompt, cut so that the text to be generated fits the context behind it; and whether it was cut.
///
/// The text in front of the gap loses its beginning and the text behind the gap its end: the rest is nearest to the
/// gap. The latter has a quarter of the room, and more where the former is short. Other files have what is left, the
/// last ones first, each whole or not at all.
fn fitting_prompt(
    markers: &FimMarkers,
    before: &[u32],
    texts: &FimTexts<'_>,
    files: &Files,
    max_tokens: Option<usize>,
    context_len: usize,
) -> Result<(Vec<u32>, bool), ApiError> {
    // A text without a limit has a quarter of the context, and one with a limit half of it at least.
    let reserved = max_tokens.map_or(context_len / 4, |most| most.min(context_len / 2)).max(1);
    let fixed = before.len() + markers.num_marks() + texts.begun.len();
    let Some(room) = context_len.checked_sub(reserved + fixed) else {
        let (found, context) = (texts.begun.len(), context_len);
        let message = format!("`prompt` has {found} tokens, which are never cut, and the context holds {context}");
        return Err(ApiError::context_exceeded("prompt", message, found, context));
    };
    let (prefix, suffix) = (texts.prefix, texts.suffix);
    let num_suffix = suffix.len().min((room / 4).max(room.saturating_sub(prefix.len())));
    let num_prefix = prefix.len().min(room - num_suffix);
    let mut room = room - num_suffix - num_prefix;
    let mut context = Vec::new();
    let mut num_chunks = 0;
    if let Some(rest) = room.checked_sub(files.head.len() + files.tail.len()) {
        room = rest;
        for chunk in files.chunks.iter().rev() {
            let Some(rest) = room.checked_sub(chunk.len()) else { break };
            room = rest;
            num_chunks += 1;
        }
        if num_chunks > 0 {
            let kept = files.chunks[files.chunks.len() - num_chunks..].iter().flatten();
            context = files.head.iter().chain(kept).chain(&files.tail).copied().collect();
        }
    }
    let texts = FimTexts {
        context: &context,
        prefix: &prefix[prefix.len() - num_prefix..],
        suffix: &suffix[..num_suffix],
        begun: texts.begun,
    };
    let is_whole = (num_prefix, num_suffix, num_chunks) == (prefix.len(), suffix.len(), files.chunks.len());
    Ok((markers.prompt(before, &texts), !is_whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKERS: FimMarkers = FimMarkers {
        prefix: 1000,
        suffix: 1001,
        middle: Some(1002),
        pad: None,
        repo: Some(1003),
        file_sep: Some(1004),
        end: None,
        suffix_first: false,
    };

    /// The prompt of texts with so many tokens: the prefix counts up from 0 and the suffix from 500.
    fn prompt(prefix: u32, suffix: u32, chunks: &[u32], max_tokens: Option<usize>) -> (Vec<u32>, bool) {
        let (prefix, suffix): (Vec<u32>, Vec<u32>) = ((0..prefix).collect(), (500..500 + suffix).collect());
        let chunks = chunks.iter().map(|&len| vec![2000 + len; len as usize]).collect();
        let files = Files { head: vec![1003], chunks, tail: vec![1004, 7] };
        let texts = FimTexts { context: &[], prefix: &prefix, suffix: &suffix, begun: &[9] };
        fitting_prompt(&MARKERS, &[8], &texts, &files, max_tokens, 105).unwrap()
    }

    /// Of a context of 105 tokens, 5 are the marks, the token before every text and the beginning of the middle.
    #[test]
    fn a_prompt_is_cut_far_from_the_gap_so_that_the_middle_fits() {
        let sides = |(ids, truncated): (Vec<u32>, bool)| {
            let at = |mark: u32| ids.iter().position(|&id| id == mark).unwrap();
            let (prefix, suffix, middle) = (at(1000), at(1001), at(1002));
            assert_eq!((ids[0], &ids[middle + 1..]), (8, &[9][..]));
            let ends = |ids: &[u32]| (ids.first().copied(), ids.last().copied(), ids.len());
            (ids[1..prefix].to_vec(), ends(&ids[prefix + 1..suffix]), ends(&ids[suffix + 1..middle]), truncated)
        };
        let whole = (Some(0), Some(29), 30);
        assert_eq!(sides(prompt(30, 30, &[], Some(40))), (vec![], whole, (Some(500), Some(529), 30), false));
        // 60 tokens are left: three quarters for what stands before the gap.
        assert_eq!(
            sides(prompt(100, 100, &[], Some(40))),
            (vec![], (Some(55), Some(99), 45), (Some(500), Some(514), 15), true)
        );
        // What one side does not need, the other has.
        assert_eq!(sides(prompt(30, 100, &[], Some(40))).2, (Some(500), Some(529), 30));
        assert_eq!(sides(prompt(100, 5, &[], Some(40))).1, (Some(45), Some(99), 55));
        // No limit leaves a quarter of the context, and one above half of it no less than half for the prompt.
        assert_eq!(prompt(200, 200, &[], None).0.len(), 105 - 26);
        assert_eq!(prompt(200, 200, &[], Some(1000)).0.len(), 105 - 52);
        // Other files: the last ones, each whole, and with none of them no word of files.
        let (context, ..) = sides(prompt(20, 10, &[9, 10, 11], Some(40)));
        assert_eq!(context, [&[1003][..], &[2010; 10], &[2011; 11], &[1004, 7]].concat()[..]);
        let (context, .., truncated) = sides(prompt(20, 10, &[4, 5, 6], Some(40)));
        assert_eq!((context.len(), truncated), (18, false));
        let (context, .., truncated) = sides(prompt(20, 10, &[4, 50], Some(40)));
        assert_eq!((context, truncated), (vec![], true));
    }

    #[test]
    fn a_beginning_that_leaves_no_room_is_refused() {
        let texts = FimTexts { begun: &[9; 102], ..FimTexts::default() };
        let refused = |max_tokens| fitting_prompt(&MARKERS, &[], &texts, &Files::default(), max_tokens, 105);
        assert_eq!(refused(Some(1)).unwrap_err().param(), Some("prompt"));
        let texts = FimTexts { begun: &[9; 101], ..texts };
        let (ids, truncated) = fitting_prompt(&MARKERS, &[], &texts, &Files::default(), Some(1), 105).unwrap();
        assert_eq!((ids.len(), truncated), (104, false));
    }
}
