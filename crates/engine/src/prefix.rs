//! Beginnings of texts that leave the cache as bytes, and come back: for a server that keeps them in files.

use backend::BlockLayout;

use crate::kv_cache::BlockTable;
use crate::{CacheDomain, Engine, EngineError};

/// Names blocks that the engine holds while somebody copies them. [`Engine::release_prefix`] and [`Engine::keep_prefix`] let them
/// go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixId(u64);

/// Such blocks.
#[derive(Debug)]
pub(crate) struct HeldPrefix {
    id: PrefixId,
    domain: CacheDomain,
    pub(crate) table: BlockTable,
}

impl Engine {
    /// How the blocks of the cache lie on the device; `None` where they cannot be copied.
    pub fn block_layout(&self) -> Option<BlockLayout> {
        self.executable.block_layout()
    }

    /// Holds the blocks of the longest beginning of `tokens` that is in the cache, and says how many they are.
    pub fn hold_prefix(&mut self, domain: CacheDomain, tokens: &[u32]) -> (PrefixId, usize) {
        let table = self.kv.hold(domain, tokens);
        let count = table.blocks().len();
        (self.held(domain, table), count)
    }

    /// Takes room for `count` blocks, whose contents [`Engine::write_prefix`] brings. `None` where there is not so much that no
    /// text holds.
    pub fn reserve_prefix(&mut self, domain: CacheDomain, count: usize) -> Option<PrefixId> {
        let table = self.kv.reserve(domain, count).ok()?;
        Some(self.held(domain, table))
    }

    /// Adds the `index`-th block of a prefix to `to`.
    pub fn read_prefix(&mut self, id: PrefixId, index: usize, to: &mut Vec<u8>) -> Result<(), EngineError> {
        let Some(block) = self.block_of(id, index) else { return Ok(()) };
        self.executable.read_block(block, to).map_err(|error| EngineError::Backend(error.to_string()))
    }

    /// Fills the `index`-th block of a prefix that was reserved with what [`Engine::read_prefix`] gave.
    pub fn write_prefix(&mut self, id: PrefixId, index: usize, from: &[u8]) -> Result<(), EngineError> {
        let Some(block) = self.block_of(id, index) else { return Ok(()) };
        self.executable.write_block(block, from).map_err(|error| EngineError::Backend(error.to_string()))
    }

    /// Indexes the blocks of a prefix under `tokens`, so that texts that begin with them find the blocks, and lets the blocks go.
    /// The caller has written all of them.
    pub fn keep_prefix(&mut self, id: PrefixId, tokens: &[u32]) {
        if let Some(mut held) = self.take(id) {
            self.kv.publish(&mut held.table, tokens);
            self.kv.free(&mut held.table, held.domain);
        }
    }

    /// Lets go of the blocks of a prefix.
    pub fn release_prefix(&mut self, id: PrefixId) {
        if let Some(mut held) = self.take(id) {
            self.kv.free(&mut held.table, held.domain);
        }
    }

    /// Forgets the longest beginning of `tokens` that is in the cache, and says how many blocks it had. Texts that run with them
    /// keep them.
    pub fn forget_prefix(&mut self, domain: CacheDomain, tokens: &[u32]) -> usize {
        let mut table = self.kv.hold(domain, tokens);
        let count = table.blocks().len();
        self.kv.forget(&table);
        self.kv.free(&mut table, domain);
        count
    }

    fn held(&mut self, domain: CacheDomain, table: BlockTable) -> PrefixId {
        let id = PrefixId(self.num_prefixes);
        self.num_prefixes += 1;
        self.prefixes.push(HeldPrefix { id, domain, table });
        id
    }

    fn take(&mut self, id: PrefixId) -> Option<HeldPrefix> {
        let place = self.prefixes.iter().position(|held| held.id == id)?;
        Some(self.prefixes.swap_remove(place))
    }

    fn block_of(&self, id: PrefixId, index: usize) -> Option<u32> {
        let held = self.prefixes.iter().find(|held| held.id == id)?;
        held.table.blocks().get(index).copied()
    }
}

