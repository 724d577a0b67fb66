//! The step input on the device: one array of i32 that is uploaded in one copy, and all that changes between two
//! replays of a program.

use plan::{KvLayout, Plan, SequenceSpan, StepError, StepInput, StepShape, sampling};

use crate::launch::Region;
use crate::params::RowSampling;

/// Rows of a sequence that attention computes together, at most: as in `kernels/attention_tiles.h`.
pub(crate) const ATTENTION_TILE_ROWS: usize = 128;
/// Rows of a sequence up to which each is for itself.
pub(crate) const ATTENTION_SINGLES_MAX: usize = 16;

/// Positions that a row attends to where these are few, at most: as many as `kernels/sm90/mla_cluster.h` has room for.
pub(crate) const NEAR_POSITIONS: usize = 1024;

/// What is known of the rows of a program's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepRows {
    /// Each is the only one of its sequence, and attends to a few positions: to [`NEAR_POSITIONS`] at most.
    Near,
    /// Each is the only one of its sequence.
    Alone,
    /// Sequences may have several.
    Several,
    /// The same, and where they have many, rows of latent attention may attend to keys and values of their own.
    Expanded,
}

impl StepRows {
    /// Of steps whose shape alone is known.
    pub(crate) fn of_shape(shape: StepShape) -> Self {
        if shape.tokens == shape.sequences { Self::Alone } else { Self::Expanded }
    }

    /// All that steps of a shape may have whose rows are known from it; whether rows that attend to few positions have `near`
    /// kernels of their own.
    pub(crate) fn all_of_shape(shape: StepShape, near: bool) -> impl Iterator<Item = Self> {
        let rows = Self::of_shape(shape);
        [rows].into_iter().chain((near && rows == Self::Alone).then_some(Self::Near))
    }

    /// Of a step; whether rows that attend to few positions have `near` kernels of their own.
    pub(crate) fn of_step(input: &StepInput, near: bool) -> Self {
        let all = |is: fn(&SequenceSpan) -> bool| input.sequences.iter().all(is);
        match all(|sequence| sequence.num_rows == 1) {
            true if near && all(|sequence| sequence.kv_len() <= NEAR_POSITIONS) => Self::Near,
            true => Self::Alone,
            false => Self::Expanded,
        }
    }

    /// Whether each is the only one of its sequence.
    pub(crate) fn are_alone(self) -> bool {
        matches!(self, Self::Near | Self::Alone)
    }
}

/// How attention takes many rows of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tiles {
    /// Each for itself: there is no other kernel.
    None,
    /// In tiles, from the cache.
    Cached,
    /// The same of all rows, also those that are alone: no other kernel has the same bits.
    All,
    /// In tiles, from keys and values that are made of a latent cache, where a sequence has `rows_min` of them: there is
    /// room for `blocks` blocks of the cache.
    Expanded { rows_min: usize, blocks: usize },
}

impl Tiles {
    /// Rows of a sequence from which they make tiles.
    fn rows_min(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::All => Some(1),
            Self::Cached => Some(ATTENTION_SINGLES_MAX + 1),
            Self::Expanded { rows_min, .. } => Some(rows_min),
        }
    }
}

/// Where each part begins, in i32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepLayout {
    pub(crate) shape: StepShape,
    token_ids: usize,
    positions: usize,
    slots: usize,
    table_starts: usize,
    output_rows: usize,
    sampling: usize,
    single_items: usize,
    tile_items: usize,
    blocks: usize,
    len: usize,
    pub(crate) tiles: Tiles,
    pub(crate) rows: StepRows,
    pub(crate) attention: AttentionItems,
    block_len: usize,
    max_positions: usize,
}

/// Live rows: tokens, outputs; live items of attention: singles, tiles; live rows of an op that computes nothing for rows
/// in tiles, and entries of block tables that such rows see.
const HEADER_LEN: usize = 8;
/// An item of attention: a row and the positions before the step's first of its sequence; or the first row of a tile
/// and its rows.
const ITEM_LEN: usize = 2;
const SAMPLING_LEN: usize = size_of::<RowSampling>() / size_of::<i32>();

/// Room for the items that attention takes in a step: rows for themselves, and tiles of rows of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AttentionItems {
    pub(crate) singles: usize,
    pub(crate) tiles: usize,
    /// Rows of a sequence from which they make tiles.
    rows_min: usize,
}

