//! `kernels/experts.h`: projections by the experts of each row, without matrix instructions.

use plan::{Activation, Experts};

use crate::launch::{Access, GROUP_SIMDS, Launch, Region};
use crate::params::{ExpertStack, ExpertsParams};
use crate::site::{DeviceRows, Site, index};
use crate::weights::{DeviceExperts, DeviceFormat};

/// Output features of a group.
const OUTPUTS: usize = 2 * GROUP_SIMDS;

/// What is computed of a row's experts.
#[derive(Clone, Copy)]
pub(crate) enum ExpertsKind {
    /// The projection of each.
    Linear,
    /// The gated unit of each: of these up projections too.
    Glu(Experts, Activation),
    /// The weighted sum of the projections, and a residual.
    Down { weights: DeviceRows, residual: DeviceRows },
}

/// The weights of a stack as kernels are told.
pub(crate) fn stack_params(stack: &DeviceExperts) -> ExpertStack {
    ExpertStack {
        weight: stack.first.values.address,
        scales: stack.first.scales.address,
        bias: stack.biases.address,
        matrix_scales: stack.matrix_scales.address,
        stride: i32::try_from(stack.stride / 16).expect("an expert has fewer than 2^35 bytes"),
        bias_stride: index(stack.bias_stride as usize / size_of::<f32>()),
    }
}

/// A launch with the weights of a stack among its operands.
pub(crate) fn with_stack(launch: Launch, stack: &DeviceExperts) -> Launch {
    let launch = launch.with(Access::Constant, stack.all).with(Access::Constant, stack.biases);
    launch.with(Access::Constant, stack.matrix_scales)
}

/// What the experts `ids` of each row of `x` make of it.
pub(crate) fn launch(
    site: &Site<'_>,
    x: DeviceRows,
    ids: DeviceRows,
    experts: &Experts,
    kind: ExpertsKind,
    out: DeviceRows,
) -> Launch {
    let stack = site.loaded.weights.stack(experts);
    let (n, k, slots) = (stack.first.rows, stack.first.row_len, ids.width);
    let mut params = ExpertsParams {
        stack: stack_params(&stack),
        x: x.region.address,
        ids: ids.region.address,
        rows: site.live(out.rows).address,
        y: out.region.address,
        n: index(n),
        k: index(k),
        slots: index(slots),
        experts: index(stack.count),
        x_stride: index(x.stride),
        x_slot: if x.width == k { 0 } else { index(k) },
        ids_stride: index(ids.stride),
        y_stride: index(out.stride),
        ..ExpertsParams::default()
    };
    let format = stack.first.format;
    let (mut up_stack, mut of_weights, mut of_residual) = (None, Region::default(), Region::default());
    let (kernel, in_groups) = match kind {
        ExpertsKind::Linear => (named!(format, "expert_linear_", ""), slots),
        ExpertsKind::Glu(up, activation) => {
            let up = site.loaded.weights.stack(&up);
            debug_assert!(up.first.format == format, "`supports` refuses others");
            params.up = stack_params(&up);
            params.activation = activation as i32;
            up_stack = Some(up);
            (named!(format, "expert_glu_", ""), slots)
        }
        ExpertsKind::Down { weights, residual } => {
            (params.weights, params.weights_stride) = (weights.region.address, index(weights.stride));
            (params.residual, params.residual_stride) = (residual.region.address, index(residual.stride));
            (of_weights, of_residual) = (weights.region, residual.region);
            (named!(format, "expert_down_", ""), 1)
        }
    };
    let launch = Launch::new(kernel, [n.div_ceil(OUTPUTS), site.num_rows(out.rows), in_groups], &params)
        .with(Access::Read, x.region)
        .with(Access::Read, ids.region)
        .with(Access::Read, of_weights)
        .with(Access::Read, of_residual)
        .with(Access::Constant, site.live(out.rows))
        .with(Access::Write, out.region);
    let launch = with_stack(launch, &stack);
    up_stack.iter().fold(launch, with_stack)
}
