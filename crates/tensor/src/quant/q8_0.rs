//! Q8_0: blocks of 32 weights, each a signed byte times the block's binary16 scale.
//!
//! Layout    34 bytes: `scale` (f16, little endian), then 32 codes (i8). Weight j is `scale * codes[j]`.
//! Packing   `scale = max|w| / 127` rounded to f16; `code = round(w / scale)`, halves away from zero.
//! Error     |w - scale * code| <= scale / 2 for every weight, up to the rounding of the scale itself.
//! Source    the GGUF specification (ggml `block_q8_0`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::fit::{inverse, rounded};
use super::{PackedBlock, Packing};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every code is multiplied by.
    pub scale: f16,
    /// The weights, in units of `scale`.
    pub codes: [i8; BLOCK_LEN],
}

const _: () = assert!(size_of::<Block>() == 34 && align_of::<Block>() == 2);

impl Block {
    /// Writes the weights that the block stands for to the first 32 of `weights`.
    pub(super) fn write(&self, weights: &mut [f32]) {
        weights[..BLOCK_LEN].copy_from_slice(&unpack(self));
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    /// There is nothing to search for: at eight bits the largest weight decides.
    fn pack(weights: &[f32], _: Packing<'_>) -> Self {
        pack(weights.first_chunk().expect("whole blocks"))
    }

    fn scale_sum(&self) -> f32 {
        self.scale.to_f32()
    }

    fn unpack(&self, weights: &mut [f32]) {
        self.write(weights);
    }

    fn to_q8_0(&self, blocks: &mut [Self]) {
        blocks[0] = *self;
    }
}

/// Packs 32 weights. Non-finite weights have no meaning here: they pack to an undefined (but valid) block.
pub fn pack(weights: &[f32; BLOCK_LEN]) -> Block {
    let max = weights.iter().fold(0f32, |max, w| max.max(w.abs()));
    let scale = max / 127.0;
    let inverse = inverse(scale);
    Block { scale: f16::from_f32(scale), codes: weights.map(|w| rounded(w * inverse)) }
}

/// The 32 weights that `block` stands for, exactly.
pub fn unpack(block: &Block) -> [f32; BLOCK_LEN] {
    let scale = block.scale.to_f32();
    block.codes.map(|code| scale * f32::from(code))
}

/// Packs a row; `None` when its length is not a multiple of [`BLOCK_LEN`].
pub fn pack_row(row: &[f32]) -> Option<Vec<Block>> {
    let (blocks, rest) = row.as_chunks::<BLOCK_LEN>();
    rest.is_empty().then(|| blocks.iter().map(pack).collect())
}
