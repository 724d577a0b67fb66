//! Which kernel computes what: the one place that knows the variants of an op and what each is for.

use plan::KvFormat;

use crate::forced::{self, ForcedVariants, Kernel};
use crate::launch::{GROUP_SIMDS, GROUP_THREADS};
use crate::weights::{DeviceFormat, row_bytes, scale_row_bytes};

/// What of a device and of its options variants depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Groups that run at once, at one a multiprocessor.
    pub(crate) multiprocessors: usize,
    /// Whether the groups of a launch may wait for each other, as long as all run at once.
    pub(crate) groups_meet: bool,
    /// Whether copies to group memory run on their own, beside the threads (compute capability 9.0 and on).
    pub(crate) bulk_copies: bool,
    /// Matrix instructions that there are.
    pub(crate) matrix: Matrix,
    /// Bytes of group memory that a group may have.
    pub(crate) group_bytes_max: u32,
    /// Whether a token's results must not depend on the tokens beside it.
    pub(crate) batch_invariant: bool,
    /// What is forced for any op, and for the op at hand ([`Target::of`]).
    pub(crate) forced: ForcedVariants,
    pub(crate) kernel: Option<Kernel>,
}

impl Target {
    /// An Apple GPU of so many cores, whose groups have so much memory: the system says how much, 32 KiB on all there are.
    #[cfg_attr(
        not(any(feature = "sim", target_os = "macos")),
        expect(dead_code, reason = "for Metal and its simulator")
    )]
    pub(crate) fn metal(cores: usize, group_bytes_max: u32, batch_invariant: bool, forced: ForcedVariants) -> Self {
        Self {
            multiprocessors: cores,
            groups_meet: false,
            bulk_copies: false,
            matrix: Matrix::EightByEight,
            group_bytes_max,
            batch_invariant,
            forced,
            kernel: None,
        }
    }

    /// The target for the op of that name.
    pub(crate) fn of(&self, op: &str) -> Self {
        Self { kernel: self.forced.of(op), ..*self }
    }

    /// The kernels that compute the op of that name here, in some shapes at least.
    pub(crate) fn kernels_of(&self, op: &str) -> Vec<Kernel> {
        let is_here = |kernel: &Kernel| match kernel {
            Kernel::Linear | Kernel::Attention => true,
            Kernel::AttentionF16 => self.matrix >= Matrix::SimdGroup,
            Kernel::LinearStream => self.bulk_copies && !self.batch_invariant,
            Kernel::LinearBatch => self.matrix >= Matrix::SimdGroup && !self.batch_invariant,
            Kernel::Gemm => self.matrix != Matrix::SimdGroup && !self.batch_invariant,
        };
        forced::kernels_of(op).iter().copied().filter(is_here).collect()
    }
}

/// Matrix instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Matrix {
    /// Of a SIMD group, 8 by 8, whose lanes hold nobody knows which elements (Metal).
    EightByEight,
    /// Of a SIMD group: m16n8k16 and m16n8k32.
    SimdGroup,
    /// Of four SIMD groups, from group memory (compute capability 9.0 alone).
    FourSimdGroups,
}

/// The name of a format's kernel: what stands before and behind the format's.
macro_rules! named {
    ($format:expr, $before:literal, $after:literal) => {
        match $format {
            DeviceFormat::F32 => concat!($before, "f32", $after),
            DeviceFormat::F16 => concat!($before, "f16", $after),
            DeviceFormat::BF16 => concat!($before, "bf16", $after),
            DeviceFormat::Q8_0 => concat!($before, "q8_0", $after),
            DeviceFormat::FP8 => concat!($before, "fp8", $after),
            DeviceFormat::Q4_0 => concat!($before, "q4_0", $after),
            DeviceFormat::Q4_G128 => concat!($before, "q4_g128", $after),
            DeviceFormat::MXFP4 => concat!($before, "mxfp4", $after),
            DeviceFormat::NVFP4 => concat!($before, "nvfp4", $after),
            DeviceFormat::Q4_K => concat!($before, "q4_k", $after),
            DeviceFormat::Q6_K => concat!($before, "q6_k", $after),
        }
    };
}

/// A variant of `linear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearVariant {
    pub(crate) kernel: &'static str,
    /// Rows of activations that a group multiplies.
    pub(crate) rows: usize,
    /// Output features of a group.
    pub(crate) outputs: usize,
}

/// What a projection is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinearKind {
    /// Itself.
    Plain,
    /// A gated unit: gate and up at once.
    Glu,
    /// One row that is normalised on the way.
    Norm,
    /// Both.
    NormGlu,
}

/// Whether rows are normalised by the kernel that multiplies them, and not by one before it: every group does it again,
/// which pays for one row.
pub(crate) fn normalises_on_the_way(rows: usize) -> bool {
    rows == 1
}

/// Kernels of projections on matrix instructions, in the order in which they are tried.
pub(crate) fn on_matrices(target: &Target) -> &'static [Kernel] {
    match target.kernel {
        Some(Kernel::Linear) => &[],
        Some(Kernel::LinearBatch) => &[Kernel::LinearBatch, Kernel::Gemm],
        _ => &[Kernel::Gemm, Kernel::LinearBatch],
    }
}

/// Rows from which on a projection is a gemm on matrices of 8 by 8, and rows of the smaller of its tiles. With as many, reading
/// the weights for each four takes as long as multiplying by a whole tile should: by arithmetic, not measured.
const SIMDGROUP_ROWS_MIN: usize = 5;
const SIMDGROUP_TILE_ROWS: usize = 32;
/// Bytes of group memory of the larger: as `GemmTiles` in `kernels/gemm.simdgroup_matrix.h`.
const SIMDGROUP_GROUP_BYTES: u32 = 2 * (64 + 64) * 20 * 4;

/// The gemm for up to `rows` rows on matrices of 8 by 8, if there is one.
fn gemm_simdgroup(target: &Target, format: DeviceFormat, rows: usize, glu: bool) -> Option<LinearVariant> {
    let other = target.kernel.is_some_and(|kernel| kernel != Kernel::Gemm);
    if target.matrix != Matrix::EightByEight
        || target.batch_invariant
        || other
        || rows < SIMDGROUP_ROWS_MIN
        || SIMDGROUP_GROUP_BYTES > target.group_bytes_max
    {
        return None;
    }
    let is_small = rows <= SIMDGROUP_TILE_ROWS;
    let kernel = match (glu, is_small) {
        (false, true) => named!(format, "gemm_simdgroup_", "_t32"),
        (false, false) => named!(format, "gemm_simdgroup_", "_t64"),
        (true, true) => named!(format, "gemm_simdgroup_glu_", "_t32"),
        (true, false) => named!(format, "gemm_simdgroup_glu_", "_t64"),
    };
    let rows = if is_small { SIMDGROUP_TILE_ROWS } else { 2 * SIMDGROUP_TILE_ROWS };
    Some(LinearVariant { kernel, rows, outputs: if glu { 32 } else { 64 } })
}

