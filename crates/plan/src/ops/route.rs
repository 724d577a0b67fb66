//! `route`: chooses the experts of each row, and how much each of them counts.

use std::borrow::Cow;

use super::{Definition, Meaning, Operands, Textbook};
use crate::cost::Prices;
use crate::error_analysis::{Bounded, Bounds, gamma};
use crate::reference::Reference;
use crate::shapes::{Checked, Shapes};
use crate::{Op, StepCost, Value, ValueInfo, WeightId};

/// How experts are chosen by their logits, and weighed.
///
/// Each expert has a score, and the `top_k` largest are chosen, in descending order; of equal scores the expert with the
/// lowest id comes first. A NaN is below every number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// `num_experts_per_tok`.
    pub top_k: usize,
    /// What a logit becomes.
    pub scores: Scores,
    /// Added to the scores for the choice, and not to the weights: (experts,), `e_score_correction_bias`.
    pub correction: Option<WeightId>,
    /// Where experts come in groups, which of these take part.
    pub groups: Option<ExpertGroups>,
    /// What the scores of the chosen experts become.
    pub weights: RouteWeights,
    /// What the weights are multiplied by at the end: `routed_scaling_factor`.
    pub scale: f32,
    /// Experts behind those that the logits are of, `n_shared_experts`, which every row takes with a weight of 1: in the
    /// slots behind those of the chosen ones.
    pub shared: usize,
}

impl Router {
    /// Chooses the `top_k` best of `scores`, whatever group they are in, and weights them by `weights` alone; no experts are
    /// shared.
    pub const fn new(top_k: usize, scores: Scores, weights: RouteWeights) -> Self {
        Self { top_k, scores, correction: None, groups: None, weights, scale: 1.0, shared: 0 }
    }

    /// Experts of a row: the chosen ones, then the shared ones.
    pub fn slots(&self) -> usize {
        self.top_k + self.shared
    }

    /// The ids of the shared ones, where the logits are of `experts`.
    fn shared_ids(&self, experts: usize) -> impl Iterator<Item = f64> + use<> {
        (experts..experts + self.shared).map(|id| id as f64)
    }
}

/// What the logits of experts become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
    /// They stay logits.
    Logits,
}

/// Groups of neighbouring experts, all as large. The experts of a group that is not chosen have a score of minus infinity
/// for the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExpertGroups {
    /// `n_group`.
    pub count: usize,
    /// Groups that take part: `topk_group`. Of equal groups the first comes first.
    pub chosen: usize,
    /// What groups are chosen by.
    pub score: GroupScore,
}

/// What a group of experts is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupScore {
    /// Its largest score.
    Largest,
    /// The sum of its two largest scores.
    SumOfTwo,
}

/// What the scores of the chosen experts become.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RouteWeights {
    /// They stay.
    Scores,
    /// Divided by their sum plus `eps`.
    Normalised {
        /// Keeps the sum of small scores from 0.
        eps: f32,
    },
    /// Softmax over the chosen.
    Softmax,
}

/// The fields of [`Op::Route`].
pub(crate) struct RouteOp {
    pub(crate) logits: Value,
    pub(crate) router: Router,
    pub(crate) ids: Value,
    pub(crate) weights: Value,
}

impl Meaning for RouteOp {
    fn name(&self) -> &'static str {
        "route"
    }

    fn operands(&self) -> Operands {
        Operands {
            inputs: vec![self.logits],
            outputs: vec![self.ids, self.weights],
            weights: self.router.correction.into_iter().collect(),
            indices: vec![self.ids],
            ..Operands::default()
        }
    }

    fn with_values(&self, map: &mut dyn FnMut(Value) -> Value) -> Op {
        Op::Route { logits: map(self.logits), router: self.router, ids: map(self.ids), weights: map(self.weights) }
    }

    fn check(&self, shapes: &Shapes<'_>) -> Checked {
        let ValueInfo { rows, width: experts, .. } = shapes.plan.value(self.logits);
        shapes.router(&self.router, experts)?;
        for (what, value) in [("ids", self.ids), ("weights", self.weights)] {
            shapes.rows(what, value, rows)?;
            shapes.width_is(what, value, self.router.slots())?;
        }
        Ok(())
    }

    fn is_row_by_row(&self) -> bool {
        true
    }

    fn cost(&self, prices: &Prices<'_>) -> StepCost {
        prices.products(prices.plan.value(self.ids).rows, &self.operands().weights)
    }

    fn definition(&self) -> Definition<'_> {
        Definition::Textbook(self)
    }
}

