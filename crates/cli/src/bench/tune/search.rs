//! Which way to launch each kernel makes a whole step shortest.
//!
//! A kernel by itself says little: the next one starts while it ends, so a way that is faster alone can make the step
//! longer. So it is steps that are timed, with one choice changed at a time, and what differs by no more than the same
//! step differs from itself is no choice.

use std::time::Instant;

use anyhow::Result;
use backend::{Tunable, Tuning};
use lab::check::{Checks, Verdict};
use lab::patterns::Random;
use lab::statistics::median;

use super::super::args::Test;
use super::super::run::Driver;

/// Decode steps of a sample.
const STEPS: usize = 24;
/// A way that takes so much longer in its first sample than the best so far is not tried again.
const HOPELESS: f64 = 1.01;
/// Ways that go into the last round, beside the one before.
const FINALISTS: usize = 3;
/// Rounds that decide, at least, where time is short.
const ROUNDS_MIN: usize = 3;
/// Shares of a step that count as a gain, at least.
const LEAST_GAIN: f64 = 0.002;

/// What times steps, and what they are steps of.
pub(super) struct Search<'a> {
    pub(super) driver: &'a mut Driver,
    pub(super) live: &'static Tuning,
    pub(super) checks: &'a mut Checks,
    pub(super) repetitions: usize,
    pub(super) random: Random,
    pub(super) deadline: Instant,
    /// Whether a key is to be tuned.
    pub(super) wants: &'a dyn Fn(&str) -> bool,
    /// Hears of every way that was tried.
    pub(super) on_try: &'a mut dyn FnMut(&str),
    pub(super) found: &'a mut Found,
}

/// What came of it, over all steps.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Ways that were timed.
    pub(super) tried: usize,
    /// Key, candidate and reason of each that computed something else.
    pub(super) wrong: Vec<(String, String, String)>,
    /// Keys that no check launches.
    pub(super) unchecked: Vec<String>,
    /// Keys that the time did not suffice for.
    pub(super) left: Vec<String>,
}

/// The choices for the steps of one number of rows.
#[derive(Debug)]
pub(super) struct TunedSteps {
    /// Seconds of the step before and after, in turns.
    pub(super) before: f64,
    pub(super) after: f64,
    pub(super) choices: Vec<Choice>,
}

#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) key: String,
    pub(super) choice: String,
    pub(super) instead_of: String,
    /// Share of the step that it saved.
    pub(super) gain: f64,
}

