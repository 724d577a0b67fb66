//! Any bytes as a GGUF file. What is accepted can be written again, is accepted again, and then stays the same.
#![no_main]

use bytes::Bytes;
use formats::gguf::{Gguf, GgufWriter, vocabulary::GgufVocabulary};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let file = Bytes::copy_from_slice(data);
    let header = Gguf::read_header(file.clone());
    let Ok(gguf) = Gguf::read(file) else { return };
    assert!(header.is_ok(), "a whole file has a header");
    let _ = GgufVocabulary::read(gguf.metadata());
    for info in gguf.tensors() {
        let bytes = gguf.tensor_bytes(info).expect("a whole file has all of its tensors");
        assert_eq!(bytes.len() as u64, info.range().len());
        if info.ggml_type().weight_format().is_some() {
            gguf.tensor(info.name()).expect("a tensor of a covered type is read");
        }
    }
    for (key, value) in gguf.metadata().iter() {
        assert_eq!(gguf.metadata().get(key).map(|found| found.summary()), Some(value.summary()));
    }
    let written = GgufWriter::from_gguf(&gguf).expect("all tensors are there").to_bytes();
    let again = Gguf::read(written.clone()).expect("what is written is read");
    let infos = |gguf: &Gguf| {
        let tensors = gguf.tensors().iter();
        tensors.map(|t| (t.name().to_string(), t.ggml_type(), t.shape(), gguf.tensor_bytes(t).ok())).collect::<Vec<_>>()
    };
    assert_eq!(infos(&gguf), infos(&again));
    let twice = GgufWriter::from_gguf(&again).expect("all tensors are there").to_bytes();
    assert_eq!(written, twice);
});
