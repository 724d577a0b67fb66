//! `kernels/sm90/experts_mma.h`: some rows by the experts of each, which have few of them, on matrix instructions of SIMD
//! groups by themselves.

use std::mem::offset_of;
use std::ops::RangeInclusive;

use plan::{Activation, Experts, Linear};

use crate::formats::{DeviceFormat, OperandKind, scales_of_256};
use crate::kernels::experts::{self, Inputs, Routed, RowGroups};
use crate::kernels::experts_rows::Choice;
use crate::kernels::operand::{self, GemmOperand};
use crate::kernels::route::{self, ROUTER_FORMATS};
use crate::kernels::sm90::gemm::CopiedMatrix;
use crate::kernels::sm90::{activations, gemm_experts};
use crate::launch::{Access, Element, Launch, Region, TileMap};
use crate::params::{ExpertMmaParams, ExpertPairParams, RouterRowsParams};
use crate::site::{DeviceRows, DirectOperand, Site, index};
use crate::target::Target;
use crate::weights::{DeviceExperts, DeviceWeight};

/// As in the kernel text: SIMD groups, rows of weights of a slab, stages of a ring at most, and bytes ahead of the rings.
const SIMDS: usize = 24;
const SLAB_ROWS: usize = 16;
const STAGES_MAX: usize = 8;
const HEADER: usize = 16384;

/// Pairs up to which every group takes the lists of all of them, and of all tiles.
const FEW_PAIRS: usize = 128;

/// As in the kernel text: pairs and tiles of a launch that chooses the experts itself, whose groups have the lists of all of them.
const CHOSEN_PAIRS: usize = 256;
const CHOSEN_TILES: usize = 160;

/// Rows of x in a group's memory at most: those of three tiles. Stages of a SIMD group from which it takes less time to put them there,
/// and bytes of a row up to which, as measured on an H200 with Qwen3-30B-A3B, GLM-4.7-Flash and gpt-oss-20b.
const KEPT_ROWS: usize = 3 * ROWS[0];
const KEPT_STAGES: f64 = 36.0;
const KEPT_ROW_BYTES: usize = 4096;

/// Counters of such launches, one for each tile.
pub(crate) const NUM_COUNTERS: usize = CHOSEN_TILES;

/// Rows of a group of [`router_rows`], as in the kernel text.
const ROUTER_ROWS: usize = 4;

/// Input features of a router whose rows [`router_rows`] makes an operand of: what its groups hold in registers at most, and at
/// least so many that the operand takes no more room than normalised rows, behind which the logits are.
const ROUTER_FEATURES: RangeInclusive<usize> = 64..=4096;

/// Bytes of weights of a row in a stage.
const LINE: usize = 128;

/// Bytes of group memory for all rings. Whatever else a multiprocessor reads waits behind the weights that it has asked for: with half
/// as much again, 8 rows of GLM-4.7-Flash took 8.3 ms a step, and 6.3 with this, on an H200.
const RINGS: usize = 112 << 10;

/// Stages of a ring at least, whatever that takes.
const STAGES_MIN: usize = 2;

/// Rows of one expert that its kernels multiply together.
pub(crate) const ROWS: [usize; 2] = [8, 16];

/// How a launch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabVariant {
    /// Rows of one expert that are multiplied together.
    pub(crate) rows: usize,
    stages: usize,
    group_bytes: usize,
}

impl SlabVariant {
    fn group_bytes(self) -> u32 {
        u32::try_from(self.group_bytes).expect("group memory is smaller than 2^32 bytes")
    }
}

/// Bytes of the scales of a row of weights in a stage: of 256 weights, or two times 128 with those of all 256.
fn scale_bytes(format: DeviceFormat) -> usize {
    (2 * scales_of_256(format)).next_multiple_of(16)
}

/// Whether there are kernels for a stack, behind whose matrices those of `up` follow at one distance.
pub(crate) fn can_be(target: &Target, of: Routed, stack: &DeviceExperts, up: Option<&DeviceExperts>) -> bool {
    let places = of.pairs() * stack.first.rows.max(stack.first.row_len);
    let slabs = of.tiles_max(RowGroups::TILE_ROWS_MIN) * stack.first.rows.div_ceil(SLAB_ROWS / 2);
    let fits = places <= i32::MAX as usize && slabs * (target.multiprocessors + 1) <= u32::MAX as usize;
    fits && gemm_experts::can_be(target, of.rows, stack, up)
}

