//! Which kernel computes what: the one place that knows the variants of an op and what each is for.

use plan::KvFormat;
use tensor::WeightFormat;

use crate::launch::GROUP_SIMDS;

/// A variant of `linear`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinearVariant {
    pub(crate) kernel: &'static str,
    /// Rows of activations that a group multiplies.
    pub(crate) rows: usize,
    /// Output features of a group.
    pub(crate) outputs: usize,
}

/// The variant for up to `rows` rows; with `glu`, of gate and up at once.
pub(crate) fn linear(format: WeightFormat, rows: usize, glu: bool) -> LinearVariant {
    let one = rows == 1;
    let kernel = match (format, glu, one) {
        (WeightFormat::F32, false, true) => "linear_f32_m1",
        (WeightFormat::F32, false, false) => "linear_f32_m4",
        (WeightFormat::F32, true, true) => "linear_glu_f32_m1",
        (WeightFormat::F32, true, false) => "linear_glu_f32_m4",
        (WeightFormat::F16, false, true) => "linear_f16_m1",
        (WeightFormat::F16, false, false) => "linear_f16_m4",
        (WeightFormat::F16, true, true) => "linear_glu_f16_m1",
        (WeightFormat::F16, true, false) => "linear_glu_f16_m4",
        (WeightFormat::BF16, false, true) => "linear_bf16_m1",
        (WeightFormat::BF16, false, false) => "linear_bf16_m4",
        (WeightFormat::BF16, true, true) => "linear_glu_bf16_m1",
        (WeightFormat::BF16, true, false) => "linear_glu_bf16_m4",
        (WeightFormat::Q8_0, false, true) => "linear_q8_0_m1",
        (WeightFormat::Q8_0, false, false) => "linear_q8_0_m4",
        (WeightFormat::Q8_0, true, true) => "linear_glu_q8_0_m1",
        (WeightFormat::Q8_0, true, false) => "linear_glu_q8_0_m4",
    };
    LinearVariant { kernel, rows: if one { 1 } else { 4 }, outputs: 2 * GROUP_SIMDS }
}

pub(crate) fn embed(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::F32 => "embed_f32",
        WeightFormat::F16 => "embed_f16",
        WeightFormat::BF16 => "embed_bf16",
        WeightFormat::Q8_0 => "embed_q8_0",
    }
}

/// The kernels that read or write a cache of one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvKernels {
    pub(crate) rope_kv_write: &'static str,
    pub(crate) kv_write: &'static str,
    pub(crate) combine: &'static str,
}

pub(crate) fn kv(format: KvFormat) -> KvKernels {
    match format {
        KvFormat::F32 => {
            KvKernels { rope_kv_write: "rope_kv_write_f32", kv_write: "kv_write_f32", combine: "attention_combine_f32" }
        }
        KvFormat::F16 => {
            KvKernels { rope_kv_write: "rope_kv_write_f16", kv_write: "kv_write_f16", combine: "attention_combine_f16" }
        }
    }
}

/// How `attention` is cut into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionVariant {
    pub(crate) kernel: &'static str,
    /// Query heads of a group.
    pub(crate) heads: usize,
    /// Groups that share the splits of a row, each result going to `attention_combine`; 0: one group takes all splits.
    pub(crate) split_groups: usize,
}

/// Positions of a split, as in `kernels/attention.h`.
const ATTENTION_SPLIT: usize = 256;
/// Groups that fill a device: two for each multiprocessor of the largest known. Guessed.
const DEVICE_GROUPS: usize = 264;
/// Rows above which partial results take more memory than they are worth.
const SPLIT_ROWS_MAX: usize = 16;

/// Splits of a sequence of `max_positions`.
pub(crate) fn attention_splits(max_positions: usize) -> usize {
    max_positions.div_ceil(ATTENTION_SPLIT)
}

/// The variant for up to `rows` rows of `heads` on `kv_heads`, over up to `max_positions`.
pub(crate) fn attention(
    format: KvFormat,
    (rows, heads, kv_heads): (usize, usize, usize),
    max_positions: usize,
) -> AttentionVariant {
    let heads_of_group = 4;
    let groups = rows * kv_heads * (heads / kv_heads).div_ceil(heads_of_group);
    let splits = attention_splits(max_positions);
    let split = splits > 1 && rows <= SPLIT_ROWS_MAX && groups < DEVICE_GROUPS;
    AttentionVariant {
        kernel: match format {
            KvFormat::F32 => "attention_f32",
            KvFormat::F16 => "attention_f16",
        },
        heads: heads_of_group,
        split_groups: if split { DEVICE_GROUPS.div_ceil(groups).min(splits) } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_has_kernels_of_its_own() {
        for format in WeightFormat::ALL {
            for glu in [false, true] {
                let (one, more) = (linear(format, 1, glu), linear(format, 2, glu));
                assert!(one.kernel.ends_with("_m1") && one.rows == 1, "{one:?}");
                assert!(more.kernel.ends_with("_m4") && more.rows == 4, "{more:?}");
                assert_eq!(one.kernel.contains("glu"), glu);
                assert!(one.kernel.contains(&format.name().to_lowercase()));
            }
        }
    }

    #[test]
    fn attention_is_split_where_rows_do_not_fill_the_device() {
        let groups = |rows, max_positions| attention(KvFormat::F16, (rows, 32, 8), max_positions).split_groups;
        assert_eq!(groups(1, 256), 0);
        assert_eq!(groups(1, 8192), 32);
        assert_eq!(groups(1, 131_072), 17 * 2 - 1);
        assert_eq!(groups(16, 8192), 3);
        assert_eq!(groups(17, 8192), 0);
    }
}
