//! Answers in llama.cpp's own form, whole or as events: of `/completion`, and of `/infill`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::build_info;
use crate::app::{App, Serving};
use crate::choice::{Delta, Finish};
use crate::error::{ApiError, json_response};
use crate::fields::{Fields, ignore};
use crate::generation::{Event, Job, Plan};
use crate::logprobs;
use crate::sampling::Settings;
use crate::sse::{self, EventSender, KEEP_ALIVE, ReaderGone};

/// What a request says about its answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextForm {
    returns_tokens: bool,
    response_fields: Option<Vec<String>>,
    /// Spaces and tabs that each line but the first begins with, at least.
    indent_least: usize,
    /// How long a text may take, from its first token to the end of a line.
    time_max: Option<Duration>,
    /// Each token comes with its log-probability and those of so many others, if not 0.
    num_probabilities: usize,
    /// They are probabilities, of what the samplers have left.
    after_samplers: bool,
    /// Each event has the times so far.
    times_tokens: bool,
    /// A stream says how far the prompt is.
    shows_progress: bool,
}

impl TextForm {
    /// Takes the fields that say it, and how many tokens there may be.
    pub(crate) fn take(fields: &mut Fields) -> Result<(Self, Option<usize>), ApiError> {
        let max_tokens = match (fields.has("n_predict"), fields.has("max_tokens")) {
            (true, true) => {
                let (a, b) = (fields.token_limit("n_predict", 0)?, fields.token_limit("max_tokens", 0)?);
                if a != b {
                    return Err(ApiError::invalid("max_tokens", "`max_tokens` is another name of `n_predict`"));
                }
                a
            }
            (_, true) => fields.token_limit("max_tokens", 0)?,
            _ => fields.token_limit("n_predict", 0)?,
        };
        let time_max = |fields: &mut Fields| fields.integer("t_max_predict_ms", -1, i64::from(u32::MAX));
        let form = Self {
            indent_least: fields.count("n_indent")?.unwrap_or(0),
            time_max: time_max(fields)?
                .and_then(|ms| u64::try_from(ms).ok())
                .filter(|&ms| ms > 0)
                .map(Duration::from_millis),
            returns_tokens: fields.boolean("return_tokens")?.unwrap_or(false),
            response_fields: fields.strings("response_fields")?.filter(|names| !names.is_empty()),
            num_probabilities: fields.count("n_probs")?.unwrap_or(0),
            after_samplers: fields.boolean("post_sampling_probs")?.unwrap_or(false),
            times_tokens: fields.boolean("timings_per_token")?.unwrap_or(false),
            shows_progress: fields.boolean("return_progress")?.unwrap_or(false),
        };
        if form.after_samplers && !form.shows_probabilities() {
            ignore("post_sampling_probs");
        }
        Ok((form, max_tokens))
    }

    fn shows_probabilities(&self) -> bool {
        self.num_probabilities > 0
    }

    /// Asks for the log-probabilities and the progress that the answers show.
    pub(crate) fn ask(&self, settings: &mut Settings, serving: &Serving) -> Result<(), ApiError> {
        settings.sampling.logprobs = Some(self.num_probabilities).filter(|&count| count > 0);
        settings.sampling.logprobs_after_steps = self.after_samplers;
        settings.shows_progress = self.shows_progress;
        let checked = settings.sampling.check(serving.engine.config().vocab_size);
        checked.map_err(|error| ApiError::from(error).with_param("top_logprobs", "n_probs"))
    }
}

/// An answer on its way.
pub(crate) struct NativeText {
    serving: Arc<Serving>,
    form: Arc<TextForm>,
    prompt: Vec<u32>,
    /// The prompt lost some of its tokens.
    truncated: bool,
    /// `generation_settings`.
    settings: Value,
    text: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    /// Spaces and tabs so far, at the beginning of a line that is not the first.
    indent: Option<usize>,
    first_token: Option<Instant>,
    finish: Option<Finish>,
}

/// New text.
#[derive(Debug)]
struct Piece {
    text: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    finish: Option<Finish>,
}

impl NativeText {
    /// One of which there is nothing yet. `settings` are described as [`described`] does it.
    pub(crate) fn new(
        serving: &Arc<Serving>,
        form: &Arc<TextForm>,
        prompt: Vec<u32>,
        truncated: bool,
        settings: Value,
    ) -> Self {
        Self {
            serving: Arc::clone(serving),
            form: Arc::clone(form),
            prompt,
            truncated,
            settings,
            text: String::new(),
            tokens: Vec::new(),
            probabilities: Vec::new(),
            indent: None,
            first_token: None,
            finish: None,
        }
    }

