//! NVFP4, 4.5 bits a weight: numbers of E2M1 where Q4_0 has codes, and a scale of one byte, E4M3, for each 16
//! (`WeightNVFP4` of `kernels/parts.h`). What a whole matrix is multiplied by besides is a parameter of kernels.

use tensor::quant::nvfp4::Block;
use tensor::{Tensor, WeightFormat};

use super::facts::{Facts, Gemm, Scales, Stored, Streamed};
use super::rows::{FileRow, every_piece, lay_out};
use super::{mxfp4, q4_0};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::NVFP4,
    stored: Stored::Usually(has_matrix_scale),
    scales: Scales::of(16, 1),
    matrix_scale: Some(matrix_scale),
    pack_row,
    streamed: Some(Streamed {
        layout: 5,
        scales_of_32: 4,
        scales_min: 256,
        has_short_rows: false,
        units_are_larger: false,
        ..mxfp4::STREAMED
    }),
    gemm: Some(Gemm::FOUR_BITS),
    ..q4_0::FACTS
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    lay_out(row.blocks::<Block>().iter().map(|block| (block.codes.as_flattened(), block.scales)), to);
}

/// Whether all blocks of a matrix have one scale, as those that are read from files do.
fn has_matrix_scale(tensor: &Tensor) -> bool {
    let scale = matrix_scale(tensor).to_bits();
    every_piece(tensor, size_of::<Block>(), |bytes| {
        bytemuck::cast_slice::<_, Block>(bytes).iter().all(|block| block.scale.to_bits() == scale)
    })
}

/// That of the first block.
fn matrix_scale(tensor: &Tensor) -> f32 {
    tensor.as_slice::<Block>().first().map_or(1.0, |block| block.scale)
}
