//! From prompts to an answer, whole or as a stream, whatever route asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use engine::{Failure, Output, TokenLogprobs, Usage};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout};

use crate::app::{App, Serving};
use crate::blocking::blocking;
use crate::body::read_json;
use crate::choice::{Choice, Delta, Finish};
use crate::context_shift::ContextShift;
use crate::dialect::Part;
use crate::engine_thread::{EngineFailure, Running, SubmitError};
use crate::error::{ApiError, json_response};
use crate::fields::{self, Notes};
use crate::listen::turns_true;
use crate::memory::Permit;
use crate::sampling::{Settings, describe, described};
use crate::slot_texts::SlotText;
use crate::sse::{self, EventSender, KEEP_ALIVE, ReaderGone};

/// How a route writes its answers.
pub(crate) trait Format: Send + 'static {
    /// The object around `choices`.
    fn envelope(&self, choices: Vec<Value>, is_chunk: bool) -> Value;

    /// What stands in `choices` before a stream's first text.
    fn opening(&mut self) -> Vec<Value> {
        Vec::new()
    }

    /// Takes log-probabilities of the tokens of prompt `place`; they come before any text of its completions.
    fn scored(&mut self, _place: usize, _logprobs: Vec<TokenLogprobs>) {}

    /// An entry of `choices` in a chunk; nothing if there is nothing to say.
    fn chunk(&mut self, index: usize, delta: Delta) -> Option<Value>;

    /// An entry of `choices` in a whole answer.
    fn whole(&mut self, index: usize, text: Delta) -> Value;
}

/// What a request is made of, besides its prompts.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) max_tokens: Option<usize>,
    /// How many alternatives to each token of the prompt are wanted, if they are.
    pub(crate) prompt_logprobs: Option<usize>,
    /// What the route calls the prompt, and the count of tokens to generate.
    pub(crate) prompt_field: &'static str,
    pub(crate) max_tokens_field: &'static str,
    /// The memory of the request until the engine has it.
    pub(crate) memory: Option<Permit>,
}

/// A request under way.
pub(crate) struct Job {
    serving: Arc<Serving>,
    settings: Settings,
    /// What `__verbose` says of the first text before there is any of it, if the answer has it.
    details: Option<Value>,
    /// What the slot of the first text remembers of it, if slots can be saved.
    slot_text: Option<SlotText>,
    watched: Watched,
    /// `num_completions` of each prompt, in the order of the prompts.
    choices: Vec<Choice>,
    prompt_tokens: usize,
    /// Tokens of each prompt that are read so far, where its answer shows that.
    pub(crate) read: Vec<usize>,
    begun: Instant,
    first_token: Option<Instant>,
    last_token: Instant,
    is_counted: bool,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Its client has gone, or was told that it ends.
        if !self.is_counted {
            self.serving.metrics.finished(
                self.choices.iter().map(|_| "abort"),
                self.generated_tokens(),
                self.begun.elapsed(),
            );
        }
    }
}

/// How far an answer is.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    pub(crate) generated_tokens: usize,
    pub(crate) reasoning_tokens: usize,
    /// Since the request was begun.
    pub(crate) total_time: Duration,
    /// The times of its prompt and of its tokens, as [`Job::phases`] has them.
    pub(crate) prompt_time: Duration,
    pub(crate) decode_time: Duration,
    /// `x_hotmetal`.
    pub(crate) facts: Value,
}

/// Something that happened to a request.
pub(crate) enum Event {
    Scored(usize, Vec<TokenLogprobs>),
    /// More of a prompt is read, but not all; [`Job::read`] says how much of which.
    Read(usize),
    Text(usize, Delta),
}

/// Reads the body of a request of the key with number `key`, and makes of it what its route needs. The permit is for the
/// memory that this takes until the engine has it.
pub(crate) async fn prepared<T: Send + 'static>(
    app: &App,
    key: u64,
    request: Request<Body>,
    prepare: fn(Value, &Arc<Serving>, u64) -> Result<T, ApiError>,
) -> Result<(Arc<Serving>, T, Notes, Permit), ApiError> {
    // Before a body is read for nothing.
    app.serving_any()?;
    let (body, permit) = app.unless_stopped(read_json(request, app, key)).await?;
    let serving = app.serving_for(&body).await?;
    let served = Arc::clone(&serving);
    // The thread holds the permit while it works, whether its client waits or not.
    let read = move || {
        let permit = permit;
        Ok((prepare(body, &served, key)?, permit))
    };
    let ((made, permit), notes) = noted(app, read).await?;
    Ok((serving, made, notes, permit))
}

