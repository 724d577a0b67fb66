//! `kernels/gemm_mma.h`: projections of any number of rows on matrix instructions of SIMD groups, which all NVIDIA GPUs
//! have.

use crate::forced::Kernel;
use crate::formats::{DeviceFormat, OperandKind, row_bytes};
use crate::kernels::operand::GemmOperand;
use crate::kernels::{Projection, Projections, ProjectionsShape, linear, operand};
use crate::launch::{Access, Launch};
use crate::params::{GemmMmaParams, OperandPlace, OperandRowsParams};
use crate::site::{ROW_ALIGN, Site, index};
use crate::target::{Matrix, Target};

/// How `gemm_mma` is launched: `kernels/gemm_mma.h` says what these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MmaVariant {
    pub(crate) kernel: &'static str,
    /// Rows of a tile.
    pub(crate) rows: usize,
    /// Output features of a tile.
    pub(crate) features: usize,
    /// Tiles of all weights for the rows of one tile, and of all rows.
    pub(crate) tiles: usize,
    pub(crate) row_tiles: usize,
    /// Groups that share the input features of a tile.
    pub(crate) slices: usize,
    pub(crate) stages: usize,
}

/// Rows of its tiles, and what a block of 64 input features of one takes, in fifths of a microsecond, as measured on 132
/// multiprocessors at 1.7 GHz: weights become operands whatever the rows are.
const ROWS: [(usize, usize); 4] = [(16, 4), (32, 5), (64, 6), (128, 9)];

/// Rows of weights in a tile.
const FEATURES: usize = 256;

/// Bytes before the stages, and of the sums of 32 rows that are finished together.
const HEADER: usize = 128;
const SUMS: usize = 32 * (FEATURES + 4) * 4;

/// Input features of a block; blocks that a slice is whole multiples of, as they share a load of scales.
const BLOCK: usize = 64;
const UNIT: usize = 4;

const STAGES_MAX: usize = 4;
const SLICES_MAX: usize = 8;

/// Whether any projection of so many rows may be a `gemm_mma`: where there is `gemm`, only if that is wished for.
pub(crate) fn may_be(target: &Target, rows: usize) -> bool {
    let is_best = target.matrix == Matrix::SimdGroup || target.kernel == Some(Kernel::GemmMma);
    // Where bits must not depend on how many rows there are, one row has to take the kernel of many.
    is_best && target.matrix >= Matrix::SimdGroup && rows >= if target.batch_invariant { 1 } else { 2 }
}

/// Tiles that slices may share, at most: there is a counter for each.
pub(crate) fn num_counters(target: &Target) -> usize {
    match target.matrix {
        Matrix::EightByEight => 0,
        // Slices do not give way to rows there.
        _ if target.batch_invariant => ALIKE_COUNTERS,
        _ => target.multiprocessors,
    }
}

/// Counters where slices follow from the matrix alone: for tiles of 128 rows of a step of 16,384.
const ALIKE_COUNTERS: usize = 1 << 14;

/// Slices at most, where they follow from the matrix alone: all rows of a step leave a sum for each.
const ALIKE_SLICES_MAX: usize = 4;

/// Slices where a row's bits must not depend on how many rows there are: as many as let one tile of rows fill the device.
fn slices_alike(target: &Target, tiles: usize, units: usize) -> usize {
    (target.multiprocessors / tiles).clamp(1, ALIKE_SLICES_MAX.min(units))
}

impl MmaVariant {
    fn group_bytes(&self, format: DeviceFormat) -> usize {
        HEADER + (self.stages * stage_bytes(format, self.rows)).max(SUMS)
    }

    /// Bytes of what slices leave for the last of them.
    pub(crate) fn partials_bytes(&self) -> u64 {
        let slices = if self.slices > 1 { self.slices } else { 0 };
        (self.tiles * self.row_tiles * slices * self.rows * FEATURES * 4) as u64
    }
}

/// Bytes of a stage: as many blocks as make up 128 bytes of each row of weights, and fewer of many rows.
fn stage_bytes(format: DeviceFormat, rows: usize) -> usize {
    let line = row_bytes(format, BLOCK);
    let most = match rows {
        128.. => 1,
        64.. => 2,
        _ => 4,
    };
    (128 / line).min(most) * (FEATURES * line + rows * BLOCK * 2)
}

/// Threads of a group for tiles of so many rows.
fn threads(rows: usize) -> u32 {
    if rows >= 64 { 256 } else { 512 }
}

