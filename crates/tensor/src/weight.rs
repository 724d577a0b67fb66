//! A tensor: a format, a shape, and the bytes that hold it.

use std::borrow::Cow;

use bytemuck::Pod;
use bytes::Bytes;
use half::{bf16, f16};

use crate::WeightFormat;
use crate::quant::{Packing, nvfp4, q8_0};

/// What is wrong with the bytes or the shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The last dimension is not a whole number of blocks.
    #[error("rows of {row_len} weights do not divide into {format} blocks of {block_len}")]
    PartialBlock {
        /// The storage format.
        format: WeightFormat,
        /// Weights in a row.
        row_len: usize,
        /// Weights in a block.
        block_len: usize,
    },
    /// The byte length does not follow from format and shape.
    #[error("shape {shape:?} in {format} takes {expected} bytes, found {found}")]
    ByteLength {
        /// The storage format.
        format: WeightFormat,
        /// The shape asked for.
        shape: Vec<usize>,
        /// Bytes that format and shape take.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// Importance that is not of the weights of a row.
    #[error("rows have {row_len} weights, and importance is given for {found}")]
    Importance {
        /// Weights in a row.
        row_len: usize,
        /// Weights that importance is given for.
        found: usize,
    },
    /// The shape takes more bytes than this machine can address.
    #[error("shape {shape:?} in {format} overflows the address space")]
    TooLarge {
        /// The storage format.
        format: WeightFormat,
        /// The shape asked for.
        shape: Vec<usize>,
    },
}

/// A row-major tensor over shared bytes: the last dimension is contiguous and made of whole blocks.
///
/// Cloning is cheap (the bytes are reference counted). The bytes are aligned for the typed views below: [`Tensor::new`]
/// copies them once when the file did not align them.
#[derive(Clone, Debug)]
pub struct Tensor {
    format: WeightFormat,
    shape: Vec<usize>,
    data: Bytes,
}

impl Tensor {
    /// A view of `data`, which must be exactly as long as `format` and `shape` say.
    pub fn new(format: WeightFormat, shape: Vec<usize>, data: Bytes) -> Result<Self, TensorError> {
        let expected = Self::byte_len(format, &shape)?;
        if data.len() != expected {
            return Err(TensorError::ByteLength { format, shape, expected, found: data.len() });
        }
        let data = if data.as_ptr().align_offset(format.align()) == 0 { data } else { aligned_copy(&data) };
        Ok(Self { format, shape, data })
    }

    /// Bytes that a tensor of this format and shape takes. A shape without dimensions is a scalar.
    pub fn byte_len(format: WeightFormat, shape: &[usize]) -> Result<usize, TensorError> {
        let row_len = shape.last().copied().unwrap_or(1);
        let too_large = || TensorError::TooLarge { format, shape: shape.to_vec() };
        if !row_len.is_multiple_of(format.block_len()) {
            return Err(TensorError::PartialBlock { format, row_len, block_len: format.block_len() });
        }
        let rows = shape.iter().rev().skip(1).try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
        format.row_bytes(row_len).and_then(|bytes| bytes.checked_mul(rows)).ok_or_else(too_large)
    }

    /// The same in the blocks of Q8_0 that come nearest ([`WeightFormat::to_q8_0`]): what devices compute from that have no
    /// kernels for its block format. Plain formats, and Q8_0, stay as they are.
    pub fn to_q8_0(&self) -> Self {
        if self.format.block_len() == 1 || self.format == WeightFormat::Q8_0 {
            return self.clone();
        }
        let num_weights = self.data.len() / self.format.block_bytes() * self.format.block_len();
        let mut blocks = vec![q8_0::Block { scale: f16::ZERO, codes: [0; 32] }; num_weights / q8_0::BLOCK_LEN];
        self.format.to_q8_0(&self.data, &mut blocks);
        let data = aligned_copy(bytemuck::cast_slice(&blocks));
        Self { format: WeightFormat::Q8_0, shape: self.shape.clone(), data }
    }

    /// Packs `values` (row-major, as many as `shape` has) into `format` with plain scales; rounding is to nearest even, or
    /// as the format's file says.
    pub fn from_f32(format: WeightFormat, shape: Vec<usize>, values: &[f32]) -> Result<Self, TensorError> {
        Self::packed(format, shape, values, Packing::Plain)
    }

