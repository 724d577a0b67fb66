//! Log-probabilities of a chosen token and of its likeliest alternatives.

use super::filters::Ranked;
use super::peaks::Peaks;

/// Log-probabilities of one prediction: of the model's own distribution, before bias, penalties, filters and
/// temperature.
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
