//! The built-in model: a checkpoint inside the binary, so that the first command works offline, in an empty directory.
//! `tools/builtin_model/README.md` says what it is and how it was made.

use bytes::Bytes;
use formats::{Checkpoint, FormatError};

/// What messages and reports call it.
pub(crate) const NAME: &str = "built-in model";

/// Bytes at an address that every weight format can be read from in place; `include_bytes!` alone promises none.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static WEIGHTS: &Aligned<[u8]> = &Aligned(*include_bytes!("../builtin/model.safetensors"));

const FILES: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("../builtin/config.json")),
    ("generation_config.json", include_bytes!("../builtin/generation_config.json")),
    ("tokenizer.json", include_bytes!("../builtin/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../builtin/tokenizer_config.json")),
];

/// The checkpoint; its weights are read where the binary is mapped.
pub(crate) fn open() -> Result<Checkpoint, FormatError> {
    let files = FILES.into_iter().chain([("model.safetensors", &WEIGHTS.0)]);
    let files: Vec<_> = files.map(|(name, bytes)| (name, Bytes::from_static(bytes))).collect();
    // Safetensors: no name of GGUF is asked for.
    Checkpoint::from_bytes(&files, &[])
}
