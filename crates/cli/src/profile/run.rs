//! Runs prefill and decode through the engine, as a user's request would, and takes the time at every edge of a step.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use backend::profile::{Recorder, StepRecord};
use engine::{Engine, EngineConfig, FinishReason, Request, SamplingParams};
use plan::{KvLayout, Plan};
use tokenizer::{StreamDecoder, Tokenizer};

use crate::bench::{Parts, TargetArgs};
use crate::load::facts::{KV_BLOCK_LEN, kv_format_of};
use crate::load::find;
use crate::load::text::load_tokenizer;
use crate::output::note;

/// What is profiled: `tokens` at once or one by one, after `depth` others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The prompt, up to its first new token.
    Prefill { tokens: usize, depth: usize },
    /// The tokens after the first.
    Decode { tokens: usize, depth: usize },
}

impl Phase {
    /// As `bench` names it: `pp512`, `tg64`.
    pub(super) fn name(self) -> String {
        match self {
            Self::Prefill { tokens, .. } => format!("pp{tokens}"),
            Self::Decode { tokens, .. } => format!("tg{tokens}"),
        }
    }

    /// Tokens that a step computes at most, of `batch_tokens` that it may.
    pub(super) fn tokens_of_a_step(self, batch_tokens: usize) -> usize {
        match self {
            Self::Prefill { tokens, .. } => tokens.min(batch_tokens),
            Self::Decode { .. } => 1,
        }
    }

    /// Tokens of the request that runs it: prompt and generated. Generating begins after a prompt of one token at least.
    fn request_len(self) -> (usize, usize) {
        match self {
            Self::Prefill { tokens, depth } => (depth.saturating_add(tokens), 1),
            Self::Decode { tokens, depth } => (depth.max(1), tokens.saturating_add(1)),
        }
    }
}

/// A phase, run several times.
pub(super) struct Measured {
    pub(super) phase: Phase,
    /// Tokens that were in the cache when a run began. A prompt shares whole blocks of it only, and is computed from there.
    pub(super) depth: usize,
    pub(super) recorded: Vec<Trial>,
    /// Nanoseconds of each run that was not recorded.
    pub(super) unrecorded_ns: Vec<f64>,
}

/// One recorded run of a phase. All times are nanoseconds since the recorder's epoch.
pub(super) struct Trial {
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    /// Tokens that were in the cache already.
    pub(super) depth: usize,
    pub(super) steps: Vec<Step>,
}

impl Trial {
    /// From its begin to its end, less what it took to measure parts of steps behind them.
    pub(super) fn wall_ns(&self) -> f64 {
        let measured: u64 = self.steps.iter().map(Step::measured_ns).sum();
        (self.end_ns - self.begin_ns - measured) as f64
    }
}

/// One step of the engine.
pub(super) struct Step {
    /// When the engine was asked for it; until the record's begin, it schedules.
    pub(super) begin_ns: u64,
    /// What the device did.
    pub(super) record: StepRecord,
    /// When the engine had sampled the tokens and taken them in.
    pub(super) sampled_ns: u64,
    /// When their text was decoded.
    pub(super) end_ns: u64,
}

impl Step {
    /// What it took to repeat parts of it, between its end and what follows.
    pub(super) fn measured_ns(&self) -> u64 {
        self.record.measured_ns - self.record.end_ns
    }
}

/// The edges of a step that the host sees.
struct HostStep {
    begin_ns: u64,
    sampled_ns: u64,
    end_ns: u64,
}

/// A model in an engine, whose device records its steps.
pub(super) struct Session {
    engine: Engine,
    recorder: Recorder,
    tokenizer: Option<Arc<Tokenizer>>,
    vocab_size: usize,
    /// Runs so far: each has a prompt of its own, so that none finds another's in the cache.
    num_runs: usize,
}

impl Session {
    /// Loads the model for `phases`.
    pub(super) fn new(target: &TargetArgs, parts: Parts, threads: Option<usize>, phases: &[Phase]) -> Result<Self> {
        let Parts { plan, backend, weights } = parts;
        let cache = target.settings(threads).cache;
        let longest = longest_request(&plan, phases)?;
        let kv_format = kv_format_of(cache.format, &weights);
        // Room for a request, and for what the one before left in the cache for the next.
        let num_blocks = 2 * longest.div_ceil(KV_BLOCK_LEN) + 1;
        let kv = KvLayout { format: kv_format, block_len: KV_BLOCK_LEN, num_blocks };
        let vocab_size = plan.vocab_size;
        let mut executable = backend.load(plan, weights, kv).context("cannot run the model")?;
        let recorder = Recorder::new();
        executable.record(recorder.clone())?;
        executable.settle()?;
        let config =
            // A step that was submitted before recording began would have no record.
            EngineConfig {
                max_batch_tokens: target.batch_tokens(),
                run_ahead: false,
                ..EngineConfig::new(kv, longest, vocab_size, vec![])
            };
        let engine = Engine::new(executable, config)?;
        Ok(Self { engine, recorder, tokenizer: tokenizer_of(target)?, vocab_size, num_runs: 0 })
    }

    /// Nanoseconds that a reading of the clock takes: an event is one.
    pub(super) fn clock_reading_ns(&self) -> f64 {
        const READINGS: u32 = 10_000;
        let begin_ns = self.recorder.now_ns();
        let last_ns = (0..READINGS).map(|_| std::hint::black_box(self.recorder.now_ns())).max().unwrap_or(begin_ns);
        (last_ns - begin_ns) as f64 / f64::from(READINGS)
    }

