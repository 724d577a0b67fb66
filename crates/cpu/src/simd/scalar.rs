//! Plain Rust: runs on every CPU, and says what each word means.

use half::{bf16, f16};
use tensor::quant::q8_0;

use super::{Kernel, LANES, PANEL_ROWS, PairBlock, PanelCodes, Simd, TILE_FEATURES};
use crate::kernels::quantize::QuantizedBlock;

/// The level that every CPU has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scalar;

/// `of` each index. A loop, because the builds of tests leave the parts of [`std::array::from_fn`] and `map` as
/// functions of their own: a call for each element then took most of the time of plain code.
#[inline(always)]
fn array<T: Copy + Default, const N: usize>(mut of: impl FnMut(usize) -> T) -> [T; N] {
    let mut elements = [T::default(); N];
    let mut index = 0;
    while index < N {
        elements[index] = of(index);
        index += 1;
    }
    elements
}

/// The sum of `of` each index below `count`.
#[inline(always)]
fn sum(count: usize, mut of: impl FnMut(usize) -> i32) -> i32 {
    let (mut sum, mut index) = (0, 0);
    while index < count {
        sum += of(index);
        index += 1;
    }
    sum
}

impl Scalar {
    #[inline(always)]
    fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
        array(|lane| f(a[lane], b[lane]))
    }
}

/// [`Simd::tile_products`] at a level that has no faster way.
pub(super) fn tile_products(x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
    let columns = panels.len() / blocks * LANES;
    for (x, sums) in x.chunks_exact(blocks * TILE_FEATURES).zip(sums.chunks_exact_mut(columns)) {
        for (column, sum) in sums.iter_mut().enumerate() {
            let panel = &panels[column / LANES * blocks..][..blocks];
            *sum = 0.0;
            for (x, pairs) in x.as_chunks::<TILE_FEATURES>().0.iter().zip(panel) {
                let (mut even, mut odd) = (0f32, 0f32);
                for (pair, x) in pairs.iter().zip(x.as_chunks::<2>().0) {
                    let [w_even, w_odd] = pair.as_chunks::<2>().0[column % LANES];
                    even = x[0].to_f32().mul_add(w_even.to_f32(), even);
                    odd = x[1].to_f32().mul_add(w_odd.to_f32(), odd);
                }
                *sum += even + odd;
            }
        }
    }
}

/// [`Simd::tile_products`] by dot products of pairs (`vdpbf16ps`): in a chain, whose sum is then added to those before, odd
/// products come before even ones. For ordinary numbers: subnormal ones are zero to the instruction.
#[cfg(test)]
pub(crate) fn tile_products_in_chains(x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
    let columns = panels.len() / blocks * LANES;
    for (x, sums) in x.chunks_exact(blocks * TILE_FEATURES).zip(sums.chunks_exact_mut(columns)) {
        for (column, sum) in sums.iter_mut().enumerate() {
            let panel = &panels[column / LANES * blocks..][..blocks];
            let x_blocks = x.as_chunks::<TILE_FEATURES>().0;
            *sum = 0.0;
            for (x, w) in x_blocks.chunks(super::CHAIN_BLOCKS).zip(panel.chunks(super::CHAIN_BLOCKS)) {
                let mut chain = 0f32;
                for (x, pairs) in x.as_flattened().as_chunks::<2>().0.iter().zip(w.as_flattened()) {
                    let w = pairs.as_chunks::<2>().0[column % LANES];
                    chain = x[1].to_f32().mul_add(w[1].to_f32(), chain);
                    chain = x[0].to_f32().mul_add(w[0].to_f32(), chain);
                }
                *sum += chain;
            }
        }
    }
}

/// [`Simd::tile_products`] where sums are rounded to odd (NEON's `bfdot` and `bfmmla`): within a block each pair of products
/// is added up, and then to what there is. For ordinary numbers: what the instructions make of infinities is not here.
#[cfg(test)]
pub(crate) fn tile_products_to_odd(x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
    let columns = panels.len() / blocks * LANES;
    for (x, sums) in x.chunks_exact(blocks * TILE_FEATURES).zip(sums.chunks_exact_mut(columns)) {
        for (column, sum) in sums.iter_mut().enumerate() {
            let panel = &panels[column / LANES * blocks..][..blocks];
            *sum = 0.0;
            for (x, pairs) in x.as_chunks::<TILE_FEATURES>().0.iter().zip(panel) {
                let mut chain = 0f32;
                for (pair, x) in pairs.iter().zip(x.as_chunks::<2>().0) {
                    let w = pair.as_chunks::<2>().0[column % LANES];
                    // Sixteen bits each: exact.
                    let products = [x[0].to_f32() * w[0].to_f32(), x[1].to_f32() * w[1].to_f32()];
                    chain = add_to_odd(chain, add_to_odd(products[0], products[1]));
                }
                *sum += chain;
            }
        }
    }
}

/// a + b, cut off, with the last bit set where something was cut; zero where the result is subnormal.
#[cfg(test)]
fn add_to_odd(a: f32, b: f32) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    // Rounded to f64, and what that lost (Knuth's two-sum).
    let sum = a + b;
    let rest = (a - (sum - (sum - a))) + (b - (sum - a));
    let mut odd = sum.to_bits();
    if rest != 0.0 {
        if (rest < 0.0) != (sum < 0.0) {
            odd -= 1;
        }
        odd |= 1;
    }
    let odd = f64::from_bits(odd);
    let nearest = odd as f32;
    let is_beyond = f64::from(nearest).abs() > odd.abs();
    let cut = if is_beyond { f32::from_bits(nearest.to_bits() - 1) } else { nearest };
    let result = f32::from_bits(cut.to_bits() | u32::from(f64::from(cut) != odd));
    if result.is_subnormal() { 0.0 } else { result }
}

