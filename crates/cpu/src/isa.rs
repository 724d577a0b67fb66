//! Instruction sets: the only place that asks the CPU what it has.

use std::fmt;
use std::sync::LazyLock;

use crate::simd::{Kernel, Simd, Words, scalar::Scalar};

/// An instruction set that kernels are compiled for, from plainest to richest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IsaLevel {
    /// Plain Rust.
    Scalar,
    /// aarch64 NEON.
    Neon,
    /// As [`IsaLevel::Neon`], with dot products of bytes.
    NeonDot,
    /// As [`IsaLevel::NeonDot`], with products of matrices of bytes.
    NeonI8mm,
    /// As [`IsaLevel::NeonI8mm`], with BF16 weights multiplied by products of bfloat16 matrices: rounded activations and the
    /// same bound as at [`IsaLevel::Avx512Bf16`], in another order.
    NeonBf16,
    /// x86-64 AVX2, FMA and F16C.
    Avx2,
    /// As [`IsaLevel::Avx2`], with AVX-VNNI's byte dot products.
    AvxVnni,
    /// x86-64 AVX-512 F, BW, DQ and VL.
    Avx512,
    /// As [`IsaLevel::Avx512`], with VNNI's byte dot products.
    Avx512Vnni,
    /// As [`IsaLevel::Avx512Vnni`], with bfloat16 dot products: activations that meet BF16 weights are rounded to bfloat16,
    /// so results with those differ from the other levels' by up to 2⁻⁸ Σ|w·x|.
    Avx512Bf16,
    /// As [`IsaLevel::Avx512Vnni`], with BF16 weights multiplied in tiles (AMX): rounded activations and the same bound as at
    /// [`IsaLevel::Avx512Bf16`], in another order.
    Avx512Amx,
}

impl IsaLevel {
    /// Every level, plainest first.
    pub const ALL: [Self; 11] = [
        Self::Scalar,
        Self::Neon,
        Self::NeonDot,
        Self::NeonI8mm,
        Self::NeonBf16,
        Self::Avx2,
        Self::AvxVnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Avx512Amx,
    ];

    /// The name that flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::NeonDot => "neondot",
            Self::NeonI8mm => "neoni8mm",
            Self::NeonBf16 => "neonbf16",
            Self::Avx2 => "avx2",
            Self::AvxVnni => "avxvnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512vnni",
            Self::Avx512Bf16 => "avx512bf16",
            Self::Avx512Amx => "avx512amx",
        }
    }
}

impl fmt::Display for IsaLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An instruction set that this CPU has: only [`Isa::new`] makes one, after asking the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(IsaLevel);

impl Isa {
    /// `level`, if this CPU has it.
    pub fn new(level: IsaLevel) -> Option<Self> {
        cpu_has(level).then_some(Self(level))
    }

    /// Every level that this CPU has, plainest first.
    pub fn available() -> Vec<Self> {
        IsaLevel::ALL.into_iter().filter_map(Self::new).collect()
    }

    /// The fastest level that this CPU has.
    pub fn best() -> Self {
        let mut levels = Self::available().into_iter();
        levels.rfind(|isa| isa.level() != IsaLevel::Avx512Bf16 || bf16_dot_is_fast()).unwrap_or(Self::scalar())
    }

    /// Whether activations that meet BF16 weights are rounded to bfloat16 at this level.
    pub fn rounds_to_bf16(self) -> bool {
        matches!(self.0, IsaLevel::NeonBf16 | IsaLevel::Avx512Bf16 | IsaLevel::Avx512Amx)
    }

    /// Whether BF16 weights are multiplied in tiles at this level: wherever activations are rounded.
    pub(crate) fn has_tiles(self) -> bool {
        self.rounds_to_bf16()
    }

    /// Whether a vector is one register of 32: [`Simd::WIDE`].
    pub(crate) fn is_wide(self) -> bool {
        self.0 >= IsaLevel::Avx512
    }

