//! Q5_0: blocks of 32 weights of five bits and one scale.
//!
//! Layout    22 bytes: `scale` (f16), 4 bytes of fifth bits (bit j of the little-endian word is of weight j), 16 bytes of the
//!           lower four as in Q4_0.
//! Meaning   `weight = scale · (code - 16)`.
//! Source    the GGUF specification (ggml `block_q5_0`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::{PackedBlock, packed::halves, q8_0};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every code is multiplied by.
    pub scale: f16,
    /// The fifth bit of each code.
    pub high: [u8; 4],
    /// The lower four bits, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 22 && align_of::<Block>() <= 2);

impl Block {
    fn codes(&self) -> [i8; BLOCK_LEN] {
        let (low, high) = (halves(&self.codes), u32::from_le_bytes(self.high));
        std::array::from_fn(|j| (low[j] | ((high >> j & 1) as u8) << 4) as i8 - 16)
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn unpack(&self, weights: &mut [f32]) {
        q8_0::Block { scale: self.scale, codes: self.codes() }.write(weights);
    }

    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        blocks[0] = q8_0::Block { scale: self.scale, codes: self.codes() };
    }
}
