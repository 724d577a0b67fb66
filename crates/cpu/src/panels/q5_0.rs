//! Q5_0 in panels: five bits and a scale for each 32.
//!
//! Layout    352 bytes for 16 × 32 weights: 64 of the fifth bits ([`FifthBits`]), 256 of the lower four ([`Nibbles`]), 16
//!           scales.
//! Products  acc = fma(Σ (code - 16) · code of x, scale of w · scale of x, acc); the codes are multiplied as they are,
//!           from -16 · Σ codes of x on.

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q5_0;

use super::one_scale::OneScale;
use super::{FifthBits, Nibbles, five_bits_of, nibbles_of, pack_fifth_bits, pack_nibbles};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{PanelCodes, Simd};

/// The format.
pub(crate) enum Q5_0 {}

/// The codes of sixteen blocks.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// Stored first because it is read first: the prefetcher does not follow a backward jump.
    high: FifthBits,
    low: Nibbles,
}

impl OneScale for Q5_0 {
    type Block = q5_0::Block;
    type Codes = Codes;
    type Scale = f16;

    #[inline(always)]
    fn pack_row(lane: &q5_0::Block, row: usize, codes: &mut Codes) -> f16 {
        pack_nibbles(&lane.codes, row, &mut codes.low);
        pack_fifth_bits(lane.high, row, &mut codes.high);
        lane.scale
    }

    #[inline(always)]
    fn start(x: &QuantizedBlock) -> i32 {
        x.minus_128_sum >> 3
    }

    #[inline(always)]
    fn codes_of<S: Simd>(s: S, codes: &Codes, group: usize) -> S::Bytes {
        five_bits_of(s, &codes.low, &codes.high, group)
    }

    #[inline(always)]
    fn unpack_codes<S: Simd>(s: S, codes: &Codes, out: &mut PanelCodes) {
        // The fifth bit less 16: two tables would be one too many for the lower four.
        let upper = [-16i8, 0].map(|upper| upper.cast_unsigned() ^ S::PANEL_XOR);
        let upper = std::array::from_fn(|bit| upper[bit & 1]);
        for (group, out) in out.iter_mut().enumerate() {
            let low = nibbles_of(s, &codes.low, group);
            let high = s.and_bytes(s.shift_bytes_right_by(s.load_bytes(&codes.high), group as u32), 1);
            s.store_bytes(s.or_bytes(low, s.lookup(&upper, high)), out);
        }
    }
}
