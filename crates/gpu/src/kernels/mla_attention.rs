//! `kernels/mla_attention.h`: latent attention of rows for themselves, and the write of rows to a latent cache.

use plan::{Attention, Experts, KvFormat, LatentColumns, LatentLayer, MlaAttention, Norm};

use crate::kernels::attention::{self, AttentionShape, AttentionVariant, Cut, SingleRows};
use crate::kernels::head_linear::HeadLaunch;
use crate::launch::{Access, GROUP_SIMDS, GROUP_THREADS, Launch, Region};
use crate::params::{
    AttentionParams, FoldHeadParams, LatentHeadParams, LatentRopeWriteParams, LatentWriteParams, MlaParams,
};
use crate::site::{DeviceRows, LoadedPlan, Site, index};
use crate::target::{Matrix, Target};

/// Latent numbers of a row of the cache at most, and all numbers of it.
pub(crate) const DIM_MAX: usize = 512;
pub(crate) const ROW_MAX: usize = 576;

/// Query heads of a group without matrix instructions.
const HEADS: usize = 2;

/// Groups of that kind that a multiprocessor runs at once.
const GROUPS_AT_ONCE: usize = 3;

/// A kernel on matrix instructions, which is for rows of exactly [`DIM_MAX`] latent numbers of [`ROW_MAX`].
struct MatrixKernel {
    kernel: &'static str,
    /// Query heads at once.
    heads: usize,
    /// Positions of a tile: a split is whole tiles.
    tile: usize,
    group_bytes: u32,
}

const MATRIX_KERNELS: [MatrixKernel; 2] = [
    MatrixKernel { kernel: "mla_attention_f16_h16", heads: 16, tile: 64, group_bytes: 170_752 },
    MatrixKernel { kernel: "mla_attention_f16_h32", heads: 32, tile: 32, group_bytes: 152_576 },
];

const MATRIX_THREADS: u32 = 256;

/// SIMD groups of a group of `fold_head_linear` that has several rows.
const FOLD_SIMDS: usize = 16;

/// Splits of a row on matrix instructions: more cost more to fold than they save.
const MATRIX_SPLITS_MAX: usize = 64;

/// Parts of the splits that fill the device, as a tuner tries them: all of them first, which is usual.
const SHARES: [usize; 2] = [1, 2];

/// How rows that are taken for themselves are computed.
#[derive(Debug)]
struct Variant {
    of: AttentionVariant,
    /// Positions of a tile, where splits are whole tiles and another kernel folds them.
    folded: Option<usize>,
}

/// The variant for rows of a cache of [`AttentionShape::head_dim`] numbers, of which `dim` are latent.
fn variant(target: &Target, format: KvFormat, shape: AttentionShape, dim: usize) -> Variant {
    let [_, high] = MATRIX_KERNELS;
    let fits = |kernel: &&MatrixKernel| {
        // Two groups of one row read its cache from device memory once and have larger tiles: on an H200 a step of
        // GLM-4.7-Flash takes 1 to 9 % less, the more the longer the text. Of several rows caches are read twice.
        let in_two = shape.rows == 1 && shape.heads <= high.heads;
        kernel.group_bytes <= target.group_bytes_max
            && (shape.heads <= kernel.heads || in_two || kernel.heads == high.heads)
    };
    let is_published = format == KvFormat::F16 && (dim, shape.head_dim) == (DIM_MAX, ROW_MAX);
    let has_matrix = target.matrix >= Matrix::SimdGroup && !target.batch_invariant && target.kernel.is_none();
    if let Some(usual) = MATRIX_KERNELS.iter().find(fits).filter(|_| is_published && has_matrix) {
        let others = MATRIX_KERNELS
            .iter()
            .filter(|other| other.kernel != usual.kernel && other.group_bytes <= target.group_bytes_max);
        // Half as many splits are half as many to fold. No other numbers: what is best behind a few hundred positions
        // would leave most of the device idle behind more.
        let of = |kernel| SHARES.map(|share| (share, on_matrices(target, shape, kernel, share)));
        let mut ways: Vec<(usize, Variant)> = vec![];
        for (share, variant) in std::iter::once(usual).chain(others).flat_map(of) {
            // Where one split is all there can be, half of them are no other way.
            if !ways.iter().any(|(_, other)| other.of == variant.of) {
                ways.push((share, variant));
            }
        }
        let key = || {
            let AttentionShape { rows, heads, max_positions, .. } = shape;
            // Longer caches are cut alike.
            let positions = max_positions.next_power_of_two().min(MATRIX_SPLITS_MAX * MATRIX_KERNELS[0].tile);
            format!("mla_attention_f16 rows={rows} heads={heads} positions={positions}")
        };
        let label = |(share, variant): &(usize, Variant)| format!("heads={} splits=1/{share}", variant.of.heads);
        let (_, variant) = target.tuned.pick(key, ways, label, 0).expect("the usual way is among them");
        return variant;
    }
    let cut = Cut::new(target, shape, HEADS);
    let kernel = match (format, cut.loops) {
        (KvFormat::F32, false) => "mla_attention_f32",
        (KvFormat::F32, true) => "mla_attention_f32_loop",
        (KvFormat::F16, false) => "mla_attention_f16",
        (KvFormat::F16, true) => "mla_attention_f16_loop",
    };
    let of = AttentionVariant {
        kernel,
        heads: HEADS,
        dim: DIM_MAX,
        threads: GROUP_THREADS,
        group_bytes: 0,
        max_splits: cut.max_splits(target.multiprocessors * GROUPS_AT_ONCE),
        min_tiles: attention::MIN_TILES,
        whole_tiles: attention::WHOLE_TILES,
        loops: cut.loops,
        cluster: 1,
    };
    Variant { of, folded: None }
}

