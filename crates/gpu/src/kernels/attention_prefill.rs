//! `kernels/attention_prefill.simdgroup_matrix.h`: [`super::attention_tiles`] on matrices of 8 by 8.

use plan::KvFormat;

use crate::kernels::attention_tiles::AttentionTilesVariant;
use crate::step_input::ATTENTION_TILE_ROWS;
use crate::target::Target;

/// Rows of a group .
const GROUP_ROWS: usize = 64;

/// The variant, if there is one for these heads.
pub(crate) fn variant(target: &Target, format: KvFormat, head_dim: usize) -> Option<AttentionTilesVariant> {
    let (kernel, dim) = match (format, head_dim) {
        (KvFormat::F16, 64) => ("attention_prefill_d64", 64),
        (KvFormat::F16, 128) => ("attention_prefill_d128", 128),
        _ => return None,
    };
    // Keys and values of 32 positions; scores, weights and a diagonal matrix of eight SIMD groups. The kernel declares
    // them.
    let memory = 2 * 32 * (dim + 8) * 2 + 8 * (8 * 32 * (4 + 2) + 8 * 8 * 4);
    let fits = target.kernel.is_none() && !target.batch_invariant && memory <= target.group_bytes_max;
    let parts = ATTENTION_TILE_ROWS / GROUP_ROWS;
    fits.then_some(AttentionTilesVariant { kernel, threads: 256, group_bytes: 0, parts, copied_positions: 0 })
}
