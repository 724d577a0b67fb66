//! Packed types of GGUF, from goldens of the published decoder (crates/tensor): read as the file has them.

use bytes::Bytes;
use formats::gguf::{GgmlType, Gguf, GgufWriter};
use tensor::WeightFormat;

#[test]
fn a_tensor_of_any_packed_type_is_read() {
    let has_golden = |format: &WeightFormat| format.is_quantized() && *format != WeightFormat::Q8_0;
    for format in WeightFormat::ALL.into_iter().filter(has_golden) {
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