/// The variant on matrix instructions by `kernel`: cut so that there are as many groups as the device runs at once, or one
/// of `share` of that.
fn on_matrices(target: &Target, shape: AttentionShape, kernel: &MatrixKernel, share: usize) -> Variant {
    let groups = shape.rows.max(1) * shape.heads.div_ceil(kernel.heads);
    let tiles = shape.max_positions.div_ceil(kernel.tile);
    let max_splits = (target.multiprocessors / groups / share).clamp(1, tiles.clamp(1, MATRIX_SPLITS_MAX));
    let of = AttentionVariant {
        kernel: kernel.kernel,
        heads: kernel.heads,
        dim: DIM_MAX,
        threads: MATRIX_THREADS,
        group_bytes: kernel.group_bytes,
        max_splits,
        min_tiles: attention::MIN_TILES,
        whole_tiles: attention::WHOLE_TILES,
        loops: false,
        cluster: 1,
    };
    Variant { of, folded: (max_splits > 1).then_some(kernel.tile) }
}

/// The variant for so many rows of an op.
fn variant_for(loaded: &LoadedPlan<'_>, attention: &MlaAttention, rows: usize) -> Variant {
    let dim = loaded.plan.kv_layers[attention.layer].latent().expect("`verify` wants a latent layer here").dim;
    let shape = AttentionShape::new(loaded, attention.layer, attention.heads, rows);
    variant(&loaded.target.of("mla_attention"), loaded.cache.layout.format, shape, dim)
}

/// Bytes of the partial results where the positions of so many rows are cut.
pub(crate) fn partials_bytes(loaded: &LoadedPlan<'_>, attention: &MlaAttention, singles: usize) -> u64 {
    variant_for(loaded, attention, singles).of.partials_bytes(attention.heads, singles)
}

/// The launch of latent attention, and how its splits are folded.
pub(crate) struct MlaLaunch {
    pub(crate) launch: Launch,
    /// Where another kernel folds them.
    fold: Option<Fold>,
}

/// What whoever folds the splits of attention is told.
struct Fold {
    params: MlaParams,
    heads: usize,
    singles: usize,
    operands: Vec<(Access, Region)>,
}

