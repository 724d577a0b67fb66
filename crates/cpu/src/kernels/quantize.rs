//! `quantize`: a row of activations as blocks of 32 signed bytes with an f32 scale, the other operand of weights in blocks.
//!
//! Shapes    x (k,), k % 32 == 0; k / 32 blocks.
//! Accuracy  scale s = max|x| / 127 of the block, code = x / s to nearest even: |x - s · code| <= s / 2 · (1 + 2⁻²²).
//!           So an output of a projection is off by at most Σ over blocks of s / 2 · Σ|w|, plus the rounding of
//!           `linear_blocks`, from the same projection of unrounded activations.
//! Edge      a block with a NaN or an infinity has scale NaN, so the whole row of outputs is NaN, as it would be in floats;
//!           a block whose largest value is below 127 · 2⁻¹²⁶ counts as zero.
//! Versions  every level, from one text: a block is two vectors, and four blocks go side by side.

use crate::simd::{LANES, Simd};

/// Values in a block, as in the weights.
pub(crate) const BLOCK_LEN: usize = tensor::quant::q8_0::BLOCK_LEN;

/// One block of quantised activations.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4))]
pub(crate) struct QuantizedBlock {
    /// The activations in units of `scale`, in [-127, 127].
    pub(crate) codes: [i8; BLOCK_LEN],
    /// What every code is multiplied by.
    pub(crate) scale: f32,
    /// -128 · Σ codes: undoes the shift of weights to unsigned bytes.
    pub(crate) minus_128_sum: i32,
    /// scale · Σ codes: what a minimum of 32 weights is multiplied by.
    pub(crate) scaled_sum: f32,
    /// Σ codes of each sixteen.
    pub(crate) half_sums: [i16; 2],
}

const _: () = assert!(size_of::<QuantizedBlock>() == 48);

impl QuantizedBlock {
    /// A block of `codes`, none of them -128.
    #[cfg(test)]
    pub(crate) fn new(codes: [i8; BLOCK_LEN], scale: f32) -> Self {
        let half_sums = [0, LANES].map(|first| codes[first..first + LANES].iter().map(|&code| i16::from(code)).sum());
        let sum: i32 = half_sums.iter().map(|&sum| i32::from(sum)).sum();
        Self { codes, scale, minus_128_sum: -128 * sum, scaled_sum: scale * sum as f32, half_sums }
    }

    /// Σ codes.
    #[inline(always)]
    pub(crate) fn sum(&self) -> i32 {
        -(self.minus_128_sum >> 7)
    }

    /// Codes 4 · `group` to 4 · `group` + 4 as one word.
    #[inline(always)]
    pub(crate) fn four(&self, group: usize) -> i32 {
        let [a, b, c, d] = self.codes.as_chunks::<4>().0[group].map(i8::cast_unsigned);
        i32::from_le_bytes([a, b, c, d])
    }
}

/// Blocks that are quantised side by side: what crosses lanes is then done for four vectors at a time.
const SIDE_BY_SIDE: usize = 4;

/// Quantises `x` into `out`, a block for each 32 values.
#[inline(always)]
pub(crate) fn quantize_row<S: Simd>(s: S, x: &[f32], out: &mut [QuantizedBlock]) {
    let (blocks, rest) = x.as_chunks::<BLOCK_LEN>();
    debug_assert!(rest.is_empty() && blocks.len() == out.len());
    let (fours, few) = blocks.as_chunks::<SIDE_BY_SIDE>();
    let (out_fours, out_few) = out.as_chunks_mut::<SIDE_BY_SIDE>();
    if is_finite(s, x) {
        for (x, out) in fours.iter().zip(out_fours) {
            quantize_blocks(s, x, out, [true; SIDE_BY_SIDE]);
        }
        for (x, out) in few.iter().zip(out_few) {
            quantize_blocks(s, std::array::from_ref(x), std::array::from_mut(out), [true]);
        }
    } else {
        for (x, out) in blocks.iter().zip(out) {
            quantize_blocks(s, std::array::from_ref(x), std::array::from_mut(out), [is_finite(s, x)]);
        }
    }
}

/// Whether `x`, whole vectors, has neither a NaN nor an infinity: 0 · x is not zero for those.
#[inline(always)]
fn is_finite<S: Simd>(s: S, x: &[f32]) -> bool {
    let zero = s.splat(0.0);
    let mut sum = zero;
    for vector in x.as_chunks::<LANES>().0 {
        sum = s.mul_add(s.load(vector), zero, sum);
    }
    s.sum(sum) == 0.0
}