/// The variant for `shape`, if there is one.
pub(crate) fn variant(target: &Target, shape: ProjectionsShape<'_>) -> Option<MmaVariant> {
    if !may_be(target, shape.rows) || shape.format.facts().gemm.is_none() {
        return None;
    }
    let features = if shape.glu { FEATURES / 2 } else { FEATURES };
    let tiles: usize = shape.features.iter().map(|n| n.div_ceil(features)).sum();
    let units = shape.k.div_ceil(BLOCK * UNIT);
    let candidates = ROWS.into_iter().flat_map(|(rows, cost)| {
        let row_tiles = shape.rows.div_ceil(rows);
        let slices = match target.batch_invariant {
            true => slices_alike(target, tiles, units)..=slices_alike(target, tiles, units),
            false => 1..=SLICES_MAX.min(units),
        };
        slices.filter_map(move |slices| {
            let groups = tiles * row_tiles * slices;
            let most = if target.batch_invariant { slices * num_counters(target) } else { target.multiprocessors };
            if slices > 1 && groups > most {
                return None;
            }
            let rounds = groups.div_ceil(target.multiprocessors);
            // A guess: the end of a tile takes as long as eight blocks, and what slices leave has to be read.
            let end = cost * 8 + if slices > 1 { (2 + slices) * rows / 4 } else { 0 };
            let cost = rounds * (units.div_ceil(slices) * UNIT * cost + end);
            let room = target.group_bytes_max as usize;
            let stages = (room.checked_sub(HEADER)? / stage_bytes(shape.format, rows)).min(STAGES_MAX);
            let fits = stages >= 2 && HEADER + SUMS <= room;
            fits.then_some((cost, (rows, row_tiles, slices, stages)))
        })
    });
    // Of equal costs the fewest rows.
    let candidates: Vec<_> = candidates.collect();
    let label = |&(rows, _, slices, _): &(usize, usize, usize, usize)| format!("rows={rows} slices={slices}");
    let found = target.tuned.pick_cheapest(|| shape.key("gemm_mma"), candidates, label);
    let (rows, row_tiles, slices, stages) = found?;
    let kernel = match (shape.glu, rows) {
        (false, 16) => named!(shape.format, "gemm_mma_", "_t16"),
        (false, 32) => named!(shape.format, "gemm_mma_", "_t32"),
        (false, 64) => named!(shape.format, "gemm_mma_", "_t64"),
        (false, _) => named!(shape.format, "gemm_mma_", "_t128"),
        (true, 16) => named!(shape.format, "gemm_mma_glu_", "_t16"),
        (true, 32) => named!(shape.format, "gemm_mma_glu_", "_t32"),
        (true, 64) => named!(shape.format, "gemm_mma_glu_", "_t64"),
        (true, _) => named!(shape.format, "gemm_mma_glu_", "_t128"),
    };
    Some(MmaVariant { kernel, rows, features, tiles, row_tiles, slices, stages })
}

/// Bytes of the operand of rows, after which slices leave their sums.
fn operand_bytes(rows: usize, k: usize) -> u64 {
    GemmOperand::bytes(rows, k).next_multiple_of(256)
}

/// Bytes of scratch memory for projections of `shape`.
pub(crate) fn scratch_bytes(target: &Target, shape: ProjectionsShape<'_>) -> u64 {
    variant(target, shape).map_or(0, |found| operand_bytes(shape.rows, shape.k) + found.partials_bytes())
}

/// Projections of the same rows, all weights in one format, in as many launches as they take, behind the one that makes
/// their operand; `None` where there is no kernel for them.
pub(crate) fn launches(site: &Site<'_>, projections: &Projections<'_>) -> Option<Vec<Launch>> {
    let num_rows = site.num_rows(projections.rows);
    // Eight scales are read at once.
    let in_eights = projections.list.iter().flat_map(|projection| projection.weights(site));
    if !may_be(&site.target, num_rows) || !in_eights.map(|weight| weight.scale_stride()).all(|n| n.is_multiple_of(8)) {
        return None;
    }
    let variants: Vec<_> = projections
        .in_launches()
        .map(|some| variant(&site.target, some.shape(site, &some.features(site))))
        .collect::<Option<_>>()?;
    let k = projections.x.width;
    let operand = GemmOperand::new(site.arena.part(site.layout.scratch.0, operand_bytes(num_rows, k)), num_rows, k);
    let rows = rows_launch(site, projections, &operand);
    let gemms = projections.in_launches().zip(&variants).map(|(some, variant)| launch(site, &operand, variant, &some));
    Some(std::iter::once(rows).chain(gemms).collect())
}

/// Makes the operand of `projections`.
fn rows_launch(site: &Site<'_>, projections: &Projections<'_>, operand: &GemmOperand) -> Launch {
    let &Projections { x, rows, .. } = projections;
    let format = projections.format(site);
    let [gain, select] = [projections.gain(site), projections.select(site)];
    let params = OperandRowsParams {
        x: x.region.address,
        gain: gain.address,
        rows: site.live(rows).address,
        select: select.address,
        row_scales: operand.scales.address,
        to: OperandPlace {
            rows: operand.rows.address,
            stride: index(operand.stride),
            order: operand::order(format),
            factor: 1.0,
            is_bf16: i32::from(format.facts().operand == OperandKind::BF16),
        },
        k: index(x.width),
        x_stride: index(x.stride / ROW_ALIGN),
        eps: projections.eps(),
        padding: 0,
    };
    Launch::new("operand_rows_f32", [site.num_rows(rows), 1, 1], &params)
        .with(Access::Read, x.region)
        .with(Access::Constant, gain)
        .with(Access::Constant, site.live(rows))
        .with(Access::Constant, select)
        .with(Access::Write, operand.rows)
        .with(Access::Write, operand.scales)
}

