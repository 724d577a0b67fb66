//! `kernels/experts_rows.h`: some rows by the experts of each, whose weights stream through group memory.

use plan::{Activation, Experts, Router};

use crate::formats::DeviceFormat;
use crate::kernels::experts::{Inputs, Routed, RowGroups, stack_params, with_stack};
use crate::kernels::experts_stream::SLOTS_MAX;
use crate::kernels::linear_stream::{SIMDS, STAGES_MAX, StreamedFormat, THREADS};
use crate::kernels::{operand, route};
use crate::launch::{Access, Launch, Region};
use crate::params::{ExpertRowsParams, LinearSegment, LinearStreamParams, RouteRowsParams};
use crate::site::{DeviceRows, ROW_ALIGN, Site, index};
use crate::target::Target;
use crate::weights::DeviceExperts;

/// As in `kernels/experts_rows.h`: bytes ahead of x, rows of a tile, and rows of x in group memory at most.
const HEADER: usize = 5504;
pub(crate) const TILE_ROWS: usize = RowGroups::TILE_ROWS_MIN;
const ROWS_MAX: usize = 8;

/// Experts among which `route_rows_e128` and gated units choose.
pub(crate) const SMALL_EXPERTS_MAX: usize = 128;

/// As in the kernel text: pairs of a row and an expert, and tiles.
const PAIRS_MAX: usize = 256;
const TILES_MAX: usize = 320;

/// Short rows of weights in a stage: four outputs are multiplied side by side, by eight lanes each.
const SHORT_ROWS: usize = 4;

/// Percent of group memory: with half of it and half of the registers, so that two kernels share a multiprocessor, streams
/// were slower.
const SHARE: usize = 99;

/// Rows up to which a step streams weights, where there are as many experts as pairs of rows and experts.
const STEP_ROWS_MAX: usize = 16;

/// What an output of a tile costs, and each of the tile's rows beside it.
const COSTS: [usize; 2] = [1, 1];

/// How group memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowsVariant {
    stages: usize,
    stage_rows: usize,
    ring_at: usize,
    /// Bytes of a plane of a stage, and where its scales begin.
    plane: usize,
    scales_at: usize,
    /// Lanes that multiply one output, of short rows.
    lanes: usize,
    /// Bytes of a row of x, and for how many there is room.
    x_row: usize,
    x_rows: usize,
    group_bytes: usize,
}

/// Whether rows of a step may be streamed by experts.
pub(crate) fn may_be(target: &Target, of: Routed) -> bool {
    target.kernel.is_none()
        && target.bulk_copies
        && !target.batch_invariant
        && of.rows >= 2
        && of.pairs() <= of.experts
        && of.tiles_max(TILE_ROWS) <= TILES_MAX
        && can_route(of)
}

/// Whether streams are faster than matrix instructions of SIMD groups, as measured on an H200: in formats whose codes are
/// multiplied as they are, for gated units, and for two rows.
pub(crate) fn is_faster(of: Routed, format: DeviceFormat, glu: bool) -> bool {
    let is_faster = format.facts().streamed.is_some_and(|streamed| streamed.rows_are_faster);
    is_faster && (glu || of.rows <= 2)
}

/// Whether the kernels take a stack, and the one of up projections: whole blocks, at the same distances, and places that fit
/// 32 bits.
fn is_in_bounds(target: &Target, of: Routed, stack: &DeviceExperts, up: Option<&DeviceExperts>) -> bool {
    let (format, n, k) = (stack.first.format, stack.first.rows, stack.first.row_len);
    // Eight lanes make a block.
    let block = if format.chunk_len() > 8 { 32 } else { 8 };
    let alike = up.is_none_or(|up| {
        (up.first.format, up.first.rows, up.first.row_len, up.stride) == (format, n, k, stack.stride)
            && (up.biases.bytes == 0) == (stack.biases.bytes == 0)
            && up.bias_stride == stack.bias_stride
    });
    let cost = COSTS[0] * of.tiles_max(TILE_ROWS) + COSTS[1] * of.pairs();
    let units = (cost * n) as u64 * (target.multiprocessors as u64 + 1);
    let places = (of.pairs() * n).max(stack.count * stack.bias_stride as usize / size_of::<f32>());
    k.is_multiple_of(block) && alike && units <= u64::from(u32::MAX) && places <= i32::MAX as usize
}

