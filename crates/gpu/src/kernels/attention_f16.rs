//! `kernels/attention_f16.h`: attention of single rows over a cache in f16, on matrix instructions.

use plan::KvFormat;

use crate::forced::Kernel;
use crate::kernels::attention::{AttentionShape, AttentionVariant, Cut, MIN_TILES, WHOLE_TILES};
use crate::target::{Matrix, Target};

/// Bytes that a group keeps on their way, what each SIMD group found, and those of the group itself.
const TILES_BYTES: u32 = 96 << 10;

const SIMD_BYTES: u32 = 64;

const GROUP_BYTES: u32 = 16;

/// Bytes of a group of so many SIMD groups.
pub(crate) fn group_bytes(simds: u32) -> u32 {
    TILES_BYTES + simds * SIMD_BYTES + GROUP_BYTES
}

/// The variant, if there is one for these heads on this device.
pub(crate) fn variant(target: &Target, format: KvFormat, shape: AttentionShape) -> Option<AttentionVariant> {
    let has_matrix = target.matrix >= Matrix::SimdGroup && group_bytes(4) <= target.group_bytes_max;
    let [four, four_loop, eight] = match (format, shape.head_dim) {
        _ if target.kernel == Some(Kernel::Attention) || !has_matrix => return None,
        (KvFormat::F16, 64) => ["attention_f16_d64", "attention_f16_d64_loop", "attention_f16_d64_wide"],
        (KvFormat::F16, 128) => ["attention_f16_d128", "attention_f16_d128_loop", "attention_f16_d128_wide"],
        _ => return None,
    };
    let heads = 8;
    let cut = Cut::new(target, shape, heads);
    let wide = !target.batch_invariant
        && cut.rows * cut.groups_of_row <= target.multiprocessors
        && group_bytes(8) <= target.group_bytes_max;
    let (kernel, simds) = match (wide, cut.loops) {
        (true, _) => (eight, 8),
        (false, true) => (four_loop, 4),
        (false, false) => (four, 4),
    };
    Some(AttentionVariant {
        kernel,
        heads,
        dim: shape.head_dim,
        threads: simds * 32,
        group_bytes: group_bytes(simds),
        // One for each of four fifths of the multiprocessors: with more, memory is slower. Beside other rows heads of
        // 64 have twice as many: a group has half as many bytes of them to read, and two fit a multiprocessor.
        max_splits: cut
            .max_splits(target.multiprocessors * if shape.head_dim == 64 && cut.rows > 1 { 8 } else { 4 } / 5),
        min_tiles: MIN_TILES,
        whole_tiles: WHOLE_TILES,
        loops: cut.loops,
        cluster: 1,
    })
}
