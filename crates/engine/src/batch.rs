//! What one step computes: the schedule, and the step input made from it.

use std::time::Duration;

use plan::{BlockCopy, FED, StepInput};

use crate::kv_cache::KvCache;
use crate::scheduler::ServiceOrder;
use crate::sequence::Sequence;

/// Tokens of one running sequence, computed in this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// Which it is.
    pub(crate) order: ServiceOrder,
    /// Its index among the running sequences; `None` once it has ended while the step was under way.
    pub(crate) index: Option<usize>,
    /// The output of the step before that is its token, where the host does not know that yet.
    pub(crate) fed: Option<u32>,
    /// The position of the first of its tokens in this step.
    pub(crate) first: usize,
    /// So many tokens from there on.
    pub(crate) num_tokens: usize,
    /// Rows of them, before the last, whose logits say how likely the prompt's next token was, or whose states are pooled.
    pub(crate) num_scored: usize,
    /// Whether they are all it has: then a token is to be chosen, or the embedding is whole.
    pub(crate) wants_token: bool,
}

impl Scheduled {
    /// Rows of logits.
    pub(crate) fn num_outputs(&self) -> usize {
        self.num_scored + usize::from(self.wants_token)
    }
}

/// A step's schedule. Kept from step to step, so that its memory is reused.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// The sequences, in the order of their rows.
    pub(crate) items: Vec<Scheduled>,
    /// Copies to make first, in order.
    pub(crate) copies: Vec<BlockCopy>,
    /// Whether its rows are wanted as hidden states, for embeddings, and not as logits.
    pub(crate) hidden: bool,
    /// When it was submitted, where somebody takes times.
    pub(crate) submitted: Option<Duration>,
    input: StepInput,
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.copies.clear();
        self.hidden = false;
        self.submitted = None;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Rows of logits, or of states.
    pub(crate) fn num_outputs(&self) -> usize {
        self.items.iter().map(Scheduled::num_outputs).sum()
    }

    /// Sequences that compute one token, and the tokens of the others.
    pub(crate) fn num_texts_and_prompt_tokens(&self) -> (usize, usize) {
        self.items.iter().fold((0, 0), |(texts, tokens), item| match item.num_tokens {
            1 => (texts + 1, tokens),
            of_prompt => (texts, tokens + of_prompt),
        })
    }

    /// Writes the step down for the backend, which is to choose the tokens where it `chooses`.
    pub(crate) fn step_input(&mut self, running: &[Sequence], kv: &KvCache, chooses: bool) -> &StepInput {
        let input = &mut self.input;
        input.clear();
        input.block_copies.extend_from_slice(&self.copies);
        for item in &self.items {
            let sequence = &running[item.index.expect("a step is written down when it is scheduled")];
            let (first, end) = (item.first, item.first + item.num_tokens);
            debug_assert!(kv.is_writable(&sequence.table, first, end), "a shared block would be written");
            let table = &sequence.table.blocks()[..kv.blocks_for(end)];
            let first_row = match item.fed {
                Some(output) => input.push_sequence(&[FED | output], first, table),
                None => input.push_sequence(&sequence.tokens[first..end], first, table),
            };
            if item.num_scored > 0 {
                let rows = sequence.rows_to_score(item.num_tokens);
                input.output_rows.extend(rows.map(|position| (first_row + position - first) as u32));
            }
            if item.wants_token {
                input.output_rows.push((first_row + item.num_tokens - 1) as u32);
                if chooses {
                    input.sampling.push(sequence.row_sampling(item.fed.is_some()));
                }
            }
        }
        if input.sampling.iter().all(|row| row.temperature == 0.0) {
            input.sampling.clear();
        }
        input
    }
}
