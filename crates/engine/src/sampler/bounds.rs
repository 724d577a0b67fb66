//! A draw from the whole vocabulary, and top-p and min-p over it, with a look at no more groups of logits than decide them.
//!
//! A group's largest logit bounds what its tokens weigh together. Weights are integers and their sums have no order, so
//! these bounds hold to the unit: where every sum within them gives the same token, or the same cut, that is what the exact
//! sums give. Where they do not, more groups are looked at, the likeliest first, in the end all.

use backend::PEAK_GROUP;
use plan::sampling::{pick_of, share_of, weight};

use super::candidates::Candidate;
use super::filters::Ranked;
use super::peaks::Peaks;

/// Groups whose largest logit is this near to the largest of all are looked at, one step after the other.
const DISTANCES: [f32; 6] = [4.0, 8.0, 12.0, 17.0, 22.0, f32::INFINITY];

/// What the tokens of a group weigh together; the same twice once they have been looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    least: u64,
    most: u64,
}

impl Bounds {
    const NOTHING: Self = Self { least: 0, most: 0 };

    fn is_exact(self) -> bool {
        self.least == self.most
    }

    fn plus(self, other: Self) -> Self {
        Self { least: self.least + other.least, most: self.most + other.most }
    }
}

/// No token at this distance from the largest, or further from it, weighs more.
fn weight_at_most(distance: f32) -> u64 {
    // A weight is its power of two within 1e-8 of it and a unit, so none is above a nearer one's by more than twice that.
    let weight = weight(distance);
    weight + (weight >> 20) + 3
}

/// Draws from the softmax of all `logits`, which `peaks` went over, at `temperature`: as [`super::candidates::temperature`]
/// and [`super::candidates::draw`] do.
pub(super) fn draw(peaks: &mut Peaks, logits: &[f32], temperature: f32, pick: u64) -> Option<u32> {
    let max = peaks.max();
    if temperature == 1.0 {
        draw_at(peaks, logits, |logit| max - logit, pick)
    } else {
        draw_at(peaks, logits, |logit| 0.0 - (logit - max) / temperature, pick)
    }
}

fn draw_at(peaks: &mut Peaks, logits: &[f32], distance: impl Fn(f32) -> f32 + Copy, pick: u64) -> Option<u32> {
    let Peaks { groups, bounds, .. } = peaks;
    begin(bounds, groups, logits, distance);
    DISTANCES.iter().find_map(|&within| {
        look_within(bounds, groups, logits, distance, within);
        find_drawn(bounds, logits, distance, pick)
    })
}

/// The token with which the running sum of weights exceeds `pick` of the whole, if that is certain.
fn find_drawn(bounds: &[Bounds], logits: &[f32], distance: impl Fn(f32) -> f32, pick: u64) -> Option<u32> {
    let whole = bounds.iter().copied().fold(Bounds::NOTHING, Bounds::plus);
    let target = Bounds { least: pick_of(pick, whole.least), most: pick_of(pick, whole.most) };
    let mut before = Bounds::NOTHING;
    for (index, (&group, start)) in bounds.iter().zip((0..).step_by(PEAK_GROUP)).enumerate() {
        let after = before.plus(group);
        if after.most <= target.least {
            before = after;
            continue;
        }
        // It is in this group, or in a later one, or even in an earlier one.
        if !group.is_exact() || before.most > target.least || after.least <= target.most {
            return None;
        }
        let logits = &logits[index * PEAK_GROUP..];
        for (id, &logit) in (start..).zip(logits.iter().take(PEAK_GROUP)) {
            let weight = weight(distance(logit));
            before = before.plus(Bounds { least: weight, most: weight });
            if before.least > target.most {
                return Some(id);
            }
            if before.most > target.least {
                return None;
            }
        }
    }
    None
}

/// Leaves in `candidates` those of `logits`, which `peaks` went over, that [`super::filters::top_p`] keeps, `share` of all
/// weights. Whether it did: not where most of the vocabulary would have to be looked at.
pub(super) fn top_p(
    peaks: &mut Peaks,
    logits: &[f32],
    share: u32,
    candidates: &mut Vec<Candidate>,
    ranked: &mut Vec<Ranked>,
) -> bool {
    let max = peaks.max();
    let distance = |logit: f32| max - logit;
    let Peaks { groups, bounds, .. } = peaks;
    begin(bounds, groups, logits, distance);
    for within in DISTANCES {
        let near = groups.iter().filter(|&&peak| distance(peak) <= within).count();
        if near > groups.len() / 4 {
            return false;
        }
        look_within(bounds, groups, logits, distance, within);
        let whole = bounds.iter().copied().fold(Bounds::NOTHING, Bounds::plus);
        // Every token that is as near is in a group that is, so whoever is missing here comes after these.
        ranked.clear();
        for (group, (&peak, logits)) in groups.iter().zip(logits.chunks(PEAK_GROUP)).enumerate() {
            if distance(peak) <= within {
                let ids = (group * PEAK_GROUP) as u32..;
                let near = ids.zip(logits).filter(|&(_, &logit)| distance(logit) <= within);
                ranked.extend(near.map(|(id, &logit)| Ranked::likely(id, logit)));
            }
        }
        ranked.sort_unstable_by(Ranked::order);
        let mut sum = 0;
        let mut reach = |enough: u64| {
            ranked.iter().position(|ranked| {
                sum += weight(distance(-ranked.key));
                sum >= enough
            })
        };
        let (first, least) = (reach(share_of(share, whole.least)), sum);
        if let Some(last) = first
            && least >= share_of(share, whole.most)
        {
            candidates.clear();
            candidates.extend(ranked[..=last].iter().map(|ranked| Candidate { id: ranked.id, logit: -ranked.key }));
            candidates.sort_unstable_by_key(|candidate| candidate.id);
            return true;
        }
    }
    false
}