/// Rows of queries, their latent parts and those that are turned, each for itself.
pub(crate) fn launch(
    site: &Site<'_>,
    [q_latent, q_rope]: [DeviceRows; 2],
    attention: &MlaAttention,
    out: DeviceRows,
    singles: usize,
) -> MlaLaunch {
    let &MlaAttention { layer, heads, scale } = attention;
    let as_attention = Attention { layer, heads, scale, window: None, sinks: None };
    let Variant { of, folded } = variant_for(site.loaded, attention, singles);
    let SingleRows { variant, params, groups, operands } =
        attention::single_rows(site, of, q_latent, &as_attention, out, singles);
    let params = MlaParams {
        attention: AttentionParams { head_dim: index(q_latent.width / heads), ..params },
        q_rope: q_rope.region.address,
        parts: params.partials,
        rope: index(q_rope.width / heads),
        q_rope_stride: index(q_rope.stride),
        tile: index(folded.unwrap_or_default()),
        padding: 0,
    };
    let launch = Launch::new(variant.kernel, groups, &params)
        .with_groups_of(variant.threads, variant.group_bytes)
        .with(Access::Read, q_latent.region)
        .with(Access::Read, q_rope.region)
        .with(Access::Read, site.loaded.cache.layers[layer].keys);
    let steps = [site.step.positions, site.step.table_starts, site.step.blocks];
    let constants = steps.map(|region| (Access::Constant, region));
    let all = constants.into_iter().chain(operands.iter().copied());
    let launch = all.fold(launch, |launch, (access, region)| launch.with(access, region));
    // What attention wrote is read, and the rows that it wrote whole are kept.
    let of_fold = operands.into_iter().map(|(access, region)| match access {
        Access::Write => (Access::Update, region),
        other => (other, region),
    });
    let operands = of_fold.chain([(Access::Constant, site.step.positions)]).collect();
    MlaLaunch { launch, fold: folded.map(|_| Fold { params, heads, singles, operands }) }
}

impl MlaLaunch {
    /// Attention, and behind it the kernel that folds its splits.
    pub(crate) fn with_fold(self) -> Vec<Launch> {
        let fold = self.fold.map(|Fold { params, heads, singles, operands }| {
            let launch = Launch::new("mla_fold", [heads, singles, 1], &params);
            operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
        });
        [self.launch].into_iter().chain(fold).collect()
    }

    /// Attention, and the matrices of `heads` on the splits of its result `x`, which nobody else reads. `None` where
    /// there are none.
    pub(crate) fn with_heads(
        self,
        site: &Site<'_>,
        x: DeviceRows,
        heads: &Experts,
        out: DeviceRows,
    ) -> Option<[Launch; 2]> {
        let Fold { params, operands, .. } = self.fold?;
        let of = HeadLaunch::new(site, x, None, heads, out, FOLD_SIMDS);
        let format = of.format;
        let kernel = match of.has_one_row() {
            true => named!(format, "fold_head_linear_", "_m1"),
            false => named!(format, "fold_head_linear_", "_m4"),
        };
        let launch = Launch::new(kernel, of.groups, &FoldHeadParams { heads: of.params, mla: params })
            .with_groups_of((of.simds * 32) as u32, 0);
        let launch = operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region));
        Some([self.launch, of.with_operands(launch)])
    }
}

/// What [`latent_rope_write`] does, of rows that are projections' results.
#[derive(Clone, Copy)]
pub(crate) struct LatentWrite {
    pub(crate) q: DeviceRows,
    pub(crate) kv: DeviceRows,
    pub(crate) columns: LatentColumns,
    pub(crate) norm: Norm,
    pub(crate) rope: usize,
    pub(crate) layer: usize,
}

