//! `kernels/attention.h`: attention of rows that are alone in their sequence, or few, each for itself;
//! [`attention_f16`] has variants on matrix instructions.

use bytemuck::Pod;
use plan::{Attention, KvFormat, KvLayer, Norm};

use crate::kernels::sm90::attention_cluster;
use crate::kernels::{attention_f16, linear_stream, operand};
use crate::launch::{Access, Launch, Region};
use crate::params::{AttentionParams, RopeAttentionParams};
use crate::site::{DeviceRows, F32, LoadedPlan, Site, index};
use crate::target::Target;

/// f32 beside the weighted values of a split: their maximum, and the sum of their weights.
const STATS_LEN: usize = 2;

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
    /// Tiles of a split at least, where there are more than one.
    pub(crate) min_tiles: usize,
    /// Tiles that are not cut.
    pub(crate) whole_tiles: usize,
    /// Whether one group takes all of them, one after another.
    pub(crate) loops: bool,
    /// Splits whose groups reach each other's group memory; 1: each group is on its own.
    pub(crate) cluster: usize,
}

impl AttentionVariant {
    /// Whether a row's positions are cut, and groups make partial results of them.
    fn is_cut(&self) -> bool {
        self.max_splits > 1 && !self.loops
    }

    /// A launch of it, in clusters where it has some.
    fn clustered(&self, launch: Launch) -> Launch {
        Launch { cluster: self.cluster as u32, ..launch }
    }

    /// Bytes of the partial results of so many rows of `heads` query heads.
    pub(crate) fn partials_bytes(&self, heads: usize, singles: usize) -> u64 {
        let numbers = singles * heads * self.max_splits * (self.dim + STATS_LEN);
        if self.is_cut() { numbers as u64 * F32 } else { 0 }
    }
}

/// Positions of a tile, as in `kernels/attention.h`.
const TILE: usize = 16;

/// Tiles that are not cut, because folding takes longer than one group with them.
pub(crate) const WHOLE_TILES: usize = 16;

/// Tiles of a split, where there are more than one: with fewer, folding costs more than it saves.
pub(crate) const MIN_TILES: usize = 6;

/// The same where it is measured, beside the usual one. Not many more: what is best behind a few hundred positions would
/// be slow behind a thousand.
const TILES_OF_A_SPLIT: [usize; 4] = [MIN_TILES, 3, 9, 12];

/// Splits that are folded at once; more are no faster.
const SPLITS_MAX: usize = 16;

/// Groups that a multiprocessor runs at once.
const GROUPS_AT_ONCE: usize = 4;

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

impl AttentionShape {
    /// Of so many rows of `heads` query heads over the cache of `layer`.
    pub(crate) fn new(loaded: &LoadedPlan<'_>, layer: usize, heads: usize, rows: usize) -> Self {
        let KvLayer { kv_heads, head_dim } = loaded.cache.layers[layer].layer;
        Self { rows, heads, kv_heads, head_dim, max_positions: loaded.max_positions() }
    }
}

/// How the positions of a row may be cut.
pub(crate) struct Cut {
    /// Whether one group takes all positions of a row, one split after another.
    pub(crate) loops: bool,
    /// Rows that share the device.
    pub(crate) rows: usize,
    /// Groups of a row's heads.
    pub(crate) groups_of_row: usize,
    /// Splits of the longest row.
    pub(crate) most: usize,
}

impl Cut {
    /// For groups of up to `heads` query heads.
    pub(crate) fn new(target: &Target, shape: AttentionShape, heads: usize) -> Self {
        Self {
            loops: target.batch_invariant && shape.rows > SPLIT_ROWS_MAX,
            rows: if target.batch_invariant { 1 } else { shape.rows.max(1) },
            groups_of_row: shape.kv_heads * (shape.heads / shape.kv_heads).div_ceil(heads),
            most: shape.max_positions.div_ceil(TILE * MIN_TILES).max(1),
        }
    }

    /// Splits of a row, where the device runs so many groups at once.
    pub(crate) fn max_splits(&self, at_once: usize) -> usize {
        (at_once / (self.rows * self.groups_of_row)).clamp(1, self.most.min(SPLITS_MAX))
    }
}

