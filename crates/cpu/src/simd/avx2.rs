//! AVX2 with FMA and F16C, with or without AVX-VNNI: two registers a vector, lanes 0 to 7 and 8 to 15.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::arch::x86_64::*;

use half::{bf16, f16};
use tensor::quant::q8_0;

use super::{Kernel, LANES, PANEL_ROWS, PanelCodes, Simd};
use crate::kernels::quantize::QuantizedBlock;

/// The proof that this CPU has avx2, fma and f16c, and avxvnni where `VNNI`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2<const VNNI: bool>(());

impl<const VNNI: bool> Avx2<VNNI> {
    /// # Safety
    ///
    /// The CPU must have the features that the type stands for.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

/// One word of two registers from one of one register.
macro_rules! both {
    ($intrinsic:ident($($vector:expr),+)) => {
        // SAFETY: a value of `Avx2` exists, so the CPU has the features.
        unsafe { [$intrinsic($($vector[0]),+), $intrinsic($($vector[1]),+)] }
    };
}

impl<const VNNI: bool> Simd for Avx2<VNNI> {
    type F32 = [__m256; 2];

    /// `vpdpbusd` takes one unsigned operand: weights are shifted up by 128, and 128 · Σx is subtracted again.
    const PANEL_XOR: u8 = if VNNI { 0x80 } else { 0 };

