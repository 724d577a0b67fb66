//! The step input on the device: one array of i32 that is uploaded in one copy, and all that changes between two replays
//! of a program.

use plan::{KvLayout, Plan, StepError, StepInput, StepShape};

use crate::launch::Region;

/// Where each part begins, in i32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLayout {
    pub(crate) shape: StepShape,
    token_ids: usize,
    positions: usize,
    slots: usize,
    table_starts: usize,
    output_rows: usize,
    blocks: usize,
    len: usize,
    block_len: usize,
    max_positions: usize,
}

/// Live rows: tokens, outputs; then nothing up to 16 bytes.
const HEADER_LEN: usize = 4;

impl StepLayout {
    pub(crate) fn new(shape: StepShape, plan: &Plan, kv: &KvLayout) -> Self {
        let max_positions = max_positions(plan, kv);
        let mut len = HEADER_LEN;
        let mut reserve = |count: usize| {
            let start = len;
            len += count.next_multiple_of(4);
            start
        };
        Self {
            shape,
            token_ids: reserve(shape.tokens),
            positions: reserve(shape.tokens),
            slots: reserve(shape.tokens),
            table_starts: reserve(shape.tokens),
            output_rows: reserve(shape.outputs),
            blocks: reserve(shape.sequences * max_positions.div_ceil(kv.block_len)),
            len,
            block_len: kv.block_len,
            max_positions,
        }
    }

    /// Bytes that the largest step takes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.len * size_of::<i32>()) as u64
    }

    /// Writes `input`, which fits the shape and was checked, to `words`.
    pub(crate) fn encode(&self, input: &StepInput, words: &mut Vec<i32>) -> Result<(), StepError> {
        words.clear();
        words.resize(self.blocks, 0);
        words[0] = input.token_ids.len() as i32;
        words[1] = input.output_rows.len() as i32;
        copy(&mut words[self.token_ids..], &input.token_ids);
        copy(&mut words[self.output_rows..], &input.output_rows);
        for sequence in &input.sequences {
            if sequence.kv_len() > self.max_positions {
                let (kv_len, most) = (sequence.kv_len(), self.max_positions);
                return Err(StepError(format!("a sequence of {kv_len} tokens where {most} are possible")));
            }
            let table = &input.table(sequence)[..sequence.kv_len().div_ceil(self.block_len)];
            let table_start = (words.len() - self.blocks) as i32;
            words.extend(table.iter().map(|&block| block as i32));
            for (row, position) in (sequence.first_row..).zip(sequence.first_position..sequence.kv_len()) {
                let block = table[position / self.block_len] as usize;
                words[self.positions + row] = position as i32;
                words[self.slots + row] = (block * self.block_len + position % self.block_len) as i32;
                words[self.table_starts + row] = table_start;
            }
        }
        Ok(())
    }

    /// Where the parts are, once the whole lies at `all`.
    pub(crate) fn place(&self, all: Region) -> StepRegions {
        let part =
            |start: usize, count: usize| all.part((start * size_of::<i32>()) as u64, (count * size_of::<i32>()) as u64);
        StepRegions {
            num_tokens: part(0, 1),
            num_outputs: part(1, 1),
            token_ids: part(self.token_ids, self.shape.tokens),
            positions: part(self.positions, self.shape.tokens),
            slots: part(self.slots, self.shape.tokens),
            table_starts: part(self.table_starts, self.shape.tokens),
            output_rows: part(self.output_rows, self.shape.outputs),
            blocks: part(self.blocks, self.len - self.blocks),
        }
    }
}

/// The positions that a sequence can have: what the model was made for, or what the cache holds.
pub(crate) fn max_positions(plan: &Plan, kv: &KvLayout) -> usize {
    plan.context_len.min(kv.num_blocks.saturating_mul(kv.block_len))
}

fn copy(to: &mut [i32], from: &[u32]) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to = from as i32);
}

/// The parts of a step input on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepRegions {
    /// Live rows of values of all tokens.
    pub(crate) num_tokens: Region,
    /// Live rows of values of the output rows.
    pub(crate) num_outputs: Region,
    pub(crate) token_ids: Region,
    pub(crate) positions: Region,
    /// block · block_len + place in it, of each row's own key and value.
    pub(crate) slots: Region,
    /// Where the row's block table begins in `blocks`.
    pub(crate) table_starts: Region,
    pub(crate) output_rows: Region,
    pub(crate) blocks: Region,
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::KvFormat;

    #[test]
    fn rows_know_their_position_their_slot_and_their_table() {
        let (plan, _) = testing::tiny_model("llama", 1, tensor::WeightFormat::F32);
        let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks: 8 };
        let mut input = StepInput::default();
        input.push_sequence(&[11, 12, 13], 3, &[7, 2, 5]);
        input.push_sequence(&[14], 0, &[1]);
        input.output_rows = vec![2, 3];
        let layout = StepLayout::new(input.shape().bucket(), &plan, &kv);
        let mut words = vec![];
        layout.encode(&input, &mut words).unwrap();
        assert_eq!(words[..2], [4, 2]);
        assert_eq!(words[layout.token_ids..][..4], [11, 12, 13, 14]);
        assert_eq!(words[layout.positions..][..4], [3, 4, 5, 0]);
        assert_eq!(words[layout.slots..][..4], [31, 8, 9, 4]);
        assert_eq!(words[layout.table_starts..][..4], [0, 0, 0, 2]);
        // The third block of the first table is not reached.
        assert_eq!(words[layout.blocks..], [7, 2, 1]);
        assert!(words.len() * 4 <= layout.bytes() as usize);

        input.sequences[0].first_position = 600;
        input.block_tables = vec![0; 200];
        input.sequences[0].table_len = 160;
        assert!(layout.encode(&input, &mut words).unwrap_err().to_string().contains("603 tokens where 32"));
    }
}