/// Quantises `N` blocks. The largest magnitude may pass over a NaN, so whether a block is `finite` was asked before.
#[inline(always)]
fn quantize_blocks<S: Simd, const N: usize>(
    s: S,
    x: &[[f32; BLOCK_LEN]; N],
    out: &mut [QuantizedBlock; N],
    finite: [bool; N],
) {
    let zero = s.splat(0.0);
    let mut halves = [[zero; 2]; N];
    let mut magnitudes = [zero; SIDE_BY_SIDE];
    for i in 0..N {
        let of_block: &[[f32; LANES]; 2] = bytemuck::cast_ref(&x[i]);
        let [low, high] = [s.load(&of_block[0]), s.load(&of_block[1])];
        halves[i] = [low, high];
        magnitudes[i] = s.max(s.max(low, s.sub(zero, low)), s.max(high, s.sub(zero, high)));
    }
    let largest = if N == 1 { [s.max_lane(magnitudes[0]), 0.0, 0.0, 0.0] } else { s.max_4(magnitudes) };
    let mut sums = [[zero; 2]; SIDE_BY_SIDE];
    for i in 0..N {
        let scale = largest[i] / 127.0;
        let (scale, inverse) = if !finite[i] {
            (f32::NAN, 0.0)
        } else if scale < f32::MIN_POSITIVE {
            (0.0, 0.0)
        } else {
            (scale, 1.0 / scale)
        };
        out[i].scale = scale;
        for half in 0..2 {
            let (codes, of_half) = quantize(s, halves[i][half], inverse);
            out[i].codes[half * LANES..(half + 1) * LANES].copy_from_slice(&codes);
            sums[i][half] = of_half;
        }
    }
    // Whole numbers far below 2²⁴: the sums are exact in any order.
    for first in (0..N).step_by(2) {
        let [a, b] = [sums[first], sums[first + 1]];
        let of_halves = s.sum_4([a[0], a[1], b[0], b[1]]);
        for (block, sums) in out[first..].iter_mut().zip(of_halves.as_chunks::<2>().0) {
            block.minus_128_sum = ((sums[0] + sums[1]) * -128.0) as i32;
            block.scaled_sum = block.scale * (sums[0] + sums[1]);
            block.half_sums = [sums[0] as i16, sums[1] as i16];
        }
    }
}

/// The codes of sixteen values, as bytes and as floats.
#[inline(always)]
fn quantize<S: Simd>(s: S, x: S::F32, inverse: f32) -> ([i8; LANES], S::F32) {
    // Adding 1.5 · 2²³ rounds to nearest even and leaves the integer in the low bits.
    let round = s.splat(12_582_912.0);
    // The order of operands makes -127 of NaN.
    let scaled = s.max(s.mul(x, s.splat(inverse)), s.splat(-127.0));
    let biased = s.add(s.min(scaled, s.splat(127.0)), round);
    (s.low_bytes(biased), s.sub(biased, round))
}

#[cfg(test)]
pub(in crate::kernels) mod tests {
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::simd::{Kernel, Words};

    pub(in crate::kernels) struct QuantizeRow<'a>(
        pub(in crate::kernels) &'a [f32],
        pub(in crate::kernels) &'a mut [QuantizedBlock],
    );

    impl Kernel for QuantizeRow<'_> {
        type Output = ();
        const WORDS: Words = Words::Floats;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            quantize_row(s, self.0, self.1);
        }
    }

    /// `x` quantised, at every level the same.
    fn quantize(x: &[f32]) -> Vec<QuantizedBlock> {
        let on = |isa: Isa| {
            let mut out = vec![bytemuck::Zeroable::zeroed(); x.len() / BLOCK_LEN];
            isa.run(QuantizeRow(x, &mut out));
            out
        };
        let expected = on(Isa::scalar());
        for isa in Isa::available() {
            let found = on(isa);
            assert_eq!(bytemuck::cast_slice::<_, u8>(&found), bytemuck::cast_slice::<_, u8>(&expected), "{isa}");
        }
        expected
    }

    #[test]
    fn codes_are_within_half_a_scale() {
        let mut rng = Rng::new(1);
        for magnitude in [1e-30, 1e-3, 1.0, 1e4, 1e30] {
            let x: Vec<f32> = (0..96).map(|_| rng.normal() * magnitude).collect();
            for (block, x) in quantize(&x).iter().zip(x.chunks(BLOCK_LEN)) {
                for (&code, &x) in block.codes.iter().zip(x) {
                    let error = (f64::from(block.scale) * f64::from(code) - f64::from(x)).abs();
                    assert!(error <= f64::from(block.scale) * 0.5 * (1.0 + 2f64.powi(-22)), "{x} as {code}");
                }
                let again = QuantizedBlock::new(block.codes, block.scale);
                assert_eq!(*block, again);
                assert_eq!(block.sum(), block.codes.iter().map(|&c| i32::from(c)).sum::<i32>());
            }
        }
    }

    #[test]
    fn zeros_denormals_and_non_finite_values_keep_their_meaning() {
        assert_eq!(quantize(&[0.0; 32])[0], QuantizedBlock::new([0; 32], 0.0));
        assert_eq!(quantize(&[1e-42; 32])[0].scale, 0.0);
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; 64];
            x[33] = poison;
            let blocks = quantize(&x);
            assert!(blocks[0].scale.is_finite() && blocks[1].scale.is_nan());
            assert!(blocks[1].codes.iter().all(|&code| code != i8::MIN));
        }
        let mut x = [0.0; 32];
        x[5] = f32::MAX;
        x[6] = f32::MIN;
        let block = quantize(&x)[0];
        assert_eq!((block.codes[5], block.codes[6]), (127, -127));
    }
}
