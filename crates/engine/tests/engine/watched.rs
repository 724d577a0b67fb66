//! An engine on the null device, with every output compared with what the request would get alone, and every invariant
//! checked after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::null::{Fault, NullExecutable, null_logits, null_state};
use engine::{
    Engine, EngineConfig, EngineError, Failure, FinishReason, History, Output, Pooling, Request, RequestId,
    SampledToken, Sampler, SamplingParams, StepWatch, TokenLogprobs,
};

/// What the device is told and tells.
#[derive(Debug, Default)]
struct Device {
    fault: Option<Fault>,
    /// Of the last step, if there was one: tokens, sequences, outputs.
    shape: Option<(usize, usize, usize)>,
}

/// What has happened, so that a test can tell that it tested it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) steps: u64,
    pub(crate) tokens: u64,
    pub(crate) finished: u64,
    pub(crate) cancelled: u64,
    pub(crate) backend_errors: u64,
    pub(crate) numeric_faults: u64,
    pub(crate) refused: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) preemptions: u64,
    pub(crate) ahead: u64,
    pub(crate) copies: u64,
    pub(crate) longest_wait: u64,
    pub(crate) scored: u64,
    pub(crate) embedded: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.finished += other.finished;
        self.cancelled += other.cancelled;
        self.backend_errors += other.backend_errors;
        self.numeric_faults += other.numeric_faults;
        self.refused += other.refused;
        self.cached_tokens += other.cached_tokens;
        self.preemptions += other.preemptions;
        self.ahead += other.ahead;
        self.copies += other.copies;
        self.scored += other.scored;
        self.embedded += other.embedded;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
    }
}

/// A clock that goes on by a number that nobody can foresee whenever it is read: no text may depend on it.
#[derive(Debug, Default)]
struct WildClock {
    now: Duration,
    state: u64,
}

impl StepWatch for WildClock {
    fn given(&mut self) {}

    fn returned(&mut self) {}

    fn now(&mut self) -> Option<Duration> {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = self.state >> 33;
        // Now and then nobody takes the time, and a step takes hours.
        let micros = if random % 50 == 7 { 1 << 33 } else { random % 20_000 };
        self.now += Duration::from_micros(micros);
        (random % 31 != 5).then_some(self.now)
    }
}

/// A completion that has not ended.
struct Live {
    request: Arc<Request>,
    tokens: Vec<u32>,
    /// Mirostat's, as the last token left it.
    mirostat_bound: Option<f64>,
    /// The step of its arrival or of its last token.
    since: u64,
}

pub(crate) struct Watched {
    pub(crate) engine: Engine,
    device: Arc<Mutex<Device>>,
    copies: Arc<Mutex<u64>>,
    queues: bool,
    live: BTreeMap<(RequestId, usize), Live>,
    /// Tokens of a request's prompt whose log-probabilities have come.
    scored: BTreeMap<RequestId, usize>,
    clock: WildClock,
    pub(crate) coverage: Coverage,
}

impl Watched {
    /// An engine on a device that chooses likeliest tokens itself, or does not.
    pub(crate) fn new(config: EngineConfig, queues: bool) -> Self {
        let device = Arc::new(Mutex::new(Device::default()));
        let copies = Arc::new(Mutex::new(0));
        let (told, counted) = (Arc::clone(&device), Arc::clone(&copies));
        let executable = NullExecutable::new(config.kv, config.vocab_size).with_faults(Box::new(move |_, input| {
            let mut device = told.lock().unwrap();
            device.shape = Some((input.token_ids.len(), input.sequences.len(), input.output_rows.len()));
            *counted.lock().unwrap() += input.block_copies.len() as u64;
            device.fault
        }));
        let executable = if queues { executable.with_queue() } else { executable };
        Self {
            engine: Engine::new(Box::new(executable), config).unwrap(),
            queues,
            device,
            copies,
            live: BTreeMap::new(),
            scored: BTreeMap::new(),
            clock: WildClock::default(),
            coverage: Coverage::default(),
        }
    }

