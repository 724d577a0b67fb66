//! Random steps: sequences whose cache blocks lie in any order, cut into steps in any way.

use plan::{KvLayout, StepInput};

use crate::Rng;

/// The free blocks of a cache, in random order.
#[derive(Clone, Debug)]
pub struct BlockPool {
    block_len: usize,
    free: Vec<u32>,
}

impl BlockPool {
    /// All blocks of `kv`, shuffled.
    pub fn new(kv: &KvLayout, rng: &mut Rng) -> Self {
        let mut free: Vec<_> = (0..u32::try_from(kv.num_blocks).expect("a small pool")).collect();
        rng.shuffle(&mut free);
        Self { block_len: kv.block_len, free }
    }

    /// One block.
    ///
    /// # Panics
    /// When there is none left: the test asked for too small a cache.
    pub fn take(&mut self) -> u32 {
        self.free.pop().expect("a cache with enough blocks for the test")
    }

    /// A sequence of `tokens` with all the blocks that it needs.
    pub fn sequence(&mut self, tokens: Vec<u32>) -> Sequence {
        let table = (0..tokens.len().div_ceil(self.block_len)).map(|_| self.take()).collect();
        Sequence { tokens, table, done: 0 }
    }
}

/// A sequence and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// All its tokens.
    pub tokens: Vec<u32>,
    /// Its blocks, for all its tokens.
    pub table: Vec<u32>,
    /// Tokens that are in the cache already.
    pub done: usize,
}

impl Sequence {
    /// Tokens that are still to come.
    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.done
    }

    /// Appends the next `count` tokens to `input`, with the logits of each of them wanted.
    pub fn push_next(&mut self, input: &mut StepInput, count: usize) {
        let end = self.done + count;
        let first_row = input.push_sequence(&self.tokens[self.done..end], self.done, &self.table);
        input.output_rows.extend((first_row..first_row + count).map(|row| row as u32));
        self.done = end;
    }

    /// A step of the next `count` tokens alone.
    pub fn next_step(&mut self, count: usize) -> StepInput {
        let mut input = StepInput::default();
        self.push_next(&mut input, count);
        input
    }
}
