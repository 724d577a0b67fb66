//! `kernels/sm90/gemm_narrow.h`: gemms of 2 to 64 rows, which stream the weights; `gemm_tall` is for the most of them, and
//! `gemm_alike` for all where a row's bits must not depend on how many there are.

use crate::formats::scales_of_256;
use crate::kernels::ProjectionsShape;
use crate::kernels::sm90::activations;
use crate::kernels::sm90::gemm::{GROUP_BYTES, GemmVariant, clusters_max};
use crate::target::{MemorySpeed, Target};

/// How a gemm is cut, as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NarrowCut {
    /// Rows of weights of a tile.
    pub(crate) height: usize,
    /// Times 128 bytes of each row that a stage has.
    pub(crate) columns: usize,
    pub(crate) stages: usize,
}

/// Rows of its kernels.
const ROWS: [usize; 4] = [8, 16, 32, 64];

/// The most rows of any of them.
pub(crate) const ROWS_MAX: usize = ROWS[3];

const THREADS: u32 = 576;

const STAGES_MAX: usize = 24;

const HEADER: usize = 1024;

/// Bytes of weights of a stage.
const STAGE: usize = 128 * 128;

/// The piece of k by which groups share it: two stages at least, where 128 bytes of a row have `features`.
fn unit(features: usize) -> usize {
    (4 * features).max(512)
}

/// k of `gemm_tall` is a multiple of this: whole stages, and whole blocks of scales.
const TALL_UNIT: usize = 256;

/// Rows of weights that are one SIMD group of four's.
const TALL_SIDE: usize = 64;

/// Stages that `gemm_tall` has at least: of one, two are on their way.
const TALL_STAGES: usize = 3;

/// Bytes a nanosecond that a group takes at most, however few there are.
const OF_A_GROUP: usize = 44;

/// Nanoseconds until `groups` have `bytes` each: all share what the memory gives, and each takes [`OF_A_GROUP`] at most.
fn stream_time(memory: MemorySpeed, bytes: usize, groups: usize) -> usize {
    let of_all = memory.bytes_per_ns();
    bytes * groups.max(of_all / OF_A_GROUP) / of_all
}

/// What `tiles` cost if `at_once` of them run at once: full rounds, and one of the tiles that are left. `round` is the
/// cost of one with so many tiles.
fn in_rounds(tiles: usize, at_once: usize, round: impl Fn(usize) -> usize) -> usize {
    let left = if tiles.is_multiple_of(at_once) { 0 } else { round(tiles % at_once) };
    tiles / at_once * round(at_once) + left
}

/// Nanoseconds that a stage of `gemm_tall` takes for each 64 rows of weights at least, where 128 bytes of a row have
/// `features`: matrix instructions of 64 rows.
fn tall_side_time(features: usize) -> usize {
    features * 370 / 256
}

/// Parts of k where a row's bits must not depend on how many rows there are: as many as a group multiplies at once when the
/// weights of one row are shared out among all groups. They follow from the matrix alone.
pub(crate) fn parts(target: &Target, shape: ProjectionsShape<'_>) -> usize {
    let rows: usize = shape.features.iter().sum::<usize>() * if shape.glu { 2 } else { 1 };
    let most = match rows.div_ceil(target.multiprocessors).next_multiple_of(16) {
        0..=TALL_SIDE => 4,
        height if height <= 2 * TALL_SIDE => 2,
        _ => 1,
    };
    let units = shape.k.div_ceil(TALL_UNIT);
    [4, 2].into_iter().find(|&parts| parts <= most && parts <= units).unwrap_or(1)
}

