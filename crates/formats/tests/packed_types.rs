//! Packed types of GGUF, from goldens of the published decoder (crates/tensor): read as the file has them.

use bytes::Bytes;
use formats::Checkpoint;
use formats::gguf::{GgmlType, Gguf, GgufWriter, Value, nvfp4};
use tensor::WeightFormat;

#[test]
fn a_tensor_of_any_packed_type_is_read() {
    for format in WeightFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
        let Some(ggml_type) = GgmlType::of(format) else { continue };
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tensor/tests/golden");
        let golden = std::fs::read(format!("{folder}/{}.bin", format.name())).unwrap();
        let (blocks, weights) = golden.split_at(6 * format.block_bytes());
        let expected: Vec<f32> = weights.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let row_len = 3 * format.block_len();
        let mut writer = GgufWriter::new();
        writer.raw_tensor("w", ggml_type, &[row_len as u64, 2], Bytes::copy_from_slice(blocks));
        let tensor = Gguf::read(writer.to_bytes()).unwrap().tensor("w").unwrap();
        assert_eq!((tensor.format(), tensor.shape()), (format, &[2, row_len][..]));
        assert_eq!(tensor.to_f32(), expected, "{format}");
    }
}

/// Blocks of NVFP4 as GGUF has them, and their weights, were there no scale of the matrix.
fn nvfp4_golden() -> (Vec<u8>, Vec<f32>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tensor/tests/golden/GGUF_NVFP4.bin");
    let golden = std::fs::read(path).unwrap();
    let (blocks, weights) = golden.split_at(6 * nvfp4::BLOCK_BYTES);
    (blocks.to_vec(), weights.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

/// A file with those blocks in a projection, and beside it what `others` adds.
fn nvfp4_file(others: impl Fn(&mut GgufWriter)) -> Bytes {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", Value::String("qwen3".into()));
    let ggml_type = GgmlType::holding(WeightFormat::NVFP4).unwrap();
    writer.raw_tensor("blk.0.ffn_up.weight", ggml_type, &[192, 2], nvfp4_golden().0.into());
    others(&mut writer);
    writer.to_bytes()
}

fn f32_tensor(writer: &mut GgufWriter, name: &str, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    writer.raw_tensor(name, GgmlType::of(WeightFormat::F32).unwrap(), &[values.len() as u64], bytes.into());
}

#[test]
fn nvfp4_is_read_with_the_scale_that_lies_beside_it_and_written_as_it_was() {
    let (blocks, expected) = nvfp4_golden();
    for scale in [None, Some(2f32.powi(-9)), Some(1.7e-3)] {
        let file = nvfp4_file(|writer| {
            if let Some(scale) = scale {
                f32_tensor(writer, "blk.0.ffn_up.scale", &[scale]);
                f32_tensor(writer, "blk.0.ffn_up.input_scale", &[3.0]);
            }
        });
        let found = Gguf::read(file.clone()).unwrap().tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!((found.format(), found.shape()), (WeightFormat::NVFP4, &[2, 192][..]));
        for (found, expected) in found.to_f32().into_iter().zip(&expected) {
            let expected = expected * scale.unwrap_or(1.0);
            // Of a scale that is no power of two, the order of two products.
            assert!((found - expected).abs() <= expected.abs() * 2.0 * f32::EPSILON, "{found}, not {expected}");
            assert!(found == expected || scale == Some(1.7e-3), "{found}, not {expected}");
        }
        // All but what means nothing comes back: the first bits of scales, and the one that is zero.
        for (block, before) in found.as_slice::<tensor::quant::nvfp4::Block>().iter().zip(blocks.as_chunks::<36>().0) {
            let mut before = *before;
            before[..4].iter_mut().for_each(|code| *code = if *code & 0x7f == 0x7f { 0 } else { *code & 0x7f });
            assert_eq!(nvfp4::to_file(block), before);
        }
        // A checkpoint has the one weight; for devices that do not compute it, in F16 or BF16.
        let mut checkpoint = Checkpoint::from_bytes(&[("model.gguf", file)], &[]).unwrap();
        let name = "model.layers.0.mlp.up_proj.weight";
        assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), [name]);
        assert_eq!(checkpoint.ignored().len(), usize::from(scale.is_some()));
        assert_eq!(checkpoint.tensor(name).unwrap().to_f32(), found.to_f32());
        assert!(checkpoint.expand_unless(|_| false) && !checkpoint.expand_unless(|_| false));
        let info = checkpoint.tensor_infos().next().unwrap();
        let expanded = checkpoint.tensor(name).unwrap();
        assert_eq!((info.format, info.expanded_to()), (Some(expanded.format()), Some(expanded.format())));
        assert!(!expanded.format().is_quantized() && info.exact == (scale != Some(1.7e-3)));
        for (found, expected) in expanded.to_f32().into_iter().zip(found.to_f32()) {
            let off = if info.exact { 0.0 } else { expected.abs() / 256.0 + 2f32.powi(-25) };
            assert!((found - expected).abs() <= off, "{found}, not {expected}");
        }
        assert!(checkpoint.expand_unless(|format| format == WeightFormat::NVFP4));
        assert_eq!(checkpoint.tensor(name).unwrap().format(), WeightFormat::NVFP4);
    }
}

#[test]
fn scales_of_a_matrix_that_are_none_are_refused_by_name_and_those_of_others_stay() {
    let f16 = GgmlType::of(WeightFormat::F16).unwrap();
    let name = "blk.0.ffn_up.scale";
    let wrong: [&dyn Fn(&mut GgufWriter); 3] =
        [&|writer| f32_tensor(writer, name, &[1.0, 2.0]), &|writer| f32_tensor(writer, name, &[f32::NAN]), &|writer| {
            writer.raw_tensor(name, f16, &[1], Bytes::from_static(&[0, 0x3c]));
        }];
    for wrong in wrong {
        let error = Gguf::read(nvfp4_file(wrong)).unwrap().tensor("blk.0.ffn_up.weight").unwrap_err().to_string();
        assert!(error.contains("`blk.0.ffn_up.scale`") && error.contains("one finite number in F32"), "{error}");
    }
    // What is beside another matrix is nothing that is known here.
    let file = nvfp4_file(|writer| f32_tensor(writer, "blk.0.ffn_down.scale", &[1.0]));
    let checkpoint = Checkpoint::from_bytes(&[("model.gguf", file)], &[]).unwrap();
    assert!(checkpoint.tensor_names().any(|name| name == "blk.0.ffn_down.scale"));
}

#[test]
fn a_damaged_scale_is_found_with_the_first_weight_of_its_block() {
    // The second of three Q5_K blocks has an infinite scale.
    let mut blocks = vec![1u8; 3 * 176];
    blocks[176..178].copy_from_slice(&[0x00, 0x7c]);
    let mut writer = GgufWriter::new();
    writer.raw_tensor("w", GgmlType::of(WeightFormat::Q5_K).unwrap(), &[256, 3], blocks.into());
    let tensor = Gguf::read(writer.to_bytes()).unwrap().tensor("w").unwrap();
    assert_eq!(tensor.first_not_finite(), Some((256, f32::INFINITY)));
}