/// Reads a request where that holds up nobody; returns with what is made of it what its client is told of its fields.
pub(crate) async fn noted<T: Send + 'static>(
    app: &App,
    read: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Notes), ApiError> {
    let policy = app.inner.field_policy;
    let (made, notes) = app.unless_stopped(blocking(move || Ok(fields::reading(policy, read)))).await?;
    let made = made?;
    app.note_ignored(&notes.ignored);
    Ok((made, notes))
}

/// Requests under way, for as long as a request may take and the server runs.
pub(crate) struct Watched {
    pub(crate) running: Running,
    /// What goes on where the context is full, and when it was submitted and started at first.
    shift: Option<ContextShift>,
    first_queued: Option<(Instant, Option<Instant>)>,
    begun: Instant,
    time_max: Duration,
    stop: watch::Receiver<bool>,
}

impl Watched {
    pub(crate) fn new(app: &App, running: Running, begun: Instant) -> Self {
        let (time_max, stop) = (app.inner.options.request_time_max, app.inner.stop.subscribe());
        Self { running, shift: None, first_queued: None, begun, time_max, stop }
    }

    /// The same, with a text that goes on where its context is full.
    fn shifting(self, shift: Option<ContextShift>) -> Self {
        Self { shift, ..self }
    }

    /// How often the context was shifted.
    fn shifts(&self) -> usize {
        self.shift.as_ref().map_or(0, ContextShift::shifts)
    }

    /// When they were submitted, and when the first of them left the queue, if one has.
    fn queued(&self) -> (Instant, Option<Instant>) {
        self.first_queued.unwrap_or_else(|| self.running.queued())
    }

    /// The next output, with the place of its request; nothing once all have ended. Safe to drop while it waits.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Output)>, ApiError> {
        let output = tokio::select! {
            output = next_output(&mut self.running, &mut self.shift, &mut self.first_queued) => output,
            () = past(self.begun, self.time_max) => {
                let seconds = self.time_max.as_secs();
                return Err(ApiError::timed_out(format!(
                    "the answer took longer than {seconds} s; ask for fewer tokens, or serve with a larger --request-timeout"
                )));
            }
            () = turns_true(&mut self.stop) => {
                return Err(ApiError::unavailable("draining", "the server was shut down before the answer was whole"));
            }
        };
        match output {
            None if self.running.is_live() => Err(engine_gone(self.running.failure())),
            output => Ok(output),
        }
    }
}

/// The next output, of whichever request the text goes on in.
async fn next_output(
    running: &mut Running,
    shift: &mut Option<ContextShift>,
    first_queued: &mut Option<(Instant, Option<Instant>)>,
) -> Option<(usize, Output)> {
    let Some(shift) = shift else { return running.next().await };
    // The first request has left the queue by the time that it ends.
    let (queued, shifts) = (running.queued(), shift.shifts());
    let output = shift.next(running).await;
    if shift.shifts() > shifts {
        first_queued.get_or_insert(queued);
    }
    output
}

/// What lets the text of `request` go on where its context is full, if the server does that. Without a limit, it has as many
/// tokens as the context at most, because a model may never end it.
fn shift_of(
    serving: &Serving,
    settings: &Settings,
    request: &engine::Request,
    wanted: Option<usize>,
) -> Option<ContextShift> {
    let keep = settings.keep.or(serving.context_shift).filter(|_| serving.context_shift.is_some())?;
    let context_len = serving.engine.config().context_len;
    let most = serving.most_tokens(wanted).unwrap_or(context_len);
    let left = most.saturating_sub(context_len.saturating_sub(request.prompt.len()));
    let keep = keep.tokens_of(&request.prompt, serving.tokenizer.bos_id());
    ContextShift::of(&serving.engine, request, keep, left)
}