/// The cut of up to 64 rows by `gemm_alike`, or `gemm_tall`, which has the same bits where k is not cut.
fn alike(target: &Target, shape: ProjectionsShape<'_>, features: usize, scales: usize) -> Option<GemmVariant> {
    let place = ROWS.iter().position(|&rows| shape.rows <= rows)?;
    let parts = parts(target, shape);
    if ROWS[place] == ROWS_MAX && parts == 1 {
        return tall(target, shape, features, scales).min_by_key(|&(cost, _)| cost).map(|(_, variant)| variant);
    }
    let kernels = [
        named!(shape.format, "gemm_alike_", "_t8"),
        named!(shape.format, "gemm_alike_", "_t16"),
        named!(shape.format, "gemm_alike_", "_t32"),
        named!(shape.format, "gemm_alike_", "_t64"),
    ];
    let (activations, activation_threads) = activations::kernels(shape.format, shape.k);
    let in_stages = (shape.k.div_ceil(TALL_UNIT)).div_ceil(parts) * TALL_UNIT / features;
    let of_height = |place: usize, height: usize| {
        let rows = ROWS[place];
        let side_time = tall_side_time(features) * [5, 6, 8, 10][place] / 10;
        let outputs = if shape.glu { height / 2 } else { height };
        let tiles: usize = shape.features.iter().map(|n| n.div_ceil(outputs)).sum();
        let bytes = parts * (height * 128 + rows * features);
        let round = |tiles: usize| in_stages * stream_time(target.memory, bytes, tiles).max(side_time) + 1500;
        let scales_of_stage = (parts * height * scales / 128).next_multiple_of(1024);
        let stage = parts * height * 128 + scales_of_stage + parts * rows * features * 2;
        let sums = if parts > 1 { height * (rows + 2) * 4 } else { 0 };
        // Matrix instructions read 64 rows, also where a tile is lower.
        let room = GROUP_BYTES - HEADER - sums - TALL_SIDE * 128;
        let stages = (room / stage).min(STAGES_MAX);
        let variant = GemmVariant {
            kernel: kernels[place],
            activations,
            activation_threads,
            rows,
            cluster: 1,
            features: outputs,
            threads: THREADS,
            narrow: Some(NarrowCut { height, columns: 1, stages }),
            parts,
        };
        let cost = in_rounds(tiles * shape.rows.div_ceil(rows), target.multiprocessors, round);
        (stages >= 2).then_some((cost, variant))
    };
    // All rows in one tile, or in two of half as many, where k is cut: a stage of many rows may leave no room for a second.
    let places = if parts > 1 { place.saturating_sub(1)..=place } else { place..=place };
    let heights = places.rev().flat_map(|place| (1..=4 / parts * 4).rev().map(move |sixteens| (place, 16 * sixteens)));
    let cuts = heights.filter_map(|(place, height)| of_height(place, height));
    cuts.min_by_key(|&(cost, _)| cost).map(|(_, variant)| variant)
}

