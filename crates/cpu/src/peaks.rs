//! How much arithmetic the processor does in a second, by class of instruction: the ceiling of prefill, measured by short
//! loops that never leave the registers.
//!
//! Each loop has as many independent accumulators as hide the latency of the instruction on the processors we know, and
//! ordinary numbers in its registers: zeros would draw less power and let the clock rise. Intrinsics that stable Rust
//! lacks (AMX, NEON's dot and matrix products) are written as assembly.

use std::hint::black_box;
use std::time::Instant;

use tensor::WeightFormat;

use crate::isa::Isa;
use crate::pool::Team;
use crate::simd::{Kernel, LANES, Simd, Words};

/// A pass takes at least this long, so that waking the threads is a small part of it.
const PASS_SECONDS: f64 = 4e-3;
/// Passes; the best one counts, since everything that disturbs a pass makes it slower.
const PASSES: usize = 5;
/// Runs of the loop in the first attempt at a pass.
const FIRST_REPEATS: u64 = 1 << 12;
/// Beyond any processor: a clock that stands still must not be waited for.
const MAX_REPEATS: u64 = 1 << 40;

/// A kind of multiply-and-add instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeakClass {
    /// Fused multiply-add of f32 vectors.
    F32Fma,
    /// Dot products of bfloat16 pairs, added to f32 vectors.
    Bf16Dot,
    /// Dot products of four int8, added to int32 vectors.
    Int8Dot,
    /// Products of bfloat16 matrices, added to f32.
    Bf16Matrix,
    /// Products of int8 matrices, added to int32.
    Int8Matrix,
}

impl PeakClass {
    /// Every class.
    pub const ALL: [Self; 5] = [Self::F32Fma, Self::Bf16Dot, Self::Int8Dot, Self::Bf16Matrix, Self::Int8Matrix];

    /// The name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32Fma => "f32_fma",
            Self::Bf16Dot => "bf16_dot",
            Self::Int8Dot => "int8_dot",
            Self::Bf16Matrix => "bf16_matrix",
            Self::Int8Matrix => "int8_matrix",
        }
    }

    /// The instructions that products with weights in `format` can be made of. AMX's for int8 are left out: they lose to dot
    /// products where a scale belongs to every 32 of them.
    pub fn of(format: WeightFormat) -> &'static [Self] {
        match format {
            WeightFormat::F32 | WeightFormat::F16 => &[Self::F32Fma],
            WeightFormat::BF16 => &[Self::F32Fma, Self::Bf16Dot, Self::Bf16Matrix],
            _ if cfg!(target_arch = "aarch64") => &[Self::F32Fma, Self::Int8Dot, Self::Int8Matrix],
            _ => &[Self::F32Fma, Self::Int8Dot],
        }
    }
}

/// What some threads do together with one class of instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The class.
    pub class: PeakClass,
    /// The instruction that gave the figure.
    pub instruction: &'static str,
    /// Operations per second of all threads together; a multiplication and an addition are two.
    pub ops_per_s: f64,
}

/// The peak of every class that this processor has, with `threads` at once: best of some passes each. Takes about a
/// twentieth of a second a class.
pub fn peaks(threads: usize) -> Vec<Peak> {
    PeakClass::ALL.into_iter().filter_map(|class| peak(class, threads)).collect()
}

/// The peak of one class, as [`peaks`]; `None` where the processor has no such instruction or the threads cannot be
/// started.
pub fn peak(class: PeakClass, threads: usize) -> Option<Peak> {
    let Loop { instruction, ops, run } = loop_of(class)?;
    let mut team = Team::new(threads.max(1), true).ok()?;
    let mut pass = |repeats: u64| {
        let begun = Instant::now();
        let done = team.run(&|_| run(repeats));
        let elapsed = begun.elapsed().as_secs_f64();
        done.is_ok().then_some(elapsed)
    };
    let mut repeats = FIRST_REPEATS;
    while pass(repeats)? < PASS_SECONDS && repeats < MAX_REPEATS {
        repeats *= 2;
    }
    let mut best = f64::INFINITY;
    for _ in 0..PASSES {
        best = best.min(pass(repeats)?);
    }
    let ops_per_s = (ops * repeats) as f64 * threads.max(1) as f64 / best;
    Some(Peak { class, instruction, ops_per_s })
}

