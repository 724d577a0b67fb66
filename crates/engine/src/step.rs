//! The engine: the one place where scheduler, backend and sampler meet.

use backend::Executable;
use plan::StepShape;

use crate::batch::Batch;
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::kv_cache::KvCache;
use crate::request::{Output, Request, RequestId};
use crate::sampler::Sampler;
use crate::scheduler::Scheduler;

/// Requests in, tokens out, one step at a time.
pub struct Engine {
    executable: Box<dyn Executable>,
    scheduler: Scheduler,
    kv: KvCache,
    batch: Batch,
    sampler: Sampler,
}

/// What an engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Steps so far.
    pub num_steps: u64,
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
}

impl Engine {
    /// An engine on `executable`, which was loaded with the cache layout of `config`.
    pub fn new(executable: Box<dyn Executable>, config: EngineConfig) -> Result<Self, EngineError> {
        config.check()?;
        Ok(Self {
            executable,
            kv: KvCache::new(&config.kv, config.prefix_cache),
            scheduler: Scheduler::new(config),
            batch: Batch::default(),
            sampler: Sampler::default(),
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
        self.scheduler.submit(request)
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
        outputs.clear();
        let Self { executable, scheduler, kv, batch, sampler } = self;
        scheduler.schedule(kv, batch);
        if batch.is_empty() {
            return;
        }
        let input = batch.step_input(scheduler.running(), kv);
        let expected = input.output_rows.len() * scheduler.config().vocab_size;
        match executable.replay(input) {
            Ok(logits) if logits.len() == expected => scheduler.commit(batch, logits, sampler, kv, outputs),
            Ok(logits) => {
                let reason = format!("the device returned {} logits instead of {expected}", logits.len());
                scheduler.fail(batch, &reason, kv, outputs);
            }
            Err(error) => {
                tracing::warn!(%error, sequences = batch.items.len(), "a step failed");
                scheduler.fail(batch, &error.to_string(), kv, outputs);
            }
        }
    }

    /// Ends a request and frees its blocks now. Returns the last output of each completion that had not ended; none if
    /// there is no such request any more.
    pub fn cancel(&mut self, request: RequestId) -> Vec<Output> {
        self.scheduler.cancel(|sequence| sequence.place.request == request, &mut self.kv)
    }

    /// As [`Engine::cancel`], for one completion: its text has reached a stop string, for example. One that has no
    /// token yet ends together with its siblings, by [`Engine::cancel`] only.
    pub fn cancel_completion(&mut self, request: RequestId, completion: usize) -> Option<Output> {
        let is_it = |place: crate::sequence::Place| place.request == request && place.completion == completion;
        let ends = |sequence: &crate::sequence::Sequence| is_it(sequence.place) && sequence.width() == 1;
        self.scheduler.cancel(ends, &mut self.kv).pop()
    }

    /// Whether any request has not ended.
    pub fn has_work(&self) -> bool {
        !self.scheduler.running().is_empty() || !self.scheduler.waiting().is_empty()
    }

    /// The configuration that the engine was made with.
    pub fn config(&self) -> &EngineConfig {
        self.scheduler.config()
    }

    /// What the engine is doing.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            num_steps: self.scheduler.num_steps(),
            num_preemptions: self.scheduler.num_preemptions(),
            num_running: self.scheduler.running().len(),
            num_waiting: self.scheduler.waiting().len(),
            num_blocks: self.kv.num_blocks(),
            num_free_blocks: self.kv.num_free(),
            num_cached_blocks: self.kv.num_cached(),
        }
    }

    /// Checks everything that must hold between two steps: each block owned as often as it is counted, lists and index
    /// whole, waiting sequences without blocks, limits kept. For tests: takes time in proportion to the pool.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.scheduler.check(&self.kv)
    }
}
