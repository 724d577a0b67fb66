//! The other way: matrices as the tensors of a published layout of safetensors, and the configuration that says so.
//!
//! Layout    compressed-tensors, weights alone quantised: `pack-quantized` integers (words of 32 bits along a row, each code
//!           plus the middle of its range, the first in the lowest bits) with scales in F16, and zero points in words down a
//!           column; `float-quantized` E4M3 with a scale in F32 for each row; `mxfp4-pack-quantized` E2M1, two a byte, the first
//!           in the lower half, with scales in E8M0; `nvfp4-pack-quantized` the same with scales of 16 in E4M3, to be divided by
//!           one of F32. `fp8` is E4M3 with scales in BF16 for each 128 rows of 128 features. `awq` has a matrix turned: codes
//!           of eight rows of a feature in a word, in AutoAWQ's order, and so the zero points of a group; scales in F16.
//!           `fp4-pack-quantized` is nobody else's: codes as of MXFP4, a scale in F16 for a group, twice a number of F16, so that
//!           Q5_0 holds it exactly. Others refuse it by its name.
//! Source    the decoders of compressed-tensors, transformers and AutoAWQ; `tools/interop/published_layouts.py` compares.

use half::{bf16, f16};
use serde_json::{Value as Json, json};
use tensor::quant::fp8::e4m3;
use tensor::quant::{Packing, mxfp4, nvfp4};
use tensor::{Tensor, TensorError, WeightFormat};

use super::group::{e2m1, pack_e2m1, pack_e4m3, pack_integers, pack_with_zero};
use super::matrix::AWQ_SHIFT;

/// Rows and features that share a scale in `fp8`: what DeepSeek and Qwen publish, and what kernels for it are made for.
const FP8_BLOCK: usize = 128;

/// A layout of quantised matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    name: &'static str,
    codes: PackedCodes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PackedCodes {
    /// Of so many bits, with a scale for so many features, or for a row.
    Integers(u32, Option<usize>),
    /// Of four bits, with a scale and a zero point for so many features.
    WithZeros(usize),
    /// The same, as AutoAWQ has it.
    Awq(usize),
    E4m3,
    /// In blocks of [`FP8_BLOCK`] by [`FP8_BLOCK`].
    E4m3Blocks,
    Mxfp4,
    Nvfp4,
    /// E2M1 with a scale in F16 for so many features.
    E2m1(usize),
}

/// One of the tensors that a matrix becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTensor {
    /// What comes after the module's name: `.weight_packed`.
    pub end: &'static str,
    /// What is in it.
    pub part: PackedPart,
    /// As the header has it.
    pub dtype: &'static str,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Its size.
    pub bytes: u64,
}

/// What a tensor of a packed matrix holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackedPart {
    /// [`PackedRows::codes`].
    Codes,
    /// [`PackedRows::scales`].
    Scales,
    /// [`PackedRows::zeros`].
    Zeros,
    /// [`PackedLayout::global_scale`], as F32.
    GlobalScale,
    /// The rows and features of the matrix, as I64.
    Shape,
}

/// Some rows of a matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedRows {
    /// The bytes of their codes.
    pub codes: Vec<u8>,
    /// The bytes of their scales.
    pub scales: Vec<u8>,
    /// The bytes of their zero points, where the layout has some.
    pub zeros: Vec<u8>,
    /// What they mean, (rows, cols).
    pub weights: Vec<f32>,
}

const fn integers(name: &'static str, bits: u32, group: Option<usize>) -> PackedLayout {
    PackedLayout { name, codes: PackedCodes::Integers(bits, group) }
}

