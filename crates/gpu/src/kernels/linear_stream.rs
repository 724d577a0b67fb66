//! `kernels/linear_stream.h`: projections of one row or two, whose weights stream through group memory.

use crate::forced::Kernel;
use crate::formats::{DeviceFormat, Streamed, row_bytes, scale_row_bytes};
use crate::kernels::{Projection, Projections, ProjectionsShape};
use crate::launch::{Access, Launch, Region};
use crate::params::{LinearSegment, LinearStreamParams};
use crate::site::{ROW_ALIGN, Site, index};
use crate::target::Target;

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
    /// Bytes of a row of activations there.
    pub(crate) x_row: usize,
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
pub(super) const THREADS: u32 = 512;

pub(super) const SIMDS: usize = 16;

pub(super) const STAGES_MAX: usize = 8;

/// Bytes of its barriers and sums.
const HEADER: usize = 1152;

/// Features that its threads hold to normalise them.
pub(super) const NORM_K_MAX: usize = 8_192;

/// Percent of group memory for kernels with a norm, and for the others. Kernels of a layer take turns, and attention of
/// one row is between two of them: so large are the shares that each begins while the one ahead is at work, one of each
/// on every multiprocessor; two of the same, and other multiprocessors would have none (a fifth slower).
pub(super) const NORM_SHARE: usize = 42;

pub(super) const PLAIN_SHARE: usize = 57;

/// Rows at most.
pub(crate) const ROWS_MAX: usize = 2;

/// Other shares that may be better on other devices or for other shapes.
const SHARES: [usize; 6] = [28, 35, NORM_SHARE, PLAIN_SHARE, 72, 99];

/// The variant that streams weights through group memory, for one row or two: where copies run by themselves, results may
/// depend on the batch, and its memory suffices. `norm`: the row is normalised on the way; `other`: the format of the
/// last segment, where it is not that of the rest.
pub(crate) fn variant(
    target: &Target,
    other: Option<DeviceFormat>,
    kind: StreamKind,
    norm: bool,
    shape: ProjectionsShape<'_>,
) -> Option<StreamVariant> {
    let ProjectionsShape { format, rows, k, .. } = shape;
    let is_other = target.kernel == Some(Kernel::Linear) || (rows > 1 && target.kernel.is_some());
    let is_other = is_other || rows > ROWS_MAX;
    if is_other || target.batch_invariant || !target.bulk_copies || (norm && k > NORM_K_MAX) {
        return None;
    }
    let kernel = kernel(format, other, kind, norm, rows)?;
    let planes = if kind == StreamKind::Plain { 1 } else { 2 };
    let first = StreamedFormat::new(format, k, planes)?;
    let second = match other {
        Some(other) => Some(StreamedFormat::new(other, k, planes)?),
        None => None,
    };
    let first_end = HEADER + first.x_bytes.next_multiple_of(128);
    let (other_x_at, row_end) = match second {
        Some(second) if second.layout != first.layout => (first_end, first_end + second.x_bytes.next_multiple_of(128)),
        _ => (HEADER, first_end),
    };
    let x_row = row_end - HEADER;
    let ring_at = HEADER + rows.max(1) * x_row;
    let plane = second.map_or(0, StreamedFormat::plane).max(first.plane());
    let of_share = |share: usize, groups: usize| {
        let group_bytes = target.group_bytes_max as usize * share / 100 / 1024 * 1024;
        let stages = group_bytes.checked_sub(ring_at)? / (SIMDS * planes * plane);
        let variant = StreamVariant {
            kernel,
            groups,
            stages: stages.min(STAGES_MAX),
            stage_rows: first.stage_rows(),
            x_at: HEADER,
            ring_at,
            x_row,
            group_bytes,
            other: second.map(|second| OtherFormat {
                x_at: other_x_at,
                stage_rows: second.stage_rows(),
                effort: second.effort,
            }),
        };
        (variant.stages > 0).then_some((share, variant))
    };
    let multiprocessors = target.multiprocessors;
    let share = if norm { NORM_SHARE } else { PLAIN_SHARE };
    // Of a single stage, the next piece is not on its way while one is multiplied: two rows of wide numbers take more.
    let two_stages = SHARES.into_iter().filter(|&other| rows > 1 && other >= share);
    let two_stages = two_stages.filter_map(|share| of_share(share, multiprocessors)).find(|(_, way)| way.stages > 1);
    let usual = match rows {
        2.. => two_stages?,
        _ => of_share(share, multiprocessors)?,
    };
    // Fewer groups have fewer sums to make, and read more slowly.
    let counts = [multiprocessors, multiprocessors * 3 / 4, multiprocessors / 2];
    let others = counts
        .into_iter()
        .filter(|&groups| groups > 0)
        .flat_map(|groups| SHARES.into_iter().filter_map(move |share| of_share(share, groups)));
    let others = others.filter(|&other| other != usual);
    let variants: Vec<_> = std::iter::once(usual).chain(others).collect();
    let label = |(share, variant): &(usize, StreamVariant)| format!("groups={} share={share}", variant.groups);
    target.tuned.pick(|| shape.key(kernel), variants, label, 0).map(|(_, variant)| variant)
}