impl Shapes<'_> {
    /// What a router of `experts` experts says of itself.
    pub(crate) fn router(&self, router: &Router, experts: usize) -> Checked {
        let &Router { top_k, correction, groups, scale, .. } = router;
        if !(1..=experts).contains(&top_k) {
            return Err(format!("chooses {top_k} of {experts} experts"));
        }
        if !scale.is_finite() {
            return Err(format!("scale is {scale}"));
        }
        correction.map_or(Ok(()), |weight| self.weight(weight, &[experts]))?;
        let Some(ExpertGroups { count, chosen, score }) = groups else { return Ok(()) };
        if count == 0 || !experts.is_multiple_of(count) || !(1..=count).contains(&chosen) {
            return Err(format!("chooses {chosen} of {count} groups of {experts} experts"));
        }
        let size = experts / count;
        if top_k > chosen * size {
            return Err(format!("chooses {top_k} experts of {chosen} groups of {size}"));
        }
        match score {
            GroupScore::SumOfTwo if size < 2 => Err(format!("sums two scores of groups of {size}")),
            GroupScore::SumOfTwo | GroupScore::Largest => Ok(()),
        }
    }
}

impl Textbook for RouteOp {
    fn reference(&self, env: &mut Reference<'_>) {
        let correction = self.router.correction.map(|weight| env.weight(weight));
        let (logits, experts) = (env.value(self.logits), env.width(self.logits));
        let (mut ids, mut weights) = route(logits, experts, &self.router, correction.as_deref());
        if let Some(choices) = env.choices {
            let logits = Bounded::zip(logits.clone(), choices.errors(logits, experts));
            let (bound, _) = route_bound(&logits, experts, &self.router, correction.as_deref());
            let (top_k, slots) = (self.router.top_k, self.router.slots());
            for (row, logits) in logits.value.chunks_exact(experts).enumerate() {
                let Some(chosen) = choices.of(self.ids, row, slots) else { continue };
                let places = row * slots..(row + 1) * slots;
                for (slot, place) in places.clone().enumerate() {
                    choices.compare((row, slot), chosen[slot], bound.value[place], bound.error[place] == 0.0);
                }
                weights[places][..top_k].copy_from_slice(&weights_of(logits, &chosen[..top_k], &self.router));
                ids[row * slots..][..top_k].copy_from_slice(&chosen[..top_k]);
            }
        }
        env.set(self.ids, ids);
        env.set(self.weights, weights);
    }

    fn bound(&self, env: &mut Bounds<'_>) {
        let correction: Option<Cow<'_, [f32]>> = self.router.correction.map(|weight| env.weight(weight));
        let width = env.width(self.logits);
        let (ids, weights) = route_bound(env.value(self.logits), width, &self.router, correction.as_deref());
        env.set(self.ids, ids);
        env.set(self.weights, weights);
    }
}

/// The largest `count` of `scores` in descending order, by their places; of equal ones the first, and a NaN last.
fn largest(scores: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let key = |index: usize| if scores[index].is_nan() { f64::NEG_INFINITY } else { scores[index] };
    // The sort is stable, so equals stay in order.
    order.sort_by(|&a, &b| key(b).partial_cmp(&key(a)).expect("no NaN is left"));
    order.truncate(count);
    order
}

/// What the experts of a row are chosen by.
struct Choice {
    /// Of each expert, for the weights.
    scores: Vec<f64>,
    /// With the correction, and minus infinity outside the chosen groups.
    choosing: Vec<f64>,
    /// The score of each group, where there are groups.
    groups: Vec<f64>,
    /// The chosen experts.
    ids: Vec<usize>,
}

