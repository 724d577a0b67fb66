//! The tokens still in the race, and what is done to all of them: scaling, softmax, the draw.

use plan::sampling::{pick_of, weight};

use super::params::Dynatemp;

/// A token that may be chosen. A list of them is always in ascending order of ids.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// All tokens of the vocabulary.
pub(super) fn fill(candidates: &mut Vec<Candidate>, logits: &[f32]) {
    candidates.clear();
    candidates.extend((0..).zip(logits).map(|(id, &logit)| Candidate { id, logit }));
}

/// The tokens `ids`, which ascend.
pub(super) fn fill_with(candidates: &mut Vec<Candidate>, logits: &[f32], ids: impl Iterator<Item = u32>) {
    candidates.clear();
    candidates.extend(ids.filter_map(|id| Some(Candidate { id, logit: *logits.get(id as usize)? })));
}

/// The largest logit, -inf of none.
pub(super) fn max_logit(candidates: &[Candidate]) -> f32 {
    candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max)
}

/// The sum of the candidates' weights: what these are divided by to give probabilities.
pub(super) fn weight_sum(candidates: &[Candidate], max: f32) -> u64 {
    candidates.iter().map(|candidate| weight(max - candidate.logit)).sum()
}

/// The softmax of candidates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Softmax {
    max: f32,
    sum: u64,
    /// The logarithm of the sum, over the likeliest's weight.
    log_sum: f64,
}

impl Softmax {
    /// That of `candidates`.
    pub(super) fn of(candidates: &[Candidate]) -> Self {
        let max = max_logit(candidates);
        let sum = weight_sum(candidates, max);
        Self { max, sum, log_sum: (sum as f64 / weight(0.0) as f64).ln() }
    }

    /// Whether a candidate can be drawn.
    pub(super) fn has_weight(&self, candidate: &Candidate) -> bool {
        weight(self.max - candidate.logit) > 0
    }

    /// -ln p of a candidate.
    pub(super) fn surprise(&self, candidate: &Candidate) -> f64 {
        self.log_sum - f64::from(candidate.logit - self.max)
    }

    /// The mean surprise of `candidates`, whose softmax this is. What has no weight has no share in it.
    pub(super) fn entropy(&self, candidates: &[Candidate]) -> f64 {
        candidates.iter().fold(0.0, |entropy, candidate| {
            let share = weight(self.max - candidate.logit) as f64 / self.sum as f64;
            if share > 0.0 { entropy + share * self.surprise(candidate) } else { entropy }
        })
    }
}

/// The temperature that `dynatemp` makes of `temperature`: the more even the likelihoods, the higher.
pub(super) fn dynamic_temperature(candidates: &[Candidate], temperature: f32, dynatemp: &Dynatemp) -> f32 {
    if candidates.len() <= 1 {
        return temperature;
    }
    let (least, most) = ((temperature - dynatemp.range).max(0.0), temperature + dynatemp.range);
    // Of so many candidates the entropy is this at most.
    let evenness = Softmax::of(candidates).entropy(candidates) / (candidates.len() as f64).ln();
    let share = evenness.clamp(0.0, 1.0).powf(dynatemp.exponent.into());
    (f64::from(least) + f64::from(most - least) * share) as f32
}

/// Divides the logits by `temperature`. The largest is moved to 0 first, which no softmax sees, so that no small
/// temperature overflows. 0 is for the choice at the end of the chain, and leaves them alone.
pub(super) fn temperature(candidates: &mut [Candidate], temperature: f32) {
    if temperature == 0.0 || temperature == 1.0 {
        return;
    }
    let max = max_logit(candidates);
    for candidate in candidates {
        candidate.logit = (candidate.logit - max) / temperature;
    }
}

/// The index at which the running sum of weights exceeds `pick` of the whole, in units of 2^-64; none of none.
pub(super) fn draw(candidates: &[Candidate], pick: u64) -> Option<usize> {
    let max = max_logit(candidates);
    let target = pick_of(pick, weight_sum(candidates, max));
    let mut sum = 0;
    candidates.iter().position(|candidate| {
        sum += weight(max - candidate.logit);
        sum > target
    })
}