/// For how many rows of an expert at once a launch is fastest, as measured on an H200, where it is faster than the gemm by
/// experts. With 16 rows fewer tiles read weights again, and every tile takes as many matrix instructions as two of 8: the
/// longer codes take to become operands, the less that counts.
pub(crate) fn best(of: Routed, format: DeviceFormat) -> Option<usize> {
    let limits = format.facts().gemm.as_ref()?.slab_half_pairs;
    let place = limits.iter().position(|limit| 2 * of.pairs() <= limit * of.experts)?;
    Some(ROWS[place])
}

/// The launch for `rows` rows of an expert at once.
pub(crate) fn variant(format: DeviceFormat, rows: usize) -> SlabVariant {
    let stage = SIMDS * SLAB_ROWS * (LINE + scale_bytes(format));
    let stages = (RINGS / stage).clamp(STAGES_MIN, STAGES_MAX);
    let sums = SIMDS * SLAB_ROWS * rows * size_of::<f32>();
    SlabVariant { rows, stages, group_bytes: HEADER + stages * stage + sums }
}

/// Where the rows of an op become an operand.
pub(crate) fn operand(site: &Site<'_>, of: Routed, shared: bool, k: usize) -> GemmOperand {
    let rows = if shared { of.rows } else { of.pairs() };
    let scratch = site.arena.part(site.layout.scratch.0, GemmOperand::bytes(rows, k));
    GemmOperand::new(scratch, rows, k)
}

/// Whether [`router_rows`] has a kernel for a router.
pub(crate) fn can_be_router(weight: &DeviceWeight) -> bool {
    let k = weight.row_len;
    ROUTER_FORMATS.contains(&weight.format) && ROUTER_FEATURES.contains(&k) && k.is_multiple_of(8)
}

/// The logits of experts, and the operand of gated units of `format` that read the same normalised rows, where there is a
/// kernel for both.
pub(crate) fn router_rows(
    site: &Site<'_>,
    inputs: Inputs,
    gate: Linear,
    logits: DeviceRows,
    format: DeviceFormat,
    operand: &GemmOperand,
) -> Option<Launch> {
    let Inputs { x, norm, .. } = inputs;
    let (norm, weight) = (norm?, site.loaded.weights.get(gate.weight));
    // By the format of the router.
    let kernels: [&str; ROUTER_FORMATS.len()] = match format.facts().operand {
        OperandKind::ForFourBits => ["router_rows_f32_turns", "router_rows_f16_turns", "router_rows_bf16_turns"],
        OperandKind::BF16 => ["router_rows_f32_bf16", "router_rows_f16_bf16", "router_rows_bf16_bf16"],
        OperandKind::F16 | OperandKind::ForBytes => {
            ["router_rows_f32_f16", "router_rows_f16_f16", "router_rows_bf16_f16"]
        }
    };
    let kernel = kernels[ROUTER_FORMATS.iter().position(|&format| format == weight.format)?];
    let rows = site.num_rows(x.rows);
    if rows > route::LOGITS_FEW_ROWS || !can_be_router(weight) {
        return None;
    }
    let params = RouterRowsParams {
        logits: route::logits_params(site, x, norm, gate, logits),
        rows: gemm_experts::activation_params(site, inputs, operand),
    };
    let groups = [weight.rows + ROUTER_ROWS, rows.div_ceil(ROUTER_ROWS), 1];
    let launch = route::with_logits_operands(site, Launch::new(kernel, groups, &params), x, norm, gate, logits);
    Some(launch.with(Access::Write, operand.rows).with(Access::Write, operand.scales))
}