/// Leaves in `candidates` those of `logits`, which `peaks` went over, that [`super::filters::min_p`] keeps.
pub(super) fn min_p(peaks: &Peaks, logits: &[f32], p: f32, candidates: &mut Vec<Candidate>) {
    let least = peaks.max() + p.ln();
    candidates.clear();
    candidates.extend(peaks.reaching(logits, least).map(|(id, logit)| Candidate { id, logit }));
}

/// What is known of each group from its largest logit alone.
fn begin(bounds: &mut Vec<Bounds>, groups: &[f32], logits: &[f32], distance: impl Fn(f32) -> f32) {
    bounds.clear();
    bounds.extend(groups.iter().zip(logits.chunks(PEAK_GROUP)).map(|(&peak, logits)| Bounds {
        least: weight(distance(peak)),
        most: logits.len() as u64 * weight_at_most(distance(peak)),
    }));
}

/// Sums the weights of each group whose largest logit is `within` that distance.
fn look_within(
    bounds: &mut [Bounds],
    groups: &[f32],
    logits: &[f32],
    distance: impl Fn(f32) -> f32 + Copy,
    within: f32,
) {
    for ((bounds, &peak), logits) in bounds.iter_mut().zip(groups).zip(logits.chunks(PEAK_GROUP)) {
        if !bounds.is_exact() && distance(peak) <= within {
            let sum = logits.iter().map(|&logit| weight(distance(logit))).sum();
            *bounds = Bounds { least: sum, most: sum };
        }
    }
}

#[cfg(test)]
mod tests {
    use plan::sampling::share;
    use testing::random::Rng;

    use super::*;
    use crate::sampler::{LogitsRow, candidates, filters};

    /// A vocabulary of which some are far likelier than the others, or one without such, in steps of `grain`.
    fn logits(rng: &mut Rng, leaders: usize, grain: f32) -> Vec<f32> {
        let mut logits: Vec<f32> = (0..20_000).map(|_| rng.normal() * 2.5).collect();
        for _ in 0..leaders {
            let at = rng.below(logits.len());
            logits[at] = 14.0 + 8.0 * rng.uniform();
        }
        logits.iter_mut().for_each(|logit| *logit = (*logit / grain).round() * grain);
        logits
    }

    #[test]
    fn bounds_give_the_token_and_the_cut_that_exact_sums_give() {
        let mut rng = Rng::new(11);
        let (mut peaks, mut ranked) = (Peaks::default(), Vec::new());
        // Of draws with leaders and without: how often groups were left out. Of top-p: how often it was decided.
        let (mut left_out, mut decided) = ([0; 2], [0; 2]);
        for case in 0..200 {
            let leaders = [0, 12][case % 2];
            let logits = logits(&mut rng, leaders, [1e-6, 0.5][case / 2 % 2]);
            assert!(peaks.find(LogitsRow::from(&logits)));
            let temperature = [1.0, 0.6, 1.4, 1e-3][case / 4 % 4];
            let pick = [rng.next_u64() >> 11 << 11, 0, u64::MAX << 11][if case % 16 < 14 { 0 } else { case % 3 }];
            let mut plain = Vec::new();
            candidates::fill(&mut plain, &logits);
            candidates::temperature(&mut plain, temperature);
            let expected = candidates::draw(&plain, pick).map(|index| plain[index].id);
            assert_eq!(draw(&mut peaks, &logits, temperature, pick), expected, "case {case}");
            left_out[case % 2] += usize::from(peaks.bounds.iter().any(|bounds| !bounds.is_exact()));

            let p = 0.3 + 0.69 * rng.uniform();
            candidates::fill(&mut plain, &logits);
            filters::top_p(&mut plain, p, &mut ranked);
            let mut found = Vec::new();
            if top_p(&mut peaks, &logits, share(p), &mut found, &mut ranked) {
                assert_eq!(found, plain, "case {case}");
                decided[case % 2] += 1;
            }
            candidates::fill(&mut plain, &logits);
            let p = rng.uniform();
            filters::min_p(&mut plain, p);
            min_p(&peaks, &logits, p, &mut found);
            assert_eq!(found, plain, "case {case}");
        }
        assert!(left_out[1] > 40 && left_out[0] < 50, "{left_out:?}");
        assert!(decided[1] > 30 && decided[0] < 70, "{decided:?}");
    }

    #[test]
    fn what_is_further_away_weighs_no_more_than_the_bound() {
        let mut before = u64::MAX;
        // Every 97th of the distances between those that weigh as much as none, or nothing.
        for bits in (1e-10f32.to_bits()..30f32.to_bits()).step_by(97) {
            let distance = f32::from_bits(bits);
            let weight = weight(distance);
            assert!(weight <= before, "{distance}");
            before = before.min(weight_at_most(distance));
        }
        assert_eq!([weight(1e-10), weight(30.0)], [weight(0.0), 0]);
    }
}
