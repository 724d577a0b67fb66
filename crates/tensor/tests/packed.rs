//! Block formats: every weight as the published decoder has it, bit for bit (`tools/goldens/packed_formats.py`); and what becomes
//! of it in Q8_0.

use tensor::quant::{fp8, q8_0};
use tensor::{Tensor, WeightFormat};

/// Those with a golden file: all in blocks.
fn golden_formats() -> impl Iterator<Item = WeightFormat> {
    WeightFormat::ALL.into_iter().filter(|format| format.is_quantized())
}

/// The blocks of a golden file, and their weights.
fn golden(format: WeightFormat) -> (Vec<u8>, Vec<f32>) {
    let path = format!("{}/tests/golden/{}.bin", env!("CARGO_MANIFEST_DIR"), format.name());
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let blocks = bytes.len() / (format.block_bytes() + 4 * format.block_len());
    let (blocks, weights) = bytes.split_at(blocks * format.block_bytes());
    (blocks.to_vec(), weights.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

fn expanded(format: WeightFormat, blocks: &[u8], len: usize) -> Vec<q8_0::Block> {
    let mut expanded = vec![q8_0::pack(&[0.0; 32]); len / q8_0::BLOCK_LEN];
    format.to_q8_0(blocks, &mut expanded);
    expanded
}

#[test]
fn weights_are_those_of_the_published_decoder() {
    for format in golden_formats() {
        let (blocks, expected) = golden(format);
        assert!(expected.len() >= 6 * format.block_len(), "{}", format.name());
        let mut found = vec![f32::NAN; expected.len()];
        format.unpack(&blocks, &mut found);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            // A product with zero may have either sign.
            assert!(found == expected, "{} {i}: {found}, not {expected}", format.name());
        }
        assert_eq!(WeightFormat::from_name(format.name()), Some(format));
    }
}

/// Σ of the squares of what `blocks` lost of `weights`.
fn lost(format: WeightFormat, blocks: &[u8], weights: &[f32]) -> f64 {
    let mut back = vec![f32::NAN; weights.len()];
    format.unpack(blocks, &mut back);
    weights.iter().zip(back).map(|(weight, back)| f64::from(weight - back).powi(2)).sum()
}

#[test]
fn plain_scales_are_those_of_the_published_packer_and_codes_lose_no_more() {
    use WeightFormat::{Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
    for (format, scales) in [(Q8_0, 2), (Q4_0, 2), (Q4_1, 4), (Q5_0, 2), (Q5_1, 4)] {
        let path = format!("{}/tests/golden/{}_packed.bin", env!("CARGO_MANIFEST_DIR"), format.name());
        let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let (weights, expected) = golden.split_at(16 * 32 * 4);
        let weights: Vec<f32> = weights.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        let found = Tensor::from_f32(format, vec![16, 32], &weights).unwrap();
        assert_eq!(found.bytes().len(), expected.len());
        let blocks = found.bytes().chunks_exact(format.block_bytes()).zip(expected.chunks_exact(format.block_bytes()));
        let mut equal = 0;
        for (i, ((found, expected), weights)) in blocks.zip(weights.chunks_exact(32)).enumerate() {
            assert_eq!(found[..scales], expected[..scales], "{format} block {i}");
            // The published packer rounds to multiples of the scale before it is rounded itself; these of what is stored.
            let (found_lost, expected_lost) = (lost(format, found, weights), lost(format, expected, weights));
            assert!(found_lost <= expected_lost * (1.0 + 1e-6), "{format} block {i}: {found_lost}, {expected_lost}");
            equal += usize::from(found == expected);
        }
        let least = if format == Q8_0 { 16 } else { 8 };
        assert!(equal >= least, "{format}: {equal} blocks are the same");
    }
}

#[test]
fn every_code_of_e4m3_is_the_number_of_the_published_decoder() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/E4M3.bin");
    let golden = std::fs::read(path).unwrap();
    let (expected, rest) = golden.as_chunks();
    assert!(expected.len() == 256 && rest.is_empty());
    for (code, &expected) in (0..=255).zip(expected) {
        let (found, expected) = (fp8::e4m3(code), f32::from_le_bytes(expected));
        assert!(
            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
            "{code:#x}: {found}, not {expected}"
        );
    }
}

#[test]
fn formats_of_one_scale_for_32_codes_are_the_same_in_q8_0() {
    for format in [WeightFormat::Q4_0, WeightFormat::Q5_0, WeightFormat::IQ4_NL] {
        let (blocks, weights) = golden(format);
        let found: Vec<f32> = expanded(format, &blocks, weights.len()).iter().flat_map(q8_0::unpack).collect();
        assert_eq!(found, weights, "{}", format.name());
    }
}

#[test]
fn others_lose_no_more_than_q8_0_does() {
    for format in golden_formats() {
        let (blocks, weights) = golden(format);
        let expanded = expanded(format, &blocks, weights.len());
        for (i, (block, expected)) in expanded.iter().zip(weights.as_chunks::<32>().0).enumerate() {
            let largest = expected.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
            // Half a step, and what the scale's own rounding to f16 costs; below its smallest numbers f16 keeps less.
            let most = largest * (0.5 / 127.0 + 1.0 / 1024.0) + 127.0 * 2f32.powi(-24);
            for (found, expected) in q8_0::unpack(block).iter().zip(expected) {
                assert!((found - expected).abs() <= most, "{} block {i}: {found}, not {expected}", format.name());
            }
        }
    }
}

/// Numbers of usual sizes.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| random() * random()).collect()
}

#[test]
fn what_was_unpacked_is_packed_to_the_same_weights() {
    for format in golden_formats() {
        let pack = |values: &[f32]| Tensor::from_f32(format, vec![64, 512], values).unwrap().to_f32();
        let packed = pack(&noise(64 * 512));
        let again = pack(&packed);
        let largest = packed.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
        let blocks = packed.chunks_exact(format.block_len()).zip(again.chunks_exact(format.block_len()));
        let differing: Vec<_> = blocks.clone().filter(|(packed, again)| packed != again).collect();
        // Ranges that were rounded are rounded again, which may come out as another multiple of their unit.
        let has_ranges = [WeightFormat::Q2_K, WeightFormat::Q4_K, WeightFormat::Q5_K].contains(&format);
        let most = if has_ranges { blocks.len() / 64 } else { 0 };
        assert!(differing.len() <= most, "{format}: {} of {} blocks", differing.len(), blocks.len());
        for (packed, again) in differing {
            assert!(
                packed.iter().zip(again).all(|(packed, again)| (packed - again).abs() <= largest / 40.0),
                "{format}"
            );
        }
    }
}
