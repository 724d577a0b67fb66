//! `kernels/experts.h`: projections by the experts of each row, without matrix instructions.

use plan::{Activation, Experts, Norm};

use crate::launch::{Access, GROUP_SIMDS, GROUP_THREADS, Launch, Region, TileMap};
use crate::params::{ExpertStack, ExpertSumParams, ExpertsParams};
use crate::site::{DeviceRows, F32, Site, index};
use crate::weights::DeviceExperts;

/// Output features of a group.
const OUTPUTS: usize = 2 * GROUP_SIMDS;

/// What is computed of a row's experts.
#[derive(Clone, Copy)]
pub(crate) enum ExpertsKind {
    /// The projection of each.
    Linear,
    /// The gated unit of each: of these up projections too.
    Glu(Experts, Activation),
    /// The weighted sum of the projections, and a residual.
    Down { weights: DeviceRows, residual: DeviceRows },
}

/// The weights of a stack as kernels are told.
pub(crate) fn stack_params(stack: &DeviceExperts) -> ExpertStack {
    ExpertStack {
        weight: stack.first.values.address,
        scales: stack.first.scales.address,
        bias: stack.biases.address,
        matrix_scales: stack.matrix_scales.address,
        stride: i32::try_from(stack.stride / 16).expect("an expert has fewer than 2^35 bytes"),
        bias_stride: index(stack.bias_stride as usize / size_of::<f32>()),
    }
}

/// A launch with the weights of a stack among its operands.
pub(crate) fn with_stack(launch: Launch, stack: &DeviceExperts) -> Launch {
    let launch = launch.with(Access::Constant, stack.all).with(Access::Constant, stack.biases);
    launch.with(Access::Constant, stack.matrix_scales)
}

/// The tiles of an expert's matrix with one dimension more, over the experts of a stack; where there is one, its matrix is as
/// far as the next would be.
pub(crate) fn over_experts(mut map: TileMap, stack: &DeviceExperts) -> TileMap {
    map.dims.push(stack.count as u64);
    map.strides.push(stack.stride.max(stack.first.values.bytes.next_multiple_of(16)));
    map.tile.push(1);
    map
}

/// What the experts `ids` of each row of `x` make of it.
pub(crate) fn launch(
    site: &Site<'_>,
    x: DeviceRows,
    ids: DeviceRows,
    experts: &Experts,
    kind: ExpertsKind,
    out: DeviceRows,
) -> Launch {
    let stack = site.loaded.weights.stack(experts);
    let (n, k, slots) = (stack.first.rows, stack.first.row_len, ids.width);
    let mut params = ExpertsParams {
        stack: stack_params(&stack),
        x: x.region.address,
        ids: ids.region.address,
        rows: site.live(out.rows).address,
        y: out.region.address,
        n: index(n),
        k: index(k),
        slots: index(slots),
        experts: index(stack.count),
        x_stride: index(x.stride),
        x_slot: if x.width == k { 0 } else { index(k) },
        ids_stride: index(ids.stride),
        y_stride: index(out.stride),
        ..ExpertsParams::default()
    };
    let format = stack.first.format;
    let (mut up_stack, mut of_weights, mut of_residual) = (None, Region::default(), Region::default());
    let (kernel, in_groups) = match kind {
        ExpertsKind::Linear => (named!(format, "expert_linear_", ""), slots),
        ExpertsKind::Glu(up, activation) => {
            let up = site.loaded.weights.stack(&up);
            debug_assert!(up.first.format == format, "`supports` refuses others");
            params.up = stack_params(&up);
            params.activation = activation as i32;
            up_stack = Some(up);
            (named!(format, "expert_glu_", ""), slots)
        }
        ExpertsKind::Down { weights, residual } => {
            (params.weights, params.weights_stride) = (weights.region.address, index(weights.stride));
            (params.residual, params.residual_stride) = (residual.region.address, index(residual.stride));
            (of_weights, of_residual) = (weights.region, residual.region);
            (named!(format, "expert_down_", ""), 1)
        }
    };
    let launch = Launch::new(kernel, [n.div_ceil(OUTPUTS), site.num_rows(out.rows), in_groups], &params)
        .with(Access::Read, x.region)
        .with(Access::Read, ids.region)
        .with(Access::Read, of_weights)
        .with(Access::Read, of_residual)
        .with(Access::Constant, site.live(out.rows))
        .with(Access::Write, out.region);
    let launch = with_stack(launch, &stack);
    up_stack.iter().fold(launch, with_stack)
}

/// The rows of a step that experts take, however they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Routed {
    /// Rows, and experts of each.
    pub(crate) rows: usize,
    pub(crate) slots: usize,
    /// Experts that there are.
    pub(crate) experts: usize,
}

impl Routed {
    /// Rows and experts that meet.
    pub(crate) fn pairs(self) -> usize {
        self.rows * self.slots
    }

    /// Experts that some row chose, where each is as likely as another.
    pub(crate) fn chosen_experts(self) -> f64 {
        let Self { rows, slots, experts } = self;
        let by_one = slots as f64 / experts as f64;
        experts as f64 * (1.0 - (1.0 - by_one).powf(rows as f64))
    }

