//! Chooses the sequences and tokens of the next step.

use super::Scheduler;
use super::order::insert_in_order;
use crate::batch::{Batch, Scheduled};
use crate::config::EngineConfig;
use crate::kv_cache::{KvCache, NoFreeBlock};
use crate::sequence::Sequence;

impl Scheduler {
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
            .filter(|sequence| sequence.late_grammar().is_none())
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
            let position = sequence.next_position();
            match kv.make_writable(&mut sequence.table, position) {
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
        tracing::debug!(request = %sequence.order.request, tokens = sequence.tokens.len(), "preempted");
        self.enqueue(sequence);
    }

    /// Starts waiting sequences, in their order, as long as there is room for the first of them.
    pub(super) fn start_waiting(&mut self, kv: &mut KvCache) {
        let mut width: usize = self.running.iter().map(Sequence::width).sum();
        while let Some(next) = self.waiting.front_mut() {
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
                self.started.push(next.order.request);
                if from_cache && self.config.prefix_cache {
                    self.prefix.0 += next.tokens.len() as u64;
                    self.prefix.1 += cached as u64;
                }
            }
            if next.request.caller.is_some() {
                self.turns.now = self.turns.now.max(next.order.rank);
            }
            let Some(next) = self.waiting.pop_front() else { break };
            insert_in_order(&mut self.running, next);
        }
    }

    /// How many prompt tokens a step with so many texts may have; the step has room for `left` of them.
    fn mixed_budget(&self, texts: usize, left: usize) -> usize {
        let most = left.min(self.config.max_mixed_tokens);
        match self.config.step_target {
            Some(target) => self.times.prompt_tokens(texts, target, most),
            None => most,
        }
    }

    /// Gives the running sequences the tokens of the step.
    pub(super) fn share_out_budget(&self, batch: &mut Batch) {
        let mut budget = self.config.max_batch_tokens;
        // Each that runs may want a row of its own.
        let mut scored_budget = self.config.max_batch_outputs - self.running.len();
        for decode in [true, false] {
            if !decode && !batch.is_empty() {
                budget = self.mixed_budget(batch.items.len(), budget);
            }
            for (index, sequence) in self.running.iter().enumerate() {
                let is_of_step = sequence.is_embedding() == batch.hidden;
                if !is_of_step || sequence.is_decode() != decode || budget == 0 || sequence.late_grammar().is_some() {
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
                let (order, first, fed) = (sequence.order, sequence.next_position(), sequence.under_way.output);
                let index = Some(index);
                batch.items.push(Scheduled { order, index, fed, first, num_tokens, num_scored, wants_token });
            }
        }
    }
}

/// Whether the step's budget reaches `next`, after the decodes and the prefills that stand before it.
fn tokens_left_for(next: &Sequence, running: &[Sequence], config: &EngineConfig) -> bool {
    let before: usize = running
        .iter()
        .filter(|sequence| sequence.is_decode() || sequence.order < next.order)
        .map(Sequence::num_pending)
        .sum();
    before < config.max_batch_tokens
}
