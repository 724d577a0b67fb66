//! Measured times of steps, and from them the prompt tokens that may join a step of texts.
//!
//! The model of a step's time has two tables, by powers of two: the seconds of a step of so many texts and no prompt,
//! and the seconds that a prompt token adds, in steps of so many tokens in all. Each entry is the lower median of the
//! last [`Recent::LEN`] measurements, so that a step in which a program was compiled, or the machine was busy, moves
//! nothing. This code reads no clock, because the caller measures each step.

use std::time::Duration;

/// Powers of two that are told apart: steps of up to 2^19 tokens.
const BUCKETS: usize = 20;
/// Rows that the matrix kernels of GPUs compute at a time. A step with few rows more than a multiple of this takes as
/// long as one with all rows of the next tile (`docs/lab/0055-prompts-beside-texts-on-a-gpu.md`).
const TILE_ROWS: usize = 256;
/// Seconds of a prompt token while nothing has been measured: those of a small GPU.
const DEFAULT_TOKEN_S: f64 = 5e-5;
/// The least that a prompt token is taken to cost, in seconds: a step with prompts may come out shorter than one
/// without.
const TOKEN_S_MIN: f64 = 1e-8;
/// Measured steps after which the price of a size that no step had since is no longer believed. Without this, a size
/// that looked too slow once would never be tried again.
const FRESH_STEPS: u64 = 1000;

/// The last measurements of one kind of step.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    seconds: [f64; Recent::LEN],
    count: usize,
    /// The step that was measured last.
    step: u64,
    /// The lower median of these measurements; 0 before the first one.
    median: f64,
}

impl Recent {
    const LEN: usize = 7;

    fn add(&mut self, seconds: f64, step: u64) {
        self.seconds[self.count % Self::LEN] = seconds;
        self.count += 1;
        self.step = step;
        let mut sorted = self.seconds;
        let sorted = &mut sorted[..self.count.min(Self::LEN)];
        sorted.sort_unstable_by(f64::total_cmp);
        self.median = sorted[(sorted.len() - 1) / 2];
    }

    fn median(&self) -> Option<f64> {
        (self.count > 0).then_some(self.median)
    }
}

/// Measured times of steps.
#[derive(Clone, Debug)]
pub(crate) struct StepTimes {
    /// Tokens of prompts that a step has at least, and from which on a step says what a token costs: of a step with
    /// fewer, more may be due to another kernel than to the tokens.
    least: usize,
    /// Seconds of a step without prompts, by the number of its texts.
    texts: [Recent; BUCKETS],
    /// Seconds that each prompt token adds to those, by the number of all tokens of the step.
    prompts: [Recent; BUCKETS],
    num_steps: u64,
}

impl StepTimes {
    /// Nothing measured; steps have at least so many tokens of prompts.
    pub(crate) fn new(least: usize) -> Self {
        Self { least, texts: Default::default(), prompts: Default::default(), num_steps: 0 }
    }

    /// Notes that a step of so many texts, with a token each, and so many tokens of prompts took `time`.
    pub(crate) fn add(&mut self, texts: usize, prompt_tokens: usize, time: Duration) {
        let seconds = time.as_secs_f64();
        self.num_steps += 1;
        if prompt_tokens == 0 {
            self.texts[bucket(texts)].add(seconds, self.num_steps);
        } else if prompt_tokens >= self.least {
            let of_each = (seconds - self.texts_s(texts)) / prompt_tokens as f64;
            self.prompts[bucket(texts + prompt_tokens)].add(of_each.max(TOKEN_S_MIN), self.num_steps);
        }
    }

    /// Tokens of prompts, at most `most`, with which a step of `texts` takes about `target`. A step may always take as
    /// long again as its texts alone, and always has the least number of tokens of prompts, so that neither starves.
    pub(crate) fn prompt_tokens(&self, texts: usize, target: Duration, most: usize) -> usize {
        let texts_s = self.texts_s(texts);
        let room = (target.as_secs_f64() - texts_s).max(texts_s);
        let mut found = 0;
        for bucket in (0..=bucket(texts + most)).rev() {
            let (below, top) = ((1 << bucket) / 2, (1 << bucket).min(texts + most));
            if top <= texts {
                break;
            }
            // A float that is too large for an integer becomes the largest.
            let total = texts.saturating_add((room / self.token_s(bucket)) as usize).min(top);
            if total > below {
                found = whole_tiles(texts, total) - texts;
                break;
            }
        }
        found.max(self.least).min(most)
    }

    /// Seconds of a step of so many texts: as measured, else those of fewer texts, else of more.
    fn texts_s(&self, texts: usize) -> f64 {
        if texts == 0 {
            return 0.0;
        }
        let (fewer, more) = self.texts.split_at(bucket(texts) + 1);
        fewer.iter().rev().chain(more).find_map(Recent::median).unwrap_or(0.0)
    }

