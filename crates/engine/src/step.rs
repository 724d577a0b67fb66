//! The engine: the one place where scheduler, backend and sampler meet.

use std::time::{Duration, Instant};

use backend::{BackendError, Executable, WeightCheck, WeightFault, num_peaks};
use plan::StepShape;

use crate::batch::Batch;
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::kv_cache::KvCache;
use crate::prefix::HeldPrefix;
use crate::request::{Output, Request, RequestId};
use crate::sampler::Sampler;
use crate::scheduler::{Scheduler, StepResult};
use crate::sequence::Sequence;

/// Requests in, tokens out, one step at a time.
pub struct Engine {
    pub(crate) executable: Box<dyn Executable>,
    scheduler: Scheduler,
    pub(crate) kv: KvCache,
    /// Blocks that are being copied.
    pub(crate) prefixes: Vec<HeldPrefix>,
    pub(crate) num_prefixes: u64,
    batch: Batch,
    /// The step after `batch`.
    next: Batch,
    /// Whether `next` is under way already.
    is_ahead: bool,
    /// When the last step ended, where somebody takes times.
    ended: Option<Duration>,
    sampler: Sampler,
    device_errors: DeviceErrors,
    weight_check: WeightCheck,
}

/// Errors of the device itself, in steps that directly follow each other.
#[derive(Default)]
struct DeviceErrors {
    in_a_row: u32,
    last: String,
}

impl DeviceErrors {
    /// So many steps in a row that fail in the device mean that it is lost: CUDA's sticky errors fail every later call.
    const LOST: u32 = 2;

    /// Counts a step by how it ended. An error that is not the device's own (no kernel, no memory for this shape) says
    /// nothing about the next step, so it neither counts nor ends a row.
    fn count<T>(&mut self, ended: &Result<T, BackendError>) {
        match ended {
            Ok(_) => self.in_a_row = 0,
            Err(error @ BackendError::Device { .. }) => {
                self.in_a_row += 1;
                self.last = error.to_string();
            }
            Err(_) => {}
        }
    }
}

/// How a step was given to the device.
enum Submitted {
    /// It is under way.
    Queued,
    /// Not yet: its logits are wanted.
    Replay,
    /// It could not be.
    Failed(BackendError),
}

/// Is told when the device is given something and when it has returned, so that its time can be taken: an engine reads no
/// clock.
pub trait StepWatch {
    /// A program is about to be replayed, queued or waited for.
    fn given(&mut self);
    /// That has been done.
    fn returned(&mut self);
    /// The time since a fixed moment, for [`EngineConfig::step_target`]. The engine asks for it when it has
    /// submitted a step, and when it has the step's result. With `None` the engine measures nothing and keeps what it
    /// measured before.
    fn now(&mut self) -> Option<Duration> {
        None
    }
    /// A request has left the queue, for the first time: it is part of the step that was just made.
    fn started(&mut self, _request: RequestId) {}
    /// Until when a step waits for grammars that do not know yet what they allow; asked once a step, when the device has
    /// returned. `None`: as long as it takes.
    fn patience(&mut self) -> Option<Instant> {
        None
    }
}

/// Nobody takes the time.
impl StepWatch for () {
    fn given(&mut self) {}

    fn returned(&mut self) {}
}

/// What an engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Steps so far.
    pub num_steps: u64,
    /// Steps that were submitted before the tokens of the one before were read.
    pub num_ahead: u64,
    /// Times that a sequence lost its blocks to another.
    pub num_preemptions: u64,
    /// Sequences that run.
    pub num_running: usize,
    /// Sequences that wait, preempted ones included; completions that have not branched off yet count with their first.
    pub num_waiting: usize,
    /// Blocks of the pool.
    pub num_blocks: usize,
    /// Blocks that no sequence holds.
    pub num_free_blocks: usize,
    /// Blocks whose tokens can be reused, held or free.
    pub num_cached_blocks: usize,
    /// Tokens of prompts that were looked for in the prefix cache.
    pub num_prefix_queries: u64,
    /// Those of them that were there.
    pub num_prefix_hits: u64,
}