    const WIDE: bool = false;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        #[inline(never)]
        fn with_vnni<K: Kernel>(simd: Avx2<true>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline(never)]
        fn without<K: Kernel>(simd: Avx2<false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        if VNNI {
            // SAFETY: `self` proves the features.
            unsafe { with_vnni(Avx2(()), kernel) }
        } else {
            // SAFETY: `self` proves the features.
            unsafe { without(Avx2(()), kernel) }
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F32 {
        // SAFETY: `self` proves the features.
        [unsafe { _mm256_set1_ps(value) }; 2]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F32 {
        // SAFETY: `self` proves the features; the halves of sixteen f32, at any alignment.
        unsafe { [_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> Self::F32 {
        let halves: *const __m128i = values.as_ptr().cast();
        // SAFETY: `self` proves the features; sixteen halves are two times 16 bytes, at any alignment.
        unsafe { [_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves.add(1)))] }
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::F32 {
        let halves: *const __m128i = values.as_ptr().cast();
        // SAFETY: `self` proves the features; sixteen halves are two times 16 bytes, at any alignment.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves.add(1)));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
    }

    #[inline(always)]
    fn load_e4m3_pairs(self, codes: &[u8; 2 * LANES]) -> [Self::F32; 2] {
        // SAFETY: `self` proves the features; 32 bytes, at any alignment.
        unsafe {
            let (even, odd) = e4m3_pairs_as_f16(_mm256_loadu_si256(codes.as_ptr().cast()));
            [widen_f16(even), widen_f16(odd)]
        }
    }

    #[inline(always)]
    fn store(self, vector: Self::F32, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves the features; room for two times eight f32, at any alignment.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), vector[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), vector[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        both!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        both!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn exp2_of_low_bits(self, biased: Self::F32) -> Self::F32 {
        both!(exp2_of_low_bits(biased))
    }

    #[inline(always)]
    fn low_bytes(self, vector: Self::F32) -> [i8; LANES] {
        let mut bytes = [0; LANES];
        // SAFETY: `self` proves the features; sixteen bytes, at any alignment.
        unsafe {
            // The low bytes of four words come first in each 128-bit part, then the parts side by side.
            let first = _mm256_setr_epi8(
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1,
                -1, -1, -1, -1, -1,
            );
            let order = _mm256_setr_epi32(0, 4, 1, 1, 1, 1, 1, 1);
            for half in 0..2 {
                let picked = _mm256_shuffle_epi8(_mm256_castps_si256(vector[half]), first);
                let eight = _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(picked, order));
                _mm_storel_epi64(bytes.as_mut_ptr().add(8 * half).cast(), eight);
            }
        }
        bytes
    }

    #[inline(always)]
    fn sum(self, v: Self::F32) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn max_lane(self, v: Self::F32) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let v = _mm256_max_ps(v[0], v[1]);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn q8_dots(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> Self::F32 {
        // SAFETY: `self` proves the features.
        unsafe { [q8_dots_8(&rows.as_chunks().0[0], block, x), q8_dots_8(&rows.as_chunks().0[1], block, x)] }
    }

    #[inline(always)]
    fn q8_scales(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize) -> Self::F32 {
        // SAFETY: `self` proves the features.
        unsafe { [q8_scales_8(&rows.as_chunks().0[0], block), q8_scales_8(&rows.as_chunks().0[1], block)] }
    }

    #[inline(always)]
    fn panel_dots<const MR: usize, const NP: usize>(
        self,
        codes: [&PanelCodes; NP],
        x: [&QuantizedBlock; MR],
    ) -> [[Self::F32; NP]; MR] {
        // SAFETY: `self` proves the features; every load is of half a 64-byte group of codes.
        unsafe {
            let mut dots = [[[_mm256_setzero_ps(); 2]; NP]; MR];
            for panel in 0..NP {
                for half in 0..2 {
                    let mut sums = [_mm256_setzero_si256(); MR];
                    for row in 0..MR {
                        sums[row] = _mm256_set1_epi32(if VNNI { x[row].minus_128_sum } else { 0 });
                    }
                    for group in 0..8 {
                        let w = _mm256_loadu_si256(codes[panel][group].as_ptr().add(32 * half).cast());
                        for row in 0..MR {
                            let four = _mm256_set1_epi32(x[row].four(group));
                            sums[row] = if VNNI {
                                _mm256_dpbusd_avx_epi32(sums[row], w, four)
                            } else {
                                _mm256_add_epi32(sums[row], byte_products(w, four))
                            };
                        }
                    }
                    for row in 0..MR {
                        dots[row][panel][half] = _mm256_cvtepi32_ps(sums[row]);
                    }
                }
            }
            dots
        }
    }

    type I32 = [__m256i; 2];
    type Bytes = [__m256i; 2];

    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I32 {
        // SAFETY: `self` proves the features.
        [unsafe { _mm256_set1_epi32(value) }; 2]
    }

    #[inline(always)]
    fn to_f32(self, sums: Self::I32) -> Self::F32 {
        both!(_mm256_cvtepi32_ps(sums))
    }

    #[inline(always)]
    fn splat_bytes(self, value: u8) -> Self::Bytes {
        // SAFETY: `self` proves the features.
        [unsafe { _mm256_set1_epi8(value.cast_signed()) }; 2]
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> Self::Bytes {
        let halves: *const __m256i = bytes.as_ptr().cast();
        // SAFETY: `self` proves the features; 64 bytes, at any alignment.
        unsafe { [_mm256_loadu_si256(halves), _mm256_loadu_si256(halves.add(1))] }
    }

    #[inline(always)]
    fn store_bytes(self, bytes: Self::Bytes, out: &mut [u8; 64]) {
        let halves: *mut __m256i = out.as_mut_ptr().cast();
        // SAFETY: `self` proves the features; 64 bytes, at any alignment.
        unsafe {
            _mm256_storeu_si256(halves, bytes[0]);
            _mm256_storeu_si256(halves.add(1), bytes[1]);
        }
    }

    #[inline(always)]
    fn and_bytes(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        let mask = self.splat_bytes(mask);
        both!(_mm256_and_si256(bytes, mask))
    }

    #[inline(always)]
    fn or_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        both!(_mm256_or_si256(a, b))
    }

    #[inline(always)]
    fn shift_bytes_right<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves the features.
        let by = [unsafe { _mm_cvtsi32_si128(N.cast_signed()) }; 2];
        let shifted = both!(_mm256_srl_epi16(bytes, by));
        // What came from the byte above goes.
        self.and_bytes(shifted, 0xff >> N)
    }

    #[inline(always)]
    fn shift_bytes_left<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves the features.
        let by = [unsafe { _mm_cvtsi32_si128(N.cast_signed()) }; 2];
        let shifted = both!(_mm256_sll_epi16(bytes, by));
        self.and_bytes(shifted, 0xff << N)
    }

    #[inline(always)]
    fn shift_bytes_right_by(self, bytes: Self::Bytes, by: u32) -> Self::Bytes {
        let mask = (0xff >> by) as u8;
        // SAFETY: `self` proves the features.
        let by = [unsafe { _mm_cvtsi32_si128(by.cast_signed()) }; 2];
        let shifted = both!(_mm256_srl_epi16(bytes, by));
        self.and_bytes(shifted, mask)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves the features; sixteen bytes, at any alignment.
        let table = [unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())) }; 2];
        both!(_mm256_shuffle_epi8(table, indices))
    }

    #[inline(always)]
    fn add_wide_byte_products(self, sums: Self::I32, w: Self::Bytes, x: i32) -> Self::I32 {
        if VNNI {
            return self.add_byte_products(sums, w, x);
        }
        let high = self.shift_bytes_right::<1>(self.and_bytes(w, 128));
        let sums = self.add_byte_products(self.add_byte_products(sums, high, x), high, x);
        self.add_byte_products(sums, self.and_bytes(w, 127), x)
    }

    #[inline(always)]
    fn add_byte_products(self, sums: Self::I32, w: Self::Bytes, x: i32) -> Self::I32 {
        let x = self.splat_i32(x);
        if VNNI {
            return both!(_mm256_dpbusd_avx_epi32(sums, w, x));
        }
        // Two products of 127 stay below 2¹⁵.
        let pairs = both!(_mm256_maddubs_epi16(w, x));
        // SAFETY: `self` proves the features.
        let ones = [unsafe { _mm256_set1_epi16(1) }; 2];
        let fours = both!(_mm256_madd_epi16(pairs, ones));
        both!(_mm256_add_epi32(sums, fours))
    }

    #[inline(always)]
    fn load_u8(self, values: &[u8; LANES]) -> Self::F32 {
        let at = values.as_ptr();
        // SAFETY: `self` proves the features; two times eight bytes, at any alignment.
        let eights = unsafe { [_mm_loadl_epi64(at.cast()), _mm_loadl_epi64(at.add(8).cast())] };
        let wide = both!(_mm256_cvtepu8_epi32(eights));
        self.to_f32(wide)
    }

    #[inline(always)]
    fn load_i8(self, values: &[i8; LANES]) -> Self::F32 {
        let at = values.as_ptr();
        // SAFETY: `self` proves the features; two times eight bytes, at any alignment.
        let eights = unsafe { [_mm_loadl_epi64(at.cast()), _mm_loadl_epi64(at.add(8).cast())] };
        let wide = both!(_mm256_cvtepi8_epi32(eights));
        self.to_f32(wide)
    }

    #[inline(always)]
    fn interleave(self, rows: [&[u8; 32]; PANEL_ROWS], xor: u8, out: &mut PanelCodes) {
        // SAFETY: `self` proves the features.
        unsafe { interleave(rows, _mm256_set1_epi8(xor.cast_signed()), out) }
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch of any address is a hint, which cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// Sums of four neighbouring products. Exact: |w| <= 128 and |x| <= 127, so a pair stays below 2¹⁵.
#[inline]
#[target_feature(enable = "avx2")]
fn byte_products(w: __m256i, x: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx2")]
fn exp2_of_low_bits(biased: __m256) -> __m256 {
    let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(biased));
    _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_castps_si256(_mm256_set1_ps(1.0))))
}

/// Sixteen binary16 as f32.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_f16(halves: __m256i) -> [__m256; 2] {
    [_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(halves))]
}