/// The formats of Q and K, and of V, that one launch takes, because files of several formats (Q4_K_M) have them so. Then
/// the kernels for one row and for two.
const TWO_FORMATS: [([DeviceFormat; 2], [&str; 2]); 3] = [
    (
        [DeviceFormat::Q4_K, DeviceFormat::Q8_0],
        ["norm_linear_rope_stream_q4_k_q8_0", "norm_linear_rope_stream_q4_k_q8_0_m2"],
    ),
    (
        [DeviceFormat::Q4_K, DeviceFormat::Q6_K],
        ["norm_linear_rope_stream_q4_k_q6_k", "norm_linear_rope_stream_q4_k_q6_k_m2"],
    ),
    (
        [DeviceFormat::Q8_0, DeviceFormat::Q6_K],
        ["norm_linear_rope_stream_q8_0_q6_k", "norm_linear_rope_stream_q8_0_q6_k_m2"],
    ),
];

/// The kernel for so many rows.
fn kernel(
    format: DeviceFormat,
    other: Option<DeviceFormat>,
    kind: StreamKind,
    norm: bool,
    rows: usize,
) -> Option<&'static str> {
    macro_rules! by_rows {
        ($format:expr, $name:literal) => {
            if rows > 1 { named!($format, $name, "_m2") } else { named!($format, $name, "") }
        };
    }
    let kernel = match (kind, norm, other) {
        (StreamKind::Rope, true, None) => by_rows!(format, "norm_linear_rope_stream_"),
        (StreamKind::Rope, true, Some(other)) => {
            let of_two = TWO_FORMATS.iter().find(|(formats, _)| *formats == [format, other]);
            of_two.map(|(_, by_rows)| by_rows[usize::from(rows > 1)])?
        }
        (StreamKind::Plain, false, None) => by_rows!(format, "linear_stream_"),
        // There is no such kernel for two rows, because gated units of two rows always normalise them.
        (StreamKind::Glu, false, None) if rows < 2 => named!(format, "linear_glu_stream_", ""),
        (StreamKind::Plain, true, None) => by_rows!(format, "norm_linear_stream_"),
        (StreamKind::Glu, true, None) => by_rows!(format, "norm_linear_glu_stream_"),
        _ => return None,
    };
    Some(kernel)
}

/// Bytes of a format in group memory.
#[derive(Clone, Copy)]
pub(super) struct StreamedFormat {
    /// Of a row, and of its scales.
    row: usize,
    scale_row: usize,
    /// Of activations; formats of one layout share them.
    pub(super) x_bytes: usize,
    layout: u32,
    /// Of weights and scales of one plane of a stage.
    piece: usize,
    stage_scales: usize,
    effort: f64,
    /// Whether several short rows of a stage are multiplied side by side.
    pub(super) has_short_rows: bool,
}