impl Choice {
    fn new(logits: &[f64], router: &Router, correction: Option<&[f32]>) -> Self {
        let scores = scores(logits, router.scores);
        let mut choosing = scores.clone();
        for (score, &correction) in choosing.iter_mut().zip(correction.unwrap_or_default()) {
            *score += f64::from(correction);
        }
        let mut groups = vec![];
        if let Some(ExpertGroups { count, chosen, score }) = router.groups {
            let size = logits.len() / count;
            groups.extend(choosing.chunks_exact(size).map(|group| {
                let summed = match score {
                    GroupScore::Largest => 1,
                    GroupScore::SumOfTwo => 2,
                };
                largest(group, summed).into_iter().map(|index| group[index]).sum::<f64>()
            }));
            let taken = largest(&groups, chosen);
            for (group, scores) in choosing.chunks_exact_mut(size).enumerate() {
                if !taken.contains(&group) {
                    scores.fill(f64::NEG_INFINITY);
                }
            }
        }
        let ids = largest(&choosing, router.top_k);
        Self { scores, choosing, groups, ids }
    }
}

fn scores(logits: &[f64], scores: Scores) -> Vec<f64> {
    match scores {
        Scores::Softmax => softmax(logits),
        Scores::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
        Scores::Logits => logits.to_vec(),
    }
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|x| x / sum).collect()
}

/// The weights of chosen experts with these scores.
fn weights(scores: &[f64], router: &Router) -> Vec<f64> {
    let weights = match router.weights {
        RouteWeights::Scores => scores.to_vec(),
        RouteWeights::Normalised { eps } => {
            let sum = scores.iter().sum::<f64>() + f64::from(eps);
            scores.iter().map(|score| score / sum).collect()
        }
        RouteWeights::Softmax => softmax(scores),
    };
    weights.into_iter().map(|weight| weight * f64::from(router.scale)).collect()
}

/// The weights of the experts `ids`, whoever chose them.
fn weights_of(logits: &[f64], ids: &[f64], router: &Router) -> Vec<f64> {
    let scores = scores(logits, router.scores);
    // An id that is none reads nothing that counts.
    let chosen: Vec<f64> = ids.iter().map(|&id| scores.get(id as usize).copied().unwrap_or(f64::NAN)).collect();
    weights(&chosen, router)
}

/// The experts of each row of `logits`, (rows, experts), and their weights: (rows, slots) each.
fn route(logits: &[f64], experts: usize, router: &Router, correction: Option<&[f32]>) -> (Vec<f64>, Vec<f64>) {
    let (mut ids, mut all_weights) = (vec![], vec![]);
    for logits in logits.chunks_exact(experts) {
        let choice = Choice::new(logits, router, correction);
        let scores: Vec<f64> = choice.ids.iter().map(|&id| choice.scores[id]).collect();
        all_weights.extend(weights(&scores, router).into_iter().chain(vec![1.0; router.shared]));
        ids.extend(choice.ids.into_iter().map(|id| id as f64).chain(router.shared_ids(experts)));
    }
    (ids, all_weights)
}

