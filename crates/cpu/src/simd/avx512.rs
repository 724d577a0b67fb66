//! AVX-512 (F, BW, DQ, VL), with or without VNNI, bfloat16 dot products and tiles: one register a vector.

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

use std::arch::x86_64::*;

use half::{bf16, f16};
use tensor::quant::q8_0;

use super::avx2::e4m3_pairs_as_f16;
use super::{
    Kernel, LANES, MOST_TILE_ROWS, PANEL_ROWS, PairBlock, PanelCodes, Simd, TILE_PAIR_ROWS, amx, avx512_bf16, scalar,
};
use crate::kernels::quantize::QuantizedBlock;

/// The proof that this CPU has avx512f, avx512bw, avx512dq and avx512vl, avx512vnni where `VNNI`, and that and
/// avx512bf16 where `BF16`, that and AMX's bfloat16 tiles where `TILES`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512<const VNNI: bool, const BF16: bool, const TILES: bool>(());

impl<const VNNI: bool, const BF16: bool, const TILES: bool> Avx512<VNNI, BF16, TILES> {
    /// # Safety
    ///
    /// The CPU must have the features that the type stands for, and the system must let the process use them.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

impl<const VNNI: bool, const BF16: bool, const TILES: bool> Simd for Avx512<VNNI, BF16, TILES> {
    type F32 = __m512;

    /// `vpdpbusd` takes one unsigned operand: weights are shifted up by 128, and 128 · Σx is subtracted again.
    const PANEL_XOR: u8 = if VNNI { 0x80 } else { 0 };

