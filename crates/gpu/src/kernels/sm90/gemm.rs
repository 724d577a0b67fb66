//! `kernels/sm90/gemm.h`: gemms whose operands are copied in tiles; [`gemm_narrow`] has those of few rows.

use std::mem::offset_of;

use plan::Linear;

use crate::formats::{DeviceFormat, row_bytes, scales_of_256};
use crate::kernels::experts::ExpertSum;
use crate::kernels::operand::GemmOperand;
use crate::kernels::sm90::activations;
use crate::kernels::sm90::gemm_narrow::{self, NarrowCut};
use crate::kernels::{Projection, Projections, ProjectionsShape, SEGMENTS, Up, operand};
use crate::launch::{Access, Element, Launch, Region, TileMap};
use crate::params::{GemmParams, GemmSegment};
use crate::site::{Site, index};
use crate::target::{Matrix, Target};
use crate::weights::DeviceWeight;

/// A variant of `gemm`, as `kernels/sm90/gemm.h` has them, or of `gemm_narrow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GemmVariant {
    pub(crate) kernel: &'static str,
    /// The kernel that makes the operand of rows, and the one that normalises them before.
    pub(crate) activations: [&'static str; 2],
    pub(crate) activation_threads: u32,
    /// Rows of a tile, at most.
    pub(crate) rows: usize,
    /// Groups of a cluster.
    pub(crate) cluster: usize,
    /// Output features that a cluster makes at once.
    pub(crate) features: usize,
    pub(crate) threads: u32,
    /// How `gemm_narrow` is cut.
    pub(crate) narrow: Option<NarrowCut>,
    /// How many parts `gemm_alike` cuts k into: side by side up to 64 rows, one after another above. Other kernels have 0.
    pub(crate) parts: usize,
}

/// Threads of a gemm's groups, and their group memory.
pub(crate) const THREADS: u32 = 384;

pub(crate) const GROUP_BYTES: usize = 227 << 10;

/// Input features that a row of activations may have.
pub(crate) const K_MAX: usize = 32_768;

/// Numbers of k in a stage, output features and rows of one copy.
pub(crate) const TILE: [u32; 3] = [64, 128, 128];

/// Rows of a tile are a multiple of this.
const ROW_STEP: usize = 32;

/// What the kernel knows of tiles of up to so many rows, and chooses their height by. Times are in that of a row in a stage of the
/// larger tiles.
struct Heights {
    least: usize,
    most: usize,
    /// The time of a stage beside that of its rows.
    stage_cost: usize,
    /// Rows of a stage that take a unit of time.
    row_share: usize,
    /// The time of a stage of 128 rows in tiles of so many.
    low_stage: usize,
}

impl Heights {
    fn new(format: DeviceFormat, most: usize) -> Self {
        // Codes become operands on the way.
        let has_codes = format.facts().gemm.is_some_and(|gemm| gemm.element == Element::I8);
        let (stage_cost, low_stage) = match (has_codes, most) {
            (false, _) => (190, 254),
            (true, 256) => (256, 298),
            (true, _) => (234, 298),
        };
        let (least, row_share) = if most == 256 { (160, 1) } else { (ROW_STEP, 2) };
        Self { least, most, stage_cost, row_share, low_stage }
    }

    /// The time that `rows` rows take with the best height of tiles. A row of tiles has `tiles` of them, the device makes `at_once`
    /// at a time, and the end of a tile takes as long as `end` stages of 128 rows.
    fn time(&self, rows: usize, [tiles, at_once]: [usize; 2], stages: usize, end: usize) -> usize {
        let of_height = |height: usize| {
            let rounds = (tiles * rows.div_ceil(height)).div_ceil(at_once);
            rounds * (stages * (height / self.row_share + self.stage_cost) + end * self.low_stage)
        };
        (self.least..=self.most).step_by(ROW_STEP).map(of_height).min().expect("a height")
    }
}

