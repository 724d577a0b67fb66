//! All that changes between two steps of one compiled plan: which tokens, where they stand, which cache blocks.

use crate::KvLayout;
use crate::sampling::RowSampling;

/// The size of a step: what a program is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepShape {
    /// Rows: tokens of all sequences.
    pub tokens: usize,
    /// Sequences.
    pub sequences: usize,
    /// Rows whose logits are wanted.
    pub outputs: usize,
}

impl StepShape {
    /// Rounded up to the sizes that programs are compiled for, so that few of them serve all steps: 1 to 4, then
    /// powers of two, for each dimension.
    pub fn bucket(self) -> Self {
        let round = |n: usize| if n <= 4 { n.max(1) } else { n.next_power_of_two() };
        Self { tokens: round(self.tokens), sequences: round(self.sequences), outputs: round(self.outputs) }
    }

    /// Whether a program for `self` can run a step of `other`.
    pub fn holds(self, other: Self) -> bool {
        self.tokens >= other.tokens && self.sequences >= other.sequences && self.outputs >= other.outputs
    }
}

/// Consecutive rows of a step that belong to one sequence, and where they stand in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceSpan {
    /// Its first row in the step.
    pub first_row: usize,
    /// Its rows in the step, at least one.
    pub num_rows: usize,
    /// The position of its first row in the sequence; the cache holds all positions before it.
    pub first_position: usize,
    /// Where its block table begins in [`StepInput::block_tables`].
    pub table_start: usize,
    /// Blocks in its table: enough for `first_position + num_rows` tokens.
    pub table_len: usize,
}

impl SequenceSpan {
    /// Tokens in the cache once this step's own are written.
    pub fn kv_len(&self) -> usize {
        self.first_position + self.num_rows
    }
}

/// A block to copy before the step: a sequence is about to write into a block that others read too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCopy {
    /// Source block.
    pub from: u32,
    /// Destination block.
    pub to: u32,
}

/// In place of a token id: the token that the device chose for an output of the step before, whose number is added.
pub const FED: u32 = 1 << 31;

/// What a step is given. Position p of a sequence lives in block `table[p / block_len]`, place `p % block_len`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInput {
    /// (tokens,), sequence after sequence.
    pub token_ids: Vec<u32>,
    /// The sequences, in row order, covering all rows without gaps.
    pub sequences: Vec<SequenceSpan>,
    /// The block tables of all sequences, one after another.
    pub block_tables: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub output_rows: Vec<u32>,
    /// How the device chooses the token of each output row, where it does; empty: the likeliest of all of them.
    pub sampling: Vec<RowSampling>,
    /// Copies to make before anything else, in order.
    pub block_copies: Vec<BlockCopy>,
}

/// Why a step input does not fit its plan or cache: always a bug of the caller, never of a user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed step input: {0}")]
pub struct StepError(pub String);

impl StepInput {
    /// Forgets the step but keeps the memory, so that steady state allocates nothing.
    pub fn clear(&mut self) {
        self.token_ids.clear();
        self.sequences.clear();
        self.block_tables.clear();
        self.output_rows.clear();
        self.sampling.clear();
        self.block_copies.clear();
    }

    /// Appends a sequence: its `tokens` stand at `first_position` and on, its blocks are `table`. Returns its first row.
    pub fn push_sequence(&mut self, tokens: &[u32], first_position: usize, table: &[u32]) -> usize {
        let first_row = self.token_ids.len();
        self.sequences.push(SequenceSpan {
            first_row,
            num_rows: tokens.len(),
            first_position,
            table_start: self.block_tables.len(),
            table_len: table.len(),
        });
        self.token_ids.extend_from_slice(tokens);
        self.block_tables.extend_from_slice(table);
        first_row
    }

    /// The size of the step.
    pub fn shape(&self) -> StepShape {
        StepShape { tokens: self.token_ids.len(), sequences: self.sequences.len(), outputs: self.output_rows.len() }
    }

    /// The block table of `sequence`.
    pub fn table(&self, sequence: &SequenceSpan) -> &[u32] {
        &self.block_tables[sequence.table_start..sequence.table_start + sequence.table_len]
    }

    /// Checks everything that a kernel relies on: ids below `vocab_size`, rows covered in order, tables long enough and
    /// inside the pool, output rows ascending and inside the step.
    pub fn check(&self, vocab_size: usize, kv: &KvLayout) -> Result<(), StepError> {
        self.check_fed(vocab_size, kv, 0)
    }

