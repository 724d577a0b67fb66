//! Q5_0 in panels: five bits and a scale for each 32.
//!
//! Layout    352 bytes for 16 × 32 weights: 64 of the fifth bits ([`FifthBits`]), 256 of the lower four ([`Nibbles`]), 16
//!           scales.
//! Products  acc = fma(Σ (code - 16) · code of x, scale of w · scale of x, acc); the codes are multiplied as they are,
//!           from -16 · Σ codes of x on.

use bytemuck::{Pod, Zeroable};
use half::f16;
use tensor::quant::q5_0;

use super::tiles::Scaled;
use super::{
    Ahead, FifthBits, Nibbles, PanelFormat, blocks_at, dots, five_bits_of, nibbles_of, pack_fifth_bits, pack_nibbles,
};
use crate::kernels::quantize::QuantizedBlock;
use crate::simd::{LANES, PANEL_ROWS, PanelCodes, Simd};

/// The format.
pub(crate) enum Q5_0 {}

/// The codes of sixteen blocks.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Codes {
    /// First, because it is read first: a jump back is none that the processor sees coming.
    high: FifthBits,
    low: Nibbles,
}

impl PanelFormat for Q5_0 {
    type Block = q5_0::Block;
    type Codes = Codes;
    type Scales = [f16; LANES];
    type Tile = Scaled;

    const X_BLOCKS: usize = 1;

    #[inline(always)]
    fn pack<S: Simd>(_: S, lanes: [&q5_0::Block; PANEL_ROWS], codes: &mut Codes, scales: &mut [f16; LANES]) {
        for (row, lane) in lanes.iter().enumerate() {
            scales[row] = lane.scale;
            pack_nibbles(&lane.codes, row, &mut codes.low);
            pack_fifth_bits(lane.high, row, &mut codes.high);
        }
    }

    #[inline(always)]
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Codes, &[f16; LANES]); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        mut sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR] {
        ahead.ask::<S, Self>(s, 0);
        let x = blocks_at(x, 0);
        let dots = dots!(s, x, 0..8, |x| x.minus_128_sum >> 3, |p, group| {
            five_bits_of(s, &panels[p].0.low, &panels[p].0.high, group)
        });
        for m in 0..MR {
            let x_scale = s.splat(x[m].scale);
            for p in 0..NP {
                let scale = s.mul(s.load_f16(panels[p].1), x_scale);
                sums[m][p] = s.mul_add(s.to_f32(dots[m][p]), scale, sums[m][p]);
            }
        }
        sums
    }

    #[inline(always)]
    fn unpack<S: Simd>(
        s: S,
        codes: &Codes,
        scales: &[f16; LANES],
        _: usize,
        out: &mut PanelCodes,
        out_scales: &mut [f32; LANES],
    ) {
        // The fifth bit less 16: two tables would be one too many for the lower four.
        let upper = [-16i8, 0].map(|upper| upper.cast_unsigned() ^ S::PANEL_XOR);
        let upper = std::array::from_fn(|bit| upper[bit & 1]);
        for (group, out) in out.iter_mut().enumerate() {
            let low = nibbles_of(s, &codes.low, group);
            let high = s.and_bytes(s.shift_bytes_right_by(s.load_bytes(&codes.high), group as u32), 1);
            s.store_bytes(s.or_bytes(low, s.lookup(&upper, high)), out);
        }
        s.store(s.load_f16(scales), out_scales);
    }
}
