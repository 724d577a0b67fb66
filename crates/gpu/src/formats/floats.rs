//! F32, F16 and BF16: numbers as files have them, without scales (`WeightF32`, `WeightF16` and `WeightBF16` of
//! `kernels/parts.h`). Vectors are F32 whatever they are in files.

use tensor::{ActivationRounding, WeightFormat};

use super::facts::{Batch, Facts, Gemm, OperandKind, Scales, Stored, Streamed};
use super::rows::{FileRow, lay_out};
use crate::launch::Element;

/// Only plain kernels have F32: few files have matrices in it.
pub(super) const F32: Facts = Facts {
    weight_format: WeightFormat::F32,
    stored: Stored::Always,
    chunk_len: 4,
    scales: Scales::NONE,
    matrix_scale: None,
    pack_row: pack_f32_row,
    rounding: ActivationRounding::F32,
    operand: OperandKind::F16,
    streamed: None,
    batch: None,
    gemm: None,
};

pub(super) const F16: Facts = Facts {
    weight_format: WeightFormat::F16,
    chunk_len: 8,
    pack_row: |row, to| lay_out([(row.bytes(), [])].into_iter(), to),
    rounding: ActivationRounding::F16,
    streamed: Some(Streamed::BITS_16),
    batch: Some(Batch { features: 64, stage_bytes: 4096 }),
    gemm: Some(Gemm::of_16_bits(Element::F16)),
    ..F32
};

pub(super) const BF16: Facts = Facts {
    weight_format: WeightFormat::BF16,
    rounding: ActivationRounding::BF16,
    operand: OperandKind::BF16,
    gemm: Some(Gemm::of_16_bits(Element::BF16)),
    ..F16
};

/// A row of any format, as vectors are in files too.
fn pack_f32_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    let mut floats = vec![0f32; row.tensor.row_len()];
    row.tensor.row_to_f32(row.index, &mut floats);
    lay_out([(bytemuck::cast_slice::<_, u8>(&floats), [])].into_iter(), to);
}