impl LatentWrite {
    /// What kernels are told; where `q_nope` is absent it is not stored.
    pub(crate) fn params(
        &self,
        site: &Site<'_>,
        q_nope: Option<DeviceRows>,
        q_rope: DeviceRows,
    ) -> (LatentRopeWriteParams, Vec<(Access, Region)>) {
        let &Self { q, kv, columns, norm, rope, layer } = self;
        let LatentLayer { dim, rope: rope_dim } =
            site.loaded.plan.kv_layers[layer].latent().expect("`verify` wants a latent layer here");
        let (cache, angles) = (&site.loaded.cache.layers[layer], site.loaded.angles[rope]);
        let heads = q_rope.width / rope_dim;
        let gain = site.vector(Some(norm.weight));
        let [q_nope_columns, q_rope_columns, latent_columns, rope_columns] =
            [columns.q_nope, columns.q_rope, columns.latent, columns.rope].map(|order| site.loaded.orders[order]);
        let params = LatentRopeWriteParams {
            q: q.region.address,
            kv: kv.region.address,
            q_nope_columns: q_nope_columns.address,
            q_rope_columns: q_rope_columns.address,
            latent_columns: latent_columns.address,
            rope_columns: rope_columns.address,
            gain: gain.address,
            angles: angles.address,
            rows: site.live(q.rows).address,
            positions: site.step.positions.address,
            slots: site.step.slots.address,
            q_nope: q_nope.map_or(Region::default(), |rows| rows.region).address,
            q_rope: q_rope.region.address,
            cache: cache.keys.address,
            heads: index(heads),
            nope: index(site.loaded.plan.orders[columns.q_nope].len() / heads),
            dim: index(dim),
            rope_dim: index(rope_dim),
            q_stride: index(q.stride),
            kv_stride: index(kv.stride),
            q_nope_stride: index(q_nope.map_or(0, |rows| rows.stride)),
            q_rope_stride: index(q_rope.stride),
            turned: index(site.loaded.plan.ropes[rope].dims / 2),
            eps: norm.eps,
        };
        let constants = [q_nope_columns, q_rope_columns, latent_columns, rope_columns, gain, angles];
        let steps = [site.live(q.rows), site.step.positions, site.step.slots];
        let operands = [
            (Access::Read, q.region),
            (Access::Read, kv.region),
            (Access::Write, q_rope.region),
            (Access::Write, q_nope.map_or(Region::default(), |rows| rows.region)),
            (Access::Update, cache.keys),
        ];
        let constants = constants.into_iter().chain(steps).map(|region| (Access::Constant, region));
        (params, operands.into_iter().chain(constants).collect())
    }
}

/// What stands between the projections of latent attention: columns of queries and of the row for the cache, the row's
/// latent numbers normalised, and what positions turn turned.
pub(crate) fn latent_rope_write(site: &Site<'_>, of: &LatentWrite, q_nope: DeviceRows, q_rope: DeviceRows) -> Launch {
    let (params, operands) = of.params(site, Some(q_nope), q_rope);
    let kernel = match site.loaded.cache.layout.format {
        KvFormat::F32 => "latent_rope_write_f32",
        KvFormat::F16 => "latent_rope_write_f16",
    };
    let heads = q_rope.width / site.loaded.plan.ropes[of.rope].head_dim;
    let launch = Launch::new(kernel, [heads + 1, site.num_rows(of.q.rows), 1], &params);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

/// The same, and the matrices of `heads` on the columns that no position turns, which nobody else reads. `None` where
/// there is no kernel for it.
pub(crate) fn latent_head_linear(
    site: &Site<'_>,
    of: &LatentWrite,
    q_rope: DeviceRows,
    heads: &Experts,
    out: DeviceRows,
) -> Option<Launch> {
    if site.loaded.cache.layout.format != KvFormat::F16 {
        return None;
    }
    let (write, operands) = of.params(site, None, q_rope);
    let head_launch = HeadLaunch::new(site, of.q, Some(of.columns.q_nope), heads, out, GROUP_SIMDS);
    let format = head_launch.format;
    let kernel = match head_launch.has_one_row() {
        true => named!(format, "latent_head_linear_", "_m1"),
        false => named!(format, "latent_head_linear_", "_m4"),
    };
    let [outputs, rows, count] = head_launch.groups;
    // A group for each row of the cache, then a SIMD group for each head of each row.
    let group_rows = head_launch.group_rows;
    let behind = group_rows + (group_rows * write.heads as usize).div_ceil(GROUP_SIMDS);
    let params = LatentHeadParams { heads: head_launch.params, write };
    let launch = Launch::new(kernel, [outputs, rows, count + behind.div_ceil(outputs)], &params);
    let launch = operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region));
    Some(head_launch.with_operands(launch))
}

