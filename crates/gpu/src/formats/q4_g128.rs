//! Q4_0 whose scales are the same for each 128 weights, 4.125 bits a weight: codes as of Q4_0, and a scale of two bytes
//! for each 128 (`WeightQ4G128` of `kernels/parts.h`). Files of INT4 in such groups are read as Q4_0.

use half::f16;
use tensor::Tensor;
use tensor::quant::q4_0::{BLOCK_LEN, Block};

use super::facts::{Facts, Scales, Stored, Streamed};
use super::q4_0;
use super::rows::{FileRow, every_piece, lay_out};

/// Blocks of the file that share a scale.
pub(super) const GROUP_BLOCKS: usize = 4;

/// Weights of those.
pub(super) const GROUP_LEN: usize = GROUP_BLOCKS * BLOCK_LEN;

pub(super) const FACTS: Facts = Facts {
    stored: Stored::Where(has_groups_of_128),
    // 32 bytes are what memory is read in, and a piece of a row has no more.
    scales: Scales { filled_to: 32, ..Scales::of(GROUP_LEN, size_of::<f16>()) },
    pack_row,
    streamed: Some(Streamed { scales_of_32: 1, scales_min: 128, ..Streamed::FOUR_BITS }),
    ..q4_0::FACTS
};

fn pack_row(row: FileRow<'_>, to: [&mut [u8]; 2]) {
    let of_group = |group: &[Block; GROUP_BLOCKS]| {
        let codes = group.map(|block| block.codes);
        (bytemuck::cast::<_, [u8; GROUP_LEN / 2]>(codes), group[0].scale.to_le_bytes())
    };
    lay_out(row.blocks().iter().map(of_group), to);
}

/// Whether the scales of a matrix in Q4_0 are the same for each 128 weights. Most matrices say no in their first row.
fn has_groups_of_128(tensor: &Tensor) -> bool {
    const GROUP_BYTES: usize = GROUP_BLOCKS * size_of::<Block>();
    if !tensor.row_len().is_multiple_of(GROUP_LEN) {
        return false;
    }
    let is_group = |bytes: &[u8]| {
        let blocks = bytemuck::cast_slice::<_, Block>(bytes);
        blocks.iter().all(|block| block.scale.to_bits() == blocks[0].scale.to_bits())
    };
    every_piece(tensor, GROUP_BYTES, |bytes| bytes.chunks(GROUP_BYTES).all(is_group))
}
