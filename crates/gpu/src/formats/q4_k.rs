//! Q4_K, 4.5 bits a weight: codes as of Q4_0, and 16 bytes for each 256, in which kernels find the scale and the
//! minimum of each 32 by shifts alone (`WeightQ4_K` and `ScaleQ4_K` of `kernels/parts.h`).

use tensor::WeightFormat;
use tensor::quant::q4_k::{BLOCK_LEN, Block};

use super::facts::{Facts, Gemm, Scales};
use super::q4_0;
use super::rows::{FileRow, lay_out};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::Q4_K,
    scales: Scales::of(BLOCK_LEN, 16),
    pack_row,
    gemm: Some(Gemm::FOUR_BITS),
    ..q4_0::FACTS
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    let codes = |block: &Block| {
        let (halves, _) = block.codes.as_chunks();
        let split: [_; BLOCK_LEN / 64] = std::array::from_fn(|i| split_halves(&halves[i]));
        bytemuck::cast::<_, [u8; BLOCK_LEN / 2]>(split)
    };
    lay_out(row.blocks().iter().map(|block| (codes(block), scales(block))), to);
}

/// 64 codes, j beside j + 32, as two blocks of 32, each with j beside j + 16.
fn split_halves(codes: &[u8; 32]) -> [u8; 32] {
    let mut split = [0; 32];
    for j in 0..16 {
        let (low, high) = (codes[j], codes[j + 16]);
        split[j] = low & 15 | high << 4;
        split[j + 16] = low >> 4 | high & 0xf0;
    }
    split
}

/// What 256 weights are scaled by, as `ScaleQ4_K` of `kernels/parts.h` reads it.
fn scales(block: &Block) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&block.scale.to_le_bytes());
    bytes[2..4].copy_from_slice(&block.minimum.to_le_bytes());
    for (i, (scale, minimum)) in block.scales_and_minima().into_iter().enumerate() {
        bytes[4 + i] = scale & 15 | minimum << 4;
        bytes[12 + i / 2] |= (scale >> 4 | minimum >> 4 << 2) << (i % 2 * 4);
    }
    bytes
}