impl Engine {
    /// An engine on `executable`, which was loaded with the cache layout of `config`.
    pub fn new(executable: Box<dyn Executable>, config: EngineConfig) -> Result<Self, EngineError> {
        config.check()?;
        Ok(Self {
            executable,
            kv: KvCache::new(&config.kv, config.prefix_cache),
            scheduler: Scheduler::new(config),
            prefixes: Vec::new(),
            num_prefixes: 0,
            batch: Batch::default(),
            next: Batch::default(),
            is_ahead: false,
            ended: None,
            sampler: Sampler::default(),
            device_errors: DeviceErrors::default(),
            weight_check: WeightCheck::default(),
        })
    }

    /// Compiles ahead of time what a single text needs: decode steps, and prefills of up to `prompt_len` tokens.
    pub fn warm_up(&mut self, prompt_len: usize) -> Result<(), EngineError> {
        for tokens in [1, prompt_len.min(self.scheduler.config().max_batch_tokens)] {
            let shape = StepShape { tokens, sequences: 1, outputs: 1 }.bucket();
            self.executable.compile(shape).map_err(|error| EngineError::Backend(error.to_string()))?;
        }
        Ok(())
    }

    /// Takes a request. Its tokens come from [`Engine::step`].
    pub fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        if request.pooling.is_some() && self.hidden_size().is_none() {
            return Err(EngineError::Backend(BackendError::NoHiddenStates.to_string()));
        }
        self.scheduler.submit(request)
    }

    /// The width of embeddings; `None` where the device or the model gives none.
    pub fn hidden_size(&self) -> Option<usize> {
        self.executable.hidden_size()
    }

    /// Runs one step and returns what it did: new tokens and ends. Nothing to do gives nothing.
    ///
    /// Never fails as a whole: an error of the backend ends the sequences of the step, a fault in a row of logits ends
    /// that sequence, each with its reason.
    pub fn step(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        self.step_into(&mut outputs);
        outputs
    }

    /// As [`Engine::step`], into memory that the caller reuses: a decode step then allocates nothing but, now and then,
    /// room for a sequence's next tokens. What `outputs` held before is gone.
    pub fn step_into(&mut self, outputs: &mut Vec<Output>) {
        self.step_watched(outputs, &mut ());
    }

    /// As [`Engine::step_into`], and tells `watch` when the device has its turn.
    pub fn step_watched(&mut self, outputs: &mut Vec<Output>, watch: &mut impl StepWatch) {
        outputs.clear();
        let hidden_size = self.executable.hidden_size().unwrap_or_default();
        let made = match self.submit_step(watch) {
            None => {
                // Where all sit out, nothing else is to be done than to wait.
                self.scheduler.late_grammar().into_iter().for_each(|grammar| grammar.wait(watch.patience()));
                return;
            }
            Some(Submitted::Queued) => {
                self.run_ahead(watch);
                watched(watch, || self.executable.collect()).map(StepResult::Choices)
            }
            Some(Submitted::Failed(error)) => Err(error),
            Some(Submitted::Replay) if self.batch.hidden => {
                self.batch.submitted = watch.now();
                let input = self.batch.step_input(self.scheduler.running(), &self.kv, false);
                let states = watched(watch, || self.executable.replay_hidden(input));
                states.map(|states| StepResult::States(states, hidden_size))
            }
            Some(Submitted::Replay) => {
                self.batch.submitted = watch.now();
                let input = self.batch.step_input(self.scheduler.running(), &self.kv, false);
                watched(watch, || self.executable.replay_with_peaks(input)).map(StepResult::Logits)
            }
        };
        let Self { scheduler, kv, batch, sampler, device_errors, ended, .. } = self;
        device_errors.count(&made);
        let begun = batch.submitted.max(ended.take());
        *ended = watch.now();
        if let (Some(begun), Some(ended), true) = (begun, *ended, made.is_ok()) {
            // A step that was submitted ahead begins when the one before it ends.
            scheduler.note_time(batch, ended.saturating_sub(begun));
        }
        let (found, expected, what) = match made {
            Ok(StepResult::Logits(made)) => {
                let (outputs, vocab_size) = (batch.num_outputs(), scheduler.config().vocab_size);
                match made.peaks.map(<[f32]>::len) {
                    Some(found) if found != outputs * num_peaks(vocab_size) => {
                        (found, outputs * num_peaks(vocab_size), "peaks of logits")
                    }
                    _ => (made.values.len(), outputs * vocab_size, "logits"),
                }
            }
            Ok(StepResult::States(states, width)) => (states.len(), batch.num_outputs() * width, "states"),
            Ok(StepResult::Choices(choices)) => (choices.len(), batch.num_outputs(), "tokens"),
            Err(_) => (0, 0, ""),
        };
        match made {
            Ok(made) if found == expected => scheduler.commit(batch, made, watch.patience(), sampler, kv, outputs),
            Ok(_) => {
                let reason = format!("the device returned {found} {what} instead of {expected}");
                scheduler.fail(batch, &reason, kv, outputs);
            }
            Err(error) => {
                tracing::warn!(%error, sequences = batch.items.len(), "a step failed");
                scheduler.fail(batch, &error.to_string(), kv, outputs);
            }
        }
        self.queue_next(outputs, watch);
    }

    /// Makes `batch` the step that this call is about: the one that is under way already, or a new one, which is queued if
    /// the device can choose all its tokens. `None` where there is nothing to do.
    fn submit_step(&mut self, watch: &mut impl StepWatch) -> Option<Submitted> {
        let Self { executable, scheduler, kv, batch, next, is_ahead, device_errors, .. } = self;
        if std::mem::take(is_ahead) {
            std::mem::swap(batch, next);
            if scheduler.find_again(batch) {
                return Some(Submitted::Queued);
            }
            // All its sequences have ended in the step before, or were cancelled: what it makes is nobody's.
            let collected = watched(watch, || executable.collect());
            device_errors.count(&collected);
            if let Err(error) = collected {
                tracing::warn!(%error, "a step failed that nobody waits for");
            }
        }
        scheduler.schedule(kv, batch);
        scheduler.started().iter().for_each(|&request| watch.started(request));
        if batch.is_empty() {
            return None;
        }
        if batch.hidden || !executable.can_queue() || !scheduler.is_for_device(batch) {
            return Some(Submitted::Replay);
        }
        let input = batch.step_input(scheduler.running(), kv, true);
        let queued = watched(watch, || executable.enqueue(input));
        batch.submitted = watch.now();
        Some(queued.map_or_else(Submitted::Failed, |()| Submitted::Queued))
    }

    /// Queues the step after `batch` before the host knows the tokens that it begins with. A token that ends its text is
    /// seen after that: then the row was computed for nothing.
    fn run_ahead(&mut self, watch: &mut impl StepWatch) {
        let Self { executable, scheduler, kv, batch, next, is_ahead, .. } = self;
        if !scheduler.config().run_ahead || !executable.can_queue() {
            return;
        }
        let follows = scheduler.follow(batch, kv, next);
        scheduler.started().iter().for_each(|&request| watch.started(request));
        if !follows {
            return;
        }
        let input = next.step_input(scheduler.running(), kv, true);
        match watched(watch, || executable.enqueue(input)) {
            Ok(()) => (*is_ahead, next.submitted) = (true, watch.now()),
            // The step that is scheduled in its place will say so to those who wait for it.
            Err(error) => tracing::warn!(%error, "a step could not be submitted ahead"),
        }
    }

    /// Schedules and queues the next step now, where none was submitted ahead and the device can choose its tokens: it
    /// computes while the caller deals with the outputs. Who asks for something meanwhile is one step later.
    fn queue_next(&mut self, outputs: &mut Vec<Output>, watch: &mut impl StepWatch) {
        let Self { executable, scheduler, kv, next, is_ahead, device_errors, .. } = self;
        let is_idle = scheduler.running().is_empty() && scheduler.waiting().is_empty();
        let is_wanted = !is_idle && !*is_ahead && scheduler.config().run_ahead && executable.can_queue();
        if !is_wanted || !scheduler.is_all_for_device() {
            return;
        }
        scheduler.schedule(kv, next);
        scheduler.started().iter().for_each(|&request| watch.started(request));
        if next.is_empty() {
            return;
        }
        let input = next.step_input(scheduler.running(), kv, true);
        let queued = watched(watch, || executable.enqueue(input));
        // A step that could be queued says nothing yet: its result does.
        if queued.is_err() {
            device_errors.count(&queued);
        }
        match queued {
            Ok(()) => (*is_ahead, next.submitted) = (true, watch.now()),
            Err(error) => {
                tracing::warn!(%error, sequences = next.items.len(), "a step could not be submitted");
                scheduler.fail(next, &error.to_string(), kv, outputs);
            }
        }
    }

    /// Ends a request and frees its blocks now. Returns the last output of each completion that had not ended; none if
    /// there is no such request any more.
    pub fn cancel(&mut self, request: RequestId) -> Vec<Output> {
        self.scheduler.cancel(|sequence| sequence.order.request == request, &mut self.kv)
    }

    /// As [`Engine::cancel`], for one completion: its text has reached a stop string, for example. One that has no
    /// token yet ends together with its siblings, by [`Engine::cancel`] only.
    pub fn cancel_completion(&mut self, request: RequestId, completion: usize) -> Option<Output> {
        let ends = |sequence: &Sequence| {
            let order = sequence.order;
            order.request == request && order.completion == completion && sequence.width() == 1
        };
        self.scheduler.cancel(ends, &mut self.kv).pop()
    }

    /// Whether any request has not ended.
    pub fn has_work(&self) -> bool {
        !self.scheduler.running().is_empty() || !self.scheduler.waiting().is_empty()
    }

    /// The device's error, once two consecutive steps have failed in the device. The device is then lost: every later step
    /// would fail with the same error, so the caller ends the engine.
    pub fn lost_device(&self) -> Option<&str> {
        (self.device_errors.in_a_row >= DeviceErrors::LOST).then_some(&*self.device_errors.last)
    }

    /// Reads the next piece of the memory that holds the weights, and compares it with what was there when it was read
    /// first. Returns whether all of it has now been read once more. For times without work, of which it takes about a
    /// millisecond; does nothing while there is work.
    pub fn check_weights(&mut self) -> Result<bool, WeightFault> {
        if self.has_work() {
            return Ok(false);
        }
        if std::mem::take(&mut self.is_ahead) {
            // Nobody waits for that step, and what it makes says nothing of weights.
            self.executable.collect()?;
        }
        self.weight_check.read_piece(&mut *self.executable)
    }

    /// The configuration that the engine was made with.
    pub fn config(&self) -> &EngineConfig {
        self.scheduler.config()
    }

    /// What the engine is doing.
    pub fn stats(&self) -> EngineStats {
        let (num_prefix_queries, num_prefix_hits) = self.scheduler.prefix();
        EngineStats {
            num_steps: self.scheduler.num_steps(),
            num_ahead: self.scheduler.num_ahead(),
            num_preemptions: self.scheduler.num_preemptions(),
            num_running: self.scheduler.running().len(),
            num_waiting: self.scheduler.waiting().len(),
            num_blocks: self.kv.num_blocks(),
            num_free_blocks: self.kv.num_free(),
            num_cached_blocks: self.kv.num_cached(),
            num_prefix_queries,
            num_prefix_hits,
        }
    }

    /// Checks everything that must hold between two steps: each block owned as often as it is counted, lists and index
    /// whole, waiting sequences without blocks, limits kept. For tests: takes time in proportion to the pool.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.scheduler.check(&self.kv, self.prefixes.iter().map(|held| &held.table))
    }
}

/// Does what is the device's, between the two calls of `watch`.
fn watched<T>(watch: &mut impl StepWatch, device: impl FnOnce() -> T) -> T {
    watch.given();
    let made = device();
    watch.returned();
    made
}
