//! The paged KV cache as the scheduler sees it: block tables over a pool, prefix reuse, copy-on-write.
//!
//! Only numbers: the keys and values themselves lie in the backend. A block is in one of three states: owned by one or
//! more sequences; free and cached (its tokens are indexed, and a prompt that begins with them takes it back); free.
//! Free blocks are handed out before cached ones, and of those the one unused for longest first. Full blocks are never
//! written again; a partly filled one is written by its only owner, so sharing one means copying it first.

mod block_pool;
mod prefix;

use plan::{BlockCopy, KvLayout};

use crate::CacheDomain;
use block_pool::BlockPool;
use prefix::{Parent, PrefixIndex};

/// The blocks of one sequence: position p is in `blocks[p / block_len]`.
#[derive(Debug)]
pub(crate) struct BlockTable {
    blocks: Vec<u32>,
    /// Full blocks that were offered to the index, from the first.
    num_published: usize,
    /// The last of them; none if the index did not take it, and so none of those after it.
    parent: Option<Parent>,
}

impl BlockTable {
    /// A table without blocks.
    pub(crate) fn new(domain: CacheDomain) -> Self {
        Self { blocks: Vec::new(), num_published: 0, parent: Some(Parent::Root(domain)) }
    }

    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }
}

/// No block is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoFreeBlock;

/// All blocks, and what is known of their contents.
#[derive(Debug)]
pub(crate) struct KvCache {
    block_len: usize,
    pool: BlockPool,
    index: PrefixIndex,
    prefix_reuse: bool,
}

impl KvCache {
    pub(crate) fn new(layout: &KvLayout, prefix_reuse: bool) -> Self {
        Self {
            block_len: layout.block_len,
            pool: BlockPool::new(layout.num_blocks),
            index: PrefixIndex::new(layout.num_blocks, layout.block_len),
            prefix_reuse,
        }
    }

