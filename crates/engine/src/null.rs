//! A backend that computes nothing but remembers everything: for tests of whatever stands above a backend.
//!
//! Its cache stores tokens in place of keys and values, block by block, and its logits are a hash of a sequence's
//! tokens *as read back through its block table*. So a wrong block, a missing copy, a stale prefix or another
//! sequence's write changes the text. Faults can be planted at any step.

use std::collections::VecDeque;
use std::ops::Range;

use backend::{BackendError, BlockLayout, Choice, Executable, Logits, PEAK_GROUP, ResidentWeight, peak};
use plan::sampling::choose;
use plan::{FED, KvLayout, SequenceSpan, StepError, StepInput, StepShape};

/// The width of the null device's hidden states.
pub const NULL_HIDDEN_SIZE: usize = 8;

/// What goes wrong in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device fails, after it has written to the cache.
    Error,
    /// A row of logits has a value that is no number, and so have the keys and values that its sequence wrote in the
    /// step: whoever reads them gets such logits too.
    NotANumber {
        /// Which output of the step, modulo their number.
        output: usize,
    },
}

/// Decides what goes wrong in a step (they are counted from 0).
pub type Faults = Box<dyn FnMut(u64, &StepInput) -> Option<Fault> + Send>;

/// The null device with a paged cache of tokens.
pub struct NullExecutable {
    kv: KvLayout,
    vocab_size: usize,
    /// (num_blocks, block_len).
    slots: Vec<Slot>,
    logits: Vec<f32>,
    peaks: Vec<f32>,
    num_steps: u64,
    faults: Option<Faults>,
    queue: Option<Queue>,
    script: Option<Script>,
    weights: Option<NullWeights>,
}

/// What stands for the weights of a model: a test may change it. Steps do not read it.
pub type NullWeights = std::sync::Arc<std::sync::Mutex<Vec<u8>>>;

/// Tokens that are said one after the other, whatever was asked; the last one is said again where there is no more. One
/// sequence at a time has a use for them.
pub type Script = std::sync::Arc<std::sync::Mutex<VecDeque<u32>>>;

/// Steps that are under way. They are computed when they are collected, in their order: what the device sees is the same.
#[derive(Default)]
struct Queue {
    steps: VecDeque<StepInput>,
    /// Inputs that were, kept for their memory.
    spare: Vec<StepInput>,
    choices: Vec<Choice>,
}

/// What stands in place of a token's keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Empty,
    Token(u32),
    NotANumber,
}

impl NullExecutable {
    /// A device without faults.
    pub fn new(kv: KvLayout, vocab_size: usize) -> Self {
        let slots = vec![Slot::Empty; kv.num_blocks * kv.block_len];
        Self {
            kv,
            vocab_size,
            slots,
            logits: Vec::new(),
            peaks: Vec::new(),
            num_steps: 0,
            faults: None,
            queue: None,
            script: None,
            weights: None,
        }
    }

    /// The same, with faults where `faults` says so.
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults: Some(faults), ..self }
    }

    /// The same, saying what the script holds.
    pub fn saying(self, script: Script) -> Self {
        Self { script: Some(script), ..self }
    }

    /// The same, with memory of one weight.
    pub fn with_weights(self, weights: NullWeights) -> Self {
        Self { weights: Some(weights), ..self }
    }

    /// The same, choosing tokens itself where it is asked to.
    pub fn with_queue(self) -> Self {
        Self { queue: Some(Queue::default()), ..self }
    }

    fn slot(&self, table: &[u32], position: usize) -> usize {
        table[position / self.kv.block_len] as usize * self.kv.block_len + position % self.kv.block_len
    }

    fn copy_blocks(&mut self, input: &StepInput) {
        let block_len = self.kv.block_len;
        for copy in &input.block_copies {
            let from = copy.from as usize * block_len;
            self.slots.copy_within(from..from + block_len, copy.to as usize * block_len);
        }
    }

    fn write(&mut self, input: &StepInput) {
        for sequence in &input.sequences {
            for row in 0..sequence.num_rows {
                let slot = self.slot(input.table(sequence), sequence.first_position + row);
                self.slots[slot] = Slot::Token(input.token_ids[sequence.first_row + row]);
            }
        }
    }

    /// Spoils what the sequence of the `output`-th output has written.
    fn spoil(&mut self, input: &StepInput, output: usize) {
        let Some(&row) = input.output_rows.get(output % input.output_rows.len().max(1)) else { return };
        let sequence = sequence_of(input, row as usize);
        for row in 0..sequence.num_rows {
            let slot = self.slot(input.table(sequence), sequence.first_position + row);
            self.slots[slot] = Slot::NotANumber;
        }
    }

    /// A block that one sequence writes is in no other's table.
    fn check_exclusive(&self, input: &StepInput) -> Result<(), StepError> {
        for (index, writer) in input.sequences.iter().enumerate() {
            let written = &input.table(writer)[writer.first_position / self.kv.block_len..];
            for (other_index, other) in input.sequences.iter().enumerate() {
                let shared = written.iter().find(|block| input.table(other).contains(block));
                if let Some(block) = shared.filter(|_| other_index != index) {
                    return Err(StepError(format!("block {block} is written by {index} and held by {other_index}")));
                }
            }
        }
        Ok(())
    }
}