/// The ceiling of a prefill with weights in `format`: the fastest of the classes that its products can be made of.
/// For bfloat16 that is f32 on some processors, whose `vdpbf16ps` takes more than twice as long.
pub fn peak_of_format(format: WeightFormat, threads: usize) -> Option<Peak> {
    let peaks = PeakClass::of(format).iter().filter_map(|&class| peak(class, threads));
    peaks.max_by(|a, b| a.ops_per_s.total_cmp(&b.ops_per_s))
}

/// A loop over one instruction.
struct Loop {
    instruction: &'static str,
    /// Operations of one run of the loop's body.
    ops: u64,
    /// Runs the body so many times.
    run: fn(u64),
}

/// The best loop that this processor has for `class`.
fn loop_of(class: PeakClass) -> Option<Loop> {
    let best = match class {
        PeakClass::F32Fma => Some(f32_fma()),
        PeakClass::Bf16Dot | PeakClass::Int8Dot | PeakClass::Bf16Matrix | PeakClass::Int8Matrix => {
            native::loop_of(class)
        }
    };
    // Miri interprets neither vectors nor assembly, and its clock measures nothing.
    best.filter(|_| !cfg!(miri) || class == PeakClass::F32Fma)
}

/// Fused multiply-add at the best level, through the vectors that kernels are written in.
fn f32_fma() -> Loop {
    /// Enough for two units with a latency of four cycles, one register a vector.
    const WIDE: usize = 12;
    /// As many half-width registers, with room for the operands.
    const NARROW: usize = 6;

    struct Fma(u64);
    impl Kernel for Fma {
        type Output = ();
        const WORDS: Words = Words::Floats;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) {
            if S::WIDE { accumulate::<S, WIDE>(simd, self.0) } else { accumulate::<S, NARROW>(simd, self.0) }
        }
    }

    #[inline(always)]
    fn accumulate<S: Simd, const STREAMS: usize>(simd: S, repeats: u64) {
        // A fixed point of x · a + b: the sums stay ordinary numbers for ever.
        let (a, b) = (simd.splat(black_box(0.75)), simd.splat(black_box(0.25)));
        let mut sums = [simd.splat(black_box(0.5)); STREAMS];
        for _ in 0..repeats {
            for sum in &mut sums {
                *sum = simd.mul_add(*sum, a, b);
            }
        }
        let total = sums.into_iter().reduce(|a, b| simd.add(a, b)).expect("there are some");
        black_box(simd.sum(total));
    }

    let isa = Isa::best();
    let streams = if isa.run(IsWide) { WIDE } else { NARROW };
    Loop {
        instruction: if isa == Isa::scalar() { "multiply and add" } else { "fused multiply-add" },
        ops: (2 * LANES * streams) as u64,
        run: |repeats| Isa::best().run(Fma(repeats)),
    }
}

/// Whether the level has 32 registers of 16 lanes.
struct IsWide;
impl Kernel for IsWide {
    type Output = bool;
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> bool {
        S::WIDE
    }
}

#[cfg(target_arch = "x86_64")]
mod native {
    use std::arch::asm;
    use std::arch::x86_64::*;

    use super::{Isa, Loop, PeakClass, black_box};
    use crate::IsaLevel;
    use crate::isa::{Extension, has};
    use crate::simd::amx::TileConfig;

    /// Vector accumulators: two units with a latency of four to six cycles.
    const STREAMS: usize = 12;
    /// Tile accumulators: all but two for each operand; a product takes 16 cycles and the next may begin in other tiles.
    const TILES: u64 = 4;

