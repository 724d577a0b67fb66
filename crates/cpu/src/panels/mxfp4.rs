//! MXFP4 in panels: floating-point numbers of four bits and a power of two for each 32.
//!
//! Layout    288 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales in bf16, which has every half of a
//!           power.
//! Products  acc = fma(Σ doubled number · code of x, scale of w · scale of x, acc); doubled numbers are multiplied plus
//!           12, so that none is negative, from -12 · Σ codes of x on.

use half::bf16;
use tensor::quant::mxfp4;

use super::one_scale::OneScale;
use super::{Nibbles, nibbles_of, pack_nibbles, shifted, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PanelCodes, Simd};

/// The format.
pub(crate) enum MXFP4 {}

/// The doubled numbers, plus 12.
const SHIFTED: [u8; 16] = shifted(&mxfp4::DOUBLED, 12);

impl OneScale for MXFP4 {
    type Block = mxfp4::Block;
    type Codes = Nibbles;
    type Scale = bf16;

    #[inline(always)]
    fn pack_row(lane: &mxfp4::Block, row: usize, codes: &mut Nibbles) -> bf16 {
        pack_nibbles(&lane.codes, row, codes);
        bf16::from_f32(lane.scale())
    }

    #[inline(always)]
    fn start(x: &QuantizedBlock) -> i32 {
        -12 * x.sum()
    }

    #[inline(always)]
    fn codes_of<S: Simd>(s: S, codes: &Nibbles, group: usize) -> S::Bytes {
        s.lookup(&SHIFTED, nibbles_of(s, codes, group))
    }

    #[inline(always)]
    fn unpack_codes<S: Simd>(s: S, codes: &Nibbles, out: &mut PanelCodes) {
        unpack_nibbles(s, codes, &mxfp4::DOUBLED, out);
    }
}
