//! `kernels/sm90/gemm_experts.h`: projections of two rows and more by the experts of each, on matrix instructions; of one row,
//! too, where its bits must not depend on others. Rows are put in the order of their experts, and [`gemm`] makes tiles of rows of
//! one expert each.

use std::mem::offset_of;

use plan::{Activation, Experts};

use crate::formats::row_bytes;
use crate::kernels::experts::{self, Inputs, Routed, RowGroups};
use crate::kernels::operand::GemmOperand;
use crate::kernels::sm90::activations;
use crate::kernels::sm90::gemm::{self, CopiedMatrix, K_MAX};
use crate::launch::{Access, Element, Launch, Region};
use crate::params::{ActivationParams, ExpertGemmParams, GemmExperts, GemmParams, GemmSegment, GroupRowsParams};
use crate::site::{DeviceRows, Site, index};
use crate::target::Target;
use crate::weights::DeviceExperts;

/// Rows of a tile, and of an expert in the mean up to which they are so few: then less is copied and multiplied for nothing.
const TILE_ROWS: [(usize, usize); 4] = [(16, 4), (32, 16), (64, 40), (128, usize::MAX)];

/// Rows that come in one copy, at most: of an expert's last tile, those that are live.
const COPIED_ROWS: usize = 32;

/// Output features of a tile; gate and up share them.
const FEATURES: usize = 128;

/// Threads of `group_rows`.
const GROUP_ROWS_THREADS: u32 = 256;

/// Rows of a tile.
pub(crate) fn tile_rows(of: Routed) -> usize {
    let rows = of.pairs().div_ceil(of.experts);
    TILE_ROWS.iter().find(|&&(_, up_to)| rows <= up_to).expect("the last is for all").0
}

/// Whether rows of a step may be taken by experts.
pub(crate) fn may_be(target: &Target, rows: usize) -> bool {
    target.kernel.is_none() && gemm::may_be(target, rows)
}

/// Whether there are kernels for a stack, behind whose matrices those of `up` follow at one distance.
pub(crate) fn can_be(target: &Target, rows: usize, stack: &DeviceExperts, up: Option<&DeviceExperts>) -> bool {
    let is_copied = |stack: &DeviceExperts| {
        stack.first.format.facts().gemm.is_some()
            && stack.first.scale_stride().is_multiple_of(8)
            && stack.bias_stride.is_multiple_of(16)
            && stack.first.row_len <= K_MAX
            // Four results are written together.
            && stack.first.rows.is_multiple_of(4)
    };
    let follows = |up: &DeviceExperts| {
        stack.first.rows.is_multiple_of(8)
            && stack.stride == up.stride
            && stack.bias_stride == up.bias_stride
            && up.first.values.address.0 > stack.first.values.address.0
    };
    // A slice for each slot must begin on 16 bytes.
    let begins = up.is_some() || stack.first.row_len.is_multiple_of(4);
    may_be(target, rows) && begins && is_copied(stack) && up.is_none_or(|up| is_copied(up) && follows(up))
}

/// Puts the rows of a step in the order of the experts that `ids` names.
pub(crate) fn group_rows(site: &Site<'_>, ids: DeviceRows, groups: &RowGroups) -> Launch {
    let of = groups.of;
    let params = GroupRowsParams {
        ids: ids.region.address,
        rows: site.live(ids.rows).address,
        pairs: groups.pairs.address,
        sources: groups.sources.address,
        tiles: groups.tiles.address,
        num_tiles: groups.num_tiles.address,
        ids_stride: index(ids.stride),
        slots: index(of.slots),
        experts: index(of.experts),
        tokens: index(groups.tile_rows),
    };
    let launch = Launch::new("group_rows", [of.experts, 1, 1], &params)
        .with_groups_of(GROUP_ROWS_THREADS, 0)
        .with(Access::Read, ids.region)
        .with(Access::Constant, site.live(ids.rows));
    groups.written_by(launch)
}

/// Bytes of the operand of a gemm of so many features.
pub(crate) fn operand_bytes(of: Routed, k: usize) -> u64 {
    GemmOperand::bytes(of.pairs(), k)
}

/// What the kernels that make an operand are told, of rows as they are.
pub(crate) fn activation_params(site: &Site<'_>, inputs: Inputs, operand: &GemmOperand) -> ActivationParams {
    let Inputs { x, shared, norm } = inputs;
    ActivationParams {
        x: x.region.address,
        gain: site.vector(norm.map(|norm| norm.weight)).address,
        rows: site.live(x.rows).address,
        y: operand.rows.address,
        row_scales: operand.scales.address,
        k: index(operand.k),
        x_stride: index(if shared { x.stride } else { operand.k }),
        y_stride: index(operand.stride),
        eps: norm.map_or(0.0, |norm| norm.eps),
        copies: 1,
        ..ActivationParams::default()
    }
}