/// The variant for up to `rows` rows.
pub(crate) fn linear(target: &Target, format: DeviceFormat, rows: usize, kind: LinearKind) -> LinearVariant {
    if let Some(gemm) = gemm_simdgroup(target, format, rows, kind == LinearKind::Glu) {
        return gemm;
    }
    let one = rows == 1;
    let kernel = match kind {
        LinearKind::Plain if one => named!(format, "linear_", "_m1"),
        LinearKind::Plain => named!(format, "linear_", "_m4"),
        LinearKind::Glu if one => named!(format, "linear_glu_", "_m1"),
        LinearKind::Glu => named!(format, "linear_glu_", "_m4"),
        LinearKind::Norm => named!(format, "norm_linear_", "_m1"),
        LinearKind::NormGlu => named!(format, "norm_linear_glu_", "_m1"),
    };
    LinearVariant { kernel, rows: if one { 1 } else { 4 }, outputs: 2 * GROUP_SIMDS }
}

/// Projections of the same rows, all with weights of one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProjectionsShape<'a> {
    pub(crate) format: DeviceFormat,
    pub(crate) rows: usize,
    /// Input features.
    pub(crate) k: usize,
    /// Whether gate and up are computed at once.
    pub(crate) glu: bool,
    /// Output features of each projection.
    pub(crate) features: &'a [usize],
}

/// How `linear_batch` is launched: `kernels/linear_batch.h` says what these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchVariant {
    pub(crate) kernel: &'static str,
    pub(crate) threads: u32,
    pub(crate) group_bytes: usize,
    /// Groups of a team, and teams.
    pub(crate) slices: usize,
    pub(crate) teams: usize,
    pub(crate) slice_steps: usize,
    pub(crate) k_simds: usize,
    /// Output features of a tile.
    pub(crate) tile: usize,
    /// Tiles of all projections.
    pub(crate) tiles: usize,
    /// Bytes of messages: sums, and squares.
    pub(crate) partials_bytes: u64,
    pub(crate) squares_bytes: u64,
}

/// Rows of one of its kernels: as `LINEAR_BATCH` in `kernels/linear_batch.h` has them.
#[derive(Clone, Copy, Debug)]
struct BatchRows {
    rows: usize,
    finishers: usize,
    stages: usize,
}

const BATCH_ROWS: [BatchRows; 3] = [
    BatchRows { rows: 8, finishers: 2, stages: 3 },
    BatchRows { rows: 16, finishers: 2, stages: 3 },
    BatchRows { rows: 32, finishers: 4, stages: 2 },
];
/// Rows up to which it pays, or fits.
const BATCH_ROWS_MAX: usize = BATCH_ROWS[2].rows;
/// SIMD groups that multiply.
const BATCH_MULTIPLIERS: usize = 8;
/// Bytes of `LinearBatchGroup`.
const BATCH_HEADER: usize = 784;

/// Whether any projection of so many rows may be a `linear_batch`.
pub(crate) fn has_batch(target: &Target, rows: usize) -> bool {
    target.matrix >= Matrix::SimdGroup && !target.batch_invariant && (2..=BATCH_ROWS_MAX).contains(&rows)
}

/// The variant for `shape`, if there is one: how it is cut follows from the weights alone, so that bits do not depend on the
/// rows.
pub(crate) fn linear_batch(target: &Target, shape: ProjectionsShape<'_>) -> Option<BatchVariant> {
    if !has_batch(target, shape.rows) {
        return None;
    }
    // Features and bytes of a step of one row, and what all 32 rows of a stage take.
    let (features, stage) = match shape.format {
        DeviceFormat::F16 | DeviceFormat::BF16 => (64, 4096),
        DeviceFormat::Q8_0 => (128, 4352),
        _ => return None,
    };
    let kernels = [
        named!(shape.format, "linear_batch_", "_t8"),
        named!(shape.format, "linear_batch_", "_t16"),
        named!(shape.format, "linear_batch_", "_t32"),
    ];
    let group_bytes = |rows: &BatchRows, slice_steps: usize, k_simds: usize| {
        let ring = BATCH_MULTIPLIERS * rows.stages * stage;
        let partials = k_simds * rows.rows * (32 * (BATCH_MULTIPLIERS / k_simds) + 4) * 4;
        BATCH_HEADER + ring + partials + slice_steps * features * (4 + 2 * rows.rows)
    };
    let steps = shape.k.div_ceil(features);
    let slices_max = if target.groups_meet { target.multiprocessors.min(steps) } else { 1 };
    let mut best: Option<(usize, BatchVariant)> = None;
    let place = BATCH_ROWS.iter().position(|rows| shape.rows <= rows.rows)?;
    let rows = &BATCH_ROWS[place];
    for slices in 1..=slices_max {
        let slice_steps = steps.div_ceil(slices);
        if steps.div_ceil(slice_steps) != slices {
            continue;
        }
        for k_simds in [1, 2, 4, 8] {
            if group_bytes(&BATCH_ROWS[2], slice_steps, k_simds) > target.group_bytes_max as usize {
                continue;
            }
            let row_simds = BATCH_MULTIPLIERS / k_simds;
            let tile = row_simds * if shape.glu { 16 } else { 32 };
            let tiles: usize = shape.features.iter().map(|n| n.div_ceil(tile)).sum();
            let teams = tiles.min(target.multiprocessors / slices).max(1);
            // In nanoseconds, as measured on 132 multiprocessors: a step of all SIMD groups, and the end of a tile; then what
            // grows with slices, and putting a slice into group memory.
            let tile_time = slice_steps.div_ceil(k_simds) * 940 + 400;
            let once = 150 * slices + slice_steps * features + if k_simds == 1 { 1000 } else { 0 };
            let cost = tiles.div_ceil(teams) * tile_time + once;
            if best.as_ref().is_some_and(|&(least, _)| least <= cost) {
                continue;
            }
            let (messages, message) = (if slices > 1 { slices } else { 0 }, 16);
            let variant = BatchVariant {
                kernel: kernels[place],
                threads: ((BATCH_MULTIPLIERS + rows.finishers) * 32) as u32,
                group_bytes: group_bytes(rows, slice_steps, k_simds),
                slices,
                teams,
                slice_steps,
                k_simds,
                tile,
                tiles,
                partials_bytes: (tiles * messages * rows.rows * row_simds * 8 * message) as u64,
                squares_bytes: (teams * messages * rows.finishers * slices * rows.rows * message) as u64,
            };
            best = Some((cost, variant));
        }
    }
    best.map(|(_, variant)| variant)
}