/// Returns once it is so long after `begun`; never, if no clock goes so far.
async fn past(begun: Instant, time: Duration) {
    match begun.checked_add(time) {
        Some(end) => sleep_until(end.into()).await,
        None => std::future::pending().await,
    }
}

/// Submits the prompts and answers as the request wants it.
pub(crate) async fn respond(
    app: &App,
    serving: Arc<Serving>,
    prompts: Vec<Vec<u32>>,
    plan: Plan,
    mut format: impl Format,
) -> Result<Response, ApiError> {
    let job = Job::start(app, serving, prompts, plan).await?;
    if !job.settings.stream {
        let answer = job.whole(&mut format).await?;
        return Ok(json_response(StatusCode::OK, &answer));
    }
    let (sender, response) = sse::channel(app.inner.options.stall_time_max);
    tokio::spawn(async move {
        if job.stream(format, &sender).await == Err(ReaderGone) {
            tracing::info!("the reader of a stream has gone");
        }
    });
    Ok(response)
}

impl Job {
    pub(crate) async fn start(
        app: &App,
        serving: Arc<Serving>,
        prompts: Vec<Vec<u32>>,
        plan: Plan,
    ) -> Result<Self, ApiError> {
        if !serving.has_head {
            let message = "this model was saved without its head, so it generates no text: it is for /v1/embeddings";
            return Err(ApiError::unsupported("model", message));
        }
        let Plan { mut settings, max_tokens, prompt_logprobs, prompt_field, max_tokens_field, memory } = plan;
        let begun = Instant::now();
        let prompt_tokens = prompts.iter().map(Vec::len).sum();
        let context_len = serving.engine.config().context_len;
        let read = vec![0; prompts.len()];
        let prompt_too_long = prompts.iter().any(|prompt| prompt.len() >= context_len);
        // More than the context holds is as good as no limit: the text ends there with `length`.
        let room = |prompt: &[u32]| context_len.saturating_sub(prompt.len());
        let least_room = prompts.iter().map(|prompt| room(prompt)).min().filter(|&room| room > 0);
        let wanted = max_tokens;
        let max_tokens = serving.most_tokens(wanted).map(|most| least_room.map_or(most, |room| room.min(most)));
        if let (Some(used), Some(wanted)) = (max_tokens, wanted)
            && used < wanted
        {
            settings.labels.insert("max_tokens_used".to_owned(), used.into());
        }
        // Told of the first text alone, as nobody looks into several.
        let details = settings.is_verbose.then(|| {
            json!({
                "index": 0, "id_slot": settings.slot, "model": serving.name,
                "prompt": serving.tokenizer.decode(prompts.first().map_or(&[][..], Vec::as_slice), false),
                "tokens_evaluated": prompts.first().map(Vec::len),
                "generation_settings": described(&settings, serving.most_tokens(wanted)),
            })
        });
        let is_saved = app.inner.options.slot_save_path.is_some();
        let slot_text = prompts.first().filter(|_| is_saved).and_then(|prompt| settings.slot_text(prompt));
        let text = Arc::new(settings.text.clone());
        let choices = (0..prompts.len() * settings.num_completions)
            .map(|_| Choice::new(Arc::clone(&serving.tokenizer), Arc::clone(&text)))
            .collect::<Result<_, _>>()?;
        let request = |prompt| settings.request(prompt, max_tokens, prompt_logprobs);
        let requests: Vec<_> = prompts.into_iter().map(request).collect();
        let shift = match &*requests {
            [request] => shift_of(&serving, &settings, request, wanted),
            _ => None,
        };
        if shift.is_some() {
            settings.labels.shift_remove("max_tokens_used");
        }
        let submitted = serving.engine.submit(requests).await;
        let running = submitted.map_err(|error| {
            error.into_api(prompt_field, if prompt_too_long { prompt_field } else { max_tokens_field })
        });
        let running = running.inspect_err(|_| serving.metrics.refused())?;
        // From here on the engine's queue bounds what there is.
        drop(memory);
        serving.metrics.started(prompt_tokens);
        let watched = Watched::new(app, running, begun).shifting(shift);
        let (first_token, last_token, is_counted) = (None, begun, false);
        Ok(Self {
            serving,
            settings,
            details,
            slot_text,
            watched,
            choices,
            prompt_tokens,
            read,
            begun,
            first_token,
            last_token,
            is_counted,
        })
    }

