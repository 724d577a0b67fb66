//! How much a figure changed, and how sure that is.

/// A difference below this is never one: two runs of the same program differ as much.
const MIN_BAND: f64 = 0.01;
/// Standard deviations of one repetition that the band is wide.
const BAND_DEVIATIONS: f64 = 2.0;

/// A figure with the spread of its repetitions, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median of the repetitions.
    pub median: f64,
    /// The lowest and the highest repetition.
    pub range: (f64, f64),
    /// The standard deviation of one repetition by the mean of all; `None` if the repetitions themselves are not known.
    pub deviation: Option<f64>,
}

/// What two measurements of one quantity say together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// How many times as good the later figure is: 1.1 is 10 % faster, in tokens per second as in milliseconds.
    pub ratio: f64,
    /// A ratio this far from 1 is still noise. `None` where a side has one repetition only, so nobody knows.
    pub band: Option<f64>,
}

impl Spread {
    /// Of the repetitions; `None` without one.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let n = sorted.len();
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        let mean = sorted.iter().sum::<f64>() / n as f64;
        let squares: f64 = sorted.iter().map(|sample| (sample - mean).powi(2)).sum();
        let deviation = (n > 1).then(|| (squares / (n - 1) as f64).sqrt() / mean);
        Some(Self { median, range: (least, most), deviation })
    }

    /// How far the median is from its furthest repetition, by the median.
    fn reach(&self) -> f64 {
        (self.range.1 - self.median).max(self.median - self.range.0) / self.median
    }

    /// Whether more than one repetition made it.
    fn is_known(&self) -> bool {
        self.deviation.is_some() || self.range.0 < self.range.1
    }
}

impl Change {
    /// Compares `after` with `before`. `less_is_better` is true for times and false for rates.
    ///
    /// The band takes the spread of single repetitions, not of their mean: repetitions of one run are not independent,
    /// and two runs differ by more than the errors of their means say. A deviation of few repetitions is easily too small,
    /// so the band is also no narrower than the distances from each median to its furthest repetition.
    pub fn between(before: &Spread, after: &Spread, less_is_better: bool) -> Self {
        let deviations = before.deviation.unwrap_or(0.0).hypot(after.deviation.unwrap_or(0.0));
        let band = (BAND_DEVIATIONS * deviations).max(before.reach().hypot(after.reach()));
        let ratio = after.median / before.median;
        Self {
            ratio: if less_is_better { ratio.recip() } else { ratio },
            band: (before.is_known() && after.is_known()).then(|| band.max(MIN_BAND)),
        }
    }

    /// Whether `ratio` may be noise; `None` where nobody knows.
    pub fn is_noise(&self, ratio: f64) -> Option<bool> {
        self.band.map(|band| (ratio - 1.0).abs() <= band)
    }

    /// Whether it became worse, by more than noise.
    pub fn is_worse(&self) -> bool {
        self.ratio < 1.0 && self.is_noise(self.ratio) == Some(false)
    }

    /// In words: `no difference`, `12.0 % faster`.
    pub fn verdict(&self) -> String {
        match self.is_noise(self.ratio) {
            None => "one repetition says nothing".to_owned(),
            Some(true) => "no difference".to_owned(),
            Some(false) => {
                let percent = 100.0 * (self.ratio - 1.0);
                format!("{:.1} % {}", percent.abs(), if percent > 0.0 { "faster" } else { "slower" })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(before: &[f64], after: &[f64]) -> Change {
        Change::between(&Spread::of(before).unwrap(), &Spread::of(after).unwrap(), false)
    }

    #[test]
    fn a_change_counts_when_it_is_larger_than_the_spread() {
        let verdict = |before: &[f64], after: &[f64]| between(before, after).verdict();
        assert_eq!(verdict(&[100.0, 100.0, 100.0], &[120.0, 120.0, 120.0]), "20.0 % faster");
        assert_eq!(verdict(&[100.0, 100.0, 100.0], &[80.0, 80.0, 80.0]), "20.0 % slower");
        // Deviations of 10 % each: a band of 28 %.
        assert_eq!(verdict(&[90.0, 100.0, 110.0], &[108.0, 120.0, 132.0]), "no difference");
        assert_eq!(verdict(&[100.0, 100.0], &[100.9, 100.9]), "no difference");
        assert_eq!(verdict(&[100.0], &[200.0, 200.0]), "one repetition says nothing");
        // One repetition of five that far away: a deviation of 4.5 %, but a reach of 10 %.
        assert_eq!(verdict(&[100.0, 100.0, 100.0, 100.0, 90.0], &[109.0; 5]), "no difference");
    }

    #[test]
    fn fewer_milliseconds_are_faster_and_limits_without_repetitions_are_a_spread() {
        let spread = |median, least, most| Spread { median, range: (least, most), deviation: None };
        let change = Change::between(&spread(2.0, 1.9, 2.1), &spread(1.0, 0.99, 1.01), true);
        assert_eq!((change.ratio, change.is_worse(), change.verdict()), (2.0, false, "100.0 % faster".to_owned()));
        let change = Change::between(&spread(2.0, 1.9, 2.1), &spread(3.0, 2.9, 3.1), true);
        assert!(change.is_worse() && change.verdict() == "33.3 % slower");
        // A figure without limits may be anything.
        assert!(!Change::between(&spread(2.0, 2.0, 2.0), &spread(9.0, 8.0, 10.0), true).is_worse());
        assert_eq!(Spread::of(&[]), None);
    }
}
