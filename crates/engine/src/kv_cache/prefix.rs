//! Which full blocks hold which tokens, so that a prompt that begins like an earlier one need not be computed again.
//!
//! A block's keys and values depend on all tokens up to its end. So a cached block is known by its own tokens *and* by
//! the block before it. That one is named by a number that is never given twice, not by its place in the pool: a chain
//! of equal numbers and equal tokens is a proof, which no collision of hashes and no reuse of a block can fake.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::CacheDomain;

/// What stands before a block: the beginning of a text in a domain, or a cached block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Parent {
    /// Nothing: only requests of this domain begin here.
    Root(CacheDomain),
    /// The cached block with this number.
    Cached(u64),
}

/// The cached blocks. Holds no blocks itself: a free block stays indexed until it is handed out again.
#[derive(Clone, Debug)]
pub(crate) struct PrefixIndex {
    block_len: usize,
    by_hash: HashMap<u64, u32>,
    entries: Vec<Option<Entry>>,
    /// (num_blocks, block_len), meaningful where there is an entry.
    tokens: Vec<u32>,
    next_number: u64,
    hash: fn(Parent, &[u32]) -> u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u64,
    parent: Parent,
    hash: u64,
}

impl PrefixIndex {
    pub(crate) fn new(num_blocks: usize, block_len: usize) -> Self {
        Self::with_hash(num_blocks, block_len, hash)
    }

    fn with_hash(num_blocks: usize, block_len: usize, hash: fn(Parent, &[u32]) -> u64) -> Self {
        Self {
            block_len,
            by_hash: HashMap::with_capacity(num_blocks),
            entries: vec![None; num_blocks],
            tokens: vec![0; num_blocks * block_len],
            next_number: 0,
            hash,
        }
    }

    /// The block that holds `tokens` after `parent`, and what it is as a parent.
    pub(crate) fn find(&self, parent: Parent, tokens: &[u32]) -> Option<(u32, Parent)> {
        let block = *self.by_hash.get(&(self.hash)(parent, tokens))?;
        let entry = self.entries[block as usize]?;
        let same = entry.parent == parent && self.tokens_of(block) == tokens;
        same.then_some((block, Parent::Cached(entry.number)))
    }

    /// Indexes `block`, which holds `tokens` after `parent`, and returns what it is as a parent. If another block holds
    /// the same, that one stays indexed. None if the hash is taken by other tokens: then this block is not cached.
    pub(crate) fn insert(&mut self, parent: Parent, tokens: &[u32], block: u32) -> Option<Parent> {
        let hash = (self.hash)(parent, tokens);
        if self.by_hash.contains_key(&hash) {
            return self.find(parent, tokens).map(|(_, parent)| parent);
        }
        let number = self.next_number;
        self.next_number += 1;
        self.by_hash.insert(hash, block);
        self.entries[block as usize] = Some(Entry { number, parent, hash });
        let start = block as usize * self.block_len;
        self.tokens[start..start + self.block_len].copy_from_slice(tokens);
        Some(Parent::Cached(number))
    }

    /// Whether `block` is indexed.
    pub(crate) fn contains(&self, block: u32) -> bool {
        self.entries[block as usize].is_some()
    }

    /// Forgets what `block` holds.
    pub(crate) fn remove(&mut self, block: u32) {
        if let Some(entry) = self.entries[block as usize].take() {
            self.by_hash.remove(&entry.hash);
        }
    }

    /// Blocks indexed.
    pub(crate) fn len(&self) -> usize {
        self.by_hash.len()
    }

    fn tokens_of(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * self.block_len..][..self.block_len]
    }

    /// Whether hashes and entries point at each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        let entries = self.entries.iter().flatten().count();
        if entries != self.by_hash.len() {
            return Err(format!("{entries} cached blocks under {} hashes", self.by_hash.len()));
        }
        for (block, entry) in (0u32..).zip(&self.entries) {
            let Some(entry) = entry else { continue };
            if self.by_hash.get(&entry.hash) != Some(&block) {
                return Err(format!("cached block {block} is not found by its hash"));
            }
        }
        Ok(())
    }
}

/// Any hash is right: equal hashes are told apart by what they stand for.
fn hash(parent: Parent, tokens: &[u32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, tokens).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Parent = Parent::Root(CacheDomain(0));

    #[test]
    fn a_block_is_found_by_its_tokens_after_the_same_blocks_only() {
        let mut index = PrefixIndex::new(4, 2);
        let first = index.insert(ROOT, &[1, 2], 3).unwrap();
        let second = index.insert(first, &[3, 4], 0).unwrap();
        assert_eq!(index.find(ROOT, &[1, 2]), Some((3, first)));
        assert_eq!(index.find(first, &[3, 4]), Some((0, second)));
        assert_eq!(index.find(ROOT, &[3, 4]), None);
        assert_eq!(index.find(second, &[3, 4]), None);
        assert_eq!(index.find(Parent::Root(CacheDomain(1)), &[1, 2]), None);
        index.check().unwrap();
    }

    #[test]
    fn equal_hashes_never_give_another_texts_block() {
        let mut index = PrefixIndex::with_hash(4, 2, |_, _| 7);
        let first = index.insert(ROOT, &[1, 2], 0).unwrap();
        assert_eq!(index.find(ROOT, &[5, 6]), None);
        assert_eq!(index.insert(ROOT, &[5, 6], 1), None);
        assert!(!index.contains(1));
        // The block is reused for another text. Its old children must not be found after it.
        index.remove(0);
        let other = index.insert(ROOT, &[5, 6], 0).unwrap();
        assert_ne!(first, other);
        assert_eq!(index.find(ROOT, &[1, 2]), None);
        index.check().unwrap();
    }

    #[test]
    fn the_child_of_a_block_that_was_evicted_is_not_found_after_its_successor() {
        let mut index = PrefixIndex::new(4, 2);
        let first = index.insert(ROOT, &[1, 2], 0).unwrap();
        index.insert(first, &[3, 4], 1).unwrap();
        index.remove(0);
        let again = index.insert(ROOT, &[1, 2], 2).unwrap();
        assert_eq!(index.find(again, &[3, 4]), None);
        assert!(index.contains(1));
        index.check().unwrap();
    }
}