impl Search<'_> {
    /// Tunes the steps of `test`, which have `rows` rows.
    pub(super) fn tune(&mut self, test: &Test, rows: usize) -> Result<TunedSteps> {
        let mut choices: Vec<Choice> = vec![];
        let mut done: Vec<String> = vec![];
        // Fills the cache, so that no other steps are seen below.
        self.sample(test)?;
        // Another kernel has other ways to be launched, so what there is to choose is asked for again.
        loop {
            let seen = self.seen(test)?;
            let of_kernels = seen.iter().filter(|tunable| tunable.key.starts_with("projection "));
            let others = seen.iter().filter(|tunable| !tunable.key.starts_with("projection "));
            let Some(next) = of_kernels.chain(others).find(|tunable| !done.contains(&tunable.key)).cloned() else {
                break;
            };
            done.push(next.key.clone());
            if !(self.wants)(&next.key) {
                continue;
            }
            if Instant::now() >= self.deadline {
                self.found.left.push(next.key);
                continue;
            }
            choices.extend(self.tune_one(test, rows, &next)?);
        }
        if choices.is_empty() {
            let before = self.sample(test)?;
            return Ok(TunedSteps { before, after: before, choices });
        }
        let [before, after] = self.beside_before(test, &choices)?;
        if after < before * (1.0 - LEAST_GAIN) {
            return Ok(TunedSteps { before, after, choices });
        }
        // Gains that do not add up were none.
        choices.iter().for_each(|choice| self.live.set(&choice.key, None));
        Ok(TunedSteps { before, after: before, choices: vec![] })
    }

    /// What a step of `test` chooses among. The cache must be filled, as the steps that fill it choose, too.
    fn seen(&mut self, test: &Test) -> Result<Vec<Tunable>> {
        self.live.watch();
        self.driver.forget_programs();
        let sampled = self.sample(test);
        let seen = self.live.watched();
        sampled?;
        Ok(seen)
    }

    /// The median of a sample of steps, in seconds.
    fn sample(&mut self, test: &Test) -> Result<f64> {
        sample(self.driver, test)
    }

    /// The same with `choice` for `key`.
    fn sample_of(&mut self, test: &Test, key: &str, choice: &str) -> Result<f64> {
        self.live.set(key, Some(choice));
        self.driver.forget_programs();
        self.sample(test)
    }

    fn tune_one(&mut self, test: &Test, rows: usize, tunable: &Tunable) -> Result<Option<Choice>> {
        let Tunable { key, candidates, default } = tunable;
        let Some(verdicts) = self.checks.prove(rows, tunable)? else {
            self.found.unchecked.push(key.clone());
            return Ok(None);
        };
        let mut ways = vec![];
        for (candidate, verdict) in candidates.iter().zip(&verdicts) {
            let why = match verdict {
                Verdict::Right => {
                    ways.push(candidate);
                    continue;
                }
                Verdict::Wrong(times) => format!("off by {times:.3e} times what it may be"),
                Verdict::Failed(why) => why.clone(),
            };
            self.found.wrong.push((key.clone(), candidate.clone(), why));
        }
        let usual = &candidates[*default];
        if !ways.contains(&usual) {
            // Named above; there is nothing to compare with.
            return Ok(None);
        }
        ways.retain(|&way| way != usual);
        shuffle(&mut ways, &mut self.random);
        let begun = Instant::now();
        let mut samples = vec![(usual, self.sample_of(test, key, usual)?)];
        // What the last rounds take, where a step is long.
        let last = begun.elapsed() * ((FINALISTS + 1) * ROUNDS_MIN) as u32;
        for way in ways {
            if Instant::now() + last >= self.deadline {
                self.found.left.push(format!("{key} {way}"));
                continue;
            }
            (self.on_try)(key);
            self.found.tried += 1;
            samples.push((way, self.sample_of(test, key, way)?));
        }
        let best = samples.iter().map(|&(_, seconds)| seconds).fold(f64::INFINITY, f64::min);
        samples.sort_by(|a, b| a.1.total_cmp(&b.1));
        let hopeful = samples.iter().filter(|&&(way, seconds)| way != usual && seconds <= best * HOPELESS);
        let finalists: Vec<_> = hopeful.map(|&(way, _)| way).take(FINALISTS).collect();
        let all: Vec<_> = std::iter::once(usual).chain(finalists).collect();
        let mut rounds = vec![vec![]; all.len()];
        for round in 0..self.repetitions {
            if all.len() == 1 || self.is_over(round) {
                break;
            }
            for (way, times) in all.iter().zip(&mut rounds) {
                times.push(self.sample_of(test, key, way)?);
            }
        }
        let winner = winner(&rounds).filter(|_| rounds[0].len() >= ROUNDS_MIN.min(self.repetitions));
        self.live.set(key, winner.map(|(place, _)| all[place].as_str()));
        self.driver.forget_programs();
        Ok(winner.map(|(place, gain)| Choice {
            key: key.clone(),
            choice: all[place].clone(),
            instead_of: usual.clone(),
            gain,
        }))
    }

    /// Whether enough rounds were run and the time is up.
    fn is_over(&self, rounds: usize) -> bool {
        rounds >= ROUNDS_MIN && Instant::now() >= self.deadline
    }

    /// Seconds of a step without `choices` and with them, in turns.
    fn beside_before(&mut self, test: &Test, choices: &[Choice]) -> Result<[f64; 2]> {
        let mut rounds = [vec![], vec![]];
        for round in 0..self.repetitions {
            if self.is_over(round) {
                break;
            }
            for (is_after, times) in [false, true].into_iter().zip(&mut rounds) {
                for choice in choices {
                    self.live.set(&choice.key, is_after.then_some(choice.choice.as_str()));
                }
                self.driver.forget_programs();
                times.push(self.sample(test)?);
            }
        }
        Ok(rounds.map(|times| median(&times)))
    }
}

