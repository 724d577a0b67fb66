//! `kernels/weight_norms.h`: the largest norm of a matrix's rows.

use crate::formats::DeviceFormat;
use crate::launch::{Access, Launch, Region};
use crate::params::WeightNormsParams;
use crate::site::index;
use crate::weights::DeviceWeight;

fn kernel(format: DeviceFormat) -> &'static str {
    named!(format, "weight_norms_", "")
}

/// The largest squared norms of rows of `weight`, each column multiplied by `gain`: one number for each SIMD group of
/// each of `groups`, in `found`.
pub(crate) fn launch(weight: &DeviceWeight, gain: Region, groups: usize, found: Region) -> Launch {
    let params = WeightNormsParams {
        weight: weight.values.address,
        scales: weight.scales.address,
        gain: gain.address,
        y: found.address,
        n: index(weight.rows),
        k: index(weight.row_len),
        groups: index(groups),
        matrix_scale: weight.matrix_scale,
    };
    Launch::new(kernel(weight.format), [groups, 1, 1], &params)
        .with(Access::Constant, weight.values)
        .with(Access::Constant, weight.scales)
        .with(Access::Constant, gain)
        .with(Access::Write, found)
}