    const WIDE: bool = true;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
        #[inline(never)]
        fn with_bf16<K: Kernel>(simd: Avx512<true, true, false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        #[inline(never)]
        fn with_vnni<K: Kernel>(simd: Avx512<true, false, false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        // Tiles are used in assembly, which needs no feature of the compiler.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        #[inline(never)]
        fn with_tiles<K: Kernel>(simd: Avx512<true, false, true>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        #[inline(never)]
        fn without<K: Kernel>(simd: Avx512<false, false, false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        if TILES {
            // SAFETY: `self` proves the features.
            unsafe { with_tiles(Avx512(()), kernel) }
        } else if BF16 {
            // SAFETY: `self` proves the features.
            unsafe { with_bf16(Avx512(()), kernel) }
        } else if VNNI {
            // SAFETY: `self` proves the features.
            unsafe { with_vnni(Avx512(()), kernel) }
        } else {
            // SAFETY: `self` proves the features.
            unsafe { without(Avx512(()), kernel) }
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> __m512 {
        // SAFETY: `self` proves the features; sixteen f32, at any alignment.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> __m512 {
        // SAFETY: `self` proves the features; sixteen halves are 32 bytes, at any alignment.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> __m512 {
        // SAFETY: `self` proves the features; sixteen halves are 32 bytes, at any alignment.
        unsafe {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(values.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
        }
    }

    #[inline(always)]
    fn load_e4m3_pairs(self, codes: &[u8; 2 * LANES]) -> [__m512; 2] {
        // SAFETY: `self` proves the features; 32 bytes, at any alignment.
        unsafe {
            let (even, odd) = e4m3_pairs_as_f16(_mm256_loadu_si256(codes.as_ptr().cast()));
            [_mm512_cvtph_ps(even), _mm512_cvtph_ps(odd)]
        }
    }

    #[inline(always)]
    fn store(self, vector: __m512, out: &mut [f32; LANES]) {
        // SAFETY: `self` proves the features; room for sixteen f32, at any alignment.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), vector) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn exp2_of_low_bits(self, biased: __m512) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(biased));
            _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_castps_si512(_mm512_set1_ps(1.0))))
        }
    }

    const TILE_ROWS: usize = if BF16 { MOST_TILE_ROWS } else { TILE_PAIR_ROWS };

    #[inline(always)]
    fn tile_products(self, x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
        if TILES {
            // SAFETY: `self` proves that tiles may be used.
            unsafe { amx::tile_products(x, blocks, panels, sums) }
        } else if BF16 {
            // SAFETY: `self` proves the features.
            unsafe { avx512_bf16::tile_products(x, blocks, panels, sums) }
        } else {
            scalar::tile_products(x, blocks, panels, sums);
        }
    }

    #[inline(always)]
    fn round_bf16(self, vector: __m512) -> [bf16; LANES] {
        // SAFETY: `self` proves the features.
        unsafe { round_bf16(vector) }
    }

    #[inline(always)]
    fn low_bytes(self, vector: __m512) -> [i8; LANES] {
        let mut bytes = [0; LANES];
        // SAFETY: `self` proves the features; sixteen bytes, at any alignment.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(_mm512_castps_si512(vector))) };
        bytes
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn sum_4(self, vectors: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features.
        unsafe { sum_4(vectors) }
    }

    #[inline(always)]
    fn max_4(self, vectors: [__m512; 4]) -> [f32; 4] {
        // SAFETY: `self` proves the features.
        unsafe { max_4(vectors) }
    }

    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        // SAFETY: `self` proves the features.
        unsafe {
            let v = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }

    #[inline(always)]
    fn q8_dots(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> __m512 {
        if VNNI {
            // SAFETY: `self` proves the features.
            unsafe { q8_dots_vnni(rows, block, x) }
        } else {
            // SAFETY: `self` proves the features.
            unsafe { q8_dots(rows, block, x) }
        }
    }

    #[inline(always)]
    fn q8_scales(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize) -> __m512 {
        let scale = |row: usize| rows[row][block].scale.to_bits().cast_signed();
        // SAFETY: `self` proves the features.
        unsafe {
            _mm512_cvtph_ps(_mm256_setr_epi16(
                scale(0),
                scale(1),
                scale(2),
                scale(3),
                scale(4),
                scale(5),
                scale(6),
                scale(7),
                scale(8),
                scale(9),
                scale(10),
                scale(11),
                scale(12),
                scale(13),
                scale(14),
                scale(15),
            ))
        }
    }

    #[inline(always)]
    fn panel_dots<const MR: usize, const NP: usize>(
        self,
        codes: [&PanelCodes; NP],
        x: [&QuantizedBlock; MR],
    ) -> [[__m512; NP]; MR] {
        // SAFETY: `self` proves the features; every load is of one 64-byte group of codes.
        unsafe {
            let mut sums = [[_mm512_setzero_si512(); NP]; MR];
            for row in 0..MR {
                sums[row] = [_mm512_set1_epi32(if VNNI { x[row].minus_128_sum } else { 0 }); NP];
            }
            for group in 0..8 {
                let mut w = [_mm512_setzero_si512(); NP];
                for panel in 0..NP {
                    w[panel] = _mm512_loadu_si512(codes[panel][group].as_ptr().cast());
                }
                for row in 0..MR {
                    let four = _mm512_set1_epi32(x[row].four(group));
                    for panel in 0..NP {
                        sums[row][panel] = if VNNI {
                            _mm512_dpbusd_epi32(sums[row][panel], w[panel], four)
                        } else {
                            _mm512_add_epi32(sums[row][panel], byte_products(w[panel], four))
                        };
                    }
                }
            }
            let mut dots = [[_mm512_setzero_ps(); NP]; MR];
            for row in 0..MR {
                for panel in 0..NP {
                    dots[row][panel] = _mm512_cvtepi32_ps(sums[row][panel]);
                }
            }
            dots
        }
    }

    type I32 = __m512i;
    type Bytes = __m512i;

    #[inline(always)]
    fn splat_i32(self, value: i32) -> __m512i {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    fn to_f32(self, sums: __m512i) -> __m512 {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }

    #[inline(always)]
    fn splat_bytes(self, value: u8) -> __m512i {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_set1_epi8(value.cast_signed()) }
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> __m512i {
        // SAFETY: `self` proves the features; 64 bytes, at any alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_bytes(self, bytes: __m512i, out: &mut [u8; 64]) {
        // SAFETY: `self` proves the features; 64 bytes, at any alignment.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), bytes) }
    }

    #[inline(always)]
    fn and_bytes(self, bytes: __m512i, mask: u8) -> __m512i {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_and_si512(bytes, self.splat_bytes(mask)) }
    }

    #[inline(always)]
    fn or_bytes(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: `self` proves the features.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shift_bytes_right<const N: u32>(self, bytes: __m512i) -> __m512i {
        // SAFETY: `self` proves the features.
        let shifted = unsafe { _mm512_srli_epi16::<N>(bytes) };
        // What came from the byte above goes.
        self.and_bytes(shifted, 0xff >> N)
    }

    #[inline(always)]
    fn shift_bytes_left<const N: u32>(self, bytes: __m512i) -> __m512i {
        // SAFETY: `self` proves the features.
        let shifted = unsafe { _mm512_slli_epi16::<N>(bytes) };
        self.and_bytes(shifted, 0xff << N)
    }

    #[inline(always)]
    fn shift_bytes_right_by(self, bytes: __m512i, by: u32) -> __m512i {
        // SAFETY: `self` proves the features.
        let shifted = unsafe { _mm512_srl_epi16(bytes, _mm_cvtsi32_si128(by.cast_signed())) };
        self.and_bytes(shifted, (0xff >> by) as u8)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: __m512i) -> __m512i {
        // SAFETY: `self` proves the features; sixteen bytes, at any alignment.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), indices) }
    }

    #[inline(always)]
    fn add_wide_byte_products(self, sums: __m512i, w: __m512i, x: i32) -> __m512i {
        if VNNI {
            return self.add_byte_products(sums, w, x);
        }
        let high = self.shift_bytes_right::<1>(self.and_bytes(w, 128));
        let sums = self.add_byte_products(self.add_byte_products(sums, high, x), high, x);
        self.add_byte_products(sums, self.and_bytes(w, 127), x)
    }

    #[inline(always)]
    fn add_byte_products(self, sums: __m512i, w: __m512i, x: i32) -> __m512i {
        // SAFETY: `self` proves the features. Two products of 127 stay below 2¹⁵.
        unsafe {
            let x = _mm512_set1_epi32(x);
            if VNNI {
                _mm512_dpbusd_epi32(sums, w, x)
            } else {
                let pairs = _mm512_maddubs_epi16(w, x);
                _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))
            }
        }
    }

    #[inline(always)]
    fn load_u8(self, values: &[u8; LANES]) -> __m512 {
        // SAFETY: `self` proves the features; sixteen bytes, at any alignment.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(values.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_i8(self, values: &[i8; LANES]) -> __m512 {
        // SAFETY: `self` proves the features; sixteen bytes, at any alignment.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(values.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn interleave(self, rows: [&[u8; 32]; PANEL_ROWS], xor: u8, out: &mut PanelCodes) {
        // SAFETY: `self` proves the features.
        unsafe { interleave(rows, _mm512_set1_epi8(xor.cast_signed()), out) }
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch of any address is a hint, which cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// One number from each of four vectors, by the tree of [`Simd::sum`] for all four at once.
macro_rules! fold_4 {
    ($name:ident, $two:ident) => {
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn $name(v: [__m512; 4]) -> [f32; 4] {
            // Halves of 8 lanes: two vectors side by side in one register, then the usual tree for all four at once.
            let fold_8 = |a: __m512, b: __m512| {
                $two(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
            };
            let (ab, cd) = (fold_8(v[0], v[1]), fold_8(v[2], v[3]));
            // Quarters of 4 lanes: a, b, c, d in the four 128-bit parts.
            let quarters =
                $two(_mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd), _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
            let pairs = $two(quarters, _mm512_shuffle_ps::<0b01_00_11_10>(quarters, quarters));
            let folded = $two(pairs, _mm512_shuffle_ps::<0b10_11_00_01>(pairs, pairs));
            let first_of_each = _mm512_maskz_compress_ps(0b0001_0001_0001_0001, folded);
            let mut out = [0.0; 4];
            // SAFETY: room for four f32, at any alignment.
            unsafe { _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(first_of_each)) };
            out
        }
    };
}

fold_4!(sum_4, _mm512_add_ps);
fold_4!(max_4, _mm512_max_ps);

/// Sixteen exact sums from products of bytes that `vpdpbusd` makes of weights shifted up by 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn q8_dots_vnni(rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> __m512 {
    let x_codes = _mm512_broadcast_i64x4(load_codes(&x.codes));
    let products = |row: usize| {
        let shifted = _mm512_xor_si512(two_rows(rows, row, block), _mm512_set1_epi8(i8::MIN));
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), shifted, x_codes)
    };
    let low = fold_4([products(0), products(1), products(2), products(3)]);
    let high = fold_4([products(8), products(9), products(10), products(11)]);
    let sums = _mm512_add_epi32(fold_rows(low, high), _mm512_set1_epi32(x.minus_128_sum));
    _mm512_cvtepi32_ps(sums)
}

/// Sixteen exact sums from products of pairs of bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn q8_dots(rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> __m512 {
    let x_codes = _mm512_broadcast_i64x4(load_codes(&x.codes));
    let products = |row: usize| byte_products(two_rows(rows, row, block), x_codes);
    let low = fold_4([products(0), products(1), products(2), products(3)]);
    let high = fold_4([products(8), products(9), products(10), products(11)]);
    _mm512_cvtepi32_ps(fold_rows(low, high))
}

/// In integers: the instruction for it takes subnormal numbers for zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn round_bf16(vector: __m512) -> [bf16; LANES] {
    let bits = _mm512_castps_si512(vector);
    // Half of the last place that stays, and just below that where the place is even.
    let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
    let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    // NaN must not become infinity by losing its low bits.
    let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
    let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(vector, vector);
    let upper = _mm512_srli_epi32::<16>(_mm512_mask_mov_epi32(rounded, is_nan, quiet));
    let mut out = [bf16::ZERO; LANES];
    // SAFETY: room for sixteen halves, at any alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(upper)) };
    out
}

/// Sums of four neighbouring products. Exact: |w| <= 128 and |x| <= 127, so a pair stays below 2¹⁵.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn byte_products(w: __m512i, x: __m512i) -> __m512i {
    let signed = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    let pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed);
    _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))
}

