//! What choices of kernels depend on: the device's facts, and the options of a run.

use backend::Tuned;

use crate::forced::{self, ForcedVariants, Kernel};

/// What of a device and of its options variants depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Groups that run at once, at one a multiprocessor.
    pub(crate) multiprocessors: usize,
    /// Whether the groups of a launch may wait for each other, as long as all run at once.
    pub(crate) groups_meet: bool,
    /// Whether copies to group memory run on their own, beside the threads (compute capability 9.0 and on).
    pub(crate) bulk_copies: bool,
    /// Matrix instructions that there are.
    pub(crate) matrix: Matrix,
    /// Bytes of group memory that a group may have.
    pub(crate) group_bytes_max: u32,
    /// Whether a token's results must not depend on the tokens beside it.
    pub(crate) batch_invariant: bool,
    /// What is forced for any op, and for the op at hand ([`Target::of`]).
    pub(crate) forced: ForcedVariants,
    pub(crate) kernel: Option<Kernel>,
    /// What was measured best on the device.
    pub(crate) tuned: Tuned,
    /// What cost models take for the bandwidth of the memory.
    pub(crate) memory: MemorySpeed,
}

/// The bandwidth of a device's memory, for cost models alone: in steps of a quarter of an octave, so that the noise of a
/// measurement changes no choice, and with the bandwidth that the models were fitted with as one of the steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemorySpeed {
    bytes_per_ns: usize,
}

impl Default for MemorySpeed {
    fn default() -> Self {
        Self::FITTED
    }
}

impl MemorySpeed {
    /// That of the H200 on which the models were fitted.
    pub(crate) const FITTED: Self = Self { bytes_per_ns: 4500 };

    /// Steps of an octave.
    const STEPS: f64 = 4.0;

    /// The step that is next to what was measured.
    pub(crate) fn next_to(bytes_per_ns: u32) -> Self {
        let fitted = Self::FITTED.bytes_per_ns as f64;
        let steps = (Self::STEPS * (f64::from(bytes_per_ns.max(1)) / fitted).log2()).round();
        Self { bytes_per_ns: (fitted * (steps / Self::STEPS).exp2()).round().max(1.0) as usize }
    }

    /// Bytes that all multiprocessors together read in a nanosecond.
    pub(crate) fn bytes_per_ns(self) -> usize {
        self.bytes_per_ns
    }
}

impl Target {
    /// An Apple GPU of so many cores, whose groups have so much memory: the system says how much, 32 KiB on all there
    /// are.
    #[cfg_attr(
        not(any(feature = "sim", target_os = "macos")),
        expect(dead_code, reason = "for Metal and its simulator")
    )]
    pub(crate) fn metal(cores: usize, group_bytes_max: u32, batch_invariant: bool, forced: ForcedVariants) -> Self {
        Self {
            multiprocessors: cores,
            groups_meet: false,
            bulk_copies: false,
            matrix: Matrix::EightByEight,
            group_bytes_max,
            batch_invariant,
            forced,
            kernel: None,
            tuned: Tuned::NONE,
            memory: MemorySpeed::FITTED,
        }
    }

    /// The target for the op of that name.
    pub(crate) fn of(&self, op: &str) -> Self {
        Self { kernel: self.forced.of(op), ..*self }
    }

    /// The same for questions about what may never be launched.
    pub(crate) fn supposed(&self) -> Self {
        Self { tuned: self.tuned.supposed(), ..*self }
    }

    /// The kernels that compute the op of that name here, in some shapes at least.
    pub(crate) fn kernels_of(&self, op: &str) -> Vec<Kernel> {
        let is_here = |kernel: &Kernel| match kernel {
            Kernel::Linear | Kernel::Attention => true,
            Kernel::AttentionF16 | Kernel::AttentionTiles | Kernel::GemmMma => self.matrix >= Matrix::SimdGroup,
            Kernel::LinearStream => self.bulk_copies && !self.batch_invariant,
            Kernel::LinearBatch => self.matrix >= Matrix::SimdGroup && !self.batch_invariant,
            Kernel::Gemm if self.batch_invariant => self.matrix == Matrix::FourSimdGroups,
            Kernel::Gemm => self.matrix != Matrix::SimdGroup,
        };
        forced::kernels_of(op).iter().copied().filter(is_here).collect()
    }
}

/// Which matrix instructions a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Matrix {
    /// 8 by 8 per SIMD group (Metal); which lane holds which element is unspecified.
    EightByEight,
    /// m16n8k16 and m16n8k32 per SIMD group.
    SimdGroup,
    /// Four SIMD groups together, with operands in group memory (compute capability 9.0 alone).
    FourSimdGroups,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const H200: Target = Target {
        multiprocessors: 132,
        groups_meet: true,
        bulk_copies: true,
        matrix: Matrix::FourSimdGroups,
        group_bytes_max: 227 << 10,
        batch_invariant: false,
        forced: ForcedVariants::NONE,
        kernel: None,
        tuned: Tuned::NONE,
        memory: MemorySpeed::FITTED,
    };

    #[test]
    fn a_measured_bandwidth_counts_in_steps_that_noise_does_not_cross() {
        let of = |measured| MemorySpeed::next_to(measured).bytes_per_ns();
        // What H200 measure is what the models were fitted with.
        assert_eq!([4_200, 4_500, 4_650, 4_800].map(of), [4_500; 4]);
        assert_eq!([2_250, 2_400, 3_100, 3_350, 9_000].map(of), [2_250, 2_250, 3_182, 3_182, 9_000]);
        assert_eq!([0, 1].map(of), [1; 2]);
    }
}
