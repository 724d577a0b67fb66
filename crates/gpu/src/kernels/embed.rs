//! `kernels/embed.h`: rows of a table.

use plan::WeightId;

use crate::formats::DeviceFormat;
use crate::launch::{Access, GROUP_THREADS, Launch};
use crate::params::EmbedParams;
use crate::site::{DeviceRows, Site, index};

fn kernel(format: DeviceFormat) -> &'static str {
    named!(format, "embed_", "")
}

/// The rows of `table` that the step's token ids name.
pub(crate) fn launch(site: &Site<'_>, table: WeightId, out: DeviceRows) -> Launch {
    let table = site.loaded.weights.get(table);
    let params = EmbedParams {
        table: table.values.address,
        scales: table.scales.address,
        ids: site.step.token_ids.address,
        rows: site.live(out.rows).address,
        chosen: site.loaded.chosen.address,
        y: out.region.address,
        k: index(out.width),
        stride: index(out.stride),
        matrix_scale: table.matrix_scale,
        padding: 0,
    };
    // A thread takes a chunk of 4 weights or more.
    let groups = out.width.div_ceil(4).div_ceil(GROUP_THREADS as usize);
    Launch::new(kernel(table.format), [groups, site.num_rows(out.rows), 1], &params)
        .with(Access::Constant, table.values)
        .with(Access::Constant, table.scales)
        .with(Access::Constant, site.step.token_ids)
        .with(Access::Constant, site.live(out.rows))
        .with(Access::Read, site.loaded.chosen)
        .with(Access::Write, out.region)
}