impl StreamedFormat {
    /// Where a stage has so many planes: `StreamStage` of `kernels/linear_stream.h`. `None` where no kernel streams the
    /// format.
    pub(super) fn new(format: DeviceFormat, k: usize, planes: usize) -> Option<Self> {
        let &Streamed { layout, activation_bytes, stage, scales_of_32, scales_min, effort, has_short_rows, .. } =
            format.facts().streamed.as_ref()?;
        let piece = stage / planes;
        Some(Self {
            row: row_bytes(format, k),
            scale_row: scale_row_bytes(format, k),
            x_bytes: activation_bytes(k),
            layout,
            piece,
            stage_scales: (piece / 32 * scales_of_32).max(scales_min),
            effort,
            has_short_rows,
        })
    }

    pub(super) fn plane(self) -> usize {
        self.piece + self.stage_scales
    }

    /// The same with so many rows, where they are short, and where scales begin in it.
    pub(super) fn plane_of(self, stage_rows: usize) -> (usize, usize) {
        if stage_rows == 1 {
            return (self.piece, self.plane());
        }
        let scales_at = (stage_rows * self.row).next_multiple_of(128);
        (scales_at, scales_at + (stage_rows * self.scale_row).next_multiple_of(128))
    }

    /// Rows of a stage.
    pub(super) fn stage_rows(self) -> usize {
        let short_rows = (self.piece / self.row).min(SIMDS / 2);
        short_rows.min(self.stage_scales.checked_div(self.scale_row).unwrap_or(short_rows)).max(1)
    }
}

/// The variant for these projections, if there is one.
pub(crate) fn variant_for(site: &Site<'_>, projections: &Projections<'_>) -> Option<StreamVariant> {
    let &Projections { norm, list, .. } = projections;
    let up = list[0].up;
    let kind = if up.is_some() { StreamKind::Glu } else { StreamKind::Plain };
    // Pairs, and rows that are not normalised, have one segment there; shares of outputs are counted in 32 bits.
    let has_segments = norm.is_some() && up.is_none();
    let features = projections.features(site);
    let rows: usize = features.iter().sum();
    let workers = site.target.multiprocessors * THREADS as usize / 32;
    if (list.len() > 1 && !has_segments) || rows as u64 * (workers as u64 + 1) > u64::from(u32::MAX) {
        return None;
    }
    variant(&site.target, None, kind, norm.is_some(), projections.shape(site, &features))
}

/// Whether a kernel of so many rows lets the next one start only when the kernel ahead has ended: `next_is_late` of
/// `kernels/linear_stream.h`. In dense models an early start is faster. Kernels of more rows were not measured with a late one.
pub(crate) fn next_is_late(site: &Site<'_>, rows: usize) -> i32 {
    (site.has_experts() && rows <= ROWS_MAX).into()
}

