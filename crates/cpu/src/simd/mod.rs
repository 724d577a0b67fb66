//! The vector vocabulary that kernels are written in: sixteen f32 at a time, at every instruction set.
//!
//! A kernel is written once, against [`Simd`]; each level is one file here that says what the words mean. All levels
//! have the same sixteen lanes and every word is exactly defined (fused multiply-add, round to nearest even, one tree
//! for sums), so **a kernel gives the same bits at every level**: AVX2 uses two registers, NEON four, scalar an array.
//! [`crate::kernels`] says what that costs.
//!
//! A value of a level's type is the proof that the CPU has it: only [`crate::Isa`] makes one.

use half::{bf16, f16};
use tensor::quant::q8_0;

use crate::kernels::quantize::QuantizedBlock;

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_bf16;
pub(crate) mod scalar;

/// f32 in one vector, at every level.
pub(crate) const LANES: usize = 16;

/// Rows of a Q8_0 weight that are multiplied together: one per lane.
pub(crate) const PANEL_ROWS: usize = LANES;

/// The codes of one block of each of sixteen rows: entry g holds codes 4g..4g + 4 of row r at bytes 4r..4r + 4.
pub(crate) type PanelCodes = [[u8; 64]; 8];

/// bfloat16 of a row in a tile.
pub(crate) const TILE_FEATURES: usize = 2 * LANES;

/// Rows that [`Simd::tile_products`] takes at most where tiles have sixteen: two of them.
pub(crate) const TILE_PAIR_ROWS: usize = 2 * LANES;

/// Rows that it takes at most at any level: whole tiles of six.
pub(crate) const MOST_TILE_ROWS: usize = 48;

/// Blocks whose products are one chain of additions where products of bfloat16 are dot products.
#[cfg(any(test, target_arch = "x86_64"))]
pub(crate) const CHAIN_BLOCKS: usize = 4;

/// Thirty-two features of each of sixteen rows: entry p holds features 2p and 2p + 1 of row r at 2r and 2r + 1.
pub(crate) type PairBlock = [[bf16; TILE_FEATURES]; LANES];

/// The words of [`Simd`] that a kernel is made of beside those for f32, which are the same code at levels that differ in the
/// others alone: [`crate::Isa::run`] has it compiled once for all of these. To compile kernels is most of a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// Those for f32 alone, and what moves numbers of any kind.
    Floats,
    /// Products of bytes, and the layout that they want ([`Simd::PANEL_XOR`]).
    Bytes,
    /// Products of bfloat16.
    Bfloats,
}

/// A computation over some level's vectors; [`Simd::vectorize`] compiles it for that level.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The words that it is made of.
    const WORDS: Words;
    /// The computation. Everything that it calls, down to the words of `S`, must be `#[inline(always)]`, because only what is
    /// inlined is compiled for the level; or a kernel, called by [`Simd::vectorize`]. The loops for each number of rows are a
    /// kernel of their own.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// What one instruction set can do to sixteen f32. Every method gives the same bits at every level.
pub(crate) trait Simd: Copy {
    /// Sixteen f32.
    type F32: Copy;

    /// What the codes of a panel are xored with, so that the level's byte products can be used as they are.
    const PANEL_XOR: u8;

    /// Sixteen sums of integers.
    type I32: Copy;

    /// Sixty-four unsigned bytes, four for each lane.
    type Bytes: Copy;

    /// Whether a vector is one register of 32, so that tiles of sixteen and more accumulators stay in registers.
    const WIDE: bool;

    /// Runs `kernel` compiled for this level, as a function of its own: the compiler's time for a function grows faster than
    /// the number of its loops. With the loops for all numbers of rows in one function, this crate took it 3.5 times as long.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// `value` in every lane.
    fn splat(self, value: f32) -> Self::F32;
    /// Sixteen consecutive values.
    fn load(self, values: &[f32; LANES]) -> Self::F32;
    /// Sixteen binary16, widened exactly.
    fn load_f16(self, values: &[f16; LANES]) -> Self::F32;
    /// Sixteen bfloat16, widened exactly.
    fn load_bf16(self, values: &[bf16; LANES]) -> Self::F32;
    /// The numbers of E4M3 times 2⁻⁸, exactly, of codes 2l for each lane l, and of codes 2l + 1. NaN counts as 480.
    fn load_e4m3_pairs(self, codes: &[u8; 2 * LANES]) -> [Self::F32; 2];
    /// Writes the lanes in order.
    fn store(self, vector: Self::F32, out: &mut [f32; LANES]);

