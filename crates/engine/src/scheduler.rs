//! Which sequences compute which tokens in a step: continuous batching, chunked prefill, preemption by recompute.
//!
//! Sequences are served in the order of their [`Place`]: by priority and arrival, or the turn of whoever asks, a blend that
//! ages. In a step,
//!
//! 1. every running sequence in decode gets a place to write its token. If no block is free, the running sequence that
//!    stands last loses its own and goes back to the queue: its tokens will be computed again, from the prefix cache as
//!    far as they are still there;
//! 2. waiting sequences start, in order and without overtaking, while there is room: a place among the running, blocks
//!    for all their tokens, and tokens left in the budget;
//! 3. the budget is given out: one token to each decode, the rest to prefills, in order, in chunks. Where decodes wait for
//!    the step's end, a bound of its own keeps prefills from making it long.
//!
//! A step gives logits or, for embeddings, hidden states; where both are wanted, steps take turns.
//!
//! The sequence that stands first is never preempted and in the batch at its kind's next turn, and it fits the pool alone
//! (a request that does not is refused). So every step brings some sequence nearer to its end,
//! and every second one the first.

use std::collections::HashMap;

use backend::{Choice, Logits, num_peaks};

use crate::batch::{Batch, Scheduled};
use crate::config::EngineConfig;
use crate::error::EngineError;
use crate::kv_cache::{KvCache, NoFreeBlock};
use crate::request::{Failure, FinishReason, Output, Request, RequestId};
use crate::sampler::{History, LogitsRow, Sampler, TokenLogprobs, take_choice};
use crate::sequence::{Place, Sequence};