impl AttentionItems {
    /// For steps of up to `shape`.
    pub(crate) fn new(shape: StepShape, tiles: Tiles, rows: StepRows) -> Self {
        let StepShape { tokens, sequences, .. } = shape;
        let all_single = Self { singles: tokens, ..Self::default() };
        if rows.are_alone() && tiles != Tiles::All {
            return all_single;
        }
        let Some(rows_min) = tiles.rows_min().filter(|&rows_min| tokens >= rows_min) else { return all_single };
        let singles_max = rows_min - 1;
        // Where there are as many sequences as rows, or nearly (sizes are rounded up), none has many rows: a kernel for
        // tiles would have nothing to do.
        if sequences == tokens && tokens <= 4 * singles_max {
            return all_single;
        }
        // The only sequence of a step has all of its rows. Of several, those whose rows make tiles have more than a few.
        let (singles, in_tiles) = match sequences {
            1 => (0, 1),
            _ => (tokens.min(sequences * singles_max), sequences.min(tokens / rows_min)),
        };
        Self { singles, tiles: tokens / ATTENTION_TILE_ROWS + in_tiles, rows_min }
    }

    /// Whether a sequence's rows make tiles.
    fn makes_tiles(&self, num_rows: usize) -> bool {
        self.tiles > 0 && (self.singles == 0 || num_rows >= self.rows_min)
    }
}

impl StepLayout {
    pub(crate) fn new(shape: StepShape, plan: &Plan, kv: &KvLayout, tiles: Tiles, rows: StepRows) -> Self {
        let attention = AttentionItems::new(shape, tiles, rows);
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
            sampling: reserve(shape.outputs * SAMPLING_LEN),
            single_items: reserve(attention.singles * ITEM_LEN),
            tile_items: reserve(attention.tiles * ITEM_LEN),
            blocks: reserve(shape.sequences * max_positions.div_ceil(kv.block_len)),
            len,
            tiles,
            rows,
            attention,
            block_len: kv.block_len,
            max_positions,
        }
    }

    /// Blocks of the cache that the rows in tiles of `input` see.
    fn blocks_in_tiles(&self, input: &StepInput) -> usize {
        let in_tiles = input.sequences.iter().filter(|sequence| self.attention.makes_tiles(sequence.num_rows));
        in_tiles.map(|sequence| sequence.kv_len().div_ceil(self.block_len)).sum()
    }

    /// Whether the rows in tiles of `input` see no more blocks than there is room for.
    pub(crate) fn has_room(&self, input: &StepInput) -> bool {
        match self.tiles {
            Tiles::Expanded { blocks, .. } => self.blocks_in_tiles(input) <= blocks,
            Tiles::None | Tiles::Cached | Tiles::All => true,
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
        let rows = words[self.sampling..].chunks_exact_mut(SAMPLING_LEN).zip(&input.sampling);
        rows.for_each(|(words, row)| words.copy_from_slice(bytemuck::cast_slice(&[row_sampling(row)])));
        let (mut singles, mut tiles) = (0, 0);
        // Tables of sequences in tiles come first: their entries are counted together.
        let are_in_tiles = |tiles: bool| {
            let makes_tiles = move |num_rows| self.attention.makes_tiles(num_rows) == tiles;
            input.sequences.iter().filter(move |sequence| makes_tiles(sequence.num_rows))
        };
        for sequence in are_in_tiles(true).chain(are_in_tiles(false)) {
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
            let rows = sequence.first_row..sequence.first_row + sequence.num_rows;
            let mut push = |start: usize, count: &mut usize, item: [usize; ITEM_LEN]| {
                let at = start + *count * ITEM_LEN;
                words[at..at + ITEM_LEN].copy_from_slice(&item.map(|n| n as i32));
                *count += 1;
            };
            if self.attention.makes_tiles(sequence.num_rows) {
                for row in rows.clone().step_by(ATTENTION_TILE_ROWS) {
                    push(self.tile_items, &mut tiles, [row, ATTENTION_TILE_ROWS.min(rows.end - row)]);
                }
            } else {
                rows.for_each(|row| push(self.single_items, &mut singles, [row, sequence.first_position]));
            }
        }
        words[2] = singles as i32;
        words[3] = tiles as i32;
        words[4] = if singles > 0 { words[0] } else { 0 };
        words[5] = self.blocks_in_tiles(input) as i32;
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
            sampling: part(self.sampling, self.shape.outputs * SAMPLING_LEN),
            num_singles: part(2, 1),
            num_tiles: part(3, 1),
            num_rows_of_singles: part(4, 1),
            num_blocks_in_tiles: part(5, 1),
            singles: part(self.single_items, self.attention.singles * ITEM_LEN),
            tiles: part(self.tile_items, self.attention.tiles * ITEM_LEN),
            blocks: part(self.blocks, self.len - self.blocks),
        }
    }
}

