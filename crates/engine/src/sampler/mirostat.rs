//! Mirostat (arXiv 2007.14966): keeps the surprise of a text near a target. Before each choice the unlikeliest candidates
//! are left out, by a bound on their surprise; after it, the bound moves against the error. Surprises are in bits, as in
//! the paper and in llama.cpp.

use std::f64::consts::LN_2;

use super::candidates::{Candidate, Softmax};
use super::filters::{self, Ranked};
use super::params::Mirostat;

/// Of so many of the likeliest, version 1 estimates how fast likelihoods fall. llama.cpp's number.
const ESTIMATED_FROM: usize = 100;

/// The bound before the first token of a text.
fn first_bound(mirostat: &Mirostat) -> f64 {
    2.0 * f64::from(mirostat.tau)
}

/// Leaves out the candidates that are too surprising for `bound`; the likeliest stays.
pub(super) fn leave_out(
    candidates: &mut Vec<Candidate>,
    mirostat: &Mirostat,
    bound: Option<f64>,
    vocab_size: usize,
    ranked: &mut Vec<Ranked>,
) {
    let bound = bound.unwrap_or_else(|| first_bound(mirostat));
    if mirostat.version == 1 {
        filters::rank_likeliest(candidates.iter().map(|c| (c.id, c.logit)), ESTIMATED_FROM, ranked);
        ranked.sort_unstable_by(Ranked::order);
        let kept = kept_by_estimate(ranked.iter().map(|ranked| -ranked.key), bound, vocab_size);
        filters::top_k(candidates, kept, ranked);
    } else {
        let softmax = Softmax::of(candidates);
        let is_within = |candidate: &Candidate| softmax.surprise(candidate) / LN_2 <= bound;
        if candidates.iter().any(is_within) {
            candidates.retain(is_within);
        } else {
            filters::top_k(candidates, 1, ranked);
        }
    }
}

/// How many of the likeliest have the surprise `bound`, if likelihoods fall as Zipf's law has it. `logits` are those of
/// the likeliest, which descend.
fn kept_by_estimate(logits: impl Iterator<Item = f32> + Clone, bound: f64, vocab_size: usize) -> usize {
    // The exponent of the law is the slope of log-likelihoods over the logarithms of ranks.
    let (mut products, mut squares) = (0.0, 0.0);
    for (rank, (logit, next)) in (1u32..).zip(logits.clone().zip(logits.skip(1))) {
        let fall = f64::from(logit) - f64::from(next);
        if !fall.is_finite() {
            break;
        }
        let step = (f64::from(rank + 1) / f64::from(rank)).ln();
        products += step * fall;
        squares += step * step;
    }
    if squares == 0.0 {
        return 1;
    }
    let exponent = products / squares;
    let (excess, vocab_size) = (exponent - 1.0, vocab_size as f64);
    // Where the exponent nears 1, the quotient nears this limit.
    let quotient = if excess.abs() < 1e-9 { 1.0 / vocab_size.ln() } else { excess / (1.0 - vocab_size.powf(-excess)) };
    // What is no number, or below 0, becomes 0.
    ((quotient * bound.exp2()).powf(1.0 / exponent) as usize).max(1)
}

/// The bound after the choice of `chosen` from `candidates`, which were left.
pub(super) fn next_bound(candidates: &[Candidate], chosen: &Candidate, mirostat: &Mirostat, bound: Option<f64>) -> f64 {
    let surprise = Softmax::of(candidates).surprise(chosen) / LN_2;
    let bound = bound.unwrap_or_else(|| first_bound(mirostat));
    bound - f64::from(mirostat.eta) * (surprise - f64::from(mirostat.tau))
}
