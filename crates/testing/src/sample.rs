//! Which cases of a long list are run today: a part of them in an everyday run, another part each day, and all of them in
//! a full run.

use std::time::{SystemTime, UNIX_EPOCH};

/// What has all cases run.
const FULL: &str = "HOTMETAL_TEST_FULL";
/// The day to take instead of today's, to repeat a run.
const DAY: &str = "HOTMETAL_TEST_DAY";

/// A part of a list: one case in `share`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    share: u64,
    day: u64,
}

impl Sample {
    /// Every case.
    pub const ALL: Self = Self { share: 1, day: 0 };

    /// One case in `share`: others tomorrow, and all within `share` days. All of them where `HOTMETAL_TEST_FULL` is set.
    pub fn of_today(share: u64) -> Self {
        if std::env::var_os(FULL).is_some() {
            return Self::ALL;
        }
        let asked = std::env::var(DAY).ok().and_then(|day| day.parse().ok());
        let today = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() / 86_400);
        Self::of_day(share, asked.unwrap_or_else(today))
    }

    /// One case in `share`, as on the day with this number.
    pub fn of_day(share: u64, day: u64) -> Self {
        Self { share: share.max(1), day }
    }

    /// Whether the case at this place of the list is run.
    pub fn has(self, index: usize) -> bool {
        self.days_until(index) == 0
    }

    /// Days until the case at this place of the list is run next; 0 where it is run today.
    pub fn days_until(self, index: usize) -> u64 {
        let past = (index as u64 + self.day) % self.share;
        (self.share - past) % self.share
    }
}

impl std::fmt::Display for Sample {
    /// How the run is repeated.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.share {
            1 => f.write_str("all cases"),
            share => write!(f, "one case in {share} ({DAY}={} repeats it, {FULL}=1 runs all)", self.day),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_its_day() {
        let of_day = |day| Sample::of_day(3, 20_000 + day);
        for index in 0..10 {
            let days = (0..3).filter(|&day| of_day(day).has(index));
            assert_eq!(days.count(), 1, "{index}");
            assert!(Sample::ALL.has(index));
            assert!(of_day(of_day(0).days_until(index)).has(index), "{index}");
        }
    }
}