/// The variant for rows that are alone in their sequence, or few.
///
/// A row is cut so that there are as many groups as the device runs at once, whatever rows are beside it where results
/// must not depend on those.
/// Longer splits, or shorter ones, where those were measured better: how many there are must go on to follow from how
/// many positions there are.
pub(crate) fn variant(target: &Target, format: KvFormat, shape: AttentionShape) -> AttentionVariant {
    let usual = usual(target, format, shape);
    if !usual.is_cut() {
        return usual;
    }
    let others = TILES_OF_A_SPLIT.into_iter().filter(|&tiles| tiles != usual.min_tiles);
    let tiles = std::iter::once(usual.min_tiles).chain(others);
    let variants = tiles.map(|min_tiles| AttentionVariant { min_tiles, ..usual }).collect();
    let key = || {
        let AttentionShape { rows, heads, kv_heads, head_dim, max_positions } = shape;
        // Longer caches are cut alike.
        let positions = max_positions.next_power_of_two().min(SPLITS_MAX * MIN_TILES * TILE);
        format!("{} rows={rows} heads={heads}/{kv_heads} dim={head_dim} positions={positions}", usual.kernel)
    };
    let label = |variant: &AttentionVariant| format!("tiles={}", variant.min_tiles);
    target.tuned.pick(key, variants, label, 0).unwrap_or(usual)
}

/// The same where nothing was measured.
fn usual(target: &Target, format: KvFormat, shape: AttentionShape) -> AttentionVariant {
    let cluster = attention_cluster::variant(target, format, shape);
    if let Some(variant) = cluster.or_else(|| attention_f16::variant(target, format, shape)) {
        return variant;
    }
    let heads = 4;
    let cut = Cut::new(target, shape, heads);
    let kernel = match (format, cut.loops) {
        (KvFormat::F32, false) => "attention_f32",
        (KvFormat::F32, true) => "attention_f32_loop",
        (KvFormat::F16, false) => "attention_f16",
        (KvFormat::F16, true) => "attention_f16_loop",
    };
    let max_splits = cut.max_splits(target.multiprocessors * GROUPS_AT_ONCE);
    let (dim, threads, group_bytes, min_tiles, loops) = (256, 128, 0, MIN_TILES, cut.loops);
    let whole_tiles = WHOLE_TILES;
    AttentionVariant { kernel, heads, dim, threads, group_bytes, max_splits, min_tiles, whole_tiles, loops, cluster: 1 }
}

/// Counters that steps need whose attention has up to so many heads: rows are cut where there are few groups of them.
pub(crate) fn num_counters(target: &Target, heads: usize) -> usize {
    (target.multiprocessors * GROUPS_AT_ONCE).max(SPLIT_ROWS_MAX * heads)
}

/// The variant for `rows` that are taken for themselves.
fn variant_for(loaded: &LoadedPlan<'_>, attention: &Attention, rows: usize) -> AttentionVariant {
    let shape = AttentionShape::new(loaded, attention.layer, attention.heads, rows);
    variant(&loaded.target.of("attention"), loaded.cache.layout.format, shape)
}

/// Bytes of the partial results where the positions of so many rows are cut.
pub(crate) fn partials_bytes(loaded: &LoadedPlan<'_>, attention: &Attention, singles: usize) -> u64 {
    variant_for(loaded, attention, singles).partials_bytes(attention.heads, singles)
}

/// What a launch of single rows is made of.
pub(crate) struct SingleRows {
    pub(crate) variant: AttentionVariant,
    pub(crate) params: AttentionParams,
    pub(crate) groups: [usize; 3],
    /// Beside those that all kernels of attention have.
    pub(crate) operands: Vec<(Access, Region)>,
}