/// The cut of up to 64 rows that streams the weights soonest: whose tiles are equal shares for the multiprocessors,
/// where no other was measured best.
pub(crate) fn variant(target: &Target, shape: ProjectionsShape<'_>) -> Option<GemmVariant> {
    // Features in 128 bytes of a row; bytes of the scales of 128 rows in a stage, which copies bring in whole 16 bytes.
    let features = 8 * shape.format.chunk_len();
    let scales = 128 * (2 * scales_of_256(shape.format)).next_multiple_of(16);
    let stage_times = shape.format.facts().gemm.as_ref()?.stage_times;
    if target.batch_invariant {
        return alike(target, shape, features, scales);
    }
    let kernels = [
        named!(shape.format, "gemm_narrow_", "_t8"),
        named!(shape.format, "gemm_narrow_", "_t16"),
        named!(shape.format, "gemm_narrow_", "_t32"),
        named!(shape.format, "gemm_narrow_", "_t64"),
    ];
    let place = ROWS.iter().position(|&rows| shape.rows <= rows)?;
    let rows = ROWS[place];
    let unit = unit(features);
    let units = shape.k.div_ceil(unit);
    let (activations, activation_threads) = activations::kernels(shape.format, shape.k);
    let mut candidates = vec![];
    // The highest first, which wins where two cost the same: with fewer groups, fewer read the rows and start late.
    for height in (1..=8).rev().map(|sixteens| 16 * sixteens) {
        let columns = if height <= 64 { 2 } else { 1 };
        let outputs = if shape.glu { height / 2 } else { height };
        let tiles: usize = shape.features.iter().map(|n| n.div_ceil(outputs)).sum();
        for cluster in [1, 2] {
            let clusters = clusters_max(target, cluster);
            if cluster > 1 && (tiles > clusters || units < cluster) {
                continue;
            }
            // Rows come from the second cache.
            let stages = units.div_ceil(cluster) * (unit / (columns * features));
            let bytes = columns * (height * 128 + rows * features);
            let round = |tiles: usize| {
                let stream = stream_time(target.memory, bytes, tiles * cluster);
                // Of 32 rows, what a cluster exchanges takes as long as it is high, and no less below 64.
                let exchange = if rows >= 32 { 900 + 14 * height.max(64) } else { 900 };
                stages * stream.max(stage_times[columns - 1][place]) + if cluster > 1 { exchange } else { 500 }
            };
            let cost = in_rounds(tiles, clusters, round);
            let pairs = (rows / 2).div_ceil(cluster);
            let sums = height * (rows + 2) * 4 + if cluster > 1 { cluster * height * (2 * pairs + 2) * 4 } else { 0 };
            // With room for two columns, or, where rows take much, for as many as there are.
            let room = if rows >= 32 { columns } else { 2 };
            let stage = STAGE + scales + room * rows * features * 2;
            // Every second stage belongs to the same SIMD groups.
            let stages = ((GROUP_BYTES - HEADER - sums) / stage).min(STAGES_MAX) / 2 * 2;
            let variant = GemmVariant {
                kernel: kernels[place],
                activations,
                activation_threads,
                rows,
                cluster,
                features: outputs,
                threads: THREADS,
                narrow: Some(NarrowCut { height, columns, stages }),
                parts: 0,
            };
            candidates.push((cost, variant));
        }
    }
    if rows == ROWS_MAX {
        candidates.extend(tall(target, shape, features, scales));
    }
    let label = |variant: &GemmVariant| {
        format!("height={} cluster={}", variant.narrow.map_or(0, |cut| cut.height), variant.cluster)
    };
    target.tuned.pick_cheapest(|| shape.key("gemm_narrow"), candidates, label)
}