impl PackedLayout {
    /// Every layout.
    pub const ALL: [Self; 19] = [
        integers("int4_g32", 4, Some(32)),
        integers("int4_g64", 4, Some(64)),
        integers("int4_g128", 4, Some(128)),
        integers("int8_g32", 8, Some(32)),
        integers("int8_g64", 8, Some(64)),
        integers("int8_g128", 8, Some(128)),
        integers("int8", 8, None),
        Self { name: "int4_g32_asym", codes: PackedCodes::WithZeros(32) },
        Self { name: "int4_g64_asym", codes: PackedCodes::WithZeros(64) },
        Self { name: "int4_g128_asym", codes: PackedCodes::WithZeros(128) },
        Self { name: "awq", codes: PackedCodes::Awq(128) },
        Self { name: "fp8", codes: PackedCodes::E4m3 },
        Self { name: "fp8_block", codes: PackedCodes::E4m3Blocks },
        Self { name: "mxfp4", codes: PackedCodes::Mxfp4 },
        Self { name: "nvfp4", codes: PackedCodes::Nvfp4 },
        Self { name: "fp4_g32", codes: PackedCodes::E2m1(32) },
        Self { name: "fp4_g64", codes: PackedCodes::E2m1(64) },
        Self { name: "fp4_g128", codes: PackedCodes::E2m1(128) },
        Self { name: "fp4_g256", codes: PackedCodes::E2m1(256) },
    ];

    /// The layout of that name, in any case; `int4` is `int4_g128`, which most such checkpoints have, and `int4_asym` the same
    /// with zero points.
    pub fn from_name(name: &str) -> Option<Self> {
        let whole = [("int4", "int4_g128"), ("int4_asym", "int4_g128_asym")];
        let whole = whole.into_iter().find(|(short, _)| name.eq_ignore_ascii_case(short));
        let name = whole.map_or(name, |(_, name)| name);
        Self::ALL.into_iter().find(|layout| layout.name.eq_ignore_ascii_case(name))
    }

    /// Its name here.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether a matrix of these dimensions can be packed.
    pub fn divides(self, rows: usize, cols: usize) -> bool {
        let group = match self.codes {
            // Words are whole.
            PackedCodes::Integers(bits, None) => 32 / bits as usize,
            // So they are of rows.
            PackedCodes::Awq(_) if !rows.is_multiple_of(8) => return false,
            PackedCodes::Integers(_, Some(group)) | PackedCodes::WithZeros(group) | PackedCodes::Awq(group) => group,
            PackedCodes::E2m1(group) => group,
            PackedCodes::E4m3 => 1,
            // transformers takes the size of a block from the number of scales: blocks that are cut off would be read wrong.
            PackedCodes::E4m3Blocks if !rows.is_multiple_of(FP8_BLOCK) => return false,
            PackedCodes::E4m3Blocks => FP8_BLOCK,
            PackedCodes::Mxfp4 => mxfp4::BLOCK_LEN,
            PackedCodes::Nvfp4 => nvfp4::GROUP_LEN,
        };
        rows > 0 && cols > 0 && cols.is_multiple_of(group)
    }

    /// Rows that are packed together: [`PackedLayout::pack`] is given so many, or what is left of a matrix.
    pub fn rows_together(self) -> usize {
        match self.codes {
            PackedCodes::E4m3Blocks => FP8_BLOCK,
            // Zero points of eight rows are a word.
            PackedCodes::WithZeros(_) | PackedCodes::Awq(_) => 8,
            _ => 1,
        }
    }

    /// Whether scales depend on the largest magnitude of the whole matrix: [`PackedLayout::global_scale`].
    pub fn has_global_scale(self) -> bool {
        self.codes == PackedCodes::Nvfp4
    }

    /// What the scales of a matrix are divided by, where `largest` is the largest magnitude of its weights, or of those of several
    /// matrices that are to have the same. A power of two; 1 where the layout has none.
    pub fn global_scale(self, largest: f32) -> f32 {
        if self.has_global_scale() { 1.0 / nvfp4::matrix_scale(largest) } else { 1.0 }
    }

    /// Whether the tensors have features as rows: what is packed of a whole matrix then goes through
    /// [`PackedLayout::arranged`].
    pub fn is_turned(self) -> bool {
        matches!(self.codes, PackedCodes::Awq(_))
    }

    /// The bytes of a tensor of a matrix of so many rows, from what its rows were packed to.
    pub fn arranged(self, part: PackedPart, packed: Vec<u8>, rows: usize) -> Vec<u8> {
        match (self.is_turned(), part) {
            (true, PackedPart::Scales) => turned::<2>(&packed, rows),
            (true, PackedPart::Codes | PackedPart::Zeros) => turned::<4>(&packed, rows / 8),
            _ => packed,
        }
    }