    /// Blocks that hold `tokens`.
    pub(crate) fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_len)
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.pool.num_blocks()
    }

    pub(crate) fn num_free(&self) -> usize {
        self.pool.num_free()
    }

    /// Blocks whose tokens are indexed, in use or not.
    pub(crate) fn num_cached(&self) -> usize {
        self.index.len()
    }

    /// Gives a sequence blocks for all of `tokens`; with `from_cache`, cached ones for as long a prefix as there are (never
    /// for the last token, whose logits are wanted). Leaves `spare` blocks free, or none of this happens. Returns the cached tokens.
    pub(crate) fn admit(
        &mut self,
        domain: CacheDomain,
        tokens: &[u32],
        spare: usize,
        from_cache: bool,
    ) -> Result<(BlockTable, usize), NoFreeBlock> {
        let full_blocks = if self.prefix_reuse && from_cache { (tokens.len() - 1) / self.block_len } else { 0 };
        let mut table = self.hold(domain, &tokens[..full_blocks * self.block_len]);
        let cached_tokens = table.blocks.len() * self.block_len;
        let num_new = self.blocks_for(tokens.len()) - table.blocks.len();
        if num_new + spare > self.pool.num_free() {
            self.free(&mut table, domain);
            return Err(NoFreeBlock);
        }
        for _ in 0..num_new {
            let block = self.allocate()?; // checked above: as many are free
            table.blocks.push(block);
        }
        Ok((table, cached_tokens))
    }

    /// Makes `position`, the next of the sequence, writable: with a new block if it begins one, with a copy of its own
    /// if others have the block too.
    pub(crate) fn make_writable(
        &mut self,
        table: &mut BlockTable,
        position: usize,
    ) -> Result<Option<BlockCopy>, NoFreeBlock> {
        let index = position / self.block_len;
        if index == table.blocks.len() {
            let block = self.allocate()?;
            table.blocks.push(block);
            return Ok(None);
        }
        let from = table.blocks[index];
        if self.pool.ref_count(from) == 1 {
            return Ok(None);
        }
        let to = self.allocate()?;
        self.release(from);
        table.blocks[index] = to;
        Ok(Some(BlockCopy { from, to }))
    }

    /// Makes `position` writable, as [`KvCache::make_writable`], if that takes no copy; says whether it did.
    pub(crate) fn extend(&mut self, table: &mut BlockTable, position: usize) -> bool {
        let index = position / self.block_len;
        if index == table.blocks.len() {
            return self.allocate().map(|block| table.blocks.push(block)).is_ok();
        }
        self.pool.ref_count(table.blocks[index]) == 1
    }

    /// A second table of the same blocks.
    pub(crate) fn fork(&mut self, table: &BlockTable) -> BlockTable {
        for &block in &table.blocks {
            self.pool.retain(block);
        }
        BlockTable { blocks: table.blocks.clone(), num_published: table.num_published, parent: table.parent }
    }

    /// A table of the blocks that hold the longest indexed beginning of `tokens`, whole blocks.
    pub(crate) fn hold(&mut self, domain: CacheDomain, tokens: &[u32]) -> BlockTable {
        let mut table = BlockTable::new(domain);
        let mut parent = Parent::Root(domain);
        for chunk in tokens.chunks_exact(self.block_len) {
            let Some((block, next)) = self.index.find(parent, chunk) else { break };
            self.pool.retain(block);
            table.blocks.push(block);
            parent = next;
        }
        (table.num_published, table.parent) = (table.blocks.len(), Some(parent));
        table
    }

    /// A table of `count` new blocks.
    pub(crate) fn reserve(&mut self, domain: CacheDomain, count: usize) -> Result<BlockTable, NoFreeBlock> {
        if count > self.pool.num_free() {
            return Err(NoFreeBlock);
        }
        let mut table = BlockTable::new(domain);
        for _ in 0..count {
            let block = self.allocate()?; // checked above: as many are free
            table.blocks.push(block);
        }
        Ok(table)
    }

    /// Forgets what the blocks of a table hold: who has them keeps them, and nobody else is given them.
    pub(crate) fn forget(&mut self, table: &BlockTable) {
        table.blocks.iter().for_each(|&block| self.index.remove(block));
    }

    /// Indexes the blocks that `tokens`, all of them computed and found sound, have filled.
    pub(crate) fn publish(&mut self, table: &mut BlockTable, tokens: &[u32]) {
        if !self.prefix_reuse {
            return;
        }
        let chunks = tokens.chunks_exact(self.block_len).enumerate().skip(table.num_published);
        for (index, chunk) in chunks {
            let Some(parent) = table.parent else { return };
            table.parent = self.index.insert(parent, chunk, table.blocks[index]);
            table.num_published = index + 1;
        }
    }

    /// Lets go of all blocks, the last first, so that of a cached chain the end is reused before the beginning.
    pub(crate) fn free(&mut self, table: &mut BlockTable, domain: CacheDomain) {
        while let Some(block) = table.blocks.pop() {
            self.release(block);
        }
        *table = BlockTable { blocks: std::mem::take(&mut table.blocks), ..BlockTable::new(domain) };
    }

    /// As [`KvCache::free`], and nobody will be given these blocks' contents again: they are not to be trusted.
    pub(crate) fn discard(&mut self, table: &mut BlockTable, domain: CacheDomain) {
        for &block in &table.blocks {
            self.index.remove(block);
        }
        self.free(table, domain);
    }

    /// Whether a sequence may write positions `from..to`: the blocks are its own, and their contents not indexed.
    pub(crate) fn is_writable(&self, table: &BlockTable, from: usize, to: usize) -> bool {
        let blocks = table.blocks.get(from / self.block_len..self.blocks_for(to));
        blocks.is_some_and(|blocks| {
            blocks.iter().all(|&block| self.pool.ref_count(block) == 1 && !self.index.contains(block))
        })
    }

    /// Whether every block has as many owners as `tables` name it, and lists and index are whole.
    pub(crate) fn check<'a>(&self, tables: impl Iterator<Item = &'a BlockTable>) -> Result<(), String> {
        let mut owners = vec![0u32; self.num_blocks()];
        for &block in tables.flat_map(|table| &table.blocks) {
            owners[block as usize] += 1;
        }
        for (block, &owners) in (0u32..).zip(&owners) {
            if owners != self.pool.ref_count(block) {
                return Err(format!("block {block} is in {owners} tables and counted {}", self.pool.ref_count(block)));
            }
        }
        self.pool.check()?;
        self.index.check()
    }

    fn allocate(&mut self) -> Result<u32, NoFreeBlock> {
        let block = self.pool.allocate().ok_or(NoFreeBlock)?;
        self.index.remove(block);
        Ok(block)
    }

    fn release(&mut self, block: u32) {
        self.pool.release(block, self.index.contains(block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: CacheDomain = CacheDomain(0);

    fn cache(num_blocks: usize) -> KvCache {
        KvCache::new(&KvLayout { format: plan::KvFormat::F32, block_len: 4, num_blocks }, true)
    }

    fn tokens(len: u32) -> Vec<u32> {
        (0..len).collect()
    }

    #[test]
    fn a_published_prefix_is_found_but_for_the_last_token() {
        let mut kv = cache(8);
        let (mut table, cached) = kv.admit(DOMAIN, &tokens(8), 0, true).unwrap();
        assert_eq!(cached, 0);
        kv.publish(&mut table, &tokens(8));
        let blocks = table.blocks.clone();
        kv.free(&mut table, DOMAIN);
        // 8 tokens are cached, but the last must be computed; of 9, it is the ninth.
        for (len, expected) in [(8, 4), (9, 8), (4, 0), (5, 4)] {
            let (mut table, cached) = kv.admit(DOMAIN, &tokens(len), 0, true).unwrap();
            assert_eq!(cached, expected, "{len} tokens");
            assert_eq!(table.blocks[..cached / 4], blocks[..cached / 4]);
            kv.check(std::iter::once(&table)).unwrap();
            kv.free(&mut table, DOMAIN);
        }
        assert_eq!(kv.admit(CacheDomain(1), &tokens(9), 0, true).unwrap().1, 0);
    }

    #[test]
    fn admission_is_all_or_nothing() {
        let mut kv = cache(4);
        let (table, _) = kv.admit(DOMAIN, &tokens(8), 0, true).unwrap();
        assert_eq!(kv.admit(DOMAIN, &tokens(12), 0, true).unwrap_err(), NoFreeBlock);
        assert_eq!(kv.admit(DOMAIN, &tokens(8), 1, true).unwrap_err(), NoFreeBlock);
        assert_eq!(kv.num_free(), 2);
        kv.check(std::iter::once(&table)).unwrap();
    }

    #[test]
    fn a_forked_block_is_copied_by_the_first_to_write_and_kept_by_the_last() {
        let mut kv = cache(4);
        let (mut parent, _) = kv.admit(DOMAIN, &tokens(6), 0, true).unwrap();
        let mut child = kv.fork(&parent);
        assert!(!kv.is_writable(&parent, 6, 7));
        let copy = kv.make_writable(&mut child, 6).unwrap().unwrap();
        assert_eq!((copy.from, copy.to), (parent.blocks[1], child.blocks[1]));
        assert_eq!(kv.make_writable(&mut parent, 6).unwrap(), None);
        assert_eq!(parent.blocks[0], child.blocks[0]);
        assert!(kv.is_writable(&parent, 6, 7) && kv.is_writable(&child, 6, 7));
        kv.check([&parent, &child].into_iter()).unwrap();
    }

    #[test]
    fn the_beginning_of_a_cached_chain_outlives_its_end() {
        let mut kv = cache(3);
        let (mut table, _) = kv.admit(DOMAIN, &tokens(12), 0, true).unwrap();
        kv.publish(&mut table, &tokens(12));
        kv.free(&mut table, DOMAIN);
        let mut other = kv.admit(DOMAIN, &[99, 98], 0, true).unwrap().0;
        kv.free(&mut other, DOMAIN);
        let (_, cached) = kv.admit(DOMAIN, &tokens(12), 0, true).unwrap();
        assert_eq!(cached, 8);
    }

    #[test]
    fn discarded_blocks_are_never_found_again() {
        let mut kv = cache(4);
        let (mut table, _) = kv.admit(DOMAIN, &tokens(8), 0, true).unwrap();
        kv.publish(&mut table, &tokens(8));
        kv.discard(&mut table, DOMAIN);
        assert_eq!((kv.num_cached(), kv.num_free()), (0, 4));
        assert_eq!(kv.admit(DOMAIN, &tokens(9), 0, true).unwrap().1, 0);
    }
}