/// What a step made for each of its output rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Made<'a> {
    /// The sampler chooses.
    Logits(Logits<'a>),
    /// (outputs, hidden_size), and the hidden_size.
    States(&'a [f32], usize),
    /// The device has chosen.
    Choices(&'a [Choice]),
}

/// The sequences, running and waiting. Plain data: no device, no clock but the count of steps.
#[derive(Debug)]
pub(crate) struct Scheduler {
    config: EngineConfig,
    /// In the order of their places, as are those that wait.
    running: Vec<Sequence>,
    waiting: Vec<Sequence>,
    /// Completions that branched off in this step.
    forked: Vec<Sequence>,
    num_steps: u64,
    num_requests: u64,
    num_preemptions: u64,
    num_ahead: u64,
    /// Requests that began in the step that was scheduled last.
    started: Vec<RequestId>,
    /// Tokens that were looked for in the prefix cache when their requests began, and those that were there.
    prefix: (u64, u64),
    /// Whether the last step gave hidden states.
    gave_states: bool,
    turns: Turns,
}

/// Turns of callers that share an engine (start-time fair queueing): a turn is `aging_steps` long, as a level of priority.
#[derive(Debug, Default)]
struct Turns {
    /// When a caller's next turn begins.
    next: HashMap<u64, i64>,
    /// The latest turn that was taken: who has waited for nothing until now begins here.
    now: i64,
}

impl Turns {
    /// When the next turn of `caller` begins. It is over `len` later.
    fn next(&mut self, caller: u64, len: i64) -> i64 {
        let next = self.next.entry(caller).or_default();
        let turn = self.now.max(*next);
        *next = turn.saturating_add(len);
        turn
    }
}

impl Scheduler {
    pub(crate) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            running: Vec::new(),
            waiting: Vec::new(),
            forked: Vec::new(),
            num_steps: 0,
            num_requests: 0,
            num_preemptions: 0,
            num_ahead: 0,
            started: Vec::new(),
            prefix: (0, 0),
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

    pub(crate) fn waiting(&self) -> &[Sequence] {
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
        let place = Place { rank: turn.unwrap_or(self.num_steps as i64) - ahead, request: id, completion: 0 };
        insert_in_order(&mut self.waiting, Sequence::new(place, request));
        Ok(id)
    }

    /// Fills `batch` with the next step and reserves its blocks.
    pub(crate) fn schedule(&mut self, kv: &mut KvCache, batch: &mut Batch) {
        batch.clear();
        self.started.clear();
        self.num_steps += 1;
        let preempted = self.reserve_for_decodes(kv, batch);
        // Who was just preempted would only take back what was won.
        if !preempted {
            self.start_waiting(kv);
        }
        let (embeds, writes) = self
            .running
            .iter()
            .map(Sequence::is_embedding)
            .fold((false, false), |found, embeds| (found.0 | embeds, found.1 | !embeds));
        batch.hidden = embeds && !(writes && self.gave_states);
        self.gave_states = batch.hidden;
        self.share_out_budget(batch);
    }

    /// A block for each running decode to write in; preempts from the end of the order. Returns whether it did.
    fn reserve_for_decodes(&mut self, kv: &mut KvCache, batch: &mut Batch) -> bool {
        let mut preempted = false;
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            if !sequence.is_decode() {
                index += 1;
                continue;
            }
            match kv.make_writable(&mut sequence.table, sequence.num_computed) {
                Ok(copy) => {
                    batch.copies.extend(copy);
                    index += 1;
                }
                Err(NoFreeBlock) => {
                    self.preempt_last(kv); // perhaps this very one
                    preempted = true;
                }
            }
        }
        preempted
    }

    fn preempt_last(&mut self, kv: &mut KvCache) {
        let mut sequence = self.running.pop().expect("a running sequence asks for the block");
        kv.free(&mut sequence.table, sequence.request.cache_domain);
        sequence.num_computed = 0;
        sequence.pooled.clear();
        self.num_preemptions += 1;
        tracing::debug!(request = %sequence.place.request, tokens = sequence.tokens.len(), "preempted");
        insert_in_order(&mut self.waiting, sequence);
    }

    fn start_waiting(&mut self, kv: &mut KvCache) {
        let mut width: usize = self.running.iter().map(Sequence::width).sum();
        while let Some(next) = self.waiting.first_mut() {
            width += next.width();
            if width > self.config.max_sequences || !tokens_left_for(next, &self.running, &self.config) {
                break;
            }
            // A spare block for each that runs: without it, its next one would preempt who just started.
            let spare = self.running.len();
            // What is found in the cache has no logits, and no states.
            let from_cache = !next.needs_all_rows();
            let admitted = kv.admit(next.request.cache_domain, &next.tokens, spare, from_cache);
            let Ok((table, cached)) = admitted else { break };
            next.table = table;
            next.num_computed = cached;
            // Who was preempted looks for its own tokens.
            if next.cached_tokens.is_none() {
                next.cached_tokens = Some(cached);
                self.started.push(next.place.request);
                if from_cache && self.config.prefix_cache {
                    self.prefix.0 += next.tokens.len() as u64;
                    self.prefix.1 += cached as u64;
                }
            }
            if next.request.caller.is_some() {
                self.turns.now = self.turns.now.max(next.place.rank);
            }
            let next = self.waiting.remove(0);
            insert_in_order(&mut self.running, next);
        }
    }

    fn share_out_budget(&self, batch: &mut Batch) {
        let mut budget = self.config.max_batch_tokens;
        // Each that runs may want a row of its own.
        let mut scored_budget = self.config.max_batch_outputs - self.running.len();
        for decode in [true, false] {
            if !decode && !batch.is_empty() {
                budget = budget.min(self.config.max_mixed_tokens);
            }
            for (index, sequence) in self.running.iter().enumerate() {
                let is_of_step = sequence.is_embedding() == batch.hidden;
                if !is_of_step || sequence.is_decode() != decode || budget == 0 {
                    continue;
                }
                let mut num_tokens = sequence.num_pending().min(budget);
                // A row of states is as wide as any other of the step's; rows of logits are what is bounded.
                let scored_budget_left = if batch.hidden { usize::MAX } else { scored_budget };
                let too_many = sequence.rows_to_score(num_tokens).len().saturating_sub(scored_budget_left);
                // Behind the last row that is scored there is at most one, the prompt's last.
                if too_many > 0 {
                    num_tokens = sequence.rows_to_score(num_tokens).end - too_many - sequence.num_computed;
                }
                if num_tokens == 0 {
                    continue;
                }
                let num_scored = sequence.rows_to_score(num_tokens).len();
                if !batch.hidden {
                    scored_budget -= num_scored;
                }
                budget -= num_tokens;
                let wants_token = num_tokens == sequence.num_pending();
                let place = sequence.place;
                let index = Some(index);
                batch.items.push(Scheduled { place, index, fed: None, num_tokens, num_scored, wants_token });
            }
        }
    }

    /// Whether a device can choose every token of `batch`, and nothing else is wanted of it.
    pub(crate) fn is_for_device(&self, batch: &Batch) -> bool {
        let mut indices = batch.items.iter().filter(|item| item.num_outputs() > 0).filter_map(|item| item.index);
        indices.all(|index| self.is_chosen_by_device(&self.running[index]))
    }

    /// Whether a device can choose every token of the next step, whichever sequences that is of.
    pub(crate) fn is_all_for_device(&self) -> bool {
        let mut all = self.running.iter().chain(&self.waiting);
        all.all(|sequence| !sequence.is_embedding() && self.is_chosen_by_device(sequence))
    }

    fn is_chosen_by_device(&self, sequence: &Sequence) -> bool {
        let sampling = &sequence.request.sampling;
        // Completions that branch off here are drawn apart, from the same row.
        let is_drawn_once = sequence.width() == 1 || sampling.is_likeliest();
        let is_for_device =
            if self.config.draws_on_device { sampling.is_for_device() } else { sampling.is_likeliest() };
        is_for_device && is_drawn_once && sequence.grammar.is_none() && !sequence.is_scored()
    }

    /// Finds the sequences of a step that is under way again, some of which may have ended. Whether any is left.
    pub(crate) fn find_again(&self, batch: &mut Batch) -> bool {
        for item in &mut batch.items {
            item.index = self.running.binary_search_by(|sequence| sequence.place.cmp(&item.place)).ok();
        }
        batch.items.iter().any(|item| item.index.is_some())
    }

    /// Fills `next` with the step after `batch`, which is under way, for the tokens that it will make, and reserves its
    /// blocks. Returns whether there is one: not where anything else would have to be decided first, such as who starts,
    /// who gives up blocks, or what a prompt that is not computed yet goes on with.
    pub(crate) fn follow(&mut self, batch: &Batch, kv: &mut KvCache, next: &mut Batch) -> bool {
        next.clear();
        let width: usize = self.running.iter().map(Sequence::width).sum();
        let starts = self.waiting.first().is_some_and(|next| width + next.width() <= self.config.max_sequences);
        let all_run = batch.items.iter().filter(|item| item.index.is_some()).count() == self.running.len();
        if starts || !all_run || width != self.running.len() || batch.items.iter().any(|item| !item.wants_token) {
            return false;
        }
        for (output, item) in (0..).zip(&batch.items) {
            let Some(index) = item.index else { continue };
            let sequence = &mut self.running[index];
            if sequence.ends_with_next(&self.config) {
                continue;
            }
            if !kv.extend(&mut sequence.table, sequence.tokens.len()) {
                return false;
            }
            let scheduled = Scheduled { fed: Some(output), num_tokens: 1, num_scored: 0, wants_token: true, ..*item };
            next.items.push(scheduled);
        }
        let any = !next.is_empty();
        self.num_steps += u64::from(any);
        self.num_ahead += u64::from(any);
        any
    }

    /// Takes the step's result in. Chooses tokens, finishes, branches, frees.
    pub(crate) fn commit(
        &mut self,
        batch: &Batch,
        made: Made<'_>,
        sampler: &mut Sampler,
        kv: &mut KvCache,
        outputs: &mut Vec<Output>,
    ) {
        let vocab_size = self.config.vocab_size;
        let mut num_outputs = 0;
        for item in &batch.items {
            let first_output = num_outputs;
            let output = first_output + item.num_scored;
            num_outputs += item.num_outputs();
            let Some(index) = item.index else { continue };
            let sequence = &mut self.running[index];
            if let Made::States(states, width) = made {
                let rows = &states[first_output * width..num_outputs * width];
                pool(sequence, item, rows, width, kv, outputs);
                continue;
            }
            let scored = match made {
                Made::Logits(logits) if item.num_scored > 0 => {
                    let rows = (first_output..output).map(|output| row_of(logits, output, vocab_size));
                    score(sequence, rows, item.num_tokens, sampler)
                }
                _ => Ok(Vec::new()),
            };
            sequence.num_computed += item.num_tokens;
            let mut scored = match scored {
                Ok(scored) => scored,
                Err(failure) => {
                    sequence.finished = true;
                    kv.discard(&mut sequence.table, sequence.request.cache_domain);
                    sequence.end(&FinishReason::Error(failure), outputs);
                    continue;
                }
            };
            if !item.wants_token {
                if !scored.is_empty() {
                    outputs.push(Output { prompt_logprobs: scored, ..sequence.output(None, None) });
                }
                continue;
            }
            let completions = sequence.place.completion..sequence.place.completion + sequence.width();
            sequence.num_forks = 0;
            for completion in completions.rev() {
                let is_fork = completion != sequence.place.completion;
                let mut grammar = if is_fork { sequence.start_grammar() } else { sequence.grammar.take() };
                let history = sequence.history();
                let sampled = match made {
                    Made::Choices(choices) => take_choice(&choices[output], history),
                    Made::States(..) => continue,
                    Made::Logits(logits) => {
                        let row = row_of(logits, output, vocab_size);
                        let sampling = &sequence.request.sampling;
                        match &mut grammar {
                            Some(grammar) => sampler.sample_within(&mut **grammar, row, sampling, history, completion),
                            None => sampler.sample(row, sampling, history, completion),
                        }
                    }
                };
                if sampled.is_ok() {
                    // Finite logits: what they were computed from is fit to be used again.
                    kv.publish(&mut sequence.table, &sequence.tokens[..sequence.num_computed]);
                }
                let mut fork = is_fork.then(|| sequence.fork(completion, kv.fork(&sequence.table)));
                let target = fork.as_mut().unwrap_or(sequence);
                target.grammar = grammar;
                let (token, finish) = match sampled {
                    // The prompt was all that was asked about.
                    Ok(_) if target.request.max_tokens == Some(0) => (None, Some(FinishReason::Length)),
                    Ok(token) => {
                        let finish = target.append(token.id, &self.config);
                        (Some(token), finish)
                    }
                    Err(failure) => (None, Some(FinishReason::Error(failure))),
                };
                if matches!(finish, Some(FinishReason::Error(Failure::Numeric { .. }))) {
                    kv.discard(&mut target.table, target.request.cache_domain);
                }
                target.finished = finish.is_some();
                let prompt_logprobs = std::mem::take(&mut scored);
                outputs.push(Output { prompt_logprobs, ..target.output(token, finish) });
                self.forked.extend(fork);
            }
        }
        for fork in self.forked.drain(..) {
            insert_in_order(&mut self.running, fork);
        }
        self.sweep(kv);
    }

    /// Ends the sequences of a step that failed: what it wrote of them is unknown.
    pub(crate) fn fail(&mut self, batch: &Batch, reason: &str, kv: &mut KvCache, outputs: &mut Vec<Output>) {
        for index in batch.items.iter().filter_map(|item| item.index) {
            let sequence = &mut self.running[index];
            sequence.finished = true;
            sequence.end(&FinishReason::Error(Failure::Backend(reason.to_owned())), outputs);
        }
        self.sweep(kv);
    }

    /// Ends the sequences that `ends` picks, running and waiting.
    pub(crate) fn cancel(&mut self, ends: impl Fn(&Sequence) -> bool, kv: &mut KvCache) -> Vec<Output> {
        let mut outputs = Vec::new();
        for sequence in self.running.iter_mut().chain(&mut self.waiting).filter(|sequence| ends(sequence)) {
            sequence.finished = true;
            sequence.end(&FinishReason::Cancelled, &mut outputs);
        }
        self.sweep(kv);
        self.waiting.retain(|sequence| !sequence.finished);
        outputs
    }

    /// Removes the finished, and frees their blocks.
    fn sweep(&mut self, kv: &mut KvCache) {
        self.running.retain_mut(|sequence| {
            if sequence.finished {
                kv.free(&mut sequence.table, sequence.request.cache_domain);
            }
            !sequence.finished
        });
    }

    /// Whether all that must hold between two steps does.
    pub(crate) fn check(&self, kv: &KvCache) -> Result<(), String> {
        kv.check(self.running.iter().map(|sequence| &sequence.table))?;
        for (name, sequences) in [("running", &self.running), ("waiting", &self.waiting)] {
            if !sequences.is_sorted_by(|a, b| a.place < b.place) {
                return Err(format!("{name} sequences are out of order"));
            }
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
                return Err(format!("{:?} holds {held} blocks, needs {needed} to {most}", sequence.place));
            }
        }
        for sequence in &self.waiting {
            if !sequence.table.blocks().is_empty() || sequence.num_computed != 0 {
                return Err(format!("{:?} waits and holds blocks", sequence.place));
            }
        }
        Ok(())
    }
}

