//! A valid file with any one byte changed, or cut at any length, is read or refused; it never panics. Exhaustive.

mod valid;

use bytes::Bytes;
use formats::{Checkpoint, gguf_names::Architecture};
use tensor::WeightFormat;
use valid::mixtures;

/// Opens, lists and reads everything. What it returns is not the point.
fn exercise(files: &[(&str, Bytes)], architectures: &'static [Architecture]) -> bool {
    let Ok(checkpoint) = Checkpoint::from_bytes(files, architectures) else { return false };
    let mut whole = checkpoint.eos_token_ids().is_ok();
    for info in checkpoint.tensor_infos() {
        whole &= checkpoint.check_finite(&info.name).is_ok();
        whole &= checkpoint.tensor(&info.name).is_ok();
    }
    whole
}

/// Every byte of file `index` XORed with each mask (single bits, and all of them), then every length. Returns how many
/// of the changed files were refused.
fn change_every_byte(files: &[(&str, Bytes)], index: usize) -> usize {
    change_bytes(files, index, usize::MAX, &valid::ARCHITECTURES)
}

/// As [`change_every_byte`], of the first `header_len` bytes and of some of those behind them.
fn change_bytes(
    files: &[(&str, Bytes)],
    index: usize,
    header_len: usize,
    architectures: &'static [Architecture],
) -> usize {
    /// From one to the next of the others.
    const STEP: usize = 61;
    const MASKS: [u8; 5] = [0x01, 0x10, 0x40, 0x80, 0xff];
    assert!(exercise(files, architectures), "the unchanged files are whole");
    let mut files = files.to_vec();
    let original = files[index].1.clone();
    let mut refused = 0;
    let header_len = header_len.min(original.len());
    for at in (0..header_len).chain((header_len..original.len()).step_by(STEP)) {
        for mask in MASKS {
            let mut changed = original.to_vec();
            changed[at] ^= mask;
            files[index].1 = changed.into();
            refused += usize::from(!exercise(&files, architectures));
        }
        files[index].1 = original.slice(..at);
        refused += usize::from(!exercise(&files, architectures));
    }
    refused
}

#[test]
fn gguf() {
    let file = valid::gguf_writer("llama").to_bytes();
    let header_len = formats::gguf::Gguf::read(file.clone()).unwrap().tensors()[0].range().start() as usize;
    let refused = change_every_byte(&[("model.gguf", file)], 0);
    // Most of a header is lengths, types and offsets: a reader that refused little would not be checking.
    assert!(refused > header_len, "only {refused} changes refused");
}

#[test]
fn safetensors() {
    let folder = valid::folder();
    let refused = change_every_byte(&folder, 1);
    assert!(refused > folder[1].1.len(), "only {refused} changes refused");
}

#[test]
fn configuration_and_index() {
    for (folder, index) in [(valid::folder(), 0), (valid::folder(), 3), (valid::sharded_folder(), 1)] {
        let refused = change_every_byte(&folder, index);
        assert!(refused > folder[index].1.len(), "only {refused} changes refused in {}", folder[index].0);
    }
}

#[test]
fn experts_in_gguf() {
    for (architecture, format) in [("gpt-oss", WeightFormat::BF16), ("llama", WeightFormat::F32)] {
        let file = mixtures::gguf(architecture, format).0.to_bytes();
        let header_len = formats::gguf::Gguf::read(file.clone()).unwrap().tensors()[0].range().start() as usize;
        let refused = change_bytes(&[("model.gguf", file)], 0, header_len, &mixtures::ARCHITECTURES);
        assert!(refused > header_len, "only {refused} changes refused");
    }
}

#[test]
fn experts_in_safetensors() {
    let bf16 = mixtures::gpt_oss(WeightFormat::BF16).0;
    for files in [bf16, mixtures::fused(WeightFormat::F32).0, mixtures::gpt_oss_mxfp4().0] {
        let header_len = 8 + usize::from(u16::from_le_bytes([files[1].1[0], files[1].1[1]]));
        let refused = change_bytes(&files, 1, header_len, &mixtures::ARCHITECTURES);
        assert!(refused > header_len, "only {refused} changes refused");
        let config_len = files[0].1.len();
        let refused = change_bytes(&files, 0, config_len, &mixtures::ARCHITECTURES);
        assert!(refused > config_len, "only {refused} changes of the configuration refused");
    }
}
