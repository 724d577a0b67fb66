//! What a handful of samples says.

use serde::{Deserialize, Serialize};

/// Of tokens per second, over the repetitions.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Summary {
    /// The middle one, or between the two in the middle.
    pub median: f64,
    /// Their sum by their number.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Of the sample (n - 1); 0 for a single repetition.
    pub stdev: f64,
}

/// Of milliseconds, over all steps of all repetitions.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Percentiles {
    /// Half of the steps take no longer.
    pub p50: f64,
    /// 19 of 20 steps take no longer.
    pub p95: f64,
    /// 99 of 100 steps take no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Summary {
    /// Of samples in any order; zeros of none.
    pub fn of(samples: &[f64]) -> Self {
        let sorted = sorted(samples);
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        Self {
            median: quantile(&sorted, 0.5),
            mean,
            min: quantile(&sorted, 0.0),
            max: quantile(&sorted, 1.0),
            stdev: if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 },
        }
    }
}

impl Percentiles {
    /// Of samples in any order; zeros of none.
    pub fn of(samples: &[f64]) -> Self {
        let sorted = sorted(samples);
        let [p50, p95, p99, max] = [0.5, 0.95, 0.99, 1.0].map(|q| quantile(&sorted, q));
        Self { p50, p95, p99, max }
    }
}

/// The middle of samples in any order; 0 of none.
pub fn median(samples: &[f64]) -> f64 {
    quantile(&sorted(samples), 0.5)
}

/// The 0th, 5th, … 100th percentile: how the samples are distributed.
pub fn twentieths(samples: &[f64]) -> Vec<f64> {
    let sorted = sorted(samples);
    (0..=20).map(|n| quantile(&sorted, f64::from(n) / 20.0)).collect()
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Between the two nearest samples, in proportion; 0 of none.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = q * last as f64;
    let (below, above) = (place.floor(), place.ceil());
    let low = sorted[below as usize];
    low + (sorted[above as usize] - low) * (place - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_textbook() {
        let found = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        let expected = Summary { median: 2.5, mean: 2.5, min: 1.0, max: 4.0, stdev: (5.0f64 / 3.0).sqrt() };
        assert_eq!(found, expected);
        let samples: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let rounded: Vec<_> = twentieths(&samples).into_iter().map(f64::round).collect();
        assert_eq!(rounded, (0..=20).map(|n| f64::from(5 * n)).collect::<Vec<_>>());
        assert_eq!(Percentiles::of(&samples), Percentiles { p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
    }

    #[test]
    fn one_sample_has_no_spread_and_none_is_zero() {
        assert_eq!(Summary::of(&[7.0]), Summary { median: 7.0, mean: 7.0, min: 7.0, max: 7.0, stdev: 0.0 });
        assert_eq!(Percentiles::of(&[]), Percentiles { p50: 0.0, p95: 0.0, p99: 0.0, max: 0.0 });
    }
}
