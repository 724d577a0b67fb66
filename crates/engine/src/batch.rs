//! What one step computes: the schedule, and the step input made from it.

use plan::{BlockCopy, StepInput};

use crate::kv_cache::KvCache;
use crate::sequence::Sequence;

/// Tokens of one running sequence, computed in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Its index among the running sequences.
    pub(crate) index: usize,
    /// Its next so many tokens.
    pub(crate) num_tokens: usize,
    /// Whether they are all it has: then a token is to be chosen.
    pub(crate) wants_token: bool,
}

/// A step's schedule. Kept from step to step, so that its memory is reused.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The sequences, in the order of their rows.
    pub(crate) items: Vec<Scheduled>,
    /// Copies to make first, in order.
    pub(crate) copies: Vec<BlockCopy>,
    input: StepInput,
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.copies.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Writes the step down for the backend.
    pub(crate) fn step_input(&mut self, running: &[Sequence], kv: &KvCache) -> &StepInput {
        let input = &mut self.input;
        input.clear();
        input.block_copies.extend_from_slice(&self.copies);
        for item in &self.items {
            let sequence = &running[item.index];
            let (first, end) = (sequence.num_computed, sequence.num_computed + item.num_tokens);
            debug_assert!(kv.is_writable(&sequence.table, first, end), "a shared block would be written");
            let table = &sequence.table.blocks()[..kv.blocks_for(end)];
            let first_row = input.push_sequence(&sequence.tokens[first..end], first, table);
            if item.wants_token {
                input.output_rows.push((first_row + item.num_tokens - 1) as u32);
            }
        }
        input
    }
}
