//! The formats that weights are stored in and computed from.

use std::fmt;

use crate::quant;

/// How the numbers of a weight are stored. A row is a whole number of blocks; plain formats have blocks of one.
#[expect(non_camel_case_types, reason = "these are the published names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightFormat {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Blocks of 32 signed bytes with one binary16 scale: [`quant::q8_0`].
    Q8_0,
    /// Blocks of 32 codes of four bits with one binary16 scale: [`quant::q4_0`].
    Q4_0,
    /// Blocks of 256 codes of four bits; each 32 have a scale and a minimum of six bits: [`quant::q4_k`].
    Q4_K,
    /// Blocks of 256 codes of six bits; each 16 have a scale of eight: [`quant::q6_k`].
    Q6_K,
}

impl WeightFormat {
    /// Every format, in declaration order.
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::BF16, Self::Q8_0, Self::Q4_0, Self::Q4_K, Self::Q6_K];

    /// The published name, as files and reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_K => "Q4_K",
            Self::Q6_K => "Q6_K",
        }
    }

    /// Weights in one block.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 => quant::q8_0::BLOCK_LEN,
            Self::Q4_0 => quant::q4_0::BLOCK_LEN,
            Self::Q4_K => quant::q4_k::BLOCK_LEN,
            Self::Q6_K => quant::q6_k::BLOCK_LEN,
        }
    }

    /// Whether it has blocks of codes with scales.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => size_of::<quant::q8_0::Block>(),
            Self::Q4_0 => size_of::<quant::q4_0::Block>(),
            Self::Q4_K => size_of::<quant::q4_k::Block>(),
            Self::Q6_K => size_of::<quant::q6_k::Block>(),
        }
    }

    /// The alignment in bytes that a typed view of this format needs.
    pub fn align(self) -> usize {
        match self {
            Self::F32 => align_of::<f32>(),
            Self::F16 | Self::BF16 => align_of::<u16>(),
            Self::Q8_0 => align_of::<quant::q8_0::Block>(),
            Self::Q4_0 => align_of::<quant::q4_0::Block>(),
            Self::Q4_K => align_of::<quant::q4_k::Block>(),
            Self::Q6_K => align_of::<quant::q6_k::Block>(),
        }
    }

    /// The format of that name, as [`WeightFormat::name`] spells it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Bytes of a row of `len` weights, or `None` when `len` is not a whole number of blocks or the size overflows.
    pub fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