/// The numbers of E4M3 times 2⁻⁸ as binary16, of codes in even and in odd bytes: one bit of exponent more comes below the sign.
/// The conversion to f32 takes subnormal numbers at full speed, which no multiplication by a power of two would.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn e4m3_pairs_as_f16(codes: __m256i) -> (__m256i, __m256i) {
    let even = _mm256_srai_epi16::<1>(_mm256_slli_epi16::<8>(codes));
    let odd = _mm256_srai_epi16::<1>(codes);
    let mask = _mm256_set1_epi16(0xbf80u16.cast_signed());
    (_mm256_and_si256(even, mask), _mm256_and_si256(odd, mask))
}

/// Two transpositions of 8 × 8 words: rows 0 to 7 make the first half of each group of codes, rows 8 to 15 the second.
#[inline]
#[target_feature(enable = "avx2")]
fn interleave(rows: [&[u8; 32]; PANEL_ROWS], xor: __m256i, out: &mut PanelCodes) {
    for half in 0..2 {
        let mut r = [_mm256_setzero_si256(); 8];
        for j in 0..8 {
            r[j] = _mm256_xor_si256(load_codes(bytemuck::cast_ref(rows[8 * half + j])), xor);
        }
        // Words of two rows, then of four: in each 128-bit part, word w of rows 0 to 3 (or 4 to 7).
        let mut quads = [_mm256_setzero_si256(); 8];
        for four in 0..2 {
            let [a, b, c, d] = [r[4 * four], r[4 * four + 1], r[4 * four + 2], r[4 * four + 3]];
            let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            quads[4 * four] = _mm256_unpacklo_epi64(ab_low, cd_low);
            quads[4 * four + 1] = _mm256_unpackhi_epi64(ab_low, cd_low);
            quads[4 * four + 2] = _mm256_unpacklo_epi64(ab_high, cd_high);
            quads[4 * four + 3] = _mm256_unpackhi_epi64(ab_high, cd_high);
        }
        for word in 0..4 {
            let (first, second) = (quads[word], quads[word + 4]);
            let low = _mm256_permute2x128_si256::<0x20>(first, second);
            let high = _mm256_permute2x128_si256::<0x31>(first, second);
            for (group, codes) in [(word, low), (word + 4, high)] {
                // SAFETY: half of 64 bytes, at any alignment.
                unsafe { _mm256_storeu_si256(out[group].as_mut_ptr().add(32 * half).cast(), codes) };
            }
        }
    }
}

