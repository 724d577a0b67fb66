//! Q8_0, 8.5 bits a weight: codes of all rows, and a scale of two bytes for each 32 (`WeightQ8_0` of
//! `kernels/parts.h`). Matrices in formats without kernels are rounded to it.

use half::f16;
use tensor::quant::q8_0::{BLOCK_LEN, Block};
use tensor::{ActivationRounding, WeightFormat};

use super::facts::{Batch, Facts, Gemm, OperandKind, Scales, Stored, Streamed};
use super::rows::{FileRow, lay_out};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::Q8_0,
    stored: Stored::Always,
    chunk_len: 16,
    scales: Scales::of(BLOCK_LEN, size_of::<f16>()),
    matrix_scale: None,
    pack_row,
    rounding: ActivationRounding::Q8Blocks,
    operand: OperandKind::ForBytes,
    streamed: Some(Streamed::BYTES),
    batch: Some(Batch { features: 128, stage_bytes: 4352 }),
    gemm: Some(Gemm::BYTES),
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    let mut blocks = vec![Block { scale: f16::ZERO, codes: [0; BLOCK_LEN] }; row.tensor.row_len() / BLOCK_LEN];
    row.tensor.format().to_q8_0(row.bytes(), &mut blocks);
    let codes = |codes| bytemuck::cast::<[i8; BLOCK_LEN], [u8; BLOCK_LEN]>(codes);
    lay_out(blocks.iter().map(|block| (codes(block.codes), block.scale.to_le_bytes())), to);
}
