//! Q4_0, 4.5 bits a weight: codes of all rows, 16 bytes for each 32 as files have them, and a scale of two bytes for
//! each 32 (`WeightQ4_0` of `kernels/parts.h`).

use half::f16;
use tensor::quant::q4_0::{BLOCK_LEN, Block};
use tensor::{ActivationRounding, WeightFormat};

use super::facts::{Facts, Gemm, OperandKind, Scales, Stored, Streamed};
use super::rows::{FileRow, lay_out};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::Q4_0,
    stored: Stored::Always,
    chunk_len: 32,
    scales: Scales::of(BLOCK_LEN, size_of::<f16>()),
    matrix_scale: None,
    pack_row,
    rounding: ActivationRounding::Q8Blocks,
    operand: OperandKind::ForFourBits,
    streamed: Some(Streamed::FOUR_BITS),
    batch: None,
    gemm: Some(Gemm::PLAIN_FOUR_BITS),
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    lay_out(row.blocks::<Block>().iter().map(|block| (block.codes, block.scale.to_le_bytes())), to);
}
