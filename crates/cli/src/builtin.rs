//! The built-in model: a checkpoint inside the binary, so that the first command works offline, in an empty directory.
//! `tools/builtin_model/README.md` says what it is and how it was made.

use formats::{Checkpoint, FormatError};

/// What messages and reports call it.
pub(crate) const NAME: &str = "built-in model";

const FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../builtin/config.json")),
    ("generation_config.json", include_bytes!("../builtin/generation_config.json")),
    ("tokenizer.json", include_bytes!("../builtin/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../builtin/tokenizer_config.json")),
    ("model.safetensors", include_bytes!("../builtin/model.safetensors")),
];

/// The checkpoint; its weights are read where the binary is mapped.
pub(crate) fn open() -> Result<Checkpoint, FormatError> {
    Checkpoint::from_bytes(&FILES.map(|(name, bytes)| (name, bytes::Bytes::from_static(bytes))))
}
