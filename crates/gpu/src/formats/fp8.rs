//! FP8, 8.5 bits a weight: numbers of E4M3 where Q8_0 has codes, and its scales (`WeightFP8` of `kernels/parts.h`).

use tensor::WeightFormat;
use tensor::quant::fp8::Block;

use super::facts::{Facts, Streamed};
use super::q8_0;
use super::rows::{FileRow, lay_out};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::FP8,
    pack_row,
    streamed: Some(Streamed {
        layout: 2,
        // Pairs of f16, whole 1024s of them, then scales.
        activation_bytes: |k| k.next_multiple_of(1024) * 2 + k / 8,
        ..Streamed::BYTES
    }),
    batch: None,
    ..q8_0::FACTS
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    lay_out(row.blocks::<Block>().iter().map(|block| (block.codes, block.scale.to_le_bytes())), to);
}
