//! Log-probabilities of a chosen token and of its likeliest alternatives.

use super::candidates::{Candidate, Softmax};
use super::filters::{Ranked, rank_likeliest};
use super::peaks::Peaks;

/// Log-probabilities of one prediction: of the model's own distribution, before bias, penalties, filters and
/// temperature, unless [`SamplingParams::logprobs_after_steps`](super::SamplingParams::logprobs_after_steps).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token's.
    pub logprob: f32,
    /// The likeliest tokens, likeliest first; the chosen one may be among them.
    pub top: Vec<TokenLogprob>,
}

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// The log-softmax of `logits`, which `peaks` went over, at `chosen` and at the `count` largest.
pub(super) fn logprobs(
    logits: &[f32],
    peaks: &mut Peaks,
    chosen: u32,
    count: usize,
    ranked: &mut Vec<Ranked>,
) -> TokenLogprobs {
    let max = peaks.max();
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    let logprob = |id: u32| (f64::from(logits[id as usize] - max) - sum.ln()) as f32;

    peaks.rank_likeliest(logits, count, ranked);
    ranked.sort_unstable_by(Ranked::order);
    TokenLogprobs {
        logprob: logprob(chosen),
        top: ranked.iter().map(|&Ranked { id, .. }| TokenLogprob { id, logprob: logprob(id) }).collect(),
    }
}

/// The log-softmax of `candidates`, which the steps have left, at `chosen` and at the `count` likeliest that can be
/// drawn.
pub(super) fn after_steps(
    candidates: &[Candidate],
    chosen: u32,
    count: usize,
    ranked: &mut Vec<Ranked>,
) -> TokenLogprobs {
    let softmax = Softmax::of(candidates);
    let logprob = |id: u32, logit: f32| -softmax.surprise(&Candidate { id, logit }) as f32;
    let drawable = candidates.iter().filter(|candidate| softmax.has_weight(candidate));
    rank_likeliest(drawable.map(|&Candidate { id, logit }| (id, logit)), count, ranked);
    ranked.sort_unstable_by(Ranked::order);
    let of_chosen = candidates.iter().find(|candidate| candidate.id == chosen);
    TokenLogprobs {
        logprob: of_chosen.map_or(f32::NEG_INFINITY, |candidate| logprob(chosen, candidate.logit)),
        top: ranked.iter().map(|&Ranked { id, key, .. }| TokenLogprob { id, logprob: logprob(id, -key) }).collect(),
    }
}