/// The positions that a sequence can have: what the model was made for, or what the cache holds.
pub(crate) fn max_positions(plan: &Plan, kv: &KvLayout) -> usize {
    plan.context_len.min(kv.num_blocks.saturating_mul(kv.block_len))
}

fn row_sampling(row: &sampling::RowSampling) -> RowSampling {
    RowSampling {
        temperature: row.temperature,
        min_p_ln: row.min_p_ln,
        top_k: row.top_k,
        top_p: row.top_p,
        pick_low: row.pick as u32,
        pick_high: (row.pick >> 32) as u32,
        padding: [0; 2],
    }
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
    /// A [`RowSampling`] for each output.
    pub(crate) sampling: Region,
    /// Live items of attention.
    pub(crate) num_singles: Region,
    pub(crate) num_tiles: Region,
    /// Live rows of values of all tokens, or none where no row is for itself.
    pub(crate) num_rows_of_singles: Region,
    /// Live entries of `blocks` that belong to sequences in tiles: the first ones.
    pub(crate) num_blocks_in_tiles: Region,
    /// (row, positions before the step) of rows that attention takes for themselves.
    pub(crate) singles: Region,
    /// (first row, rows) of those that it takes together.
    pub(crate) tiles: Region,
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
        let layout = StepLayout::new(input.shape().bucket(), &plan, &kv, Tiles::Cached, StepRows::Several);
        let mut words = vec![];
        layout.encode(&input, &mut words).unwrap();
        assert_eq!(words[..6], [4, 2, 4, 0, 4, 0]);
        assert_eq!(words[layout.token_ids..][..4], [11, 12, 13, 14]);
        assert_eq!(words[layout.positions..][..4], [3, 4, 5, 0]);
        assert_eq!(words[layout.slots..][..4], [31, 8, 9, 4]);
        assert_eq!(words[layout.table_starts..][..4], [0, 0, 0, 2]);
        assert_eq!(words[layout.single_items..][..8], [0, 3, 1, 3, 2, 3, 3, 0]);
        // The third block of the first table is not reached.
        assert_eq!(words[layout.blocks..], [7, 2, 1]);
        assert!(words.len() * 4 <= layout.bytes() as usize);

        input.sequences[0].first_position = 600;
        input.block_tables = vec![0; 200];
        input.sequences[0].table_len = 160;
        assert!(layout.encode(&input, &mut words).unwrap_err().to_string().contains("603 tokens where 32"));
    }

    #[test]
    fn many_rows_of_a_sequence_are_tiles() {
        let (plan, _) = testing::tiny_model("llama", 1, tensor::WeightFormat::F32);
        let kv = KvLayout { format: KvFormat::F16, block_len: 50, num_blocks: 8 };
        let encoded = |lens: &[(usize, usize)], tiles: Tiles| {
            let mut input = StepInput::default();
            for &(len, position) in lens {
                input.push_sequence(&vec![1; len], position, &[0, 1, 2, 3, 4, 5]);
            }
            let layout = StepLayout::new(
                input.shape().bucket(),
                &plan,
                &KvLayout { num_blocks: 16, ..kv },
                tiles,
                StepRows::Several,
            );
            let mut words = vec![];
            layout.encode(&input, &mut words).unwrap();
            let items = |start: usize, count: i32, room: usize| {
                assert!(count as usize <= room, "{count} items, room for {room}");
                words[start..start + 2 * count as usize].to_vec()
            };
            let AttentionItems { singles, tiles, .. } = layout.attention;
            (items(layout.single_items, words[2], singles), items(layout.tile_items, words[3], tiles))
        };
        let of = |tokens, sequences| StepShape { tokens, sequences, outputs: sequences };
        let max_positions = plan.context_len.min(256);
        assert!(max_positions >= 20, "the tiny model has room");
        assert_eq!(encoded(&[(17, 2), (2, 9)], Tiles::Cached), (vec![17, 9, 18, 9], vec![0, 17]));
        assert_eq!(encoded(&[(17, 0)], Tiles::Cached), (vec![], vec![0, 17]));
        assert!(encoded(&[(16, 0)], Tiles::Cached).1.is_empty());
        assert!(
            encoded(&[(1, 3); 17], Tiles::Cached).1.is_empty()
                && AttentionItems::new(of(32, 32), Tiles::Cached, StepRows::Several).tiles == 0
        );
        assert_eq!(
            AttentionItems::new(of(128, 128), Tiles::Cached, StepRows::Several).tiles,
            8,
            "some of 65 may have 17 rows"
        );
        assert_eq!(AttentionItems::new(of(2048, 4), Tiles::Cached, StepRows::Several).tiles, 16 + 4);
        let alone = AttentionItems::new(of(256, 256), Tiles::Cached, StepRows::Alone);
        assert_eq!((alone.singles, alone.tiles), (256, 0));
        assert!(
            AttentionItems::new(of(256, 256), Tiles::All, StepRows::Alone).tiles >= 256,
            "bits must not depend on it"
        );
        let full = AttentionItems::new(of(1024, 64), Tiles::Cached, StepRows::Several);
        assert_eq!((full.singles, full.tiles), (1024, 8 + 60));
        assert_eq!(encoded(&[(17, 0), (17, 0), (17, 0), (13, 0)], Tiles::Cached).1, vec![0, 17, 17, 17, 34, 17]);
        assert_eq!(encoded(&[(17, 0)], Tiles::None).0.len(), 34);
    }

    #[test]
    fn sequences_that_are_expanded_come_first_and_must_find_room() {
        let (plan, _) = testing::tiny_model("llama", 1, tensor::WeightFormat::F32);
        let kv = KvLayout { format: KvFormat::F16, block_len: 4, num_blocks: 16 };
        let tiles = |blocks| Tiles::Expanded { rows_min: 6, blocks };
        let of = |lens: &[(usize, usize)], blocks| {
            let mut input = StepInput::default();
            for (index, &(len, position)) in lens.iter().enumerate() {
                let first = 8 * index as u32;
                input.push_sequence(&vec![1; len], position, &[first, first + 1, first + 2, first + 3]);
            }
            let layout = StepLayout::new(input.shape().bucket(), &plan, &kv, tiles(blocks), StepRows::Expanded);
            let mut words = vec![];
            layout.encode(&input, &mut words).unwrap();
            (layout, words, layout.has_room(&input))
        };
        // Five rows are for themselves, seven behind two others are not: three blocks of theirs are the first entries.
        let (layout, words, has_room) = of(&[(5, 0), (7, 2)], 3);
        assert_eq!(words[2..6], [5, 1, 12, 3]);
        assert_eq!(words[layout.tile_items..][..2], [5, 7]);
        assert_eq!(words[layout.blocks..], [8, 9, 10, 0, 1]);
        assert_eq!((words[layout.table_starts], words[layout.table_starts + 5]), (3, 0));
        assert!(has_room && !of(&[(5, 0), (7, 2)], 2).2);
        // The rows of one sequence alone are tiles, however many there are of them; no other op has live rows.
        let (layout, words, _) = of(&[(7, 3)], 3);
        assert_eq!((layout.attention.singles, &words[2..6]), (0, &[0, 1, 0, 3][..]));
        // Also where sizes are rounded up to what makes tiles.
        let (layout, words, has_room) = of(&[(5, 0)], 0);
        assert_eq!((layout.attention.singles, &words[2..6], has_room), (0, &[0, 1, 0, 2][..], false));
        let shape = StepShape { tokens: 4, sequences: 1, outputs: 1 };
        assert_eq!(
            AttentionItems::new(shape, tiles(3), StepRows::Several),
            AttentionItems { singles: 4, ..AttentionItems::default() }
        );
    }
}
