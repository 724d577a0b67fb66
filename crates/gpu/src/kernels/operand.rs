//! `kernels/operand.h`: rows as the operand of a gemm, written by the kernel that makes them.

use crate::formats::{DeviceFormat, OperandKind};
use crate::launch::Region;
use crate::params::{OperandPlace, PairOperand};
use crate::site::{DirectOperand, F32, index};

/// How the numbers of a row follow each other where they meet weights of this format in a gemm: an `OperandOrder` of
/// `kernels/operand.h`.
pub(crate) fn order(format: DeviceFormat) -> i32 {
    match format.facts().operand {
        OperandKind::F16 | OperandKind::BF16 => 0,
        OperandKind::ForBytes => 1,
        OperandKind::ForFourBits => 2,
    }
}

/// Where a kernel writes rows of `k` numbers as such an operand; nowhere without one.
pub(crate) fn place(direct: Option<DirectOperand>, k: usize) -> OperandPlace {
    direct.map_or(OperandPlace::default(), |direct| OperandPlace {
        rows: direct.rows.address,
        stride: index(k),
        order: order(direct.format),
        factor: direct.factor,
        is_bf16: i32::from(direct.format.facts().operand == OperandKind::BF16),
    })
}

/// Where the gated units of experts write a row of `k` numbers for each pair of a row and a slot, as the operand of
/// `kernels/sm90/experts_mma.h`.
pub(crate) fn of_pairs(direct: Option<DirectOperand>, k: usize) -> PairOperand {
    direct.map_or(PairOperand::default(), |direct| PairOperand {
        rows: direct.rows.address,
        stride: index(k),
        in_turns: i32::from(direct.format.facts().operand == OperandKind::ForFourBits),
        factor: direct.factor,
        padding: 0,
    })
}

/// Rows as a gemm takes them: 16-bit numbers, and what each row is to be multiplied by.
pub(crate) struct GemmOperand {
    pub(crate) rows: Region,
    pub(crate) scales: Region,
    pub(crate) num_rows: usize,
    pub(crate) k: usize,
    /// Numbers from row to row: whole 64s.
    pub(crate) stride: usize,
    /// What results are multiplied by where there are no scales.
    pub(crate) factor: f32,
}

impl GemmOperand {
    pub(crate) fn stride(k: usize) -> usize {
        k.next_multiple_of(64)
    }

    /// Bytes of its rows.
    pub(crate) fn row_bytes(num_rows: usize, k: usize) -> u64 {
        (num_rows * Self::stride(k) * 2) as u64
    }

    /// Bytes of all of it.
    pub(crate) fn bytes(num_rows: usize, k: usize) -> u64 {
        Self::row_bytes(num_rows, k) + num_rows as u64 * F32
    }

    pub(crate) fn new(scratch: Region, num_rows: usize, k: usize) -> Self {
        let row_bytes = Self::row_bytes(num_rows, k);
        Self {
            rows: scratch.part(0, row_bytes),
            scales: scratch.part(row_bytes, num_rows as u64 * F32),
            num_rows,
            k,
            stride: Self::stride(k),
            factor: 1.0,
        }
    }

    pub(crate) fn direct(direct: DirectOperand, num_rows: usize, k: usize) -> Self {
        let (rows, scales, factor) = (direct.rows, Region::default(), direct.factor.recip());
        Self { rows, scales, num_rows, k, stride: Self::stride(k), factor }
    }
}
