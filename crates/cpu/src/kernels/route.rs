//! `route`: the experts of a row by their logits, and the weights of these.
//!
//! Shapes    logits (experts,); ids and weights (slots,) as f32, those of shared experts last.
//! Layout    one row at a time: a few hundred numbers, all in the first-level cache.
//! Roofline  top_k passes over the scores; one row of 128 experts and 8 chosen takes about a microsecond.
//! Accuracy  scores within 4 ε of exact ones, more by the distance from the largest logit (softmax); sums in the order of
//!           ids, and of slots. Ids are those of these scores: `plan`'s reference says where they may differ.
//! Versions  every level, from one text.

use plan::{ExpertGroups, GroupScore, RouteWeights, Router, Scores};

use crate::kernels::math::exp;
use crate::simd::{Kernel, LANES, Simd, Words};

/// Chooses the experts of one row.
pub(crate) struct Route<'a> {
    pub(crate) router: &'a Router,
    /// (experts,).
    pub(crate) logits: &'a [f32],
    /// (experts,), where the router has a correction.
    pub(crate) correction: Option<&'a [f32]>,
    /// Room for [`scratch_len`] f32.
    pub(crate) scratch: &'a mut [f32],
    /// (slots,).
    pub(crate) ids: &'a mut [f32],
    /// (slots,).
    pub(crate) weights: &'a mut [f32],
}

/// f32 that the choice among `experts` needs: scores, what they are chosen by, the scores of groups, and the chosen ones.
pub(crate) fn scratch_len(experts: usize) -> usize {
    4 * experts.next_multiple_of(LANES)
}

impl Kernel for Route<'_> {
    type Output = ();
    const WORDS: Words = Words::Floats;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { router, logits, correction, scratch, ids, weights } = self;
        let experts = logits.len();
        let (ids, shared_ids) = ids.split_at_mut(router.top_k);
        let (weights, shared_weights) = weights.split_at_mut(router.top_k);
        for (id, shared) in shared_ids.iter_mut().zip(experts..) {
            *id = shared as f32;
        }
        shared_weights.fill(1.0);
        let (scores, rest) = scratch.split_at_mut(experts.next_multiple_of(LANES));
        let (choosing, groups) = rest.split_at_mut(experts.next_multiple_of(LANES));
        let scores = &mut scores[..experts];
        scores.copy_from_slice(logits);
        match router.scores {
            Scores::Softmax => softmax(s, scores),
            Scores::Sigmoid => each(s, scores, |s, x| {
                let minus_x = s.sub(s.splat(0.0), x);
                s.div(s.splat(1.0), s.add(s.splat(1.0), exp(s, minus_x)))
            }),
            Scores::Logits => {}
        }
        let choosing = &mut choosing[..experts];
        choosing.copy_from_slice(scores);
        for (score, correction) in choosing.iter_mut().zip(correction.unwrap_or_default()) {
            *score += correction;
        }
        if let Some(router_groups) = router.groups {
            leave_groups(router_groups, choosing, groups);
        }
        largest(choosing, ids);
        for (weight, &id) in weights.iter_mut().zip(&*ids) {
            *weight = scores[id as usize];
        }
        match router.weights {
            RouteWeights::Scores => {}
            RouteWeights::Normalised { eps } => {
                let sum = weights.iter().sum::<f32>() + eps;
                weights.iter_mut().for_each(|weight| *weight /= sum);
            }
            RouteWeights::Softmax => softmax(s, weights),
        }
        weights.iter_mut().for_each(|weight| *weight *= router.scale);
    }
}

/// `make` of every number, in place.
#[inline(always)]
fn each<S: Simd>(s: S, x: &mut [f32], make: impl Fn(S, S::F32) -> S::F32) {
    let (vectors, rest) = x.as_chunks_mut::<LANES>();
    for vector in vectors {
        s.store(make(s, s.load(vector)), vector);
    }
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    s.store(make(s, s.load(&lanes)), &mut lanes);
    rest.copy_from_slice(&lanes[..rest.len()]);
}

#[inline(always)]
fn softmax<S: Simd>(s: S, x: &mut [f32]) {
    // A NaN is passed over here, and comes back in the sum.
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    each(s, x, |s, x| exp(s, s.sub(x, s.splat(max))));
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|x| *x /= sum);
}

