//! Replays the seeds and past crashes of a fuzz target; the tests of the crates include this file. Where
//! `HOTMETAL_FUZZ_SECONDS` says for how long, it goes on with inputs that are made of them, by `HOTMETAL_FUZZ_SEED`.
//!
//! That is no fuzzer: nothing tells it which inputs reach new code. It is what there is time for where each change is
//! checked, because the tests are built there anyway, and a build for libFuzzer takes longer than the check may.

#![expect(clippy::print_stdout, reason = "a failing test names the input")]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

/// Inputs that are made without a seed.
const INPUTS: usize = 3_000;
/// Bytes of an input that is made.
const LEN_MAX: usize = 16 << 10;

/// Every input of `target` through its oracle; there have to be `files_min` at least.
pub(crate) fn replay(target: &str, oracle: fn(&[u8]), files_min: usize) {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let mut inputs = Vec::new();
    for folder in ["seeds", "crashes"].map(|folder| fuzz.join(folder).join(target)) {
        let Ok(entries) = fs::read_dir(folder) else { continue };
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
        // File systems list them in orders of their own, and what is derived follows from the order.
        paths.sort_unstable();
        for path in paths {
            // What a failing test prints names the input.
            println!("{}", path.display());
            let input = fs::read(path).expect("a readable input");
            oracle(&input);
            inputs.push(input);
        }
    }
    assert!(inputs.len() >= files_min, "{target}: only {} inputs found", inputs.len());
    let seconds = std::env::var("HOTMETAL_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    if let Some(seconds) = seconds {
        mutate(target, oracle, &inputs, &fuzz, Duration::from_secs(seconds));
    }
}

/// Inputs that are made of `inputs` through the oracle. One that fails is kept where the fuzzer keeps its own.
fn mutate(target: &str, oracle: fn(&[u8]), inputs: &[Vec<u8>], fuzz: &Path, time: Duration) {
    let words = fs::read_to_string(fuzz.join("dictionaries").join(target)).unwrap_or_default();
    let words: Vec<Vec<u8>> = words.lines().filter_map(word).collect();
    // The same inputs each time unless it is said, so that no change is refused for what it has not changed.
    let asked = std::env::var("HOTMETAL_FUZZ_SEED").ok().and_then(|seed| seed.parse().ok());
    let (seed, most) = asked.map_or((1, INPUTS), |seed| (seed, usize::MAX));
    let mut random = Random(seed);
    let (begun, mut count) = (Instant::now(), 0);
    while count < most && begun.elapsed() < time {
        let input = random.mutated(inputs, &words);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| oracle(&input))) {
            let folder = fuzz.join("artifacts").join(target);
            let path = folder.join(format!("mutated-{seed}-{count}"));
            let kept = fs::create_dir_all(&folder).and_then(|()| fs::write(&path, &input));
            println!("{target}: {} {kept:?}", path.display());
            resume_unwind(panic);
        }
        count += 1;
    }
    println!("{target}: {count} inputs in {:?}, from {seed}", begun.elapsed());
}

/// A line of a dictionary, as libFuzzer reads it: a text in quotes, whose bytes may be written `\xNN`.
fn word(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.strip_prefix('"')?.strip_suffix('"')?.as_bytes();
    let mut word = Vec::new();
    while let Some((first, behind)) = rest.split_first() {
        let code = behind.strip_prefix(b"x").and_then(|code| code.get(..2)).filter(|_| *first == b'\\');
        let byte = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        word.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[3..] } else { behind };
    }
    Some(word)
}

/// Pseudorandom numbers (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    /// One of the inputs with a few changes.
    fn mutated(&mut self, inputs: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.below(inputs.len())].clone();
        for _ in 0..1 + self.below(5) {
            let at = self.below(input.len() + 1);
            let end = (at + 1 + self.below(40)).min(input.len());
            match self.below(8) {
                0 | 1 if at < input.len() => input[at] ^= 1 << self.below(8),
                2 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff, b'0', b'"', b'{'][self.below(8)],
                3 => input.insert(at, self.below(256) as u8),
                4 if at < end => drop(input.drain(at..end)),
                5 if at < end => {
                    let again = input[at..end].to_vec();
                    input.splice(at..at, again);
                }
                6 => {
                    // The beginning of this one and the end of another.
                    let other = &inputs[self.below(inputs.len())];
                    input.truncate(at);
                    input.extend_from_slice(&other[self.below(other.len())..]);
                }
                _ if !words.is_empty() => {
                    let word = &words[self.below(words.len())];
                    input.splice(at..at, word.iter().copied());
                }
                _ => {}
            }
        }
        input.truncate(LEN_MAX);
        input
    }
}