    pub(super) fn loop_of(class: PeakClass) -> Option<Loop> {
        let dot = |instruction, ops_of_one: usize, run| Loop { instruction, ops: (ops_of_one * STREAMS) as u64, run };
        let has_vnni = Isa::new(IsaLevel::Avx512Vnni).is_some();
        match class {
            PeakClass::Bf16Dot if has(Extension::Avx512Bf16) => Some(dot("vdpbf16ps, 512 bits", 2 * 32, |repeats| {
                // SAFETY: the guard above.
                unsafe { vdpbf16ps(repeats) }
            })),
            PeakClass::Int8Dot if has_vnni => Some(dot("vpdpbusd, 512 bits", 2 * 64, |repeats| {
                // SAFETY: the guard above.
                unsafe { vpdpbusd(repeats) }
            })),
            PeakClass::Int8Dot if has(Extension::AvxVnni) => Some(dot("vpdpbusd, 256 bits", 2 * 32, |repeats| {
                // SAFETY: the guard above.
                unsafe { vpdpbusd_256(repeats) }
            })),
            PeakClass::Int8Dot if Isa::new(IsaLevel::Avx2).is_some() => {
                Some(dot("vpmaddubsw, vpmaddwd, vpaddd, 256 bits", 2 * 32, |repeats| {
                    // SAFETY: the guard above.
                    unsafe { vpmaddubsw(repeats) }
                }))
            }
            PeakClass::Bf16Matrix if has(Extension::AmxBf16) => Some(Loop {
                instruction: "tdpbf16ps",
                ops: TILES * 2 * 16 * 16 * 32,
                // SAFETY: the guard above.
                run: |repeats| unsafe { tdpbf16ps(repeats) },
            }),
            PeakClass::Int8Matrix if has(Extension::AmxInt8) => Some(Loop {
                instruction: "tdpbssd",
                ops: TILES * 2 * 16 * 16 * 64,
                // SAFETY: the guard above.
                run: |repeats| unsafe { tdpbssd(repeats) },
            }),
            _ => None,
        }
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    fn vdpbf16ps(repeats: u64) {
        let ones = _mm512_set1_ps(black_box(1.0));
        // Small enough for the sums never to reach infinity.
        let small = _mm512_set1_ps(black_box(1e-12));
        let (a, b) = (_mm512_cvtne2ps_pbh(ones, ones), _mm512_cvtne2ps_pbh(small, small));
        let mut sums = [_mm512_set1_ps(black_box(0.5)); STREAMS];
        for _ in 0..repeats {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn vpdpbusd(repeats: u64) {
        let (a, b) = (_mm512_set1_epi32(black_box(0x7f3a_11c5)), _mm512_set1_epi32(black_box(0x15e9_5aa3)));
        let mut sums = [_mm512_set1_epi32(black_box(7)); STREAMS];
        for _ in 0..repeats {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn vpdpbusd_256(repeats: u64) {
        let (a, b) = (_mm256_set1_epi32(black_box(0x7f3a_11c5)), _mm256_set1_epi32(black_box(0x15e9_5aa3)));
        let mut sums = [_mm256_set1_epi32(black_box(7)); STREAMS];
        for _ in 0..repeats {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// What processors with neither form of `vpdpbusd` do in its place: three instructions for 32 products. The second
    /// operand changes with the sums, so that the products cannot be moved out of the loop.
    #[target_feature(enable = "avx2")]
    fn vpmaddubsw(repeats: u64) {
        let a = _mm256_set1_epi32(black_box(0x1f3a_11c5));
        let ones = _mm256_set1_epi16(black_box(1));
        let mut sums = [_mm256_set1_epi32(black_box(7)); STREAMS];
        for _ in 0..repeats {
            for sum in &mut sums {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, *sum), ones));
            }
        }
        black_box(sums);
    }

    /// A tile full of one byte pattern.
    #[repr(C, align(64))]
    struct Tile([u32; 256]);

    /// The loop over one tile instruction: four accumulators, two tiles for each operand.
    macro_rules! tile_loop {
        ($instruction:literal, $pattern:expr, $repeats:expr) => {{
            let (config, operand) = (TileConfig::new([16; 8]), Tile([black_box($pattern); 256]));
            // SAFETY: the caller has the instruction and the system's leave to use tiles; `config` and `operand` are as
            // large as the instructions read; all tiles are named as overwritten and given back at the end.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{operand} + {stride} * 1]",
                    "tileloadd tmm5, [{operand} + {stride} * 1]",
                    "tileloadd tmm6, [{operand} + {stride} * 1]",
                    "tileloadd tmm7, [{operand} + {stride} * 1]",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {repeats}",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) &raw const config,
                    operand = in(reg) &raw const operand,
                    stride = in(reg) 64usize,
                    repeats = inout(reg) $repeats => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        }};
    }

    /// # Safety
    ///
    /// [`has`] said yes to [`Extension::AmxBf16`].
    unsafe fn tdpbf16ps(repeats: u64) {
        // 1e-6 in bfloat16, twice.
        tile_loop!("tdpbf16ps", 0x3586_3586_u32, repeats.max(1));
    }

    /// # Safety
    ///
    /// [`has`] said yes to [`Extension::AmxInt8`].
    unsafe fn tdpbssd(repeats: u64) {
        tile_loop!("tdpbssd", 0x15e9_5aa3_u32, repeats.max(1));
    }
}

#[cfg(target_arch = "aarch64")]
mod native {
    use std::arch::asm;

    use super::{Loop, PeakClass};
    use crate::isa::{Extension, has};

    /// Accumulators: four units with a latency of three to four cycles.
    const STREAMS: u64 = 16;

    pub(super) fn loop_of(class: PeakClass) -> Option<Loop> {
        match class {
            PeakClass::Bf16Dot if has(Extension::NeonBf16) => Some(Loop {
                instruction: "bfdot",
                ops: STREAMS * 2 * 8,
                // SAFETY: the guard above.
                run: |repeats| unsafe { bfdot(repeats) },
            }),
            PeakClass::Int8Dot if has(Extension::NeonDot) => Some(Loop {
                instruction: "sdot",
                ops: STREAMS * 2 * 16,
                // SAFETY: the guard above.
                run: |repeats| unsafe { sdot(repeats) },
            }),
            PeakClass::Bf16Matrix if has(Extension::NeonBf16) => Some(Loop {
                instruction: "bfmmla",
                ops: STREAMS * 2 * 16,
                // SAFETY: the guard above.
                run: |repeats| unsafe { bfmmla(repeats) },
            }),
            PeakClass::Int8Matrix if has(Extension::NeonI8mm) => Some(Loop {
                instruction: "smmla",
                ops: STREAMS * 2 * 32,
                // SAFETY: the guard above.
                run: |repeats| unsafe { smmla(repeats) },
            }),
            _ => None,
        }
    }

    /// The loop over one instruction with accumulators v0 to v15 and operands v16 and v17.
    macro_rules! vector_loop {
        ($name:ident, $feature:literal, $instruction:literal, $sum:literal, $operand:literal, $pattern:expr) => {
            #[target_feature(enable = $feature)]
            fn $name(repeats: u64) {
                // SAFETY: the function's feature has the instruction; every register is named as overwritten.
                unsafe {
                    asm!(
                        "dup v16.4s, {pattern:w}",
                        "dup v17.4s, {pattern:w}",
                        "movi v0.4s, #0", "movi v1.4s, #0", "movi v2.4s, #0", "movi v3.4s, #0",
                        "movi v4.4s, #0", "movi v5.4s, #0", "movi v6.4s, #0", "movi v7.4s, #0",
                        "movi v8.4s, #0", "movi v9.4s, #0", "movi v10.4s, #0", "movi v11.4s, #0",
                        "movi v12.4s, #0", "movi v13.4s, #0", "movi v14.4s, #0", "movi v15.4s, #0",
                        "2:",
                        vector_loop!(@each $instruction, $sum, $operand),
                        "subs {repeats}, {repeats}, #1",
                        "b.ne 2b",
                        pattern = in(reg) $pattern,
                        repeats = inout(reg) repeats.max(1) => _,
                        out("v0") _, out("v1") _, out("v2") _, out("v3") _, out("v4") _, out("v5") _,
                        out("v6") _, out("v7") _, out("v8") _, out("v9") _, out("v10") _, out("v11") _,
                        out("v12") _, out("v13") _, out("v14") _, out("v15") _, out("v16") _, out("v17") _,
                        options(nostack, nomem),
                    );
                }
            }
        };
        (@each $i:literal, $s:literal, $o:literal) => {
            concat!(
                vector_loop!(@one $i, $s, $o, "0"), vector_loop!(@one $i, $s, $o, "1"),
                vector_loop!(@one $i, $s, $o, "2"), vector_loop!(@one $i, $s, $o, "3"),
                vector_loop!(@one $i, $s, $o, "4"), vector_loop!(@one $i, $s, $o, "5"),
                vector_loop!(@one $i, $s, $o, "6"), vector_loop!(@one $i, $s, $o, "7"),
                vector_loop!(@one $i, $s, $o, "8"), vector_loop!(@one $i, $s, $o, "9"),
                vector_loop!(@one $i, $s, $o, "10"), vector_loop!(@one $i, $s, $o, "11"),
                vector_loop!(@one $i, $s, $o, "12"), vector_loop!(@one $i, $s, $o, "13"),
                vector_loop!(@one $i, $s, $o, "14"), vector_loop!(@one $i, $s, $o, "15"),
            )
        };
        (@one $i:literal, $s:literal, $o:literal, $register:literal) => {
            concat!($i, " v", $register, ".", $s, ", v16.", $o, ", v17.", $o, "\n")
        };
    }

    vector_loop!(sdot, "neon,dotprod", "sdot", "4s", "16b", 0x15e9_5aa3_u32);
    vector_loop!(smmla, "neon,i8mm", "smmla", "4s", "16b", 0x15e9_5aa3_u32);
    // 1e-6 in bfloat16, twice.
    vector_loop!(bfdot, "neon,bf16", "bfdot", "4s", "8h", 0x3586_3586_u32);
    vector_loop!(bfmmla, "neon,bf16", "bfmmla", "4s", "8h", 0x3586_3586_u32);
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod native {
    use super::{Loop, PeakClass};

    pub(super) fn loop_of(_: PeakClass) -> Option<Loop> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_of_this_processor_is_measured_once() {
        let found = peaks(1);
        assert!(found.iter().any(|peak| peak.class == PeakClass::F32Fma), "every processor multiplies");
        for (at, peak) in found.iter().enumerate() {
            assert!(peak.ops_per_s > 1e6, "{peak:?}");
            assert!(peak.ops_per_s.is_finite(), "{peak:?}");
            assert!(found[..at].iter().all(|other| other.class < peak.class), "{found:?}");
        }
    }

    #[test]
    fn every_format_has_a_ceiling_of_its_own_classes() {
        for format in WeightFormat::ALL {
            let peak = peak_of_format(format, 1).expect("every processor multiplies");
            assert!(PeakClass::of(format).contains(&peak.class), "{format}: {peak:?}");
        }
    }

    #[test]
    fn a_loop_that_runs_longer_does_more() {
        // Not a measurement: that a loop's length follows its argument at all, so that no compiler has removed it.
        for class in PeakClass::ALL {
            let Some(Loop { run, instruction, .. }) = loop_of(class) else { continue };
            let time = |repeats| {
                let begun = Instant::now();
                run(repeats);
                begun.elapsed()
            };
            let (short, long) = (time(1 << 6), time(1 << 17));
            assert!(long > 16 * short.min(long / 64), "{instruction}: {short:?}, {long:?}");
        }
    }
}