    /// As [`StepInput::check`], of a step whose ids may be [`FED`] by the `outputs` of the one before.
    pub fn check_fed(&self, vocab_size: usize, kv: &KvLayout, outputs: usize) -> Result<(), StepError> {
        let fail = |what: String| Err(StepError(what));
        let is_known = |id: u32| match id.checked_sub(FED) {
            Some(output) => (output as usize) < outputs,
            None => (id as usize) < vocab_size,
        };
        if let Some(id) = self.token_ids.iter().find(|&&id| !is_known(id)) {
            return fail(format!("token id {id} with a vocabulary of {vocab_size} and {outputs} outputs before"));
        }
        let in_pool = |block: u32| (block as usize) < kv.num_blocks;
        if let Some(block) = self.block_tables.iter().find(|&&block| !in_pool(block)) {
            return fail(format!("block {block} in a pool of {}", kv.num_blocks));
        }
        if let Some(copy) = self.block_copies.iter().find(|copy| !in_pool(copy.from) || !in_pool(copy.to)) {
            return fail(format!("copy {copy:?} in a pool of {}", kv.num_blocks));
        }
        let mut row = 0;
        for sequence in &self.sequences {
            let table_end = sequence.table_start.checked_add(sequence.table_len);
            if sequence.num_rows == 0 || sequence.first_row != row {
                return fail(format!("{sequence:?} where row {row} comes next"));
            }
            if table_end.is_none_or(|end| end > self.block_tables.len()) {
                return fail(format!("{sequence:?} with {} table entries", self.block_tables.len()));
            }
            if sequence.table_len < sequence.kv_len().div_ceil(kv.block_len) {
                return fail(format!("{sequence:?} needs more blocks of {}", kv.block_len));
            }
            row += sequence.num_rows;
        }
        if row != self.token_ids.len() {
            return fail(format!("sequences cover {row} of {} rows", self.token_ids.len()));
        }
        let (sampled, outputs) = (self.sampling.len(), self.output_rows.len());
        if sampled != 0 && sampled != outputs {
            return fail(format!("ways to choose {sampled} tokens of {outputs} output rows"));
        }
        let ascending = self.output_rows.is_sorted_by(|a, b| a < b);
        if !ascending || self.output_rows.last().is_some_and(|&last| last as usize >= row) {
            return fail(format!("output rows {:?} of {row}", self.output_rows));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KvFormat;

    const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 8 };

    fn two_sequences() -> StepInput {
        let mut input = StepInput::default();
        input.push_sequence(&[1, 2, 3], 4, &[7, 0]);
        input.push_sequence(&[4], 0, &[3]);
        input.output_rows = vec![2, 3];
        input
    }

    #[test]
    fn a_well_formed_step_passes_and_each_fault_is_named() {
        two_sequences().check(10, &KV).unwrap();
        type Fault = fn(&mut StepInput);
        let faults: [(&str, Fault); 9] = [
            ("token id 10", |s| s.token_ids[0] = 10),
            ("block 8", |s| s.block_tables[0] = 8),
            ("copy", |s| s.block_copies.push(BlockCopy { from: 0, to: 8 })),
            ("row 3 comes next", |s| s.sequences[1].first_row = 2),
            ("table entries", |s| s.sequences[1].table_len = usize::MAX),
            ("more blocks", |s| s.sequences[0].first_position = 6),
            ("cover 4 of 5", |s| s.token_ids.push(1)),
            ("output rows", |s| s.output_rows = vec![3, 2]),
            ("1 tokens of 2", |s| s.sampling.push(RowSampling::default())),
        ];
        for (expected, fault) in faults {
            let mut input = two_sequences();
            fault(&mut input);
            let error = input.check(10, &KV).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_step_is_fed_by_outputs_that_there_were() {
        let mut input = two_sequences();
        input.token_ids[3] = FED | 1;
        input.check_fed(10, &KV, 2).unwrap();
        assert!(input.check_fed(10, &KV, 1).is_err());
        assert!(input.check(10, &KV).is_err());
    }

    #[test]
    fn a_bucket_holds_what_it_was_made_from() {
        for n in 1..100 {
            let shape = StepShape { tokens: n, sequences: n.div_ceil(3), outputs: n / 2 };
            assert!(shape.bucket().holds(shape) && shape.bucket().bucket() == shape.bucket());
        }
    }
}