    /// Features that share a scale.
    fn group(self, cols: usize) -> usize {
        match self.codes {
            PackedCodes::Integers(_, group) => group.unwrap_or(cols),
            PackedCodes::WithZeros(group) | PackedCodes::Awq(group) | PackedCodes::E2m1(group) => group,
            PackedCodes::E4m3 => cols,
            PackedCodes::E4m3Blocks => FP8_BLOCK,
            PackedCodes::Mxfp4 => mxfp4::BLOCK_LEN,
            PackedCodes::Nvfp4 => nvfp4::GROUP_LEN,
        }
    }

    /// The tensors of a matrix, that of its codes first.
    pub fn tensors(self, rows: usize, cols: usize) -> Vec<PackedTensor> {
        use PackedPart::{Codes, GlobalScale, Scales, Shape, Zeros};
        let tensor = |part, end, dtype, shape: &[usize], size: usize| PackedTensor {
            end,
            part,
            dtype,
            shape: shape.iter().map(|&dim| dim as u64).collect(),
            bytes: shape.iter().map(|&dim| dim as u64).product::<u64>() * size as u64,
        };
        let groups = cols / self.group(cols).max(1);
        let scales = |dtype, shape: &[usize], size| tensor(Scales, ".weight_scale", dtype, shape, size);
        let words = |bits: u32| tensor(Codes, ".weight_packed", "I32", &[rows, cols * bits as usize / 32], 4);
        let pairs = tensor(Codes, ".weight_packed", "U8", &[rows, cols / 2], 1);
        let of_shape = tensor(Shape, ".weight_shape", "I64", &[2], 8);
        let numbers = tensor(Codes, ".weight", "F8_E4M3", &[rows, cols], 1);
        match self.codes {
            PackedCodes::Integers(bits, _) => vec![words(bits), scales("F16", &[rows, groups], 2), of_shape],
            PackedCodes::WithZeros(_) => {
                let zeros = tensor(Zeros, ".weight_zero_point", "I32", &[rows.div_ceil(8), groups], 4);
                vec![words(4), scales("F16", &[rows, groups], 2), zeros, of_shape]
            }
            PackedCodes::Awq(_) => vec![
                tensor(Codes, ".qweight", "I32", &[cols, rows / 8], 4),
                tensor(Scales, ".scales", "F16", &[groups, rows], 2),
                tensor(Zeros, ".qzeros", "I32", &[groups, rows / 8], 4),
            ],
            PackedCodes::E4m3 => vec![numbers, scales("F32", &[rows, 1], 4)],
            PackedCodes::E4m3Blocks => {
                let shape = [rows / FP8_BLOCK, groups];
                vec![numbers, tensor(Scales, ".weight_scale_inv", "BF16", &shape, 2)]
            }
            PackedCodes::Mxfp4 => vec![pairs, scales("U8", &[rows, groups], 1)],
            PackedCodes::E2m1(_) => vec![pairs, scales("F16", &[rows, groups], 2)],
            PackedCodes::Nvfp4 => {
                let global = tensor(GlobalScale, ".weight_global_scale", "F32", &[1], 4);
                vec![pairs, scales("F8_E4M3", &[rows, groups], 1), global]
            }
        }
    }

