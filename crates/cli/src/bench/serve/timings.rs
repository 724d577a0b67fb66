//! What is measured of requests, by vLLM's names, and what a good request keeps to.

/// A bound that a good request keeps to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Goal {
    what: Metric,
    ms: f64,
}

/// What is measured of requests, by vLLM's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    /// From the request to its first text.
    Ttft,
    /// Of one answer, the mean time of a token after the first.
    Tpot,
    /// From one piece of text to the next.
    Itl,
    /// From the request to its end.
    E2el,
}

impl Metric {
    /// All, in the order in which they are shown.
    pub(super) const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::E2el];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::E2el => "e2el",
        }
    }

    /// In words.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Ttft => "time to first token",
            Self::Tpot => "time per output token",
            Self::Itl => "inter-token latency",
            Self::E2el => "end to end",
        }
    }
}

impl std::str::FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("`{text}` is no goal: ttft:MS, tpot:MS or e2el:MS");
        let (what, ms) = text.split_once(':').ok_or_else(malformed)?;
        let what = [Metric::Ttft, Metric::Tpot, Metric::E2el].into_iter().find(|metric| metric.name() == what);
        let ms: f64 = ms.parse().map_err(|_| malformed())?;
        match what {
            Some(what) if ms > 0.0 && ms.is_finite() => Ok(Self { what, ms }),
            _ => Err(malformed()),
        }
    }
}

/// What one request showed.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestTimings {
    /// When it was sent, after the start of the measurement.
    pub(super) sent_s: f64,
    pub(super) ttft_s: f64,
    pub(super) itl_s: Vec<f64>,
    pub(super) e2el_s: f64,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
}

impl RequestTimings {
    /// `None` of an answer without a second token.
    fn tpot_s(&self) -> Option<f64> {
        (self.output_tokens > 1).then(|| (self.e2el_s - self.ttft_s) / (self.output_tokens - 1) as f64)
    }

    /// Whether it keeps to all `goals`.
    pub(super) fn is_good(&self, goals: &[Goal]) -> bool {
        goals.iter().all(|goal| {
            let found = match goal.what {
                Metric::Ttft => self.ttft_s,
                Metric::Tpot => self.tpot_s().unwrap_or(0.0),
                Metric::Itl | Metric::E2el => self.e2el_s,
            };
            found * 1e3 <= goal.ms
        })
    }
}

/// The samples of a metric, in milliseconds.
pub(super) fn samples(seen: &[RequestTimings], metric: Metric) -> Vec<f64> {
    let ms = |seconds: f64| seconds * 1e3;
    match metric {
        Metric::Ttft => seen.iter().map(|seen| ms(seen.ttft_s)).collect(),
        Metric::Tpot => seen.iter().filter_map(RequestTimings::tpot_s).map(ms).collect(),
        Metric::Itl => seen.iter().flat_map(|seen| &seen.itl_s).map(|&itl| ms(itl)).collect(),
        Metric::E2el => seen.iter().map(|seen| ms(seen.e2el_s)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_bounds_of_what_one_request_has() {
        assert!("tpot:x".parse::<Goal>().is_err() && "itl:5".parse::<Goal>().is_err());
    }
}
