//! Packed types, from goldens of the published decoder (crates/tensor): read as they are, or as Q8_0 where they have no kernels
//! of their own.

use bytes::Bytes;
use formats::gguf::{GgmlType, Gguf, GgufWriter};
use tensor::WeightFormat;
use tensor::quant::PackedFormat;

#[test]
fn a_tensor_of_any_packed_type_is_read() {
    for &format in PackedFormat::ALL {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tensor/tests/golden");
        let golden = std::fs::read(format!("{folder}/{}.bin", format.name())).unwrap();
        let (blocks, weights) = golden.split_at(6 * format.block_bytes());
        let expected: Vec<f32> = weights.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let ggml_type = GgmlType::all().find(|ggml| ggml.name() == format.name()).unwrap();
        let row_len = 3 * format.block_len();
        let mut writer = GgufWriter::new();
        writer.raw_tensor("w", ggml_type, &[row_len as u64, 2], Bytes::copy_from_slice(blocks));
        let tensor = Gguf::read(writer.to_bytes()).unwrap().tensor("w").unwrap();
        let own = WeightFormat::from_name(format.name());
        let expected_format = own.unwrap_or(WeightFormat::Q8_0);
        assert_eq!((tensor.format(), tensor.shape()), (expected_format, &[2, row_len][..]), "{format:?}");
        let mut row = vec![0f32; row_len];
        for (index, expected) in expected.chunks(row_len).enumerate() {
            tensor.row_to_f32(index, &mut row);
            if own.is_some() {
                assert_eq!(row, expected, "{format:?}");
                continue;
            }
            for (found, expected) in row.as_chunks::<32>().0.iter().zip(expected.as_chunks::<32>().0) {
                let largest = expected.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
                // As in the tests of `tensor::quant`.
                let most = largest * (0.5 / 127.0 + 1.0 / 1024.0) + 127.0 * 2f32.powi(-24);
                let near = found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() <= most);
                assert!(near, "{format:?}: {found:?}, not {expected:?}");
            }
        }
    }
}

#[test]
fn a_damaged_scale_stays_visible() {
    // A Q5_K block whose scale is an infinity: not zeros, but what `check_finite` reports.
    let mut block = vec![1u8; 176];
    block[..2].copy_from_slice(&[0x00, 0x7c]);
    let ggml_type = GgmlType::all().find(|ggml| ggml.name() == "Q5_K").unwrap();
    let mut writer = GgufWriter::new();
    writer.raw_tensor("w", ggml_type, &[256], block.into());
    let tensor = Gguf::read(writer.to_bytes()).unwrap().tensor("w").unwrap();
    let mut row = vec![0f32; 256];
    tensor.row_to_f32(0, &mut row);
    assert!(row.iter().all(|weight| weight.is_nan()));
}