/// How the weights of a stack are streamed, gated units where there is a second one, if they can be.
pub(crate) fn variant(
    target: &Target,
    of: Routed,
    stack: &DeviceExperts,
    up: Option<&DeviceExperts>,
) -> Option<RowsVariant> {
    let (format, k) = (stack.first.format, stack.first.row_len);
    if !may_be(target, of) || !is_in_bounds(target, of, stack, up) {
        return None;
    }
    let planes = if up.is_some() { 2 } else { 1 };
    let streamed = StreamedFormat::new(format, k, planes)?;
    let x_row = streamed.x_bytes.next_multiple_of(128);
    let is_short = up.is_none() && streamed.has_short_rows && streamed.stage_rows() > 1;
    let (stage_rows, lanes) = match streamed.stage_rows() {
        SHORT_ROWS.. if is_short => (SHORT_ROWS, 32 / SHORT_ROWS),
        rows if is_short => (rows, 16),
        rows => (rows, 32),
    };
    let (scales_at, plane) = streamed.plane_of(stage_rows);
    let of_rows = |x_rows: usize| {
        let group_bytes = target.group_bytes_max as usize * SHARE / 100 / 1024 * 1024;
        let ring_at = HEADER + x_rows * x_row;
        let stages = (group_bytes.checked_sub(ring_at)? / (SIMDS * planes * plane)).min(STAGES_MAX);
        let variant = RowsVariant { stages, stage_rows, ring_at, plane, scales_at, lanes, x_row, x_rows, group_bytes };
        (stages > 1).then_some(variant)
    };
    of_rows(ROWS_MAX).or_else(|| of_rows(TILE_ROWS))
}

/// Whether [`route`] puts rows in order: one group chooses for all of them, so more take longer than in two launches.
pub(crate) fn can_route(of: Routed) -> bool {
    of.rows <= STEP_ROWS_MAX && of.pairs() <= PAIRS_MAX && of.slots <= SLOTS_MAX && of.experts <= route::EXPERTS_MAX
}

/// A choice of experts: the logits, how experts follow from them, and where ids and weights go.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub(crate) logits: DeviceRows,
    pub(crate) router: &'a Router,
    pub(crate) chosen: [DeviceRows; 2],
}

impl Choice<'_> {
    /// Whether gated units may make it themselves.
    pub(crate) fn is_small(&self) -> bool {
        self.logits.width <= SMALL_EXPERTS_MAX
    }

    /// The parameters of a launch that writes the choice alone. It puts rows in the order of their experts for itself, in tiles of
    /// `tile_rows`.
    pub(crate) fn params(&self, site: &Site<'_>, tile_rows: usize) -> RouteRowsParams {
        let route = route::params(site, self.logits, self.router, self.chosen);
        RouteRowsParams { route, tile_rows: index(tile_rows), ..RouteRowsParams::default() }
    }

    /// Such a launch with what it reads and leaves among its operands.
    pub(crate) fn chosen_by(&self, site: &Site<'_>, launch: Launch) -> Launch {
        route::with_operands(site, launch, self.logits, self.router, self.chosen)
    }

    fn params_of_groups(&self, site: &Site<'_>, groups: &RowGroups) -> RouteRowsParams {
        RouteRowsParams {
            pairs: groups.pairs.address,
            sources: groups.sources.address,
            tiles: groups.tiles.address,
            num_tiles: groups.num_tiles.address,
            ..self.params(site, groups.tile_rows)
        }
    }

    fn with_operands(&self, site: &Site<'_>, launch: Launch, groups: &RowGroups) -> Launch {
        groups.written_by(self.chosen_by(site, launch))
    }
}

/// The experts of rows, their weights, and the rows in the order of their experts.
pub(crate) fn route(site: &Site<'_>, choice: &Choice<'_>, groups: &RowGroups) -> Launch {
    let kernel = if choice.is_small() { "route_rows_e128" } else { "route_rows_e512" };
    let launch = Launch::new(kernel, [1, 1, 1], &choice.params_of_groups(site, groups)).with_groups_of(THREADS, 0);
    choice.with_operands(site, launch, groups)
}