/// A variant of `gemm`, as `kernels/sm90/gemm.h` has them, or of `gemm_narrow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GemmVariant {
    pub(crate) kernel: &'static str,
    /// The kernel that makes the operand of rows, and the one that normalises them before.
    pub(crate) activations: [&'static str; 2],
    pub(crate) activation_threads: u32,
    /// Rows of a tile.
    pub(crate) rows: usize,
    /// Groups of a cluster.
    pub(crate) cluster: usize,
    /// Output features that a cluster makes at once.
    pub(crate) features: usize,
    pub(crate) threads: u32,
    /// How `gemm_narrow` is cut.
    pub(crate) narrow: Option<NarrowCut>,
}

/// As `kernels/sm90/gemm_narrow.h` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NarrowCut {
    /// Rows of weights of a tile.
    pub(crate) height: usize,
    /// Times 128 bytes of each row that a stage has.
    pub(crate) columns: usize,
    pub(crate) stages: usize,
}

/// Rows from which on projections are gemms of tiles.
const GEMM_ROWS_MIN: usize = NARROW_ROWS[2] + 1;
/// Threads of a gemm's groups, and their group memory.
const GEMM_THREADS: u32 = 384;
pub(crate) const GEMM_GROUP_BYTES: usize = 227 << 10;
/// Input features that a row of activations may have, and those that each thread holds of up to half as many.
const GEMM_K_MAX: usize = 32_768;
const ACTIVATION_FEATURES: usize = 16;

/// Rows of its kernels.
const NARROW_ROWS: [usize; 3] = [8, 16, 32];
const NARROW_THREADS: u32 = 576;
const NARROW_STAGES_MAX: usize = 24;
const NARROW_HEADER: usize = 1024;
/// Bytes of weights of a stage, of the scales of Q8_0 and of four bits, and of Q6_K's.
const NARROW_STAGE: usize = 128 * 128;
const NARROW_STAGE_SCALES: usize = 128 * 16;
const NARROW_STAGE_Q6_K: usize = 128 * 96;
/// Of k, by which groups share it: two stages at least, of `features` in 128 bytes of a row.
fn narrow_unit(features: usize) -> usize {
    (4 * features).max(512)
}

/// Clusters of so many groups that run at once, at one group a multiprocessor. They do not cross certain borders: of 132
/// multiprocessors, 39 clusters of three were counted, 30 of four and 15 of eight; devices with others may have fewer.
fn clusters_max(target: &Target, groups: usize) -> usize {
    let of_132 = match groups {
        1 => 132,
        2 => 66,
        3 => 36,
        4 => 28,
        _ => 14,
    };
    of_132 * target.multiprocessors / 132
}

/// Whether any projection of so many rows may be a gemm.
pub(crate) fn has_gemm(target: &Target, rows: usize) -> bool {
    target.matrix == Matrix::FourSimdGroups && !target.batch_invariant && rows >= 2
}

/// Whether a gemm of so many rows is a `gemm_narrow`.
pub(crate) fn is_narrow(rows: usize) -> bool {
    rows < GEMM_ROWS_MIN
}

