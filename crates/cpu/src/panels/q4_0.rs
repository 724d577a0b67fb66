//! Q4_0 in panels: four bits and a scale for each 32.
//!
//! Layout    288 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales.
//! Products  acc = fma(Σ (code - 8) · code of x, scale of w · scale of x, acc); the codes are multiplied as they are, from
//!           -8 · Σ codes of x on.

use half::f16;
use tensor::quant::q4_0;

use super::one_scale::OneScale;
use super::{LESS_8, Nibbles, nibbles_of, pack_nibbles, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PanelCodes, Simd};

/// The format.
pub(crate) enum Q4_0 {}

impl OneScale for Q4_0 {
    type Block = q4_0::Block;
    type Codes = Nibbles;
    type Scale = f16;

    const HAS_ALL_TILES: bool = true;

    #[inline(always)]
    fn pack_row(lane: &q4_0::Block, row: usize, codes: &mut Nibbles) -> f16 {
        // Weights j and j + 16 share a byte in the file, too.
        pack_nibbles(&lane.codes, row, codes);
        lane.scale
    }

    #[inline(always)]
    fn start(x: &QuantizedBlock) -> i32 {
        x.minus_128_sum >> 4
    }

    #[inline(always)]
    fn codes_of<S: Simd>(s: S, codes: &Nibbles, group: usize) -> S::Bytes {
        nibbles_of(s, codes, group)
    }

    #[inline(always)]
    fn unpack_codes<S: Simd>(s: S, codes: &Nibbles, out: &mut PanelCodes) {
        unpack_nibbles(s, codes, &LESS_8, out);
    }
}
