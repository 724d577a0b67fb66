//! A decode step allocates nothing: not in the scheduler, the cache, the batch or the sampler.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use engine::null::NullExecutable;
use engine::{Dynatemp, Engine, EngineConfig, Mirostat, Request, SamplingParams};
use plan::{KvFormat, KvLayout};

thread_local! {
    /// Of this thread: the test harness has others.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and no test either.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, that is from `System`, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_decode_step_allocates_nothing() {
    steps_allocate_nothing(
        NullExecutable::new(KV, 1000),
        [
            SamplingParams::greedy(),
            SamplingParams { repetition_penalty: 1.1, top_k: 40, top_p: 0.9, min_p: 0.05, ..SamplingParams::default() },
            SamplingParams { typical_p: 0.9, temperature: 0.7, ..SamplingParams::default() },
        ],
    );
}

#[test]
fn a_decode_step_of_samplers_that_look_at_all_candidates_allocates_nothing() {
    let mirostat = |version| SamplingParams {
        mirostat: Mirostat { version, ..SamplingParams::default().mirostat },
        ..SamplingParams::default()
    };
    let spread = SamplingParams {
        top_n_sigma: 1.0,
        dynatemp: Dynatemp { range: 0.5, exponent: 1.0 },
        ..SamplingParams::default()
    };
    steps_allocate_nothing(NullExecutable::new(KV, 1000), [mirostat(1), mirostat(2), spread]);
}

#[test]
fn a_decode_step_that_is_submitted_ahead_allocates_nothing() {
    let greedy = || SamplingParams::greedy();
    let engine = steps_allocate_nothing(NullExecutable::new(KV, 1000).with_queue(), [greedy(), greedy(), greedy()]);
    assert!(engine.stats().num_ahead >= 100, "{:?}", engine.stats());
}

const KV: KvLayout = KvLayout { format: KvFormat::F32, block_len: 16, num_blocks: 64 };

fn steps_allocate_nothing(executable: NullExecutable, params: [SamplingParams; 3]) -> Engine {
    let mut engine = Engine::new(Box::new(executable), EngineConfig::new(KV, 256, 1000, vec![])).unwrap();
    for sampling in params {
        engine.submit(Request { max_tokens: Some(200), ..Request::new(vec![1; 10], sampling) }).unwrap();
    }
    let mut outputs = Vec::new();
    // The room for a sequence's tokens doubles when they pass 80 and next when they pass 160; that for its blocks, at
    // 128 tokens.
    for _ in 0..75 {
        engine.step_into(&mut outputs);
    }
    let before = ALLOCATIONS.get();
    for _ in 0..40 {
        engine.step_into(&mut outputs);
        assert_eq!(outputs.len(), 3);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    engine
}