    /// The name of an order that products of BF16 weights have at this level alone, for [`backend::Claims::own_bits`].
    pub(crate) fn own_order(self) -> Option<&'static str> {
        match self.0 {
            IsaLevel::NeonBf16 => Some("matrices, rounded to odd"),
            IsaLevel::Avx512Bf16 => Some("dot products"),
            IsaLevel::Avx512Amx => Some("tiles"),
            _ => None,
        }
    }

    /// The level that every CPU has.
    pub fn scalar() -> Self {
        Self(IsaLevel::Scalar)
    }

    /// Which level it is.
    pub fn level(self) -> IsaLevel {
        self.0
    }

    /// Runs `kernel` compiled for this level: the only way into `#[target_feature]` code.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        // Constants, so that each kernel is compiled in one of these ways alone.
        if const { matches!(K::WORDS, Words::Bfloats) } {
            self.run_bfloats(kernel)
        } else if const { matches!(K::WORDS, Words::Bytes) } {
            self.run_bytes(kernel)
        } else {
            self.run_floats(kernel)
        }
    }

    fn run_floats<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "aarch64")]
        use crate::simd::neon::Neon;
        #[cfg(target_arch = "x86_64")]
        use crate::simd::{avx2::Avx2, avx512::Avx512};
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx2 | IsaLevel::AvxVnni => {
                // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes, of AVX2 at the latter as well.
                unsafe { Avx2::<false>::assume() }.vectorize(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512 | IsaLevel::Avx512Vnni | IsaLevel::Avx512Bf16 | IsaLevel::Avx512Amx => {
                // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes, of AVX-512 at the others as well.
                unsafe { Avx512::<false, false, false>::assume() }.vectorize(kernel)
            }
            #[cfg(target_arch = "aarch64")]
            IsaLevel::Neon | IsaLevel::NeonDot | IsaLevel::NeonI8mm | IsaLevel::NeonBf16 => {
                // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes, of NEON at the others as well.
                unsafe { Neon::<false, false, false>::assume() }.vectorize(kernel)
            }
            // Levels of other architectures cannot be made here.
            _ => Scalar.vectorize(kernel),
        }
    }

    fn run_bytes<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "aarch64")]
        use crate::simd::neon::Neon;
        #[cfg(target_arch = "x86_64")]
        use crate::simd::{avx2::Avx2, avx512::Avx512};
        match self.0 {
            // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::AvxVnni => unsafe { Avx2::<true>::assume() }.vectorize(kernel),
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512Vnni | IsaLevel::Avx512Bf16 | IsaLevel::Avx512Amx => {
                // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes, of VNNI at the latter two as well.
                unsafe { Avx512::<true, false, false>::assume() }.vectorize(kernel)
            }
            // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes.
            #[cfg(target_arch = "aarch64")]
            IsaLevel::NeonDot => unsafe { Neon::<true, false, false>::assume() }.vectorize(kernel),
            #[cfg(target_arch = "aarch64")]
            IsaLevel::NeonI8mm | IsaLevel::NeonBf16 => {
                // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes, of the former at the latter as well.
                unsafe { Neon::<true, true, false>::assume() }.vectorize(kernel)
            }
            _ => self.run_floats(kernel),
        }
    }

    fn run_bfloats<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        use crate::simd::avx512::Avx512;
        #[cfg(target_arch = "aarch64")]
        use crate::simd::neon::Neon;
        match self.0 {
            // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes.
            #[cfg(target_arch = "aarch64")]
            IsaLevel::NeonBf16 => unsafe { Neon::<true, true, true>::assume() }.vectorize(kernel),
            // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512Bf16 => unsafe { Avx512::<true, true, false>::assume() }.vectorize(kernel),
            // SAFETY: an `Isa` of this level exists, so `cpu_has` said yes.
            #[cfg(target_arch = "x86_64")]
            IsaLevel::Avx512Amx => unsafe { Avx512::<true, false, true>::assume() }.vectorize(kernel),
            _ => self.run_floats(kernel),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(target_arch = "x86_64")]
fn cpu_has(level: IsaLevel) -> bool {
    let avx2 =
        || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = || {
        avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    };
    match level {
        IsaLevel::Scalar => true,
        // Miri interprets no vector instructions to speak of.
        _ if cfg!(miri) => false,
        IsaLevel::Avx2 => avx2(),
        IsaLevel::AvxVnni => avx2() && is_x86_feature_detected!("avxvnni"),
        IsaLevel::Avx512 => avx512(),
        IsaLevel::Avx512Vnni => avx512() && is_x86_feature_detected!("avx512vnni"),
        IsaLevel::Avx512Bf16 => cpu_has(IsaLevel::Avx512Vnni) && is_x86_feature_detected!("avx512bf16"),
        IsaLevel::Avx512Amx => cpu_has(IsaLevel::Avx512Vnni) && has(Extension::AmxBf16),
        IsaLevel::Neon | IsaLevel::NeonDot | IsaLevel::NeonI8mm | IsaLevel::NeonBf16 => false,
    }
}