/// What the experts of each row make of it, gated units where there is an up projection: a row of `y` for each pair of row
/// and slot, `y_stride` numbers apart. `made` is the operand where a launch ahead has made it.
#[expect(clippy::too_many_arguments, reason = "what experts take")]
pub(crate) fn launches(
    site: &Site<'_>,
    variant: SlabVariant,
    inputs: Inputs,
    stack: &Experts,
    up: Option<(&Experts, Activation)>,
    groups: &RowGroups,
    (y, y_stride): (Region, usize),
    made: Option<GemmOperand>,
) -> Vec<Launch> {
    let of = groups.of;
    let place = |experts: &Experts| site.loaded.weights.stack(experts);
    let stack = place(stack);
    let up = up.map(|(up, activation)| (place(up), activation));
    let (format, k) = (stack.first.format, stack.first.row_len);
    let is_made = made.is_some();
    let operand = made.unwrap_or_else(|| operand(site, of, inputs.shared, k));
    let sources = if inputs.shared { groups.sources } else { groups.pairs };
    let mut maps = vec![];
    let params = ExpertMmaParams {
        tiles: groups.tiles.address,
        num_tiles: groups.num_tiles.address,
        pairs: groups.pairs.address,
        sources: sources.address,
        few_pairs: if of.pairs() <= FEW_PAIRS { index(of.pairs()) } else { 0 },
        few_tiles: index(of.tiles_max(groups.tile_rows).min(of.pairs()).min(FEW_PAIRS)),
        ..params(variant, &operand, (&stack, up.as_ref()), (y, y_stride), site.writes, (0, &mut maps))
    };
    let kernel = match (up.is_some(), variant.rows) {
        (false, 8) => named!(format, "expert_mma_", "_t8"),
        (false, _) => named!(format, "expert_mma_", "_t16"),
        (true, 8) => named!(format, "expert_mma_glu_", "_t8"),
        (true, _) => named!(format, "expert_mma_glu_", "_t16"),
    };
    let launch = Launch { maps, ..Launch::new(kernel, [site.target.multiprocessors, 1, 1], &params) }
        .with_groups_of((SIMDS * 32) as u32, variant.group_bytes())
        .with(Access::Read, operand.rows)
        .with(Access::Read, operand.scales)
        .with(Access::Read, groups.tiles)
        .with(Access::Read, groups.num_tiles)
        .with(Access::Read, groups.pairs)
        .with(Access::Read, sources)
        .with(Access::Write, site.writes.map_or(y, |direct| direct.rows));
    let launch = experts::with_stack(launch, &stack);
    let launch = up.iter().fold(launch, |launch, (up, _)| experts::with_stack(launch, up));
    let make = || gemm_experts::activations(site, inputs, activations::kernels_by_lanes(format, k), of, None, &operand);
    (!is_made).then(make).into_iter().chain([launch]).collect()
}

/// The parameters of the projections by one stack, or of gated units by two, without the lists of rows and tiles. The maps of
/// weights are added to `maps`, for parameters that begin at byte `at`.
fn params(
    variant: SlabVariant,
    operand: &GemmOperand,
    (stack, up): (&DeviceExperts, Option<&(DeviceExperts, Activation)>),
    (y, y_stride): (Region, usize),
    writes: Option<DirectOperand>,
    (at, maps): (usize, &mut Vec<TileMap>),
) -> ExpertMmaParams {
    let weight = &stack.first;
    let (n, k) = (weight.rows, weight.row_len);
    let slabs = |at: usize, matrix: CopiedMatrix, up: Option<CopiedMatrix>, bytes: usize, swizzled: bool| {
        let tile = [bytes as u32 / matrix.element().bytes() as u32, SLAB_ROWS as u32];
        experts::over_experts(matrix.tiles(at, up, tile, swizzled), stack)
    };
    let values = CopiedMatrix::values(weight);
    let element = values.element();
    let up_weight = up.map(|(up, _)| up.first);
    let up_values = up_weight.as_ref().map(CopiedMatrix::values);
    maps.push(slabs(at + offset_of!(ExpertMmaParams, weight), values, up_values, LINE, true));
    if element == Element::I8 {
        let up_scales = up_weight.as_ref().map(CopiedMatrix::scales);
        let at = at + offset_of!(ExpertMmaParams, scale_tiles);
        maps.push(slabs(at, CopiedMatrix::scales(weight), up_scales, scale_bytes(weight.format), false));
    }
    let slab_features = if up.is_some() { SLAB_ROWS / 2 } else { SLAB_ROWS };
    let of_up = |region: fn(&DeviceExperts) -> Region| up.map_or(Region::default(), |(up, _)| region(up)).address;
    ExpertMmaParams {
        x: operand.rows.address,
        row_scales: if element == Element::BF16 { Region::default() } else { operand.scales }.address,
        bias: stack.biases.address,
        up_bias: of_up(|up| up.biases),
        matrix_scales: stack.matrix_scales.address,
        up_matrix_scales: of_up(|up| up.matrix_scales),
        y: y.address,
        k: index(k),
        n: index(n),
        slabs: index(n.div_ceil(slab_features)),
        x_stride: index(operand.stride / 8),
        y_stride: index(y_stride),
        bias_stride: experts::stack_params(stack).bias_stride,
        activation: up.map_or(0, |&(_, activation)| activation as i32),
        stages: index(variant.stages),
        factor: operand.factor,
        operand: operand::of_pairs(writes, n),
        ..ExpertMmaParams::default()
    }
}

/// Whether one launch may choose the experts of these rows and do the work of both stacks of each.
pub(crate) fn can_pair(target: &Target, of: Routed, units: [&DeviceExperts; 2], down: &DeviceExperts) -> bool {
    let format = units[0].first.format;
    target.groups_meet
        && of.rows <= route::LOGITS_FEW_ROWS
        && target.kernel.is_none()
        && !target.batch_invariant
        && of.pairs() <= CHOSEN_PAIRS
        && of.tiles_max(ROWS[0]).max(of.experts) <= CHOSEN_TILES
        && down.first.format == format
        && can_be(target, of, units[0], Some(units[1]))
        && can_be(target, of, down, None)
}

