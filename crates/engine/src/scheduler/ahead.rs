//! Steps that are submitted to the device before the host knows the tokens of the step before.

use super::Scheduler;
use crate::batch::{Batch, Scheduled};
use crate::kv_cache::KvCache;
use crate::sequence::Sequence;

impl Scheduler {
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
            item.index = self.running.binary_search_by(|sequence| sequence.order.cmp(&item.order)).ok();
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
}
