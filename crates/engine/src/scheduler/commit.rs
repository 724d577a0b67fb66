//! Takes the result of a step in: chooses tokens, ends sequences, branches completions off, frees blocks.

use std::time::Instant;

use backend::{Choice, Logits, num_peaks};

use super::Scheduler;
use super::order::insert_in_order;
use crate::batch::{Batch, Scheduled};
use crate::config::EngineConfig;
use crate::kv_cache::KvCache;
use crate::request::{Failure, FinishReason, Output};
use crate::sampler::{History, LogitsRow, Sampler, TokenLogprobs, TokenSet, take_choice};
use crate::sequence::Sequence;

/// What a step computed for each of its output rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepResult<'a> {
    /// Logits, (outputs, vocab_size): the sampler chooses.
    Logits(Logits<'a>),
    /// Hidden states, (outputs, hidden_size), and the hidden_size.
    States(&'a [f32], usize),
    /// The tokens that the device has chosen.
    Choices(&'a [Choice]),
}

/// A step's result, with all that is needed to take it in.
struct Commit<'a> {
    result: StepResult<'a>,
    /// Until when grammars are waited for that do not know yet what they allow; `None`: as long as it takes.
    until: Option<Instant>,
    config: &'a EngineConfig,
    /// The tokens that the grammar of the current sequence allows.
    allowed: &'a mut TokenSet,
    sampler: &'a mut Sampler,
    kv: &'a mut KvCache,
    outputs: &'a mut Vec<Output>,
}

impl Scheduler {
    /// Takes the step's result in. Waits until `until` for grammars that do not know yet what they allow.
    pub(crate) fn commit(
        &mut self,
        batch: &Batch,
        result: StepResult<'_>,
        until: Option<Instant>,
        sampler: &mut Sampler,
        kv: &mut KvCache,
        outputs: &mut Vec<Output>,
    ) {
        let Self { config, allowed, running, forked, .. } = self;
        let mut commit = Commit { result, until, config, allowed, sampler, kv, outputs };
        let mut row = 0;
        for item in &batch.items {
            if let Some(index) = item.index {
                commit.take_in(&mut running[index], item, row, forked);
            }
            row += item.num_outputs();
        }
        for fork in forked.drain(..) {
            insert_in_order(running, fork);
        }
        self.sweep(kv);
    }

    /// Ends the sequences of a step that failed, because nobody knows what the step wrote to their blocks.
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

    /// Removes the finished sequences, and frees their blocks.
    fn sweep(&mut self, kv: &mut KvCache) {
        self.running.retain_mut(|sequence| {
            if sequence.finished {
                kv.free(&mut sequence.table, sequence.request.cache_domain);
            }
            !sequence.finished
        });
    }
}

impl Commit<'_> {
    /// Takes in the rows of `item`, which is of `sequence`; `row` is the first of them. Adds the completions that branch off
    /// to `forks`.
    fn take_in(&mut self, sequence: &mut Sequence, item: &Scheduled, row: usize, forks: &mut Vec<Sequence>) {
        if let StepResult::States(states, width) = self.result {
            return self.pool(sequence, item, &states[row * width..][..item.num_outputs() * width], width);
        }
        let scored = self.score(sequence, item, row);
        sequence.num_computed += item.num_tokens;
        let scored = scored.and_then(|scored| Ok((scored, self.knows_allowed(sequence, item)?)));
        match scored {
            Ok((scored, true)) if item.wants_token => {
                self.append_tokens(sequence, row + item.num_scored, scored, forks);
            }
            Ok((scored, is_known)) => {
                if !is_known {
                    // The last token is computed again, once the grammar knows.
                    sequence.num_computed -= 1;
                    sequence.is_late = true;
                }
                let prompt_read = sequence.prompt_read();
                if !scored.is_empty() || prompt_read.is_some() {
                    let output = sequence.output(None, None);
                    self.outputs.push(Output { prompt_logprobs: scored, prompt_read, ..output });
                }
            }
            Err(failure) => self.end(sequence, failure),
        }
    }

    /// The log-probabilities of the prompt's tokens that follow on the rows of `item`, the first of which is `row`.
    fn score(&mut self, sequence: &mut Sequence, item: &Scheduled, row: usize) -> Result<Vec<TokenLogprobs>, Failure> {
        let StepResult::Logits(logits) = self.result else { return Ok(Vec::new()) };
        if item.num_scored == 0 {
            return Ok(Vec::new());
        }
        let count = sequence.request.prompt_logprobs.unwrap_or_default();
        let positions = sequence.rows_to_score(item.num_tokens);
        sequence.num_scored = positions.end;
        positions
            .zip(row..row + item.num_scored)
            .map(|(position, row)| {
                let history = History { tokens: &sequence.tokens[..=position], ..sequence.history() };
                let row = row_of(logits, row, self.config.vocab_size);
                self.sampler.score(row, sequence.tokens[position + 1], count, history)
            })
            .collect()
    }

    /// Fills `allowed`, where the sequence is to get a token and has a grammar. Returns whether the grammar knew.
    fn knows_allowed(&mut self, sequence: &mut Sequence, item: &Scheduled) -> Result<bool, Failure> {
        let Some(grammar) = sequence.grammar.as_mut().filter(|_| item.wants_token) else { return Ok(true) };
        self.allowed.clear(self.config.vocab_size);
        grammar.allow(self.allowed, self.until).map_err(Failure::Grammar)
    }

    /// Chooses a token from `row` for the sequence and for each completion that branches off from it here. `scored` goes out
    /// with the first of them.
    fn append_tokens(
        &mut self,
        sequence: &mut Sequence,
        row: usize,
        mut scored: Vec<TokenLogprobs>,
        forks: &mut Vec<Sequence>,
    ) {
        let completions = sequence.order.completion..sequence.order.completion + sequence.width();
        sequence.num_forks = 0;
        for completion in completions.rev() {
            let is_fork = completion != sequence.order.completion;
            let history = sequence.history();
            let sampling = &sequence.request.sampling;
            let sampled = match self.result {
                StepResult::Choices(choices) => take_choice(&choices[row], history),
                StepResult::States(..) => continue,
                StepResult::Logits(logits) => {
                    let row = row_of(logits, row, self.config.vocab_size);
                    // All completions begin at the grammar's beginning, so they may go on with the same tokens.
                    if sequence.request.grammar.is_some() {
                        self.sampler.sample_within(self.allowed, row, sampling, history, completion)
                    } else {
                        self.sampler.sample(row, sampling, history, completion)
                    }
                }
            };
            if sampled.is_ok() {
                // The logits were finite, so what they were computed from is fit to be used again.
                self.kv.publish(&mut sequence.table, &sequence.tokens[..sequence.num_computed]);
            }
            let mut fork = is_fork.then(|| sequence.fork(completion, self.kv.fork(&sequence.table)));
            let target = fork.as_mut().unwrap_or(sequence);
            target.is_late = false;
            let (token, finish) = match sampled {
                // The prompt was all that was asked about.
                Ok(_) if target.request.max_tokens == Some(0) => (None, Some(FinishReason::Length)),
                Ok(token) => {
                    target.mirostat_bound = token.mirostat_bound;
                    let finish = target.append(token.id, self.config);
                    if let Some(grammar) = target.grammar.as_mut().filter(|_| finish.is_none()) {
                        grammar.accept(token.id);
                    }
                    (Some(token), finish)
                }
                Err(failure) => (None, Some(FinishReason::Error(failure))),
            };
            if matches!(finish, Some(FinishReason::Error(Failure::Numeric { .. }))) {
                self.kv.discard(&mut target.table, target.request.cache_domain);
            }
            target.finished = finish.is_some();
            let prompt_logprobs = std::mem::take(&mut scored);
            self.outputs.push(Output { prompt_logprobs, ..target.output(token, finish) });
            forks.extend(fork);
        }
    }

    /// Takes in hidden states, (rows, `width`), of the tokens of `item`. With the last of them the embedding is whole.
    fn pool(&mut self, sequence: &mut Sequence, item: &Scheduled, rows: &[f32], width: usize) {
        let first = sequence.num_computed + item.num_tokens - item.num_outputs();
        let pooled = sequence.pooled.add(rows, width, first);
        sequence.num_computed += item.num_tokens;
        if let Err(failure) = pooled {
            self.end(sequence, failure);
        } else if item.wants_token {
            self.kv.publish(&mut sequence.table, &sequence.tokens[..sequence.num_computed]);
            sequence.finished = true;
            let embedding = Some(sequence.pooled.mean());
            self.outputs.push(Output { embedding, ..sequence.output(None, Some(FinishReason::Length)) });
        }
    }

    /// Ends a sequence whose values are faulty, or whose grammar failed. Its blocks are used for nothing else again.
    fn end(&mut self, sequence: &mut Sequence, failure: Failure) {
        sequence.finished = true;
        self.kv.discard(&mut sequence.table, sequence.request.cache_domain);
        sequence.end(&FinishReason::Error(failure), self.outputs);
    }
}

/// An output row of the step's logits.
fn row_of(logits: Logits<'_>, row: usize, vocab_size: usize) -> LogitsRow<'_> {
    let width = num_peaks(vocab_size);
    LogitsRow {
        logits: &logits.values[row * vocab_size..][..vocab_size],
        peaks: logits.peaks.map(|peaks| &peaks[row * width..][..width]),
    }
}
