//! What kernels and their cost models ask about a format.

use tensor::{ActivationRounding, Tensor, WeightFormat};

use super::rows::FileRow;
use crate::launch::Element;

/// A format on the device. Where a family of kernels has none for it, its part is absent, and others compute the
/// format.
pub(crate) struct Facts {
    /// The format of files whose blocks are stored so.
    pub(crate) weight_format: WeightFormat,
    /// Which matrices in that format are.
    pub(crate) stored: Stored,
    /// Weights in 16 bytes of values: what a thread loads at once. Rows of values are whole chunks.
    pub(crate) chunk_len: usize,
    /// What lies beside the values of a row.
    pub(crate) scales: Scales,
    /// What all weights of a matrix are multiplied by besides, where the format has such a number.
    pub(crate) matrix_scale: Option<fn(&Tensor) -> f32>,
    /// Packs a row as it lies on the device, values and scales, and fills both up with zeros.
    pub(crate) pack_row: fn(FileRow<'_>, [&mut [u8]; 2]),
    /// What activations are rounded to before they meet weights.
    pub(crate) rounding: ActivationRounding,
    /// How rows are made the operand of a gemm that multiplies these weights.
    pub(crate) operand: OperandKind,
    /// `kernels/linear_stream.h` and what includes it.
    pub(crate) streamed: Option<Streamed>,
    /// `kernels/linear_batch.h`.
    pub(crate) batch: Option<Batch>,
    /// `kernels/gemm_mma.h` and `kernels/sm90`.
    pub(crate) gemm: Option<Gemm>,
}

/// Which matrices of files are stored in a format of the device.
pub(crate) enum Stored {
    /// All in its format of files.
    Always,
    /// All where each of them holds to this, as nearly all files do; otherwise all become Q8_0. What a backend supports
    /// is asked before it sees weights, and answered as if they did.
    Usually(fn(&Tensor) -> bool),
    /// All where each of them holds to this; otherwise they are in the format that takes all, or become Q8_0.
    Where(fn(&Tensor) -> bool),
}

impl Stored {
    /// What a matrix must hold to.
    pub(super) fn condition(&self) -> Option<fn(&Tensor) -> bool> {
        match *self {
            Self::Always => None,
            Self::Usually(holds) | Self::Where(holds) => Some(holds),
        }
    }

    /// Whether matrices are stored so unless their weights say otherwise.
    pub(super) fn is_usual(&self) -> bool {
        !matches!(self, Self::Where(_))
    }
}

/// Scales, and other bits that are not among the values of a row.
pub(crate) struct Scales {
    /// Weights that share `bytes` bytes. Rows are whole multiples of them.
    pub(super) weights: usize,
    pub(super) bytes: usize,
    /// Bytes that a row is filled up to a multiple of: 16, which copies on the device come in, or 32.
    pub(super) filled_to: usize,
}

impl Scales {
    pub(super) const NONE: Self = Self::of(1, 0);

    pub(super) const fn of(weights: usize, bytes: usize) -> Self {
        Self { weights, bytes, filled_to: 16 }
    }

    /// Bytes for a number of weights, without what rows are filled up by.
    pub(super) fn bytes_of(&self, weights: usize) -> usize {
        weights / self.weights * self.bytes
    }
}

/// The numbers of a row as a gemm multiplies them, and their order: an `OperandOrder` of `kernels/operand.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandKind {
    /// f16, in the order of x.
    F16,
    /// bf16, in the order of x; these have the range of f32, so rows need no scales.
    BF16,
    /// f16, in the order that weights of a byte become operands in.
    ForBytes,
    /// f16, in the order that codes of four bits become operands in.
    ForFourBits,
}

