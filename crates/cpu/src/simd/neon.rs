//! NEON (Advanced SIMD of every aarch64), with or without dot products and matrix products of bytes and matrix products of
//! bfloat16 ([`super::neon_bf16`]): four registers a vector, lanes 0 to 3, 4 to 7, and so on. Those products have no stable
//! intrinsics yet, so they are assembly.

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};
use tensor::quant::q8_0;

use super::{Kernel, LANES, PANEL_ROWS, PairBlock, PanelCodes, Simd, neon_bf16, scalar};
use crate::kernels::quantize::QuantizedBlock;

/// The proof that this CPU has neon, dotprod where `DOT`, i8mm where `I8MM`, which comes with `DOT` only, and bf16 where
/// `BF16`, which comes with both only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon<const DOT: bool, const I8MM: bool, const BF16: bool>(());

impl<const DOT: bool, const I8MM: bool, const BF16: bool> Neon<DOT, I8MM, BF16> {
    /// # Safety
    ///
    /// The CPU must have the features that the type stands for.
    pub(crate) unsafe fn assume() -> Self {
        Self(())
    }
}

/// One word of four registers from one of one register.
macro_rules! all {
    ($intrinsic:ident($($vector:expr),+)) => {
        // SAFETY: a value of `Neon` exists, so the CPU has the feature.
        unsafe {
            [
                $intrinsic($($vector[0]),+),
                $intrinsic($($vector[1]),+),
                $intrinsic($($vector[2]),+),
                $intrinsic($($vector[3]),+),
            ]
        }
    };
}

impl<const DOT: bool, const I8MM: bool, const BF16: bool> Simd for Neon<DOT, I8MM, BF16> {
    type F32 = [float32x4_t; 4];

    const PANEL_XOR: u8 = 0;

