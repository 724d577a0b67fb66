//! `kernels/elementwise.h`: results whose every element is made of one element of each operand.

use plan::Activation;

use crate::launch::{Access, GROUP_THREADS, Launch, Region};
use crate::params::ElementwiseParams;
use crate::site::{DeviceRows, Site, index};

/// The second operand of a kernel of elements.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SecondOperand {
    Rows(DeviceRows),
    /// Which rows or columns of the first, i32.
    Indices(Region),
}

/// Makes `out` of `a` and of what stands beside it.
pub(crate) fn launch(
    site: &Site<'_>,
    kernel: &'static str,
    a: DeviceRows,
    other: SecondOperand,
    activation: Option<Activation>,
    out: DeviceRows,
) -> Launch {
    // Of `combine`, as many as the second operand has columns.
    let (b_region, b_stride, select, terms) = match other {
        SecondOperand::Rows(b) => (b.region, b.stride, Region::default(), a.width / out.width),
        SecondOperand::Indices(select) => (Region::default(), 0, select, 0),
    };
    let terms = if terms > 1 || kernel == "combine_f32" { index(terms) } else { 0 };
    let params = ElementwiseParams {
        a: a.region.address,
        b: b_region.address,
        rows: site.live(out.rows).address,
        select: select.address,
        y: out.region.address,
        width: index(out.width),
        a_stride: index(a.stride),
        b_stride: index(b_stride),
        y_stride: index(out.stride),
        activation: activation.map_or(0, |activation| activation as i32),
        terms,
    };
    Launch::new(kernel, [out.width.div_ceil(GROUP_THREADS as usize), site.num_rows(out.rows), 1], &params)
        .with(Access::Read, a.region)
        .with(Access::Read, b_region)
        .with(Access::Constant, site.live(out.rows))
        .with(Access::Constant, select)
        .with(Access::Write, out.region)
}
