//! The other way: matrices as the tensors of a published layout of safetensors, and the configuration that says so.
//!
//! Layout    compressed-tensors, weights alone quantised: `pack-quantized` integers (words of 32 bits along a row, each code
//!           plus the middle of its range, the first in the lowest bits) with scales in F16; `float-quantized` E4M3 with a
//!           scale in F32 for each row; `mxfp4-pack-quantized` E2M1, two a byte, the first in the lower half, with scales in E8M0.
//! Source    the decoders of compressed-tensors; `tools/interop/published_layouts.py` compares.

use half::f16;
use serde_json::{Value as Json, json};
use tensor::quant::fp8::e4m3;
use tensor::quant::{Packing, mxfp4};
use tensor::{Tensor, TensorError, WeightFormat};

use super::group::{pack_e4m3, pack_integers};

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
    E4m3,
    Mxfp4,
}

/// One of the tensors that a matrix becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedTensor {
    /// What comes after the module's name: `.weight_packed`.
    pub end: &'static str,
    /// As the header has it.
    pub dtype: &'static str,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Its size.
    pub bytes: u64,
}

/// Some rows of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedRows {
    /// The bytes of their codes.
    pub codes: Vec<u8>,
    /// The bytes of their scales.
    pub scales: Vec<u8>,
    /// What they mean, (rows, cols).
    pub weights: Vec<f32>,
}

const fn integers(name: &'static str, bits: u32, group: Option<usize>) -> PackedLayout {
    PackedLayout { name, codes: PackedCodes::Integers(bits, group) }
}

impl PackedLayout {
    /// Every layout.
    pub const ALL: [Self; 9] = [
        integers("int4_g32", 4, Some(32)),
        integers("int4_g64", 4, Some(64)),
        integers("int4_g128", 4, Some(128)),
        integers("int8_g32", 8, Some(32)),
        integers("int8_g64", 8, Some(64)),
        integers("int8_g128", 8, Some(128)),
        integers("int8", 8, None),
        Self { name: "fp8", codes: PackedCodes::E4m3 },
        Self { name: "mxfp4", codes: PackedCodes::Mxfp4 },
    ];

