//! Time that a test's own thread spent computing: wall time would also measure what else runs.

use std::time::{Duration, Instant};

/// The shortest of `runs` runs of `work`, in time on the CPU (wall time where the system has no such count).
pub(crate) fn shortest(runs: usize, mut work: impl FnMut()) -> Duration {
    let mut once = || match on_cpu() {
        Some(start) => {
            work();
            on_cpu().map_or(Duration::MAX, |end| end - start)
        }
        None => {
            let start = Instant::now();
            work();
            start.elapsed()
        }
    };
    (0..runs).map(|_| once()).min().unwrap_or(Duration::MAX)
}

/// What Linux has counted for this thread so far.
fn on_cpu() -> Option<Duration> {
    // The count of a running thread is brought up to date by ticks, milliseconds apart, and when it lets others run.
    std::thread::yield_now();
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = counts.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}