/// Clusters of so many groups that run at once, at one group a multiprocessor. They do not cross certain borders: of
/// 132 multiprocessors, 39 clusters of three were counted, 30 of four and 15 of eight; devices with others may have
/// fewer.
pub(crate) fn clusters_max(target: &Target, groups: usize) -> usize {
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
pub(crate) fn may_be(target: &Target, rows: usize) -> bool {
    target.matrix == Matrix::FourSimdGroups && rows >= if target.batch_invariant { 1 } else { 2 }
}

/// Whether a gemm of so many rows is a `gemm_narrow`.
pub(crate) fn is_narrow(rows: usize) -> bool {
    rows <= gemm_narrow::ROWS_MAX
}

/// The gemm for `shape`, if there is one.
pub(crate) fn variant(target: &Target, shape: ProjectionsShape<'_>) -> Option<GemmVariant> {
    if !may_be(target, shape.rows) || shape.k > K_MAX || shape.format.facts().gemm.is_none() {
        return None;
    }
    if !is_narrow(shape.rows) {
        return of_tiles(target, shape);
    }
    // Of Q6_K no stage of 33 to 64 rows fits where k is not cut: tiles of 128 rows have the same bits.
    let alike = || target.batch_invariant.then(|| of_tiles(target, shape)).flatten();
    gemm_narrow::variant(target, shape).or_else(alike)
}

/// Of many rows: the variant that takes the fewest rounds of the multiprocessors, each as long as its share of k, where
/// no other was measured best.
fn of_tiles(target: &Target, shape: ProjectionsShape<'_>) -> Option<GemmVariant> {
    let [wide, narrow] = if shape.glu {
        [named!(shape.format, "gemm_glu_", "_t256"), named!(shape.format, "gemm_glu_", "_t128")]
    } else {
        [named!(shape.format, "gemm_", "_t256"), named!(shape.format, "gemm_", "_t128")]
    };
    let alike = if shape.glu {
        named!(shape.format, "gemm_glu_alike_", "_t128")
    } else {
        named!(shape.format, "gemm_alike_", "_t128")
    };
    let (activations, activation_threads) = activations::kernels(shape.format, shape.k);
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
            threads: THREADS,
            narrow: None,
            parts: 0,
        }
    };
    let parts = if target.batch_invariant { gemm_narrow::parts(target, shape) } else { 0 };
    // The program is for up to `shape.rows` rows, and for more than half of them. Measured: the end of a tile takes as long as
    // eight stages, with the sum over a cluster as twenty.
    let cost = |variant: &GemmVariant| {
        let per_rows: usize = shape.features.iter().map(|n| n.div_ceil(variant.features)).sum();
        let clusters = clusters_max(target, variant.cluster).max(1);
        let stages = shape.k.div_ceil(64);
        let shares_k = variant.rows == 128 && variant.cluster > 1;
        if shares_k && variant.cluster > 2 && per_rows * shape.rows.div_ceil(128) > clusters && parts == 0 {
            return None;
        }
        // A cluster shares k in pieces of 256.
        let (stages, end) = if shares_k { (stages.div_ceil(4).div_ceil(variant.cluster) * 4, 20) } else { (stages, 8) };
        let heights = Heights::new(shape.format, variant.rows);
        let time = |eighths: usize| heights.time((shape.rows * eighths).div_ceil(8), [per_rows, clusters], stages, end);
        Some((5..=8).map(time).sum::<usize>())
    };
    let small = [1, 2, 3, 4, 8].map(|cluster| variant(128, cluster));
    let variants: Vec<_> = match parts {
        0 => std::iter::once(variant(256, 2)).chain(small).collect(),
        // Tiles of all heights have the same bits where nothing shares k.
        1 => vec![variant(256, 2), variant(128, 1)],
        // A group for each part, or all parts one after another.
        _ => vec![GemmVariant { kernel: alike, parts, ..variant(128, 1) }, variant(128, parts)],
    };
    let costs = variants.into_iter().filter_map(|variant| Some((cost(&variant)?, variant))).collect();
    let label = |variant: &GemmVariant| format!("rows={} cluster={}", variant.rows, variant.cluster);
    target.tuned.pick_cheapest(|| shape.key("gemm"), costs, label)
}

impl GemmOperand {
    /// Tiles of so many of its rows.
    pub(crate) fn tiles(&self, at: usize, element: Element, rows: usize) -> TileMap {
        TileMap {
            at,
            address: self.rows.address,
            // Codes meet f16.
            element: if element == Element::BF16 { Element::BF16 } else { Element::F16 },
            dims: vec![self.stride as u64, self.num_rows as u64],
            strides: vec![self.stride as u64 * 2],
            tile: vec![TILE[0], rows as u32],
            swizzled: true,
        }
    }
}

