//! `kernels/gemm.simdgroup_matrix.h`: projections of many rows on matrices of 8 by 8.

use crate::forced::Kernel;
use crate::formats::DeviceFormat;
use crate::kernels::linear::LinearVariant;
use crate::target::{Matrix, Target};

/// Rows from which on a projection is a gemm on matrices of 8 by 8, and rows of the smaller of its tiles. With as many,
/// reading the weights for each four takes as long as multiplying by a whole tile should: by arithmetic, not measured.
const ROWS_MIN: usize = 5;

const TILE_ROWS: usize = 32;

/// Bytes of group memory of the larger: as `GemmTiles` in `kernels/gemm.simdgroup_matrix.h`.
const GROUP_BYTES: u32 = 2 * (64 + 64) * 20 * 4;

/// The gemm for up to `rows` rows on matrices of 8 by 8, if there is one.
pub(crate) fn variant(target: &Target, format: DeviceFormat, rows: usize, glu: bool) -> Option<LinearVariant> {
    let other = target.kernel.is_some_and(|kernel| kernel != Kernel::Gemm);
    if target.matrix != Matrix::EightByEight
        || target.batch_invariant
        || other
        || rows < ROWS_MIN
        || GROUP_BYTES > target.group_bytes_max
    {
        return None;
    }
    let is_small = rows <= TILE_ROWS;
    let kernel = match (glu, is_small) {
        (false, true) => named!(format, "gemm_simdgroup_", "_t32"),
        (false, false) => named!(format, "gemm_simdgroup_", "_t64"),
        (true, true) => named!(format, "gemm_simdgroup_glu_", "_t32"),
        (true, false) => named!(format, "gemm_simdgroup_glu_", "_t64"),
    };
    let rows = if is_small { TILE_ROWS } else { 2 * TILE_ROWS };
    Some(LinearVariant { kernel, rows, outputs: if glu { 32 } else { 64 } })
}