/// The kernels that make a gemm's operand of rows of `k` features, and their threads.
fn activations(format: DeviceFormat, k: usize) -> ([&'static str; 2], u32) {
    let wide = k.div_ceil(ACTIVATION_FEATURES) > 1024;
    let [narrow, wider] = match (format.chunk_len(), format) {
        (32, _) => [["activations_q4", "norm_activations_q4"], ["activations_wide_q4", "norm_activations_wide_q4"]],
        (16, _) => {
            [["activations_q8_0", "norm_activations_q8_0"], ["activations_wide_q8_0", "norm_activations_wide_q8_0"]]
        }
        (_, DeviceFormat::BF16) => {
            [["activations_bf16", "norm_activations_bf16"], ["activations_wide_bf16", "norm_activations_wide_bf16"]]
        }
        _ => [["activations_f16", "norm_activations_f16"], ["activations_wide_f16", "norm_activations_wide_f16"]],
    };
    let kernels = if wide { wider } else { narrow };
    let features = if wide { 2 * ACTIVATION_FEATURES } else { ACTIVATION_FEATURES };
    (kernels, k.div_ceil(features).next_multiple_of(32) as u32)
}

/// The gemm for `shape`, if there is one.
pub(crate) fn gemm(target: &Target, shape: ProjectionsShape<'_>) -> Option<GemmVariant> {
    if !has_gemm(target, shape.rows) || shape.k > GEMM_K_MAX || shape.format == DeviceFormat::F32 {
        return None;
    }
    if is_narrow(shape.rows) { gemm_narrow(target, shape) } else { gemm_tiles(target, shape) }
}

/// The cut of up to 32 rows that streams the weights soonest: whose tiles are equal shares for the multiprocessors.
fn gemm_narrow(target: &Target, shape: ProjectionsShape<'_>) -> Option<GemmVariant> {
    // Features in 128 bytes of a row; nanoseconds that a stage takes at least, of one and of two columns, by rows.
    let (features, stage_times, scales) = match shape.format {
        DeviceFormat::F32 => return None,
        DeviceFormat::F16 | DeviceFormat::BF16 => (64, [[200, 260, 330], [250, 280, 330]], 0),
        DeviceFormat::Q8_0 | DeviceFormat::FP8 => (128, [[350, 420, 520], [470, 500, 600]], NARROW_STAGE_SCALES),
        DeviceFormat::Q4_0 | DeviceFormat::Q4_G128 | DeviceFormat::MXFP4 | DeviceFormat::NVFP4 | DeviceFormat::Q4_K => {
            (256, [[600, 700, 900], [700, 800, 1000]], NARROW_STAGE_SCALES)
        }
        DeviceFormat::Q6_K => (256, [[900, 1000, 1200], [1000, 1100, 1300]], NARROW_STAGE_Q6_K),
    };
    let kernels = [
        named!(shape.format, "gemm_narrow_", "_t8"),
        named!(shape.format, "gemm_narrow_", "_t16"),
        named!(shape.format, "gemm_narrow_", "_t32"),
    ];
    let place = NARROW_ROWS.iter().position(|&rows| shape.rows <= rows)?;
    let rows = NARROW_ROWS[place];
    let unit = narrow_unit(features);
    let units = shape.k.div_ceil(unit);
    let (activations, activation_threads) = activations(shape.format, shape.k);
    let mut best: Option<(usize, GemmVariant)> = None;
    for height in (16..=128).step_by(16) {
        let columns = if height <= 64 { 2 } else { 1 };
        let outputs = if shape.glu { height / 2 } else { height };
        let tiles: usize = shape.features.iter().map(|n| n.div_ceil(outputs)).sum();
        for cluster in [1, 2] {
            let clusters = clusters_max(target, cluster);
            if cluster > 1 && (tiles > clusters || units < cluster) {
                continue;
            }
            // All that stream share 4,500 bytes a nanosecond, and each takes 44 at most; rows come from the second cache.
            let stages = units.div_ceil(cluster) * (unit / (columns * features));
            let bytes = columns * (height * 128 + rows * features);
            let round = |tiles: usize| {
                let stream = bytes * (tiles * cluster).max(4500 / 44) / 4500;
                // Of 32 rows, what a cluster exchanges takes as long as it is high.
                let exchange = if rows == 32 { 900 + 14 * height } else { 900 };
                stages * stream.max(stage_times[columns - 1][place]) + if cluster > 1 { exchange } else { 500 }
            };
            let left = if tiles.is_multiple_of(clusters) { 0 } else { round(tiles % clusters) };
            let cost = tiles / clusters * round(clusters) + left;
            if best.as_ref().is_some_and(|&(least, _)| least <= cost) {
                continue;
            }
            let pairs = (rows / 2).div_ceil(cluster);
            let sums = height * (rows + 2) * 4 + if cluster > 1 { cluster * height * (2 * pairs + 2) * 4 } else { 0 };
            // With room for two columns, or, where rows take much, for as many as there are.
            let room = if rows == 32 { columns } else { 2 };
            let stage = NARROW_STAGE + scales + room * rows * features * 2;
            // Every second stage belongs to the same SIMD groups.
            let stages = ((GEMM_GROUP_BYTES - NARROW_HEADER - sums) / stage).min(NARROW_STAGES_MAX) / 2 * 2;
            let variant = GemmVariant {
                kernel: kernels[place],
                activations,
                activation_threads,
                rows,
                cluster,
                features: outputs,
                threads: NARROW_THREADS,
                narrow: Some(NarrowCut { height, columns, stages }),
            };
            best = Some((cost, variant));
        }
    }
    best.map(|(_, variant)| variant)
}

/// Of many rows: the variant that takes the fewest rounds of the multiprocessors, each as long as its share of k.
fn gemm_tiles(target: &Target, shape: ProjectionsShape<'_>) -> Option<GemmVariant> {
    let [wide, narrow] = if shape.glu {
        [named!(shape.format, "gemm_glu_", "_t256"), named!(shape.format, "gemm_glu_", "_t128")]
    } else {
        [named!(shape.format, "gemm_", "_t256"), named!(shape.format, "gemm_", "_t128")]
    };
    let (activations, activation_threads) = activations(shape.format, shape.k);
    // Gate and up share the 128 features of a group's tile.
    let group_features = if shape.glu { 64 } else { 128 };
    let variant = |rows, cluster| {
        let (kernel, features) = if rows == 256 { (wide, 2 * group_features) } else { (narrow, group_features) };
        GemmVariant {
            kernel,
            activations,
            activation_threads,
            rows,
            cluster,
            features,
            threads: GEMM_THREADS,
            narrow: None,
        }
    };
    // In stages of 64 by 128 features by 128 rows. Measured: those of a large tile are a sixth faster; the end of a tile takes
    // as long as eight, with the sum over a cluster as twenty.
    let cost = |variant: &GemmVariant| {
        let per_rows: usize = shape.features.iter().map(|n| n.div_ceil(variant.features)).sum();
        let tiles = per_rows * shape.rows.div_ceil(variant.rows);
        let clusters = clusters_max(target, variant.cluster);
        let rounds = tiles.div_ceil(clusters.max(1));
        let stages = shape.k.div_ceil(64);
        match (variant.rows, variant.cluster) {
            (256, _) => Some(rounds * (2 * stages * 6 / 7 + 8)),
            (_, 1) => Some(rounds * (stages + 8)),
            (_, cluster) if cluster > 2 && tiles > clusters => None,
            // A cluster shares k in pieces of 256.
            (_, cluster) => Some(rounds * (stages.div_ceil(4).div_ceil(cluster) * 4 + 20)),
        }
    };
    let small = [1, 2, 3, 4, 8].map(|cluster| variant(128, cluster));
    let variants = std::iter::once(variant(256, 2)).chain(small);
    let costs = variants.filter_map(|variant| Some((cost(&variant)?, variant)));
    costs.min_by_key(|&(cost, _)| cost).map(|(_, variant)| variant)
}

/// What `linear_stream` computes beside projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Nothing.
    Plain,
    /// A gated unit.
    Glu,
    /// Rotation and the write to the cache.
    Rope,
}

/// How `linear_stream` is launched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StreamVariant {
    pub(crate) kernel: &'static str,
    pub(crate) groups: usize,
    /// Of the ring of each SIMD group.
    pub(crate) stages: usize,
    pub(crate) stage_rows: usize,
    /// Where activations begin in group memory, and the rings.
    pub(crate) x_at: usize,
    pub(crate) ring_at: usize,
    pub(crate) group_bytes: usize,
    /// Where the last segment is in a format of its own.
    pub(crate) other: Option<OtherFormat>,
}

/// What `linear_stream` has of a second format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct OtherFormat {
    pub(crate) x_at: usize,
    pub(crate) stage_rows: usize,
    /// How long a byte of its weights takes beside one of the others.
    pub(crate) effort: f64,
}

/// As in `kernels/linear_stream.h`.
pub(crate) const STREAM_THREADS: u32 = 512;
const STREAM_SIMDS: usize = 16;
const STREAM_STAGES_MAX: usize = 8;
/// Bytes of its barriers and sums.
const STREAM_HEADER: usize = 1152;
/// Features that its threads hold to normalise them.
const STREAM_NORM_K_MAX: usize = 8_192;
/// Percent of group memory for kernels with a norm, and for the others. Kernels of a layer take turns, and attention of one row
/// is between two of them: so large are the shares that each begins while the one ahead is at work, one of each on every
/// multiprocessor; two of the same, and other multiprocessors would have none (a fifth slower).
const STREAM_NORM_SHARE: usize = 42;
const STREAM_PLAIN_SHARE: usize = 57;