    /// The layout of that name, in any case; `int4` is `int4_g128`, which most such checkpoints have.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case("int4") { "int4_g128" } else { name };
        Self::ALL.into_iter().find(|layout| layout.name.eq_ignore_ascii_case(name))
    }

    /// Its name here.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Whether rows of so many weights can be packed.
    pub fn divides(self, cols: usize) -> bool {
        match self.codes {
            // Words are whole.
            PackedCodes::Integers(bits, None) => cols > 0 && (cols * bits as usize).is_multiple_of(32),
            PackedCodes::Integers(_, Some(group)) => cols > 0 && cols.is_multiple_of(group),
            PackedCodes::E4m3 => cols > 0,
            PackedCodes::Mxfp4 => cols > 0 && cols.is_multiple_of(mxfp4::BLOCK_LEN),
        }
    }

    /// Features that share a scale.
    fn group(self, cols: usize) -> usize {
        match self.codes {
            PackedCodes::Integers(_, group) => group.unwrap_or(cols),
            PackedCodes::E4m3 => cols,
            PackedCodes::Mxfp4 => mxfp4::BLOCK_LEN,
        }
    }

    /// The tensors of a matrix: that of codes, that of scales, and for integers its shape.
    pub fn tensors(self, rows: usize, cols: usize) -> Vec<PackedTensor> {
        let tensor = |end, dtype, shape: &[usize], size: usize| PackedTensor {
            end,
            dtype,
            shape: shape.iter().map(|&dim| dim as u64).collect(),
            bytes: shape.iter().map(|&dim| dim as u64).product::<u64>() * size as u64,
        };
        let groups = cols / self.group(cols).max(1);
        match self.codes {
            PackedCodes::Integers(bits, _) => vec![
                tensor(".weight_packed", "I32", &[rows, cols * bits as usize / 32], 4),
                tensor(".weight_scale", "F16", &[rows, groups], 2),
                tensor(".weight_shape", "I64", &[2], 8),
            ],
            PackedCodes::E4m3 => {
                vec![tensor(".weight", "F8_E4M3", &[rows, cols], 1), tensor(".weight_scale", "F32", &[rows, 1], 4)]
            }
            PackedCodes::Mxfp4 => vec![
                tensor(".weight_packed", "U8", &[rows, cols / 2], 1),
                tensor(".weight_scale", "U8", &[rows, groups], 1),
            ],
        }
    }

    /// Packs whole rows of finite weights. Importance is that of the weights of a row.
    ///
    /// # Errors
    ///
    /// Where [`PackedLayout::divides`] says that rows cannot be packed, or importance is of another length.
    pub fn pack(self, weights: &[f32], cols: usize, packing: Packing<'_>) -> Result<PackedRows, TensorError> {
        if !self.divides(cols) {
            let (row_len, block_len) = (cols, self.group(cols));
            return Err(TensorError::PartialBlock { format: WeightFormat::MXFP4, row_len, block_len });
        }
        if let Packing::Weighted(importance) = packing
            && importance.len() != cols
        {
            return Err(TensorError::Importance { row_len: cols, found: importance.len() });
        }
        if self.codes == PackedCodes::Mxfp4 {
            return pack_mxfp4(weights, cols, packing);
        }
        let group = self.group(cols);
        let mut packed =
            PackedRows { codes: Vec::new(), scales: Vec::new(), weights: Vec::with_capacity(weights.len()) };
        let to_f16 = |scale: f32| f16::from_f32(scale).to_f32();
        let (mut integers, mut codes) = (Vec::with_capacity(group), Vec::with_capacity(group));
        for row in weights.chunks_exact(cols) {
            for (start, weights) in (0..cols).step_by(group).zip(row.chunks_exact(group)) {
                let packing = match packing {
                    Packing::Weighted(importance) => Packing::Weighted(&importance[start..start + group]),
                    other => other,
                };
                match self.codes {
                    PackedCodes::Integers(bits, _) => {
                        integers.clear();
                        let scale = pack_integers(weights, bits, to_f16, packing, &mut integers);
                        packed.scales.extend(f16::from_f32(scale).to_le_bytes());
                        packed.weights.extend(integers.iter().map(|&code| scale * f32::from(code)));
                        words(&integers, bits, &mut packed.codes);
                    }
                    _ => {
                        codes.clear();
                        let scale = pack_e4m3(weights, |scale| scale, packing, &mut codes);
                        packed.scales.extend(scale.to_le_bytes());
                        packed.weights.extend(codes.iter().map(|&code| scale * e4m3(code)));
                        packed.codes.extend_from_slice(&codes);
                    }
                }
            }
        }
        Ok(packed)
    }

    /// What `config.json` says under `quantization_config`; `ignored` are the modules that stay as they are.
    pub fn config(self, ignored: &[String]) -> Json {
        let (format, bits, kind, strategy, group) = match self.codes {
            PackedCodes::Integers(bits, Some(group)) => ("pack-quantized", bits, "int", "group", Some(group)),
            PackedCodes::Integers(bits, None) => ("pack-quantized", bits, "int", "channel", None),
            PackedCodes::E4m3 => ("float-quantized", 8, "float", "channel", None),
            PackedCodes::Mxfp4 => ("mxfp4-pack-quantized", 4, "float", "group", Some(mxfp4::BLOCK_LEN)),
        };
        json!({
            "quant_method": "compressed-tensors",
            "format": format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": bits, "type": kind, "strategy": strategy, "group_size": group, "symmetric": true,
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

/// Appends words of codes, the first in the lowest bits; each code plus the middle, so that none is negative.
fn words(codes: &[i8], bits: u32, out: &mut Vec<u8>) {
    match bits {
        8 => out.extend(codes.iter().map(|code| code.cast_unsigned() ^ 0x80)),
        _ => {
            let nibble = |code: i8| (code.cast_unsigned() ^ 8) & 15;
            out.extend(codes.as_chunks::<2>().0.iter().map(|&[low, high]| nibble(low) | nibble(high) << 4));
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
    Ok(PackedRows { codes: blocks.iter().flat_map(bytes).collect(), scales, weights: tensor.to_f32() })
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
        let (rows, cols) = (20, 384);
        let weights = weights(rows * cols);
        let importance: Vec<f32> = (0..cols).map(|col| if col % 9 == 0 { 20.0 } else { 0.5 }).collect();
        for layout in PackedLayout::ALL {
            assert_eq!(PackedLayout::from_name(layout.name()), Some(layout));
            for packing in [Packing::Plain, Packing::Searched, Packing::Weighted(&importance)] {
                let packed = layout.pack(&weights, cols, packing).unwrap();
                let stem = "model.layers.0.mlp.up_proj";
                let mut writer = SafetensorsWriter::new();
                for tensor in layout.tensors(rows, cols) {
                    let data = match tensor.end {
                        ".weight_scale" => packed.scales.clone(),
                        ".weight_shape" => [rows as u64, cols as u64].map(u64::to_le_bytes).concat(),
                        _ => packed.codes.clone(),
                    };
                    assert_eq!(data.len() as u64, tensor.bytes, "{layout:?} {}", tensor.end);
                    writer.tensor(&format!("{stem}{}", tensor.end), tensor.dtype, &tensor.shape, data.into());
                }
                let config = json!({"model_type": "none", "quantization_config": layout.config(&["lm_head".into()])});
                let files =
                    [("config.json", Bytes::from(config.to_string())), ("model.safetensors", writer.to_bytes())];
                let checkpoint = Checkpoint::from_bytes(&files).unwrap();
                let info = checkpoint.tensor_infos().next().unwrap();
                assert_eq!(info.name, format!("{stem}.weight"));
                let found = checkpoint.tensor(&info.name).unwrap();
                assert_eq!(found.shape(), [rows, cols]);
                // Scales of E4M3 are in F32, and are rounded; everything else has blocks that hold it.
                assert_eq!(info.exact, layout.name() != "fp8", "{layout:?} as {}", found.format());
                for (found, meant) in found.to_f32().iter().zip(&packed.weights) {
                    let off = if info.exact { 0.0 } else { meant.abs() / 1024.0 + 1e-7 };
                    assert!((found - meant).abs() <= off, "{layout:?}: {found}, not {meant}");
                }
                let square = |(found, weight): (&f32, &f32)| f64::from(found - weight).powi(2);
                let lost: f64 = packed.weights.iter().zip(&weights).map(square).sum();
                let size: f64 = weights.iter().map(|&weight| f64::from(weight).powi(2)).sum();
                let most = if layout.name().contains('4') { 0.16 } else { 0.03 };
                assert!((lost / size).sqrt() < most, "{layout:?}: {}", (lost / size).sqrt());
            }
        }
    }

    #[test]
    fn rows_that_do_not_divide_are_refused() {
        assert!(!PackedLayout::from_name("INT4").unwrap().divides(64));
        assert!(PackedLayout::from_name("int4_g64").unwrap().divides(64));
        assert!(!PackedLayout::from_name("int8").unwrap().divides(6));
        assert!(PackedLayout::from_name("fp8").unwrap().divides(7));
        assert!(PackedLayout::from_name("q4_0").is_none());
        let layout = PackedLayout::from_name("int4_g32").unwrap();
        assert!(layout.pack(&[0.5; 80], 40, Packing::Plain).is_err());
        let packed = layout.pack(&[0.0; 64], 32, Packing::Weighted(&[1.0; 32])).unwrap();
        assert_eq!((packed.weights, packed.codes), (vec![0.0; 64], vec![0x88; 32]));
        assert!(layout.pack(&[0.0; 64], 32, Packing::Weighted(&[1.0; 31])).is_err());
    }
}
