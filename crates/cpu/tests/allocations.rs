//! After warm-up a step allocates nothing, on any thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use backend::Backend;
use cpu::{CpuBackend, CpuOptions};
use plan::{KvFormat, KvLayout, StepInput, fuse};
use tensor::WeightFormat;
use testing::tiny::tiny_model;

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every method is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_step_after_warm_up_allocates_nothing() {
    for (format, threads) in [(WeightFormat::F16, 1), (WeightFormat::Q8_0, 2), (WeightFormat::F32, 3)] {
        let (plan, weights) = tiny_model("qwen3", 1, format);
        let plan = Arc::new(fuse((*plan).clone()));
        let backend = CpuBackend::new(CpuOptions { threads: Some(threads), ..CpuOptions::default() }).unwrap();
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 64 };
        let mut executable = backend.load(plan, weights, kv).unwrap();
        let table: Vec<u32> = (0..32).collect();
        let mut step = |input: &mut StepInput, tokens: &[u32], position: usize| {
            input.clear();
            input.push_sequence(tokens, position, &table);
            input.output_rows.push(tokens.len() as u32 - 1);
            executable.replay(input).unwrap()[0]
        };
        let mut input = StepInput::default();
        let prompt: Vec<u32> = (0..40).collect();
        // Each program once; the last near the end of the cache, where attention is split over threads.
        step(&mut input, &prompt, 0);
        step(&mut input, &[1], 40);
        step(&mut input, &[1], 400);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for position in 401..420 {
            step(&mut input, &[2], position);
        }
        step(&mut input, &prompt, 420);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "{format}, {threads} threads");
    }
}