/// Bytes of a group's memory for the rows that its tiles are of, where their way there costs less than it saves; rows beyond
/// that room are read from where they are.
fn rows_bytes(target: &Target, variant: SlabVariant, of: Routed, units: &DeviceWeight, down: &DeviceWeight) -> u32 {
    let stages_of = |weight: &DeviceWeight, features: usize| {
        // A stage has 128 bytes of each row.
        let values = weight.values.bytes as usize / weight.rows;
        weight.rows.div_ceil(features) * values.div_ceil(LINE)
    };
    let stages = stages_of(units, SLAB_ROWS / 2) + stages_of(down, SLAB_ROWS);
    let simds = (SIMDS * target.multiprocessors) as f64;
    let row_bytes = 2 * GemmOperand::stride(units.row_len.max(down.row_len));
    if of.chosen_experts() * stages as f64 / simds < KEPT_STAGES || row_bytes > KEPT_ROW_BYTES {
        return 0;
    }
    let room = target.group_bytes_max - variant.group_bytes();
    u32::try_from(of.pairs().min(KEPT_ROWS) * (row_bytes + 32)).map_or(room, |bytes| bytes.min(room))
}

/// The choice of experts, their gated units of `x`, which go to `between`, and their down projections: a row of `y` for each
/// pair of row and slot, `y_stride` numbers apart.
pub(crate) fn pair(
    site: &Site<'_>,
    variant: SlabVariant,
    choice: &Choice<'_>,
    of: Routed,
    (x, between): (&GemmOperand, DirectOperand),
    (units, up, down): (&Experts, (&Experts, Activation), &Experts),
    y: (Region, usize),
) -> Launch {
    let place = |experts: &Experts| site.loaded.weights.stack(experts);
    let (units, up, down) = (place(units), (place(up.0), up.1), place(down));
    let made = GemmOperand::direct(between, of.pairs(), down.first.row_len);
    let counters = site.loaded.counters.part(0, (NUM_COUNTERS * size_of::<u32>()) as u64);
    let x_bytes = rows_bytes(&site.target, variant, of, &units.first, &down.first);
    let mut maps = vec![];
    let (at_units, at_downs) = (offset_of!(ExpertPairParams, units), offset_of!(ExpertPairParams, downs));
    let params = ExpertPairParams {
        units: params(variant, x, (&units, Some(&up)), (Region::default(), 0), Some(between), (at_units, &mut maps)),
        downs: params(variant, &made, (&down, None), y, None, (at_downs, &mut maps)),
        route: choice.params(site, variant.rows),
        counters: counters.address,
        x_bytes: x_bytes as i32,
        ..ExpertPairParams::default()
    };
    let kernel = named!(units.first.format, "expert_mma_pair_", "");
    let group_bytes = variant.group_bytes() + x_bytes;
    let launch = Launch { maps, ..Launch::new(kernel, [site.target.multiprocessors, 1, 1], &params) }
        .with_groups_of((SIMDS * 32) as u32, group_bytes)
        .with(Access::Read, x.rows)
        .with(Access::Read, x.scales)
        .with(Access::Update, between.rows)
        .with(Access::Write, y.0)
        .with(Access::Update, counters);
    [&units, &up.0, &down].into_iter().fold(choice.chosen_by(site, launch), experts::with_stack)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::sm90::gemm::GROUP_BYTES;

    #[test]
    fn rings_fit_for_every_format() {
        for format in DeviceFormat::ALL.into_iter().filter(|format| format.facts().gemm.is_some()) {
            for rows in ROWS {
                let variant = variant(format, rows);
                assert!((STAGES_MIN..=STAGES_MAX).contains(&variant.stages), "{format:?}: {variant:?}");
                assert!(variant.group_bytes <= GROUP_BYTES, "{format:?}: {variant:?}");
            }
        }
    }

    #[test]
    fn tiles_have_more_rows_where_experts_do() {
        let of = |rows| Routed { rows, slots: 8, experts: 128 };
        let best = |format| [2, 8, 16, 31, 32, 64, 128, 256, 512].map(|rows| best(of(rows), format));
        let [low, high] = ROWS.map(Some);
        assert_eq!(best(DeviceFormat::Q4_0), [low, low, low, low, low, low, high, high, None]);
        assert_eq!(best(DeviceFormat::MXFP4), [low, low, low, low, low, high, high, None, None]);
        assert_eq!(best(DeviceFormat::BF16), [low, low, None, None, None, None, None, None, None]);
    }
}