/// How weights of a format stream through group memory: the numbers of `StreamActivations` in
/// `kernels/linear_stream.h`.
#[derive(Clone, Copy)]
pub(crate) struct Streamed {
    /// How activations lie in group memory: formats with the same number share them.
    pub(crate) layout: u32,
    /// Bytes of a row of so many activations there.
    pub(crate) activation_bytes: fn(usize) -> usize,
    /// Bytes of weights of a stage; bytes of scales for each 32 bytes of those, and of a stage at least.
    pub(crate) stage: usize,
    pub(crate) scales_of_32: usize,
    pub(crate) scales_min: usize,
    /// How long a byte of weights takes beside one of another format in the same launch.
    pub(crate) effort: f64,
    /// Whether several short rows of a stage are multiplied side by side, each by a part of the lanes.
    pub(crate) has_short_rows: bool,
    /// Whether streams of some rows by the experts of each are faster than matrix instructions: where codes are
    /// multiplied as they are, and not looked up or put together first.
    pub(crate) rows_are_faster: bool,
    /// Whether gated units of one row have the larger share of group memory, and down projections the smaller one, as
    /// measured on an H200.
    pub(crate) units_are_larger: bool,
}

impl Streamed {
    /// Weights of 16 bits, which meet f32.
    pub(super) const BITS_16: Self = Self {
        layout: 0,
        activation_bytes: |k| (k.div_ceil(8) * 16).div_ceil(512) * 1024,
        stage: 2048,
        scales_of_32: 0,
        scales_min: 0,
        effort: 1.0,
        has_short_rows: false,
        rows_are_faster: false,
        units_are_larger: false,
    };

    /// Codes of a byte with a scale for each 32.
    pub(super) const BYTES: Self = Self {
        layout: 1,
        // Codes first, then scales.
        activation_bytes: |k| k + k / 8,
        stage: 2048,
        scales_of_32: 2,
        scales_min: 128,
        effort: 1.0,
        has_short_rows: true,
        rows_are_faster: true,
        units_are_larger: true,
    };

    /// Codes of four bits with a scale for each 32: `StreamFourBits`.
    pub(super) const FOUR_BITS: Self = Self {
        layout: 3,
        activation_bytes: |k| k.next_multiple_of(1024) + k / 4,
        stage: 2048,
        scales_of_32: 4,
        scales_min: 256,
        effort: 1.0,
        has_short_rows: true,
        rows_are_faster: true,
        units_are_larger: false,
    };
}

/// How `linear_batch` takes weights of a format.
pub(crate) struct Batch {
    /// Input features of a step of one row.
    pub(crate) features: usize,
    /// What all 32 rows of a stage take, weights and scales, in bytes.
    pub(crate) stage_bytes: usize,
}

/// How gemms take weights of a format, and how long that takes, as measured on an H200.
#[derive(Clone, Copy)]
pub(crate) struct Gemm {
    /// What copies of tiles take values as.
    pub(crate) element: Element,
    /// Nanoseconds that a stage of `gemm_narrow` takes at least: of one column and of two, by 8, 16, 32 and 64 rows of
    /// a tile.
    pub(crate) stage_times: [[usize; 4]; 2],
    /// Pairs of rows and experts, twice as many as for each expert, up to which `experts_mma` takes 8 rows of an expert
    /// at once, and then 16. Beyond, the gemm by experts is faster: the longer codes take to become operands, the
    /// sooner.
    pub(crate) slab_half_pairs: [usize; 2],
}

impl Gemm {
    /// Numbers of 16 bits.
    pub(super) const fn of_16_bits(element: Element) -> Self {
        Self { element, stage_times: [[200, 260, 330, 500], [250, 280, 330, 500]], slab_half_pairs: [1, 1] }
    }

    /// Codes of a byte.
    pub(super) const BYTES: Self = Self {
        element: Element::I8,
        stage_times: [[350, 420, 520, 700], [470, 500, 600, 800]],
        slab_half_pairs: [6, 16],
    };

    /// Codes of four bits that are looked up, or have several scales.
    pub(super) const FOUR_BITS: Self = Self {
        element: Element::I8,
        stage_times: [[600, 700, 900, 1200], [700, 800, 1000, 1300]],
        slab_half_pairs: [6, 16],
    };

    /// Codes of four bits with one scale for 32 or more.
    pub(super) const PLAIN_FOUR_BITS: Self = Self { slab_half_pairs: [8, 32], ..Self::FOUR_BITS };
}