    /// As [`Tensor::from_f32`], with scales as `packing` says; importance is that of each weight of a row.
    pub fn packed(
        format: WeightFormat,
        shape: Vec<usize>,
        values: &[f32],
        packing: Packing<'_>,
    ) -> Result<Self, TensorError> {
        let f32_bytes = Self::byte_len(WeightFormat::F32, &shape)?;
        if size_of_val(values) != f32_bytes {
            let found = size_of_val(values);
            return Err(TensorError::ByteLength { format: WeightFormat::F32, shape, expected: f32_bytes, found });
        }
        let expected = Self::byte_len(format, &shape)?;
        let row_len = shape.last().copied().unwrap_or(1);
        if let Packing::Weighted(importance) = packing
            && importance.len() != row_len
        {
            return Err(TensorError::Importance { row_len, found: importance.len() });
        }
        let mut bytes = Vec::with_capacity(expected);
        match format {
            WeightFormat::F32 => bytes.extend_from_slice(bytemuck::cast_slice(values)),
            WeightFormat::F16 => values.iter().for_each(|&v| bytes.extend(f16::from_f32(v).to_le_bytes())),
            WeightFormat::BF16 => values.iter().for_each(|&v| bytes.extend(bf16::from_f32(v).to_le_bytes())),
            WeightFormat::NVFP4 => nvfp4::pack_matrix(values, row_len, packing, &mut bytes),
            blocks => blocks.pack(values, packing, &mut bytes),
        }
        Self::new(format, shape, Bytes::from(bytes))
    }

    /// How the numbers are stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Dimensions, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Weights in a row: the last dimension (1 for a scalar).
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the last.
    pub fn num_rows(&self) -> usize {
        self.shape.iter().rev().skip(1).product()
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.format.row_bytes(self.row_len()).expect("`new` checked the row")
    }

    /// The bytes as stored.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// The elements as `T`: one of f32, f16, bf16, or a format's block. `T` must be the type of [`Tensor::format`].
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        assert_eq!(size_of::<T>(), self.format.block_bytes(), "a typed view of {} as another type", self.format);
        bytemuck::cast_slice(&self.data)
    }

    /// Writes row `row` as f32, exactly what the stored numbers mean. `out` has [`Tensor::row_len`] elements.
    pub fn row_to_f32(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.row_len(), "one f32 for each weight of the row");
        let bytes = &self.data[row * self.row_bytes()..(row + 1) * self.row_bytes()];
        match self.format {
            WeightFormat::F32 => out.copy_from_slice(bytemuck::cast_slice(bytes)),
            WeightFormat::F16 => widen(bytes, out, f16::to_f32),
            WeightFormat::BF16 => widen(bytes, out, bf16::to_f32),
            blocks => blocks.unpack(bytes, out),
        }
    }

    /// The first NaN or infinity with its index, row-major; in block formats only scales can be one, and codes of FP8, and the
    /// index is that of the first weight of the block.
    pub fn first_not_finite(&self) -> Option<(usize, f32)> {
        fn first<T: Pod>(tensor: &Tensor, to_f32: impl Fn(T) -> f32) -> Option<(usize, f32)> {
            let values = tensor.as_slice::<T>().iter().map(|&value| to_f32(value));
            values.enumerate().find(|(_, value)| !value.is_finite())
        }
        match self.format {
            WeightFormat::F32 => first(self, |value: f32| value),
            WeightFormat::F16 => first(self, f16::to_f32),
            WeightFormat::BF16 => first(self, bf16::to_f32),
            blocks => blocks.first_not_finite(&self.data).map(|(at, sum)| (at * blocks.block_len(), sum)),
        }
    }

    /// As [`Tensor::to_f32`], but the weights themselves where they are F32.
    pub fn as_f32(&self) -> Cow<'_, [f32]> {
        match self.format {
            WeightFormat::F32 => Cow::Borrowed(bytemuck::cast_slice(&self.data)),
            _ => Cow::Owned(self.to_f32()),
        }
    }

    /// All weights as f32, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.num_rows() * self.row_len()];
        if self.row_len() > 0 {
            for (row, out) in values.chunks_exact_mut(self.row_len()).enumerate() {
                self.row_to_f32(row, out);
            }
        }
        values
    }
}