/// Rows that are alone in their sequence, or few: each for itself.
pub(crate) fn launch(site: &Site<'_>, q: DeviceRows, attention: &Attention, out: DeviceRows, singles: usize) -> Launch {
    let variant = variant_for(site.loaded, attention, singles);
    let SingleRows { variant, params, groups, operands } = single_rows(site, variant, q, attention, out, singles);
    let launch = variant
        .clustered(launch_of(site, variant.kernel, groups, &params, q, attention))
        .with_groups_of(variant.threads, variant.group_bytes);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

/// The same of rows of `q`, `k` and `v` as projections leave them: heads are normalised and turned on the way, and keys
/// and values written to the cache. `None` where there is no kernel for it.
pub(crate) fn rope_launch(
    site: &Site<'_>,
    [q, k, v]: [DeviceRows; 3],
    norms: [Option<Norm>; 2],
    rope: usize,
    attention: &Attention,
    out: DeviceRows,
    singles: usize,
) -> Option<Launch> {
    let cache = &site.loaded.cache.layers[attention.layer];
    let variant = variant_for(site.loaded, attention, singles);
    let SingleRows { variant, params, groups, operands } = single_rows(site, variant, q, attention, out, singles);
    let kernel = match variant.kernel {
        "attention_f16_d64_wide" => "rope_attention_f16_d64_wide",
        "attention_cluster_d64" => "rope_attention_cluster_d64",
        "attention_cluster_d128" => "rope_attention_cluster_d128",
        "attention_f16_d128_wide" => "rope_attention_f16_d128_wide",
        _ => return None,
    };
    let [q_gain, k_gain] = norms.map(|norm| site.vector(norm.map(|norm| norm.weight)));
    let [q_eps, k_eps] = norms.map(|norm| norm.map_or(0.0, |norm| norm.eps));
    let angles = site.loaded.angles[rope];
    let params = RopeAttentionParams {
        attention: params,
        k: k.region.address,
        v: v.region.address,
        q_gain: q_gain.address,
        k_gain: k_gain.address,
        angles: angles.address,
        slots: site.step.slots.address,
        keys: cache.keys.address,
        values: cache.values.address,
        kv_stride: index(k.stride),
        next_is_late: linear_stream::next_is_late(site, singles),
        q_eps,
        k_eps,
    };
    let launch = variant
        .clustered(Launch::new(kernel, groups, &params))
        .with_groups_of(variant.threads, variant.group_bytes)
        .with(Access::Read, q.region)
        .with(Access::Read, k.region)
        .with(Access::Read, v.region)
        .with(Access::Update, cache.keys)
        .with(Access::Update, cache.values);
    let steps = [site.step.positions, site.step.table_starts, site.step.blocks, site.step.slots];
    let vectors = [q_gain, k_gain, site.vector(attention.sinks)];
    let constants = steps.into_iter().chain(vectors).chain([angles]).map(|region| (Access::Constant, region));
    Some(constants.chain(operands).fold(launch, |launch, (access, region)| launch.with(access, region)))
}

/// What a launch of `variant` is made of.
pub(crate) fn single_rows(
    site: &Site<'_>,
    variant: AttentionVariant,
    q: DeviceRows,
    attention: &Attention,
    out: DeviceRows,
    singles: usize,
) -> SingleRows {
    let (offset, bytes) = site.layout.partials;
    let is_cut = variant.is_cut();
    let (mut partials, mut stats, mut counters) = (Region::default(), Region::default(), Region::default());
    let chunks = (attention.heads / site.loaded.cache.layers[attention.layer].layer.kv_heads).div_ceil(variant.heads);
    let groups_of_row = site.loaded.cache.layers[attention.layer].layer.kv_heads * chunks;
    if is_cut {
        let all = site.arena.part(offset, bytes);
        let splits = (singles * attention.heads * variant.max_splits) as u64;
        partials = all.part(0, splits * variant.dim as u64 * F32);
        stats = all.part(partials.bytes, splits * STATS_LEN as u64 * F32);
        counters = site.loaded.counters.part(0, (singles * groups_of_row) as u64 * 4);
    }
    let params = AttentionParams {
        num_items: site.step.num_singles.address,
        items: site.step.singles.address,
        partials: partials.address,
        stats: stats.address,
        counters: counters.address,
        max_splits: index(variant.max_splits),
        min_tiles: index(variant.min_tiles),
        whole_tiles: index(variant.whole_tiles),
        operand: operand::place(site.writes, out.width),
        ..params(site, q, attention, out)
    };
    let splits = if is_cut { variant.max_splits } else { 1 };
    let operands = vec![
        (Access::Constant, site.step.num_singles),
        (Access::Constant, site.step.singles),
        (Access::Write, site.writes.map_or(out.region, |direct| direct.rows)),
        (Access::Write, partials),
        (Access::Write, stats),
        (Access::Update, counters),
    ];
    let groups = match variant.cluster {
        1 => [groups_of_row, singles, splits],
        cluster => [splits.next_multiple_of(cluster), singles, groups_of_row],
    };
    SingleRows { variant, params, groups, operands }
}

/// What all kernels of attention are given.
pub(crate) fn params(site: &Site<'_>, q: DeviceRows, attention: &Attention, out: DeviceRows) -> AttentionParams {
    let cache = &site.loaded.cache.layers[attention.layer];
    AttentionParams {
        q: q.region.address,
        keys: cache.keys.address,
        values: cache.values.address,
        positions: site.step.positions.address,
        table_starts: site.step.table_starts.address,
        blocks: site.step.blocks.address,
        out: out.region.address,
        sinks: site.vector(attention.sinks).address,
        heads: index(attention.heads),
        kv_heads: index(cache.layer.kv_heads),
        head_dim: index(cache.layer.head_dim),
        block_len: index(site.loaded.cache.layout.block_len),
        // A window beyond any position is no window.
        window: attention.window.map_or(0, |window| window.min(site.loaded.max_positions()) as i32),
        q_stride: index(q.stride),
        out_stride: index(out.stride),
        scale: attention.scale,
        ..AttentionParams::default()
    }
}

/// A launch of any kernel of attention, with the operands that all have.
pub(crate) fn launch_of(
    site: &Site<'_>,
    kernel: &'static str,
    groups: [usize; 3],
    params: &impl Pod,
    q: DeviceRows,
    attention: &Attention,
) -> Launch {
    let cache = &site.loaded.cache.layers[attention.layer];
    Launch::new(kernel, groups, params)
        .with(Access::Read, q.region)
        .with(Access::Read, cache.keys)
        .with(Access::Read, cache.values)
        .with(Access::Constant, site.step.positions)
        .with(Access::Constant, site.step.table_starts)
        .with(Access::Constant, site.step.blocks)
        .with(Access::Constant, site.vector(attention.sinks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::KvLayout;

    use crate::kernels::attention_tiles;
    use crate::target::tests::H200;

    const KV: KvLayout = KvLayout { format: KvFormat::F16, block_len: 32, num_blocks: 8 };

    #[test]
    fn attention_is_cut_so_that_the_device_is_full() {
        let of = |rows, max_positions| AttentionShape { rows, heads: 32, kv_heads: 8, head_dim: 128, max_positions };
        let of_rows = |rows, max_positions| variant(&H200, KvFormat::F16, of(rows, max_positions));
        let splits = |rows, max_positions| of_rows(rows, max_positions).max_splits;
        assert_eq!([splits(1, 96), splits(1, 97), splits(1, 2048), splits(1, 131_072)], [1, 2, 13, 13]);
        assert_eq!([splits(2, 8192), splits(4, 8192), splits(8, 8192), splits(128, 8192)], [6, 3, 1, 1]);
        assert_eq!(of_rows(16, 8192).kernel, "attention_f16_d128_wide");
        assert_eq!(of_rows(17, 8192).kernel, "attention_f16_d128");
        let of_64 = |rows| AttentionShape { rows, heads: 14, kv_heads: 2, head_dim: 64, max_positions: 8192 };
        let splits_of_64 = |rows| variant(&H200, KvFormat::F16, of_64(rows)).max_splits;
        assert_eq!([splits_of_64(1), splits_of_64(16), splits_of_64(32)], [32, 6, 3]);
        let small = Target { group_bytes_max: (96 << 10) + 300, ..H200 };
        assert_eq!(variant(&small, KvFormat::F16, of(1, 8192)).kernel, "attention_f16_d128");
    }

    #[test]
    fn rows_beside_a_row_change_nothing_where_they_must_not() {
        let target = Target { batch_invariant: true, ..H200 };
        for head_dim in [64, 96, 128] {
            let of = |rows| AttentionShape { rows, heads: 32, kv_heads: 8, head_dim, max_positions: 8192 };
            let [one, few, many] = [1, 16, 17].map(|rows| variant(&target, KvFormat::F16, of(rows)));
            assert_eq!(one, few);
            assert_eq!(many, AttentionVariant { kernel: many.kernel, loops: true, ..one });
            assert_eq!(many.kernel, format!("{}_loop", one.kernel));
            // All rows have the kernel of tiles where there is one.
            assert_eq!(
                attention_tiles::variant(&target, &KV, head_dim),
                attention_tiles::variant(&H200, &KV, head_dim)
            );
        }
    }

    #[test]
    fn common_heads_have_kernels_of_their_own() {
        let kernel = |format, heads, head_dim| {
            let shape = AttentionShape { rows: 1, heads, kv_heads: 2, head_dim, max_positions: 256 };
            variant(&H200, format, shape).kernel
        };
        assert_eq!(kernel(KvFormat::F16, 14, 64), "attention_cluster_d64");
        assert_eq!(kernel(KvFormat::F16, 8, 128), "attention_cluster_d128");
        assert_eq!(kernel(KvFormat::F16, 8, 96), "attention_f16");
        assert_eq!(kernel(KvFormat::F32, 8, 128), "attention_f32");
        let tiles = |format, head_dim| {
            let kv = KvLayout { format, ..KV };
            attention_tiles::variant(&H200, &kv, head_dim).map(|variant| variant.kernel)
        };
        assert_eq!(tiles(KvFormat::F16, 64), Some("prompt_attention_d64"));
        assert_eq!(tiles(KvFormat::F16, 128), Some("prompt_attention_d128"));
        assert_eq!(tiles(KvFormat::F16, 256), Some("prompt_attention_d256"));
        assert_eq!([tiles(KvFormat::F16, 112), tiles(KvFormat::F32, 128)], [None, None]);
    }
}