#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn load_codes(codes: &[i8; 32]) -> __m256i {
    // SAFETY: 32 bytes, at any alignment.
    unsafe { _mm256_loadu_si256(codes.as_ptr().cast()) }
}

/// A transposition of 16 × 8 words: rows j and j + 8 share a register, so that 8 × 8 words are transposed in each half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn interleave(rows: [&[u8; 32]; PANEL_ROWS], xor: __m512i, out: &mut PanelCodes) {
    let mut r = [_mm512_setzero_si512(); 8];
    for j in 0..8 {
        let low = _mm512_castsi256_si512(load_codes(bytemuck::cast_ref(rows[j])));
        r[j] = _mm512_xor_si512(_mm512_inserti64x4::<1>(low, load_codes(bytemuck::cast_ref(rows[j + 8]))), xor);
    }
    // Words of two rows, then of four: in each 128-bit part, word w of rows 0 to 3 (or 4 to 7).
    let mut quads = [_mm512_setzero_si512(); 8];
    for half in 0..2 {
        let [a, b, c, d] = [r[4 * half], r[4 * half + 1], r[4 * half + 2], r[4 * half + 3]];
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        quads[4 * half] = _mm512_unpacklo_epi64(ab_low, cd_low);
        quads[4 * half + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        quads[4 * half + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        quads[4 * half + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    let low_parts = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
    let high_parts = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
    for word in 0..4 {
        let (first, second) = (quads[word], quads[word + 4]);
        for (group, parts) in [(word, low_parts), (word + 4, high_parts)] {
            let codes = _mm512_permutex2var_epi64(first, parts, second);
            // SAFETY: 64 bytes, at any alignment.
            unsafe { _mm512_storeu_si512(out[group].as_mut_ptr().cast(), codes) };
        }
    }
}

/// Block `block` of rows `row` and `row + 4`, so that the folding leaves the rows in order.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn two_rows(rows: &[&[q8_0::Block]; PANEL_ROWS], row: usize, block: usize) -> __m512i {
    let low = _mm512_castsi256_si512(load_codes(&rows[row][block].codes));
    _mm512_inserti64x4::<1>(low, load_codes(&rows[row + 4][block].codes))
}

/// Of four registers with eight partial sums of two rows each: the sums of each 128-bit part, four rows side by side.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_4([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// The sums of sixteen rows from two times the parts of eight.
#[inline]
#[target_feature(enable = "avx512f")]
fn fold_rows(low: __m512i, high: __m512i) -> __m512i {
    _mm512_add_epi32(_mm512_shuffle_i32x4::<0b10_00_10_00>(low, high), _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high))
}