fn widen<T: Pod>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn(T) -> f32) {
    for (out, &value) in out.iter_mut().zip(bytemuck::cast_slice::<u8, T>(bytes)) {
        *out = to_f32(value);
    }
}

/// A copy whose first byte is 4-byte aligned, which every format accepts.
fn aligned_copy(data: &[u8]) -> Bytes {
    struct Words(Vec<u32>, usize);
    impl AsRef<[u8]> for Words {
        fn as_ref(&self) -> &[u8] {
            &bytemuck::cast_slice(&self.0)[..self.1]
        }
    }
    let mut words = vec![0u32; data.len().div_ceil(4)];
    bytemuck::cast_slice_mut::<u32, u8>(&mut words)[..data.len()].copy_from_slice(data);
    Bytes::from_owner(Words(words, data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::q8_0;

    #[test]
    fn every_format_keeps_what_it_can_represent() {
        let values: Vec<f32> = (0..512).map(|i| (i as f32 - 256.0) * 0.125).collect();
        for format in WeightFormat::ALL {
            let tensor = Tensor::from_f32(format, vec![2, 256], &values).unwrap();
            // Half a step of the block with the widest range, and some for the rounding of scales.
            let bound = match format {
                WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => 0.0,
                WeightFormat::Q8_0 => 32.0 / 127.0 * 0.51,
                WeightFormat::Q4_0 => 32.0 / 8.0 * 0.51,
                WeightFormat::Q5_0 => 32.0 / 16.0 * 0.51,
                // The weights of a block are 4 apart.
                WeightFormat::Q4_1 => 4.0 / 15.0 * 0.51 + 0.02,
                WeightFormat::Q5_1 => 4.0 / 31.0 * 0.51 + 0.02,
                // There is no minimum above zero; and a scale and a minimum are off by half of a 63rd of the largest.
                WeightFormat::Q4_K => 32.0 / 15.0 * (0.5 + 15.0 / 126.0) + 32.0 / 126.0,
                WeightFormat::Q5_K => 32.0 / 31.0 * (0.5 + 31.0 / 126.0) + 32.0 / 126.0,
                WeightFormat::Q2_K => 32.0 / 3.0 * (0.5 + 3.0 / 30.0) + 32.0 / 30.0,
                WeightFormat::Q3_K => 32.0 / 4.0 * 0.6,
                WeightFormat::Q6_K => 32.0 / 32.0 * 0.55,
                // Half of the widest gap between levels, and beyond the last on the other side.
                WeightFormat::IQ4_NL | WeightFormat::IQ4_XS => 32.0 / 127.0 * 14.1,
                // From 24 to 32, of numbers 4 and 6 times 2^n.
                WeightFormat::MXFP4 => 8.0,
                // Half of the gap between the largest numbers, 416 and 448.
                WeightFormat::FP8 => 32.0 / 448.0 * 16.1,
                // Half of the gap between the largest numbers, 4 and 6, and a scale that is off by a 16th.
                WeightFormat::NVFP4 => 32.0 / 6.0 * 1.07,
            };
            assert_eq!(*tensor.as_f32(), tensor.to_f32(), "{format}");
            for (found, expected) in tensor.to_f32().iter().zip(&values) {
                assert!((found - expected).abs() <= bound, "{format}: {found} for {expected}");
            }
        }
    }

    #[test]
    fn searched_scales_lose_less_in_every_format_that_has_some_to_choose() {
        let mut state = 9u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let values: Vec<f32> = (0..64 * 256).map(|_| random() + random() + random()).collect();
        for format in WeightFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
            let lost = |packing| {
                let tensor = Tensor::packed(format, vec![64, 256], &values, packing).unwrap();
                tensor.to_f32().iter().zip(&values).map(|(found, value)| f64::from(found - value).powi(2)).sum::<f64>()
            };
            let (plain, searched) = (lost(Packing::Plain), lost(Packing::Searched));
            let most = if format == WeightFormat::Q8_0 { 1.0 } else { 0.95 };
            assert!(searched <= most * plain, "{format}: {searched} of {plain}");
        }
    }

    #[test]
    fn importance_never_costs_by_its_own_measure_and_mostly_gains() {
        let mut state = 5u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let (rows, cols) = (24, 512);
        let values: Vec<f32> = (0..rows * cols).map(|_| random() + random() + random()).collect();
        // Most features count little, a few very much, and some nothing at all: a whole block, and single ones.
        let importance: Vec<f32> = (0..cols)
            .map(|col| match col {
                0..32 => 0.0,
                _ if col % 11 == 0 => 0.0,
                _ => (8.0 * (random() + random())).exp(),
            })
            .collect();
        for format in WeightFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
            let packed = |packing| Tensor::packed(format, vec![rows, cols], &values, packing).unwrap();
            // The same bytes where all count the same.
            let searched = packed(Packing::Searched);
            assert_eq!(packed(Packing::Weighted(&[1.0; 512])).bytes(), searched.bytes(), "{format}");
            let weighted = packed(Packing::Weighted(&importance));
            // No block loses more.
            let lost = |tensor: &Tensor| -> Vec<f64> {
                let square = |((found, value), counts): ((&f32, &f32), &f32)| {
                    f64::from(*counts) * f64::from(found - value).powi(2)
                };
                let found = tensor.to_f32();
                let squares = found.iter().zip(&values).zip(importance.iter().cycle()).map(square);
                squares.collect::<Vec<_>>().chunks(format.block_len()).map(|block| block.iter().sum()).collect()
            };
            let (without, with) = (lost(&searched), lost(&weighted));
            for (without, with) in without.iter().zip(&with) {
                assert!(*with <= without * (1.0 + 1e-5), "{format}: {with} with importance, {without} without");
            }
            let gain = with.iter().sum::<f64>() / without.iter().sum::<f64>();
            let most = match format {
                // There is nothing to choose.
                WeightFormat::Q8_0 => 1.0,
                // One of two powers of two.
                WeightFormat::MXFP4 => 0.99,
                _ => 0.9,
            };
            assert!(gain <= most, "{format}: {gain}");
        }
        let error = Tensor::packed(WeightFormat::Q4_0, vec![rows, cols], &values, Packing::Weighted(&importance[1..]));
        assert_eq!(error.unwrap_err().to_string(), "rows have 512 weights, and importance is given for 511");
    }

    #[test]
    fn packing_what_was_unpacked_gives_the_same_blocks() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) * 0.013).collect();
        let packed = Tensor::from_f32(WeightFormat::Q8_0, vec![64], &values).unwrap();
        let again = Tensor::from_f32(WeightFormat::Q8_0, vec![64], &packed.to_f32()).unwrap();
        let codes = |t: &Tensor| t.as_slice::<q8_0::Block>().iter().map(|b| b.codes).collect::<Vec<_>>();
        assert_eq!(codes(&packed), codes(&again));
    }

    #[test]
    fn unaligned_bytes_are_copied_once_and_read_the_same() {
        let values = [1.0f32, -2.5, 3.25];
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(bytemuck::cast_slice(&values));
        for offset in [0, 1] {
            let bytes = Bytes::from(shifted.clone()).slice(1..);
            let bytes = if offset == 0 { Bytes::copy_from_slice(&bytes) } else { bytes };
            assert_eq!(Tensor::new(WeightFormat::F32, vec![3], bytes).unwrap().to_f32(), values);
        }
    }

    #[test]
    fn wrong_sizes_are_refused_by_name() {
        let error = Tensor::new(WeightFormat::Q8_0, vec![2, 33], Bytes::new()).unwrap_err();
        assert_eq!(error.to_string(), "rows of 33 weights do not divide into Q8_0 blocks of 32");
        let error = Tensor::new(WeightFormat::F16, vec![2, 3], Bytes::from_static(&[0; 11])).unwrap_err();
        assert_eq!(error.to_string(), "shape [2, 3] in F16 takes 12 bytes, found 11");
        let error = Tensor::byte_len(WeightFormat::F32, &[usize::MAX, usize::MAX]).unwrap_err();
        assert!(matches!(error, TensorError::TooLarge { .. }));
    }
}
