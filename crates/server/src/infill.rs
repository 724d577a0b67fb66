//! `/infill`: the text of a gap, in llama.cpp's own form, as the plugins of editors ask for it.
//!
//! The tokens around the texts are the vocabulary's ([`FimMarkers`]). A plugin sends as much of a file as it likes, and
//! asks again with each key that is pressed; so a prompt that does not fit is cut here, which no other route does, and
//! the answer says so (`truncated`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use engine::SamplerStep;
use serde_json::{Map, Value, json};
use tokenizer::{Around, FimMarkers, FimTexts, ParseSpecial};
use tokio::time::timeout;

use crate::abandoned;
use crate::app::{App, Serving};
use crate::choice::{Delta, Finish};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Fields, applied, hint, ignore, only, string, wrong};
use crate::generation::{Event, Job, Plan, prepared};
use crate::grammar;
use crate::sampling::{self, Settings, describe};
use crate::security::KeyNumber;
use crate::sse::{self, EventSender, KEEP_ALIVE, ReaderGone};

/// Other files of one request, at most.
const CHUNKS_MAX: usize = 1024;

/// What llama.cpp calls a repository, and a file, that nobody names.
const REPO_NAME: &str = "myproject";
const FILE_NAME: &str = "filename";

/// llama.cpp's sampler that weighs ends of words against ends of texts. It is not here, and every request of its
/// plugins names it.
const INFILL_SAMPLER: &str = "infill";

/// Fields of this route alone.
pub(crate) const FIELDS: &[Field] = &[
    applied("input_prefix"),
    applied("input_suffix"),
    applied("input_extra"),
    applied("prompt"),
    applied("n_predict"),
    applied("max_tokens"),
    applied("n_indent"),
    applied("t_max_predict_ms"),
    applied("return_tokens"),
    applied("response_fields"),
    hint("n_cache_reuse", "the prefix cache serves all"),
    hint("id_slot", "any place in the batch serves any request"),
    hint("n_keep", "a text ends where the context does, and nothing is shifted out of it"),
    hint("t_max_prompt_ms", "a prompt is computed to its end"),
    hint("timings_per_token", "the last event has the timings"),
    only("n", |value| value == 1, "an answer has one text"),
    only("n_probs", |value| value == 0, "/v1/completions gives log-probabilities"),
    only("post_sampling_probs", |value| value == false, "/v1/completions gives log-probabilities"),
    only("min_keep", |value| value == 0 || value == 1, "the filters keep one token at least, and no more by force"),
    only(
        "mirostat",
        |value| value == 0,
        "this sampler is not here; `top_p`, `min_p` or `typical_p` cut the unlikely tokens",
    ),
    only("dynatemp_range", |value| value.as_f64() == Some(0.0), "the temperature is one number here: `temperature`"),
];

const KNOWN: &[&[Field]] = &[sampling::COMMON, grammar::FIELDS, FIELDS];

/// Fills a gap.
pub(crate) async fn infill(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompt, mut filling), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    let mut job = Job::start(&app, serving, vec![prompt], plan).await?;
    if !job.is_stream() {
        loop {
            let piece = filling.next(&mut job).await?;
            if let Some(finish) = piece.finish {
                job.finished(std::iter::once(&finish));
                let content = std::mem::take(&mut filling.text);
                let tokens = std::mem::take(&mut filling.tokens);
                return Ok(json_response(StatusCode::OK, &filling.answer(&content, &tokens, &finish, &job)));
            }
        }
    }
    let (sender, response) = sse::channel(app.inner.options.stall_time_max);
    tokio::spawn(async move {
        if stream(job, filling, &sender).await == Err(ReaderGone) {
            tracing::info!("the reader of a stream has gone");
        }
    });
    Ok(response)
}

/// Sends the text as it comes, and an event with `stop` last. llama.cpp's own routes end without `[DONE]`.
async fn stream(mut job: Job, mut filling: Filling, sender: &EventSender) -> Result<(), ReaderGone> {
    loop {
        let next = tokio::select! {
            next = timeout(KEEP_ALIVE, filling.next(&mut job)) => next,
            () = sender.gone() => return Err(ReaderGone),
        };
        let piece = match next {
            Err(_) => {
                sender.keep_alive().await?;
                continue;
            }
            Ok(Err(error)) => return sender.send(&error.to_json()).await,
            Ok(Ok(piece)) => piece,
        };
        let hides_tokens = !filling.returns_tokens || piece.tokens.is_empty();
        if !piece.text.is_empty() || !hides_tokens {
            sender.send(&filling.event(&piece, &job)).await?;
        }
        if let Some(finish) = piece.finish {
            job.finished(std::iter::once(&finish));
            return sender.send(&filling.answer("", &[], &finish, &job)).await;
        }
    }
}

