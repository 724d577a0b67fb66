//! Any bytes as a safetensors file. What is accepted can be written again and stays the same.
#![no_main]

use bytes::Bytes;
use formats::safetensors::{Safetensors, rewrite};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let file = Bytes::copy_from_slice(data);
    let header = Safetensors::read_header(file.clone());
    let Ok(safetensors) = Safetensors::read(file) else { return };
    assert!(header.is_ok(), "a whole file has a header");
    let mut covered = 0;
    for info in safetensors.tensors() {
        let bytes = safetensors.tensor_bytes(info).expect("a whole file has all of its tensors");
        covered += bytes.len();
        if info.weight_format().is_some() {
            safetensors.tensor(info.name()).expect("a tensor of a covered type is read");
        }
    }
    let header_len = u64::from_le_bytes(data[..8].try_into().expect("eight bytes")) as usize;
    assert_eq!(8 + header_len + covered, data.len(), "tensors cover the data");
    let written = rewrite(&safetensors).expect("all tensors are there");
    let again = Safetensors::read(written.clone()).expect("what is written is read");
    assert_eq!(safetensors.metadata(), again.metadata());
    for (a, b) in safetensors.tensors().iter().zip(again.tensors()) {
        assert_eq!((a.name(), a.dtype(), a.shape()), (b.name(), b.dtype(), b.shape()));
        assert_eq!(safetensors.tensor_bytes(a).ok(), again.tensor_bytes(b).ok());
    }
    assert_eq!(written, rewrite(&again).expect("all tensors are there"));
});