    /// Whether a text with such a prompt has filled its context, or lost its older tokens there.
    pub(crate) fn is_cut(&self, prompt_tokens: usize, usage: Usage) -> bool {
        let is_full = prompt_tokens + usage.generated_tokens >= self.serving.engine.config().context_len;
        is_full || self.watched.shifts() > 0
    }

    /// The slot that its first text is the last one of.
    pub(crate) fn slot(&self) -> usize {
        self.settings.slot
    }

    /// Waits for the next event; nothing once all completions have ended. Safe to drop while it waits.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, ApiError> {
        let Some((place, mut output)) = self.watched.next().await? else { return Ok(None) };
        if !output.prompt_logprobs.is_empty() {
            let scored = std::mem::take(&mut output.prompt_logprobs);
            if output.token.is_some() || output.finish.is_some() {
                // The rest of it comes next.
                self.watched.running.put_back(place, output);
            }
            return Ok(Some(Event::Scored(place, scored)));
        }
        if let Some(tokens) = output.prompt_read {
            self.read[place] = tokens;
            self.choices[place * self.settings.num_completions].usage = output.usage;
            return Ok(Some(Event::Read(place)));
        }
        if output.token.is_some() {
            self.count_token();
        }
        let completion = output.completion;
        let ended_by_engine = output.finish.is_some();
        let index = place * self.settings.num_completions + completion;
        let choice = &mut self.choices[index];
        if let Some(text) = self.slot_text.as_mut().filter(|_| index == 0) {
            text.tokens.extend(output.token.as_ref().map(|token| token.id));
        }
        let delta = choice.push(output);
        if let Some(Finish { failure: Some(failure), .. }) = &delta.finish {
            return Err(failed(failure));
        }
        if choice.finished && !ended_by_engine {
            self.watched.running.end_completion(place, completion);
        }
        if index == 0
            && self.choices[0].finished
            && let Some(text) = self.slot_text.take()
        {
            self.serving.slots.note(text);
        }
        Ok(Some(Event::Text(index, delta)))
    }

    fn count_token(&mut self) {
        let (now, metrics) = (Instant::now(), &self.serving.metrics);
        match self.first_token {
            None => {
                self.first_token = Some(now);
                metrics.first_token(now - self.begun);
            }
            Some(_) => metrics.next_token(now - self.last_token),
        }
        self.last_token = now;
    }

    async fn whole(mut self, format: &mut impl Format) -> Result<Value, ApiError> {
        let mut texts: Vec<Delta> = vec![Delta::default(); self.choices.len()];
        while let Some(event) = self.next().await? {
            match event {
                Event::Scored(place, logprobs) => format.scored(place, logprobs),
                Event::Read(_) => {}
                Event::Text(index, delta) => texts[index].append(delta),
            }
        }
        self.finished(texts.iter().filter_map(|text| text.finish.as_ref()));
        let details = texts.first().and_then(|text| self.details(&text.token_ids, text.finish.as_ref()));
        let choices = texts.into_iter().enumerate().map(|(index, text)| format.whole(index, text)).collect();
        let mut answer = format.envelope(choices, false);
        answer["usage"] = self.usage();
        if self.settings.times_tokens {
            answer["timings"] = self.timings_of_all();
        }
        if let Some(details) = details {
            answer["__verbose"] = details;
        }
        answer["x_hotmetal"] = self.facts();
        Ok(answer)
    }

    async fn stream(mut self, mut format: impl Format, sender: &EventSender) -> Result<(), ReaderGone> {
        for choice in format.opening() {
            let chunk = self.chunk(&format, vec![choice]);
            sender.send(&chunk).await?;
        }
        let mut shows_progress = self.settings.shows_progress;
        if shows_progress {
            sender.send(&self.progress_chunk(&format, 0, 0)).await?;
        }
        let mut finishes: Vec<Finish> = Vec::new();
        loop {
            let next = tokio::select! {
                next = timeout(KEEP_ALIVE, self.next()) => next,
                () = sender.gone() => return Err(ReaderGone),
            };
            match next {
                Err(_) => sender.keep_alive().await?,
                Ok(Ok(Some(Event::Scored(place, logprobs)))) => format.scored(place, logprobs),
                Ok(Ok(Some(Event::Read(_)))) => {
                    let (cached, read) = (self.cached_tokens(), self.read.iter().sum());
                    sender.send(&self.progress_chunk(&format, cached, read)).await?;
                }
                Ok(Ok(Some(Event::Text(index, delta)))) => {
                    if std::mem::take(&mut shows_progress) {
                        let (total, cached) = (self.prompt_tokens, self.cached_tokens());
                        sender.send(&self.progress_chunk(&format, cached, total)).await?;
                    }
                    finishes.extend(delta.finish.clone());
                    let Some(choice) = format.chunk(index, delta) else { continue };
                    let mut chunk = self.chunk(&format, vec![choice]);
                    if !self.watched.running.is_live() {
                        // The text was sent before.
                        if let Some(details) = self.details(&[], finishes.first()) {
                            chunk["__verbose"] = details;
                        }
                        chunk["x_hotmetal"] = self.facts();
                    }
                    sender.send(&chunk).await?;
                }
                Ok(Ok(None)) => break,
                Ok(Err(error)) => {
                    sender.send(&error.to_json()).await?;
                    return sender.done().await;
                }
            }
        }
        self.finished(finishes.iter());
        if self.settings.include_usage {
            let mut chunk = format.envelope(Vec::new(), true);
            chunk["usage"] = self.usage();
            sender.send(&chunk).await?;
        }
        sender.done().await
    }

    /// What llama.cpp's own route says of a text of these tokens, where the request asks for it.
    fn details(&self, tokens: &[u32], finish: Option<&Finish>) -> Option<Value> {
        let mut details = self.details.clone()?;
        let (stop_type, stopping_word) = finish.map_or(("limit", ""), Finish::native);
        let (usage, prompt_tokens) = (self.usage_of(0), details["tokens_evaluated"].as_u64().unwrap_or_default());
        let of_text = json!({
            "content": self.serving.tokenizer.decode(tokens, self.settings.text.skip_special), "tokens": tokens,
            "stop": true, "stop_type": stop_type, "stopping_word": stopping_word,
            "truncated": self.is_cut(prompt_tokens as usize, usage),
            "tokens_predicted": usage.generated_tokens, "tokens_cached": usage.cached_tokens,
            "timings": self.timings(prompt_tokens as usize, usage),
        });
        let of_text = of_text.as_object().into_iter().flatten();
        of_text.for_each(|(name, value)| details[name.as_str()] = value.clone());
        Some(details)
    }

    /// A chunk that says how far the prompts are.
    fn progress_chunk(&self, format: &impl Format, cached: usize, read: usize) -> Value {
        let mut chunk = format.envelope(Vec::new(), true);
        chunk["prompt_progress"] = self.prompt_progress(self.prompt_tokens, cached, read);
        if self.settings.times_tokens {
            chunk["timings"] = self.timings_so_far(cached, read);
        }
        chunk
    }

    fn chunk(&self, format: &impl Format, choices: Vec<Value>) -> Value {
        let mut chunk = format.envelope(choices, true);
        if self.settings.include_usage {
            chunk["usage"] = if self.settings.continuous_usage { self.usage() } else { Value::Null };
        }
        if self.settings.times_tokens {
            chunk["timings"] = self.timings_of_all();
        }
        chunk
    }

    pub(crate) fn finished<'a>(&mut self, finishes: impl Iterator<Item = &'a Finish>) {
        self.is_counted = true;
        self.serving.metrics.finished(
            finishes.map(|finish| finish.reason),
            self.generated_tokens(),
            self.begun.elapsed(),
        );
        let (submitted, started) = self.watched.queued();
        if let (Some(started), Some(first)) = (started, self.first_token) {
            let (queue, prefill) = (started - submitted, first.saturating_duration_since(started));
            self.serving.metrics.phases(queue, prefill, self.last_token - first);
        }
    }

    fn generated_tokens(&self) -> usize {
        self.choices.iter().map(|choice| choice.usage.generated_tokens).sum()
    }

    /// Of each prompt once, however many completions it has.
    fn cached_tokens(&self) -> usize {
        self.choices.iter().step_by(self.settings.num_completions).map(|choice| choice.usage.cached_tokens).sum()
    }

    /// Ends a completion, unless it has ended. Nothing more comes of it.
    pub(crate) fn end(&mut self, index: usize) {
        let Some(choice) = self.choices.get_mut(index).filter(|choice| !choice.finished) else { return };
        choice.finished = true;
        let each = self.settings.num_completions;
        self.watched.running.end_completion(index / each, index % each);
    }

    /// What a completion has taken so far.
    pub(crate) fn usage_of(&self, index: usize) -> Usage {
        self.choices.get(index).map_or_else(Usage::default, |choice| choice.usage)
    }

    /// The times of a completion as llama.cpp names them, with these counts of tokens.
    pub(crate) fn timings(&self, prompt_tokens: usize, usage: Usage) -> Value {
        let (prompt_time, decode_time) = self.phases();
        timings((prompt_tokens, prompt_time), (usage, decode_time), 1)
    }

    /// [`Self::timings`] of all completions together.
    fn timings_of_all(&self) -> Value {
        let (generated_tokens, cached_tokens) = (self.generated_tokens(), self.cached_tokens());
        let usage = Usage { generated_tokens, cached_tokens, ..Usage::default() };
        let (prompt_time, decode_time) = self.phases();
        timings((self.prompt_tokens, prompt_time), (usage, decode_time), self.choices.len())
    }

    /// [`Self::timings`] while the prompt is being read. `processed` tokens of it are read, cached ones included.
    pub(crate) fn timings_so_far(&self, cached_tokens: usize, processed: usize) -> Value {
        let time = if processed == 0 { Duration::ZERO } else { self.prompt_time() };
        timings((processed, time), (Usage { cached_tokens, ..Usage::default() }, Duration::ZERO), 1)
    }

    /// How far a prompt of `total` tokens is, as llama.cpp says it: `processed` of them are read, of which the cache had
    /// `cached`. The time is that since it left the queue.
    pub(crate) fn prompt_progress(&self, total: usize, cached: usize, processed: usize) -> Value {
        let time = self.prompt_time();
        json!({"total": total, "cache": cached, "processed": processed, "time_ms": time.as_millis() as u64})
    }

    /// How long the prompt has been read so far.
    fn prompt_time(&self) -> Duration {
        match (self.first_token, self.watched.queued()) {
            (Some(_), _) => self.phases().0,
            (None, (_, Some(started))) => started.elapsed(),
            (None, (_, None)) => Duration::ZERO,
        }
    }

    /// How long the prompt took, from the queue to its first token, and all tokens after that.
    pub(crate) fn phases(&self) -> (Duration, Duration) {
        let (submitted, started) = self.watched.queued();
        let first_token = self.first_token.unwrap_or(self.last_token);
        let prompt = first_token.saturating_duration_since(started.unwrap_or(submitted));
        (prompt, self.last_token.saturating_duration_since(first_token))
    }

    /// The parts of new text; all of it is content where the request has nothing taken apart.
    pub(crate) fn parts(&self, delta: &mut Delta) -> Vec<Part> {
        if self.settings.text.reply.is_some() {
            return std::mem::take(&mut delta.parts);
        }
        let text = std::mem::take(&mut delta.text);
        if text.is_empty() { Vec::new() } else { vec![Part::Content(text)] }
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.settings.stream
    }

    /// How far the only completion of the only prompt is.
    pub(crate) fn progress(&self) -> Progress {
        let (prompt_time, decode_time) = self.phases();
        Progress {
            total_time: self.begun.elapsed(),
            prompt_time,
            decode_time,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens(),
            generated_tokens: self.generated_tokens(),
            reasoning_tokens: self.choices.iter().map(|choice| choice.reasoning_tokens).sum(),
            facts: self.facts(),
        }
    }

    fn usage(&self) -> Value {
        let (prompt, generated) = (self.prompt_tokens, self.generated_tokens());
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens()},
        })
    }

    /// What was really used.
    fn facts(&self) -> Value {
        let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
        let first_token = self.first_token.unwrap_or(self.last_token);
        let decode = self.last_token - first_token;
        // The first token comes out of the prompt's last step.
        let decoded = self.generated_tokens().saturating_sub(self.choices.len());
        let rate =
            (decoded > 0 && !decode.is_zero()).then(|| (decoded as f64 / decode.as_secs_f64() * 100.0).round() / 100.0);
        let mut facts = json!({
            "device": self.serving.device,
            "context_len": self.serving.engine.config().context_len,
            "seed": self.settings.sampling.seed,
            "sampling": describe(&self.settings.sampling),
            "cached_tokens": self.cached_tokens(),
            "timings": {"ttft_ms": ms(first_token - self.begun), "decode_ms": ms(decode), "decode_tokens_per_s": rate},
        });
        for (name, value) in &self.settings.labels {
            facts[name] = value.clone();
        }
        if self.watched.shifts() > 0 {
            facts["context_shifts"] = json!(self.watched.shifts());
        }
        let warnings: Vec<&String> = self.choices.iter().flat_map(Choice::warnings).collect();
        if !warnings.is_empty() {
            facts["warnings"] = json!(warnings);
        }
        let faults = |(index, choice): (usize, &Choice)| {
            let place = if self.choices.len() > 1 { format!("choices[{index}]") } else { String::new() };
            choice.faults().iter().map(|fault| format!("{place}{fault}")).collect::<Vec<_>>()
        };
        let faults: Vec<String> = self.choices.iter().enumerate().flat_map(faults).collect();
        if !faults.is_empty() {
            facts["schema_failed"] = json!(faults);
        }
        facts
    }
}