    /// Takes text in, and ends it where a line is indented too little, or where its time is over and a line has ended.
    fn take(&mut self, delta: Delta) -> Piece {
        let Delta { mut text, tokens: placed, token_ids: tokens, mut finish, .. } = delta;
        let first_token = *self.first_token.get_or_insert_with(Instant::now);
        let cut = self.indented_too_little(&text);
        if let Some(cut) = cut {
            text.truncate(cut);
        }
        let probabilities = match self.form.shows_probabilities() {
            true => logprobs::native(&self.serving.tokenizer, &placed, self.form.after_samplers),
            false => Vec::new(),
        };
        self.text.push_str(&text);
        self.tokens.extend(&tokens);
        self.probabilities.extend(probabilities.iter().cloned());
        let is_late = self.form.time_max.is_some_and(|most| first_token.elapsed() > most) && self.text.contains('\n');
        if cut.is_some() || (is_late && finish.is_none()) {
            finish = Some(Finish { reason: "length", stop: Value::Null, failure: None });
        }
        self.finish.clone_from(&finish);
        Piece { text, tokens, probabilities, finish }
    }

    /// Where in `text`, which comes next, a line begins that is not indented far enough.
    fn indented_too_little(&mut self, text: &str) -> Option<usize> {
        for (at, character) in text.char_indices() {
            self.indent = match (character, self.indent) {
                ('\n', _) => Some(0),
                (' ' | '\t', Some(indent)) => Some(indent + 1),
                (_, Some(indent)) if indent < self.form.indent_least => return Some(at),
                _ => None,
            };
        }
        None
    }

    /// An event of a stream that is not the last.
    fn event(&self, index: usize, piece: &Piece, job: &Job) -> Value {
        let generated = job.usage_of(index).generated_tokens;
        let mut event = json!({
            "index": index, "content": piece.text,
            "tokens": piece.tokens,
            "stop": false, "id_slot": job.slot(), "tokens_predicted": generated, "tokens_evaluated": self.prompt.len(),
        });
        if self.form.shows_probabilities() {
            event["completion_probabilities"] = json!(piece.probabilities);
        }
        if self.form.times_tokens {
            event["timings"] = job.timings(self.prompt.len(), job.usage_of(index));
        }
        event
    }

    /// The whole answer, or the last event of a stream, whose text was sent before.
    fn answer(&self, index: usize, is_whole: bool, job: &Job) -> Value {
        let usage = job.usage_of(index);
        let (stop_type, stopping_word) = self.finish.as_ref().map_or(("limit", ""), Finish::native);
        let mut answer = json!({
            "index": index,
            "content": if is_whole { &*self.text } else { "" },
            "tokens": if is_whole && self.form.returns_tokens { &*self.tokens } else { &[] },
            "id_slot": job.slot(),
            "stop": true,
            "model": self.serving.name,
            "tokens_predicted": usage.generated_tokens,
            "tokens_evaluated": self.prompt.len(),
            "tokens_cached": usage.cached_tokens,
            "truncated": self.truncated || job.is_cut(self.prompt.len(), usage),
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "has_new_line": self.text.contains('\n'),
            "prompt": self.serving.tokenizer.decode(&self.prompt, false),
            "generation_settings": self.settings,
            "timings": job.timings(self.prompt.len(), usage),
            "system_fingerprint": build_info(self.serving.version),
            "x_hotmetal": job.progress().facts,
        });
        if self.form.shows_probabilities() && is_whole {
            answer["completion_probabilities"] = json!(self.probabilities);
        }
        let Some(names) = &self.form.response_fields else { return answer };
        let field = |name: &String| Some((name.clone(), at_path(&answer, name)?.clone()));
        let mut selected: Map<String, Value> = names.iter().filter_map(field).collect();
        // Every answer says what was used and what was ignored, so a client cannot leave it out.
        selected.insert("x_hotmetal".to_owned(), answer["x_hotmetal"].clone());
        selected.into()
    }
}

