//! `kernels/weight_norms.h`: the largest norm of a matrix's rows.

use crate::formats::DeviceFormat;
use crate::kernels::experts;
use crate::launch::{Access, Launch, Region};
use crate::params::WeightNormsParams;
use crate::site::index;
use crate::weights::{DeviceExperts, DeviceWeight};

fn kernel(format: DeviceFormat) -> &'static str {
    named!(format, "weight_norms_", "")
}

/// The largest squared norms of rows of `weight`, each column multiplied by `gain`: one number for each SIMD group of
/// each of `groups`, in `found`.
pub(crate) fn launch(weight: &DeviceWeight, gain: Region, groups: usize, found: Region) -> Launch {
    launch_of(weight, WeightNormsParams { experts: 1, ..WeightNormsParams::default() }, gain, groups, found)
}

/// The same of the matrices of all experts of a stack.
pub(crate) fn of_stack(stack: &DeviceExperts, gain: Region, groups: usize, found: Region) -> Launch {
    let params = WeightNormsParams {
        matrix_scales: stack.matrix_scales.address,
        experts: index(stack.count),
        stride: experts::stack_params(stack).stride,
        ..WeightNormsParams::default()
    };
    experts::with_stack(launch_of(&stack.first, params, gain, groups, found), stack)
}

fn launch_of(weight: &DeviceWeight, params: WeightNormsParams, gain: Region, groups: usize, found: Region) -> Launch {
    let params = WeightNormsParams {
        weight: weight.values.address,
        scales: weight.scales.address,
        gain: gain.address,
        y: found.address,
        n: index(weight.rows),
        k: index(weight.row_len),
        groups: index(groups),
        matrix_scale: weight.matrix_scale,
        ..params
    };
    Launch::new(kernel(weight.format), [groups, 1, 1], &params)
        .with(Access::Constant, weight.values)
        .with(Access::Constant, weight.scales)
        .with(Access::Constant, gain)
        .with(Access::Write, found)
}
