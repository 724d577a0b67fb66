//! GGUF written by hand, field by field, without any of the writer's care.

use bytes::Bytes;

/// A file in the making.
#[derive(Clone, Default)]
pub(crate) struct Raw(Vec<u8>);

impl Raw {
    /// A header of version 3 that claims these counts.
    pub(crate) fn gguf(tensors: u64, keys: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(tensors).u64(keys)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(crate) fn string(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A key and the id of its value's type; the value follows.
    pub(crate) fn key(self, key: &str, value_type: u32) -> Self {
        self.string(key).u32(value_type)
    }

    /// A key with a 32-bit integer.
    pub(crate) fn key_u32(self, key: &str, value: u32) -> Self {
        self.key(key, 4).u32(value)
    }

    /// A key with a string.
    pub(crate) fn key_string(self, key: &str, value: &str) -> Self {
        self.key(key, 8).string(value)
    }

    /// A row of the tensor table; dimensions innermost first.
    pub(crate) fn tensor(self, name: &str, dims: &[u64], ggml_type: u32, offset: u64) -> Self {
        let named = self.string(name).u32(dims.len() as u32);
        dims.iter().fold(named, |raw, &dim| raw.u64(dim)).u32(ggml_type).u64(offset)
    }

    /// Padding to 32 bytes, then `len` bytes of data.
    pub(crate) fn data(mut self, len: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self
    }

    pub(crate) fn done(self) -> Bytes {
        self.0.into()
    }
}
