//! The steps that leave some candidates out. Each finds where to cut, then keeps what is on the near side in the order
//! of ids; the likeliest candidate always stays (but for XTC, whose point is to drop it).

use std::cmp::Ordering;

use plan::sampling::{share, share_of, weight};

use super::candidates::{Candidate, Softmax, max_logit, weight_sum};
use super::params::Xtc;

/// A candidate with what it is ranked by, lower first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub(super) key: f32,
    pub(super) id: u32,
    /// Where weights are summed; 0 elsewhere.
    weight: u64,
}

impl Ranked {
    /// By likelihood.
    pub(super) fn likely(id: u32, logit: f32) -> Self {
        Self { key: -logit, id, weight: 0 }
    }

    /// By key, the lower id of equals first. Keys are never NaN: logits are finite or -inf when they come here.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        self.key.partial_cmp(&other.key).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

/// Keeps the `k` likeliest; 0 keeps all.
pub(super) fn top_k(candidates: &mut Vec<Candidate>, k: usize, ranked: &mut Vec<Ranked>) {
    if k == 0 || k >= candidates.len() {
        return;
    }
    rank_likeliest(candidates.iter().map(|candidate| (candidate.id, candidate.logit)), k, ranked);
    if let Some(last) = ranked.iter().max_by(|a, b| a.order(b)) {
        candidates.retain(|candidate| by_likelihood(candidate).order(last).is_le());
    }
}

/// Leaves the `k` likeliest of `logits` (id, logit) in `ranked`, all if there are fewer, in no order.
pub(super) fn rank_likeliest(logits: impl Iterator<Item = (u32, f32)> + Clone, k: usize, ranked: &mut Vec<Ranked>) {
    // Of so many groups, k have a likeliest member at or above the k-th of those: so have the k likeliest of all. A
    // pass over groups and one over logits is all that touches the vocabulary; 8·k groups leave little more than k.
    let num_groups = k.saturating_mul(8).max(1);
    ranked.clear();
    ranked.resize(num_groups, Ranked { key: f32::INFINITY, id: 0, weight: 0 });
    for (group, (_, logit)) in (0..num_groups).cycle().zip(logits.clone()) {
        ranked[group].key = ranked[group].key.min(-logit);
    }
    let bound = if k == 0 { f32::NEG_INFINITY } else { ranked.select_nth_unstable_by(k - 1, Ranked::order).1.key };
    ranked.clear();
    ranked.extend(logits.filter(|&(_, logit)| -logit <= bound).map(|(id, logit)| Ranked::likely(id, logit)));
    keep_likeliest(ranked, k);
}

/// Keeps the first `k`, in no order.
pub(super) fn keep_likeliest(ranked: &mut Vec<Ranked>, k: usize) {
    if k > 0 && k < ranked.len() {
        ranked.select_nth_unstable_by(k - 1, Ranked::order);
    }
    ranked.truncate(k);
}

/// Keeps the likeliest whose probabilities sum to `p`, the one that reaches it included; 1 keeps all.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32, ranked: &mut Vec<Ranked>) {
    if p >= 1.0 {
        return;
    }
    // All n candidates with a probability below (1 - p) / n have no more than 1 - p together, so the cut is above them.
    // (Half of it: no rounding reaches that far.)
    let least = (1.0 - f64::from(p)) / candidates.len() as f64 / 2.0;
    keep_mass(candidates, p, least, ranked, |candidate| by_likelihood(candidate).key);
}

/// Locally typical sampling (arXiv 2202.00666): keeps those whose surprise, -ln p, is closest to the expected surprise,
/// the entropy, until their probabilities sum to `p`; 1 keeps all.
pub(super) fn typical(candidates: &mut Vec<Candidate>, p: f32, ranked: &mut Vec<Ranked>) {
    if p >= 1.0 {
        return;
    }
    let softmax = Softmax::of(candidates);
    let entropy = softmax.entropy(candidates);
    keep_mass(candidates, p, 0.0, ranked, |candidate| (softmax.surprise(candidate) - entropy).abs() as f32);
}

