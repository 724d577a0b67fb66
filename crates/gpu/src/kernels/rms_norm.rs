//! `kernels/rms_norm.h`.

use plan::Norm;

use crate::launch::{Access, Launch};
use crate::params::RmsNormParams;
use crate::site::{DeviceRows, Site, index};

/// Normalises slices of the rows of `x` that are as wide as the norm: all rows, or those that are outputs where `out`
/// has only these.
pub(crate) fn launch(site: &Site<'_>, x: DeviceRows, norm: Norm, out: DeviceRows) -> Launch {
    let gain = site.vector(Some(norm.weight));
    let width = site.loaded.weights.get(norm.weight).row_len;
    let select = site.select(x.rows, out.rows);
    let params = RmsNormParams {
        x: x.region.address,
        gain: gain.address,
        rows: site.live(out.rows).address,
        select: select.address,
        y: out.region.address,
        width: index(width),
        slices: index(x.width / width),
        x_stride: index(x.stride),
        y_stride: index(out.stride),
        eps: norm.eps,
        padding: 0,
    };
    Launch::new("rms_norm_f32", [x.width / width, site.num_rows(out.rows), 1], &params)
        .with(Access::Read, x.region)
        .with(Access::Constant, gain)
        .with(Access::Constant, site.live(out.rows))
        .with(Access::Constant, select)
        .with(Access::Write, out.region)
}