    /// Whether tokens are decoded to text.
    pub(super) fn decodes_text(&self) -> bool {
        self.tokenizer.is_some()
    }

    /// Runs `phase` for warm-up, then `repetitions` times recorded and as often not.
    pub(super) fn measure(&mut self, phase: Phase, repetitions: usize) -> Result<Measured> {
        self.run(phase, false)?;
        let (mut recorded, mut unrecorded_ns) = (Vec::new(), Vec::new());
        for repetition in 0..repetitions {
            // Each goes first as often as the other, so that a machine that slows down or speeds up favours neither.
            for record in [repetition % 2 == 0, repetition % 2 == 1] {
                let trial = self.run(phase, record)?;
                if record {
                    recorded.push(trial);
                } else {
                    unrecorded_ns.push(trial.wall_ns());
                }
            }
        }
        let depth = recorded.first().map_or(0, |trial| trial.depth);
        Ok(Measured { phase, depth, recorded, unrecorded_ns })
    }

    /// Runs a request and keeps the time of the steps that belong to `phase`.
    fn run(&mut self, phase: Phase, record: bool) -> Result<Trial> {
        let (prompt_len, max_tokens) = phase.request_len();
        self.num_runs += 1;
        let mut request = Request::new(self.prompt(phase, prompt_len), SamplingParams::greedy());
        request.max_tokens = Some(max_tokens);
        request.ignore_eos = true;
        self.engine.submit(request)?;
        let mut decoder = self.tokenizer.clone().map(|tokenizer| StreamDecoder::new(tokenizer, true));
        let (mut outputs, mut steps, mut cached_tokens) = (Vec::new(), Vec::new(), 0);
        let mut in_phase = matches!(phase, Phase::Prefill { .. });
        steps.reserve(max_tokens);
        self.recorder.set_on(record && in_phase);
        let mut begin_ns = self.recorder.now_ns();
        while self.engine.has_work() {
            let step_begin_ns = self.recorder.now_ns();
            self.engine.step_into(&mut outputs);
            let sampled_ns = self.recorder.now_ns();
            let mut has_token = false;
            for output in &outputs {
                if let Some(FinishReason::Error(failure)) = &output.finish {
                    self.recorder.set_on(false);
                    bail!("{}: {failure}", phase.name());
                }
                if let (Some(token), Some(decoder)) = (&output.token, &mut decoder) {
                    std::hint::black_box(decoder.push(token.id));
                }
                has_token |= output.token.is_some();
                cached_tokens = output.usage.cached_tokens;
            }
            let end_ns = self.recorder.now_ns();
            if in_phase {
                steps.push(HostStep { begin_ns: step_begin_ns, sampled_ns, end_ns });
            } else if has_token {
                // The first token was the prompt's: decode begins.
                in_phase = true;
                self.recorder.set_on(record);
                begin_ns = self.recorder.now_ns();
            }
        }
        let end_ns = self.recorder.now_ns();
        self.recorder.set_on(false);
        let depth = match phase {
            Phase::Prefill { .. } => cached_tokens,
            Phase::Decode { .. } => prompt_len,
        };
        let records = self.recorder.take();
        if record && records.len() != steps.len() {
            bail!("the device recorded {} of {} steps", records.len(), steps.len());
        }
        let join = |(host, record): (HostStep, StepRecord)| {
            let HostStep { begin_ns, sampled_ns, end_ns } = host;
            Step { begin_ns, record, sampled_ns, end_ns }
        };
        Ok(Trial { begin_ns, end_ns, depth, steps: steps.into_iter().zip(records).map(join).collect() })
    }

    /// A text that nobody wrote: the same up to the depth, another in each run after it.
    fn prompt(&self, phase: Phase, len: usize) -> Vec<u32> {
        let (Phase::Prefill { depth, .. } | Phase::Decode { depth, .. }) = phase;
        let token = |position: usize| {
            let run = if position < depth { 0 } else { self.num_runs };
            // Two primes: ids that jump over the vocabulary, and that no two runs share.
            (position * 7919 + run * 104_729) % self.vocab_size
        };
        (0..len).map(|position| token(position) as u32).collect()
    }
}

/// Tokens of the longest request of `phases`, which the model must have been made for.
pub(super) fn longest_request(plan: &Plan, phases: &[Phase]) -> Result<usize> {
    let mut longest = 0;
    for phase in phases {
        let (prompt, generated) = phase.request_len();
        let len = prompt.saturating_add(generated);
        if len > plan.context_len {
            bail!(
                "{} takes a context of {len} tokens (--depth, and -p and a token, or -n and two), but the model was made \
                 for {}",
                phase.name(),
                plan.context_len
            );
        }
        longest = longest.max(len);
    }
    Ok(longest)
}

/// The tokenizer of a checkpoint; none for random weights.
fn tokenizer_of(target: &TargetArgs) -> Result<Option<Arc<Tokenizer>>> {
    if target.shape.is_some() {
        return Ok(None);
    }
    let (checkpoint, _) = find::open(target.model.as_deref(), false)?;
    match load_tokenizer(checkpoint.tokenizer, false) {
        Ok(tokenizer) => Ok(Some(Arc::new(tokenizer))),
        Err(error) => {
            note(&format!("no text is decoded, and its time is not part of the result: {error:#}"));
            Ok(None)
        }
    }
}
