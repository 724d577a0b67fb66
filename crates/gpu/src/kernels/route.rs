//! `kernels/route.h`: the choice of experts.

use plan::{GroupScore, Linear, Norm, RouteWeights, Router, Scores};

use crate::formats::DeviceFormat;
use crate::launch::{Access, Launch};
use crate::params::{RouteParams, RouterLogitsParams, RouterParams};
use crate::site::{DeviceRows, Site, index};

/// As in `kernels/route.h`: experts, and how many of them a row has; groups of experts.
pub(crate) const EXPERTS_MAX: usize = 512;
pub(crate) const SLOTS_MAX: usize = 32;
pub(crate) const GROUPS_MAX: usize = 32;

/// Threads of a group of `route`.
const THREADS: u32 = 32;

/// Rows of a group of `router_logits`, and of `router_logits_many`.
const LOGITS_ROWS_OF_FEW: usize = 2;
const LOGITS_ROWS_OF_MANY: usize = 8;

/// Rows up to which a group has one expert: more read the rows too often.
pub(crate) const LOGITS_FEW_ROWS: usize = 32;

/// Rows from which groups have several experts: with fewer rows there are too few groups.
const LOGITS_MANY_ROWS: usize = 257;

/// Experts of a group where rows are many.
const LOGITS_EXPERTS: usize = 16;

/// The formats in which files have routers.
pub(crate) const ROUTER_FORMATS: [DeviceFormat; 3] = [DeviceFormat::F32, DeviceFormat::F16, DeviceFormat::BF16];

/// By those, the kernels for few rows and for many.
const LOGITS: [[&str; 2]; ROUTER_FORMATS.len()] = [
    ["router_logits_f32", "router_logits_many_f32"],
    ["router_logits_f16", "router_logits_many_f16"],
    ["router_logits_bf16", "router_logits_many_bf16"],
];

/// The logits of experts, of normalised rows of `x`, where a kernel for both is faster than a norm and a projection
/// (measured on an H200 with 128 experts and 2,048 features).
pub(crate) fn logits(site: &Site<'_>, x: DeviceRows, norm: Norm, gate: Linear, logits: DeviceRows) -> Option<Launch> {
    let num_rows = site.num_rows(x.rows);
    let weight = site.loaded.weights.get(gate.weight);
    let few = num_rows <= LOGITS_FEW_ROWS;
    let place = ROUTER_FORMATS.iter().position(|&format| format == weight.format)?;
    let kernel = LOGITS[place][usize::from(!few)];
    let is_faster = (2..=LOGITS_FEW_ROWS).contains(&num_rows) || num_rows >= LOGITS_MANY_ROWS;
    if !is_faster || site.target.batch_invariant || !weight.row_len.is_multiple_of(8) {
        return None;
    }
    let params = logits_params(site, x, norm, gate, logits);
    let groups = if few { weight.rows } else { weight.rows.div_ceil(LOGITS_EXPERTS) };
    let rows = if few { LOGITS_ROWS_OF_FEW } else { LOGITS_ROWS_OF_MANY };
    let launch = Launch::new(kernel, [groups, num_rows.div_ceil(rows), 1], &params);
    Some(with_logits_operands(site, launch, x, norm, gate, logits))
}

/// What kernels are told that compute the logits of experts.
pub(crate) fn logits_params(
    site: &Site<'_>,
    x: DeviceRows,
    norm: Norm,
    gate: Linear,
    logits: DeviceRows,
) -> RouterLogitsParams {
    let weight = site.loaded.weights.get(gate.weight);
    RouterLogitsParams {
        x: x.region.address,
        gain: site.vector(Some(norm.weight)).address,
        weight: weight.values.address,
        bias: site.vector(gate.bias).address,
        rows: site.live(x.rows).address,
        logits: logits.region.address,
        k: index(weight.row_len),
        x_stride: index(x.stride),
        weight_stride: index(weight.row_len),
        logits_stride: index(logits.stride),
        eps: norm.eps,
        experts: index(weight.rows),
    }
}

/// A launch with the operands of [`logits_params`].
pub(crate) fn with_logits_operands(
    site: &Site<'_>,
    launch: Launch,
    x: DeviceRows,
    norm: Norm,
    gate: Linear,
    logits: DeviceRows,
) -> Launch {
    launch
        .with(Access::Read, x.region)
        .with(Access::Constant, site.vector(Some(norm.weight)))
        .with(Access::Constant, site.loaded.weights.get(gate.weight).values)
        .with(Access::Constant, site.vector(gate.bias))
        .with(Access::Constant, site.live(x.rows))
        .with(Access::Write, logits.region)
}

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
        shared: index(router.shared),
        eps,
        scale: router.scale,
    }
}

/// What kernels are told that choose for the rows of `logits`.
pub(crate) fn params(site: &Site<'_>, logits: DeviceRows, of: &Router, [ids, weights]: [DeviceRows; 2]) -> RouteParams {
    RouteParams {
        router: router(site, of, logits.width),
        logits: logits.region.address,
        rows: site.live(ids.rows).address,
        ids: ids.region.address,
        weights: weights.region.address,
        logits_stride: index(logits.stride),
        ids_stride: index(ids.stride),
        weights_stride: index(weights.stride),
        padding: 0,
    }
}

/// A launch with the operands of [`params`].
pub(crate) fn with_operands(
    site: &Site<'_>,
    launch: Launch,
    logits: DeviceRows,
    of: &Router,
    [ids, weights]: [DeviceRows; 2],
) -> Launch {
    launch
        .with(Access::Read, logits.region)
        .with(Access::Constant, site.live(ids.rows))
        .with(Access::Constant, site.vector(of.correction))
        .with(Access::Write, ids.region)
        .with(Access::Write, weights.region)
}

/// The experts of the rows of `logits`, and their weights.
pub(crate) fn launch(site: &Site<'_>, logits: DeviceRows, of: &Router, chosen: [DeviceRows; 2]) -> Launch {
    let kernel = if logits.width <= 128 { "route_e128" } else { "route_e512" };
    let launch = Launch::new(kernel, [1, site.num_rows(logits.rows), 1], &params(site, logits, of, chosen));
    with_operands(site, launch.with_groups_of(THREADS, 0), logits, of, chosen)
}
