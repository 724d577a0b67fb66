//! Chooses which sequences compute which tokens in a step: continuous batching, chunked prefill, preemption by
//! recompute.
//!
//! [`ServiceOrder`] says which sequence comes first: by priority and arrival, or by the caller's turn. A step does
//! three things:
//!
//! 1. Each running sequence in decode gets room in a block for its next token. If no block is free, the running
//!    sequence that stands last loses its blocks and goes back to the queue. Its tokens are computed again later,
//!    except those that the prefix cache still holds.
//! 2. Waiting sequences start, in order and without overtaking, as long as there are sequences left in `max_sequences`,
//!    free blocks for all their tokens, and tokens left in the budget of the step.
//! 3. The budget is shared out: one token to each decode, the rest to prefills, in order and in chunks. Where prefills
//!    share the step with decodes, `max_mixed_tokens` bounds them, because the decodes wait for the end of the step.
//!    With a `step_target`, [`StepTimes`] says how many tokens of prompts keep the step to that time, as steps were
//!    measured.
//!
//! A step computes logits or, for embeddings, hidden states. Where both are wanted, steps take turns.
//!
//! A grammar may find out which tokens it allows while the device computes. Where the logits are there first, the
//! sequence gives its row up and sits out until the grammar knows, so that other sequences wait for it once, and for a
//! bounded time.
//!
//! The sequence that stands first is never preempted. It fits into the pool alone, because a request that does not fit
//! is refused. It is part of the next step of its kind, unless its grammar is late. So every step brings some sequence
//! nearer to its end, and every second step the first one.

mod ahead;
mod commit;
mod order;
mod schedule;
mod step_times;

use std::collections::VecDeque;
use std::time::Duration;

use crate::batch::Batch;
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::kv_cache::{BlockTable, KvCache};
use crate::request::{Request, RequestId};
use crate::sampler::{GrammarState, TokenSet};
use crate::sequence::Sequence;

pub(crate) use commit::StepResult;
pub(crate) use order::ServiceOrder;
use order::Turns;
use step_times::StepTimes;

/// The running and the waiting sequences. Plain data: it knows no device, and no clock but the count of steps.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    /// Both lists are sorted by [`ServiceOrder`].
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    /// Completions that branched off in the step that is being taken in.
    forked: Vec<Sequence>,
    num_steps: u64,
    num_requests: u64,
    num_preemptions: u64,
    num_ahead: u64,
    /// Requests that began in the step that was scheduled last.
    started: Vec<RequestId>,
    /// Prompt tokens that were looked up in the prefix cache when their request began, and how many of them it held.
    prefix: (u64, u64),
    /// The tokens that the grammar of the current sequence allows; memory that is used again.
    allowed: TokenSet,
    /// Whether the last step gave hidden states.
    gave_states: bool,
    turns: Turns,
    times: StepTimes,
}

impl Scheduler {
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            times: StepTimes::new(config.min_mixed_tokens),
            config,
            running: Vec::new(),
            waiting: VecDeque::new(),
            forked: Vec::new(),
            num_steps: 0,
            num_requests: 0,
            num_preemptions: 0,
            num_ahead: 0,
            started: Vec::new(),
            prefix: (0, 0),
            allowed: TokenSet::default(),
            gave_states: false,
            turns: Turns::default(),
        }
    }

    pub(crate) fn config(&self) -> &EngineConfig {
        &self.config
    }

    pub(crate) fn running(&self) -> &[Sequence] {
        &self.running
    }

    pub(crate) fn waiting(&self) -> &VecDeque<Sequence> {
        &self.waiting
    }

    pub(crate) fn num_steps(&self) -> u64 {
        self.num_steps
    }

    pub(crate) fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }

    pub(crate) fn num_ahead(&self) -> u64 {
        self.num_ahead
    }

    /// Requests that began in the step that was scheduled last.
    pub(crate) fn started(&self) -> &[RequestId] {
        &self.started
    }

    /// Tokens that were looked for in the prefix cache when their requests began, and those that were there.
    pub(crate) fn prefix(&self) -> (u64, u64) {
        self.prefix
    }

    /// Notes how long the step of `batch` took.
    pub(crate) fn note_time(&mut self, batch: &Batch, time: Duration) {
        let (texts, prompt_tokens) = batch.num_texts_and_prompt_tokens();
        self.times.add(texts, prompt_tokens, time);
    }

    /// A grammar that a sequence sits out for.
    pub(crate) fn late_grammar(&self) -> Option<&dyn GrammarState> {
        self.running.iter().find_map(Sequence::late_grammar)
    }

    /// Takes a request into the queue.
    pub(crate) fn submit(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(&self.config)?;
        // Each caller has a queue of its own: whoever fills it keeps nobody else out. The preempted count too: under
        // pressure, fewer new ones are taken, and the queue stays bounded.
        let own = || self.waiting.iter().filter(|sequence| sequence.request.caller == request.caller);
        let sequences = own().map(Sequence::width).sum::<usize>() + request.num_completions;
        let tokens = own().map(|sequence| sequence.tokens.len()).sum::<usize>() + request.prompt.len();
        for (waiting, limit, unit) in
            [(sequences, self.config.max_waiting, "sequences"), (tokens, self.config.max_waiting_tokens, "tokens")]
        {
            if waiting > limit {
                return Err(EngineError::QueueFull { waiting, limit, unit });
            }
        }
        let id = RequestId(self.num_requests);
        self.num_requests += 1;
        let ahead = i64::from(request.priority) * i64::from(self.config.aging_steps);
        let turn_len = i64::from(self.config.aging_steps) * request.num_completions as i64;
        let turn = request.caller.map(|caller| self.turns.next(caller, turn_len));
        let order = ServiceOrder { rank: turn.unwrap_or(self.num_steps as i64) - ahead, request: id, completion: 0 };
        self.enqueue(Sequence::new(order, request));
        Ok(id)
    }

    /// Puts a sequence into the queue, in its place.
    fn enqueue(&mut self, sequence: Sequence) {
        let index = self.waiting.partition_point(|other| other.order < sequence.order);
        self.waiting.insert(index, sequence);
    }

    /// Whether all that must hold between two steps does; `held` are the tables that are no sequence's.
    pub(crate) fn check<'a>(&'a self, kv: &KvCache, held: impl Iterator<Item = &'a BlockTable>) -> Result<(), String> {
        kv.check(self.running.iter().map(|sequence| &sequence.table).chain(held))?;
        let is_running_sorted = self.running.is_sorted_by(|a, b| a.order < b.order);
        if !is_running_sorted || !self.waiting.iter().is_sorted_by(|a, b| a.order < b.order) {
            return Err("sequences are out of order".to_owned());
        }
        let width: usize = self.running.iter().map(Sequence::width).sum();
        if width > self.config.max_sequences {
            return Err(format!("{width} sequences run, of at most {}", self.config.max_sequences));
        }
        for sequence in &self.running {
            let held = sequence.table.blocks().len();
            let needed = kv.blocks_for(sequence.num_computed);
            let most = kv.blocks_for(sequence.tokens.len());
            if sequence.num_pending() == 0 || sequence.finished || held < needed || held > most {
                return Err(format!("{:?} holds {held} blocks, needs {needed} to {most}", sequence.order));
            }
        }
        for sequence in &self.waiting {
            if !sequence.table.blocks().is_empty() || sequence.num_computed != 0 {
                return Err(format!("{:?} waits and holds blocks", sequence.order));
            }
        }
        Ok(())
    }
}