/// The variant that streams weights through group memory, for one row of `k` features: where copies run by themselves,
/// results may depend on the batch, and its memory suffices. `norm`: the row is normalised on the way; `other`: the format of the
/// last segment, where it is not that of the rest.
pub(crate) fn linear_stream(
    target: &Target,
    format: DeviceFormat,
    other: Option<DeviceFormat>,
    kind: StreamKind,
    norm: bool,
    k: usize,
) -> Option<StreamVariant> {
    let kernel = match (kind, norm) {
        (StreamKind::Rope, true) => match (format, other) {
            (format, None) => named!(format, "norm_linear_rope_stream_", ""),
            (DeviceFormat::Q4_K, Some(DeviceFormat::Q8_0)) => "norm_linear_rope_stream_q4_k_q8_0",
            (DeviceFormat::Q4_K, Some(DeviceFormat::Q6_K)) => "norm_linear_rope_stream_q4_k_q6_k",
            (DeviceFormat::Q8_0, Some(DeviceFormat::Q6_K)) => "norm_linear_rope_stream_q8_0_q6_k",
            _ => return None,
        },
        _ if other.is_some() => return None,
        (StreamKind::Plain, false) => named!(format, "linear_stream_", ""),
        (StreamKind::Glu, false) => named!(format, "linear_glu_stream_", ""),
        (StreamKind::Plain, true) => named!(format, "norm_linear_stream_", ""),
        (StreamKind::Glu, true) => named!(format, "norm_linear_glu_stream_", ""),
        (StreamKind::Rope, false) => return None,
    };
    let is_other = target.kernel == Some(Kernel::Linear);
    let is_other = is_other || format == DeviceFormat::F32;
    if is_other || target.batch_invariant || !target.bulk_copies || (norm && k > STREAM_NORM_K_MAX) {
        return None;
    }
    let planes = if kind == StreamKind::Plain { 1 } else { 2 };
    let share = if norm { STREAM_NORM_SHARE } else { STREAM_PLAIN_SHARE };
    let group_bytes = target.group_bytes_max as usize * share / 100 / 1024 * 1024;
    let (first, second) =
        (StreamedFormat::new(format, k, planes), other.map(|other| StreamedFormat::new(other, k, planes)));
    let first_end = STREAM_HEADER + first.x_bytes.next_multiple_of(128);
    let (other_x_at, ring_at) = match second {
        Some(second) if second.layout != first.layout => (first_end, first_end + second.x_bytes.next_multiple_of(128)),
        _ => (STREAM_HEADER, first_end),
    };
    let plane = second.map_or(0, StreamedFormat::plane).max(first.plane());
    let stages = group_bytes.checked_sub(ring_at)? / (STREAM_SIMDS * planes * plane);
    Some(StreamVariant {
        kernel,
        groups: target.multiprocessors,
        stages: stages.min(STREAM_STAGES_MAX),
        stage_rows: first.stage_rows(),
        x_at: STREAM_HEADER,
        ring_at,
        group_bytes,
        other: second.map(|second| OtherFormat {
            x_at: other_x_at,
            stage_rows: second.stage_rows(),
            // Measured: more instructions a byte, and shorter stages.
            effort: if other == Some(DeviceFormat::Q6_K) { 1.6 } else { 1.0 },
        }),
    })
    .filter(|variant| variant.stages > 0)
}

/// Bytes of a format in group memory.
#[derive(Clone, Copy)]
struct StreamedFormat {
    /// Of a row, and of its scales.
    row: usize,
    scale_row: usize,
    /// Of activations; formats of one layout share them.
    x_bytes: usize,
    layout: u32,
    /// Of weights and scales of one plane of a stage.
    piece: usize,
    stage_scales: usize,
}

impl StreamedFormat {
    /// Where a stage has so many planes.
    fn new(format: DeviceFormat, k: usize, planes: usize) -> Self {
        let (row, scale_row) = (row_bytes(format, k), scale_row_bytes(format, k));
        let four_bits = k.next_multiple_of(1024) + k / 4;
        let (layout, x_bytes, stage, stage_scales) = match format {
            DeviceFormat::F32 | DeviceFormat::F16 | DeviceFormat::BF16 => (0, row.div_ceil(512) * 1024, 2048, 0),
            DeviceFormat::Q8_0 => (1, k + k / 8, 2048, 128),
            DeviceFormat::FP8 => (2, k.next_multiple_of(1024) * 2 + k / 8, 2048, 128),
            DeviceFormat::Q4_0 | DeviceFormat::Q4_K => (3, four_bits, 2048, 256),
            DeviceFormat::Q4_G128 => (3, four_bits, 2048, 128),
            DeviceFormat::MXFP4 => (4, four_bits, 2048, 128),
            DeviceFormat::NVFP4 => (5, four_bits, 2048, 256),
            DeviceFormat::Q6_K => (3, four_bits, 1024, 1024 / planes / 32 * 21),
        };
        Self { row, scale_row, x_bytes, layout, piece: stage / planes, stage_scales }
    }

    fn plane(self) -> usize {
        self.piece + self.stage_scales
    }

    /// Rows of a stage.
    fn stage_rows(self) -> usize {
        let short_rows = (self.piece / self.row).min(STREAM_SIMDS / 2);
        short_rows.min(self.stage_scales.checked_div(self.scale_row).unwrap_or(short_rows)).max(1)
    }
}

pub(crate) fn embed(format: DeviceFormat) -> &'static str {
    named!(format, "embed_", "")
}

pub(crate) fn weight_norms(format: DeviceFormat) -> &'static str {
    named!(format, "weight_norms_", "")
}

/// How the numbers of a row follow each other where they meet weights of this format in a gemm: an `OperandOrder` of
/// `kernels/operand.h`.
pub(crate) fn operand_order(format: DeviceFormat) -> i32 {
    match format.chunk_len() {
        32 => 2,
        16 => 1,
        _ => 0,
    }
}

/// The kernels that read or write a cache of one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvKernels {
    pub(crate) rope_kv_write: &'static str,
    pub(crate) kv_write: &'static str,
}

pub(crate) fn kv(format: KvFormat) -> KvKernels {
    match format {
        KvFormat::F32 => KvKernels { rope_kv_write: "rope_kv_write_f32", kv_write: "kv_write_f32" },
        KvFormat::F16 => KvKernels { rope_kv_write: "rope_kv_write_f16", kv_write: "kv_write_f16" },
    }
}

/// A kernel of `attention.h` or `attention_f16.h`, and how a row's positions are cut for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionVariant {
    pub(crate) kernel: &'static str,
    /// Query heads of a group.
    pub(crate) heads: usize,
    /// Features of a head that it has room for.
    pub(crate) dim: usize,
    pub(crate) threads: u32,
    pub(crate) group_bytes: u32,
    /// Splits of a row at most.
    pub(crate) max_splits: usize,
    /// Whether one group takes all of them, one after another.
    pub(crate) loops: bool,
}

