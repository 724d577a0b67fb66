//! `kernels/linear_batch.h`: projections of 2 to 32 rows on matrix instructions of a SIMD group.

use crate::formats::Batch;
use crate::kernels::{Projections, ProjectionsShape, linear};
use crate::launch::{Access, Launch};
use crate::params::LinearBatchParams;
use crate::site::{Site, index};
use crate::target::{Matrix, Target};

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

const ROWS: [BatchRows; 3] = [
    BatchRows { rows: 8, finishers: 2, stages: 3 },
    BatchRows { rows: 16, finishers: 2, stages: 3 },
    BatchRows { rows: 32, finishers: 4, stages: 2 },
];

/// Rows up to which it pays, or fits.
const ROWS_MAX: usize = ROWS[2].rows;

/// SIMD groups that multiply.
const MULTIPLIERS: usize = 8;

/// Bytes of `LinearBatchGroup`.
const HEADER: usize = 784;

/// Whether any projection of so many rows may be a `linear_batch`.
pub(crate) fn may_be(target: &Target, rows: usize) -> bool {
    target.matrix >= Matrix::SimdGroup && !target.batch_invariant && (2..=ROWS_MAX).contains(&rows)
}

/// The variant for `shape`, if there is one: how it is cut follows from the weights alone, so that bits do not depend
/// on the rows.
pub(crate) fn variant(target: &Target, shape: ProjectionsShape<'_>) -> Option<BatchVariant> {
    if !may_be(target, shape.rows) {
        return None;
    }
    let &Batch { features, stage_bytes: stage } = shape.format.facts().batch.as_ref()?;
    let kernels = [
        named!(shape.format, "linear_batch_", "_t8"),
        named!(shape.format, "linear_batch_", "_t16"),
        named!(shape.format, "linear_batch_", "_t32"),
    ];
    let group_bytes = |rows: &BatchRows, slice_steps: usize, k_simds: usize| {
        let ring = MULTIPLIERS * rows.stages * stage;
        let partials = k_simds * rows.rows * (32 * (MULTIPLIERS / k_simds) + 4) * 4;
        HEADER + ring + partials + slice_steps * features * (4 + 2 * rows.rows)
    };
    let steps = shape.k.div_ceil(features);
    let slices_max = if target.groups_meet { target.multiprocessors.min(steps) } else { 1 };
    let mut best: Option<(usize, BatchVariant)> = None;
    let place = ROWS.iter().position(|rows| shape.rows <= rows.rows)?;
    let rows = &ROWS[place];
    for slices in 1..=slices_max {
        let slice_steps = steps.div_ceil(slices);
        if steps.div_ceil(slice_steps) != slices {
            continue;
        }
        for k_simds in [1, 2, 4, 8] {
            if group_bytes(&ROWS[2], slice_steps, k_simds) > target.group_bytes_max as usize {
                continue;
            }
            let row_simds = MULTIPLIERS / k_simds;
            let tile = row_simds * if shape.glu { 16 } else { 32 };
            let tiles: usize = shape.features.iter().map(|n| n.div_ceil(tile)).sum();
            let teams = tiles.min(target.multiprocessors / slices).max(1);
            // In nanoseconds, as measured on 132 multiprocessors: a step of all SIMD groups, and the end of a tile;
            // then what grows with slices, and putting a slice into group memory.
            let tile_time = slice_steps.div_ceil(k_simds) * 940 + 400;
            let once = 150 * slices + slice_steps * features + if k_simds == 1 { 1000 } else { 0 };
            let cost = tiles.div_ceil(teams) * tile_time + once;
            if best.as_ref().is_some_and(|&(least, _)| least <= cost) {
                continue;
            }
            let (messages, message) = (if slices > 1 { slices } else { 0 }, 16);
            let variant = BatchVariant {
                kernel: kernels[place],
                threads: ((MULTIPLIERS + rows.finishers) * 32) as u32,
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

/// Projections of the same rows, all weights in one format, in as many launches as they take; `None` where there is no
/// kernel for them.
pub(crate) fn launches(site: &Site<'_>, projections: &Projections<'_>) -> Option<Vec<Launch>> {
    let num_rows = site.num_rows(projections.rows);
    // Scales are copied in pairs.
    let in_pairs = projections.list.iter().flat_map(|projection| projection.weights(site));
    if !may_be(&site.target, num_rows) || !in_pairs.map(|weight| weight.scale_stride()).all(|n| n.is_multiple_of(2)) {
        return None;
    }
    let launches = projections.in_launches().map(|some| {
        let variant = variant(&site.target, some.shape(site, &some.features(site)))?;
        Some(launch(site, &variant, &some))
    });
    launches.collect()
}

fn launch(site: &Site<'_>, variant: &BatchVariant, projections: &Projections<'_>) -> Launch {
    let (linear, operands) = linear::params(site, variant.tile, projections);
    let partials = site.messages.part(0, variant.partials_bytes);
    let squares = site.messages.part(variant.partials_bytes, variant.squares_bytes);
    let scale_stride = site.loaded.weights.get(projections.list[0].linear.weight).scale_stride();
    let params = LinearBatchParams {
        linear,
        partials: partials.address,
        squares: squares.address,
        tiles: index(variant.tiles),
        teams: index(variant.teams),
        slices: index(variant.slices),
        slice_steps: index(variant.slice_steps),
        k_simds: index(variant.k_simds),
        scale_stride: index(scale_stride),
    };
    let launch = Launch::new(variant.kernel, [variant.slices * variant.teams, 1, 1], &params)
        .with_groups_of(variant.threads, variant.group_bytes as u32)
        .with(Access::Update, partials)
        .with(Access::Update, squares);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::DeviceFormat;
    use crate::target::tests::H200;

    #[test]
    fn few_rows_share_weights_and_are_cut_alike_however_many_they_are() {
        let shape = |format, rows, k, features| ProjectionsShape { format, rows, k, glu: false, features };
        let of =
            |target: &Target, shape| variant(target, shape).map(|found| (found.kernel, found.slices, found.k_simds));
        for format in [DeviceFormat::F16, DeviceFormat::BF16, DeviceFormat::Q8_0] {
            for (k, features) in [(4096, &[4096, 1024, 1024][..]), (14_336, &[4096]), (896, &[1152]), (32, &[1])] {
                let [two, sixteen, many] = [2, 16, 32]
                    .map(|rows| variant(&H200, shape(format, rows, k, features)).expect("a variant for every shape"));
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
}