    pub(crate) fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        let (shared, tokens) = (Arc::new(request.clone()), request.prompt.clone());
        let id = self.engine.submit(request).inspect_err(|_| self.coverage.refused += 1)?;
        for completion in 0..shared.num_completions {
            let (request, since) = (Arc::clone(&shared), self.coverage.steps);
            let live = Live { request, tokens: tokens.clone(), mirostat_bound: None, since };
            self.live.insert((id, completion), live);
        }
        Ok(id)
    }

    /// Completions that have not ended.
    pub(crate) fn live(&self) -> impl ExactSizeIterator<Item = (RequestId, usize)> {
        self.live.keys().copied()
    }

    /// The text of a live completion, prompt included.
    pub(crate) fn tokens(&self, request: RequestId, completion: usize) -> Option<&[u32]> {
        self.live.get(&(request, completion)).map(|live| live.tokens.as_slice())
    }

    pub(crate) fn cancel(&mut self, request: RequestId) -> Result<(), String> {
        let outputs = self.engine.cancel(request);
        let expected: Vec<_> = self.live().filter(|&(id, _)| id == request).collect();
        if outputs.len() != expected.len() {
            return Err(format!("cancel ended {} of {} completions", outputs.len(), expected.len()));
        }
        outputs.iter().try_for_each(|output| self.cancelled(output))?;
        self.engine.check_invariants()
    }

    pub(crate) fn cancel_completion(&mut self, request: RequestId, completion: usize) -> Result<(), String> {
        if let Some(output) = self.engine.cancel_completion(request, completion) {
            self.cancelled(&output)?;
        }
        self.engine.check_invariants()
    }

    fn cancelled(&mut self, output: &Output) -> Result<(), String> {
        let live = self.live.remove(&(output.request, output.completion)).ok_or("ended what was not there")?;
        self.coverage.cancelled += 1;
        let counts = (output.usage.prompt_tokens, output.usage.generated_tokens);
        let expected = (live.request.prompt.len(), live.tokens.len() - live.request.prompt.len());
        if output.finish != Some(FinishReason::Cancelled) || output.token.is_some() || counts != expected {
            return Err(format!("{output:?} for a cancelled completion with counts {expected:?}"));
        }
        Ok(())
    }

    /// One step, with a fault if one is given, and all checks.
    pub(crate) fn step(&mut self, fault: Option<Fault>) -> Result<Vec<Output>, String> {
        *self.device.lock().unwrap() = Device { fault, shape: None };
        let mut outputs = Vec::new();
        self.engine.step_watched(&mut outputs, &mut self.clock);
        self.coverage.steps += 1;
        let shape = self.device.lock().unwrap().shape;
        self.check_step(fault, shape, &outputs)?;
        self.engine.check_invariants()?;
        let stats = self.engine.stats();
        let config = self.engine.config();
        let most = config.max_waiting + config.max_sequences;
        if self.live.len() > most || stats.num_waiting > most {
            return Err(format!("{} live, of at most {most}, in {stats:?}", self.live.len()));
        }
        if self.live.is_empty() && (self.engine.has_work() || stats.num_free_blocks != stats.num_blocks) {
            return Err(format!("everything has ended, yet {stats:?}"));
        }
        self.coverage.preemptions = stats.num_preemptions;
        self.coverage.ahead = stats.num_ahead;
        self.coverage.copies = *self.copies.lock().unwrap();
        Ok(outputs)
    }

    fn check_step(
        &mut self,
        fault: Option<Fault>,
        shape: Option<(usize, usize, usize)>,
        outputs: &[Output],
    ) -> Result<(), String> {
        let Some((num_tokens, _, num_outputs)) = shape else {
            let idle = self.live.is_empty() && outputs.is_empty();
            return if idle { Ok(()) } else { Err(format!("an empty step with {} live", self.live.len())) };
        };
        self.coverage.tokens += num_tokens as u64;
        if num_tokens > self.engine.config().max_batch_tokens {
            return Err(format!("{num_tokens} tokens in a step"));
        }
        // States are bounded by the tokens of a step.
        let gives_states = self.live.values().any(|live| live.request.pooling.is_some());
        if num_outputs > self.engine.config().max_batch_outputs && !gives_states {
            return Err(format!("{num_outputs} outputs in a step"));
        }
        let mut seen = BTreeSet::new();
        let mut failed = BTreeSet::new();
        for output in outputs {
            if !seen.insert((output.request, output.completion)) {
                return Err(format!("two outputs in a step: {output:?}"));
            }
            if let Some(FinishReason::Error(failure)) = &output.finish {
                failed.insert(output.request);
                match (failure, fault) {
                    (Failure::Backend(_), Some(Fault::Error)) => self.coverage.backend_errors += 1,
                    (Failure::Numeric { .. } | Failure::NumericState { .. }, Some(Fault::NotANumber { .. })) => {
                        self.coverage.numeric_faults += 1
                    }
                    _ => return Err(format!("{output:?} with fault {fault:?}")),
                }
                if self.live.remove(&(output.request, output.completion)).is_none() {
                    return Err(format!("failed after its end: {output:?}"));
                }
            } else {
                self.check_token(output)?;
            }
        }
        // A fault may hit a row, or a step, whose sequences have ended while it was under way.
        let (fewest, most) = match fault {
            Some(Fault::Error) if self.queues && outputs.len() == seen.len() => (0, usize::MAX),
            Some(Fault::NotANumber { .. }) if self.queues => (0, 1),
            None => (0, 0),
            Some(Fault::Error) if outputs.len() == seen.len() => (1, usize::MAX),
            Some(Fault::Error) => return Err("a failed step gave tokens".to_owned()),
            Some(Fault::NotANumber { .. }) => (usize::from(num_outputs > 0), 1),
        };
        if failed.len() < fewest || failed.len() > most {
            return Err(format!("{} requests failed of {fault:?}", failed.len()));
        }
        Ok(())
    }

    /// The token is the one that the request would have got alone, and it ends where it should.
    fn check_token(&mut self, output: &Output) -> Result<(), String> {
        let key = (output.request, output.completion);
        let config = self.engine.config();
        let live = self.live.get_mut(&key).ok_or_else(|| format!("an output after the end: {output:?}"))?;
        if let Some(pooling) = live.request.pooling {
            let expected = embedded_alone(&live.tokens, pooling);
            let ends = output.token.is_none() && output.finish == Some(FinishReason::Length);
            if !ends || output.embedding.as_ref() != Some(&expected) {
                return Err(format!("{output:?} for an embedding; alone, {expected:?}"));
            }
            self.coverage.embedded += 1;
            self.coverage.longest_wait = self.coverage.longest_wait.max(self.coverage.steps - live.since);
            self.live.remove(&key);
            return Ok(());
        }
        let scored = self.scored.entry(output.request).or_default();
        for found in &output.prompt_logprobs {
            *scored += 1;
            let expected = scored_alone(config, &live.request, *scored);
            if *found != expected {
                return Err(format!("{found:?} for token {scored} of the prompt, expected {expected:?}"));
            }
            self.coverage.scored += 1;
        }
        let owed = live.request.prompt_logprobs.map_or(0, |_| live.request.prompt.len() - 1 - *scored);
        if output.token.is_none() && output.finish.is_none() && !output.prompt_logprobs.is_empty() {
            return Ok(());
        }
        if owed > 0 {
            return Err(format!("the log-probabilities of {owed} tokens of the prompt did not come: {output:?}"));
        }
        if live.request.max_tokens == Some(0) {
            let sound = output.token.is_none() && output.finish == Some(FinishReason::Length);
            self.live.remove(&key);
            return if sound { Ok(()) } else { Err(format!("{output:?} where no token was asked for")) };
        }
        let expected = alone(config, &live.request, &live.tokens, key.1, live.mirostat_bound);
        if output.token.as_ref() != Some(&expected) {
            return Err(format!("{key:?} got {:?} after {:?}; alone, {expected:?}", output.token, live.tokens));
        }
        live.tokens.push(expected.id);
        live.mirostat_bound = expected.mirostat_bound;
        let finish = expected_finish(config, &live.request, &live.tokens);
        let generated = live.tokens.len() - live.request.prompt.len();
        let usage = output.usage;
        let cached_most = live.request.prompt.len() - 1;
        let counts_right = usage.prompt_tokens == live.request.prompt.len()
            && usage.generated_tokens == generated
            && usage.cached_tokens <= cached_most
            && usage.cached_tokens.is_multiple_of(config.kv.block_len);
        if output.finish != finish || !counts_right {
            return Err(format!("{output:?}, expected {finish:?} and {generated} generated"));
        }
        self.coverage.longest_wait = self.coverage.longest_wait.max(self.coverage.steps - live.since);
        live.since = self.coverage.steps;
        if finish.is_some() {
            self.coverage.finished += 1;
            self.coverage.cached_tokens += usage.cached_tokens as u64;
            self.live.remove(&key);
        }
        Ok(())
    }

    /// Without arrivals and faults, everything ends in time: in each step some sequence comes nearer to its end.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        let context_len = self.engine.config().context_len;
        let bound: usize = self.live.values().map(|live| 2 * context_len - live.tokens.len()).sum();
        for _ in 0..bound + 16 {
            if self.live.is_empty() {
                return self.step(None).map(|_| ());
            }
            self.step(None)?;
        }
        Err(format!("{} completions have not ended after {bound} steps", self.live.len()))
    }
}