/// Positions of a tile, as in `kernels/attention.h`.
const ATTENTION_TILE: usize = 16;
/// Tiles of a split, where there are more than one: with fewer, folding costs more than it saves.
pub(crate) const ATTENTION_MIN_TILES: usize = 6;
/// Splits that are folded at once; more are no faster.
const ATTENTION_SPLITS_MAX: usize = 16;
/// Bytes that a group of `attention_f16.h` keeps on their way, what each SIMD group found, and those of the group itself.
const ATTENTION_TILES_BYTES: u32 = 96 << 10;
const ATTENTION_SIMD_BYTES: u32 = 64;
const ATTENTION_GROUP_BYTES: u32 = 16;
/// Groups of the kernels without matrix instructions that a multiprocessor runs at once.
const ATTENTION_ANY_GROUPS: usize = 4;
/// Rows above which partial results take more memory than they are worth, where all rows must be cut alike.
const SPLIT_ROWS_MAX: usize = 16;

/// What attention is computed of, in a step of up to so many rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionShape {
    pub(crate) rows: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) max_positions: usize,
}

/// The variant for rows that are alone in their sequence, or few.
///
/// A row is cut so that there are as many groups as the device runs at once, whatever rows are beside it where results must
/// not depend on those.
pub(crate) fn attention(target: &Target, format: KvFormat, shape: AttentionShape) -> AttentionVariant {
    let bytes = |simds: u32| ATTENTION_TILES_BYTES + simds * ATTENTION_SIMD_BYTES + ATTENTION_GROUP_BYTES;
    let has_matrix = target.matrix >= Matrix::SimdGroup && bytes(4) <= target.group_bytes_max;
    let matrix = match (format, shape.head_dim) {
        _ if target.kernel == Some(Kernel::Attention) || !has_matrix => None,
        (KvFormat::F16, 64) => Some(["attention_f16_d64", "attention_f16_d64_loop", "attention_f16_d64_wide"]),
        (KvFormat::F16, 128) => Some(["attention_f16_d128", "attention_f16_d128_loop", "attention_f16_d128_wide"]),
        _ => None,
    };
    let heads = if matrix.is_some() { 8 } else { 4 };
    let groups_of_row = shape.kv_heads * (shape.heads / shape.kv_heads).div_ceil(heads);
    let rows = if target.batch_invariant { 1 } else { shape.rows.max(1) };
    let loops = target.batch_invariant && shape.rows > SPLIT_ROWS_MAX;
    let most = shape.max_positions.div_ceil(ATTENTION_TILE * ATTENTION_MIN_TILES).max(1);
    let max_splits = |at_once: usize| (at_once / (rows * groups_of_row)).clamp(1, most.min(ATTENTION_SPLITS_MAX));
    let Some([four, four_loop, eight]) = matrix else {
        let kernel = match (format, loops) {
            (KvFormat::F32, false) => "attention_f32",
            (KvFormat::F32, true) => "attention_f32_loop",
            (KvFormat::F16, false) => "attention_f16",
            (KvFormat::F16, true) => "attention_f16_loop",
        };
        let max_splits = max_splits(target.multiprocessors * ATTENTION_ANY_GROUPS);
        return AttentionVariant { kernel, heads, dim: 256, threads: 128, group_bytes: 0, max_splits, loops };
    };
    let wide =
        !target.batch_invariant && rows * groups_of_row <= target.multiprocessors && bytes(8) <= target.group_bytes_max;
    let (kernel, simds) = match (wide, loops) {
        (true, _) => (eight, 8),
        (false, true) => (four_loop, 4),
        (false, false) => (four, 4),
    };
    AttentionVariant {
        kernel,
        heads,
        dim: shape.head_dim,
        threads: simds * 32,
        group_bytes: bytes(simds),
        // One for each of four fifths of the multiprocessors: with more, memory is slower. Beside other rows heads of 64 have
        // twice as many: a group has half as many bytes of them to read, and two fit a multiprocessor.
        max_splits: max_splits(target.multiprocessors * if shape.head_dim == 64 && rows > 1 { 8 } else { 4 } / 5),
        loops,
    }
}

/// Counters that steps need whose attention has up to so many heads: rows are cut where there are few groups of them.
pub(crate) fn attention_counters(target: &Target, heads: usize) -> usize {
    (target.multiprocessors * ATTENTION_ANY_GROUPS).max(SPLIT_ROWS_MAX * heads)
}

/// A kernel of `attention_tiles.h`, or of `attention_prefill.simdgroup_matrix.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionTilesVariant {
    pub(crate) kernel: &'static str,
    pub(crate) threads: u32,
    pub(crate) group_bytes: u32,
    /// Groups that share the rows of a tile.
    pub(crate) parts: usize,
}

/// Rows of a tile, as in `kernels/attention_tiles.h`.
pub(crate) const ATTENTION_TILE_ROWS: usize = 128;
/// Rows of a sequence up to which each is for itself.
pub(crate) const ATTENTION_SINGLES_MAX: usize = 16;

/// The variant for many rows of a sequence, if there is one: it rounds to f16, and gives a row other bits than
/// [`attention`].
pub(crate) fn attention_tiles(target: &Target, format: KvFormat, head_dim: usize) -> Option<AttentionTilesVariant> {
    if target.matrix == Matrix::EightByEight {
        return attention_prefill(target, format, head_dim);
    }
    let (kernel, dim) = match (format, head_dim) {
        (KvFormat::F16, 64) => ("attention_tiles_d64", 64),
        (KvFormat::F16, 128) => ("attention_tiles_d128", 128),
        _ => return None,
    };
    // Queries, keys and values of 64 positions and of the next 64; a scale for each row, and slots.
    let group_bytes = (ATTENTION_TILE_ROWS as u32 + 4 * 64) * dim * 2 + 1024;
    let fits = target.kernel.is_none() && !target.batch_invariant && group_bytes <= target.group_bytes_max;
    fits.then_some(AttentionTilesVariant { kernel, threads: GROUP_THREADS, group_bytes, parts: 1 })
}

/// Rows of a group of `attention_prefill`.
const PREFILL_ROWS: usize = 64;

/// [`attention_tiles`] on matrices of 8 by 8.
fn attention_prefill(target: &Target, format: KvFormat, head_dim: usize) -> Option<AttentionTilesVariant> {
    let (kernel, dim) = match (format, head_dim) {
        (KvFormat::F16, 64) => ("attention_prefill_d64", 64),
        (KvFormat::F16, 128) => ("attention_prefill_d128", 128),
        _ => return None,
    };
    // Keys and values of 32 positions; scores, weights and a diagonal matrix of eight SIMD groups. The kernel declares them.
    let memory = 2 * 32 * (dim + 8) * 2 + 8 * (8 * 32 * (4 + 2) + 8 * 8 * 4);
    let fits = target.kernel.is_none() && !target.batch_invariant && memory <= target.group_bytes_max;
    let parts = ATTENTION_TILE_ROWS / PREFILL_ROWS;
    fits.then_some(AttentionTilesVariant { kernel, threads: 256, group_bytes: 0, parts })
}

