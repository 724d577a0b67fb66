//! The formats in which weights lie on a device, one file each: how a row of a file is packed, how many bytes it takes,
//! and what kernels and their cost models ask about the format ([`Facts`]).
//!
//! A format is a file here, a line in the list below, and a `Weight…` in `kernels/parts.h`. No other file matches over
//! the formats; a kernel that takes only some of them lists those.

mod facts;
mod floats;
mod fp8;
mod mxfp4;
mod nvfp4;
mod q4_0;
mod q4_g128;
mod q4_k;
mod q4_z128;
mod q6_k;
mod q8_0;
mod rows;

use half::f16;
use tensor::{Tensor, WeightFormat};

pub(crate) use facts::{Batch, Facts, OperandKind, Streamed};
pub(crate) use rows::FileRow;

/// Declares the formats: one line each, with the name that kernels have of it and its facts. `$` comes as an argument,
/// because the macro that is declared here needs one of its own.
macro_rules! formats {
    (($dollar:tt) $($(#[$doc:meta])* $format:ident = $name:literal $facts:path;)*) => {
        /// The name of the kernel for a format: the format's name between two others.
        macro_rules! named {
            ($dollar format:expr, $dollar before:literal, $dollar after:literal) => {
                match $dollar format {
                    $($crate::formats::DeviceFormat::$format => concat!($dollar before, $name, $dollar after),)*
                }
            };
        }

        /// How weights are stored on a device, and what kernels are named after.
        #[expect(non_camel_case_types, reason = "these are the published names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum DeviceFormat {
            $($(#[$doc])* $format,)*
        }

        impl DeviceFormat {
            /// Every format, in the order of the list: projections of one op in several formats are launched in this
            /// order.
            pub(crate) const ALL: [Self; [$($name),*].len()] = [$(Self::$format),*];

            /// The format's part of the names of kernels.
            #[cfg(test)]
            pub(crate) fn name(self) -> &'static str {
                named!(self, "", "")
            }

            /// What kernels and their cost models ask about it.
            pub(crate) fn facts(self) -> &'static Facts {
                match self {
                    $(Self::$format => &$facts,)*
                }
            }
        }
    };
}

formats! { ($)
    /// IEEE 754 binary32.
    F32 = "f32" floats::F32;
    /// IEEE 754 binary16.
    F16 = "f16" floats::F16;
    /// The upper half of a binary32.
    BF16 = "bf16" floats::BF16;
    /// Bytes with a scale for each 32, as which formats without kernels are stored.
    Q8_0 = "q8_0" q8_0::FACTS;
    /// Numbers of E4M3 with a scale for each 32.
    FP8 = "fp8" fp8::FACTS;
    /// Codes of four bits with a scale for each 32.
    Q4_0 = "q4_0" q4_0::FACTS;
    /// Q4_0 whose scales are the same for each 128 weights, which files of INT4 in such groups are read as.
    Q4_G128 = "q4_g128" q4_g128::FACTS;
    /// Codes of four bits with one scale and one zero point for each 128 weights.
    Q4_Z128 = "q4_z128" q4_z128::FACTS;
    /// Numbers of E2M1 with a power of two for each 32.
    MXFP4 = "mxfp4" mxfp4::FACTS;
    /// Numbers of E2M1 with a scale for each 16, and one for a matrix, as files have it.
    NVFP4 = "nvfp4" nvfp4::FACTS;
    /// Codes of four bits with a scale and a minimum for each 32 of 256.
    Q4_K = "q4_k" q4_k::FACTS;
    /// Codes of six bits with a scale for each 16 of 256.
    Q6_K = "q6_k" q6_k::FACTS;
}

impl DeviceFormat {
    /// What matrices in `format` are usually stored as, so far as that is known without their weights.
    pub(crate) fn of(format: WeightFormat) -> Self {
        let is_usual = |own: &Self| own.facts().weight_format == format && own.facts().stored.is_usual();
        Self::ALL.into_iter().find(is_usual).unwrap_or(Self::Q8_0)
    }

    /// What a tensor is usually stored as: vectors in f32.
    pub(crate) fn of_tensor(tensor: &Tensor) -> Self {
        if tensor.shape().len() == 1 { Self::F32 } else { Self::of(tensor.format()) }
    }

    /// As the file format of the same blocks.
    pub(crate) fn weight_format(self) -> WeightFormat {
        self.facts().weight_format
    }

    /// Weights in 16 bytes of values: what a thread loads at once, and so the order in which kernels want activations.
    pub(crate) fn chunk_len(self) -> usize {
        self.facts().chunk_len
    }
}

/// What each of `tensors` is stored as. Several matrices that one kernel reads have one format, so a format with a
/// condition is taken only where all matrices in the same format of files hold to it.
pub(crate) fn formats(tensors: &[Tensor]) -> Vec<DeviceFormat> {
    let is_matrix_in = |tensor: &Tensor, format| tensor.shape().len() > 1 && tensor.format() == format;
    let holds = |format: &DeviceFormat| {
        let Facts { weight_format, ref stored, .. } = *format.facts();
        let of_format = || tensors.iter().filter(|tensor| is_matrix_in(tensor, weight_format));
        stored.condition().is_none_or(|holds| of_format().all(holds))
    };
    let mut stored: Vec<_> = DeviceFormat::ALL.into_iter().filter(holds).collect();
    // Those whose condition is fulfilled go before those that take all matrices.
    stored.sort_by_key(|format| format.facts().stored.condition().is_none());
    let matrix_format = |tensor: &Tensor| {
        let found = stored.iter().find(|format| format.weight_format() == tensor.format());
        found.copied().unwrap_or(DeviceFormat::Q8_0)
    };
    let format = |tensor: &Tensor| if tensor.shape().len() == 1 { DeviceFormat::F32 } else { matrix_format(tensor) };
    tensors.iter().map(format).collect()
}

/// f16 of the scales of 256 weights.
pub(crate) fn scales_of_256(format: DeviceFormat) -> usize {
    format.facts().scales.bytes_of(256) / size_of::<f16>()
}

/// Bytes of the scales of a row of whole blocks, filled up as [`facts::Scales`] says: `q8_scales`, `q4_g128_scales` and
/// `q6_k_row_words` of `kernels/parts.h`.
pub(crate) fn scale_row_bytes(format: DeviceFormat, row_len: usize) -> usize {
    let scales = &format.facts().scales;
    scales.bytes_of(row_len).next_multiple_of(scales.filled_to)
}

/// Bytes of a row of values: 16-byte chunks, the last filled up.
pub(crate) fn row_bytes(format: DeviceFormat, row_len: usize) -> usize {
    row_len.div_ceil(format.chunk_len()) * 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels are named after the file's format in small letters, so that a user finds one from the other.
    #[test]
    fn names_are_those_of_the_formats() {
        for format in DeviceFormat::ALL {
            assert_eq!(format.name(), format!("{format:?}").to_lowercase());
        }
    }

    #[test]
    fn formats_without_kernels_are_stored_as_q8_0() {
        for format in WeightFormat::ALL {
            let stored = DeviceFormat::of(format);
            assert!(stored.weight_format() == format || stored == DeviceFormat::Q8_0, "{format}: {stored:?}");
        }
        let of = |format| DeviceFormat::of(format);
        assert_eq!(of(WeightFormat::Q4_0), DeviceFormat::Q4_0);
        assert_eq!(of(WeightFormat::NVFP4), DeviceFormat::NVFP4);
        assert_eq!(of(WeightFormat::Q5_0), DeviceFormat::Q8_0);
    }

    /// Copies of whole rows begin on 16 bytes, and kernels read 16 bytes of values at a time.
    #[test]
    fn rows_are_whole_chunks() {
        for format in DeviceFormat::ALL {
            for row_len in [256, 768, 4096] {
                let (values, scales) = (row_bytes(format, row_len), scale_row_bytes(format, row_len));
                assert!(values.is_multiple_of(16) && scales.is_multiple_of(16), "{format:?}");
                assert!(scales >= scales_of_256(format) * 2 * row_len / 256, "{format:?}");
                // As many bits as the file has, or the one that Q4_Z128 saves, and what rows are filled up by.
                let in_file = format.weight_format().row_bytes(row_len).expect("whole blocks");
                assert!(
                    values + scales <= in_file + 48,
                    "{format:?}: {} bytes, {in_file} in the file",
                    values + scales
                );
            }
        }
    }
}
