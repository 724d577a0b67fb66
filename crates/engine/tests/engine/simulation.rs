//! Random worlds and small programs on the null device: whatever happens to other requests, each one gets the text that
//! it would get alone, and no block is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::null::Fault;
use engine::{EngineConfig, Request, SamplingParams};
use plan::{KvFormat, KvLayout};

use crate::watched::{Coverage, Watched};
use crate::world::{Random, VOCAB_SIZE, run_world};

/// Runs `world`, and says in one line which it was if it fails or panics.
fn named<T>(name: &str, world: impl FnOnce() -> Result<T, String>) -> T {
    match catch_unwind(AssertUnwindSafe(world)) {
        Ok(Ok(result)) => result,
        Ok(Err(what)) => panic!("{name} {what}"),
        Err(_) => panic!("{name} panicked, see above"),
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// More worlds: `HOTMETAL_WORLDS=100000`; a single one: `HOTMETAL_WORLD_SEED=… HOTMETAL_WORLDS=1`.
#[test]
fn every_request_of_a_random_world_gets_the_text_that_it_gets_alone() {
    let first = from_env("HOTMETAL_WORLD_SEED", 0);
    let num_worlds = from_env("HOTMETAL_WORLDS", 3000);
    let mut total = Coverage::default();
    for seed in first..first + num_worlds {
        let steps = if seed % 10 == 0 { 1000 } else { 150 };
        total.add(&named(&format!("seed={seed}"), || run_world(&mut Random::seeded(seed), steps)));
    }
    // The worlds hold what they are meant to test.
    if num_worlds >= 100 {
        for (what, count, per_world) in [
            ("finished", total.finished, 10),
            ("cancelled", total.cancelled, 1),
            ("backend errors", total.backend_errors, 1),
            ("numeric faults", total.numeric_faults, 1),
            ("refused", total.refused, 1),
            ("cached tokens", total.cached_tokens, 5),
            ("preemptions", total.preemptions, 1),
            ("steps ahead", total.ahead, 20),
            ("copies", total.copies, 1),
            ("scored tokens", total.scored, 20),
            ("embeddings", total.embedded, 1),
        ] {
            assert!(count >= per_world * num_worlds, "only {count} {what} in {num_worlds} worlds: {total:?}");
        }
    }
}

/// All programs of five operations on a pool of four blocks, with requests that share a prefix, fork, and overtake.
#[test]
fn every_small_program_keeps_its_texts_and_its_blocks() {
    const OPERATIONS: u32 = 9;
    let length = from_env("HOTMETAL_PROGRAM_LENGTH", 5) as u32;
    for (program, ahead) in
        (0..u64::from(OPERATIONS).pow(length)).flat_map(|program| [(program, false), (program, true)])
    {
        named(&format!("program={program} length={length} ahead={ahead}"), || {
            let kv = KvLayout { format: KvFormat::F32, block_len: 2, num_blocks: 4 };
            let config = EngineConfig {
                max_sequences: 3,
                max_batch_tokens: 4,
                max_waiting: 3,
                aging_steps: 2,
                ..EngineConfig::new(kv, 8, VOCAB_SIZE, vec![0])
            };
            let sampled = SamplingParams { seed: 3, ..SamplingParams::default() };
            let sampling = || if ahead { SamplingParams::greedy() } else { sampled.clone() };
            let request = |prompt: &[u32], max_tokens| Request {
                max_tokens: Some(max_tokens),
                ignore_eos: true,
                ..Request::new(prompt.to_vec(), sampling())
            };
            let mut world = Watched::new(config, ahead);
            let mut rest = program;
            for _ in 0..length {
                let operation = rest % u64::from(OPERATIONS);
                rest /= u64::from(OPERATIONS);
                match operation {
                    // A full queue is an outcome like any other.
                    0 => drop(world.submit(request(&[1, 2, 3], 4))),
                    1 => drop(world.submit(Request { num_completions: 2, ..request(&[1, 2, 3], 3) })),
                    2 => drop(world.submit(Request { priority: 1, ..request(&[1, 2, 3, 4, 5], 3) })),
                    3 => drop(world.step(None)?),
                    4 => drop(world.step(Some(Fault::Error))?),
                    5 => drop(world.step(Some(Fault::NotANumber { output: 0 }))?),
                    6 => (0..3).try_for_each(|_| world.step(None).map(drop))?,
                    7 => {
                        let first = world.live().next();
                        first.map_or(Ok(()), |(request, _)| world.cancel(request))?;
                    }
                    _ => {
                        let last = world.live().last();
                        last.map_or(Ok(()), |(request, completion)| world.cancel_completion(request, completion))?;
                    }
                }
            }
            world.drain()
        });
    }
}
