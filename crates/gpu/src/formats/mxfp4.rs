//! MXFP4, 4.25 bits a weight: numbers of E2M1 where Q4_0 has codes, and a byte for each 32, the exponent of a power of
//! two (`WeightMXFP4` of `kernels/parts.h`).

use tensor::WeightFormat;
use tensor::quant::mxfp4::{BLOCK_LEN, Block};

use super::facts::{Facts, Gemm, Scales, Streamed};
use super::q4_0;
use super::rows::{FileRow, lay_out};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::MXFP4,
    scales: Scales::of(BLOCK_LEN, 1),
    pack_row,
    streamed: Some(STREAMED),
    gemm: Some(Gemm::FOUR_BITS),
    ..q4_0::FACTS
};

/// Magnitudes come from a table, by turns of the lower and the upper half of a word: activations lie accordingly.
pub(super) const STREAMED: Streamed = Streamed {
    layout: 4,
    scales_of_32: 2,
    scales_min: 128,
    rows_are_faster: false,
    units_are_larger: true,
    ..Streamed::FOUR_BITS
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    lay_out(row.blocks::<Block>().iter().map(|block| (block.codes, [block.exponent])), to);
}