/// The places of the largest of `scores`, as many as `places` has room for, in descending order; of equal ones the first, and
/// a NaN last.
#[inline(always)]
fn largest(scores: &[f32], places: &mut [f32]) {
    let key = |score: f32| if score.is_nan() { f32::NEG_INFINITY } else { score };
    for slot in 0..places.len() {
        let taken = &places[..slot];
        let mut best: Option<(usize, f32)> = None;
        for (place, &score) in scores.iter().enumerate() {
            let score = key(score);
            // Few are better than the best so far, so few are looked for among those taken.
            if best.is_none_or(|(_, most)| score > most) && !taken.contains(&(place as f32)) {
                best = Some((place, score));
            }
        }
        places[slot] = best.map_or(0, |(place, _)| place) as f32;
    }
}

/// Sets the scores of the groups that are not chosen to minus infinity. `room` is for the scores of groups, and for the chosen ones.
#[inline(always)]
fn leave_groups(groups: ExpertGroups, choosing: &mut [f32], room: &mut [f32]) {
    let ExpertGroups { count, chosen, score } = groups;
    let size = choosing.len() / count;
    let (scores, chosen_places) = room.split_at_mut(count);
    for (score_of, group) in scores.iter_mut().zip(choosing.chunks_exact(size)) {
        *score_of = match score {
            GroupScore::Largest => {
                let mut first = [0.0];
                largest(group, &mut first);
                group[first[0] as usize]
            }
            GroupScore::SumOfTwo => {
                let mut two = [0.0; 2];
                largest(group, &mut two);
                group[two[0] as usize] + group[two[1] as usize]
            }
        };
    }
    let chosen_places = &mut chosen_places[..chosen];
    largest(scores, chosen_places);
    for (group, scores) in choosing.chunks_exact_mut(size).enumerate() {
        if !chosen_places.contains(&(group as f32)) {
            scores.fill(f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use testing::Rng;

    use super::*;
    use crate::Isa;

    fn route(isa: Isa, router: &Router, logits: &[f32], correction: Option<&[f32]>) -> (Vec<f32>, Vec<f32>) {
        let (mut ids, mut weights) = (vec![f32::NAN; router.slots()], vec![f32::NAN; router.slots()]);
        let mut scratch = vec![f32::NAN; scratch_len(logits.len())];
        let scratch = &mut scratch[..];
        isa.run(Route { router, logits, correction, scratch, ids: &mut ids, weights: &mut weights });
        (ids, weights)
    }

    const PLAIN: Router = Router::new(2, Scores::Logits, RouteWeights::Scores);

    #[test]
    fn equal_scores_go_to_the_lowest_id_and_a_nan_to_nobody() {
        for isa in Isa::available() {
            assert_eq!(route(isa, &PLAIN, &[1.0, 3.0, 3.0, 3.0], None), (vec![1.0, 2.0], vec![3.0, 3.0]));
            assert_eq!(route(isa, &PLAIN, &[f32::NAN, -1.0, f32::NAN, -2.0], None).0, [1.0, 3.0]);
            let (ids, weights) = route(isa, &PLAIN, &[f32::NAN; 4], None);
            assert_eq!(ids, [0.0, 1.0]);
            assert!(weights.iter().all(|weight| weight.is_nan()));
            let shared = Router { shared: 2, scale: 2.0, ..PLAIN };
            let expected = (vec![2.0, 0.0, 3.0, 4.0], vec![8.0, 4.0, 1.0, 1.0]);
            assert_eq!(route(isa, &shared, &[2.0, 1.0, 4.0], None), expected);
            // One NaN among the logits of a softmax is in every weight.
            let router = Router { scores: Scores::Softmax, ..PLAIN };
            assert!(route(isa, &router, &[1.0, f32::NAN, 2.0], None).1.iter().all(|weight| weight.is_nan()));
        }
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        let mut rng = Rng::new(11);
        let groups = |score| Some(ExpertGroups { count: 4, chosen: 2, score });
        for experts in [8, 20, 128] {
            let logits: Vec<f32> = (0..experts).map(|_| 3.0 * rng.normal()).collect();
            let correction: Vec<f32> = (0..experts).map(|_| 0.2 * rng.normal()).collect();
            for scores in [Scores::Softmax, Scores::Sigmoid, Scores::Logits] {
                for weights in [RouteWeights::Scores, RouteWeights::Normalised { eps: 1e-20 }, RouteWeights::Softmax] {
                    for groups in [None, groups(GroupScore::Largest), groups(GroupScore::SumOfTwo)] {
                        let router = Router { top_k: 3, scores, weights, groups, scale: 1.8, ..PLAIN };
                        let expected = route(Isa::scalar(), &router, &logits, Some(&correction));
                        for isa in Isa::available() {
                            assert_eq!(route(isa, &router, &logits, Some(&correction)), expected, "{isa} {router:?}");
                        }
                    }
                }
            }
        }
    }
}