    const WIDE: bool = false;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "neon,dotprod,i8mm,bf16")]
        #[inline(never)]
        fn with_bf16<K: Kernel>(simd: Neon<true, true, true>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "neon,dotprod,i8mm")]
        #[inline(never)]
        fn with_i8mm<K: Kernel>(simd: Neon<true, true, false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "neon,dotprod")]
        #[inline(never)]
        fn with_dot<K: Kernel>(simd: Neon<true, false, false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        #[target_feature(enable = "neon")]
        #[inline(never)]
        fn without<K: Kernel>(simd: Neon<false, false, false>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        if BF16 {
            // SAFETY: `self` proves the features.
            unsafe { with_bf16(Neon(()), kernel) }
        } else if I8MM {
            // SAFETY: `self` proves the features.
            unsafe { with_i8mm(Neon(()), kernel) }
        } else if DOT {
            // SAFETY: `self` proves the features.
            unsafe { with_dot(Neon(()), kernel) }
        } else {
            // SAFETY: `self` proves the feature.
            unsafe { without(Neon(()), kernel) }
        }
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F32 {
        // SAFETY: `self` proves the feature.
        [unsafe { vdupq_n_f32(value) }; 4]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F32 {
        let at = values.as_ptr();
        // SAFETY: `self` proves the feature; quarters of sixteen f32.
        unsafe { [vld1q_f32(at), vld1q_f32(at.add(4)), vld1q_f32(at.add(8)), vld1q_f32(at.add(12))] }
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> Self::F32 {
        let at: *const u16 = values.as_ptr().cast();
        // SAFETY: `self` proves the feature; quarters of sixteen halves.
        unsafe {
            [
                widen_f16(vld1_u16(at)),
                widen_f16(vld1_u16(at.add(4))),
                widen_f16(vld1_u16(at.add(8))),
                widen_f16(vld1_u16(at.add(12))),
            ]
        }
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::F32 {
        let at: *const u16 = values.as_ptr().cast();
        // SAFETY: `self` proves the feature; quarters of sixteen halves.
        unsafe {
            [
                widen_bf16(vld1_u16(at)),
                widen_bf16(vld1_u16(at.add(4))),
                widen_bf16(vld1_u16(at.add(8))),
                widen_bf16(vld1_u16(at.add(12))),
            ]
        }
    }

    #[inline(always)]
    fn load_e4m3_pairs(self, codes: &[u8; 2 * LANES]) -> [Self::F32; 2] {
        let at = codes.as_ptr();
        // SAFETY: `self` proves the feature; halves of 32 bytes.
        unsafe {
            let (even_low, odd_low) = e4m3_pairs_as_f16(vld1q_u8(at));
            let (even_high, odd_high) = e4m3_pairs_as_f16(vld1q_u8(at.add(16)));
            [widen_all_f16(even_low, even_high), widen_all_f16(odd_low, odd_high)]
        }
    }

    #[inline(always)]
    fn store(self, vector: Self::F32, out: &mut [f32; LANES]) {
        let at = out.as_mut_ptr();
        // SAFETY: `self` proves the feature; room for four quarters of sixteen f32.
        unsafe {
            vst1q_f32(at, vector[0]);
            vst1q_f32(at.add(4), vector[1]);
            vst1q_f32(at.add(8), vector[2]);
            vst1q_f32(at.add(12), vector[3]);
        }
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        all!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        all!(vsubq_f32(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        all!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        all!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        all!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        all!(greater(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        all!(less(a, b))
    }

    #[inline(always)]
    fn exp2_of_low_bits(self, biased: Self::F32) -> Self::F32 {
        all!(exp2_of_low_bits(biased))
    }

    #[inline(always)]
    fn tile_products(self, x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
        if BF16 {
            // SAFETY: `self` proves the features.
            unsafe { neon_bf16::tile_products(x, blocks, panels, sums) }
        } else {
            scalar::tile_products(x, blocks, panels, sums);
        }
    }

    #[inline(always)]
    fn round_bf16(self, vector: Self::F32) -> [bf16; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        if !BF16 {
            return lanes.map(bf16::from_f32);
        }
        let mut out = [bf16::ZERO; LANES];
        for (vector, out) in vector.into_iter().zip(out.as_chunks_mut::<4>().0) {
            // SAFETY: `self` proves the features.
            *out = unsafe { neon_bf16::round_4(vector) };
        }
        out
    }

    #[inline(always)]
    fn low_bytes(self, vector: Self::F32) -> [i8; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        lanes.map(|value: f32| value.to_bits() as i8)
    }

    #[inline(always)]
    fn sum(self, v: Self::F32) -> f32 {
        // SAFETY: `self` proves the feature.
        unsafe { sum(v) }
    }

    #[inline(always)]
    fn max_lane(self, v: Self::F32) -> f32 {
        // SAFETY: `self` proves the feature.
        unsafe { max_lane(v) }
    }

    #[inline(always)]
    fn q8_dots(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> Self::F32 {
        let (rows, _) = rows.as_chunks::<4>();
        let mut dots = self.splat(0.0);
        for (dots, rows) in dots.iter_mut().zip(rows) {
            // SAFETY: `self` proves the features.
            *dots = unsafe { if DOT { q8_dots_4_sdot(rows, block, x) } else { q8_dots_4(rows, block, x) } };
        }
        dots
    }

    #[inline(always)]
    fn q8_scales(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize) -> Self::F32 {
        let mut scales = [f16::ZERO; LANES];
        for row in 0..PANEL_ROWS {
            scales[row] = rows[row][block].scale;
        }
        self.load_f16(&scales)
    }

    #[inline(always)]
    fn panel_dots<const MR: usize, const NP: usize>(
        self,
        codes: [&PanelCodes; NP],
        x: [&QuantizedBlock; MR],
    ) -> [[Self::F32; NP]; MR] {
        let mut dots = [[self.splat(0.0); NP]; MR];
        for panel in 0..NP {
            let mut row = 0;
            while I8MM && row + 2 <= MR {
                // SAFETY: `self` proves the features.
                [dots[row][panel], dots[row + 1][panel]] =
                    unsafe { panel_dots_smmla(codes[panel], [x[row], x[row + 1]]) };
                row += 2;
            }
            while row < MR {
                let (codes, x) = (codes[panel], x[row]);
                // SAFETY: `self` proves the features.
                dots[row][panel] = unsafe { if DOT { panel_dots_sdot(codes, x) } else { panel_dots(codes, x) } };
                row += 1;
            }
        }
        dots
    }

    type I32 = [int32x4_t; 4];
    type Bytes = [uint8x16_t; 4];

    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I32 {
        // SAFETY: `self` proves the feature.
        [unsafe { vdupq_n_s32(value) }; 4]
    }

    #[inline(always)]
    fn to_f32(self, sums: Self::I32) -> Self::F32 {
        all!(vcvtq_f32_s32(sums))
    }

    #[inline(always)]
    fn splat_bytes(self, value: u8) -> Self::Bytes {
        // SAFETY: `self` proves the feature.
        [unsafe { vdupq_n_u8(value) }; 4]
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> Self::Bytes {
        let at = bytes.as_ptr();
        // SAFETY: `self` proves the feature; quarters of 64 bytes.
        unsafe { [vld1q_u8(at), vld1q_u8(at.add(16)), vld1q_u8(at.add(32)), vld1q_u8(at.add(48))] }
    }

    #[inline(always)]
    fn store_bytes(self, bytes: Self::Bytes, out: &mut [u8; 64]) {
        for (bytes, out) in bytes.into_iter().zip(out.as_chunks_mut::<16>().0) {
            // SAFETY: `self` proves the feature; sixteen bytes.
            unsafe { vst1q_u8(out.as_mut_ptr(), bytes) };
        }
    }

    #[inline(always)]
    fn and_bytes(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        let mask = self.splat_bytes(mask);
        all!(vandq_u8(bytes, mask))
    }

    #[inline(always)]
    fn or_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        all!(vorrq_u8(a, b))
    }

    #[inline(always)]
    fn shift_bytes_right<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves the feature.
        let by = [unsafe { vdupq_n_s8(-(N as i8)) }; 4];
        all!(vshlq_u8(bytes, by))
    }

    #[inline(always)]
    fn shift_bytes_left<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves the feature.
        let by = [unsafe { vdupq_n_s8(N as i8) }; 4];
        all!(vshlq_u8(bytes, by))
    }

    #[inline(always)]
    fn shift_bytes_right_by(self, bytes: Self::Bytes, by: u32) -> Self::Bytes {
        // SAFETY: `self` proves the feature.
        let by = [unsafe { vdupq_n_s8(-(by as i8)) }; 4];
        all!(vshlq_u8(bytes, by))
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` proves the feature; sixteen bytes.
        let table = [unsafe { vld1q_u8(table.as_ptr()) }; 4];
        all!(vqtbl1q_u8(table, indices))
    }

    #[inline(always)]
    fn add_byte_products(self, sums: Self::I32, w: Self::Bytes, x: i32) -> Self::I32 {
        let mut sums = sums;
        for quarter in 0..4 {
            // SAFETY: `self` proves the features. Bytes up to 127 are the same signed.
            unsafe {
                let (w, x) = (vreinterpretq_s8_u8(w[quarter]), vreinterpretq_s8_s32(vdupq_n_s32(x)));
                sums[quarter] =
                    if DOT { sdot(sums[quarter], w, x) } else { vaddq_s32(sums[quarter], byte_products(w, x)) };
            }
        }
        sums
    }

    #[inline(always)]
    fn load_u8(self, values: &[u8; LANES]) -> Self::F32 {
        // SAFETY: `self` proves the feature; sixteen bytes.
        unsafe {
            let bytes = vld1q_u8(values.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
            [
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_u16(vget_high_u16(high))),
            ]
        }
    }

    #[inline(always)]
    fn load_i8(self, values: &[i8; LANES]) -> Self::F32 {
        // SAFETY: `self` proves the feature; sixteen bytes.
        unsafe {
            let bytes = vld1q_s8(values.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))),
            ]
        }
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        // SAFETY: a prefetch of any address is a hint, which cannot fault.
        unsafe { asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly)) }
    }
}

/// Four binary16 as f32, exactly. The conversion is part of every Advanced SIMD, but its intrinsic wants the f16 type.
#[inline]
#[target_feature(enable = "neon")]
fn widen_f16(halves: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: one instruction from one register to another.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

/// As [`widen_f16`], sixteen.
#[inline]
#[target_feature(enable = "neon")]
fn widen_all_f16(low: uint16x8_t, high: uint16x8_t) -> [float32x4_t; 4] {
    [
        widen_f16(vget_low_u16(low)),
        widen_f16(vget_high_u16(low)),
        widen_f16(vget_low_u16(high)),
        widen_f16(vget_high_u16(high)),
    ]
}

/// The numbers of E4M3 times 2⁻⁸ as binary16, of codes in even and in odd bytes: one bit of exponent more comes below the sign.
#[inline]
#[target_feature(enable = "neon")]
fn e4m3_pairs_as_f16(codes: uint8x16_t) -> (uint16x8_t, uint16x8_t) {
    let codes = vreinterpretq_s16_u8(codes);
    let (even, odd) = (vshrq_n_s16::<1>(vshlq_n_s16::<8>(codes)), vshrq_n_s16::<1>(codes));
    let mask = vdupq_n_u16(0xbf80);
    (vandq_u16(vreinterpretq_u16_s16(even), mask), vandq_u16(vreinterpretq_u16_s16(odd), mask))
}

#[inline]
#[target_feature(enable = "neon")]
fn widen_bf16(halves: uint16x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshll_n_u16::<16>(halves))
}

/// a > b ? a : b. The instruction `fmax` treats NaN and zeros otherwise.
#[inline]
#[target_feature(enable = "neon")]
fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

/// a < b ? a : b.
#[inline]
#[target_feature(enable = "neon")]
fn less(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn exp2_of_low_bits(biased: float32x4_t) -> float32x4_t {
    let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(biased));
    vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(1f32.to_bits())))
}

#[inline]
#[target_feature(enable = "neon")]
fn sum(v: [float32x4_t; 4]) -> f32 {
    let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    let pairs = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    vget_lane_f32::<0>(pairs) + vget_lane_f32::<1>(pairs)
}

#[inline]
#[target_feature(enable = "neon")]
fn max_lane(v: [float32x4_t; 4]) -> f32 {
    let v = greater(greater(v[0], v[2]), greater(v[1], v[3]));
    let (low, high) = (vget_low_f32(v), vget_high_f32(v));
    let pairs = vbsl_f32(vcgt_f32(low, high), low, high);
    let (a, b) = (vget_lane_f32::<0>(pairs), vget_lane_f32::<1>(pairs));
    if a > b { a } else { b }
}

/// Four exact sums.
#[inline]
#[target_feature(enable = "neon")]
fn q8_dots_4(rows: &[&[q8_0::Block]; 4], block: usize, x: &QuantizedBlock) -> float32x4_t {
    let (x_low, x_high) = load_codes(&x.codes);
    let products = |row: usize| {
        let (w_low, w_high) = load_codes(&rows[row][block].codes);
        vaddq_s32(byte_products(w_low, x_low), byte_products(w_high, x_high))
    };
    let (ab, cd) = (vpaddq_s32(products(0), products(1)), vpaddq_s32(products(2), products(3)));
    vcvtq_f32_s32(vpaddq_s32(ab, cd))
}

/// Sixteen exact sums from a panel.
#[inline]
#[target_feature(enable = "neon")]
fn panel_dots(codes: &PanelCodes, x: &QuantizedBlock) -> [float32x4_t; 4] {
    let mut sums = [vdupq_n_s32(0); 4];
    for (group, codes) in codes.iter().enumerate() {
        let x = vreinterpretq_s8_s32(vdupq_n_s32(x.four(group)));
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<16>().0) {
            *sum = vaddq_s32(*sum, byte_products(load_16(codes), x));
        }
    }
    [vcvtq_f32_s32(sums[0]), vcvtq_f32_s32(sums[1]), vcvtq_f32_s32(sums[2]), vcvtq_f32_s32(sums[3])]
}

/// As [`q8_dots_4`], by dot products.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn q8_dots_4_sdot(rows: &[&[q8_0::Block]; 4], block: usize, x: &QuantizedBlock) -> float32x4_t {
    let (x_low, x_high) = load_codes(&x.codes);
    let products = |row: usize| {
        let (w_low, w_high) = load_codes(&rows[row][block].codes);
        sdot(sdot(vdupq_n_s32(0), w_low, x_low), w_high, x_high)
    };
    let (ab, cd) = (vpaddq_s32(products(0), products(1)), vpaddq_s32(products(2), products(3)));
    vcvtq_f32_s32(vpaddq_s32(ab, cd))
}

/// As [`panel_dots`], by dot products: four rows of weights in a register.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn panel_dots_sdot(codes: &PanelCodes, x: &QuantizedBlock) -> [float32x4_t; 4] {
    let mut sums = [vdupq_n_s32(0); 4];
    for (group, codes) in codes.iter().enumerate() {
        let x = vreinterpretq_s8_s32(vdupq_n_s32(x.four(group)));
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<16>().0) {
            *sum = sdot(*sum, load_16(codes), x);
        }
    }
    sums.map(|sum| vcvtq_f32_s32(sum))
}

/// As [`panel_dots`] for two rows of x, by products of matrices: eight codes of two rows of weights in a register, from two
/// groups of four.
#[inline]
#[target_feature(enable = "neon,dotprod,i8mm")]
fn panel_dots_smmla(codes: &PanelCodes, x: [&QuantizedBlock; 2]) -> [[float32x4_t; 4]; 2] {
    // For each two rows of weights: their products with the first row of x and with the second, row by row.
    let mut sums = [vdupq_n_s32(0); 8];
    for (index, groups) in codes.as_chunks::<2>().0.iter().enumerate() {
        let eight = |x: &QuantizedBlock| {
            let (first, second) = (x.four(2 * index), x.four(2 * index + 1));
            i64::from(first.cast_unsigned()) | i64::from(second) << 32
        };
        let x = vreinterpretq_s8_s64(vcombine_s64(vcreate_s64(eight(x[0]) as u64), vcreate_s64(eight(x[1]) as u64)));
        for quarter in 0..4 {
            let [first, second] =
                [0, 1].map(|group: usize| vreinterpretq_s32_s8(load_16(&groups[group].as_chunks::<16>().0[quarter])));
            let (low, high) = (vzip1q_s32(first, second), vzip2q_s32(first, second));
            sums[2 * quarter] = smmla(sums[2 * quarter], vreinterpretq_s8_s32(low), x);
            sums[2 * quarter + 1] = smmla(sums[2 * quarter + 1], vreinterpretq_s8_s32(high), x);
        }
    }
    let mut dots = [[vdupq_n_f32(0.0); 4]; 2];
    for quarter in 0..4 {
        let (low, high) = (sums[2 * quarter], sums[2 * quarter + 1]);
        dots[0][quarter] = vcvtq_f32_s32(vuzp1q_s32(low, high));
        dots[1][quarter] = vcvtq_f32_s32(vuzp2q_s32(low, high));
    }
    dots
}

/// Adds to each lane the products of its four bytes, exactly.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn sdot(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction from registers to a register.
    unsafe {
        asm!("sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds the products of two rows of eight bytes with two others, exactly: a0 · b0, a0 · b1, a1 · b0, a1 · b1.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction from registers to a register.
    unsafe {
        asm!("smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
             options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

#[inline]
#[target_feature(enable = "neon")]
fn load_16(codes: &[u8; 16]) -> int8x16_t {
    // SAFETY: sixteen bytes.
    unsafe { vld1q_s8(codes.as_ptr().cast()) }
}

/// Sums of four neighbouring products, exact.
#[inline]
#[target_feature(enable = "neon")]
fn byte_products(w: int8x16_t, x: int8x16_t) -> int32x4_t {
    let low = vmull_s8(vget_low_s8(w), vget_low_s8(x));
    let high = vmull_s8(vget_high_s8(w), vget_high_s8(x));
    // Each product is below 2¹⁴ in magnitude or 2¹⁴ itself, so the pairwise sums are made in 32 bits.
    vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))
}

#[inline]
#[target_feature(enable = "neon")]
fn load_codes(codes: &[i8; 32]) -> (int8x16_t, int8x16_t) {
    // SAFETY: the halves of 32 bytes.
    unsafe { (vld1q_s8(codes.as_ptr()), vld1q_s8(codes.as_ptr().add(16))) }
}
