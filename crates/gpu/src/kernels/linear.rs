//! `kernels/linear.h`: projections without matrix instructions, and the parameters that other projections share with
//! it.

use crate::formats::DeviceFormat;
use crate::kernels::{Projection, Projections, gemm_simdgroup};
use crate::launch::{Access, GROUP_SIMDS, Launch, Region};
use crate::params::{LinearParams, LinearSegment};
use crate::site::{ROW_ALIGN, Site, index};
use crate::target::Target;

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

/// The variant for up to `rows` rows.
pub(crate) fn variant(target: &Target, format: DeviceFormat, rows: usize, kind: LinearKind) -> LinearVariant {
    if let Some(gemm) = gemm_simdgroup::variant(target, format, rows, kind == LinearKind::Glu) {
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

/// Projections of the same rows by weights of one format, as many as one launch takes. Only one row is normalised on
/// the way.
pub(crate) fn launch(site: &Site<'_>, projections: &Projections<'_>) -> Launch {
    let rows = site.num_rows(projections.rows);
    let kind = match (projections.norm.is_some(), projections.list[0].up.is_some()) {
        (false, false) => LinearKind::Plain,
        (false, true) => LinearKind::Glu,
        (true, false) => LinearKind::Norm,
        (true, true) => LinearKind::NormGlu,
    };
    let variant = variant(&site.target, projections.format(site), rows, kind);
    let (params, operands) = params(site, variant.outputs, projections);
    let groups = params.segments.iter().map(|segment| segment.groups as usize).sum();
    let launch = Launch::new(variant.kernel, [groups, rows.div_ceil(variant.rows), 1], &params);
    operands.into_iter().fold(launch, |launch, (access, region)| launch.with(access, region))
}

/// The parameters of `linear` where a group makes so many `outputs`, and its operands.
pub(crate) fn params(
    site: &Site<'_>,
    outputs: usize,
    projections: &Projections<'_>,
) -> (LinearParams, Vec<(Access, Region)>) {
    let &Projections { x, rows, list, residual, .. } = projections;
    let gain = projections.gain(site);
    let select = projections.select(site);
    let residual_region = projections.residual_region();
    let mut params = LinearParams {
        x: x.region.address,
        residual: residual_region.address,
        rows: site.live(rows).address,
        gain: gain.address,
        select: select.address,
        k: index(x.width),
        x_stride: index(x.stride / ROW_ALIGN),
        residual_stride: index(residual.map_or(0, |residual| residual.stride)),
        eps: projections.eps(),
        ..LinearParams::default()
    };
    let mut operands = vec![
        (Access::Read, x.region),
        (Access::Read, residual_region),
        (Access::Constant, site.live(rows)),
        (Access::Constant, gain),
        (Access::Constant, select),
    ];
    let format = projections.format(site);
    for (segment, &Projection { linear, up, out }) in params.segments.iter_mut().zip(list) {
        let weight = site.loaded.weights.get(linear.weight);
        debug_assert!(weight.format == format, "a launch has weights of one format");
        let bias = site.vector(linear.bias);
        operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
        operands.push((Access::Write, out.region));
        *segment = LinearSegment {
            weight: weight.values.address,
            scales: weight.scales.address,
            bias: bias.address,
            y: out.region.address,
            n: index(weight.rows),
            groups: index(weight.rows.div_ceil(outputs)),
            y_stride: index(out.stride),
            matrix_scale: weight.matrix_scale,
            ..LinearSegment::default()
        };
        if let Some((up, activation)) = up {
            let (weight, bias) = (site.loaded.weights.get(up.weight), site.vector(up.bias));
            operands.extend([weight.values, weight.scales, bias].map(|region| (Access::Constant, region)));
            segment.up = weight.values.address;
            segment.up_scales = weight.scales.address;
            segment.up_bias = bias.address;
            segment.up_matrix_scale = weight.matrix_scale;
            segment.activation = activation as i32;
        }
    }
    (params, operands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn one_row_has_kernels_of_its_own() {
        for format in DeviceFormat::ALL {
            for kind in [LinearKind::Plain, LinearKind::Glu] {
                let (one, more) = (variant(&H200, format, 1, kind), variant(&H200, format, 2, kind));
                assert!(one.kernel.ends_with("_m1") && one.rows == 1, "{one:?}");
                assert!(more.kernel.ends_with("_m4") && more.rows == 4, "{more:?}");
                assert_eq!(one.kernel.contains("glu"), kind == LinearKind::Glu);
                assert!(one.kernel.contains(&format!("{format:?}").to_lowercase()));
            }
            assert!(variant(&H200, format, 1, LinearKind::NormGlu).kernel.starts_with("norm_linear_glu_"));
        }
    }
}
