//! The formats that weights are stored in and computed from.

use std::fmt;

use crate::quant::{self, PackedBlock, Packing, q8_0};

/// Declares the formats in blocks: one line each.
macro_rules! weight_formats {
    ($($(#[$doc:meta])* $name:ident = $text:literal $block:ty;)*) => {
        /// How the numbers of a weight are stored. A row is a whole number of blocks; plain formats have blocks of one.
        ///
        /// Backends say which of them they compute from; a reader gives weights in the format that the file has.
        #[expect(non_camel_case_types, reason = "these are the published names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum WeightFormat {
            /// IEEE 754 binary32.
            F32,
            /// IEEE 754 binary16.
            F16,
            /// The upper half of a binary32.
            BF16,
            $($(#[$doc])* $name,)*
        }

        impl WeightFormat {
            /// Every format, in declaration order.
            pub const ALL: [Self; 3 + [$($text),*].len()] = [Self::F32, Self::F16, Self::BF16, $(Self::$name),*];

            /// The published name, as files and reports spell it.
            pub fn name(self) -> &'static str {
                match self {
                    Self::F32 => "F32",
                    Self::F16 => "F16",
                    Self::BF16 => "BF16",
                    $(Self::$name => $text,)*
                }
            }

            /// Weights in one block.
            pub fn block_len(self) -> usize {
                match self {
                    Self::F32 | Self::F16 | Self::BF16 => 1,
                    $(Self::$name => <$block as PackedBlock>::LEN,)*
                }
            }

            /// Bytes of one block.
            pub fn block_bytes(self) -> usize {
                match self {
                    Self::F32 => 4,
                    Self::F16 | Self::BF16 => 2,
                    $(Self::$name => size_of::<$block>(),)*
                }
            }

            /// The alignment in bytes that a typed view of this format needs.
            pub fn align(self) -> usize {
                match self {
                    Self::F32 => align_of::<f32>(),
                    Self::F16 | Self::BF16 => align_of::<u16>(),
                    $(Self::$name => align_of::<$block>(),)*
                }
            }

            /// The weights of whole blocks, exactly; `weights` is as long as they are. Nothing for plain formats.
            pub fn unpack(self, blocks: &[u8], weights: &mut [f32]) {
                match self {
                    Self::F32 | Self::F16 | Self::BF16 => {}
                    $(Self::$name => quant::unpack_blocks::<$block>(blocks, weights),)*
                }
            }

            /// Appends the blocks that whole blocks of finite weights are packed to. Nothing for plain formats.
            pub(crate) fn pack(self, weights: &[f32], packing: Packing<'_>, bytes: &mut Vec<u8>) {
                match self {
                    Self::F32 | Self::F16 | Self::BF16 => {}
                    $(Self::$name => quant::pack_blocks::<$block>(weights, packing, bytes),)*
                }
            }

            /// Whole blocks as those of Q8_0 that come nearest ([`PackedBlock::to_q8_0`]); `expanded` has room for as many
            /// weights. Nothing for plain formats.
            pub fn to_q8_0(self, blocks: &[u8], expanded: &mut [q8_0::Block]) {
                match self {
                    Self::F32 | Self::F16 | Self::BF16 => {}
                    $(Self::$name => quant::to_q8_0::<$block>(blocks, expanded),)*
                }
            }

            /// The first of whole blocks with a scale that is not finite or a code that is no number, and the sum of its
            /// scales.
            pub(crate) fn first_not_finite(self, blocks: &[u8]) -> Option<(usize, f32)> {
                match self {
                    Self::F32 | Self::F16 | Self::BF16 => None,
                    $(Self::$name => quant::first_not_finite::<$block>(blocks),)*
                }
            }
        }
    };
}

weight_formats! {
    /// Blocks of 32 signed bytes with one binary16 scale: [`quant::q8_0`].
    Q8_0 = "Q8_0" q8_0::Block;
    /// Blocks of 32 codes of four bits with one binary16 scale: [`quant::q4_0`].
    Q4_0 = "Q4_0" quant::q4_0::Block;
    /// Blocks of 256 codes of four bits; each 32 have a scale and a minimum of six bits: [`quant::q4_k`].
    Q4_K = "Q4_K" quant::q4_k::Block;
    /// Blocks of 256 codes of six bits; each 16 have a scale of eight: [`quant::q6_k`].
    Q6_K = "Q6_K" quant::q6_k::Block;
    /// Blocks of 32 codes of four bits with a scale and a minimum: [`quant::q4_1`].
    Q4_1 = "Q4_1" quant::q4_1::Block;
    /// Blocks of 32 codes of five bits with one scale: [`quant::q5_0`].
    Q5_0 = "Q5_0" quant::q5_0::Block;
    /// Blocks of 32 codes of five bits with a scale and a minimum: [`quant::q5_1`].
    Q5_1 = "Q5_1" quant::q5_1::Block;
    /// Blocks of 256 codes of two bits; each 16 have a scale and a minimum of four: [`quant::q2_k`].
    Q2_K = "Q2_K" quant::q2_k::Block;
    /// Blocks of 256 codes of three bits; each 16 have a scale of six: [`quant::q3_k`].
    Q3_K = "Q3_K" quant::q3_k::Block;
    /// Blocks of 256 codes of five bits; each 32 have a scale and a minimum of six: [`quant::q5_k`].
    Q5_K = "Q5_K" quant::q5_k::Block;
    /// Blocks of 32 codes that name one of 16 levels, with one scale: [`quant::iq4_nl`].
    IQ4_NL = "IQ4_NL" quant::iq4_nl::Block;
    /// Blocks of 256 codes that name one of 16 levels; each 32 have a scale of six bits: [`quant::iq4_xs`].
    IQ4_XS = "IQ4_XS" quant::iq4_xs::Block;
    /// Blocks of 32 floating-point numbers of four bits and a power of two: [`quant::mxfp4`].
    MXFP4 = "MXFP4" quant::mxfp4::Block;
    /// Blocks of 32 floating-point numbers of eight bits with one binary16 scale: [`quant::fp8`].
    FP8 = "FP8" quant::fp8::Block;
    /// Blocks of 64 floating-point numbers of four bits; each 16 have a scale of eight, and all one of binary32:
    /// [`quant::nvfp4`].
    NVFP4 = "NVFP4" quant::nvfp4::Block;
}

impl WeightFormat {
    /// Whether it has blocks of codes with scales.
    pub fn is_quantized(self) -> bool {
        self.block_len() > 1
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