/// Variants of `gemm_tall` with their costs. `features` are in 128 bytes of a row, and `scales` bytes of 128 rows in a stage.
fn tall(
    target: &Target,
    shape: ProjectionsShape<'_>,
    features: usize,
    scales: usize,
) -> impl Iterator<Item = (usize, GemmVariant)> {
    let kernel = named!(shape.format, "gemm_tall_", "_t64");
    let (activations, activation_threads) = activations::kernels(shape.format, shape.k);
    let in_stages = shape.k.div_ceil(TALL_UNIT) * (TALL_UNIT / features);
    let stage = 2 * STAGE + 2 * scales + ROWS_MAX * features * 2;
    let stages = ((GROUP_BYTES - HEADER) / stage).min(STAGES_MAX);
    let (multiprocessors, memory) = (target.multiprocessors, target.memory);
    let of_height = move |height: usize| {
        let outputs = if shape.glu { height / 2 } else { height };
        let tiles: usize = shape.features.iter().map(|n| n.div_ceil(outputs)).sum();
        let bytes = height * 128 + ROWS_MAX * features;
        let round = |tiles: usize| {
            let stream = stream_time(memory, bytes, tiles);
            in_stages * stream.max(tall_side_time(features) * height.div_ceil(TALL_SIDE)) + 1500
        };
        let cost = in_rounds(tiles, multiprocessors, round);
        let variant = GemmVariant {
            kernel,
            activations,
            activation_threads,
            rows: ROWS_MAX,
            cluster: 1,
            features: outputs,
            threads: THREADS,
            narrow: Some(NarrowCut { height, columns: 1, stages }),
            parts: 0,
        };
        (cost, variant)
    };
    (9..=16).rev().filter(move |_| stages >= TALL_STAGES).map(move |sixteens| of_height(16 * sixteens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::{DeviceFormat, row_bytes};
    use crate::kernels::sm90::gemm::variant;
    use crate::target::tests::H200;

    #[test]
    fn few_rows_stream_weights_through_equal_shares() {
        let cut = |format, rows, k, glu, features| {
            let found = variant(&H200, ProjectionsShape { format, rows, k, glu, features }).expect("a variant");
            let cut = found.narrow.expect("for few rows");
            (found.rows, found.cluster, cut.height, cut.columns)
        };
        for format in DeviceFormat::ALL.into_iter().filter(|format| format.facts().gemm.is_some()) {
            if row_bytes(format, 4096) >= 4096 {
                assert_eq!(cut(format, 2, 4096, true, &[14_336]), (8, 1, 112, 1));
                assert_eq!(cut(format, 2, 14_336, false, &[4096]), (8, 2, 64, 2));
            }
            for (rows, tile) in [(2, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64)] {
                for (k, features) in [(32, &[1][..]), (896, &[896, 128, 128]), (4096, &[128_256]), (14_336, &[4096])] {
                    let shape = ProjectionsShape { format, rows, k, glu: false, features };
                    let found = variant(&H200, shape).expect("a variant for every shape");
                    let cut = found.narrow.expect("for few rows");
                    assert_eq!(found.rows, tile);
                    let tiles: usize = features.iter().map(|n| n.div_ceil(found.features)).sum();
                    let clusters = clusters_max(&H200, found.cluster);
                    assert!(found.cluster == 1 || tiles <= clusters, "{shape:?}: one tile for a cluster");
                    if found.kernel.starts_with("gemm_tall_") {
                        assert!(rows > 32 && cut.stages >= 3 && cut.columns == 1, "{shape:?}: {found:?}");
                        assert!((144..=256).contains(&cut.height) && found.cluster == 1);
                    } else {
                        assert!(cut.stages >= 2 && cut.stages.is_multiple_of(2), "{shape:?}: {found:?}");
                        assert!(cut.height <= 128 / cut.columns && found.cluster <= k.div_ceil(512));
                    }
                }
            }
        }
    }

    /// The cuts of shapes that weights are read for again and again.
    fn cuts(target: &Target) -> Vec<(usize, usize, &'static str)> {
        let formats = [DeviceFormat::F16, DeviceFormat::Q8_0, DeviceFormat::Q4_0];
        let shapes = [(896, 4864), (2048, 2048), (4096, 1024), (4096, 4096), (14_336, 4096), (4096, 14_336)];
        let of = |format, rows, (k, n)| {
            let found =
                variant(target, ProjectionsShape { format, rows, k, glu: false, features: &[n] }).expect("a variant");
            (found.cluster, found.narrow.expect("for few rows").height, found.kernel)
        };
        let rows =
            |format| [2, 16, 32, 64].into_iter().flat_map(move |rows| shapes.map(|shape| of(format, rows, shape)));
        formats.into_iter().flat_map(rows).collect()
    }

    #[test]
    fn cuts_follow_what_the_memory_gives_and_not_the_noise_of_measuring_it() {
        let of = |memory| cuts(&Target { memory, ..H200 });
        let fitted = cuts(&H200);
        assert_eq!(of(MemorySpeed::next_to(4_250)), fitted);
        assert_eq!(of(MemorySpeed::next_to(4_800)), fitted);
        let half = of(MemorySpeed::next_to(2_250));
        let differ = half.iter().zip(&fitted).filter(|(half, fitted)| half != fitted).count();
        assert!(differ > 0, "a card that reads half as much is cut alike: {fitted:?}");
        assert_eq!(of(MemorySpeed::next_to(2_400)), half);
        let time = |memory| stream_time(memory, 1 << 20, 132);
        assert!(time(MemorySpeed::next_to(2_250)).abs_diff(2 * time(MemorySpeed::FITTED)) <= 1);
    }
}
