//! The clocks that steps are timed by.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::ValueEnum;

/// Bytes of the buffer that stands for weights, as the backend's own measurement has.
const BUFFER_BYTES: usize = 512 << 20;
/// Words that are added side by side: eight streams of a cache line.
const STREAMS: usize = 64;
/// Passes; the best one counts.
const PASSES: usize = 4;

/// What times a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Clock {
    /// What a user waits.
    Wall,
    /// What the processor spends on the one thread: others on the machine falsify it little.
    Cpu,
}

/// A clock that was started.
pub(super) enum Running {
    Wall(Instant),
    Cpu(Duration),
}

impl Clock {
    /// The name that flags and results use.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::Cpu => "cpu",
        }
    }

    /// Whether it can time that many threads.
    pub(super) fn check(self, threads: &[usize]) -> Result<()> {
        if self == Self::Cpu && threads.iter().any(|&threads| threads != 1) | threads.is_empty() {
            bail!("--clock cpu times one thread, as threads that wait also use a processor: add --threads 1");
        }
        if self == Self::Cpu && thread_time().is_none() {
            bail!("this system has no clock for one thread that we know: leave out --clock cpu");
        }
        Ok(())
    }

    pub(super) fn start(self) -> Running {
        match self {
            Self::Wall => Running::Wall(Instant::now()),
            Self::Cpu => Running::Cpu(thread_time().unwrap_or_default()),
        }
    }
}

impl Running {
    pub(super) fn elapsed(&self) -> Duration {
        match self {
            Self::Wall(begun) => begun.elapsed(),
            Self::Cpu(begun) => thread_time().unwrap_or_default().saturating_sub(*begun),
        }
    }
}

/// Bytes per second that this thread reads of a large buffer, in its own processor time: the ceiling for steps that are
/// timed so.
pub(super) fn read_bandwidth_of_this_thread() -> f64 {
    let words = vec![1u64; BUFFER_BYTES / size_of::<u64>()];
    let pass = || {
        let clock = Clock::Cpu.start();
        let mut sums = [0u64; STREAMS];
        for line in black_box(&words[..]).as_chunks::<STREAMS>().0 {
            for (sum, word) in sums.iter_mut().zip(line) {
                *sum = sum.wrapping_add(*word);
            }
        }
        black_box(sums);
        BUFFER_BYTES as f64 / clock.elapsed().as_secs_f64().max(1e-9)
    };
    (0..PASSES).map(|_| pass()).fold(0.0, f64::max)
}

#[cfg(target_os = "linux")]
fn thread_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(target_os = "linux"))]
fn thread_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_takes_no_processor() {
        if Clock::Cpu.check(&[1]).is_err() {
            return;
        }
        let (wall, cpu) = (Clock::Wall.start(), Clock::Cpu.start());
        std::thread::sleep(Duration::from_millis(50));
        assert!(wall.elapsed() >= Duration::from_millis(50) && cpu.elapsed() < Duration::from_millis(25));
        assert!(Clock::Cpu.check(&[]).is_err() && Clock::Cpu.check(&[1, 2]).is_err() && Clock::Wall.check(&[]).is_ok());
    }
}
