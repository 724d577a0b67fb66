//! How values (times, counts of tokens) are spread, as Prometheus counts them.

/// How values are spread.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    bounds: &'static [f64],
    /// How many were at most each bound, and above the one before.
    counts: Vec<u64>,
    sum: f64,
    total: u64,
}

impl Histogram {
    /// No values yet; these are the upper bounds, in rising order.
    pub(crate) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, total: 0 }
    }

    /// How many values there are.
    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    /// Their sum.
    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// Counts a value.
    pub(crate) fn observe(&mut self, value: f64) {
        if let Some(index) = self.bounds.iter().position(|&bound| value <= bound) {
            self.counts[index] += 1;
        }
        self.sum += value;
        self.total += 1;
    }

    /// Each upper bound, with how many values were at most that.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut below = 0;
        self.bounds.iter().zip(&self.counts).map(move |(bound, count)| {
            below += count;
            (*bound, below)
        })
    }
}
