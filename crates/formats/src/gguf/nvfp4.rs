//! NVFP4 as GGUF has it, and the same in the blocks of [`tensor::quant::nvfp4`].
//!
//! Layout    36 bytes for 64 weights: four scales of E4M3 without a sign, then of each 16 weights 8 bytes of codes (E2M1), those of
//!           weights j and j + 8 in a byte. What all are multiplied by is a tensor of its own, `X.scale` beside `X.weight`: one
//!           number of F32, and 1 where there is none. `X.input_scale` is about activations, which are not quantised here.
//! Meaning   `weight = number · (scale of 16 · scale)`. A scale of 0x7f is zero, as ggml has it; the first bit means nothing.
//! Source    ggml's `block_nvfp4` and llama.cpp's loader; `tools/goldens/packed_formats.py` compares with gguf-py.

use std::num::NonZero;
use std::thread;

use bytes::Bytes;
use half::{bf16, f16};
use tensor::quant::fp8::e4m3;
use tensor::quant::{mxfp4, nvfp4};
use tensor::{Tensor, WeightFormat};

use super::{Gguf, GgufTensor};
use crate::FormatError;
use crate::error::shown;
use crate::quantized::nearest_float;

/// Bytes of a block of 64 weights in a file.
pub const BLOCK_BYTES: usize = 36;

/// Weights that are worth a thread.
const THREAD_WEIGHTS: usize = 1 << 19;

/// The name of the tensor that holds what all scales of a matrix are multiplied by: `X.scale` for `X.weight`.
pub fn scale_name(weight: &str) -> String {
    format!("{}.scale", weight.strip_suffix(".weight").unwrap_or(weight))
}

/// A block of a file.
pub fn from_file(scale: f32, block: &[u8; BLOCK_BYTES]) -> nvfp4::Block {
    let (scales, codes) = (std::array::from_fn(|i| block[i]), &block[4..]);
    let code = |index: usize| {
        let (group, j) = (index / 16, index % 16);
        codes[group * 8 + j % 8] >> (j / 8 * 4)
    };
    let scales: [u8; 4] = scales;
    let scales = scales.map(|code| if code & 0x7f == 0x7f { 0 } else { code & 0x7f });
    nvfp4::from_codes(scale, scales, &std::array::from_fn(code))
}

/// The block in a file: all of it but its scale of F32.
pub fn to_file(block: &nvfp4::Block) -> [u8; BLOCK_BYTES] {
    let codes = nvfp4::codes(block);
    std::array::from_fn(|at| match at {
        0..4 => block.scales[at],
        _ => {
            let (group, j) = ((at - 4) / 8, (at - 4) % 8);
            codes[group * 16 + j] | codes[group * 16 + j + 8] << 4
        }
    })
}

/// A matrix from the bytes of a file and its scale.
///
/// # Errors
///
/// Where the bytes are not those of a matrix of this shape.
pub fn tensor(name: &str, shape: Vec<usize>, scale: f32, bytes: &[u8]) -> Result<Tensor, FormatError> {
    let wrong = || FormatError::Overflow { what: format!("tensor `{}`", shown(name)) };
    let len = Tensor::byte_len(WeightFormat::NVFP4, &shape).map_err(|_| wrong())?;
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    if !rest.is_empty() || blocks.len() * size_of::<nvfp4::Block>() != len {
        return Err(wrong());
    }
    let decoded = made(blocks.len(), size_of::<nvfp4::Block>(), nvfp4::BLOCK_LEN, |index, out| {
        out.copy_from_slice(bytemuck::bytes_of(&from_file(scale, &blocks[index])));
    });
    Tensor::new(WeightFormat::NVFP4, shape, decoded.ok_or_else(wrong)?).map_err(|_| wrong())
}

/// The scale of a matrix: that of its own tensor, or 1.
pub(crate) fn scale(gguf: &Gguf, info: &GgufTensor) -> Result<f32, FormatError> {
    scale_of(gguf, info, 0, 1)
}