fn prepare(mut body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Plan, Vec<u32>, Filling), ApiError> {
    if let Some(body) = body.as_object_mut() {
        leave_out_samplers(body);
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
    let max_tokens = match (fields.has("n_predict"), fields.has("max_tokens")) {
        (true, true) => return Err(ApiError::invalid("max_tokens", "`max_tokens` is another name of `n_predict`")),
        (_, true) => fields.token_limit("max_tokens", 0)?,
        _ => fields.token_limit("n_predict", 0)?,
    };
    let indent_least = fields.count("n_indent")?.unwrap_or(0);
    let time_max = fields.integer("t_max_predict_ms", -1, i64::from(u32::MAX))?;
    let time_max = time_max.and_then(|ms| u64::try_from(ms).ok()).filter(|&ms| ms > 0).map(Duration::from_millis);
    let returns_tokens = fields.boolean("return_tokens")?.unwrap_or(false);
    let response_fields = fields.strings("response_fields")?.filter(|names| !names.is_empty());
    fields.finish(KNOWN)?;

    let texts = FimTexts { context: &[], prefix: &prefix, suffix: &suffix, begun: &begun };
    let before = serving.tokenizer.prefix_ids();
    let (prompt, truncated) =
        fitting_prompt(markers, before, &texts, &files, max_tokens, serving.engine.config().context_len)?;
    settings.compile(serving)?;
    settings.end_at(markers);
    let mut described = describe(&settings.sampling);
    for (name, value) in [
        ("seed", json!(settings.sampling.seed)),
        ("n_predict", max_tokens.map_or(json!(-1), |most| json!(most))),
        ("stop", json!(settings.text.stop)),
        ("ignore_eos", json!(settings.ignore_eos)),
        ("stream", json!(settings.stream)),
    ] {
        described[name] = value;
    }
    let filling = Filling {
        serving: Arc::clone(serving),
        prompt: prompt.clone(),
        truncated,
        settings: described,
        returns_tokens,
        response_fields,
        indent_least,
        time_max,
        text: String::new(),
        tokens: Vec::new(),
        indent: None,
        first_token: None,
    };
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

/// Makes of `samplers` what they mean to llama.cpp: a step that is not listed does nothing, whatever the model's
/// defaults are.
fn leave_out_samplers(body: &mut Map<String, Value>) {
    let Some(Value::Array(names)) = body.get_mut("samplers") else { return };
    let count = names.len();
    names.retain(|name| name != INFILL_SAMPLER);
    if names.len() < count {
        ignore(format!("samplers.{INFILL_SAMPLER}"));
    }
    let is_listed = |step: SamplerStep| names.iter().any(|name| name == step.name());
    let left_out: Vec<SamplerStep> = SamplerStep::ALL.into_iter().filter(|&step| !is_listed(step)).collect();
    for step in left_out {
        let neutral: &[(&str, f64)] = match step {
            SamplerStep::Penalties => &[("repeat_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0)],
            SamplerStep::Dry => &[("dry_multiplier", 0.0)],
            // The one whole number of them.
            SamplerStep::TopK => &[],
            SamplerStep::Typical => &[("typical_p", 1.0)],
            SamplerStep::TopP => &[("top_p", 1.0)],
            SamplerStep::MinP => &[("min_p", 0.0)],
            SamplerStep::Xtc => &[("xtc_probability", 0.0)],
            SamplerStep::Temperature => &[("temperature", 1.0)],
        };
        let top_k = (step == SamplerStep::TopK).then(|| ("top_k", json!(0)));
        for (name, value) in neutral.iter().map(|&(name, value)| (name, json!(value))).chain(top_k) {
            // What the request says itself is not taken back: it is refused, because it would have no effect.
            if body.get(name).is_none_or(Value::is_null) {
                body.insert(name.to_owned(), value);
            }
        }
    }
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
    const CHUNK: &[&[Field]] = &[&[applied("text"), applied("filename")]];
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
        return Err(ApiError::context_exceeded("prompt", message));
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

/// An answer on its way.
struct Filling {
    serving: Arc<Serving>,
    prompt: Vec<u32>,
    truncated: bool,
    /// `generation_settings`.
    settings: Value,
    returns_tokens: bool,
    response_fields: Option<Vec<String>>,
    /// Spaces and tabs that each line but the first begins with, at least.
    indent_least: usize,
    /// How long the text may take, from its first token to the end of a line.
    time_max: Option<Duration>,
    text: String,
    tokens: Vec<u32>,
    /// Spaces and tabs so far, at the beginning of a line that is not the first.
    indent: Option<usize>,
    first_token: Option<Instant>,
}

/// New text.
#[derive(Debug)]
struct Piece {
    text: String,
    tokens: Vec<u32>,
    finish: Option<Finish>,
}

impl Filling {
    /// Waits for more text. Safe to drop while it waits.
    async fn next(&mut self, job: &mut Job) -> Result<Piece, ApiError> {
        loop {
            match job.next().await? {
                Some(Event::Scored(..)) => {}
                Some(Event::Text(_, delta)) => {
                    let piece = self.take(delta);
                    if piece.finish.is_some() {
                        job.end();
                    }
                    return Ok(piece);
                }
                None => {
                    let message = "the engine ended an answer without saying why, which is a bug";
                    return Err(ApiError::internal("no_end", message));
                }
            }
        }
    }

    /// Takes text in, and ends it where a line is indented too little, or where its time is over and a line has ended.
    fn take(&mut self, delta: Delta) -> Piece {
        let Delta { mut text, token_ids: tokens, mut finish, .. } = delta;
        let first_token = *self.first_token.get_or_insert_with(Instant::now);
        let cut = self.indented_too_little(&text);
        if let Some(cut) = cut {
            text.truncate(cut);
        }
        self.text.push_str(&text);
        self.tokens.extend(&tokens);
        let is_late = self.time_max.is_some_and(|most| first_token.elapsed() > most) && self.text.contains('\n');
        if cut.is_some() || (is_late && finish.is_none()) {
            finish = Some(Finish { reason: "length", stop: Value::Null, failure: None });
        }
        Piece { text, tokens, finish }
    }

    /// Where in `text`, which comes next, a line begins that is not indented far enough.
    fn indented_too_little(&mut self, text: &str) -> Option<usize> {
        for (at, character) in text.char_indices() {
            self.indent = match (character, self.indent) {
                ('\n', _) => Some(0),
                (' ' | '\t', Some(indent)) => Some(indent + 1),
                (_, Some(indent)) if indent < self.indent_least => return Some(at),
                _ => None,
            };
        }
        None
    }

    /// An event of a stream that is not the last.
    fn event(&self, piece: &Piece, job: &Job) -> Value {
        let progress = job.progress();
        json!({
            "index": 0, "content": piece.text, "tokens": if self.returns_tokens { &*piece.tokens } else { &[] },
            "stop": false, "tokens_predicted": progress.generated_tokens, "tokens_evaluated": progress.prompt_tokens,
        })
    }

    /// The whole answer, or the last event of a stream, whose text was sent before.
    fn answer(&self, content: &str, tokens: &[u32], finish: &Finish, job: &Job) -> Value {
        let progress = job.progress();
        let (stop_type, stopping_word) = match (finish.reason, finish.stop.as_str()) {
            ("stop", Some(word)) => ("word", word),
            ("stop", None) => ("eos", ""),
            _ => ("limit", ""),
        };
        let has_new_line = self.text.contains('\n') || content.contains('\n');
        let answer = json!({
            "index": 0,
            "content": content,
            "tokens": if self.returns_tokens { tokens } else { &[] },
            "stop": true,
            "model": self.serving.name,
            "tokens_predicted": progress.generated_tokens,
            "tokens_evaluated": progress.prompt_tokens,
            "tokens_cached": progress.cached_tokens,
            "truncated": self.truncated,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "has_new_line": has_new_line,
            "prompt": self.serving.tokenizer.decode(&self.prompt, false),
            "generation_settings": self.settings,
            "timings": timings(progress.prompt_tokens, progress.cached_tokens, progress.generated_tokens, job),
            "x_hotmetal": progress.facts,
        });
        let Some(names) = &self.response_fields else { return answer };
        let field = |name: &String| Some((name.clone(), at_path(&answer, name)?.clone()));
        let mut selected: Map<String, Value> = names.iter().filter_map(field).collect();
        // Every answer says what was used and what was ignored, so a client cannot leave it out.
        selected.insert("x_hotmetal".to_owned(), answer["x_hotmetal"].clone());
        selected.into()
    }
}

/// The value of `a/b` in an object.
fn at_path<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('/').try_fold(value, |value, name| value.get(name))
}

/// Tokens and times as llama.cpp names them.
fn timings(prompt: usize, cached: usize, generated: usize, job: &Job) -> Value {
    let (prompt_time, decode_time) = job.phases();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let each = |time: Duration, count: usize| (count > 0).then(|| ms(time) / count as f64);
    let rate = |time: Duration, count: usize| (!time.is_zero()).then(|| count as f64 / time.as_secs_f64());
    let computed = prompt.saturating_sub(cached);
    json!({
        "cache_n": cached,
        "prompt_n": computed, "prompt_ms": ms(prompt_time),
        "prompt_per_token_ms": each(prompt_time, computed), "prompt_per_second": rate(prompt_time, computed),
        "predicted_n": generated, "predicted_ms": ms(decode_time),
        "predicted_per_token_ms": each(decode_time, generated), "predicted_per_second": rate(decode_time, generated),
    })
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

    #[test]
    fn samplers_that_are_not_listed_do_nothing() {
        let mut body = json!({"samplers": ["top_k", "infill", "min_p"], "top_k": 4, "temperature": 0.5});
        leave_out_samplers(body.as_object_mut().unwrap());
        let expected = json!({
            "samplers": ["top_k", "min_p"], "top_k": 4, "temperature": 0.5, "repeat_penalty": 1.0, "presence_penalty": 0.0,
            "frequency_penalty": 0.0, "dry_multiplier": 0.0, "typical_p": 1.0, "top_p": 1.0, "xtc_probability": 0.0,
        });
        assert_eq!(body, expected);
    }
}