    /// Packs whole rows of finite weights: [`PackedLayout::rows_together`] or a multiple of it, but for the last of a matrix.
    /// `global` is its [`PackedLayout::global_scale`], and importance is that of the weights of a row.
    ///
    /// # Errors
    ///
    /// Where [`PackedLayout::divides`] says that rows cannot be packed, or importance is of another length.
    pub fn pack(
        self,
        weights: &[f32],
        cols: usize,
        global: f32,
        packing: Packing<'_>,
    ) -> Result<PackedRows, TensorError> {
        if !self.divides(weights.len() / cols.max(1), cols) {
            let (row_len, block_len) = (cols, self.group(cols));
            return Err(TensorError::PartialBlock { format: WeightFormat::MXFP4, row_len, block_len });
        }
        if let Packing::Weighted(importance) = packing
            && importance.len() != cols
        {
            return Err(TensorError::Importance { row_len: cols, found: importance.len() });
        }
        match self.codes {
            PackedCodes::Mxfp4 => return pack_mxfp4(weights, cols, packing),
            PackedCodes::E4m3Blocks => return Ok(pack_e4m3_blocks(weights, cols, packing)),
            _ => {}
        }
        let group = self.group(cols);
        let mut packed = PackedRows { weights: Vec::with_capacity(weights.len()), ..PackedRows::default() };
        let to_f16 = |scale: f32| f16::from_f32(scale).to_f32();
        let (mut integers, mut codes) = (Vec::with_capacity(group), Vec::with_capacity(group));
        let (mut all_codes, mut zeros) = (Vec::new(), Vec::new());
        for row in weights.chunks_exact(cols) {
            for (start, weights) in (0..cols).step_by(group).zip(row.chunks_exact(group)) {
                let packing = part(packing, start..start + group);
                codes.clear();
                match self.codes {
                    PackedCodes::Integers(bits, _) => {
                        integers.clear();
                        let scale = pack_integers(weights, bits, to_f16, packing, &mut integers);
                        packed.scales.extend(f16::from_f32(scale).to_le_bytes());
                        packed.weights.extend(integers.iter().map(|&code| scale * f32::from(code)));
                        words(&integers, bits, &mut packed.codes);
                    }
                    PackedCodes::WithZeros(_) | PackedCodes::Awq(_) => {
                        let (scale, zero) = pack_with_zero(weights, 4, to_f16, packing, &mut codes);
                        packed.scales.extend(f16::from_f32(scale).to_le_bytes());
                        let meant = |&code: &u8| scale * (f32::from(code) - f32::from(zero));
                        packed.weights.extend(codes.iter().map(meant));
                        zeros.push(zero);
                        match self.codes {
                            PackedCodes::Awq(_) => all_codes.extend_from_slice(&codes),
                            _ => nibbles(&codes, &mut packed.codes),
                        }
                    }
                    PackedCodes::E2m1(_) => {
                        let round = |scale: f32| 2.0 * to_f16(0.5 * scale);
                        let scale = pack_e2m1(weights, round, packing, &mut codes);
                        packed.scales.extend(f16::from_f32(scale).to_le_bytes());
                        packed.weights.extend(codes.iter().map(|&code| scale * e2m1(code)));
                        nibbles(&codes, &mut packed.codes);
                    }
                    PackedCodes::Nvfp4 => {
                        for weights in weights.as_chunks().0 {
                            let (scale, codes) = nvfp4::pack_group(weights, 1.0 / global, global, packing);
                            packed.scales.push(scale);
                            let scale = e4m3(scale) / global;
                            packed.weights.extend(codes.iter().map(|&code| e2m1(code) * scale));
                            nibbles(&codes, &mut packed.codes);
                        }
                    }
                    _ => {
                        let scale = pack_e4m3(weights, |scale| scale, packing, &mut codes);
                        packed.scales.extend(scale.to_le_bytes());
                        packed.weights.extend(codes.iter().map(|&code| scale * e4m3(code)));
                        packed.codes.extend_from_slice(&codes);
                    }
                }
            }
        }
        match self.codes {
            PackedCodes::Awq(_) => {
                packed.codes = columns(&all_codes, cols, AWQ_SHIFT);
                packed.zeros = columns(&zeros, cols / group, AWQ_SHIFT);
            }
            _ => packed.zeros = columns(&zeros, cols / group, IN_ORDER),
        }
        Ok(packed)
    }