/// A choice is a jump and not a rounding: an id is certain where its score is clear of its neighbours by more than what
/// they may be off by; where it is not, id and weight may be anything, and both errors are infinite.
fn route_bound(logits: &Bounded, experts: usize, router: &Router, correction: Option<&[f32]>) -> (Bounded, Bounded) {
    let (ids, all_weights) = route(&logits.value, experts, router, correction);
    let (mut id_error, mut weight_error) = (vec![], vec![]);
    for (logits, error) in logits.value.chunks_exact(experts).zip(logits.error.chunks_exact(experts)) {
        let Choice { scores, choosing, groups, ids } = Choice::new(logits, router, correction);
        let worst = error.iter().copied().fold(0.0, f64::max);
        let spread = logits.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        // How far a score may be off, as a part of itself.
        let relative = match router.scores {
            // Every exponential is off by e^δ, and so is their sum; a rounded argument counts as its distance from 0.
            Scores::Softmax => (2.0 * worst).exp_m1() + gamma(experts + 16) + 4.0 * spread * gamma(1),
            // d σ(x) = σ(x) · (1 - σ(x)) dx.
            Scores::Sigmoid => worst.exp_m1() + gamma(16) + 2.0 * spread * gamma(1),
            Scores::Logits => 0.0,
        };
        let score_error: Vec<f64> = match router.scores {
            Scores::Logits => error.to_vec(),
            Scores::Softmax | Scores::Sigmoid => scores.iter().map(|score| score.abs() * relative).collect(),
        };
        let choosing_error = |id: usize| {
            let rounded = if correction.is_some() { choosing[id].abs() * gamma(1) } else { 0.0 };
            if choosing[id].is_infinite() { 0.0 } else { score_error[id] + rounded }
        };
        let is_clear = |gap: f64, error: f64| error == 0.0 || gap > error;
        let mut groups_clear = true;
        if let Some(ExpertGroups { count, chosen, .. }) = router.groups {
            let size = experts / count;
            let order = largest(&groups, count);
            let group_error = |group: usize| {
                let of_one = (group * size..(group + 1) * size).map(choosing_error).fold(0.0, f64::max);
                2.0 * of_one + groups[group].abs() * gamma(1)
            };
            if let (Some(&last), Some(&next)) = (order.get(chosen - 1), order.get(chosen)) {
                groups_clear = is_clear(groups[last] - groups[next], group_error(last) + group_error(next));
            }
        }
        let order = largest(&choosing, experts);
        let clear_of_next: Vec<bool> = order
            .windows(2)
            .map(|pair| {
                let error = choosing_error(pair[0]) + choosing_error(pair[1]);
                is_clear(choosing[pair[0]] - choosing[pair[1]], error)
            })
            .collect();
        let is_certain = |slot: usize| {
            let before = slot == 0 || clear_of_next[slot - 1];
            groups_clear && before && clear_of_next.get(slot).copied().unwrap_or(true)
        };
        let certain: Vec<bool> = (0..ids.len()).map(is_certain).collect();
        let chosen: Vec<f64> = ids.iter().map(|&id| scores[id]).collect();
        let all_certain = certain.iter().all(|&certain| certain);
        for ((&certain, &id), weight) in certain.iter().zip(&ids).zip(weights(&chosen, router)) {
            let own = match router.weights {
                RouteWeights::Scores => score_error[id] * f64::from(router.scale).abs() + weight.abs() * gamma(2),
                // The sum is off by as much as its terms, and a term that may be another one moves it by all of itself.
                RouteWeights::Normalised { .. } if all_certain => {
                    let of_scores = match router.scores {
                        Scores::Logits => {
                            let sum = chosen.iter().sum::<f64>().abs();
                            ids.iter().map(|&id| score_error[id]).sum::<f64>() / sum
                                + score_error[id] / scores[id].abs()
                        }
                        Scores::Softmax | Scores::Sigmoid => 2.0 * relative,
                    };
                    weight.abs() * (of_scores + gamma(ids.len() + 4))
                }
                RouteWeights::Softmax if all_certain => {
                    let worst = ids.iter().map(|&id| score_error[id]).fold(0.0, f64::max);
                    let spread = chosen.iter().fold(0.0, |most: f64, x| most.max((x - chosen[0]).abs()));
                    weight.abs() * ((2.0 * worst).exp_m1() + gamma(ids.len() + 16) + 4.0 * spread * gamma(1))
                }
                RouteWeights::Normalised { .. } | RouteWeights::Softmax => f64::INFINITY,
            };
            id_error.push(if certain { 0.0 } else { f64::INFINITY });
            weight_error.push(if certain { own } else { f64::INFINITY });
        }
        id_error.extend(vec![0.0; router.shared]);
        weight_error.extend(vec![0.0; router.shared]);
    }
    (Bounded::zip(ids, id_error), Bounded::zip(all_weights, weight_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Router = Router::new(2, Scores::Logits, RouteWeights::Scores);

    fn ids(logits: &[f64], router: &Router, correction: Option<&[f32]>) -> Vec<f64> {
        route(logits, logits.len(), router, correction).0
    }

    #[test]
    fn equal_scores_go_to_the_lowest_id_and_a_nan_to_nobody() {
        assert_eq!(ids(&[1.0, 3.0, 3.0, 3.0], &PLAIN, None), [1.0, 2.0]);
        assert_eq!(ids(&[f64::NAN, -1.0, f64::NAN, -2.0], &PLAIN, None), [1.0, 3.0]);
        assert_eq!(ids(&[f64::NAN; 4], &PLAIN, None), [0.0, 1.0]);
    }

    #[test]
    fn a_correction_changes_the_choice_and_no_weight() {
        let router = Router { scores: Scores::Sigmoid, weights: RouteWeights::Normalised { eps: 0.0 }, ..PLAIN };
        let logits = [0.0, 1.0, 2.0];
        let (ids, weights) = route(&logits, 3, &router, Some(&[5.0, 0.0, 0.0]));
        assert_eq!(ids, [0.0, 2.0]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let sum = sigmoid(0.0) + sigmoid(2.0);
        assert_eq!(weights, [sigmoid(0.0) / sum, sigmoid(2.0) / sum]);
    }

    #[test]
    fn groups_are_chosen_first_and_the_others_take_no_part() {
        let groups = |chosen, score| Some(ExpertGroups { count: 3, chosen, score });
        let logits = [5.0, 0.0, 3.0, 3.0, 4.0, 1.5];
        let largest = Router { groups: groups(1, GroupScore::Largest), ..PLAIN };
        assert_eq!(ids(&logits, &largest, None), [0.0, 1.0]);
        let of_two = Router { groups: groups(1, GroupScore::SumOfTwo), ..PLAIN };
        assert_eq!(ids(&logits, &of_two, None), [2.0, 3.0]);
        let negative = [-5.0, -0.5, -3.0, -3.0, -4.0, -1.5];
        assert_eq!(ids(&negative, &largest, None), [1.0, 0.0]);
    }

    #[test]
    fn shared_experts_come_last_whatever_the_logits_say() {
        let router = Router { shared: 2, scale: 1.8, ..PLAIN };
        let (ids, weights) = route(&[1.0, 3.0, 2.0, f64::NAN, 5.0, 4.0], 3, &router, None);
        assert_eq!(ids, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(
            weights,
            [
                3.0 * f64::from(1.8f32),
                2.0 * f64::from(1.8f32),
                1.0,
                1.0,
                5.0 * f64::from(1.8f32),
                4.0 * f64::from(1.8f32),
                1.0,
                1.0
            ]
        );
        let unsure = route_bound(&Bounded::zip(vec![3.0, 2.9, 1.5], vec![0.4; 3]), 3, &router, None);
        assert_eq!(unsure.0.error, [f64::INFINITY, f64::INFINITY, 0.0, 0.0]);
        assert_eq!(unsure.1.error[2..], [0.0, 0.0]);
    }

    #[test]
    fn an_id_is_certain_where_no_neighbour_may_pass_it() {
        let bound = |logits: &[f64], error: f64| {
            let logits = Bounded::zip(logits.to_vec(), vec![error; logits.len()]);
            route_bound(&logits, logits.value.len(), &PLAIN, None).0.error
        };
        assert_eq!(bound(&[3.0, 2.0, 1.0], 0.4), [0.0, 0.0]);
        assert_eq!(bound(&[3.0, 2.0, 1.5], 0.4), [0.0, f64::INFINITY]);
        assert_eq!(bound(&[3.0, 2.9, 1.5], 0.4), [f64::INFINITY, f64::INFINITY]);
        // Exact logits are never in doubt.
        assert_eq!(bound(&[3.0, 3.0, 3.0], 0.0), [0.0, 0.0]);
    }

    #[test]
    fn f32_arithmetic_stays_within_the_bound() {
        let mut rng = testing::Rng::new(9);
        for scores in [Scores::Softmax, Scores::Sigmoid, Scores::Logits] {
            for weights in [RouteWeights::Scores, RouteWeights::Normalised { eps: 1e-20 }, RouteWeights::Softmax] {
                if scores == Scores::Logits && matches!(weights, RouteWeights::Normalised { .. }) {
                    continue; // No model divides by a sum that may be 0.
                }
                let router = Router { top_k: 3, scores, weights, scale: 1.8, ..PLAIN };
                let logits: Vec<f64> = (0..5 * 16).map(|_| f64::from(3.0 * rng.normal())).collect();
                let off: Vec<f64> =
                    logits.iter().map(|x| x + 1e-6 * f64::from(rng.normal()).clamp(-1.0, 1.0)).collect();
                let bound = route_bound(&Bounded::zip(logits, vec![1e-6; off.len()]), 16, &router, None);
                let (ids, found) = route(&off, 16, &router, None);
                let as_f32 = |values: Vec<f64>| values.into_iter().map(|x| x as f32).collect::<Vec<_>>();
                for (bound, found) in [(&bound.0, as_f32(ids)), (&bound.1, as_f32(found))] {
                    let (place, share) = bound.worst(&found).expect("results");
                    assert!(share <= 1.0, "{router:?}: result {place} is {share} of its bound off");
                }
            }
        }
    }
}