/// Whether the step's budget reaches `next`, after the decodes and the prefills that stand before it.
fn tokens_left_for(next: &Sequence, running: &[Sequence], config: &EngineConfig) -> bool {
    let before: usize = running
        .iter()
        .filter(|sequence| sequence.is_decode() || sequence.place < next.place)
        .map(Sequence::num_pending)
        .sum();
    before < config.max_batch_tokens
}

/// Takes in the states, (rows, `width`), of the tokens of `item`; with the last of them, the embedding is whole.
fn pool(
    sequence: &mut Sequence,
    item: &Scheduled,
    rows: &[f32],
    width: usize,
    kv: &mut KvCache,
    outputs: &mut Vec<Output>,
) {
    let first = sequence.num_computed + item.num_tokens - item.num_outputs();
    let pooled = sequence.pooled.add(rows, width, first);
    sequence.num_computed += item.num_tokens;
    if let Err(failure) = pooled {
        sequence.finished = true;
        kv.discard(&mut sequence.table, sequence.request.cache_domain);
        sequence.end(&FinishReason::Error(failure), outputs);
    } else if item.wants_token {
        kv.publish(&mut sequence.table, &sequence.tokens[..sequence.num_computed]);
        sequence.finished = true;
        let embedding = Some(sequence.pooled.mean());
        outputs.push(Output { embedding, ..sequence.output(None, Some(FinishReason::Length)) });
    }
}

