//! `quantize`: a row of activations as blocks of 32 signed bytes with an f32 scale, the other operand of Q8_0 weights.
//!
//! Shapes    x (k,), k % 32 == 0; k / 32 blocks.
//! Accuracy  scale s = max|x| / 127 of the block, code = x / s to nearest even: |x - s · code| <= s / 2 · (1 + 2⁻²²).
//!           So an output of a Q8_0 projection is off by at most Σ over blocks of s / 2 · Σ|w|, plus the rounding of
//!           `linear_q8`, from the same projection of unrounded activations.
//! Edge      a block with a NaN or an infinity has scale NaN, so the whole row of outputs is NaN, as it would be in floats;
//!           a block whose largest value is below 127 · 2⁻¹²⁶ counts as zero.
//! Versions  plain Rust without a sum, which the compiler vectorises at every level.

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
}

const _: () = assert!(size_of::<QuantizedBlock>() == 40);

impl QuantizedBlock {
    /// A block of `codes`, none of them -128.
    #[inline(always)]
    pub(crate) fn new(codes: [i8; BLOCK_LEN], scale: f32) -> Self {
        let sum: i32 = codes.iter().map(|&code| i32::from(code)).sum();
        Self { codes, scale, minus_128_sum: -128 * sum }
    }

    /// Codes 4 · `group` to 4 · `group` + 4 as one word.
    #[inline(always)]
    pub(crate) fn four(&self, group: usize) -> i32 {
        let [a, b, c, d] = self.codes.as_chunks::<4>().0[group].map(i8::cast_unsigned);
        i32::from_le_bytes([a, b, c, d])
    }
}

/// Quantises `x` into `out`, a block for each 32 values.
#[inline(always)]
pub(crate) fn quantize_row(x: &[f32], out: &mut [QuantizedBlock]) {
    let (blocks, rest) = x.as_chunks::<BLOCK_LEN>();
    debug_assert!(rest.is_empty() && blocks.len() == out.len());
    for (x, out) in blocks.iter().zip(out) {
        // The largest magnitude by bits: for magnitudes the order is the same, and NaN is above infinity.
        let max_bits = x.iter().fold(0u32, |max, value| max.max(value.to_bits() & 0x7fff_ffff));
        let max = f32::from_bits(max_bits);
        let scale = max / 127.0;
        let (scale, inverse) = if !max.is_finite() {
            (f32::NAN, 0.0)
        } else if scale < f32::MIN_POSITIVE {
            (0.0, 0.0)
        } else {
            (scale, 1.0 / scale)
        };
        // Adding 1.5 · 2²³ rounds to nearest even and leaves the integer in the low bits.
        const ROUND: f32 = 12_582_912.0;
        let mut codes = [0i8; BLOCK_LEN];
        for (code, x) in codes.iter_mut().zip(x) {
            let rounded = (x * inverse + ROUND).to_bits().cast_signed() - ROUND.to_bits().cast_signed();
            *code = rounded.clamp(-127, 127) as i8;
        }
        *out = QuantizedBlock::new(codes, scale);
    }
}

#[cfg(test)]
mod tests {
    use testing::random::Rng;

    use super::*;

    fn quantize(x: &[f32]) -> Vec<QuantizedBlock> {
        let mut out = vec![bytemuck::Zeroable::zeroed(); x.len() / BLOCK_LEN];
        quantize_row(x, &mut out);
        out
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
                assert_eq!(block.minus_128_sum, block.codes.iter().map(|&c| -128 * i32::from(c)).sum::<i32>());
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