/// Top-n-sigma (arXiv 2411.07641): keeps those whose logits are no further below the largest than `n` standard deviations
/// of all logits; 0 and less keeps all.
pub(super) fn top_n_sigma(candidates: &mut Vec<Candidate>, n: f32) {
    let max = max_logit(candidates);
    if n <= 0.0 || !max.is_finite() {
        return;
    }
    // What a penalty has made infinite says nothing of how the others are spread. Distances from the largest, because
    // their squares fit into an f64 whatever the logits are.
    let distances = || candidates.iter().map(|c| f64::from(max) - f64::from(c.logit)).filter(|d| d.is_finite());
    let count = distances().count() as f64;
    let mean = distances().sum::<f64>() / count;
    let variance = distances().map(|distance| (distance - mean) * (distance - mean)).sum::<f64>() / count;
    let most = f64::from(n) * variance.sqrt();
    candidates.retain(|candidate| f64::from(max) - f64::from(candidate.logit) <= most);
}

/// Keeps those at least `p` times as likely as the likeliest; 0 keeps all.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p > 0.0 {
        let least = max_logit(candidates) + p.ln();
        candidates.retain(|candidate| candidate.logit >= least);
    }
}

/// Exclude top choices: with the step's probability, drops all candidates of at least the threshold's probability but
/// the least likely of them. `uniform` is a number in [0, 1).
pub(super) fn xtc(candidates: &mut Vec<Candidate>, xtc: &Xtc, uniform: f64) {
    if uniform >= f64::from(xtc.probability) {
        return;
    }
    let max = max_logit(candidates);
    let least_weight = f64::from(xtc.threshold) * weight_sum(candidates, max) as f64;
    let is_top = |candidate: &Candidate| weight(max - candidate.logit) as f64 >= least_weight;
    let top = candidates.iter().filter(|candidate| is_top(candidate)).map(by_likelihood);
    let Some(spared) = top.max_by(Ranked::order) else { return };
    candidates.retain(|candidate| candidate.id == spared.id || !is_top(candidate));
}

fn by_likelihood(candidate: &Candidate) -> Ranked {
    Ranked::likely(candidate.id, candidate.logit)
}

/// Keeps candidates in the order of `key` until their probabilities sum to
/// `mass`, the one that reaches it included. The cut is found by halving, in linear time. Candidates of a probability
/// below `least` are known to come after it.
fn keep_mass(
    candidates: &mut Vec<Candidate>,
    mass: f32,
    least: f64,
    ranked: &mut Vec<Ranked>,
    key: impl Fn(&Candidate) -> f32,
) {
    let max = max_logit(candidates);
    let rank =
        |candidate: &Candidate| Ranked { key: key(candidate), id: candidate.id, weight: weight(max - candidate.logit) };
    // The likeliest alone weighs as much as this, and the sum is no less: what is too light for it is too light.
    let least_weight = least * weight(0.0) as f64;
    let mut sum = 0;
    ranked.clear();
    for candidate in &*candidates {
        let weight = weight(max - candidate.logit);
        sum += weight;
        if weight as f64 >= least_weight {
            ranked.push(Ranked { key: key(candidate), id: candidate.id, weight });
        }
    }
    ranked.retain(|ranked| ranked.weight as f64 >= least * sum as f64);

    let mut missing = share_of(share(mass), sum);
    let mut part = ranked.as_mut_slice();
    while part.len() > 1 {
        let middle = part.len() / 2;
        part.select_nth_unstable_by(middle, Ranked::order);
        let (before, after) = part.split_at_mut(middle);
        let weight: u64 = before.iter().map(|ranked| ranked.weight).sum();
        part = if weight >= missing {
            before
        } else {
            missing -= weight;
            after
        };
    }
    if let Some(&last) = part.first() {
        candidates.retain(|candidate| rank(candidate).order(&last).is_le());
    }
}