#[cfg(test)]
mod tests {
    use plan::{KvFormat, KvLayout};

    use crate::null::NullExecutable;
    use crate::{CacheDomain, Engine, EngineConfig, Request, SamplingParams};

    const DOMAIN: CacheDomain = CacheDomain(7);

    fn engine(num_blocks: usize) -> Engine {
        let kv = KvLayout { format: KvFormat::F32, block_len: 4, num_blocks };
        Engine::new(Box::new(NullExecutable::new(kv, 100)), EngineConfig::new(kv, 64.min(4 * num_blocks), 100, vec![]))
            .unwrap()
    }

    /// Runs a text to its end. Returns how many tokens of the prompt came from the cache, and the generated tokens.
    fn run(engine: &mut Engine, prompt: &[u32]) -> (usize, Vec<u32>) {
        let request = Request::new(prompt.to_vec(), SamplingParams { seed: 3, ..SamplingParams::default() });
        engine.submit(Request { cache_domain: DOMAIN, max_tokens: Some(5), ..request }).unwrap();
        let (mut cached, mut generated) = (0, Vec::new());
        while engine.has_work() {
            for output in engine.step() {
                cached = output.usage.cached_tokens;
                generated.extend(output.token.map(|token| token.id));
            }
            engine.check_invariants().unwrap();
        }
        (cached, generated)
    }

    #[test]
    fn a_prefix_comes_back_in_another_engine() {
        let prompt: Vec<u32> = (10..23).collect();
        let mut first = engine(32);
        let (_, generated) = run(&mut first, &prompt);
        let all: Vec<u32> = prompt.iter().chain(&generated).copied().collect();
        // The cache has no keys of the last token, because no step read it. Only whole blocks count.
        let (id, count) = first.hold_prefix(DOMAIN, &all);
        assert_eq!(count, (all.len() - 1) / 4);
        assert_eq!(first.hold_prefix(CacheDomain(8), &all).1, 0);
        let mut bytes = Vec::new();
        for index in 0..count {
            first.read_prefix(id, index, &mut bytes).unwrap();
        }
        first.check_invariants().unwrap();
        first.release_prefix(id);
        first.check_invariants().unwrap();
        let layout = first.block_layout().unwrap();
        assert_eq!(bytes.len(), count * layout.bytes);

        let mut second = engine(32);
        assert_eq!(second.block_layout(), Some(layout.clone()));
        assert!(second.reserve_prefix(DOMAIN, 33).is_none());
        let id = second.reserve_prefix(DOMAIN, count).unwrap();
        for (index, block) in bytes.chunks(layout.bytes).enumerate() {
            second.write_prefix(id, index, block).unwrap();
        }
        second.check_invariants().unwrap();
        second.keep_prefix(id, &all);
        assert_eq!((second.stats().num_cached_blocks, second.stats().num_free_blocks), (count, 32));
        assert_eq!(run(&mut second, &prompt), (12, generated.clone()));
        // Once forgotten, it is computed again, and the text is the same.
        assert_eq!(second.forget_prefix(DOMAIN, &all), count);
        assert_eq!(run(&mut second, &prompt), (0, generated));
    }

    #[test]
    fn blocks_that_are_held_are_nobody_elses() {
        let mut engine = engine(6);
        let prompt: Vec<u32> = (10..19).collect();
        run(&mut engine, &prompt);
        let (id, count) = engine.hold_prefix(DOMAIN, &prompt);
        assert_eq!(count, 2);
        // Texts that need all other blocks, one after another.
        for first in 40..50 {
            run(&mut engine, &[first, 1, 2, 3, 4, 5, 6, 7]);
        }
        let (mut before, mut after) = (Vec::new(), Vec::new());
        engine.read_prefix(id, 0, &mut before).unwrap();
        prompt[..4].iter().for_each(|token| after.extend(token.to_le_bytes()));
        assert_eq!(before, after);
        engine.release_prefix(id);
        engine.check_invariants().unwrap();
        assert_eq!(engine.stats().num_free_blocks, 6);
    }
}
