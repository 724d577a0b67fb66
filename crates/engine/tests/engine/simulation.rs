//! Random worlds and small programs on the null device: whatever happens to other requests, each one gets the text that
//! it would get alone, and no block is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::null::Fault;
use engine::{CacheDomain, Dry, EngineConfig, EngineError, Pooling, Request, SamplingParams, Xtc};
use plan::{KvFormat, KvLayout};

use crate::watched::{Coverage, Watched};

const VOCAB_SIZE: usize = 12;

/// A world's random numbers: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `from..=to`.
    fn between(&mut self, from: usize, to: usize) -> usize {
        from + (self.next() % (to - from + 1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.between(1, n) == 1
    }

    fn token(&mut self) -> u32 {
        self.between(0, VOCAB_SIZE - 1) as u32
    }
}

/// The sizes of a world: small, so that everything is scarce.
fn random_config(random: &mut Random) -> EngineConfig {
    let kv = KvLayout { format: KvFormat::F32, block_len: random.between(1, 5), num_blocks: random.between(4, 24) };
    let context_len = random.between(3, 40).min(kv.block_len * kv.num_blocks);
    let max_sequences = random.between(1, 6);
    EngineConfig {
        draws_on_device: true,
        max_batch_tokens: max_sequences + random.between(0, 12),
        max_mixed_tokens: random.between(1, 12),
        max_batch_outputs: max_sequences + random.between(1, 6),
        max_sequences,
        max_waiting: max_sequences + random.between(0, 6),
        max_waiting_tokens: random.between(40, 200),
        prefix_cache: !random.one_in(8),
        aging_steps: random.between(1, 20) as u32,
        ..EngineConfig::new(kv, context_len, VOCAB_SIZE, vec![0])
    }
}

/// In some worlds nearly everybody wants what the device can choose, so that steps run ahead.
fn random_sampling(random: &mut Random, mostly_greedy: bool) -> SamplingParams {
    let seed = random.next();
    if mostly_greedy && !random.one_in(12) {
        let drawn =
            SamplingParams { seed, temperature: 1.5, top_k: 7, top_p: 0.9, min_p: 0.02, ..SamplingParams::default() };
        return if random.one_in(3) { drawn } else { SamplingParams::greedy() };
    }
    match random.between(0, 5) {
        0 => SamplingParams::greedy(),
        1 => SamplingParams { seed, logprobs: Some(2), ..SamplingParams::default() },
        2 => SamplingParams { seed, temperature: 2.0, top_k: 5, top_p: 0.9, ..SamplingParams::default() },
        3 => SamplingParams {
            seed,
            repetition_penalty: 1.3,
            frequency_penalty: 0.5,
            presence_penalty: 0.5,
            repeat_last_n: Some(6),
            dry: Dry { multiplier: 0.8, sequence_breakers: vec![vec![3]], ..Dry::default() },
            ..SamplingParams::default()
        },
        4 => SamplingParams { seed, min_p: 0.1, typical_p: 0.8, ..SamplingParams::default() },
        _ => SamplingParams {
            seed,
            xtc: Xtc { probability: 0.5, threshold: 0.1 },
            logit_bias: vec![(0, f32::NEG_INFINITY), (5, 1.0)],
            ..SamplingParams::default()
        },
    }
}

/// A request whose prompt begins like many others.
fn random_request(random: &mut Random, config: &EngineConfig, families: &[Vec<u32>], mostly_greedy: bool) -> Request {
    let family = &families[random.between(0, families.len() - 1)];
    let mut prompt = family[..random.between(0, family.len())].to_vec();
    prompt.extend((0..random.between(1, 6)).map(|_| random.token()));
    prompt.truncate(config.context_len - 1);
    let room = config.context_len - prompt.len();
    if !mostly_greedy && random.one_in(10) {
        let pooling = if random.one_in(2) { Pooling::Mean } else { Pooling::Last };
        return Request {
            priority: random.between(0, 4) as i8 - 2,
            cache_domain: CacheDomain(random.between(0, 1) as u64),
            ..Request::embedding(prompt, pooling)
        };
    }
    // A step with such a prompt in it is not run ahead of.
    let prompt_logprobs = (!mostly_greedy && random.one_in(8)).then(|| random.between(0, 3));
    let least = if prompt_logprobs.is_some() { 0 } else { 1 };
    Request {
        prompt_logprobs,
        max_tokens: (!random.one_in(4)).then(|| random.between(least, room)),
        stop_token_ids: if random.one_in(4) { vec![random.token()] } else { vec![] },
        ignore_eos: random.one_in(3),
        num_completions: if random.one_in(4) { random.between(1, config.max_sequences.min(3)) } else { 1 },
        priority: random.between(0, 4) as i8 - 2,
        cache_domain: CacheDomain(random.between(0, 1) as u64),
        ..Request::new(prompt, random_sampling(random, mostly_greedy))
    }
}

fn random_fault(random: &mut Random) -> Option<Fault> {
    match random.between(0, 199) {
        0 => Some(Fault::Error),
        1..=3 => Some(Fault::NotANumber { output: random.between(0, 5) }),
        _ => None,
    }
}

/// `num_steps` steps of arrivals, ends and faults, then the rest without.
fn run_world(seed: u64, num_steps: usize) -> Result<Coverage, String> {
    let random = &mut Random(seed);
    let config = random_config(random);
    let families: Vec<Vec<u32>> = (0..3).map(|_| (0..16).map(|_| random.token()).collect()).collect();
    let load = random.between(1, 8);
    let queues = random.one_in(2);
    let mostly_greedy = queues && !random.one_in(6);
    let mut world = Watched::new(config.clone(), queues);
    for _ in 0..num_steps {
        if random.one_in(load) {
            match world.submit(random_request(random, &config, &families, mostly_greedy)) {
                Ok(_) | Err(EngineError::QueueFull { .. }) => {}
                Err(refused) => return Err(refused.to_string()),
            }
        }
        if random.one_in(40) && world.live().len() > 0 {
            let nth = random.between(0, world.live().len() - 1);
            let (request, completion) = world.live().nth(nth).ok_or("no such completion")?;
            if random.one_in(2) { world.cancel(request)? } else { world.cancel_completion(request, completion)? }
        }
        let fault = random_fault(random);
        world.step(fault).map_err(|what| format!("step={}: {what}", world.coverage.steps))?;
    }
    world.drain()?;
    // Whoever stands before another in the order is there at once or comes within the span of priorities that waiting
    // makes up for, and each of them ends within two contexts.
    let ahead = config.max_waiting + 2 * config.max_sequences + 4 * config.aging_steps as usize;
    let bound = (ahead * 2 * config.context_len) as u64;
    if world.coverage.longest_wait > bound {
        return Err(format!("a sequence waited {} steps, of at most {bound}", world.coverage.longest_wait));
    }
    Ok(world.coverage)
}

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
        total.add(&named(&format!("seed={seed}"), || run_world(seed, steps)));
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