/// Groups that go through a row of `n` logits: four turns of each thread, as far as the kernel that joins them can take them.
pub(crate) fn choose_parts(n: usize) -> usize {
    n.div_ceil(4 * 4 * 32 * GROUP_SIMDS).clamp(1, 64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const H200: Target = Target {
        multiprocessors: 132,
        groups_meet: true,
        bulk_copies: true,
        matrix: Matrix::FourSimdGroups,
        group_bytes_max: 227 << 10,
        batch_invariant: false,
        forced: ForcedVariants::NONE,
        kernel: None,
    };

    #[test]
    fn one_row_has_kernels_of_its_own() {
        for format in DeviceFormat::ALL {
            for kind in [LinearKind::Plain, LinearKind::Glu] {
                let (one, more) = (linear(&H200, format, 1, kind), linear(&H200, format, 2, kind));
                assert!(one.kernel.ends_with("_m1") && one.rows == 1, "{one:?}");
                assert!(more.kernel.ends_with("_m4") && more.rows == 4, "{more:?}");
                assert_eq!(one.kernel.contains("glu"), kind == LinearKind::Glu);
                assert!(one.kernel.contains(&format!("{format:?}").to_lowercase()));
            }
            assert!(linear(&H200, format, 1, LinearKind::NormGlu).kernel.starts_with("norm_linear_glu_"));
        }
        assert!(normalises_on_the_way(1) && !normalises_on_the_way(2));
    }

    #[test]
    fn few_rows_share_weights_and_are_cut_alike_however_many_they_are() {
        let shape = |format, rows, k, features| ProjectionsShape { format, rows, k, glu: false, features };
        let of = |target: &Target, shape| {
            linear_batch(target, shape).map(|found| (found.kernel, found.slices, found.k_simds))
        };
        for format in [DeviceFormat::F16, DeviceFormat::BF16, DeviceFormat::Q8_0] {
            for (k, features) in [(4096, &[4096, 1024, 1024][..]), (14_336, &[4096]), (896, &[1152]), (32, &[1])] {
                let [two, sixteen, many] = [2, 16, 32].map(|rows| {
                    linear_batch(&H200, shape(format, rows, k, features)).expect("a variant for every shape")
                });
                assert!(
                    two.kernel.ends_with("_t8") && sixteen.kernel.ends_with("_t16") && many.kernel.ends_with("_t32")
                );
                for other in [sixteen, many] {
                    assert_eq!(
                        (two.slices, two.k_simds, two.slice_steps),
                        (other.slices, other.k_simds, other.slice_steps)
                    );
                }
                assert!(
                    many.slices * many.teams <= H200.multiprocessors
                        && many.group_bytes <= H200.group_bytes_max as usize
                );
                assert_eq!(many.partials_bytes > 0, many.slices > 1);
            }
        }
        assert_eq!(of(&H200, shape(DeviceFormat::F16, 8, 4096, &[4096])), Some(("linear_batch_f16_t8", 4, 2)));
        assert_eq!(of(&H200, shape(DeviceFormat::F16, 1, 4096, &[4096])), None);
        assert_eq!(of(&H200, shape(DeviceFormat::F16, 33, 4096, &[4096])), None);
        assert_eq!(of(&H200, shape(DeviceFormat::F32, 8, 4096, &[4096])), None);
        let alone = Target { groups_meet: false, ..H200 };
        assert_eq!(of(&alone, shape(DeviceFormat::F16, 8, 512, &[512])).map(|found| found.1), Some(1));
        assert_eq!(of(&alone, shape(DeviceFormat::F16, 8, 14_336, &[512])), None);
        assert_eq!(of(&Target { batch_invariant: true, ..H200 }, shape(DeviceFormat::F16, 8, 4096, &[4096])), None);
    }

    #[test]
    fn many_rows_are_gemms_unless_a_row_must_not_depend_on_the_others() {
        let shape =
            |rows, features| ProjectionsShape { format: DeviceFormat::Q8_0, rows, k: 4096, glu: false, features };
        let of = |rows, features| gemm(&H200, shape(rows, features)).map(|variant| (variant.rows, variant.cluster));
        assert_eq!(of(1, &[4096]), None);
        assert_eq!(of(2048, &[4096, 1024, 1024]), Some((256, 2)));
        assert_eq!(of(2048, &[896]), Some((128, 1)));
        assert_eq!(of(128, &[28_672]), Some((128, 1)));
        assert_eq!(of(128, &[4096, 1024, 1024]), Some((128, 2)));
        assert_eq!(of(128, &[4096]), Some((128, 3)));
        assert_eq!(of(128, &[896]), Some((128, 8)));
        let glu = ProjectionsShape { glu: true, features: &[14_336], ..shape(2048, &[]) };
        assert_eq!(
            gemm(&H200, glu).map(|variant| (variant.kernel, variant.features)),
            Some(("gemm_glu_q8_0_t256", 128))
        );
        for rows in [8, 2048] {
            let glu = ProjectionsShape { rows, ..glu };
            assert_eq!(gemm(&H200, ProjectionsShape { format: DeviceFormat::F32, ..glu }), None);
            assert_eq!(gemm(&Target { batch_invariant: true, ..H200 }, glu), None);
            assert_eq!(gemm(&Target { matrix: Matrix::SimdGroup, ..H200 }, glu), None);
        }
    }

    #[test]
    fn few_rows_stream_weights_through_equal_shares() {
        let cut = |format, rows, k, glu, features| {
            let variant = gemm(&H200, ProjectionsShape { format, rows, k, glu, features }).expect("a variant");
            let cut = variant.narrow.expect("for few rows");
            (variant.rows, variant.cluster, cut.height, cut.columns)
        };
        for format in DeviceFormat::ALL.into_iter().filter(|&format| format != DeviceFormat::F32) {
            if row_bytes(format, 4096) >= 4096 {
                assert_eq!(cut(format, 2, 4096, true, &[14_336]), (8, 1, 112, 1));
                assert_eq!(cut(format, 2, 14_336, false, &[4096]), (8, 2, 64, 2));
            }
            for (rows, tile) in [(2, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32)] {
                for (k, features) in [(32, &[1][..]), (896, &[896, 128, 128]), (4096, &[128_256]), (14_336, &[4096])] {
                    let shape = ProjectionsShape { format, rows, k, glu: false, features };
                    let variant = gemm(&H200, shape).expect("a variant for every shape");
                    let cut = variant.narrow.expect("for few rows");
                    assert_eq!(variant.rows, tile);
                    assert!(cut.stages >= 2 && cut.stages.is_multiple_of(2), "{shape:?}: {variant:?}");
                    assert!(cut.height <= 128 / cut.columns && variant.cluster <= k.div_ceil(512));
                    let tiles: usize = features.iter().map(|n| n.div_ceil(variant.features)).sum();
                    assert!(variant.cluster == 1 || tiles <= 66, "{shape:?}: one tile for a cluster");
                }
            }
        }
    }

    #[test]
    fn kernels_of_a_layer_share_a_multiprocessor_two_by_two() {
        let shape = AttentionShape { rows: 1, heads: 32, kv_heads: 8, head_dim: 128, max_positions: 8192 };
        let attention = attention(&H200, KvFormat::F16, shape).group_bytes as usize;
        for format in DeviceFormat::ALL.into_iter().filter(|&format| format != DeviceFormat::F32) {
            let rope = linear_stream(&H200, format, None, StreamKind::Rope, true, 4096).unwrap().group_bytes;
            let plain = linear_stream(&H200, format, None, StreamKind::Plain, false, 14_336).unwrap().group_bytes;
            // A multiprocessor has a KiB more than a group may have, and keeps one for each group.
            for two in [rope + attention, attention + plain, plain + rope] {
                assert!(two + (2 << 10) <= (H200.group_bytes_max as usize) + (1 << 10), "{format:?}: {two} bytes");
            }
            assert!(2 * plain > H200.group_bytes_max as usize, "two of one kernel would leave others without");
        }
        let of_two = |first, other| linear_stream(&H200, first, Some(other), StreamKind::Rope, true, 4096);
        let both = of_two(DeviceFormat::Q4_K, DeviceFormat::Q8_0).unwrap();
        let other = both.other.unwrap();
        assert!(both.stages > 0 && other.x_at > both.x_at && other.x_at < both.ring_at);
        assert_eq!(of_two(DeviceFormat::Q8_0, DeviceFormat::Q4_K), None);
    }

    #[test]
    fn attention_is_cut_so_that_the_device_is_full() {
        let of = |rows, max_positions| AttentionShape { rows, heads: 32, kv_heads: 8, head_dim: 128, max_positions };
        let variant = |rows, max_positions| attention(&H200, KvFormat::F16, of(rows, max_positions));
        let splits = |rows, max_positions| variant(rows, max_positions).max_splits;
        assert_eq!([splits(1, 96), splits(1, 97), splits(1, 2048), splits(1, 131_072)], [1, 2, 13, 13]);
        assert_eq!([splits(2, 8192), splits(4, 8192), splits(8, 8192), splits(128, 8192)], [6, 3, 1, 1]);
        assert_eq!(variant(16, 8192).kernel, "attention_f16_d128_wide");
        assert_eq!(variant(17, 8192).kernel, "attention_f16_d128");
        let of_64 = |rows| AttentionShape { rows, heads: 14, kv_heads: 2, head_dim: 64, max_positions: 8192 };
        let splits_of_64 = |rows| attention(&H200, KvFormat::F16, of_64(rows)).max_splits;
        assert_eq!([splits_of_64(1), splits_of_64(16), splits_of_64(32)], [16, 6, 3]);
        let small = Target { group_bytes_max: (96 << 10) + 300, ..H200 };
        assert_eq!(attention(&small, KvFormat::F16, of(1, 8192)).kernel, "attention_f16_d128");
    }

    #[test]
    fn rows_beside_a_row_change_nothing_where_they_must_not() {
        let target = Target { batch_invariant: true, ..H200 };
        for head_dim in [64, 96, 128] {
            let of = |rows| AttentionShape { rows, heads: 32, kv_heads: 8, head_dim, max_positions: 8192 };
            let [one, few, many] = [1, 16, 17].map(|rows| attention(&target, KvFormat::F16, of(rows)));
            assert_eq!(one, few);
            assert_eq!(many, AttentionVariant { kernel: many.kernel, loops: true, ..one });
            assert_eq!(many.kernel, format!("{}_loop", one.kernel));
            assert_eq!(attention_tiles(&target, KvFormat::F16, head_dim), None);
        }
    }

    #[test]
    fn what_is_forced_is_taken_where_it_can_be() {
        let target = |forced: &[&str]| {
            let forced = forced.iter().map(|text| text.parse().unwrap()).collect();
            Target { forced, ..H200 }
        };
        let of = |forced: &str, op| target(&[forced]).of(op);
        assert_eq!(target(&["norm_glu=gemm"]).of("logits").kernel, None);
        assert_eq!(on_matrices(&H200), [Kernel::Gemm, Kernel::LinearBatch]);
        assert_eq!(on_matrices(&of("logits=linear_batch", "logits")), [Kernel::LinearBatch, Kernel::Gemm]);
        let plain = of("norm_glu=linear", "norm_glu");
        assert!(on_matrices(&plain).is_empty());
        assert_eq!(linear_stream(&plain, DeviceFormat::F16, None, StreamKind::Glu, true, 4096), None);
        let shape = AttentionShape { rows: 1, heads: 32, kv_heads: 8, head_dim: 128, max_positions: 256 };
        let kernel = |forced| attention(&of(forced, "attention"), KvFormat::F16, shape).kernel;
        assert_eq!(kernel("attention=attention"), "attention_f16");
        assert_eq!(kernel("attention=attention_f16"), "attention_f16_d128_wide");
        for forced in ["attention=attention", "attention=attention_f16"] {
            assert_eq!(attention_tiles(&of(forced, "attention"), KvFormat::F16, 128), None);
        }
        assert_eq!(H200.kernels_of("linear").len(), 4);
        assert_eq!(Target { batch_invariant: true, ..H200 }.kernels_of("linear"), [Kernel::Linear]);
        let older = Target { matrix: Matrix::SimdGroup, bulk_copies: false, ..H200 };
        assert_eq!(older.kernels_of("norm_glu"), [Kernel::Linear, Kernel::LinearBatch]);
    }

    #[test]
    fn common_heads_have_kernels_of_their_own() {
        let kernel = |format, heads, head_dim| {
            let shape = AttentionShape { rows: 1, heads, kv_heads: 2, head_dim, max_positions: 256 };
            attention(&H200, format, shape).kernel
        };
        assert_eq!(kernel(KvFormat::F16, 14, 64), "attention_f16_d64_wide");
        assert_eq!(kernel(KvFormat::F16, 8, 128), "attention_f16_d128_wide");
        assert_eq!(kernel(KvFormat::F16, 8, 96), "attention_f16");
        assert_eq!(kernel(KvFormat::F32, 8, 128), "attention_f32");
        let tiles = |format, head_dim| attention_tiles(&H200, format, head_dim).map(|variant| variant.kernel);
        assert_eq!(tiles(KvFormat::F16, 64), Some("attention_tiles_d64"));
        assert_eq!(tiles(KvFormat::F16, 128), Some("attention_tiles_d128"));
        assert_eq!([tiles(KvFormat::F16, 96), tiles(KvFormat::F32, 128)], [None, None]);
    }
}
