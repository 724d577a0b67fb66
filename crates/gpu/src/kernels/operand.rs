//! `kernels/operand.h`: rows as the operand of a gemm, written by the kernel that makes them.

use crate::params::OperandPlace;
use crate::site::{DirectOperand, index};
use crate::weights::DeviceFormat;

/// How the numbers of a row follow each other where they meet weights of this format in a gemm: an `OperandOrder` of
/// `kernels/operand.h`.
fn operand_order(format: DeviceFormat) -> i32 {
    match format.chunk_len() {
        32 => 2,
        16 => 1,
        _ => 0,
    }
}

/// Where a kernel writes rows of `k` numbers as such an operand; nowhere without one.
pub(crate) fn place(direct: Option<DirectOperand>, k: usize) -> OperandPlace {
    direct.map_or(OperandPlace::default(), |direct| OperandPlace {
        rows: direct.rows.address,
        stride: index(k),
        order: operand_order(direct.format),
        factor: direct.factor,
        is_bf16: i32::from(direct.format == DeviceFormat::BF16),
    })
}