/// Submits the prompts and answers as the request wants it, with an object for one text and a list for several.
pub(crate) async fn respond(
    app: &App,
    serving: Arc<Serving>,
    prompts: Vec<Vec<u32>>,
    plan: Plan,
    mut texts: Vec<NativeText>,
) -> Result<Response, ApiError> {
    let mut job = Job::start(app, serving, prompts, plan).await?;
    if job.is_stream() {
        let (sender, response) = sse::channel(app.inner.options.stall_time_max);
        tokio::spawn(async move {
            if stream(job, texts, &sender).await == Err(ReaderGone) {
                tracing::info!("the reader of a stream has gone");
            }
        });
        return Ok(response);
    }
    while next_event(&mut texts, &mut job).await?.is_some() {}
    job.finished(texts.iter().filter_map(|text| text.finish.as_ref()));
    let mut answers: Vec<Value> =
        texts.iter().enumerate().map(|(index, text)| text.answer(index, true, &job)).collect();
    let answer = if answers.len() == 1 { answers.remove(0) } else { answers.into() };
    Ok(json_response(StatusCode::OK, &answer))
}

/// What happened to a text, by its index.
enum NativeEvent {
    /// Of its prompt more is read, but not all.
    Read(usize),
    Text(usize, Piece),
}

/// Waits for more of any text; nothing once all have ended. Safe to drop while it waits.
async fn next_event(texts: &mut [NativeText], job: &mut Job) -> Result<Option<NativeEvent>, ApiError> {
    loop {
        match job.next().await? {
            Some(Event::Scored(..)) => {}
            Some(Event::Read(place)) => return Ok(Some(NativeEvent::Read(place * texts.len() / job.read.len()))),
            Some(Event::Text(index, delta)) => {
                let piece = texts[index].take(delta);
                if piece.finish.is_some() {
                    job.end(index);
                }
                return Ok(Some(NativeEvent::Text(index, piece)));
            }
            None if texts.iter().all(|text| text.finish.is_some()) => return Ok(None),
            None => {
                let message = "the engine ended an answer without saying why, which is a bug";
                return Err(ApiError::internal("no_end", message));
            }
        }
    }
}

/// Sends the texts as they come, and of each an event with `stop` last. llama.cpp's own routes end without `[DONE]`.
async fn stream(mut job: Job, mut texts: Vec<NativeText>, sender: &EventSender) -> Result<(), ReaderGone> {
    if texts.first().is_some_and(|text| text.form.shows_progress) {
        sender.send(&progress(&texts[0], 0, 0, &job)).await?;
    }
    let mut is_read = vec![false; texts.len()];
    loop {
        let next = tokio::select! {
            next = timeout(KEEP_ALIVE, next_event(&mut texts, &mut job)) => next,
            () = sender.gone() => return Err(ReaderGone),
        };
        let (index, piece) = match next {
            Err(_) => {
                sender.keep_alive().await?;
                continue;
            }
            Ok(Err(error)) => return sender.send(&error.to_llama_cpp_json()).await,
            Ok(Ok(Some(NativeEvent::Read(index)))) => {
                let read = job.read[index * job.read.len() / texts.len()];
                sender.send(&progress(&texts[index], index, read, &job)).await?;
                continue;
            }
            Ok(Ok(Some(NativeEvent::Text(index, piece)))) => (index, piece),
            Ok(Ok(None)) => return Ok(()),
        };
        let text = &texts[index];
        if !std::mem::replace(&mut is_read[index], true) && text.form.shows_progress {
            sender.send(&progress(text, index, text.prompt.len(), &job)).await?;
        }
        let hides_tokens = !text.form.returns_tokens || piece.tokens.is_empty();
        if !piece.text.is_empty() || !hides_tokens || !piece.probabilities.is_empty() {
            sender.send(&text.event(index, &piece, &job)).await?;
        }
        if piece.finish.is_some() {
            let is_last = texts.iter().all(|text| text.finish.is_some());
            if is_last {
                job.finished(texts.iter().filter_map(|text| text.finish.as_ref()));
            }
            sender.send(&texts[index].answer(index, false, &job)).await?;
            if is_last {
                return Ok(());
            }
        }
    }
}

/// An event that says how far a prompt is: `read` of its tokens.
fn progress(text: &NativeText, index: usize, read: usize, job: &Job) -> Value {
    let cached = job.usage_of(index).cached_tokens;
    let progress = job.prompt_progress(text.prompt.len(), cached, read);
    let mut event = json!({
        "index": index, "content": "", "tokens": [], "stop": false, "id_slot": job.slot(), "tokens_predicted": 0,
        "tokens_evaluated": progress["processed"], "prompt_progress": progress,
    });
    if text.form.times_tokens {
        event["timings"] = job.timings_so_far(cached, read);
    }
    event
}

/// The value of `a/b` in an object.
fn at_path<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('/').try_fold(value, |value, name| value.get(name))
}