impl Executable for NullExecutable {
    fn compile(&mut self, _shape: StepShape) -> Result<(), BackendError> {
        Ok(())
    }

    fn can_queue(&self) -> bool {
        self.queue.is_some()
    }

    fn enqueue(&mut self, input: &StepInput) -> Result<(), BackendError> {
        let queue = self.queue.as_mut().ok_or(BackendError::NotQueued)?;
        if queue.steps.len() == 2 {
            return Err(StepError("two steps are under way".to_owned()).into());
        }
        let mut step = queue.spare.pop().unwrap_or_default();
        step.clear();
        step.token_ids.extend_from_slice(&input.token_ids);
        step.sequences.extend_from_slice(&input.sequences);
        step.block_tables.extend_from_slice(&input.block_tables);
        step.output_rows.extend_from_slice(&input.output_rows);
        step.block_copies.extend_from_slice(&input.block_copies);
        step.sampling.extend_from_slice(&input.sampling);
        queue.steps.push_back(step);
        Ok(())
    }

    fn collect(&mut self) -> Result<&[Choice], BackendError> {
        let mut queue = self.queue.take().ok_or(BackendError::NotQueued)?;
        let done = self.collect_from(&mut queue);
        self.queue = Some(queue);
        done?;
        Ok(self.queue.as_ref().map_or(&[], |queue| &queue.choices))
    }

    fn replay(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.run(input, self.vocab_size)
    }

    fn replay_with_peaks(&mut self, input: &StepInput) -> Result<Logits<'_>, BackendError> {
        self.run(input, self.vocab_size)?;
        let rows = self.logits.chunks(self.vocab_size.max(1));
        self.peaks.clear();
        self.peaks.extend(rows.flat_map(|row| row.chunks(PEAK_GROUP).map(peak)));
        Ok(Logits { values: &self.logits, peaks: Some(&self.peaks) })
    }

    fn hidden_size(&self) -> Option<usize> {
        Some(NULL_HIDDEN_SIZE)
    }

    fn resident_weights(&self) -> Vec<ResidentWeight> {
        let weights = self.weights.iter().filter_map(|weights| weights.lock().ok());
        let resident = |bytes| ResidentWeight { weight: 0, name: "null.weight".to_owned(), layout: "as it is", bytes };
        weights.map(|weights| resident(weights.len() as u64)).collect()
    }

    fn read_weight(
        &mut self,
        _: &ResidentWeight,
        range: Range<u64>,
        read: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        if let Some(Ok(weights)) = self.weights.as_ref().map(|weights| weights.lock()) {
            read(&weights[range.start as usize..range.end as usize]);
        }
        Ok(())
    }

    fn replay_hidden(&mut self, input: &StepInput) -> Result<&[f32], BackendError> {
        self.run(input, NULL_HIDDEN_SIZE)
    }

    fn block_layout(&self) -> Option<BlockLayout> {
        Some(BlockLayout { name: format!("null {}", self.kv.block_len), bytes: self.kv.block_len * size_of::<u32>() })
    }

    fn read_block(&mut self, block: u32, to: &mut Vec<u8>) -> Result<(), BackendError> {
        let start = block as usize * self.kv.block_len;
        for slot in &self.slots[start..start + self.kv.block_len] {
            match slot {
                Slot::Token(token) => to.extend(token.to_le_bytes()),
                other => return Err(StepError(format!("{other:?} is read out of block {block}")).into()),
            }
        }
        Ok(())
    }

    fn write_block(&mut self, block: u32, from: &[u8]) -> Result<(), BackendError> {
        let start = block as usize * self.kv.block_len;
        let tokens = from.chunks_exact(size_of::<u32>()).filter_map(|token| token.try_into().ok());
        for (slot, token) in self.slots[start..start + self.kv.block_len].iter_mut().zip(tokens) {
            *slot = Slot::Token(u32::from_le_bytes(token));
        }
        Ok(())
    }
}