    /// a + b.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a - b.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a · b.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a / b.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a · b + c, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// a > b ? a : b, so b where either is NaN.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// a < b ? a : b, so b where either is NaN.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// 2ⁿ for the integer n in the low nine bits of each lane's mantissa: what adding 1.5 · 2²³ leaves there.
    fn exp2_of_low_bits(self, biased: Self::F32) -> Self::F32;

    /// Rows that [`Simd::tile_products`] takes at most.
    const TILE_ROWS: usize = TILE_PAIR_ROWS;

    /// The products of bfloat16 matrices: `x` is (rows, 32 · blocks) with up to [`Simd::TILE_ROWS`] rows, `panels` has
    /// `blocks` for each sixteen columns of `sums`, which is (rows, columns). For each output, block after block adds the
    /// sum of its even and its odd products, each a chain of fused multiply-adds that begins at zero. Subnormal numbers may
    /// count as zero. Two levels have orders of their own: see `neon_bf16` and `avx512_bf16`.
    #[inline(always)]
    fn tile_products(self, x: &[bf16], blocks: usize, panels: &[PairBlock], sums: &mut [f32]) {
        scalar::tile_products(x, blocks, panels, sums);
    }

    /// Each lane to the nearest bfloat16, to even at a tie; NaN stays NaN.
    #[inline(always)]
    fn round_bf16(self, vector: Self::F32) -> [bf16; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(vector, &mut lanes);
        lanes.map(bf16::from_f32)
    }

    /// The low byte of each lane's bits.
    fn low_bytes(self, vector: Self::F32) -> [i8; LANES];

    /// The sum of all lanes by halves: l + (l + 8), then + 4, + 2, + 1.
    fn sum(self, vector: Self::F32) -> f32;
    /// The sums of four vectors, each as [`Simd::sum`] has it.
    #[inline(always)]
    fn sum_4(self, vectors: [Self::F32; 4]) -> [f32; 4] {
        [self.sum(vectors[0]), self.sum(vectors[1]), self.sum(vectors[2]), self.sum(vectors[3])]
    }
    /// The largest lane, by [`Simd::max`] in the order of [`Simd::sum`].
    fn max_lane(self, vector: Self::F32) -> f32;
    /// [`Simd::max_lane`] of each of four vectors of numbers.
    #[inline(always)]
    fn max_4(self, vectors: [Self::F32; 4]) -> [f32; 4] {
        [self.max_lane(vectors[0]), self.max_lane(vectors[1]), self.max_lane(vectors[2]), self.max_lane(vectors[3])]
    }

    /// Σ codes · codes of block `block` of each of sixteen rows with one activation block: exact integers.
    fn q8_dots(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize, x: &QuantizedBlock) -> Self::F32;
    /// The scales of block `block` of sixteen rows.
    fn q8_scales(self, rows: &[&[q8_0::Block]; PANEL_ROWS], block: usize) -> Self::F32;
    /// As [`Simd::q8_dots`], from several panels and for several activation rows.
    fn panel_dots<const MR: usize, const NP: usize>(
        self,
        codes: [&PanelCodes; NP],
        x: [&QuantizedBlock; MR],
    ) -> [[Self::F32; NP]; MR];