    /// Tiles of up to `tile_rows` rows of one expert, at most: all experts may end with one that is not full.
    pub(crate) fn tiles_max(self, tile_rows: usize) -> usize {
        self.pairs() / tile_rows + self.pairs().min(self.experts)
    }
}

/// Where rows are put in the order of their experts, for kernels that take a tile of rows of one expert at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowGroups {
    pub(crate) of: Routed,
    /// i32 for each place in that order: which pair of row and slot, and which row.
    pub(crate) pairs: Region,
    pub(crate) sources: Region,
    /// Four i32 for each tile.
    pub(crate) tiles: Region,
    pub(crate) num_tiles: Region,
    pub(crate) tile_rows: usize,
}

impl RowGroups {
    /// Rows of a tile at least.
    pub(crate) const TILE_ROWS_MIN: usize = 4;
    const WORD: u64 = size_of::<i32>() as u64;

    /// Bytes of all of it, whatever tiles are.
    pub(crate) fn bytes(of: Routed) -> u64 {
        let [pairs, tiles] = Self::lens(of, Self::TILE_ROWS_MIN);
        tiles + 2 * pairs + Self::WORD
    }

    fn lens(of: Routed, tile_rows: usize) -> [u64; 2] {
        [(of.pairs() as u64 * Self::WORD).next_multiple_of(16), of.tiles_max(tile_rows) as u64 * 4 * Self::WORD]
    }

    pub(crate) fn new(all: Region, of: Routed, tile_rows: usize) -> Self {
        let [pairs, tiles] = Self::lens(of, tile_rows);
        Self {
            of,
            tiles: all.part(0, tiles),
            pairs: all.part(tiles, pairs),
            sources: all.part(tiles + pairs, pairs),
            num_tiles: all.part(tiles + 2 * pairs, Self::WORD),
            tile_rows,
        }
    }

    /// A launch with all of it among its results.
    pub(crate) fn written_by(&self, launch: Launch) -> Launch {
        [self.pairs, self.sources, self.tiles, self.num_tiles]
            .into_iter()
            .fold(launch, |launch, region| launch.with(Access::Write, region))
    }
}

/// The rows that experts multiply, before they are put in order.
#[derive(Clone, Copy)]
pub(crate) struct Inputs {
    pub(crate) x: DeviceRows,
    /// Whether all slots of a row share it, or each has a slice.
    pub(crate) shared: bool,
    /// The norm that rows go through first.
    pub(crate) norm: Option<Norm>,
}

/// Numbers from row to row of what an [`ExpertSum`] adds up.
pub(crate) fn parts_stride(features: usize) -> usize {
    features.next_multiple_of(4)
}

/// Bytes of what an [`ExpertSum`] adds up.
pub(crate) fn parts_bytes(of: Routed, features: usize) -> u64 {
    (of.pairs() * parts_stride(features)) as u64 * F32
}

/// The weighted sum of the pairs of each row, and the residual.
#[derive(Clone, Copy)]
pub(crate) struct ExpertSum {
    pub(crate) parts: Region,
    pub(crate) of: Routed,
    pub(crate) weights: DeviceRows,
    pub(crate) residual: DeviceRows,
    pub(crate) out: DeviceRows,
}

impl ExpertSum {
    pub(crate) fn params(&self, site: &Site<'_>) -> ExpertSumParams {
        let Self { parts, of, weights, residual, out } = *self;
        ExpertSumParams {
            parts: parts.address,
            weights: weights.region.address,
            residual: residual.region.address,
            rows: site.live(out.rows).address,
            y: out.region.address,
            vectors: index(self.vectors()),
            slots: index(of.slots),
            parts_stride: index(parts_stride(out.width)),
            weights_stride: index(weights.stride),
            residual_stride: index(residual.stride),
            y_stride: index(out.stride),
        }
    }

    /// Of a row, four numbers each.
    fn vectors(&self) -> usize {
        self.out.width.div_ceil(4)
    }

    /// A launch with what is read and written among its operands.
    pub(crate) fn in_launch(&self, site: &Site<'_>, launch: Launch) -> Launch {
        launch
            .with(Access::Read, self.parts)
            .with(Access::Read, self.weights.region)
            .with(Access::Read, self.residual.region)
            .with(Access::Constant, site.live(self.out.rows))
            .with(Access::Write, self.out.region)
    }

    /// The launch that does nothing else.
    pub(crate) fn launch(&self, site: &Site<'_>) -> Launch {
        let groups = [self.vectors().div_ceil(GROUP_THREADS as usize), site.num_rows(self.out.rows), 1];
        self.in_launch(site, Launch::new("expert_sum", groups, &self.params(site)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_expert_may_have_a_tile_that_is_not_full() {
        let of = |rows| Routed { rows, slots: 8, experts: 128 };
        assert_eq!([of(2).tiles_max(16), of(8).tiles_max(4), of(2048).tiles_max(128)], [1 + 16, 16 + 64, 128 + 128]);
        assert_eq!([1, 8, 2048].map(|rows| of(rows).chosen_experts().round()), [8.0, 52.0, 128.0]);
    }
}