/// Times as llama.cpp names them: of a prompt of so many tokens, and of these completions of it. The first token of a
/// completion comes out of the prompt's last step, so the time between tokens is that of one step less.
fn timings(
    (prompt_tokens, prompt_time): (usize, Duration),
    (usage, time): (Usage, Duration),
    completions: usize,
) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    // Where nothing was computed there is no time either; clients do arithmetic with it.
    let each = |time: Duration, count: usize| if count > 0 { ms(time) / count as f64 } else { 0.0 };
    let rate = |time: Duration, count: usize| if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() };
    let Usage { cached_tokens: cached, generated_tokens: generated, .. } = usage;
    let (computed, steps) = (prompt_tokens.saturating_sub(cached), generated.saturating_sub(completions));
    json!({
        "cache_n": cached,
        "prompt_n": computed, "prompt_ms": ms(prompt_time),
        "prompt_per_token_ms": each(prompt_time, computed), "prompt_per_second": rate(prompt_time, computed),
        "predicted_n": generated, "predicted_ms": ms(time),
        "predicted_per_token_ms": each(time, steps), "predicted_per_second": rate(time, steps),
    })
}

impl SubmitError {
    /// What a client is told, who calls the prompt `prompt_field`, and what is too long `length_field`.
    pub(crate) fn into_api(self, prompt_field: &str, length_field: &str) -> ApiError {
        match self {
            Self::Gone(failure) => engine_gone(failure),
            Self::Refused(error) => {
                ApiError::from(error).with_param("max_tokens", length_field).with_param("prompt", prompt_field)
            }
        }
    }
}

pub(crate) fn engine_gone(failure: EngineFailure) -> ApiError {
    let code = match failure {
        EngineFailure::Bug => "engine_failed",
        EngineFailure::Lost(_) => "device_lost",
        EngineFailure::Stuck(_) => "step_stuck",
        EngineFailure::WeightsChanged(_) => "weights_changed",
    };
    ApiError::internal(code, failure.to_string())
}

/// A failure of one completion. Its words may name token ids, never text.
pub(crate) fn failed(failure: &Failure) -> ApiError {
    let code = match failure {
        Failure::Numeric { .. } | Failure::NumericState { .. } => "numeric_fault",
        Failure::NoTokenLeft => "no_token_left",
        Failure::Grammar(_) => "grammar_failed",
        Failure::Backend(_) => "step_failed",
    };
    if code == "numeric_fault" {
        let message = format!("{failure}; the server's --check-tensors looks for a weight that is the cause");
        return ApiError::internal(code, message);
    }
    if matches!(failure, Failure::Grammar(_) | Failure::NoTokenLeft) {
        // They are the client's.
        return ApiError::refused(StatusCode::BAD_REQUEST, code, failure.to_string());
    }
    ApiError::internal(code, failure.to_string())
}