    /// `value` in every lane.
    fn splat_i32(self, value: i32) -> Self::I32;
    /// Each lane as f32, to nearest even.
    fn to_f32(self, sums: Self::I32) -> Self::F32;
    /// `value` in every byte.
    fn splat_bytes(self, value: u8) -> Self::Bytes;
    /// Sixty-four consecutive bytes.
    fn load_bytes(self, bytes: &[u8; 64]) -> Self::Bytes;
    /// Writes the bytes in order.
    fn store_bytes(self, bytes: Self::Bytes, out: &mut [u8; 64]);
    /// `mask` of every byte.
    fn and_bytes(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    /// The bits of both.
    fn or_bytes(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Every byte shifted right by N.
    fn shift_bytes_right<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Every byte shifted left by N.
    fn shift_bytes_left<const N: u32>(self, bytes: Self::Bytes) -> Self::Bytes;
    /// Every byte shifted right by `by`, which is below 8.
    fn shift_bytes_right_by(self, bytes: Self::Bytes, by: u32) -> Self::Bytes;
    /// Entry i of `table` for each byte i, all below 16.
    fn lookup(self, table: &[u8; 16], indices: Self::Bytes) -> Self::Bytes;
    /// sums + the products of each lane's four bytes of `w`, at most 127 each, with the four signed bytes of `x`. Exact.
    fn add_byte_products(self, sums: Self::I32, w: Self::Bytes, x: i32) -> Self::I32;
    /// As [`Simd::add_byte_products`], with any bytes.
    #[inline(always)]
    fn add_wide_byte_products(self, sums: Self::I32, w: Self::Bytes, x: i32) -> Self::I32 {
        // Half of the highest bit, twice.
        let high = self.shift_bytes_right::<1>(self.and_bytes(w, 128));
        let sums = self.add_byte_products(self.add_byte_products(sums, high, x), high, x);
        self.add_byte_products(sums, self.and_bytes(w, 127), x)
    }
    /// Sixteen bytes, widened exactly.
    fn load_u8(self, values: &[u8; LANES]) -> Self::F32;
    /// Sixteen signed bytes, widened exactly.
    fn load_i8(self, values: &[i8; LANES]) -> Self::F32;

    /// Thirty-two bytes of each of sixteen rows side by side, four by four, xored with `xor`.
    #[inline(always)]
    fn interleave(self, rows: [&[u8; 32]; PANEL_ROWS], xor: u8, out: &mut PanelCodes) {
        for (lane, row) in rows.iter().enumerate() {
            for (group, four) in row.as_chunks::<4>().0.iter().enumerate() {
                out[group][4 * lane..4 * lane + 4].copy_from_slice(&four.map(|byte| byte ^ xor));
            }
        }
    }

    /// Asks for the cache line that holds `at`; a hint, which may point anywhere.
    fn prefetch<T>(self, at: *const T);

    /// The first `values.len() < 16` lanes from `values`, the rest zero.
    #[inline(always)]
    fn load_partial(self, values: &[f32]) -> Self::F32 {
        let mut padded = [0.0; LANES];
        padded[..values.len()].copy_from_slice(values);
        self.load(&padded)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use tensor::quant::fp8;
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::panels::{PackPanel, Panel, Q8_0};

    /// Runs every word on the same lanes and returns all results, to be compared between levels.
    struct EveryWord([f32; LANES], [f32; LANES], [f32; LANES]);

    impl Kernel for EveryWord {
        type Output = Vec<u32>;
        const WORDS: Words = Words::Bfloats;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<u32> {
            let (a, b, c) = (s.load(&self.0), s.load(&self.1), s.load(&self.2));
            let halves = self.0.map(f16::from_f32);
            let uppers = self.0.map(bf16::from_f32);
            let biased = s.add(s.splat(12_582_912.0), s.min(s.max(b, s.splat(-126.0)), s.splat(127.0)));
            let vectors = [
                s.splat(self.0[3]),
                s.load_f16(&halves),
                s.load_bf16(&uppers),
                s.add(a, b),
                s.sub(a, b),
                s.mul(a, b),
                s.div(a, b),
                s.mul_add(a, b, c),
                s.max(a, b),
                s.min(a, b),
                s.exp2_of_low_bits(biased),
                s.load_partial(&self.0[..5]),
            ];
            let mut bits = Vec::new();
            for vector in vectors {
                let mut lanes = [0.0; LANES];
                s.store(vector, &mut lanes);
                bits.extend(lanes.map(canonical));
            }
            bits.extend([s.sum(a), s.max_lane(b)].map(canonical));
            bits.extend(s.low_bytes(biased).map(|byte| u32::from(byte.cast_unsigned())));
            bits.extend(s.sum_4([a, b, c, s.add(a, c)]).map(canonical));
            // Far from 1, so that few are equal after rounding; NaN is any that is one.
            bits.extend(s.round_bf16(s.mul(a, s.splat(1.234_567))).map(|x| canonical(x.to_f32())));
            bits
        }
    }

    /// Bits, with one NaN for all: which payload an operation keeps is not part of the contract.
    fn canonical(value: f32) -> u32 {
        if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
    }

    #[test]
    fn every_word_gives_the_same_bits_at_every_level() {
        let special = [0.0, -0.0, 1.0, -1.5, 1e-40, -1e-45, 3.4e38, -3.4e38, 65504.0, 6e-8, f32::INFINITY, f32::NAN];
        let mut rng = Rng::new(7);
        for round in 0..200 {
            let mut lane = |_| if round % 2 == 1 { special[rng.below(special.len())] } else { rng.normal() * 3.0 };
            let (a, b, c) =
                (std::array::from_fn(&mut lane), std::array::from_fn(&mut lane), std::array::from_fn(&mut lane));
            let expected = Isa::scalar().run(EveryWord(a, b, c));
            for isa in Isa::available() {
                assert_eq!(isa.run(EveryWord(a, b, c)), expected, "{isa} of {a:?}, {b:?}, {c:?}");
            }
        }
    }

    struct E4m3Pairs<'a>(&'a [u8; 2 * LANES]);

    impl Kernel for E4m3Pairs<'_> {
        type Output = [[f32; LANES]; 2];
        const WORDS: Words = Words::Floats;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let mut out = [[0.0; LANES]; 2];
            for (vector, out) in s.load_e4m3_pairs(self.0).into_iter().zip(&mut out) {
                s.store(vector, out);
            }
            out
        }
    }