/// The median of a sample of steps, in seconds.
pub(super) fn sample(driver: &mut Driver, test: &Test) -> Result<f64> {
    let times = driver.measure(test, 1, &mut || ())?;
    let steps = if test.generate > 0 { times.decode_steps_ms } else { times.prompts_ms };
    Ok(median(&steps) / 1e3)
}

/// Of times of the way before and of others, taken in turns: which of the others is better than the first by more than
/// noise, and what share of the time it saves. The first differs from itself by noise.
pub(super) fn winner(rounds: &[Vec<f64>]) -> Option<(usize, f64)> {
    if rounds[0].is_empty() {
        return None;
    }
    let usual = median(&rounds[0]);
    let deviations: Vec<f64> = rounds[0].iter().map(|time| (time - usual).abs()).collect();
    let noise = 2.0 * median(&deviations) / usual;
    let gains = rounds.iter().map(|times| 1.0 - median(times) / usual).enumerate().skip(1);
    gains.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|&(_, gain)| gain > noise.max(LEAST_GAIN))
}

fn shuffle<T>(list: &mut [T], random: &mut Random) {
    for place in (1..list.len()).rev() {
        list.swap(place, random.below(place + 1));
    }
}

/// The step of `rows` rows that is timed: of a sequence each behind `depth` tokens, or a prompt.
pub(super) fn test_of(rows: usize, depth: usize) -> Test {
    match rows {
        ..=128 => Test { prompt: 0, generate: STEPS, depth, batch: rows },
        _ => Test { prompt: rows, generate: 0, depth: 0, batch: 1 },
    }
}

/// Until when the next of `left` kinds of steps may be tuned, where all of them have until `end`: each gets as much of
/// what is left.
pub(super) fn share_of(end: Instant, left: usize) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now) / u32::try_from(left.max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_wins_by_more_than_noise() {
        let of = |times: &[&[f64]]| winner(&times.iter().map(|times| times.to_vec()).collect::<Vec<_>>());
        let quiet: &[f64] = &[1.0, 1.0, 1.001, 0.999, 1.0];
        assert_eq!(of(&[quiet, quiet]), None);
        let (place, gain) = of(&[quiet, &[0.99, 0.99, 0.99], &[0.95, 0.95, 1.2], &[1.1, 1.1, 1.1]]).unwrap();
        assert!(place == 2 && (gain - 0.05).abs() < 1e-9, "{gain}");
        let loud: &[f64] = &[1.0, 1.1, 0.9, 1.05, 0.95];
        assert_eq!(of(&[loud, &[0.95, 0.95, 0.95]]), None);
        assert!(of(&[loud, &[0.8, 0.8, 0.8]]).is_some());
        assert_eq!(of(&[quiet]), None);
    }

    #[test]
    fn the_order_follows_from_the_seed() {
        let of = |seed| {
            let mut list: Vec<usize> = (0..20).collect();
            shuffle(&mut list, &mut Random(seed));
            list
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let mut sorted = of(3);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn few_rows_are_sequences_and_many_a_prompt() {
        assert_eq!(test_of(8, 512), Test { prompt: 0, generate: STEPS, depth: 512, batch: 8 });
        assert_eq!(test_of(512, 512), Test { prompt: 512, generate: 0, depth: 0, batch: 1 });
    }
}
