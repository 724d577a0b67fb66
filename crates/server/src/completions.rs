//! `/v1/completions`: text, or token ids, to be continued, echoed or scored.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use engine::TokenLogprobs;
use serde_json::{Value, json};
use tokenizer::{Around, StreamDecoder};

use crate::app::{App, Serving};
use crate::choice::Delta;
use crate::clock::unix_time;
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied};
use crate::generation::{self, Format, Plan, prepared};
use crate::ids::random_id;
use crate::llama_cpp::build_info;
use crate::logprobs::{self, Scored, TextLogprobs};
use crate::prompts::{self, Form, Gap, Prompt};
use crate::sampling::{self, PROMPTS_MAX, Settings};
use crate::security::KeyNumber;
use crate::{grammar, token_rules};

/// What OpenAI's interface generates where nothing is said.
const MAX_TOKENS: usize = 16;

/// Fields of this route alone.
pub(crate) const FIELDS: &[Field] = &[
    applied("prompt"),
    applied("suffix"),
    applied("max_tokens"),
    applied("n_predict"),
    applied("echo"),
    applied("logprobs"),
    applied("add_special_tokens"),
    applied("parse_special"),
    applied("prompt_logprobs"),
];

const KNOWN: &[&[Field]] = &[sampling::COMMON, sampling::FIELDS, grammar::FIELDS, token_rules::FIELDS, FIELDS];

/// Continues prompts.
pub(crate) async fn completions(
    State(app): State<App>,
    Extension(KeyNumber(key)): Extension<KeyNumber>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let (serving, (mut plan, prompts, format), notes, memory) = prepared(&app, key, request, prepare).await?;
    plan.memory = Some(memory);
    notes.report(&mut plan.settings.labels);
    let prompts = prompts.into_iter().map(|prompt| prompt.ids).collect();
    generation::respond(&app, serving, prompts, plan, format).await
}

/// The plan and the only prompt of a request that another interface's became.
pub(crate) fn prepare_one(body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Plan, Vec<u32>), ApiError> {
    let (plan, mut prompts, _) = prepare(body, serving, key)?;
    let prompt = prompts.pop().ok_or_else(|| ApiError::invalid("prompt", "`prompt` is missing"))?;
    Ok((plan, prompt.ids))
}

fn prepare(body: Value, serving: &Arc<Serving>, key: u64) -> Result<(Plan, Vec<Prompt>, TextFormat), ApiError> {
    let mut fields = Fields::new(body, KNOWN)?;
    let mut settings = Settings::take(&mut fields, serving, key)?;
    settings.take_times(&mut fields)?;
    // An empty one asks for what a missing one asks for.
    let suffix = fields.string("suffix")?.filter(|suffix| !suffix.is_empty());
    let gap = match (&suffix, &serving.fim) {
        (None, _) => None,
        (Some(suffix), Some(markers)) => {
            settings.end_at(markers);
            Some(Gap { markers, suffix })
        }
        (Some(_), None) => {
            let message =
                "`suffix` asks for the text of a gap, and this model's vocabulary has no tokens that mark one";
            return Err(ApiError::unsupported("suffix", message));
        }
    };
    let prompts = {
        let form = Form { around: Around::Prefix, gap, too_long: sampling::too_long(&mut fields, serving)? };
        prompts::take(&mut fields, "prompt", PROMPTS_MAX, form, serving)?
    };
    settings.compile(serving)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    if echo && suffix.is_some() {
        let message =
            "`echo` gives the prompt back in front of its completion, and with `suffix` the prompt is two texts";
        return Err(ApiError::invalid("echo", message));
    }
    let logprobs = fields.count("logprobs")?;
    let max_tokens_field =
        if fields.has("n_predict") && !fields.has("max_tokens") { "n_predict" } else { "max_tokens" };
    let is_said = fields.has(max_tokens_field);
    let (wanted, native) = (fields.token_limit("max_tokens", 0)?, fields.token_limit("n_predict", 0)?);
    if let (Some(wanted), Some(native)) = (wanted, native)
        && wanted != native
    {
        return Err(ApiError::invalid(
            "n_predict",
            "`n_predict` is llama.cpp's name of `max_tokens`, and contradicts it",
        ));
    }
    // Where nothing is said, as OpenAI's interface; -1 is no limit.
    let max_tokens = wanted.or(native).or((!is_said).then_some(MAX_TOKENS));
    let asked_logprobs = logprobs::asked_of_prompt(&mut fields, settings.stream)?;
    if asked_logprobs.is_some() && echo && logprobs.is_some() {
        let message = "`echo` with `logprobs` gives the log-probabilities of the prompt";
        return Err(ApiError::invalid("prompt_logprobs", message));
    }
    fields.finish(KNOWN)?;
    settings.check_length(max_tokens)?;
    if prompts.iter().any(|prompt| prompt.is_cut) {
        settings.labels.insert("prompt_truncated".to_owned(), true.into());
    }
    let scores = max_tokens == Some(0);
    if scores && !echo {
        return Err(ApiError::invalid(
            "max_tokens",
            "`max_tokens`: 0 goes with `echo`: true, which then is all there is",
        ));
    }
    settings.sampling.logprobs = logprobs;
    // Who scores a prompt generates one token besides and takes the last entry off, whatever that token is.
    settings.text.list_end = logprobs.is_some();
    let vocab_size = serving.engine.config().vocab_size;
    settings
        .sampling
        .check(vocab_size)
        .map_err(|error| ApiError::from(error).with_param("top_logprobs", "logprobs"))?;
    // Without tokens to generate, the engine is asked about the prompt alone.
    let prompt_logprobs = match asked_logprobs {
        Some(count) => Some(count),
        None if scores => Some(logprobs.unwrap_or(0)),
        None => logprobs.filter(|_| echo),
    };
    let format = TextFormat {
        id: random_id("cmpl"),
        created: unix_time(),
        logprobs: logprobs.is_some(),
        return_token_ids: settings.return_token_ids,
        num_completions: settings.num_completions,
        echo: echo.then(|| prompts.iter().map(|prompt| Echo::new(prompt, serving, &settings)).collect()),
        scored: asked_logprobs.map(|_| prompts.iter().map(|prompt| Scored::new(&prompt.ids)).collect()),
        // In a stream, how many characters of each choice have been sent; at the start, nothing at all.
        sent: vec![None; prompts.len() * settings.num_completions],
        serving: Arc::clone(serving),
    };
    let plan = Plan { settings, max_tokens, prompt_logprobs, prompt_field: "prompt", max_tokens_field, memory: None };
    Ok((plan, prompts, format))
}