    /// What `config.json` says under `quantization_config`; `ignored` are the modules that stay as they are.
    pub fn config(self, ignored: &[String]) -> Json {
        // What differs from integers in groups.
        let (format, bits, kind, strategy, group) = match self.codes {
            PackedCodes::Integers(bits, Some(group)) => ("pack-quantized", bits, "int", "group", Some(group)),
            PackedCodes::Integers(bits, None) => ("pack-quantized", bits, "int", "channel", None),
            PackedCodes::WithZeros(group) => ("pack-quantized", 4, "int", "group", Some(group)),
            PackedCodes::Awq(group) => {
                return json!({
                    "quant_method": "awq",
                    "bits": 4,
                    "group_size": group,
                    "zero_point": true,
                    "version": "gemm",
                    "modules_to_not_convert": ignored,
                });
            }
            PackedCodes::E4m3 => ("float-quantized", 8, "float", "channel", None),
            PackedCodes::E4m3Blocks => {
                return json!({
                    "quant_method": "fp8",
                    "fmt": "e4m3",
                    // By whoever computes with it, as it goes: nothing of activations is in the file.
                    "activation_scheme": "dynamic",
                    "weight_block_size": [FP8_BLOCK, FP8_BLOCK],
                    "modules_to_not_convert": ignored,
                });
            }
            PackedCodes::Mxfp4 => ("mxfp4-pack-quantized", 4, "float", "group", Some(mxfp4::BLOCK_LEN)),
            PackedCodes::E2m1(group) => ("fp4-pack-quantized", 4, "float", "group", Some(group)),
            PackedCodes::Nvfp4 => ("nvfp4-pack-quantized", 4, "float", "tensor_group", Some(nvfp4::GROUP_LEN)),
        };
        let symmetric = !matches!(self.codes, PackedCodes::WithZeros(_));
        json!({
            "quant_method": "compressed-tensors",
            "format": format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": symmetric,
                    "dynamic": false,
                },
                "input_activations": null,
                "output_activations": null,
            }},
            "ignore": ignored,
            "kv_cache_scheme": null,
        })
    }
}