/// The row of an output.
fn row_of(logits: Logits<'_>, output: usize, vocab_size: usize) -> LogitsRow<'_> {
    let width = num_peaks(vocab_size);
    LogitsRow {
        logits: &logits.values[output * vocab_size..][..vocab_size],
        peaks: logits.peaks.map(|peaks| &peaks[output * width..][..width]),
    }
}

/// The log-probabilities of the prompt's tokens that follow on `rows`, of a step over `num_tokens` of them.
fn score<'a>(
    sequence: &mut Sequence,
    rows: impl Iterator<Item = LogitsRow<'a>>,
    num_tokens: usize,
    sampler: &mut Sampler,
) -> Result<Vec<TokenLogprobs>, Failure> {
    let count = sequence.request.prompt_logprobs.unwrap_or_default();
    let positions = sequence.rows_to_score(num_tokens);
    sequence.num_scored = positions.end;
    positions
        .zip(rows)
        .map(|(position, row)| {
            let history = History { tokens: &sequence.tokens[..=position], prompt_len: sequence.prompt_len };
            sampler.score(row, sequence.tokens[position + 1], count, history)
        })
        .collect()
}

fn insert_in_order(sequences: &mut Vec<Sequence>, sequence: Sequence) {
    let index = sequences.partition_point(|other| other.place < sequence.place);
    sequences.insert(index, sequence);
}
