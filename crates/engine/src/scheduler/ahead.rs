//! Steps that are submitted to the device before the host knows the tokens of the step before.

use super::Scheduler;
use crate::batch::Batch;
use crate::kv_cache::KvCache;
use crate::sequence::{Sequence, UnderWay};

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

    /// Fills `next` with the step after `batch`, which is under way, and reserves its blocks: texts go on with the
    /// tokens that `batch` will make, prompts with their next tokens, and waiting sequences start. Returns whether
    /// there is such a step: not where the tokens of `batch` have to be known first, because the host chooses some or
    /// completions branch off, and not where a sequence would have to give up blocks.
    ///
    /// Sequences that start move the others: the places in `batch` are those after that.
    pub(crate) fn follow(&mut self, batch: &mut Batch, kv: &mut KvCache, next: &mut Batch) -> bool {
        next.clear();
        self.started.clear();
        if !self.can_follow() {
            return false;
        }
        self.set_under_way(batch);
        let num_running = self.running.len();
        if self.extend_texts(kv) {
            self.start_waiting(kv);
            self.share_out_budget(next);
        }
        self.running.iter_mut().for_each(|sequence| sequence.under_way = UnderWay::default());
        if self.running.len() != num_running {
            self.find_again(batch);
        }
        let any = !next.is_empty();
        self.num_steps += u64::from(any);
        self.num_ahead += u64::from(any);
        self.gave_states &= !any;
        any
    }

    /// Whether the device chooses the next token of every sequence that can be part of the next step, and none branches
    /// off.
    fn can_follow(&self) -> bool {
        let is_for_device = |sequence: &Sequence| !sequence.is_embedding() && self.is_chosen_by_device(sequence);
        if !self.running.iter().all(|sequence| sequence.width() == 1 && is_for_device(sequence)) {
            return false;
        }
        // One that the host chooses for starts in a step that is not ahead.
        let mut width = self.running.len();
        let mut may_start = self.waiting.iter().take_while(|next| {
            width += next.width();
            width <= self.config.max_sequences
        });
        may_start.all(is_for_device)
    }

    /// Notes in each sequence what `batch` computes of it.
    fn set_under_way(&mut self, batch: &Batch) {
        let mut num_outputs = 0;
        for item in &batch.items {
            num_outputs += item.num_outputs() as u32;
            let output = item.wants_token.then(|| num_outputs - 1);
            let Some(index) = item.index else { continue };
            let sequence = &mut self.running[index];
            let ends = item.wants_token && sequence.ends_with_next(&self.config);
            sequence.under_way = UnderWay { num_tokens: item.num_tokens, output, ends };
        }
    }

    /// Room in a block for the next token of each text. Returns whether there was enough without a copy.
    fn extend_texts(&mut self, kv: &mut KvCache) -> bool {
        let mut texts = self.running.iter_mut().filter(|sequence| sequence.is_decode());
        texts.all(|sequence| {
            let position = sequence.next_position();
            kv.extend(&mut sequence.table, position)
        })
    }
}