fn launch(site: &Site<'_>, operand: &GemmOperand, variant: &MmaVariant, projections: &Projections<'_>) -> Launch {
    let (linear, operands) = linear::params(site, variant.features, projections);
    let format = projections.format(site);
    let tiles = variant.tiles * variant.row_tiles;
    let after = site.layout.scratch.0 + operand_bytes(operand.num_rows, operand.k);
    let partials = site.arena.part(after, variant.partials_bytes());
    let counters = if variant.slices > 1 { site.loaded.counters.part(0, tiles as u64 * 4) } else { Default::default() };
    let weights = |&Projection { linear, .. }: &Projection| site.loaded.weights.get(linear.weight);
    let params = GemmMmaParams {
        linear,
        operand: operand.rows.address,
        // BF16 has the range of f32.
        row_scales: match format.facts().operand {
            OperandKind::BF16 => Default::default(),
            _ => operand.scales.address,
        },
        partials: partials.address,
        counters: counters.address,
        operand_stride: index(operand.stride * 2 / 16),
        scale_stride: index(weights(&projections.list[0]).scale_stride()),
        tiles: index(variant.tiles),
        slices: index(variant.slices),
        stages: index(variant.stages),
        padding: 0,
    };
    let launch = Launch::new(variant.kernel, [tiles * variant.slices, 1, 1], &params)
        .with_groups_of(threads(variant.rows), variant.group_bytes(format) as u32)
        .with(Access::Read, operand.rows)
        .with(Access::Read, operand.scales)
        .with(Access::Update, partials)
        .with(Access::Update, counters);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    /// An RTX 3060: fewer multiprocessors, and a group has 99 KiB.
    const SMALL: Target = Target {
        multiprocessors: 28,
        bulk_copies: false,
        matrix: Matrix::SimdGroup,
        group_bytes_max: 99 << 10,
        ..H200
    };

    fn shape(format: DeviceFormat, rows: usize, features: &[usize]) -> ProjectionsShape<'_> {
        ProjectionsShape { format, rows, k: 4096, glu: false, features }
    }

    /// The same as if `op=gemm_mma` had been said.
    const WISHED_FOR: Target = Target { kernel: Some(Kernel::GemmMma), ..H200 };

    #[test]
    fn many_rows_are_whole_tiles_and_few_share_the_input_features() {
        let of = |target: &Target, rows, features| {
            variant(target, shape(DeviceFormat::Q4_0, rows, features)).map(|found| (found.rows, found.slices))
        };
        assert_eq!(of(&WISHED_FOR, 1, &[4096]), None);
        assert_eq!(of(&WISHED_FOR, 2048, &[4096, 1024, 1024]), Some((128, 1)));
        assert_eq!(of(&SMALL, 2048, &[4096]), Some((128, 1)));
        let (rows, slices) = of(&WISHED_FOR, 8, &[4096]).unwrap();
        assert!(rows == 16 && slices > 1, "{rows} {slices}");
    }

    #[test]
    fn every_format_fits_the_group_memory_of_small_cards() {
        for format in DeviceFormat::ALL {
            for rows in [2, 40, 100, 512, 2048] {
                let found = variant(&SMALL, shape(format, rows, &[4096]));
                assert_eq!(found.is_some(), format.facts().gemm.is_some());
                let Some(found) = found else { continue };
                assert!(found.group_bytes(format) <= SMALL.group_bytes_max as usize, "{format:?} {found:?}");
                assert!(found.slices == 1 || found.tiles * found.row_tiles <= num_counters(&SMALL));
                assert_eq!(found.partials_bytes() > 0, found.slices > 1);
            }
        }
    }

    #[test]
    fn slices_follow_from_the_matrix_where_rows_must_not_depend_on_each_other() {
        for multiprocessors in [28, 132] {
            let target = Target { batch_invariant: true, multiprocessors, ..SMALL };
            for features in [&[4096, 1024, 1024][..], &[4096], &[128_256], &[96]] {
                let of = |rows| variant(&target, shape(DeviceFormat::Q4_0, rows, features)).expect("a variant").slices;
                let slices = of(1);
                assert!([2, 16, 17, 64, 65, 2048].into_iter().all(|rows| of(rows) == slices), "{features:?}");
                assert_eq!(slices > 1, multiprocessors == 132 && features[0] < 128_256 || features[0] == 96);
            }
        }
    }

    #[test]
    fn there_is_none_where_another_is_better() {
        let metal = Target { matrix: Matrix::EightByEight, ..SMALL };
        assert_eq!(variant(&metal, shape(DeviceFormat::F16, 64, &[4096])), None);
        assert_eq!(variant(&H200, shape(DeviceFormat::F16, 64, &[4096])), None);
    }
}
