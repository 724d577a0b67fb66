//! Worlds of requests on the null device: what comes, what ends and what fails, by random numbers or as bytes say it.

use std::time::Duration;

use engine::null::Fault;
use engine::{CacheDomain, Dry, Dynatemp, EngineConfig, EngineError, Mirostat, Pooling, Request, SamplingParams, Xtc};
use plan::{KvFormat, KvLayout};

use super::watched::{Coverage, Watched};

/// Tokens of all worlds.
pub(crate) const VOCAB_SIZE: usize = 12;

/// A world's random numbers.
pub(crate) enum Random<'a> {
    /// From a seed: splitmix64.
    Seeded(u64),
    /// Bytes that say themselves what happens, until they are spent.
    Written(&'a [u8]),
}

impl<'a> Random<'a> {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self::Seeded(seed)
    }

    pub(crate) fn written(bytes: &'a [u8]) -> Self {
        Self::Written(bytes)
    }

    /// Whether nothing else is to happen.
    fn is_spent(&self) -> bool {
        matches!(self, Self::Written([]))
    }

    fn next(&mut self) -> u64 {
        match self {
            Self::Seeded(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            Self::Written(bytes) => bytes.split_off_first().map_or(0, |byte| u64::from(*byte)),
        }
    }

    /// A number in `from..=to`. Of a span over 256, what is written reaches the first 256.
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
fn random_config(random: &mut Random<'_>) -> EngineConfig {
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
        step_target: random.one_in(2).then(|| Duration::from_millis(random.between(0, 60) as u64)),
        min_mixed_tokens: random.between(1, 3),
        ..EngineConfig::new(kv, context_len, VOCAB_SIZE, vec![0])
    }
}

/// In some worlds nearly everybody wants what the device can choose, so that steps run ahead.
fn random_sampling(random: &mut Random<'_>, mostly_greedy: bool) -> SamplingParams {
    let seed = random.next();
    if mostly_greedy && !random.one_in(12) {
        let drawn =
            SamplingParams { seed, temperature: 1.5, top_k: 7, top_p: 0.9, min_p: 0.02, ..SamplingParams::default() };
        return if random.one_in(3) { drawn } else { SamplingParams::greedy() };
    }
    match random.between(0, 7) {
        0 => SamplingParams::greedy(),
        6 => SamplingParams {
            seed,
            mirostat: Mirostat { version: if random.one_in(2) { 1 } else { 2 }, tau: 2.0, eta: 0.5 },
            ..SamplingParams::default()
        },
        7 => SamplingParams {
            seed,
            top_n_sigma: 1.5,
            dynatemp: Dynatemp { range: 0.5, exponent: 1.5 },
            ..SamplingParams::default()
        },
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
fn random_request(
    random: &mut Random<'_>,
    config: &EngineConfig,
    families: &[Vec<u32>],
    mostly_greedy: bool,
) -> Request {
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

fn random_fault(random: &mut Random<'_>) -> Option<Fault> {
    match random.between(0, 199) {
        0 => Some(Fault::Error),
        1..=3 => Some(Fault::NotANumber { output: random.between(0, 5) }),
        _ => None,
    }
}

/// At most `num_steps` steps of arrivals, ends and faults, then the rest without.
pub(crate) fn run_world(random: &mut Random<'_>, num_steps: usize) -> Result<Coverage, String> {
    let config = random_config(random);
    let families: Vec<Vec<u32>> = (0..3).map(|_| (0..16).map(|_| random.token()).collect()).collect();
    let load = random.between(1, 8);
    let queues = random.one_in(2);
    let mostly_greedy = queues && !random.one_in(6);
    let mut world = Watched::new(config.clone(), queues);
    for _ in 0..num_steps {
        if random.is_spent() {
            break;
        }
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