/// A matrix whose tiles a gemm copies.
#[derive(Clone, Copy)]
pub(crate) struct CopiedMatrix {
    region: Region,
    rows: usize,
    row_len: usize,
    element: Element,
}

impl CopiedMatrix {
    /// The numbers of a weight, or its codes.
    pub(crate) fn values(weight: &DeviceWeight) -> Self {
        let element = weight.format.facts().gemm.as_ref().expect("`variant` has none for other formats").element;
        let row_len = match element {
            Element::I8 => row_bytes(weight.format, weight.row_len),
            Element::F16 | Element::BF16 => weight.row_len,
        };
        Self { region: weight.values, rows: weight.rows, row_len, element }
    }

    /// The scales of a weight in blocks.
    pub(crate) fn scales(weight: &DeviceWeight) -> Self {
        Self { region: weight.scales, rows: weight.rows, row_len: weight.scale_stride(), element: Element::F16 }
    }

    pub(crate) fn element(&self) -> Element {
        self.element
    }

    /// Tiles of its rows; of gate and up, eight rows of each in turn.
    pub(crate) fn tiles(self, at: usize, up: Option<Self>, tile: [u32; 2], swizzled: bool) -> TileMap {
        let row_bytes = self.region.bytes / self.rows as u64;
        let [k, features] = tile;
        let (dims, strides, tile) = match up {
            None => (vec![self.row_len as u64, self.rows as u64], vec![row_bytes], vec![k, features]),
            Some(up) => (
                vec![self.row_len as u64, 8, 2, self.rows as u64 / 8],
                vec![row_bytes, up.region.address.0 - self.region.address.0, 8 * row_bytes],
                vec![k, 8, 2, features / 16],
            ),
        };
        TileMap { at, address: self.region.address, element: self.element, dims, strides, tile, swizzled }
    }
}

/// Whether a gemm can read `weight`: it reads eight scales at once, so rows of them must begin on 16 bytes.
fn tiles_can_be_copied(weight: &DeviceWeight) -> bool {
    weight.format.facts().gemm.is_some() && weight.scale_stride().is_multiple_of(8)
}

/// Whether the gate of a gated unit and its up projection are one tensor to a copy of tiles.
fn up_follows_gate(site: &Site<'_>, gate: Linear, up: Option<Up>) -> bool {
    let Some((up, _)) = up else { return false };
    let [gate, up] = [gate, up].map(|linear| site.loaded.weights.get(linear.weight));
    gate.rows.is_multiple_of(8) && tiles_can_be_copied(up) && up.values.address.0 > gate.values.address.0
}

/// The gemms of projections of rows of `k` features, as many together as one launch takes, where there are some.
pub(crate) fn variants(
    site: &Site<'_>,
    num_rows: usize,
    k: usize,
    projections: &[(Linear, Option<Up>)],
) -> Option<Vec<GemmVariant>> {
    let weight = |&(linear, _): &(Linear, Option<Up>)| site.loaded.weights.get(linear.weight);
    if !may_be(&site.target, num_rows) || !projections.iter().map(weight).all(tiles_can_be_copied) {
        return None;
    }
    let glu = projections.iter().any(|(_, up)| up.is_some());
    if glu && !projections.iter().all(|&(gate, up)| up_follows_gate(site, gate, up)) {
        return None;
    }
    let variants = projections.chunks(SEGMENTS).map(|some| {
        let features: Vec<_> = some.iter().map(|projection| weight(projection).rows).collect();
        let format = weight(&some[0]).format;
        variant(&site.target, ProjectionsShape { format, rows: num_rows, k, glu, features: &features })
    });
    variants.collect()
}

/// Projections in as many launches as they take, behind the one that makes their operand where the op before has not; that one
/// makes `sum` on the way, where it is given. `None` where there is no kernel for these rows and weights.
pub(crate) fn launches(site: &Site<'_>, projections: &Projections<'_>, sum: Option<&ExpertSum>) -> Option<Vec<Launch>> {
    let &Projections { x, rows, list, .. } = projections;
    let num_rows = site.num_rows(rows);
    let linears: Vec<_> = list.iter().map(|projection| (projection.linear, projection.up)).collect();
    let variants = variants(site, num_rows, x.width, &linears)?;
    let mut launches = vec![];
    let operand = match site.reads {
        Some(direct) => GemmOperand::direct(direct, num_rows, x.width),
        None => {
            let scratch = site.arena.part(site.layout.scratch.0, GemmOperand::bytes(num_rows, x.width));
            let operand = GemmOperand::new(scratch, num_rows, x.width);
            launches.push(activations::launch(site, projections, &operand, &variants[0], sum)?);
            operand
        }
    };
    launches
        .extend(projections.in_launches().zip(&variants).map(|(some, variant)| launch(site, &operand, variant, &some)));
    Some(launches)
}

