//! `kernels/route.h`: the choice of experts.

use plan::{GroupScore, RouteWeights, Router, Scores};

use crate::launch::{Access, Launch};
use crate::params::{RouteParams, RouterParams};
use crate::site::{DeviceRows, Site, index};

/// As in `kernels/route.h`: experts, and how many of them are chosen; groups of experts.
pub(crate) const EXPERTS_MAX: usize = 512;
pub(crate) const TOP_K_MAX: usize = 32;
pub(crate) const GROUPS_MAX: usize = 32;

/// Threads of a group.
const THREADS: u32 = 32;

/// How experts are chosen, as kernels are told.
pub(crate) fn router(site: &Site<'_>, router: &Router, experts: usize) -> RouterParams {
    let (weighing, eps) = match router.weights {
        RouteWeights::Scores => (0, 0.0),
        RouteWeights::Normalised { eps } => (1, eps),
        RouteWeights::Softmax => (2, 0.0),
    };
    RouterParams {
        correction: site.vector(router.correction).address,
        experts: index(experts),
        top_k: index(router.top_k),
        scores: match router.scores {
            Scores::Softmax => 0,
            Scores::Sigmoid => 1,
            Scores::Logits => 2,
        },
        weighing,
        groups: router.groups.map_or(0, |groups| index(groups.count)),
        chosen_groups: router.groups.map_or(0, |groups| index(groups.chosen)),
        sum_of_two: i32::from(router.groups.is_some_and(|groups| groups.score == GroupScore::SumOfTwo)),
        padding: 0,
        eps,
        scale: router.scale,
    }
}

/// The experts of the rows of `logits`, and their weights.
pub(crate) fn launch(site: &Site<'_>, logits: DeviceRows, of: &Router, [ids, weights]: [DeviceRows; 2]) -> Launch {
    let correction = site.vector(of.correction);
    let params = RouteParams {
        router: router(site, of, logits.width),
        logits: logits.region.address,
        rows: site.live(ids.rows).address,
        ids: ids.region.address,
        weights: weights.region.address,
        logits_stride: index(logits.stride),
        ids_stride: index(ids.stride),
        weights_stride: index(weights.stride),
        padding: 0,
    };
    let kernel = if logits.width <= 128 { "route_e128" } else { "route_e512" };
    Launch::new(kernel, [1, site.num_rows(ids.rows), 1], &params)
        .with_groups_of(THREADS, 0)
        .with(Access::Read, logits.region)
        .with(Access::Constant, site.live(ids.rows))
        .with(Access::Constant, correction)
        .with(Access::Write, ids.region)
        .with(Access::Write, weights.region)
}