/// How some of the weights of a row are packed.
fn part(packing: Packing<'_>, range: std::ops::Range<usize>) -> Packing<'_> {
    match packing {
        Packing::Weighted(importance) => Packing::Weighted(&importance[range]),
        other => other,
    }
}

/// Appends codes of four bits, two a byte, the first in the lower half.
fn nibbles(codes: &[u8], out: &mut Vec<u8>) {
    out.extend(codes.as_chunks::<2>().0.iter().map(|&[low, high]| low | high << 4));
}

/// The bit at which the code of each of eight rows begins in a word, the first in the lowest bits.
const IN_ORDER: [u32; 8] = [0, 4, 8, 12, 16, 20, 24, 28];

/// Codes of four bits of rows of `width` as words down a column, those of eight rows in one.
fn columns(codes: &[u8], width: usize, shifts: [u32; 8]) -> Vec<u8> {
    let word = |eight: &[u8], at: usize| {
        let of_rows = eight.iter().skip(at).step_by(width).zip(shifts);
        of_rows.fold(0u32, |word, (&code, shift)| word | u32::from(code) << shift)
    };
    let words = codes.chunks((8 * width).max(1));
    words.flat_map(|eight| (0..width).flat_map(move |at| word(eight, at).to_le_bytes())).collect()
}

/// Rows of elements of `SIZE` bytes as columns.
fn turned<const SIZE: usize>(bytes: &[u8], rows: usize) -> Vec<u8> {
    let (elements, _) = bytes.as_chunks::<SIZE>();
    let cols = elements.len().checked_div(rows).unwrap_or(0);
    let mut out = Vec::with_capacity(bytes.len());
    for col in 0..cols {
        (0..rows).for_each(|row| out.extend_from_slice(&elements[row * cols + col]));
    }
    out
}

/// E4M3 with a scale for [`FP8_BLOCK`] rows of [`FP8_BLOCK`] features.
fn pack_e4m3_blocks(weights: &[f32], cols: usize, packing: Packing<'_>) -> PackedRows {
    let (mut scales, mut codes) = (Vec::new(), vec![0; weights.len()]);
    let mut meant = vec![0f32; weights.len()];
    let (mut block, mut of_block, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    let to_bf16 = |scale: f32| bf16::from_f32(scale).to_f32();
    for first in (0..weights.len()).step_by(FP8_BLOCK * cols) {
        for start in (0..cols).step_by(FP8_BLOCK) {
            let rows = (0..FP8_BLOCK).map(|row| first + row * cols + start).map(|at| at..at + FP8_BLOCK);
            block.clear();
            rows.clone().for_each(|row| block.extend_from_slice(&weights[row]));
            let packing = match part(packing, start..start + FP8_BLOCK) {
                Packing::Weighted(of_features) => {
                    counts.clear();
                    (0..FP8_BLOCK).for_each(|_| counts.extend_from_slice(of_features));
                    Packing::Weighted(&counts)
                }
                other => other,
            };
            of_block.clear();
            let scale = pack_e4m3(&block, to_bf16, packing, &mut of_block);
            scales.extend(bf16::from_f32(scale).to_le_bytes());
            for (row, of_block) in rows.zip(of_block.chunks_exact(FP8_BLOCK)) {
                codes[row.clone()].copy_from_slice(of_block);
                meant[row].iter_mut().zip(of_block).for_each(|(meant, &code)| *meant = scale * e4m3(code));
            }
        }
    }
    PackedRows { codes, scales, zeros: Vec::new(), weights: meant }
}

/// Appends words of codes, the first in the lowest bits; each code plus the middle, so that none is negative.
fn words(codes: &[i8], bits: u32, out: &mut Vec<u8>) {
    match bits {
        8 => out.extend(codes.iter().map(|code| code.cast_unsigned() ^ 0x80)),
        _ => {
            let codes: Vec<u8> = codes.iter().map(|code| (code.cast_unsigned() ^ 8) & 15).collect();
            nibbles(&codes, out);
        }
    }
}

/// The blocks of MXFP4, with codes in the order of the weights.
fn pack_mxfp4(weights: &[f32], cols: usize, packing: Packing<'_>) -> Result<PackedRows, TensorError> {
    let shape = vec![weights.len() / cols.max(1), cols];
    let tensor = Tensor::packed(WeightFormat::MXFP4, shape, weights, packing)?;
    let blocks: &[mxfp4::Block] = tensor.as_slice();
    let scales = blocks.iter().map(|block| block.exponent).collect();
    let code = |block: &mxfp4::Block, j: usize| if j < 16 { block.codes[j] & 15 } else { block.codes[j - 16] >> 4 };
    let bytes = |block: &mxfp4::Block| -> [u8; 16] {
        std::array::from_fn(|i| code(block, 2 * i) | code(block, 2 * i + 1) << 4)
    };
    let codes = blocks.iter().flat_map(bytes).collect();
    Ok(PackedRows { codes, scales, zeros: Vec::new(), weights: tensor.to_f32() })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{Checkpoint, SafetensorsWriter};

    fn weights(len: usize) -> Vec<f32> {
        let mut state = 11u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| (next() + next() + next()) * 0.1).collect()
    }

    #[test]
    fn what_is_packed_is_read_back_as_what_it_means() {
        let cols = 768;
        let weights = weights(256 * cols);
        let importance: Vec<f32> = (0..cols).map(|col| if col % 9 == 0 { 20.0 } else { 0.5 }).collect();
        for layout in PackedLayout::ALL {
            assert_eq!(PackedLayout::from_name(layout.name()), Some(layout));
            // No whole number of words of zero points, where it need not be one of blocks.
            let rows = if layout.divides(148, cols) { 148 } else { 256 };
            let weights = &weights[..rows * cols];
            for packing in [Packing::Plain, Packing::Searched, Packing::Weighted(&importance)] {
                let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
                let global = layout.global_scale(largest);
                let packed = layout.pack(weights, cols, global, packing).unwrap();
                // The same in pieces.
                let piece = layout.rows_together() * cols;
                let mut parts = weights.chunks(piece).map(|part| layout.pack(part, cols, global, packing).unwrap());
                let mut whole = PackedRows::default();
                parts.by_ref().for_each(|part| {
                    whole.codes.extend(part.codes);
                    whole.scales.extend(part.scales);
                    whole.zeros.extend(part.zeros);
                    whole.weights.extend(part.weights);
                });
                assert!(whole == packed, "{layout:?}");
                let stem = "model.layers.0.mlp.up_proj";
                let mut writer = SafetensorsWriter::new();
                for tensor in layout.tensors(rows, cols) {
                    let data = match tensor.part {
                        PackedPart::Codes => layout.arranged(tensor.part, packed.codes.clone(), rows),
                        PackedPart::Scales => layout.arranged(tensor.part, packed.scales.clone(), rows),
                        PackedPart::Zeros => layout.arranged(tensor.part, packed.zeros.clone(), rows),
                        PackedPart::GlobalScale => global.to_le_bytes().to_vec(),
                        PackedPart::Shape => [rows as u64, cols as u64].map(u64::to_le_bytes).concat(),
                    };
                    assert_eq!(data.len() as u64, tensor.bytes, "{layout:?} {}", tensor.end);
                    writer.tensor(&format!("{stem}{}", tensor.end), tensor.dtype, &tensor.shape, data.into());
                }
                let config = json!({"model_type": "none", "quantization_config": layout.config(&["lm_head".into()])});
                let files =
                    [("config.json", Bytes::from(config.to_string())), ("model.safetensors", writer.to_bytes())];
                let checkpoint = Checkpoint::from_bytes(&files, &[]).unwrap();
                let info = checkpoint.tensor_infos().next().unwrap();
                assert_eq!(info.name, format!("{stem}.weight"));
                let found = checkpoint.tensor(&info.name).unwrap();
                assert_eq!(found.shape(), [rows, cols]);
                // Scales of E4M3 for a row are in F32, and are rounded; everything else has blocks that hold it.
                assert_eq!(info.exact, layout.name() != "fp8", "{layout:?} as {}", found.format());
                for (found, meant) in found.to_f32().iter().zip(&packed.weights) {
                    let off = if info.exact { 0.0 } else { meant.abs() / 1024.0 + 1e-7 };
                    assert!((found - meant).abs() <= off, "{layout:?}: {found}, not {meant}");
                }
                let square = |(found, weight): (&f32, &f32)| f64::from(found - weight).powi(2);
                let lost: f64 = packed.weights.iter().zip(weights).map(square).sum();
                let size: f64 = weights.iter().map(|&weight| f64::from(weight).powi(2)).sum();
                let most = if layout.name().contains('4') || layout.name() == "awq" { 0.16 } else { 0.03 };
                assert!((lost / size).sqrt() < most, "{layout:?}: {}", (lost / size).sqrt());
            }
        }
    }

    #[test]
    fn rows_that_do_not_divide_are_refused() {
        assert!(!PackedLayout::from_name("INT4").unwrap().divides(8, 64));
        assert!(PackedLayout::from_name("int4_g64").unwrap().divides(8, 64));
        assert!(!PackedLayout::from_name("int8").unwrap().divides(8, 6));
        assert!(PackedLayout::from_name("fp8").unwrap().divides(8, 7));
        assert!(PackedLayout::from_name("q4_0").is_none());
        let layout = PackedLayout::from_name("int4_g32").unwrap();
        assert!(layout.pack(&[0.5; 80], 40, 1.0, Packing::Plain).is_err());
        let packed = layout.pack(&[0.0; 64], 32, 1.0, Packing::Weighted(&[1.0; 32])).unwrap();
        assert_eq!((packed.weights, packed.codes), (vec![0.0; 64], vec![0x88; 32]));
        assert!(layout.pack(&[0.0; 64], 32, 1.0, Packing::Weighted(&[1.0; 31])).is_err());
        assert!(!PackedLayout::from_name("int4_asym").unwrap().divides(8, 64));
        let blocks = PackedLayout::from_name("fp8_block").unwrap();
        assert!(blocks.divides(256, 128) && !blocks.divides(192, 128) && !blocks.divides(128, 192));
        let nvfp4 = PackedLayout::from_name("nvfp4").unwrap();
        assert!(nvfp4.divides(8, 48) && !nvfp4.divides(8, 40));
        let fp4 = PackedLayout::from_name("fp4_g256").unwrap();
        assert!(fp4.divides(1, 512) && !fp4.divides(8, 384));
    }
}