/// The token that a request gets with nothing else going on: a fresh sampler on the logits of its own tokens.
pub(crate) fn alone(
    config: &EngineConfig,
    request: &Request,
    tokens: &[u32],
    completion: usize,
    mirostat_bound: Option<f64>,
) -> SampledToken {
    let history = History { mirostat_bound, ..History::new(tokens, request.prompt.len()) };
    Sampler::default().sample(&null_logits(tokens, config.vocab_size), &request.sampling, history, completion).unwrap()
}

/// The embedding of `tokens`, from each of its beginnings.
pub(crate) fn embedded_alone(tokens: &[u32], pooling: Pooling) -> Vec<f32> {
    let states: Vec<_> = match pooling {
        Pooling::Last => vec![null_state(tokens)],
        Pooling::Mean => (1..=tokens.len()).map(|len| null_state(&tokens[..len])).collect(),
    };
    let mean = |index: usize| {
        let sum = states.iter().fold(0.0, |sum, state| sum + f64::from(state[index]));
        (sum / states.len() as f64) as f32
    };
    (0..states[0].len()).map(mean).collect()
}

/// The log-probabilities of the prompt's token `index`: what the sampler says of it where it has no other choice.
pub(crate) fn scored_alone(config: &EngineConfig, request: &Request, index: usize) -> TokenLogprobs {
    let sampling = SamplingParams {
        logprobs: request.prompt_logprobs,
        logit_bias: vec![(request.prompt[index], 100.0)],
        ..SamplingParams::greedy()
    };
    let history = History::new(&request.prompt[..index], request.prompt.len().min(index));
    let logits = null_logits(&request.prompt[..index], config.vocab_size);
    let sampled = Sampler::default().sample(&logits, &sampling, history, 0).unwrap();
    assert_eq!(sampled.id, request.prompt[index]);
    sampled.logprobs.unwrap()
}

/// Whether a text ends with its last token.
pub(crate) fn expected_finish(config: &EngineConfig, request: &Request, tokens: &[u32]) -> Option<FinishReason> {
    let &token_id = tokens.last()?;
    let is_eos = config.eos_token_ids.contains(&token_id) && !request.ignore_eos;
    if is_eos || request.stop_token_ids.contains(&token_id) {
        return Some(FinishReason::Stop { token_id });
    }
    match request.max_tokens {
        Some(max) => (tokens.len() == request.prompt.len() + max).then_some(FinishReason::Length),
        None => (tokens.len() == config.context_len).then_some(FinishReason::Context),
    }
}