    /// Seconds of a prompt token in a step of that size: as measured lately, else as in smaller steps, else as in
    /// larger ones, else as measured at any time.
    fn token_s(&self, bucket: usize) -> f64 {
        let (smaller, larger) = self.prompts.split_at(bucket + 1);
        let nearest = || smaller.iter().rev().chain(larger);
        let is_fresh = |recent: &&Recent| self.num_steps - recent.step <= FRESH_STEPS;
        let fresh = nearest().filter(is_fresh).find_map(Recent::median);
        fresh.or_else(|| nearest().find_map(Recent::median)).unwrap_or(DEFAULT_TOKEN_S)
    }
}

/// The power of two that is not below `count`.
fn bucket(count: usize) -> usize {
    (count.max(1).next_power_of_two().trailing_zeros() as usize).min(BUCKETS - 1)
}

/// `total` without the rows of a tile that would be left nearly empty, unless nothing but `texts` is left then.
fn whole_tiles(texts: usize, total: usize) -> usize {
    let whole = total / TILE_ROWS * TILE_ROWS;
    if whole > texts { whole } else { total }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: usize = 32;
    const TARGET: Duration = Duration::from_millis(50);

    /// Measurements of a device whose step takes `fixed` seconds, and `token` seconds more for each token.
    fn measured(fixed: f64, token: f64, shapes: &[(usize, usize)]) -> StepTimes {
        let mut times = StepTimes::new(LEAST);
        for &(texts, prompts) in shapes {
            times.add(texts, prompts, Duration::from_secs_f64(fixed + token * (texts + prompts) as f64));
        }
        times
    }

    #[test]
    fn before_a_measurement_the_number_is_that_of_a_small_gpu() {
        assert_eq!(StepTimes::new(LEAST).prompt_tokens(40, TARGET, 2000), 1024 - 40);
        assert_eq!(StepTimes::new(LEAST).prompt_tokens(40, TARGET, 300), 256 - 40);
        assert_eq!(StepTimes::new(LEAST).prompt_tokens(40, TARGET, 7), 7);
    }

    #[test]
    fn as_many_tokens_join_as_the_target_leaves_time_for() {
        let shapes = [(64, 0), (64, 960), (64, 1984)];
        // 5 ms of texts leave 45 ms: 2,250 tokens of 20 µs, and a step has 2,048.
        assert_eq!(measured(4e-3, 2e-5, &shapes).prompt_tokens(64, TARGET, 1984), 1984);
        // 1,125 of 40 µs, in whole tiles.
        assert_eq!(measured(4e-3, 4e-5, &shapes).prompt_tokens(64, TARGET, 1984), 1024 - 64);
        // 45 of 1 ms: fewer than a tile.
        let slow = measured(4e-3, 1e-3, &[(1, 0), (1, 400)]);
        assert_eq!(slow.prompt_tokens(1, TARGET, 511), 45);
    }

    #[test]
    fn neither_prompts_nor_texts_starve_on_a_device_that_misses_the_target() {
        // The texts alone take 200 ms: prompts take as long again.
        let slow = measured(0.1, 1e-3, &[(100, 0), (100, 300)]);
        assert_eq!(slow.prompt_tokens(100, TARGET, 2000), 256 - 100);
        // Where a token takes longer than that, a few go on.
        let slower = measured(1e-3, 1.0, &[(1, 400)]);
        assert_eq!(slower.prompt_tokens(1, TARGET, 2000), LEAST);
    }

    #[test]
    fn one_slow_step_changes_nothing_and_a_slower_device_does() {
        let shape = (64, 960);
        let mut times = measured(4e-3, 2e-5, &[(64, 0), shape, shape, shape, shape]);
        let before = times.prompt_tokens(64, TARGET, 1984);
        times.add(64, 960, Duration::from_secs(3));
        assert_eq!(times.prompt_tokens(64, TARGET, 1984), before);
        (0..4).for_each(|_| times.add(64, 960, Duration::from_millis(90)));
        assert!(times.prompt_tokens(64, TARGET, 1984) < before / 2);
    }

    #[test]
    fn a_size_that_was_slow_long_ago_is_tried_again() {
        let mut times = measured(4e-3, 2e-5, &[(64, 0), (64, 960), (64, 960)]);
        (0..8).for_each(|_| times.add(64, 1984, Duration::from_secs(1)));
        assert_eq!(times.prompt_tokens(64, TARGET, 1984), 960);
        (0..=FRESH_STEPS).for_each(|_| times.add(64, 960, Duration::from_secs_f64(4e-3 + 2e-5 * 1024.0)));
        assert_eq!(times.prompt_tokens(64, TARGET, 1984), 1984);
    }
}