/// What the experts of each row make of it, gated units where there is an up projection: a row of `y` for each pair of row
/// and slot, `y_stride` numbers apart. With a `choice`, gated units choose the experts and make the groups.
#[expect(clippy::too_many_arguments, reason = "what experts take")]
pub(crate) fn launch(
    site: &Site<'_>,
    variant: &RowsVariant,
    inputs: Inputs,
    stack: &Experts,
    up: Option<(&Experts, Activation)>,
    groups: &RowGroups,
    (y, y_stride): (Region, usize),
    choice: Option<&Choice<'_>>,
) -> Launch {
    let Inputs { x, shared, norm } = inputs;
    let place = |experts: &Experts| site.loaded.weights.stack(experts);
    let (stack, activation) = (place(stack), up.map_or(0, |(_, activation)| activation as i32));
    let up = up.map(|(up, _)| place(up));
    let weight = &stack.first;
    let gain = site.vector(norm.map(|norm| norm.weight));
    let mut segment = LinearSegment {
        weight: weight.values.address,
        scales: weight.scales.address,
        bias: stack.biases.address,
        y: y.address,
        n: index(weight.rows),
        activation,
        matrix_scale: 1.0,
        up_matrix_scale: 1.0,
        ..LinearSegment::default()
    };
    let mut params = ExpertRowsParams {
        tiles: groups.tiles.address,
        num_tiles: groups.num_tiles.address,
        pairs: groups.pairs.address,
        matrix_scales: stack.matrix_scales.address,
        stride: stack_params(&stack).stride,
        bias_stride: stack_params(&stack).bias_stride,
        tile_rows: index(groups.tile_rows),
        tiles_max: index(groups.of.tiles_max(groups.tile_rows)),
        pairs_max: index(groups.of.pairs()),
        slots: index(if shared { groups.of.slots } else { 1 }),
        plane: index(variant.plane),
        scales_at: index(variant.scales_at),
        lanes: index(variant.lanes),
        y_stride: index(y_stride),
        tile_cost: index(COSTS[0]),
        row_cost: index(COSTS[1]),
        x_row: index(variant.x_row),
        x_rows: index(variant.x_rows),
        operand: operand::of_pairs(site.writes, weight.rows),
        route: choice.map_or(RouteRowsParams::default(), |choice| choice.params_of_groups(site, groups)),
        ..ExpertRowsParams::default()
    };
    let mut kernel = named!(weight.format, "expert_down_rows_", "");
    if let Some(up) = &up {
        segment.up = up.first.values.address;
        segment.up_scales = up.first.scales.address;
        segment.up_bias = up.biases.address;
        params.up_matrix_scales = up.matrix_scales.address;
        kernel = named!(weight.format, "expert_glu_rows_", "");
    }
    params.linear = LinearStreamParams {
        segments: [segment, LinearSegment::default(), LinearSegment::default()],
        x: x.region.address,
        gain: gain.address,
        k: index(weight.row_len),
        x_stride: index(if shared { x.stride } else { weight.row_len } / ROW_ALIGN),
        stages: index(variant.stages),
        stage_rows: index(variant.stage_rows),
        x_at: index(HEADER),
        ring_at: index(variant.ring_at),
        eps: norm.map_or(0.0, |norm| norm.eps),
        groups: index(site.target.multiprocessors),
        ..LinearStreamParams::default()
    };
    let group_bytes = u32::try_from(variant.group_bytes).expect("group memory is smaller than 2^32 bytes");
    let launch = Launch::new(kernel, [site.target.multiprocessors, 1, 1], &params)
        .with_groups_of(THREADS, group_bytes)
        .with(Access::Read, x.region)
        .with(Access::Constant, gain)
        .with(Access::Write, site.writes.map_or(y, |direct| direct.rows));
    let launch = match choice {
        Some(choice) => choice.with_operands(site, launch, groups),
        None => [groups.tiles, groups.num_tiles, groups.pairs]
            .into_iter()
            .fold(launch, |launch, region| launch.with(Access::Read, region)),
    };
    let launch = with_stack(launch, &stack);
    up.iter().fold(launch, with_stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn few_rows_of_many_experts_are_streamed() {
        let of = |rows, slots, experts| Routed { rows, slots, experts };
        assert!([2, 8, 16].into_iter().all(|rows| may_be(&H200, of(rows, 8, 128))));
        assert!(!may_be(&H200, of(1, 8, 128)) && !may_be(&H200, of(17, 4, 128)) && !may_be(&H200, of(8, 2, 8)));
        let faster = |rows, format| [true, false].map(|glu| is_faster(of(rows, 8, 128), format, glu));
        assert_eq!([2, 3, 16].map(|rows| faster(rows, DeviceFormat::Q4_0)), [[true; 2], [true, false], [true, false]]);
        assert_eq!(faster(2, DeviceFormat::MXFP4), [false; 2]);
        assert!(!may_be(&Target { batch_invariant: true, ..H200 }, of(8, 8, 128)));
        assert!(!may_be(&Target { bulk_copies: false, ..H200 }, of(8, 8, 128)));
    }
}
