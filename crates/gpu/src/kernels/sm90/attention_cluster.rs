//! `kernels/sm90/attention_cluster.h`: attention of one row or two, beside projections that stream, folded in group memory.

use plan::KvFormat;

use crate::kernels::attention::{AttentionShape, AttentionVariant, Cut};
use crate::kernels::{attention_f16, linear_stream};
use crate::target::{Matrix, Target};

/// Splits of a cluster: `CLUSTER_SPLITS` of the kernel.
const SPLITS: usize = 8;

/// Clusters of a row and a group of its heads, at most. More were not tried.
const CLUSTERS_MAX: usize = 4;

/// Groups of a row's heads, at most. A row with more groups has fewer splits for each. Then steps behind some thousand positions
/// are up to 5 % slower than with `attention_f16`.
const GROUPS_MAX: usize = 4;

/// The variant for one row or two, where the projections ahead and behind stream in one group a multiprocessor. They leave registers
/// for eight SIMD groups with heads of 64, or for four with heads of 128. So attention starts beside the projections ahead, and
/// asks for its tiles while they still multiply.
pub(crate) fn variant(target: &Target, format: KvFormat, shape: AttentionShape) -> Option<AttentionVariant> {
    let usual = attention_f16::variant(target, format, shape)?;
    let is_beside = target.matrix == Matrix::FourSimdGroups && target.kernel.is_none() && !target.batch_invariant;
    if !is_beside || shape.rows > linear_stream::ROWS_MAX || usual.max_splits == 1 {
        return None;
    }
    let (kernel, simds) = if usual.dim == 64 { ("attention_cluster_d64", 8) } else { ("attention_cluster_d128", 4) };
    let cut = Cut::new(target, shape, usual.heads);
    if cut.groups_of_row > GROUPS_MAX {
        return None;
    }
    let max_splits = target.multiprocessors / (cut.rows * cut.groups_of_row);
    Some(AttentionVariant {
        kernel,
        threads: simds * 32,
        group_bytes: attention_f16::group_bytes(simds),
        max_splits: max_splits.clamp(1, cut.most.min(SPLITS * CLUSTERS_MAX)),
        // A tile for each SIMD group.
        min_tiles: simds as usize,
        whole_tiles: simds as usize,
        cluster: SPLITS,
        ..usual
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::H200;

    #[test]
    fn one_row_or_two_of_few_groups_are_folded_in_clusters() {
        let of = |target: &Target, rows, kv_heads, head_dim, max_positions| {
            let shape = AttentionShape { rows, heads: kv_heads * 8, kv_heads, head_dim, max_positions };
            variant(target, KvFormat::F16, shape).map(|variant| (variant.kernel, variant.max_splits, variant.cluster))
        };
        assert_eq!(of(&H200, 1, 4, 128, 8192), Some(("attention_cluster_d128", 32, 8)));
        assert_eq!(of(&H200, 2, 4, 128, 8192), Some(("attention_cluster_d128", 16, 8)));
        assert_eq!(of(&H200, 1, 2, 64, 8192), Some(("attention_cluster_d64", 32, 8)));
        assert_eq!(of(&H200, 1, 8, 128, 8192), None, "too many groups");
        assert_eq!(of(&H200, 3, 4, 128, 8192), None, "too many rows");
        assert_eq!(of(&H200, 1, 4, 128, 96), None, "nothing is cut");
        assert_eq!(of(&H200, 1, 4, 256, 8192), None, "no kernel for these heads");
        let invariant = Target { batch_invariant: true, ..H200 };
        assert_eq!(of(&invariant, 1, 4, 128, 8192), None);
        let older = Target { matrix: Matrix::SimdGroup, ..H200 };
        assert_eq!(of(&older, 1, 4, 128, 8192), None);
    }
}
