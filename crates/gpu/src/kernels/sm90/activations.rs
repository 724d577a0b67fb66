//! `kernels/sm90/activations.h`: rows become the operand of a gemm.

use crate::kernels::Projections;
use crate::kernels::operand::GemmOperand;
use crate::kernels::sm90::gemm::GemmVariant;
use crate::launch::{Access, Launch};
use crate::params::ActivationParams;
use crate::site::{Site, index};
use crate::weights::DeviceFormat;

/// Input features that each thread holds of rows of up to half of [`super::gemm::K_MAX`].
const THREAD_FEATURES: usize = 16;

/// The kernels that make a gemm's operand of rows of `k` features, and their threads.
pub(crate) fn kernels(format: DeviceFormat, k: usize) -> ([&'static str; 2], u32) {
    let [narrow, wide] = match (format.chunk_len(), format) {
        (32, _) => [["activations_q4", "norm_activations_q4"], ["activations_wide_q4", "norm_activations_wide_q4"]],
        (16, _) => {
            [["activations_q8_0", "norm_activations_q8_0"], ["activations_wide_q8_0", "norm_activations_wide_q8_0"]]
        }
        (_, DeviceFormat::BF16) => {
            [["activations_bf16", "norm_activations_bf16"], ["activations_wide_bf16", "norm_activations_wide_bf16"]]
        }
        _ => [["activations_f16", "norm_activations_f16"], ["activations_wide_f16", "norm_activations_wide_f16"]],
    };
    with_threads(narrow, wide, k)
}

/// The same of an operand that lanes read from device memory, each what it multiplies: in the order of x, but for four bits.
pub(crate) fn kernels_by_lanes(format: DeviceFormat, k: usize) -> ([&'static str; 2], u32) {
    match format.chunk_len() {
        32 => with_threads(
            ["activations_turns", "norm_activations_turns"],
            ["activations_wide_turns", "norm_activations_wide_turns"],
            k,
        ),
        16 => kernels(DeviceFormat::F16, k),
        _ => kernels(format, k),
    }
}

fn with_threads(narrow: [&'static str; 2], wide: [&'static str; 2], k: usize) -> ([&'static str; 2], u32) {
    let is_wide = k.div_ceil(THREAD_FEATURES) > 1024;
    let (kernels, wide) = if is_wide { (wide, true) } else { (narrow, false) };
    let features = if wide { 2 * THREAD_FEATURES } else { THREAD_FEATURES };
    (kernels, k.div_ceil(features).next_multiple_of(32) as u32)
}

/// Makes the operand of a gemm from the rows of `projections`.
pub(crate) fn launch(
    site: &Site<'_>,
    projections: &Projections<'_>,
    operand: &GemmOperand,
    variant: &GemmVariant,
) -> Launch {
    let &Projections { x, rows, norm, .. } = projections;
    let gain = projections.gain(site);
    let select = projections.select(site);
    let params = ActivationParams {
        x: x.region.address,
        gain: gain.address,
        rows: site.live(rows).address,
        select: select.address,
        y: operand.rows.address,
        row_scales: operand.scales.address,
        k: index(x.width),
        x_stride: index(x.stride),
        y_stride: index(operand.stride),
        eps: projections.eps(),
        copies: 1,
        waits: 0,
    };
    let kernel = variant.activations[usize::from(norm.is_some())];
    Launch::new(kernel, [site.num_rows(rows), 1, 1], &params)
        .with_groups_of(variant.activation_threads, 0)
        .with(Access::Read, x.region)
        .with(Access::Constant, gain)
        .with(Access::Constant, site.live(rows))
        .with(Access::Constant, select)
        .with(Access::Write, operand.rows)
        .with(Access::Write, operand.scales)
}