/// A prompt that is part of the answer.
struct Echo {
    ids: Vec<u32>,
    text: String,
    /// Of its tokens from the second, if they were asked for.
    logprobs: Vec<TokenLogprobs>,
}

impl Echo {
    fn new(prompt: &Prompt, serving: &Serving, settings: &Settings) -> Self {
        let decode = || serving.tokenizer.decode(&prompt.ids, settings.text.skip_special);
        let text = prompt.text.clone().unwrap_or_else(decode);
        Self { ids: prompt.ids.clone(), text, logprobs: Vec::new() }
    }

    /// Adds the prompt's tokens.
    fn push_logprobs(&self, serving: &Serving, into: &mut TextLogprobs) {
        let (mut decoder, mut characters) = (StreamDecoder::new(&*serving.tokenizer, false), 0);
        for (index, &id) in self.ids.iter().enumerate() {
            let logprobs = index.checked_sub(1).and_then(|before| self.logprobs.get(before));
            into.push(&serving.tokenizer, id, logprobs, characters);
            characters += decoder.push(id).chars().count();
        }
    }
}

struct TextFormat {
    id: String,
    created: u64,
    logprobs: bool,
    return_token_ids: bool,
    num_completions: usize,
    /// One a prompt, if prompts are echoed.
    echo: Option<Vec<Echo>>,
    /// One a prompt, if the log-probabilities of prompts are asked for.
    scored: Option<Vec<Scored>>,
    sent: Vec<Option<Sent>>,
    serving: Arc<Serving>,
}

/// How much of a completion has been sent, without the prompt.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    bytes: usize,
    characters: usize,
}

impl TextFormat {
    fn entry(&mut self, index: usize, delta: &Delta) -> Value {
        let place = index / self.num_completions;
        let echo = self.echo.as_ref().map(|echo| &echo[place]);
        let sent = self.sent[index];
        let is_first = sent.is_none();
        let mut sent = sent.unwrap_or_default();
        let mut logprobs = self.logprobs.then(TextLogprobs::default);
        if let (Some(logprobs), Some(echo), true) = (&mut logprobs, echo, is_first) {
            echo.push_logprobs(&self.serving, logprobs);
        }
        if let Some(logprobs) = &mut logprobs {
            let before = echo.map_or(0, |echo| echo.text.chars().count());
            for placed in &delta.tokens {
                // A token may begin in text that was sent already, where characters are spread over tokens.
                let inside = placed.start.saturating_sub(sent.bytes).min(delta.text.len());
                let inside = delta.text.get(..inside).map_or(0, |text| text.chars().count());
                let offset = before + sent.characters + inside;
                logprobs.push(&self.serving.tokenizer, placed.token.id, placed.token.logprobs.as_ref(), offset);
            }
        }
        sent.bytes += delta.text.len();
        sent.characters += delta.text.chars().count();
        self.sent[index] = Some(sent);
        let text = match echo {
            Some(echo) if is_first => format!("{}{}", echo.text, delta.text),
            _ => delta.text.clone(),
        };
        let logprobs = logprobs.map(TextLogprobs::into_json);
        delta.entry(index, ("text", text.into()), logprobs, self.return_token_ids)
    }
}

impl Format for TextFormat {
    fn envelope(&self, choices: Vec<Value>, _: bool) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created, "model": self.serving.name,
            "system_fingerprint": build_info(self.serving.version), "choices": choices,
        })
    }

    fn scored(&mut self, place: usize, logprobs: Vec<TokenLogprobs>) {
        if let Some(scored) = &mut self.scored {
            scored[place].push(logprobs);
        } else if let Some(echo) = &mut self.echo {
            echo[place].logprobs.extend(logprobs);
        }
    }

    fn chunk(&mut self, index: usize, delta: Delta) -> Option<Value> {
        let says_nothing = delta.text.is_empty() && delta.finish.is_none() && delta.tokens.is_empty();
        let hides_ids = !self.return_token_ids || delta.token_ids.is_empty();
        let is_first = self.echo.is_some() && self.sent[index].is_none();
        if says_nothing && hides_ids && !is_first {
            return None;
        }
        Some(self.entry(index, &delta))
    }

    fn whole(&mut self, index: usize, text: Delta) -> Value {
        let mut entry = self.entry(index, &text);
        if let Some(scored) = &self.scored {
            entry["prompt_logprobs"] = scored[index / self.num_completions].to_json(&self.serving.tokenizer);
        }
        entry
    }
}
