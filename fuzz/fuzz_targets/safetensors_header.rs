//! See `fuzz/oracles/formats.rs`; and what is accepted here, the reference reader accepts and reads the same.
#![no_main]

#[path = "../compares.rs"]
mod compares;
#[path = "../oracles/formats.rs"]
#[allow(dead_code, reason = "each target uses one of them")]
mod oracles;

use bytes::Bytes;
use formats::safetensors::Safetensors;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    oracles::safetensors_header(data);
    let Ok(ours) = Safetensors::read(Bytes::copy_from_slice(data)) else { return };
    let reference = safetensors::SafeTensors::deserialize(data).expect("the reference reader accepts it too");
    assert_eq!(reference.len(), ours.tensors().len());
    for info in ours.tensors() {
        let view = reference.tensor(info.name()).expect("a tensor of this name");
        assert!(view.shape().iter().map(|&dim| dim as u64).eq(info.shape().iter().copied()));
        assert_eq!(view.data(), &ours.tensor_bytes(info).expect("its bytes")[..]);
    }
});