/// Makes the operand of a gemm with one of `kernels`: rows in the order of their experts where there are groups, else as they
/// are.
pub(crate) fn activations(
    site: &Site<'_>,
    inputs: Inputs,
    (kernels, threads): ([&'static str; 2], u32),
    of: Routed,
    groups: Option<&RowGroups>,
    operand: &GemmOperand,
) -> Launch {
    let Inputs { x, shared, norm } = inputs;
    let select = groups.map_or(Region::default(), |groups| if shared { groups.sources } else { groups.pairs });
    let gain = site.vector(norm.map(|norm| norm.weight));
    let params = ActivationParams {
        select: select.address,
        copies: index(operand.num_rows / of.rows),
        waits: i32::from(groups.is_some()),
        ..activation_params(site, inputs, operand)
    };
    Launch::new(kernels[usize::from(norm.is_some())], [operand.num_rows, 1, 1], &params)
        .with_groups_of(threads, 0)
        .with(Access::Read, x.region)
        .with(Access::Constant, gain)
        .with(Access::Constant, site.live(x.rows))
        .with(Access::Read, select)
        .with(Access::Write, operand.rows)
        .with(Access::Write, operand.scales)
}

/// What the experts of each row make of it, gated units where there is an up projection: a row of `y` for each pair of row
/// and slot, `y_stride` numbers apart.
pub(crate) fn launches(
    site: &Site<'_>,
    inputs: Inputs,
    stack: &Experts,
    up: Option<(&Experts, Activation)>,
    groups: &RowGroups,
    (y, y_stride): (Region, usize),
) -> Vec<Launch> {
    let of = groups.of;
    let place = |experts: &Experts| site.loaded.weights.stack(experts);
    let (stack, activation) = (place(stack), up.map_or(0, |(_, activation)| activation as i32));
    let up = up.map(|(up, _)| place(up));
    let weight = &stack.first;
    let scratch = site.arena.part(site.layout.scratch.0, operand_bytes(of, weight.row_len));
    let operand = GemmOperand::new(scratch, of.pairs(), weight.row_len);
    let features = if up.is_some() { FEATURES / 2 } else { FEATURES };
    // Two groups of a cluster share rows: of tiles that are high, because these are what is copied most.
    let cluster = if groups.tile_rows > 64 { 2 } else { 1 };
    let tiles = weight.rows.div_ceil(features * cluster);
    let mut params = ExpertGemmParams {
        gemm: GemmParams {
            rows: site.live(inputs.x.rows).address,
            k: index(weight.row_len),
            scale_stride: index(weight.scale_stride()),
            tiles: index(tiles),
            factor: 1.0,
            ..GemmParams::default()
        },
        experts: GemmExperts {
            tiles: groups.tiles.address,
            num_tiles: groups.num_tiles.address,
            pairs: groups.pairs.address,
            matrix_scales: stack.matrix_scales.address,
            up_matrix_scales: up.map_or(Region::default(), |up| up.matrix_scales).address,
            stride: experts::stack_params(&stack).stride,
            bias_stride: experts::stack_params(&stack).bias_stride,
            ..GemmExperts::default()
        },
    };
    params.gemm.segments[0] = GemmSegment {
        scales: weight.scales.address,
        up_scales: up.map_or(Region::default(), |up| up.first.scales).address,
        bias: stack.biases.address,
        up_bias: up.map_or(Region::default(), |up| up.biases).address,
        y: y.address,
        n: index(weight.rows),
        tiles: index(tiles),
        y_stride: index(y_stride),
        matrix_scale: 1.0,
        up_matrix_scale: 1.0,
        activation,
        ..GemmSegment::default()
    };
    let values = CopiedMatrix::values(weight);
    let element = values.element();
    if element != Element::BF16 {
        params.gemm.row_scales = operand.scales.address;
    }
    let at = offset_of!(ExpertGemmParams, gemm) + offset_of!(GemmParams, segments) + offset_of!(GemmSegment, weight);
    let copied = row_bytes(weight.format, gemm::TILE[0] as usize) as u64 / element.bytes();
    let up_values = up.map(|up| CopiedMatrix::values(&up.first));
    let weights = values.tiles(at, up_values, [copied as u32, gemm::TILE[1]], element.bytes() == 2);
    let weights = experts::over_experts(weights, &stack);
    let x = operand.tiles(
        offset_of!(ExpertGemmParams, gemm) + offset_of!(GemmParams, x),
        element,
        groups.tile_rows.min(COPIED_ROWS),
    );
    let format = weight.format;
    let kernel = match (up.is_some(), groups.tile_rows) {
        (false, 16) => named!(format, "expert_gemm_", "_t16"),
        (false, 32) => named!(format, "expert_gemm_", "_t32"),
        (false, 64) => named!(format, "expert_gemm_", "_t64"),
        (false, _) => named!(format, "expert_gemm_", "_t128"),
        (true, 16) => named!(format, "expert_gemm_glu_", "_t16"),
        (true, 32) => named!(format, "expert_gemm_glu_", "_t32"),
        (true, 64) => named!(format, "expert_gemm_glu_", "_t64"),
        (true, _) => named!(format, "expert_gemm_glu_", "_t128"),
    };
    let clusters = (tiles * of.tiles_max(groups.tile_rows)).min(site.target.multiprocessors / cluster);
    let launch = Launch {
        maps: vec![weights, x],
        cluster: cluster as u32,
        ..Launch::new(kernel, [clusters * cluster, 1, 1], &params)
    };
    let launch = launch
        .with_groups_of(gemm::THREADS, gemm::GROUP_BYTES as u32)
        .with(Access::Read, operand.rows)
        .with(Access::Read, operand.scales)
        .with(Access::Constant, site.live(inputs.x.rows))
        .with(Access::Read, groups.tiles)
        .with(Access::Read, groups.num_tiles)
        .with(Access::Read, groups.pairs)
        .with(Access::Write, y);
    let launch = experts::with_stack(launch, &stack);
    let launch = up.iter().fold(launch, experts::with_stack);
    let kernels = activations::kernels(format, operand.k);
    vec![activations(site, inputs, kernels, of, Some(groups), &operand), launch]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn tiles_have_many_rows_where_experts_do() {
        let of = |rows| Routed { rows, slots: 8, experts: 128 };
        assert_eq!([2, 64, 65, 256, 257, 640, 641].map(|rows| tile_rows(of(rows))), [16, 16, 32, 32, 64, 64, 128]);
        assert!(may_be(&H200, 2) && !may_be(&H200, 1));
        assert!(may_be(&Target { batch_invariant: true, ..H200 }, 1));
    }
}