/// Projections of one row or two; `params` has what is not theirs.
pub(crate) fn launch(
    site: &Site<'_>,
    variant: &StreamVariant,
    projections: &Projections<'_>,
    params: LinearStreamParams,
) -> Launch {
    let &Projections { x, rows, list, .. } = projections;
    let live = site.live(rows);
    let gain = projections.gain(site);
    let select = projections.select(site);
    let residual = projections.residual_region();
    let mut params = LinearStreamParams {
        x: x.region.address,
        residual: residual.address,
        rows: live.address,
        gain: gain.address,
        select: select.address,
        k: index(x.width),
        x_stride: index(x.stride / ROW_ALIGN),
        stages: index(variant.stages),
        stage_rows: index(variant.stage_rows),
        x_at: index(variant.x_at),
        ring_at: index(variant.ring_at),
        x_row: index(variant.x_row),
        residual_stride: index(projections.residual.map_or(0, |residual| residual.stride)),
        eps: projections.eps(),
        groups: index(variant.groups),
        next_is_late: next_is_late(site, site.num_rows(rows)),
        ..params
    };
    let mut operands = vec![
        (Access::Read, x.region),
        (Access::Read, residual),
        (Access::Constant, live),
        (Access::Constant, gain),
        (Access::Constant, select),
    ];
    // Where there are pairs, what is counted is pairs.
    let per_unit = if params.head_dim > 0 { 2 } else { 1 };
    for (segment, &Projection { linear, up, out }) in params.segments.iter_mut().zip(list) {
        let (weight, bias) = (site.loaded.weights.get(linear.weight), site.vector(linear.bias));
        let activation = up.map_or(0, |(_, activation)| activation as i32);
        let up = up.map(|(up, _)| (site.loaded.weights.get(up.weight), site.vector(up.bias)));
        let up_weight = up.map(|(weight, _)| (weight.values, weight.scales)).unwrap_or_default();
        let up_bias = up.map_or(Region::default(), |(_, bias)| bias);
        let constants = [weight.values, weight.scales, bias, up_weight.0, up_weight.1, up_bias];
        operands.extend(constants.map(|region| (Access::Constant, region)));
        operands.push((Access::Write, out.region));
        *segment = LinearSegment {
            weight: weight.values.address,
            scales: weight.scales.address,
            bias: bias.address,
            up: up_weight.0.address,
            up_scales: up_weight.1.address,
            up_bias: up_bias.address,
            y: out.region.address,
            y_stride: index(out.stride),
            n: index(weight.rows),
            groups: index(weight.rows / per_unit),
            activation,
            matrix_scale: weight.matrix_scale,
            up_matrix_scale: up.map_or(1.0, |(weight, _)| weight.matrix_scale),
        };
        params.units += segment.groups;
    }
    if let Some(other) = variant.other {
        let weights = list.iter().map(|projection| site.loaded.weights.get(projection.linear.weight));
        let bytes: Vec<_> = weights.map(|weight| weight.values.bytes + weight.scales.bytes).collect();
        let [before @ .., last] = &bytes[..] else { unreachable!("there are projections") };
        let workers = variant.groups * THREADS as usize / 32;
        // As many share the last as it has of the work: one at least of each.
        let last = *last as f64 * other.effort;
        let last_workers = workers as f64 * last / (before.iter().sum::<u64>() as f64 + last);
        params.first_workers = index(workers - (last_workers.round() as usize).clamp(1, workers - 1));
        params.first_units = params.units - params.segments[list.len() - 1].groups;
        params.other_x_at = index(other.x_at);
        params.other_stage_rows = index(other.stage_rows);
    }
    let group_bytes = u32::try_from(variant.group_bytes).expect("group memory is smaller than 2^32 bytes");
    let launch = Launch::new(variant.kernel, [variant.groups, 1, 1], &params).with_groups_of(THREADS, group_bytes);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

#[cfg(test)]
mod tests {
    use plan::KvFormat;

    use super::*;
    use crate::kernels::attention::{self, AttentionShape};
    use crate::target::tests::H200;

    #[test]
    fn kernels_of_a_layer_share_a_multiprocessor_two_by_two() {
        let shape = AttentionShape { rows: 1, heads: 32, kv_heads: 8, head_dim: 128, max_positions: 8192 };
        let of_attention = attention::variant(&H200, KvFormat::F16, shape).group_bytes as usize;
        for format in DeviceFormat::ALL.into_iter().filter(|format| format.facts().streamed.is_some()) {
            let of = |kind, norm, k| {
                let shape = ProjectionsShape { format, rows: 1, k, glu: false, features: &[4096] };
                variant(&H200, None, kind, norm, shape).unwrap().group_bytes
            };
            let (rope, plain) = (of(StreamKind::Rope, true, 4096), of(StreamKind::Plain, false, 14_336));
            // A multiprocessor has a KiB more than a group may have, and keeps one for each group.
            for two in [rope + of_attention, of_attention + plain, plain + rope] {
                assert!(two + (2 << 10) <= (H200.group_bytes_max as usize) + (1 << 10), "{format:?}: {two} bytes");
            }
            assert!(2 * plain > H200.group_bytes_max as usize, "two of one kernel would leave others without");
        }
        let of_two = |format, other| {
            let shape = ProjectionsShape { format, rows: 1, k: 4096, glu: false, features: &[4096, 1024, 1024] };
            variant(&H200, Some(other), StreamKind::Rope, true, shape)
        };
        let both = of_two(DeviceFormat::Q4_K, DeviceFormat::Q8_0).unwrap();
        let other = both.other.unwrap();
        assert!(both.stages > 0 && other.x_at > both.x_at && other.x_at < both.ring_at);
        assert_eq!(of_two(DeviceFormat::Q8_0, DeviceFormat::Q4_K), None);
    }
}