#[cfg(target_arch = "aarch64")]
fn cpu_has(level: IsaLevel) -> bool {
    match level {
        IsaLevel::Scalar => true,
        _ if cfg!(miri) => false,
        IsaLevel::Neon => std::arch::is_aarch64_feature_detected!("neon"),
        IsaLevel::NeonDot => cpu_has(IsaLevel::Neon) && has(Extension::NeonDot),
        IsaLevel::NeonI8mm => cpu_has(IsaLevel::NeonDot) && has(Extension::NeonI8mm),
        IsaLevel::NeonBf16 => cpu_has(IsaLevel::NeonI8mm) && has(Extension::NeonBf16),
        _ => false,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_has(level: IsaLevel) -> bool {
    level == IsaLevel::Scalar
}

/// Whether `vdpbf16ps` takes less time than the two f32 multiply-adds that it replaces. On a Sapphire Rapids server it
/// takes four times that of one (122 against 246 GFLOP/s a thread, registers only); on Zen 5 it is twice as fast.
fn bf16_dot_is_fast() -> bool {
    *IS_AMD
}

/// Whether the processor reads ahead by itself in one stream, and hardly in several at once: memory should be read in order.
/// Measured on Zen 4: one stream 31 GB/s, four of 1,792 bytes each, one behind the other, 13, sixteen of 952 bytes 10.
pub(crate) fn reads_one_stream_best() -> bool {
    *IS_AMD
}

static IS_AMD: LazyLock<bool> = LazyLock::new(|| {
    // Miri cannot ask.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    false
});

/// Instructions whose peak is measured by themselves, whatever level uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) enum Extension {
    /// `vdpbf16ps` on 512 bits.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    /// `vpdpbusd` on 256 bits.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// Tiles and their bfloat16 products.
    #[cfg(target_arch = "x86_64")]
    AmxBf16,
    /// Tiles and their int8 products.
    #[cfg(target_arch = "x86_64")]
    AmxInt8,
    /// `sdot`.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// `smmla`.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
    /// `bfdot` and `bfmmla`.
    #[cfg(target_arch = "aarch64")]
    NeonBf16,
}

/// Whether this CPU has `extension` and the system lets the process use it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has(extension: Extension) -> bool {
    // Leaf 7, EDX: the detection macro for these is not stable yet.
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const AMX_INT8: u32 = 1 << 25;
    let amx = |bits: u32| {
        use std::arch::x86_64::{__cpuid, __cpuid_count};
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & bits == bits && tiles_are_allowed()
    };
    match extension {
        _ if cfg!(miri) => false,
        Extension::Avx512Bf16 => cpu_has(IsaLevel::Avx512) && is_x86_feature_detected!("avx512bf16"),
        Extension::AvxVnni => cpu_has(IsaLevel::AvxVnni),
        Extension::AmxBf16 => amx(AMX_TILE | AMX_BF16),
        Extension::AmxInt8 => amx(AMX_TILE | AMX_INT8),
    }
}

/// Asks the system for the tile registers, which it grants on request only: their state is large. Threads that begin
/// later inherit the answer.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_are_allowed() -> bool {
    // From the kernel's asm/prctl.h and asm/fpu/types.h.
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: this request takes a number and touches none of our memory; an old kernel refuses it.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

/// Nobody has tried the tiles on other systems yet.
#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn tiles_are_allowed() -> bool {
    false
}

/// Whether this CPU has `extension` and the system lets the process use it.
#[cfg(target_arch = "aarch64")]
pub(crate) fn has(extension: Extension) -> bool {
    match extension {
        _ if cfg!(miri) => false,
        Extension::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
        Extension::NeonI8mm => std::arch::is_aarch64_feature_detected!("i8mm"),
        Extension::NeonBf16 => std::arch::is_aarch64_feature_detected!("bf16"),
    }
}

/// What the processor calls itself, where it says so.
#[cfg(target_arch = "x86_64")]
pub(crate) fn processor_name() -> String {
    use std::arch::x86_64::__cpuid;
    const FIRST: u32 = 0x8000_0002;
    const LAST: u32 = 0x8000_0004;
    if cfg!(miri) || __cpuid(0x8000_0000).eax < LAST {
        return "x86-64".to_owned();
    }
    let mut bytes = Vec::with_capacity(48);
    for leaf in FIRST..=LAST {
        let registers = __cpuid(leaf);
        for register in [registers.eax, registers.ebx, registers.ecx, registers.edx] {
            bytes.extend(register.to_le_bytes());
        }
    }
    String::from_utf8_lossy(&bytes).trim_matches(['\0', ' ']).to_owned()
}

/// What the processor calls itself, where it says so.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn processor_name() -> String {
    std::env::consts::ARCH.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_is_always_there_and_the_best_is_one_of_the_last() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::scalar()));
        assert!(available.iter().rev().take(2).any(|&isa| isa == Isa::best()));
        for level in IsaLevel::ALL {
            assert_eq!(Isa::new(level).is_some(), available.iter().any(|isa| isa.level() == level), "{level}");
        }
    }
}
