//! `kernels/sm90/mla_cluster.h`: latent attention of few rows, with the matrices of its heads, folded in group memory.

use plan::{Attention, Experts, KvFormat, MlaAttention};

use crate::formats::DeviceFormat;
use crate::kernels::attention::{self, AttentionVariant, MIN_TILES, SingleRows, WHOLE_TILES};
use crate::kernels::head_linear::HeadLaunch;
use crate::kernels::linear_stream;
use crate::kernels::mla_attention::{DIM_MAX, LatentWrite, ROW_MAX};
use crate::launch::{Access, GROUP_SIMDS, Launch, Region};
use crate::params::{Address, AttentionParams, MlaClusterParams, MlaParams};
use crate::site::{DeviceRows, Site, index};
use crate::step_input::NEAR_POSITIONS;
use crate::target::{Matrix, Target};

/// As in the kernel: groups of a cluster, heads of one at most, positions of a tile, tiles of a group at most, and bytes of a group.
const RANKS: usize = 8;

const HEADS_MAX: usize = 4;

const TILE: usize = 64;

const TILES_MAX: usize = 2;

const GROUP_BYTES: u32 = 97 << 10;

const THREADS: u32 = 256;

/// Features of a head that no position turns, and outputs of a head, at most.
const NOPE_MAX: usize = 192;

const OUT_MAX: usize = 256;

/// Rows at most. Each reads the matrices for itself: for four rows a step takes 8 % more than with other kernels.
const ROWS_MAX: usize = 2;

const _: () = assert!(RANKS * TILES_MAX * TILE == NEAR_POSITIONS, "a group has room for its positions");

/// Heads of a cluster: of so many heads of each row, all clusters run at once. `None` where that are too many.
fn heads_of_cluster(target: &Target, rows: usize, heads: usize) -> Option<usize> {
    let clusters = target.multiprocessors / RANKS / rows;
    Some(heads.div_ceil(clusters.max(1))).filter(|&of| of <= HEADS_MAX)
}

/// Whether the kernel runs on this device.
pub(crate) fn is_here(target: &Target) -> bool {
    target.matrix == Matrix::FourSimdGroups
        && target.group_bytes_max >= GROUP_BYTES
        && !target.batch_invariant
        && target.kernel.is_none()
}

/// Latent attention of rows that are alone in their sequences and attend to few positions, from what projections left: `write` says what becomes of
/// it, `q_rope` how wide queries that positions turn are, and `keys` and `values` are the matrices of the heads. `None`
/// where there is no kernel for it.
pub(crate) fn launch(
    site: &Site<'_>,
    write: &LatentWrite,
    q_rope: DeviceRows,
    [keys, values]: [&Experts; 2],
    attention: &MlaAttention,
    out: DeviceRows,
) -> Option<Launch> {
    let rows = site.layout.step.attention.singles;
    let target = site.loaded.target.of("mla_attention");
    let &MlaAttention { layer, heads, scale } = attention;
    let layout = site.loaded.plan.kv_layers[layer].latent().expect("`verify` wants a latent layer here");
    let is_published = site.loaded.cache.layout.format == KvFormat::F16
        && (layout.dim, layout.dim + layout.rope) == (DIM_MAX, ROW_MAX);
    let stacks = [keys, values].map(|heads| site.loaded.weights.stack(heads));
    let [of_keys, of_values] = [&stacks[0].first, &stacks[1].first];
    let has_kernel = of_keys.format == of_values.format
        && of_keys.format != DeviceFormat::F32
        // There are no kernels for blocks of 256 weights: so short rows have none.
        && of_keys.row_len <= NOPE_MAX
        && of_values.rows <= OUT_MAX;
    if !is_published || !has_kernel || !is_here(&target) || rows == 0 || rows > ROWS_MAX {
        return None;
    }
    let of_cluster = heads_of_cluster(&target, rows, heads)?;
    let variant = AttentionVariant {
        kernel: named!(of_keys.format, "mla_cluster_", ""),
        heads: of_cluster,
        dim: DIM_MAX,
        threads: THREADS,
        group_bytes: GROUP_BYTES,
        max_splits: 1,
        min_tiles: MIN_TILES,
        whole_tiles: WHOLE_TILES,
        loops: false,
        cluster: RANKS,
    };
    // Queries of the matrices of keys are in no place that others read.
    let nowhere = DeviceRows { region: Region::default(), width: heads * DIM_MAX, stride: 0, rows: out.rows };
    let as_attention = Attention { layer, heads, scale, window: None, sinks: None };
    let SingleRows { variant, params, operands, .. } =
        attention::single_rows(site, variant, nowhere, &as_attention, out, rows);
    let (write_params, of_write) = write.params(site, None, DeviceRows { region: Region::default(), ..q_rope });
    let of_keys = HeadLaunch::new(site, nowhere, None, keys, nowhere, GROUP_SIMDS);
    let of_values = HeadLaunch::new(site, nowhere, None, values, out, GROUP_SIMDS);
    let params = MlaClusterParams {
        keys: of_keys.params,
        values: of_values.params,
        mla: MlaParams {
            attention: AttentionParams { head_dim: index(DIM_MAX), out: Address::default(), ..params },
            q_rope: Address::default(),
            parts: Address::default(),
            rope: index(layout.rope),
            q_rope_stride: 0,
            tile: index(TILE),
            padding: 0,
        },
        write: write_params,
        heads: index(of_cluster),
        next_is_late: linear_stream::next_is_late(site, rows),
        padding: [0; 2],
    };
    let steps = [site.step.positions, site.step.table_starts, site.step.blocks];
    let steps = steps.map(|region| (Access::Constant, region));
    let launch = Launch::new(variant.kernel, [heads.div_ceil(of_cluster) * RANKS, rows, 1], &params)
        .with_groups_of(variant.threads, variant.group_bytes);
    let launch = Launch { cluster: RANKS as u32, ..launch };
    let all = operands.into_iter().chain(of_write).chain(steps);
    let launch = all.fold(launch, |launch, (access, region)| launch.with(access, region));
    Some(of_values.with_operands(of_keys.with_operands(launch)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn clusters_share_the_heads_so_that_all_run_at_once() {
        let of = |rows, heads| heads_of_cluster(&H200, rows, heads);
        assert_eq!([of(1, 20), of(1, 16), of(2, 20), of(2, 16)], [2, 1, 3, 2].map(Some));
        assert_eq!(of(1, 128), None, "a cluster has no room for eight heads");
    }
}
