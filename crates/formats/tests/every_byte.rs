//! A valid file with any one byte changed, or cut at any length, is read or refused; it never panics. Exhaustive.

mod valid;

use bytes::Bytes;
use formats::Checkpoint;

/// Opens, lists and reads everything. What it returns is not the point.
fn exercise(files: &[(&str, Bytes)]) -> bool {
    let Ok(checkpoint) = Checkpoint::from_bytes(files, &valid::ARCHITECTURES) else { return false };
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
    const MASKS: [u8; 5] = [0x01, 0x10, 0x40, 0x80, 0xff];
    assert!(exercise(files), "the unchanged files are whole");
    let mut files = files.to_vec();
    let original = files[index].1.clone();
    let mut refused = 0;
    for at in 0..original.len() {
        for mask in MASKS {
            let mut changed = original.to_vec();
            changed[at] ^= mask;
            files[index].1 = changed.into();
            refused += usize::from(!exercise(&files));
        }
        files[index].1 = original.slice(..at);
        refused += usize::from(!exercise(&files));
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