impl Simd for Scalar {
    type F32 = [f32; LANES];

    const PANEL_XOR: u8 = 0;

    const WIDE: bool = false;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        fn plain<K: Kernel>(simd: Scalar, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        plain(self, kernel)
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F32 {
        [value; LANES]
    }

    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F32 {
        *values
    }

    #[inline(always)]
    fn load_f16(self, values: &[f16; LANES]) -> Self::F32 {
        array(|lane| values[lane].to_f32())
    }

    #[inline(always)]
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::F32 {
        array(|lane| values[lane].to_f32())
    }

    #[inline(always)]
    fn load_e4m3_pairs(self, codes: &[u8; 2 * LANES]) -> [Self::F32; 2] {
        // Sign, exponent and mantissa where binary16 has them, whose exponents are larger by 8.
        let widen = |code: u8| f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7).to_f32();
        [array(|lane| widen(codes[2 * lane])), array(|lane| widen(codes[2 * lane + 1]))]
    }

    #[inline(always)]
    fn store(self, vector: Self::F32, out: &mut [f32; LANES]) {
        *out = vector;
    }

    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        Self::zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        Self::zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        Self::zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        Self::zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        array(|lane| a[lane].mul_add(b[lane], c[lane]))
    }

    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        Self::zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        Self::zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn exp2_of_low_bits(self, biased: Self::F32) -> Self::F32 {
        array(|lane| f32::from_bits((biased[lane].to_bits() << 23).wrapping_add(1f32.to_bits())))
    }

    #[inline(always)]
    fn low_bytes(self, vector: Self::F32) -> [i8; LANES] {
        array(|lane| vector[lane].to_bits() as i8)
    }

    #[inline(always)]
    fn sum(self, mut v: Self::F32) -> f32 {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                v[lane] += v[lane + half];
            }
        }
        v[0]
    }

    #[inline(always)]
    fn max_lane(self, mut v: Self::F32) -> f32 {
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                v[lane] = if v[lane] > v[lane + half] { v[lane] } else { v[lane + half] };
            }
        }
        v[0]
    }

    #[inline(always)]
    fn q8_dots(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> Self::F32 {
        array(|row| {
            let w = &rows[row][block].codes;
            sum(w.len(), |i| i32::from(w[i]) * i32::from(x.codes[i])) as f32
        })
    }

    #[inline(always)]
    fn q8_scales(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize) -> Self::F32 {
        array(|row| rows[row][block].scale.to_f32())
    }

    #[inline(always)]
    fn panel_dots<const MR: usize, const NP: usize>(
        self,
        codes: [&PanelCodes; NP],
        x: [&QuantizedBlock; MR],
    ) -> [[Self::F32; NP]; MR] {
        let dot = |codes: &PanelCodes, x: &QuantizedBlock, row: usize| {
            sum(32, |i| i32::from(codes[i / 4][row * 4 + i % 4].cast_signed()) * i32::from(x.codes[i])) as f32
        };
        let mut dots = [[[0.0; LANES]; NP]; MR];
        for (dots, x) in dots.iter_mut().zip(x) {
            for (dots, codes) in dots.iter_mut().zip(codes) {
                *dots = array(|row| dot(codes, x, row));
            }
        }
        dots
    }

    type I32 = [i32; LANES];
    type Bytes = [u8; 64];

    #[inline(always)]
    fn splat_i32(self, value: i32) -> Self::I32 {
        [value; LANES]
    }

    #[inline(always)]
    fn to_f32(self, sums: Self::I32) -> Self::F32 {
        array(|lane| sums[lane] as f32)
    }

    #[inline(always)]
    fn splat_bytes(self, value: u8) -> Self::Bytes {
        [value; 64]
    }

    #[inline(always)]
    fn load_bytes(self, bytes: &[u8; 64]) -> Self::Bytes {
        *bytes
    }

    #[inline(always)]
    fn store_bytes(self, bytes: Self::Bytes, out: &mut [u8; 64]) {
        *out = bytes;
    }

    #[inline(always)]
    fn and_bytes(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes {
        array(|i| bytes[i] & mask)
    }

    #[inline(always)]
    fn or_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        array(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn shift_bytes_right<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        array(|i| bytes[i] >> N)
    }

    #[inline(always)]
    fn shift_bytes_left<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes {
        array(|i| bytes[i] << N)
    }

    #[inline(always)]
    fn shift_bytes_right_by(self, bytes: Self::Bytes, by: u32) -> Self::Bytes {
        array(|i| bytes[i] >> by)
    }

    #[inline(always)]
    fn lookup(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes {
        array(|i| table[usize::from(indices[i] & 15)])
    }

    #[inline(always)]
    fn add_byte_products(self, sums: Self::I32, w: Self::Bytes, x: i32) -> Self::I32 {
        let x = x.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
        array(|lane| sums[lane] + sum(4, |i| i32::from(w[4 * lane + i]) * x[i]))
    }

    #[inline(always)]
    fn load_u8(self, values: &[u8; LANES]) -> Self::F32 {
        array(|lane| f32::from(values[lane]))
    }

    #[inline(always)]
    fn load_i8(self, values: &[i8; LANES]) -> Self::F32 {
        array(|lane| f32::from(values[lane]))
    }

    #[inline(always)]
    fn prefetch<T>(self, _at: *const T) {}
}
