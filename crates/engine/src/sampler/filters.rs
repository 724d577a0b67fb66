//! The steps that leave some candidates out. Each finds where to cut, then keeps what is on the near side in the order
//! of ids; the likeliest candidate always stays (but for XTC, whose point is to drop it).

use std::cmp::Ordering;

use super::candidates::{Candidate, max_logit, weight_sum};
use super::params::Xtc;

/// A candidate with what it is ranked by, lower first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranked {
    pub(super) key: f32,
    pub(super) id: u32,
}

impl Ranked {
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
    ranked.clear();
    ranked.extend(candidates.iter().map(by_likelihood));
    let (_, &mut last, _) = ranked.select_nth_unstable_by(k - 1, Ranked::order);
    candidates.retain(|candidate| by_likelihood(candidate).order(&last).is_le());
}

/// Keeps the likeliest whose probabilities sum to `p`, the one that reaches it included; 1 keeps all.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32, ranked: &mut Vec<Ranked>) {
    if p < 1.0 {
        keep_mass(candidates, p, ranked, |candidate, _, _| by_likelihood(candidate).key);
    }
}

/// Locally typical sampling (arXiv 2202.00666): keeps those whose surprise, -ln p, is closest to the expected surprise,
/// the entropy, until their probabilities sum to `p`; 1 keeps all.
pub(super) fn typical(candidates: &mut Vec<Candidate>, p: f32, ranked: &mut Vec<Ranked>) {
    if p >= 1.0 {
        return;
    }
    let max = max_logit(candidates);
    let sum = weight_sum(candidates, max);
    // ln p = logit - max - ln sum, and the entropy is the mean of -ln p. What has no weight has no share in it.
    let entropy = candidates.iter().fold(0.0, |entropy, candidate| {
        let weight = f64::from((candidate.logit - max).exp());
        if weight > 0.0 { entropy - weight / sum * (f64::from(candidate.logit - max) - sum.ln()) } else { entropy }
    });
    keep_mass(candidates, p, ranked, |candidate, max, sum| {
        (sum.ln() - f64::from(candidate.logit - max) - entropy).abs() as f32
    });
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
    let least_weight = f64::from(xtc.threshold) * weight_sum(candidates, max);
    let is_top = |candidate: &Candidate| f64::from((candidate.logit - max).exp()) >= least_weight;
    let top = candidates.iter().filter(|candidate| is_top(candidate)).map(by_likelihood);
    let Some(spared) = top.max_by(Ranked::order) else { return };
    candidates.retain(|candidate| candidate.id == spared.id || !is_top(candidate));
}

fn by_likelihood(candidate: &Candidate) -> Ranked {
    Ranked { key: -candidate.logit, id: candidate.id }
}

/// Keeps candidates in the order of `key` (of candidate, largest logit, weight sum) until their probabilities sum to
/// `mass`, the one that reaches it included. Only as much as it takes is sorted: mass is usually reached within few.
fn keep_mass(
    candidates: &mut Vec<Candidate>,
    mass: f32,
    ranked: &mut Vec<Ranked>,
    key: impl Fn(&Candidate, f32, f64) -> f32,
) {
    if candidates.is_empty() {
        return;
    }
    let max = max_logit(candidates);
    let sum = weight_sum(candidates, max);
    let rank = |candidate: &Candidate| Ranked { key: key(candidate, max, sum), id: candidate.id };
    ranked.clear();
    ranked.extend(candidates.iter().map(rank));

    let goal = f64::from(mass) * sum;
    let weight = |id: u32| {
        let index = candidates.binary_search_by_key(&id, |candidate| candidate.id).expect("ids come from candidates");
        f64::from((candidates[index].logit - max).exp())
    };
    let (mut reached, mut sorted) = (0.0, 0);
    let mut last = ranked[0];
    while sorted < ranked.len() && reached < goal {
        let rest = &mut ranked[sorted..];
        let part = (sorted * 3).max(64).min(rest.len()); // the sorted part grows fourfold: a guess, not measured
        if part < rest.len() {
            rest.select_nth_unstable_by(part - 1, Ranked::order);
        }
        rest[..part].sort_unstable_by(Ranked::order);
        for candidate in &rest[..part] {
            reached += weight(candidate.id);
            last = *candidate;
            if reached >= goal {
                break;
            }
        }
        sorted += part;
    }
    candidates.retain(|candidate| rank(candidate).order(&last).is_le());
}