fn launch(site: &Site<'_>, operand: &GemmOperand, variant: &GemmVariant, projections: &Projections<'_>) -> Launch {
    let &Projections { rows, list, residual, .. } = projections;
    let residual_region = projections.residual_region();
    let mut params = GemmParams {
        parts: index(variant.parts),
        row_tiles: index(operand.num_rows.div_ceil(variant.rows)),
        residual: residual_region.address,
        rows: site.live(rows).address,
        k: index(operand.k),
        residual_stride: index(residual.map_or(0, |residual| residual.stride)),
        factor: operand.factor,
        operand: operand::place(site.writes, list[0].out.width),
        ..GemmParams::default()
    };
    let mut operands =
        vec![(Access::Read, operand.rows), (Access::Read, residual_region), (Access::Constant, site.live(rows))];
    let mut maps = vec![];
    let mut element = Element::F16;
    for (place, (segment, &Projection { linear, up, out })) in params.segments.iter_mut().zip(list).enumerate() {
        let weight = site.loaded.weights.get(linear.weight);
        let bias = site.vector(linear.bias);
        params.scale_stride = index(weight.scale_stride());
        operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
        operands.push((Access::Write, site.writes.map_or(out.region, |direct| direct.rows)));
        *segment = GemmSegment {
            scales: weight.scales.address,
            bias: bias.address,
            y: out.region.address,
            n: index(weight.rows),
            tiles: index(weight.rows.div_ceil(variant.features)),
            y_stride: index(out.stride),
            matrix_scale: weight.matrix_scale,
            ..GemmSegment::default()
        };
        params.tiles += segment.tiles;
        let up = up.map(|(up, activation)| {
            let (weight, bias) = (site.loaded.weights.get(up.weight), site.vector(up.bias));
            operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
            segment.up_scales = weight.scales.address;
            segment.up_bias = bias.address;
            segment.up_matrix_scale = weight.matrix_scale;
            segment.activation = activation as i32;
            params.glu = 1;
            weight
        });
        let at = offset_of!(GemmParams, segments) + place * size_of::<GemmSegment>();
        let values = CopiedMatrix::values(weight);
        element = values.element;
        let (tile, swizzled) = match variant.narrow {
            Some(cut) => ([128 / element.bytes() as u32, cut.height as u32], true),
            // Of four bits, half as many bytes.
            None => {
                let bytes = row_bytes(weight.format, TILE[0] as usize) as u32;
                ([bytes / element.bytes() as u32, TILE[1]], element.bytes() == 2)
            }
        };
        let up_values = up.map(CopiedMatrix::values);
        maps.push(values.tiles(at + offset_of!(GemmSegment, weight), up_values, tile, swizzled));
        if let Some(cut) = variant.narrow
            && element == Element::I8
        {
            // In f16, of 256 weights or 512; a copy brings whole 16 bytes.
            let blocks = (cut.columns * 128).div_ceil(row_bytes(weight.format, 256)) as u32;
            let scales = (scales_of_256(weight.format) as u32 * blocks).next_multiple_of(8);
            let (at, up_scales) = (at + offset_of!(GemmSegment, scale_tiles), up.map(CopiedMatrix::scales));
            maps.push(CopiedMatrix::scales(weight).tiles(at, up_scales, [scales, tile[1]], false));
        }
    }
    if element != Element::BF16 {
        params.row_scales = operand.scales.address;
        operands.push((Access::Read, operand.scales));
    }
    if let Some(cut) = variant.narrow {
        params.stages = index(cut.stages);
        params.height = index(cut.height);
        params.columns = index(cut.columns);
    }
    let rows = variant.rows.min(TILE[2] as usize);
    maps.push(operand.tiles(offset_of!(GemmParams, x), element, rows));
    let row_tiles = operand.num_rows.div_ceil(if variant.narrow.is_some() { variant.rows } else { ROW_STEP });
    let clusters = match variant.cluster {
        0..=2 => site.target.multiprocessors / variant.cluster,
        cluster => (site.target.multiprocessors / cluster).min(clusters_max(&site.target, cluster)),
    };
    let clusters = clusters.min(params.tiles as usize * row_tiles);
    let launch = Launch {
        cluster: variant.cluster as u32,
        maps,
        ..Launch::new(variant.kernel, [clusters * variant.cluster, 1, 1], &params)
            .with_groups_of(variant.threads, GROUP_BYTES as u32)
    };
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::DeviceFormat;
    use crate::target::tests::H200;

    #[test]
    fn k_is_cut_as_the_matrix_asks_for_where_rows_must_not_depend_on_each_other() {
        let target = Target { batch_invariant: true, ..H200 };
        for format in DeviceFormat::ALL.into_iter().filter(|format| format.facts().gemm.is_some()) {
            for (features, k, glu, parts) in [
                (&[4096, 1024, 1024][..], 4096, false, 4),
                (&[4096], 14_336, false, 4),
                (&[14_336], 4096, true, 1),
                (&[4864], 896, true, 2),
                (&[128_256], 4096, false, 1),
                (&[896], 896, false, 4),
                (&[4096], 512, false, 2),
                (&[4096], 256, false, 1),
            ] {
                for rows in [1, 8, 9, 17, 33, 64, 65, 128, 256, 2048] {
                    let shape = ProjectionsShape { format, rows, k, glu, features };
                    let found = variant(&target, shape).expect("a variant for every shape");
                    let of_kernel = match (found.parts, found.cluster, found.rows) {
                        // Groups of a cluster share rows of x.
                        (0, 2, 256) => 1,
                        (0, cluster, _) => cluster,
                        (parts, 1, _) => parts,
                        other => panic!("{shape:?}: {other:?}"),
                    };
                    assert_eq!(of_kernel, parts, "{shape:?}: {found:?}");
                    assert!(found.narrow.is_none_or(|cut| cut.stages >= 2), "{shape:?}: {found:?}");
                    assert!(rows <= 64 || found.narrow.is_none());
                }
            }
        }
    }

    /// Tiles of 256 cut 1,300 rows into six, and the last tile has 20 rows.
    #[test]
    fn tiles_have_fewer_rows_where_they_end_sooner() {
        for format in [DeviceFormat::F16, DeviceFormat::Q4_0] {
            let [whole, any] = [256, 160].map(|least| Heights { least, ..Heights::new(format, 256) });
            // The output projection of Llama-3.1-8B: 16 tiles of features, 66 clusters at once.
            let times = |rows| [&whole, &any].map(|heights| heights.time(rows, [16, 66], 64, 8));
            let [of_256, of_fewer] = times(1300);
            assert!(of_fewer * 20 < of_256 * 19, "{format:?}: {of_fewer}, {of_256}");
            // What fills whole tiles and all rounds stays as it is.
            let [of_256, of_fewer] = times(1024);
            assert_eq!(of_fewer, of_256, "{format:?}");
        }
    }

    #[test]
    fn many_rows_are_gemms() {
        let shape =
            |rows, features| ProjectionsShape { format: DeviceFormat::Q8_0, rows, k: 4096, glu: false, features };
        let of = |rows, features| variant(&H200, shape(rows, features)).map(|variant| (variant.rows, variant.cluster));
        assert_eq!(of(1, &[4096]), None);
        assert_eq!(of(2048, &[4096, 1024, 1024]), Some((256, 2)));
        assert_eq!(of(2048, &[896]), Some((128, 1)));
        assert_eq!(of(128, &[28_672]), Some((128, 1)));
        assert_eq!(of(128, &[4096, 1024, 1024]), Some((128, 2)));
        assert_eq!(of(128, &[4096]), Some((128, 3)));
        assert_eq!(of(128, &[896]), Some((128, 8)));
        let glu = ProjectionsShape { glu: true, features: &[14_336], ..shape(2048, &[]) };
        assert_eq!(
            variant(&H200, glu).map(|variant| (variant.kernel, variant.features)),
            Some(("gemm_glu_q8_0_t256", 128))
        );
        for rows in [8, 2048] {
            let glu = ProjectionsShape { rows, ..glu };
            assert_eq!(variant(&H200, ProjectionsShape { format: DeviceFormat::F32, ..glu }), None);
            assert_eq!(variant(&Target { matrix: Matrix::SimdGroup, ..H200 }, glu), None);
        }
    }
}
