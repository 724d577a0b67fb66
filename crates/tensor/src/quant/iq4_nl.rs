//! IQ4_NL: blocks of 32 weights of four bits that name one of 16 levels, and one scale.
//!
//! Layout    18 bytes: `scale` (f16), 16 bytes of codes as in Q4_0.
//! Meaning   `weight = scale · LEVELS[code]`.
//! Source    the GGUF specification (ggml `block_iq4_nl`).

use bytemuck::{Pod, Zeroable};
use half::f16;

use super::{PackedBlock, packed::halves, q8_0};

/// Weights in one block.
pub const BLOCK_LEN: usize = 32;

/// One block as it lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Block {
    /// What every level is multiplied by.
    pub scale: f16,
    /// The codes, two a byte.
    pub codes: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18 && align_of::<Block>() <= 2);

/// What codes stand for: closer together around zero, where weights are.
pub const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl Block {
    fn levels(&self) -> [i8; BLOCK_LEN] {
        halves(&self.codes).map(|code| LEVELS[usize::from(code)])
    }
}

impl PackedBlock for Block {
    const LEN: usize = BLOCK_LEN;

    fn unpack(&self, weights: &mut [f32]) {
        q8_0::Block { scale: self.scale, codes: self.levels() }.write(weights);
    }

    fn to_q8_0(&self, blocks: &mut [q8_0::Block]) {
        blocks[0] = q8_0::Block { scale: self.scale, codes: self.levels() };
    }
}
