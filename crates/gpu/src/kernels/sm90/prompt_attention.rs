//! `kernels/sm90/prompt_attention.h`: attention of many rows of a sequence together, on matrix instructions of four SIMD
//! groups.

use std::mem::offset_of;

use plan::{Attention, KvFormat, KvLayout};

use crate::kernels::attention;
use crate::kernels::attention_tiles::AttentionTilesVariant;
use crate::launch::{Element, Launch, Region, TileMap};
use crate::params::{AttentionParams, PromptParams};
use crate::site::{DeviceRows, Site, index};
use crate::step_input::ATTENTION_TILE_ROWS;
use crate::target::Target;

pub(crate) const THREADS: u32 = 384;

/// Barriers, scales of rows, and sums of threads.
const HEADER: usize = 2048;

/// Stages of keys, and of values.
const STAGES: usize = 2;

/// Features of a tile of queries, keys or values.
const TILE_FEATURES: usize = 64;

/// Positions of a step: of wide heads fewer, whose sums take more registers.
fn positions(head_dim: usize) -> usize {
    if head_dim > 128 { 64 } else { 128 }
}

/// The variant, if there is one for these heads.
pub(crate) fn variant(target: &Target, kv: &KvLayout, head_dim: usize) -> Option<AttentionTilesVariant> {
    let kernel = match (kv.format, head_dim) {
        (KvFormat::F16, 64) => "prompt_attention_d64",
        (KvFormat::F16, 80) => "prompt_attention_d80",
        (KvFormat::F16, 96) => "prompt_attention_d96",
        (KvFormat::F16, 128) => "prompt_attention_d128",
        (KvFormat::F16, 192) => "prompt_attention_d192",
        (KvFormat::F16, 256) => "prompt_attention_d256",
        _ => return None,
    };
    let copied_positions = copied_positions(kv.block_len);
    let group_bytes = group_bytes(head_dim, head_dim, positions(head_dim));
    let may_be = target.kernel.is_none() && copied_positions >= COPIED_POSITIONS_MIN;
    (may_be && group_bytes <= target.group_bytes_max as usize).then_some(AttentionTilesVariant {
        kernel,
        threads: THREADS,
        group_bytes: group_bytes as u32,
        parts: 1,
        copied_positions,
    })
}

/// Eight rows of a tile are swizzled together.
pub(crate) const COPIED_POSITIONS_MIN: usize = 8;

/// Positions that a copy of tiles brings: those of a block, or a part of them.
pub(crate) fn copied_positions(block_len: usize) -> usize {
    (1 << block_len.trailing_zeros()).min(64)
}

/// Bytes of group memory for heads of so many features of queries and keys, and of values, with stages of so many positions.
pub(crate) fn group_bytes(keys: usize, values: usize, positions: usize) -> usize {
    let [keys, values] = [keys, values].map(|features| features.div_ceil(TILE_FEATURES) * 2 * TILE_FEATURES);
    HEADER + keys * ATTENTION_TILE_ROWS + (keys + values) * STAGES * positions
}

/// A launch of it, with the operands that all kernels of attention have.
pub(crate) fn launch(
    site: &Site<'_>,
    variant: &AttentionTilesVariant,
    groups: [usize; 3],
    of: AttentionParams,
    q: DeviceRows,
    attention: &Attention,
) -> Launch {
    let cache = &site.loaded.cache.layers[attention.layer];
    let head_dim = cache.layer.head_dim;
    let tiles = |at, plane| rows_map(at, plane, head_dim, variant.copied_positions);
    let maps =
        vec![tiles(offset_of!(PromptParams, keys), cache.keys), tiles(offset_of!(PromptParams, values), cache.values)];
    // A window's first step begins where the tile's first row sees it, unless bits must not depend on what rows are beside.
    let align = if site.target.batch_invariant { positions(head_dim) } else { variant.copied_positions };
    let params =
        PromptParams { of, chunk: index(variant.copied_positions), align: index(align), ..PromptParams::default() };
    Launch { maps, ..attention::launch_of(site, variant.kernel, groups, &params, q, attention) }
}

/// Rows of `width` numbers in F16, of which a copy brings a tile of features of so many `rows`.
pub(crate) fn rows_map(at: usize, of: Region, width: usize, rows: usize) -> TileMap {
    let row_bytes = (width * KvFormat::F16.bytes()) as u64;
    TileMap {
        at,
        address: of.address,
        element: Element::F16,
        dims: vec![width as u64, of.bytes / row_bytes],
        strides: vec![row_bytes],
        tile: vec![TILE_FEATURES as u32, rows as u32],
        swizzled: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn blocks_of_the_cache_are_copied_in_tiles_of_eight_positions_or_more() {
        let copied = |block_len| {
            let kv = KvLayout { format: KvFormat::F16, block_len, num_blocks: 1 };
            variant(&H200, &kv, 128).map(|variant| variant.copied_positions)
        };
        assert_eq!([8, 24, 32, 48, 64, 256].map(copied), [8, 8, 32, 16, 64, 64].map(Some));
        assert_eq!([1, 5, 12, 20].map(copied), [None; 4]);
    }
}
