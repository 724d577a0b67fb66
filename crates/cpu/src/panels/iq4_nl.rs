//! IQ4_NL in panels: four bits that name one of 16 levels, and a scale for each 32.
//!
//! Layout    288 bytes for 16 × 32 weights: 256 of codes ([`Nibbles`]), 16 scales.
//! Products  acc = fma(Σ level · code of x, scale of w · scale of x, acc); levels are multiplied plus 127, so that none
//!           is negative, from -127 · Σ codes of x on.

use half::f16;
use tensor::quant::iq4_nl;

use super::one_scale::OneScale;
use super::{Nibbles, nibbles_of, pack_nibbles, shifted, unpack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PanelCodes, Simd};

/// The format.
#[expect(non_camel_case_types, reason = "this is the published name")]
pub(crate) enum IQ4_NL {}

/// The levels, plus 127.
pub(super) const SHIFTED: [u8; 16] = shifted(&iq4_nl::LEVELS, 127);

impl OneScale for IQ4_NL {
    type Block = iq4_nl::Block;
    type Codes = Nibbles;
    type Scale = f16;

    const IS_WIDE: bool = true;

    #[inline(always)]
    fn pack_row(lane: &iq4_nl::Block, row: usize, codes: &mut Nibbles) -> f16 {
        pack_nibbles(&lane.codes, row, codes);
        lane.scale
    }

    #[inline(always)]
    fn start(x: &QuantizedBlock) -> i32 {
        x.minus_128_sum + x.sum()
    }

    #[inline(always)]
    fn codes_of<S: Simd>(s: S, codes: &Nibbles, group: usize) -> S::Bytes {
        s.lookup(&SHIFTED, nibbles_of(s, codes, group))
    }

    #[inline(always)]
    fn unpack_codes<S: Simd>(s: S, codes: &Nibbles, out: &mut PanelCodes) {
        unpack_nibbles(s, codes, &iq4_nl::LEVELS, out);
    }
}