/// Eight exact sums.
#[inline]
#[target_feature(enable = "avx2")]
fn q8_dots_8(rows: &[&[q8_0::Block]; 8], block: usize, x: &QuantizedBlock) -> __m256 {
    let x_codes = load_codes(&x.codes);
    let products = |row: usize| byte_products(load_codes(&rows[row][block].codes), x_codes);
    // Eight partial sums of each of four rows become the row sums of each 128-bit part.
    let fold_4 = |first: usize| {
        _mm256_hadd_epi32(
            _mm256_hadd_epi32(products(first), products(first + 1)),
            _mm256_hadd_epi32(products(first + 2), products(first + 3)),
        )
    };
    let (low, high) = (fold_4(0), fold_4(4));
    _mm256_cvtepi32_ps(_mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    ))
}

#[inline]
#[target_feature(enable = "avx2,f16c")]
fn q8_scales_8(rows: &[&[q8_0::Block]; 8], block: usize) -> __m256 {
    let scale = |row: usize| rows[row][block].scale.to_bits().cast_signed();
    _mm256_cvtph_ps(_mm_setr_epi16(scale(0), scale(1), scale(2), scale(3), scale(4), scale(5), scale(6), scale(7)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load_codes(codes: &[i8; 32]) -> __m256i {
    // SAFETY: 32 bytes, at any alignment.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}