/// Writes rows to the cache of `layer`.
pub(crate) fn latent_write(site: &Site<'_>, layer: usize, latent: DeviceRows, rope: DeviceRows) -> Launch {
    let cache = &site.loaded.cache.layers[layer];
    let params = LatentWriteParams {
        latent: latent.region.address,
        rope: rope.region.address,
        rows: site.live(latent.rows).address,
        slots: site.step.slots.address,
        cache: cache.keys.address,
        dim: index(latent.width),
        rope_dim: index(rope.width),
        latent_stride: index(latent.stride),
        rope_stride: index(rope.stride),
    };
    let kernel = match site.loaded.cache.layout.format {
        KvFormat::F32 => "latent_write_f32",
        KvFormat::F16 => "latent_write_f16",
    };
    let groups = (latent.width + rope.width).div_ceil(GROUP_THREADS as usize);
    Launch::new(kernel, [groups, site.num_rows(latent.rows), 1], &params)
        .with(Access::Read, latent.region)
        .with(Access::Read, rope.region)
        .with(Access::Constant, site.live(latent.rows))
        .with(Access::Constant, site.step.slots)
        .with(Access::Update, cache.keys)
}

#[cfg(test)]
mod tests {
    use backend::{Tuned, Tuning};

    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn published_rows_are_for_matrix_instructions_and_others_are_not() {
        let of = |target: &Target, rows, heads, max_positions| {
            let shape = AttentionShape { rows, heads, kv_heads: 1, head_dim: ROW_MAX, max_positions };
            let Variant { of, folded } = variant(target, KvFormat::F16, shape, DIM_MAX);
            (of.kernel, of.max_splits, folded)
        };
        assert_eq!(of(&H200, 1, 20, 512), ("mla_attention_f16_h16", 8, Some(64)));
        assert_eq!(of(&H200, 2, 20, 512), ("mla_attention_f16_h32", 16, Some(32)));
        assert_eq!(of(&H200, 1, 16, 65_536), ("mla_attention_f16_h16", 64, Some(64)));
        assert_eq!(of(&H200, 1, 128, 65_536), ("mla_attention_f16_h32", 33, Some(32)));
        assert_eq!(of(&H200, 133, 20, 65_536), ("mla_attention_f16_h32", 1, None));
        let small = Target { group_bytes_max: 99 << 10, ..H200 };
        assert_eq!(of(&small, 1, 20, 96), ("mla_attention_f16", 1, None));
        let invariant = Target { batch_invariant: true, ..H200 };
        assert_eq!(of(&invariant, 17, 20, 8192).0, "mla_attention_f16_loop");
        let shape = AttentionShape { rows: 1, heads: 20, kv_heads: 1, head_dim: 80, max_positions: 512 };
        assert_eq!(variant(&H200, KvFormat::F16, shape, 64).of.kernel, "mla_attention_f16");
    }

    #[test]
    fn a_table_names_the_heads_of_a_group_and_how_many_splits_there_are() {
        let shape = AttentionShape { rows: 1, heads: 20, kv_heads: 1, head_dim: ROW_MAX, max_positions: 65_536 };
        let of = |target: Target| {
            let Variant { of, folded } = variant(&target, KvFormat::F16, shape, DIM_MAX);
            (of.kernel, of.max_splits, folded)
        };
        let by = |choice: &str| {
            let key = "mla_attention_f16 rows=1 heads=20 positions=4096".to_owned();
            Tuned::by(Box::leak(Box::new(Tuning::new([(key, choice.to_owned())]))))
        };
        let target = |choice| Target { tuned: by(choice), ..H200 };
        assert_eq!(of(target("heads=16 splits=1/1")), of(H200));
        assert_eq!(of(target("heads=32 splits=1/1")), ("mla_attention_f16_h32", 64, Some(32)));
        // Half of the splits that there may be are still all that a row has: no other way.
        assert_eq!(of(target("heads=32 splits=1/2")), of(H200));
        assert_eq!(of(H200), ("mla_attention_f16_h16", 64, Some(64)));
        assert_eq!(of(target("heads=16 splits=1/2")), ("mla_attention_f16_h16", 33, Some(64)));
        assert_eq!(of(target("gone")), of(H200));
        // Where rows must not depend on each other, no kernel on matrix instructions is there to be chosen.
        let invariant = Target { batch_invariant: true, ..H200 };
        assert_eq!(of(Target { tuned: by("heads=16 splits=1/2"), ..invariant }), of(invariant));
    }
}