impl NullExecutable {
    /// A step whose results are so wide.
    fn run(&mut self, input: &StepInput, width: usize) -> Result<&[f32], BackendError> {
        input.check(self.vocab_size, &self.kv)?;
        self.check_exclusive(input)?;
        let step = self.num_steps;
        self.num_steps += 1;
        self.copy_blocks(input);
        self.write(input);
        let fault = self.faults.as_mut().and_then(|faults| faults(step, input));
        match fault {
            Some(Fault::Error) => {
                let reason = format!("planted at step {step}");
                return Err(BackendError::Device { device: "null".to_owned(), reason });
            }
            Some(Fault::NotANumber { output }) => self.spoil(input, output),
            None => {}
        }
        self.logits.clear();
        for &row in &input.output_rows {
            let row = row as usize;
            let sequence = sequence_of(input, row);
            let (mut state, mut is_sound) = (TokenHash::default(), true);
            for position in 0..=sequence.first_position + row - sequence.first_row {
                match self.slots[self.slot(input.table(sequence), position)] {
                    Slot::Token(token) => state.push(token),
                    Slot::NotANumber => is_sound = false,
                    Slot::Empty => {
                        return Err(StepError(format!("position {position} is read before it is written")).into());
                    }
                }
            }
            let said = self.script.as_ref().and_then(|script| {
                let mut script = script.lock().ok()?;
                if script.len() > 1 { script.pop_front() } else { script.front().copied() }
            });
            if let Some(said) = said {
                self.logits.extend((0..width).map(|id| if id == said as usize { 1e3 } else { 0.0 }));
                continue;
            }
            self.logits.extend(state.logits(width).map(|logit| if is_sound { logit } else { f32::NAN }));
        }
        Ok(&self.logits)
    }

    /// Computes the oldest step of `queue`, whose choices still are those of the step before it.
    fn collect_from(&mut self, queue: &mut Queue) -> Result<(), BackendError> {
        let mut step = queue.steps.pop_front().ok_or(BackendError::NotQueued)?;
        for id in &mut step.token_ids {
            if let Some(output) = id.checked_sub(FED) {
                // Those of a step that failed are anything, and nobody is to be shown what comes of them.
                *id = queue.choices.get(output as usize).map_or(0, |choice| choice.token_id);
            }
        }
        queue.choices.clear();
        let done = self.replay(&step).map(drop);
        if done.is_ok() {
            queue.choices.extend(self.logits.chunks_exact(self.vocab_size).enumerate().map(|(output, logits)| {
                let how = step.sampling.get(output).copied().unwrap_or_default();
                let faulty = logits.iter().position(|logit| !logit.is_finite());
                let token_id = if faulty.is_some() { 0 } else { choose(logits, &how) as u32 };
                Choice { token_id, fault: faulty.map(|id| (id as u32, logits[id])) }
            }));
        }
        queue.spare.push(step);
        done
    }
}

/// The sequence that `row` belongs to.
fn sequence_of(input: &StepInput, row: usize) -> &SequenceSpan {
    let sequence = input.sequences.iter().find(|sequence| row < sequence.first_row + sequence.num_rows);
    sequence.expect("the step was checked: sequences cover all rows")
}

/// The logits (vocab_size,) that the null device gives after `tokens`: what a test compares a whole engine with.
pub fn null_logits(tokens: &[u32], vocab_size: usize) -> Vec<f32> {
    let mut state = TokenHash::default();
    tokens.iter().for_each(|&token| state.push(token));
    state.logits(vocab_size).collect()
}

/// The hidden state (NULL_HIDDEN_SIZE,) that the null device gives the last of `tokens`.
pub fn null_state(tokens: &[u32]) -> Vec<f32> {
    null_logits(tokens, NULL_HIDDEN_SIZE)
}

/// A hash of tokens in their order.
#[derive(Clone, Copy, Debug, Default)]
struct TokenHash(u64);

impl TokenHash {
    fn push(&mut self, token: u32) {
        self.0 = mix(self.0 ^ (u64::from(token) + 1));
    }

    /// Numbers from -8 to 8.
    fn logits(self, vocab_size: usize) -> impl Iterator<Item = f32> {
        (0..vocab_size as u64).map(move |id| (mix(self.0 ^ (id << 32)) >> 40) as f32 / 1_048_576.0 - 8.0)
    }
}

/// The mixing function of splitmix64, a bijection (public domain, S. Vigna).
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