/// The scale of the matrix `index` of `count` in a tensor: one of as many numbers in its own tensor, or the one number
/// there, or 1.
pub(crate) fn scale_of(gguf: &Gguf, info: &GgufTensor, index: u64, count: u64) -> Result<f32, FormatError> {
    let name = scale_name(info.name());
    let Some(found) = gguf.tensor_info(&name) else { return Ok(1.0) };
    let wrong = |found: String| FormatError::WrongValue {
        key: shown(&name),
        expected: "one finite number in F32, which all scales of the matrix are multiplied by".into(),
        found,
    };
    let len = found.dims().iter().fold(1, |len: u64, &dim| len.saturating_mul(dim));
    if found.ggml_type().weight_format() != Some(WeightFormat::F32) || ![1, count].contains(&len) {
        return Err(wrong(format!("{:?} in {:?}", found.shape(), found.ggml_type())));
    }
    let bytes = gguf.tensor_bytes(found)?;
    let at = if len == 1 { Some(0) } else { usize::try_from(index).ok() };
    let number = at.and_then(|at| bytes.as_chunks().0.get(at));
    let scale = number.map_or(f32::NAN, |&bytes| f32::from_le_bytes(bytes));
    if scale.is_finite() { Ok(scale) } else { Err(wrong(scale.to_string())) }
}

/// The weight in NVFP4 that a tensor is part of, as its scale or as what was to be a scale of activations.
pub fn owner<'a>(gguf: &'a Gguf, name: &str) -> Option<&'a GgufTensor> {
    let stem = [".input_scale", ".scale"].into_iter().find_map(|end| name.strip_suffix(end))?;
    gguf.tensor_info(&format!("{stem}.weight")).filter(|info| info.ggml_type().is_nvfp4())
}

/// F16 or BF16, whichever is nearer to all weights that such a scale makes; `true` where it has each exactly.
pub(crate) fn nearest(scale: f32) -> (WeightFormat, bool) {
    let groups = (0..127).map(|code| e4m3(code) * scale);
    let weights = groups.flat_map(|group| mxfp4::DOUBLED.map(|doubled| f32::from(doubled) * 0.5 * group));
    let (format, error) = nearest_float(weights);
    (format, error == 0.0)
}

/// The matrix in F16 or BF16.
pub(crate) fn expanded(name: &str, tensor: &Tensor, format: WeightFormat) -> Result<Tensor, FormatError> {
    let wrong = || FormatError::Overflow { what: format!("tensor `{}`", shown(name)) };
    let row_len = tensor.row_len();
    let rows = made(tensor.num_rows(), 2 * row_len, row_len, |row, out| {
        let mut weights = vec![0f32; row_len];
        tensor.row_to_f32(row, &mut weights);
        for (weight, out) in weights.into_iter().zip(out.as_chunks_mut::<2>().0) {
            *out = match format {
                WeightFormat::F16 => f16::from_f32(weight).to_le_bytes(),
                _ => bf16::from_f32(weight).to_le_bytes(),
            };
        }
    });
    Tensor::new(format, tensor.shape().to_vec(), rows.ok_or_else(wrong)?).map_err(|_| wrong())
}

/// `count` pieces of `bytes` each, made on all cores, each of so many weights; `None` where memory cannot hold them.
fn made(count: usize, bytes: usize, weights: usize, make: impl Fn(usize, &mut [u8]) + Sync) -> Option<Bytes> {
    let mut out = Vec::new();
    out.try_reserve_exact(count.checked_mul(bytes)?).ok()?;
    out.resize(count * bytes, 0u8);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let share = count.div_ceil(threads).max(THREAD_WEIGHTS.div_ceil(weights.max(1))).max(1);
    let make = &make;
    thread::scope(|scope| {
        for (part, out) in out.chunks_mut((share * bytes).max(1)).enumerate() {
            scope.spawn(move || {
                for (index, out) in (part * share..).zip(out.chunks_mut(bytes.max(1))) {
                    make(index, out);
                }
            });
        }
    });
    Some(out.into())
}
