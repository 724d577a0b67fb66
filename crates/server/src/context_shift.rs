//! Texts that go on where their context is full, if the server is told so: half of the older tokens make room for new ones,
//! and what is left is a new prompt, whose beginning the prefix cache may have. llama.cpp moves the cached keys instead,
//! which then still know of the tokens that are gone.

use std::future::Future;
use std::pin::Pin;

use engine::{Failure, FinishReason, Output, Request};

use crate::engine_thread::{EngineHandle, Running, SubmitError};

/// The seed of what comes after a shift is another one, because choices are drawn by the number of a token in its request.
const SEED_STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Tokens that a full context gives up at least, so that there are some to write.
const ROOM_LEAST: usize = 4;

/// A request of one text, and the context that it has so far.
pub(crate) struct ContextShift {
    engine: EngineHandle,
    /// What the engine was asked for, with the prompt of the last time.
    request: Request,
    /// Tokens at the beginning that stay.
    keep: usize,
    /// Prompt and text, without what was left out.
    tokens: Vec<u32>,
    /// Tokens that the text may have beyond those that the engine was asked for.
    left: usize,
    /// Tokens of the text before the last shift.
    before: usize,
    /// What the prompt of the client took from the cache, once something was left out.
    cached: Option<usize>,
    shifts: usize,
    waiting: Option<Waiting>,
}

/// A shift under way.
struct Waiting {
    submitted: Pin<Box<dyn Future<Output = Result<Running, SubmitError>> + Send>>,
    /// The output that filled the context, and why the text ends if it cannot go on.
    held: (usize, Output),
}

impl ContextShift {
    /// For `request`, whose text may have `left` tokens more than the engine is asked for. The first `keep` tokens stay.
    /// Nothing for a request whose texts cannot go on in another one: several of them, one that a grammar or a rule about
    /// tokens holds, or one whose prompt is scored.
    pub(crate) fn of(engine: &EngineHandle, request: &Request, keep: usize, left: usize) -> Option<Self> {
        let is_plain = request.num_completions == 1 && request.grammar.is_none() && request.prompt_logprobs.is_none();
        let room = engine.config().context_len.saturating_sub(ROOM_LEAST);
        (is_plain && left > 0).then(|| Self {
            engine: engine.clone(),
            request: request.clone(),
            keep: keep.min(room),
            tokens: request.prompt.clone(),
            left,
            before: 0,
            cached: None,
            shifts: 0,
            waiting: None,
        })
    }

    /// How often something was left out.
    pub(crate) fn shifts(&self) -> usize {
        self.shifts
    }

    /// The next output of `running`, which becomes another request where the context is full. Safe to drop while it waits.
    pub(crate) async fn next(&mut self, running: &mut Running) -> Option<(usize, Output)> {
        if self.waiting.is_none() {
            let (place, mut output) = running.next().await?;
            self.count(&mut output);
            if !self.is_full(&output) {
                return Some((place, output));
            }
            self.begin((place, output));
        }
        let submitted = match &mut self.waiting {
            Some(waiting) => waiting.submitted.as_mut().await,
            None => return None,
        };
        let (place, mut output) = self.waiting.take()?.held;
        match submitted {
            Ok(next) => {
                *running = next;
                self.shifts += 1;
                output.finish = None;
            }
            // There is no place for it: the text ends where its context does.
            Err(SubmitError::Refused(error)) => {
                tracing::info!(%error, "a text whose context is full ends");
                self.left = 0;
            }
            Err(SubmitError::Gone(failure)) => {
                output.finish = Some(FinishReason::Error(Failure::Backend(failure.to_string())));
            }
        }
        Some((place, output))
    }

    /// Takes a token in, and counts as if there had been one request alone.
    fn count(&mut self, output: &mut Output) {
        self.tokens.extend(output.token.as_ref().map(|token| token.id));
        output.usage.generated_tokens += self.before;
        if let Some(cached) = self.cached {
            output.usage.cached_tokens = cached;
        }
    }

    /// Whether the text ends because its context is full, and may go on.
    fn is_full(&self, output: &Output) -> bool {
        let has_ended = matches!(output.finish, Some(FinishReason::Length | FinishReason::Context));
        has_ended && self.left > 0 && self.tokens.len() >= self.engine.config().context_len
    }

    /// Leaves out half of what need not stay, and asks the engine to go on with the rest.
    fn begin(&mut self, held: (usize, Output)) {
        let context_len = self.engine.config().context_len;
        let usage = held.1.usage;
        self.before = usage.generated_tokens;
        self.cached.get_or_insert(usage.cached_tokens);
        let left_out = (self.tokens.len().saturating_sub(self.keep) / 2).max(1);
        self.tokens.drain(self.keep..self.keep + left_out);
        let next = self.left.min(context_len.saturating_sub(self.tokens.len()));
        self.left -= next;
        self.request.prompt.clone_from(&self.tokens);
        self.request.max_tokens = Some(next);
        self.request.reports_prompt = false;
        self.request.sampling.seed = self.request.sampling.seed.wrapping_add(SEED_STRIDE);
        let (engine, request) = (self.engine.clone(), self.request.clone());
        let submitted = Box::pin(async move { engine.submit(vec![request]).await });
        self.waiting = Some(Waiting { submitted, held });
    }
}
