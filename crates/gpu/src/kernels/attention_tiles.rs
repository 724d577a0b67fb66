//! `kernels/attention_tiles.h`: attention of many rows of a sequence together, on matrix instructions of a SIMD group.

use plan::{Attention, KvFormat, KvLayout};

use crate::forced::Kernel;
use crate::kernels::sm90::prompt_attention;
use crate::kernels::{attention, attention_prefill, operand};
use crate::launch::{Access, GROUP_THREADS, Launch};
use crate::params::AttentionParams;
use crate::site::{DeviceRows, Site};
use crate::step_input::ATTENTION_TILE_ROWS;
use crate::target::{Matrix, Target};

/// A kernel of `attention_tiles.h`, `sm90/prompt_attention.h` or `attention_prefill.simdgroup_matrix.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionTilesVariant {
    pub(crate) kernel: &'static str,
    pub(crate) threads: u32,
    pub(crate) group_bytes: u32,
    /// Groups that share the rows of a tile.
    pub(crate) parts: usize,
    /// Positions of the cache that a copy of tiles brings, where they come so; 0 elsewhere.
    pub(crate) copied_positions: usize,
}

/// The variant for many rows of a sequence, if there is one: it rounds to f16, and gives a row other bits than
/// [`attention::variant`].
pub(crate) fn variant(target: &Target, kv: &KvLayout, head_dim: usize) -> Option<AttentionTilesVariant> {
    if target.matrix == Matrix::EightByEight {
        return attention_prefill::variant(target, kv.format, head_dim);
    }
    if target.matrix == Matrix::FourSimdGroups
        && let Some(variant) = prompt_attention::variant(target, kv, head_dim)
    {
        return Some(variant);
    }
    let (kernel, dim) = match (kv.format, head_dim) {
        (KvFormat::F16, 64) => ("attention_tiles_d64", 64),
        (KvFormat::F16, 128) => ("attention_tiles_d128", 128),
        _ => return None,
    };
    // Queries, keys and values of 64 positions and of the next 64; a scale for each row, and slots.
    let group_bytes = (ATTENTION_TILE_ROWS as u32 + 4 * 64) * dim * 2 + 1024;
    let may_be = target.kernel.is_none_or(|kernel| kernel == Kernel::AttentionTiles);
    let fits = may_be && group_bytes <= target.group_bytes_max;
    fits.then_some(AttentionTilesVariant { kernel, threads: GROUP_THREADS, group_bytes, parts: 1, copied_positions: 0 })
}

/// Many rows of a sequence, together.
pub(crate) fn launch(site: &Site<'_>, q: DeviceRows, of: &Attention, out: DeviceRows, tiles: usize) -> Launch {
    let layer = site.loaded.cache.layers[of.layer].layer;
    let variant = variant(&site.loaded.target.of("attention"), &site.loaded.cache.layout, layer.head_dim)
        .expect("there are tiles where there is a kernel");
    let params = AttentionParams {
        num_items: site.step.num_tiles.address,
        items: site.step.tiles.address,
        operand: operand::place(site.writes, out.width),
        ..attention::params(site, q, of, out)
    };
    let groups = [of.heads, tiles, variant.parts];
    let launch = match variant.copied_positions {
        0 => attention::launch_of(site, variant.kernel, groups, &params, q, of),
        _ => prompt_attention::launch(site, &variant, groups, params, q, of),
    };
    launch
        .with_groups_of(variant.threads, variant.group_bytes)
        .with(Access::Constant, site.step.num_tiles)
        .with(Access::Constant, site.step.tiles)
}
