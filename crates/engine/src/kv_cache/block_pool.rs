//! The blocks of the KV cache: reference counts, and a list of the free ones.

/// Marks the ends of the free list.
const END: u32 = u32::MAX;

/// Reference counts of all blocks, and the free ones (count 0) as a doubly linked list, so that any of them can be
/// taken out. New blocks come from the front.
#[derive(Clone, Debug)]
pub(crate) struct BlockPool {
    ref_counts: Vec<u32>,
    /// Neighbours in the free list; meaningless for blocks in use.
    links: Vec<Links>,
    front: u32,
    back: u32,
    num_free: usize,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
}

impl BlockPool {
    /// A pool of free blocks, 0 first.
    pub(crate) fn new(num_blocks: usize) -> Self {
        let mut pool = Self {
            ref_counts: vec![0; num_blocks],
            links: vec![Links { previous: END, next: END }; num_blocks],
            front: END,
            back: END,
            num_free: 0,
        };
        for block in 0..num_blocks as u32 {
            pool.push_back(block);
        }
        pool
    }

    pub(crate) fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    pub(crate) fn num_free(&self) -> usize {
        self.num_free
    }

    pub(crate) fn ref_count(&self, block: u32) -> u32 {
        self.ref_counts[block as usize]
    }

    /// Takes the block at the front of the free list, with a count of one; none if none is free.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let block = self.front;
        if block == END {
            return None;
        }
        self.retain(block);
        Some(block)
    }

    /// Counts one more owner; a free block is taken out of the list.
    pub(crate) fn retain(&mut self, block: u32) {
        if self.ref_count(block) == 0 {
            self.unlink(block);
        }
        self.ref_counts[block as usize] += 1;
    }

    /// Counts one owner less. A block that nobody owns any more is free: at the back of the list if it is worth keeping
    /// (`cached`), at the front otherwise.
    pub(crate) fn release(&mut self, block: u32, cached: bool) {
        let count = &mut self.ref_counts[block as usize];
        assert!(*count > 0, "block {block} is released more often than it is owned");
        *count -= 1;
        if *count == 0 {
            if cached { self.push_back(block) } else { self.push_front(block) }
        }
    }

    fn push_front(&mut self, block: u32) {
        self.insert(block, Links { previous: END, next: self.front });
    }

    fn push_back(&mut self, block: u32) {
        self.insert(block, Links { previous: self.back, next: END });
    }

    fn insert(&mut self, block: u32, links: Links) {
        self.links[block as usize] = links;
        *self.next_of(links.previous) = block;
        *self.previous_of(links.next) = block;
        self.num_free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let links = self.links[block as usize];
        *self.next_of(links.previous) = links.next;
        *self.previous_of(links.next) = links.previous;
        self.num_free -= 1;
    }

    /// What says who comes after `block`: the front of the list for no block.
    fn next_of(&mut self, block: u32) -> &mut u32 {
        if block == END { &mut self.front } else { &mut self.links[block as usize].next }
    }

    fn previous_of(&mut self, block: u32) -> &mut u32 {
        if block == END { &mut self.back } else { &mut self.links[block as usize].previous }
    }

    /// Whether the list holds exactly the blocks that nobody owns, each once, and reads the same in both directions.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut listed = 0;
        let (mut previous, mut block) = (END, self.front);
        while block != END {
            if self.ref_count(block) != 0 {
                return Err(format!("block {block} is free with {} owners", self.ref_count(block)));
            }
            if self.links[block as usize].previous != previous {
                return Err(format!("the free list is broken before block {block}"));
            }
            listed += 1;
            if listed > self.num_blocks() {
                return Err("the free list is a ring".to_owned());
            }
            (previous, block) = (block, self.links[block as usize].next);
        }
        let unowned = self.ref_counts.iter().filter(|&&count| count == 0).count();
        if self.back != previous || listed != self.num_free || listed != unowned {
            return Err(format!("{unowned} blocks have no owner, {listed} are listed, {} counted", self.num_free));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_worth_keeping_are_reused_last_and_oldest_first() {
        let mut pool = BlockPool::new(4);
        let blocks: Vec<u32> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(blocks, [0, 1, 2, 3]);
        pool.check().unwrap();
        for (block, cached) in [(2, true), (0, true), (3, false), (1, true)] {
            pool.release(block, cached);
            pool.check().unwrap();
        }
        pool.retain(0); // a cached one is wanted again
        pool.check().unwrap();
        assert_eq!(std::iter::from_fn(|| pool.allocate()).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(pool.num_free(), 0);
        pool.check().unwrap();
    }

    #[test]
    fn a_block_is_free_when_its_last_owner_lets_go() {
        let mut pool = BlockPool::new(1);
        let block = pool.allocate().unwrap();
        pool.retain(block);
        pool.release(block, false);
        assert_eq!((pool.ref_count(block), pool.num_free()), (1, 0));
        pool.release(block, false);
        assert_eq!((pool.ref_count(block), pool.num_free()), (0, 1));
        pool.check().unwrap();
    }

    #[test]
    #[should_panic(expected = "released more often")]
    fn a_double_free_is_caught() {
        BlockPool::new(1).release(0, false);
    }
}
