//! How long steps take, and how much of that the host takes beside the device's program.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use engine::{RequestId, StepWatch};

use crate::histogram::Histogram;

/// Upper bounds in seconds.
const STEP_S: &[f64] = &[0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];
const HOST_S: &[f64] = &[5e-6, 1e-5, 2e-5, 3e-5, 5e-5, 7.5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1];

/// How long a step may wait for the masks of grammars, if that is more than half of the device's time. A mask may take
/// longer than a step of a small model, and without the wait a text that is alone would compute each row twice.
/// Unoptimised builds take a few times as long.
const MASKS_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 20 } else { 2 });

/// What times are counted from that the engine chooses the tokens of a step by.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The times of all steps so far.
#[derive(Clone, Debug)]
pub(crate) struct StepTimes {
    /// From the end of the step before to the end of this one, without waiting for requests.
    pub(crate) step: Histogram,
    /// The part of it that was not in the device's program.
    pub(crate) host: Histogram,
}

impl Default for StepTimes {
    fn default() -> Self {
        Self { step: Histogram::new(STEP_S), host: Histogram::new(HOST_S) }
    }
}

/// Takes the time of one step after the other.
#[derive(Debug)]
pub(crate) struct StepClock {
    begun: Instant,
    given: Option<Instant>,
    on_device: Duration,
    any: bool,
    /// Requests that have left the queue, and when.
    pub(crate) started: Vec<(RequestId, Instant)>,
}

impl StepClock {
    pub(crate) fn start() -> Self {
        Self { begun: Instant::now(), given: None, on_device: Duration::ZERO, any: false, started: Vec::new() }
    }

    /// The step has ended and the next one begins. Counts it, if it gave the device anything.
    pub(crate) fn end_step(&mut self, times: &mut StepTimes) {
        let Self { begun, on_device, any, .. } = std::mem::replace(self, Self::start());
        if any {
            let step = self.begun - begun;
            times.step.observe(step.as_secs_f64());
            times.host.observe(step.saturating_sub(on_device).as_secs_f64());
        }
    }
}

impl StepWatch for StepClock {
    fn given(&mut self) {
        (self.given, self.any) = (Some(Instant::now()), true);
    }

    fn returned(&mut self) {
        self.on_device += self.given.take().map_or(Duration::ZERO, |given| given.elapsed());
    }

    fn now(&mut self) -> Option<Duration> {
        Some(ORIGIN.elapsed())
    }

    fn started(&mut self, request: RequestId) {
        self.started.push((request, Instant::now()));
    }

    /// Waits half as long as the device has computed.
    fn patience(&mut self) -> Option<Instant> {
        Some(Instant::now() + MASKS_MAX.max(self.on_device / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_takes_is_no_time_of_the_host() {
        let (mut clock, mut times) = (StepClock::start(), StepTimes::default());
        clock.end_step(&mut times);
        assert_eq!(times.step.count(), 0, "nothing was given to the device");
        for _ in 0..3 {
            clock.given();
            std::thread::sleep(Duration::from_millis(20));
            clock.returned();
            clock.end_step(&mut times);
        }
        assert_eq!((times.step.count(), times.host.count()), (3, 3));
        assert!(times.step.sum() >= 0.06 && times.host.sum() < times.step.sum() - 0.059, "{times:?}");
    }
}
