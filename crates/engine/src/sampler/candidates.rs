//! The tokens still in the race, and what is done to all of them: scaling, softmax, the draw.

use plan::sampling::{pick_of, weight};

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
