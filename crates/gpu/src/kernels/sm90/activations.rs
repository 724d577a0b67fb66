//! `kernels/sm90/activations.h`: rows become the operand of a gemm.

use crate::formats::{DeviceFormat, OperandKind};
use crate::kernels::Projections;
use crate::kernels::experts::ExpertSum;
use crate::kernels::operand::GemmOperand;
use crate::kernels::sm90::gemm::GemmVariant;
use crate::launch::{Access, Launch, Region};
use crate::params::{ActivationParams, SumActivationParams};
use crate::site::{Site, index};

/// Input features that each thread holds of rows of up to half of [`super::gemm::K_MAX`].
const THREAD_FEATURES: usize = 16;

/// The same of rows that are added up on the way, which threads hold in registers with what they add up; and features of a row.
const SUM_THREAD_FEATURES: usize = 8;
const SUM_FEATURES: usize = 4096;

/// The kernel that adds up the results of experts, normalises the rows that it makes, and makes the operand of a gemm of them.
fn sum_kernel(format: DeviceFormat) -> Option<&'static str> {
    format.facts().gemm.as_ref()?;
    Some(match format.facts().operand {
        OperandKind::F16 => "sum_norm_activations_f16",
        OperandKind::BF16 => "sum_norm_activations_bf16",
        OperandKind::ForBytes => "sum_norm_activations_q8_0",
        OperandKind::ForFourBits => "sum_norm_activations_q4",
    })
}

/// The kernels that make a gemm's operand of rows of `k` features, and their threads.
pub(crate) fn kernels(format: DeviceFormat, k: usize) -> ([&'static str; 2], u32) {
    of_kind(format.facts().operand, k)
}

fn of_kind(operand: OperandKind, k: usize) -> ([&'static str; 2], u32) {
    let [narrow, wide] = match operand {
        OperandKind::F16 => {
            [["activations_f16", "norm_activations_f16"], ["activations_wide_f16", "norm_activations_wide_f16"]]
        }
        OperandKind::BF16 => {
            [["activations_bf16", "norm_activations_bf16"], ["activations_wide_bf16", "norm_activations_wide_bf16"]]
        }
        OperandKind::ForBytes => {
            [["activations_q8_0", "norm_activations_q8_0"], ["activations_wide_q8_0", "norm_activations_wide_q8_0"]]
        }
        OperandKind::ForFourBits => {
            [["activations_q4", "norm_activations_q4"], ["activations_wide_q4", "norm_activations_wide_q4"]]
        }
    };
    with_threads(narrow, wide, k)
}

/// The same of an operand that lanes read from device memory, each what it multiplies: in the order of x, but for four bits.
pub(crate) fn kernels_by_lanes(format: DeviceFormat, k: usize) -> ([&'static str; 2], u32) {
    match format.facts().operand {
        OperandKind::ForFourBits => with_threads(
            ["activations_turns", "norm_activations_turns"],
            ["activations_wide_turns", "norm_activations_wide_turns"],
            k,
        ),
        OperandKind::ForBytes => of_kind(OperandKind::F16, k),
        in_order => of_kind(in_order, k),
    }
}

fn with_threads(narrow: [&'static str; 2], wide: [&'static str; 2], k: usize) -> ([&'static str; 2], u32) {
    let is_wide = k.div_ceil(THREAD_FEATURES) > 1024;
    let (kernels, wide) = if is_wide { (wide, true) } else { (narrow, false) };
    let features = if wide { 2 * THREAD_FEATURES } else { THREAD_FEATURES };
    (kernels, k.div_ceil(features).next_multiple_of(32) as u32)
}

/// Makes the operand of a gemm from the rows of `projections`, which are `sum`'s where there is one that still has to be added
/// up; `None` where no kernel does both.
pub(crate) fn launch(
    site: &Site<'_>,
    projections: &Projections<'_>,
    operand: &GemmOperand,
    variant: &GemmVariant,
    sum: Option<&ExpertSum>,
) -> Option<Launch> {
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
    let groups = [site.num_rows(rows), 1, 1];
    let launch = match sum {
        Some(sum) => {
            let format = projections.format(site);
            // What it makes must not lie where it reads what others made.
            let apart = operand.rows.is_apart(sum.parts) && operand.scales.is_apart(sum.parts);
            let can_be = apart && norm.is_some() && x.width <= SUM_FEATURES && x.width.is_multiple_of(4);
            let kernel = sum_kernel(format).filter(|_| can_be && select == Region::default())?;
            let threads = x.width.div_ceil(SUM_THREAD_FEATURES).next_multiple_of(32) as u32;
            let params = SumActivationParams { sum: sum.params(site), rows: params };
            sum.in_launch(site, Launch::new(kernel, groups, &params).with_groups_of(threads, 0))
        }
        None => {
            let kernel = variant.activations[usize::from(norm.is_some())];
            Launch::new(kernel, groups, &params)
                .with_groups_of(variant.activation_threads, 0)
                .with(Access::Read, x.region)
        }
    };
    let launch = launch
        .with(Access::Constant, gain)
        .with(Access::Constant, site.live(rows))
        .with(Access::Constant, select)
        .with(Access::Write, operand.rows)
        .with(Access::Write, operand.scales);
    Some(launch)
}