    #[test]
    fn every_code_of_e4m3_is_its_number_at_every_level() {
        for first in (0..256).step_by(2 * LANES) {
            let codes: [u8; 2 * LANES] = std::array::from_fn(|i| (first + i) as u8);
            for isa in Isa::available() {
                let found = isa.run(E4m3Pairs(&codes));
                for (i, &code) in codes.iter().enumerate() {
                    let number = match code {
                        0x7f => 480.0,
                        0xff => -480.0,
                        _ => fp8::e4m3(code),
                    };
                    assert_eq!(found[i % 2][i / 2].to_bits(), (number * fp8::UNIT).to_bits(), "{isa} code {code}");
                }
            }
        }
    }

    /// The words of bytes.
    struct ByteWords<'a>(&'a [u8; 64], i32);

    impl Kernel for ByteWords<'_> {
        type Output = Vec<[f32; LANES]>;
        const WORDS: Words = Words::Bytes;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let bytes = s.load_bytes(self.0);
            let small = s.and_bytes(bytes, 127);
            let mixed = s.or_bytes(s.shift_bytes_left::<4>(s.and_bytes(bytes, 3)), s.shift_bytes_right::<4>(bytes));
            let start = s.splat_i32(-77);
            let sums =
                [small, s.shift_bytes_right::<2>(small), mixed, s.and_bytes(s.shift_bytes_left::<2>(bytes), 127)]
                    .map(|w| s.to_f32(s.add_byte_products(start, w, self.1)));
            let sixteen = self.0.first_chunk().expect("sixty-four bytes");
            let table = std::array::from_fn(|i| (i * 37 % 128) as u8);
            let more = [
                s.add_byte_products(start, s.shift_bytes_right_by(small, 3), self.1),
                s.add_byte_products(start, s.lookup(&table, s.and_bytes(bytes, 15)), self.1),
                s.add_wide_byte_products(start, bytes, self.1),
            ]
            .map(|sums| s.to_f32(sums));
            let loads = [s.load_u8(sixteen), s.load_i8(bytemuck::cast_ref(sixteen))];
            let store = |vector| {
                let mut lanes = [0.0; LANES];
                s.store(vector, &mut lanes);
                lanes
            };
            sums.into_iter().chain(more).chain(loads).map(store).collect()
        }
    }

    #[test]
    fn words_of_bytes_are_exact_at_every_level() {
        let mut rng = Rng::new(9);
        for _ in 0..100 {
            let bytes: [u8; 64] = std::array::from_fn(|_| rng.below(256) as u8);
            let x: [i8; 4] = std::array::from_fn(|_| if rng.below(3) == 0 { -127 } else { rng.below(255) as u8 as i8 });
            let x = x.map(|x| x.max(-127));
            let word = i32::from_le_bytes(x.map(i8::cast_unsigned));
            let dots = |of: fn(u8) -> u8| {
                let dot =
                    |lane: usize| -> i32 { (0..4).map(|i| i32::from(of(bytes[4 * lane + i])) * i32::from(x[i])).sum() };
                std::array::from_fn::<f32, LANES, _>(|lane| (dot(lane) - 77) as f32)
            };
            let expected = [
                dots(|byte| byte & 127),
                dots(|byte| (byte & 127) >> 2),
                dots(|byte| (byte & 3) << 4 | byte >> 4),
                dots(|byte| byte << 2 & 127),
                dots(|byte| (byte & 127) >> 3),
                dots(|byte| (usize::from(byte & 15) * 37 % 128) as u8),
                dots(|byte| byte),
                std::array::from_fn(|lane| f32::from(bytes[lane])),
                std::array::from_fn(|lane| f32::from(bytes[lane].cast_signed())),
            ];
            for isa in Isa::available() {
                assert_eq!(isa.run(ByteWords(&bytes, word)), expected, "{isa}");
            }
        }
    }

    /// The int8 words on blocks that hold every byte value.
    struct Bytes<'a>([&'a [q8_0::Block]; PANEL_ROWS], &'a QuantizedBlock);

    impl Kernel for Bytes<'_> {
        type Output = ([f32; LANES], [f32; LANES], [f32; LANES]);
        const WORDS: Words = Words::Bytes;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let mut out = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            s.store(s.q8_dots(&self.0, 0, self.1), &mut out.0);
            s.store(s.q8_scales(&self.0, 0), &mut out.1);
            let mut bytes = vec![0; Panel::<Q8_0>::bytes(1)];
            PackPanel::<Q8_0> { rows: self.0.map(Some), out: &mut bytes }.run(s);
            let [[dots]] = s.panel_dots([&Panel::<Q8_0>::new(&bytes, 1).blocks[0].codes], [self.1]);
            s.store(dots, &mut out.2);
            out
        }
    }

    #[test]
    fn integer_dot_products_are_exact_for_every_byte() {
        let mut rng = Rng::new(8);
        for _ in 0..100 {
            let blocks: [q8_0::Block; PANEL_ROWS] = std::array::from_fn(|_| q8_0::Block {
                scale: f16::from_bits((rng.below(0x7c00)) as u16),
                codes: std::array::from_fn(|_| {
                    if rng.below(3) == 0 { i8::MIN } else { (rng.below(256) as i32 - 128) as i8 }
                }),
            });
            let codes =
                std::array::from_fn(|_| if rng.below(3) == 0 { 127 } else { (rng.below(255) as i32 - 127) as i8 });
            let x = QuantizedBlock::new(codes, 1.0);
            let expected = blocks
                .map(|block| (0..32).map(|i| i32::from(block.codes[i]) * i32::from(codes[i])).sum::<i32>() as f32);
            let rows = std::array::from_fn(|row| std::slice::from_ref(&blocks[row]));
            for isa in Isa::available() {
                let (dots, scales, panel) = isa.run(Bytes(rows, &x));
                assert_eq!(dots, expected, "{isa}");
                assert_eq!(panel, expected, "{isa}");
                assert_eq!(scales, blocks.map(|block| block.scale.to_f32()), "{isa}");
            }
        }
    }

    /// Loads sixteen numbers; the allocation ends before the last of them.
    struct LoadPastTheEnd<'a>(&'a [f32]);

    impl Kernel for LoadPastTheEnd<'_> {
        type Output = f32;
        const WORDS: Words = Words::Floats;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> f32 {
            // SAFETY: there is no reason why this is sound. It is the fault that the address sanitizer must report.
            s.sum(s.load(unsafe { &*self.0.as_ptr().cast() }))
        }
    }

    #[test]
    #[ignore = "the next test runs it in a program of its own, because the address sanitizer ends that program"]
    fn a_load_past_the_end() {
        let level = std::io::read_to_string(std::io::stdin()).expect("the next test writes a level");
        let isa = Isa::available().into_iter().find(|isa| isa.to_string() == level).expect("an available level");
        let numbers = std::hint::black_box(vec![1.0; LANES - 1]);
        std::hint::black_box(isa.run(LoadPastTheEnd(&numbers)));
    }

    /// Only where `.ci/run` has built this program with the address sanitizer.
    #[test]
    fn the_address_sanitizer_reports_a_load_past_the_end_at_every_level() {
        if !testing::has_address_sanitizer() {
            return;
        }
        for isa in Isa::available() {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "--ignored", "simd::tests::a_load_past_the_end"]);
            let mut again = again.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            again.stdin.take().unwrap().write_all(isa.to_string().as_bytes()).unwrap();
            let output = again.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("ERROR: AddressSanitizer: heap-buffer-overflow"), "{isa}: {said}");
        }
    }
}
