//! `kernels/head_linear.h`: each head of a row by a matrix of its own.

use plan::Experts;

use crate::formats::DeviceFormat;
use crate::kernels::experts;
use crate::launch::{Access, GROUP_SIMDS, Launch, Region};
use crate::params::HeadLinearParams;
use crate::site::{DeviceRows, Site, index};
use crate::target::Target;
use crate::weights::DeviceExperts;

/// Output features of a SIMD group: four lanes make one.
const OUTPUTS: usize = 8;

/// Rows that share what is read of a matrix, where they do.
const ROWS: usize = 4;

/// Rows that each read the matrices for themselves, at most: the second cache has them, and a group of four rows folds partial
/// results of all of them before its first product.
const ALONE_MAX: usize = 4;

/// The same of rows whose columns have an order: those of several rows are asked for together.
const ORDERED_ALONE_MAX: usize = 1;

/// What a launch is made of, whatever its kernel gets the rows from.
pub(crate) struct HeadLaunch {
    pub(crate) params: HeadLinearParams,
    /// Outputs, rows and heads, a group for so many of each.
    pub(crate) groups: [usize; 3],
    pub(crate) format: DeviceFormat,
    /// Rows of a group, and its SIMD groups.
    pub(crate) group_rows: usize,
    pub(crate) simds: usize,
    stack: DeviceExperts,
    operands: [(Access, Region); 3],
}

impl HeadLaunch {
    /// Of rows of `x`; of those columns, where an order is given. A group of several rows has `simds` SIMD groups.
    pub(crate) fn new(
        site: &Site<'_>,
        x: DeviceRows,
        columns: Option<usize>,
        heads: &Experts,
        out: DeviceRows,
        simds: usize,
    ) -> Self {
        let stack = site.loaded.weights.stack(heads);
        let of_stack = experts::stack_params(&stack);
        let alone_max = if columns.is_some() { ORDERED_ALONE_MAX } else { ALONE_MAX };
        let columns = columns.map_or(Region::default(), |order| site.loaded.orders[order]);
        let (n, rows) = (stack.first.rows, site.num_rows(x.rows));
        let one = is_alone(&site.target, &stack, rows, alone_max);
        let (simds, group_rows) = if one { (GROUP_SIMDS, 1) } else { (simds, ROWS) };
        let groups = [n.div_ceil(OUTPUTS * simds), rows.div_ceil(group_rows), stack.count];
        let params = HeadLinearParams {
            weight: of_stack.weight,
            scales: of_stack.scales,
            bias: of_stack.bias,
            matrix_scales: of_stack.matrix_scales,
            x: x.region.address,
            columns: columns.address,
            rows: site.live(x.rows).address,
            y: out.region.address,
            n: index(n),
            k: index(stack.first.row_len),
            stride: of_stack.stride,
            bias_stride: of_stack.bias_stride,
            x_stride: index(x.stride),
            y_stride: index(out.stride),
            heads: index(stack.count),
            groups: index(groups[0]),
        };
        let operands =
            [(Access::Constant, columns), (Access::Constant, site.live(x.rows)), (Access::Write, out.region)];
        Self { params, groups, format: stack.first.format, group_rows, simds, stack, operands }
    }

    /// Whether a group has one row.
    pub(crate) fn has_one_row(&self) -> bool {
        self.group_rows == 1
    }

    /// A launch with its weights and result among the operands; the rows are others'.
    pub(crate) fn with_operands(&self, launch: Launch) -> Launch {
        let launch = self.operands.iter().fold(launch, |launch, &(access, region)| launch.with(access, region));
        experts::with_stack(launch, &self.stack)
    }
}

/// Whether each of so many rows reads the matrices for itself, which is usual for up to `alone_max`.
fn is_alone(target: &Target, stack: &DeviceExperts, rows: usize, alone_max: usize) -> bool {
    if rows == 1 {
        return true;
    }
    let key = || {
        let DeviceExperts { first, count, .. } = stack;
        let kernel = named!(first.format, "head_linear_", "");
        format!("{kernel} rows={rows} heads={count} k={} n={}", first.row_len, first.rows)
    };
    let label = |alone: &bool| format!("rows={}", if *alone { 1 } else { ROWS });
    let usual = rows <= alone_max;
    target.tuned.pick(key, vec![usual, !usual], label, 0).expect("the usual way is among them")
}

/// What the matrices of `heads` make of each row of `x`.
pub(crate) fn launch(site: &Site<'_>, x: DeviceRows, heads: &Experts, out: DeviceRows) -> Launch {
    let of = HeadLaunch::new(site, x, None, heads, out, GROUP_SIMDS);
    let format = of.format;
    let kernel =
        if of.has_one_row() { named!(format, "head_linear_", "_m1") } else { named!(format, "head_linear_", "_m4") };
    of.with_operands(Launch::new(kernel, of.groups, &of.params).with(Access::Read, x.region))
}
