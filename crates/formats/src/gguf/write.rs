//! Writing GGUF version 3: the header, then each tensor at a multiple of the alignment.

use std::io::{self, Write};

use bytes::Bytes;
use tensor::Tensor;

use super::{DEFAULT_ALIGNMENT, GgmlType, Gguf, Value};
use crate::FormatError;
use crate::made::Data;

/// What goes into a GGUF file, in order. Nothing is checked here that [`Gguf::read`] does not check again.
#[derive(Clone, Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Entry>,
    alignment: Option<u64>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    ggml_type: GgmlType,
    /// Innermost first, as in the file.
    dims: Vec<u64>,
    data: Data,
}

impl GgufWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything that is in `gguf`, to be changed or written again.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, FormatError> {
        let mut writer = Self::new();
        for (key, value) in gguf.metadata().iter() {
            writer.metadata(key, value.clone());
        }
        for info in gguf.tensors() {
            writer.raw_tensor(info.name(), info.ggml_type(), info.dims(), gguf.tensor_bytes(info)?);
        }
        Ok(writer)
    }

    /// Adds a key. `general.alignment` also sets the alignment of the data.
    pub fn metadata(&mut self, key: &str, value: Value) -> &mut Self {
        if let ("general.alignment", Some(alignment)) = (key, value.as_u64()) {
            self.alignment = Some(alignment);
        }
        self.metadata.push((key.into(), value));
        self
    }

    /// Adds a key in place of what there was under it.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> &mut Self {
        self.metadata.retain(|(known, _)| known != key);
        self.metadata(key, value)
    }

    /// Adds a tensor.
    ///
    /// # Panics
    /// When GGUF has no type of its format: [`GgmlType::of`] knows.
    pub fn tensor(&mut self, name: &str, tensor: &Tensor) -> &mut Self {
        let dims: Vec<u64> = tensor.shape().iter().rev().map(|&d| d as u64).collect();
        let ggml_type = GgmlType::of(tensor.format());
        let ggml_type = ggml_type.unwrap_or_else(|| panic!("`{name}` is in {}, no type of GGUF", tensor.format()));
        self.raw_tensor(name, ggml_type, &dims, tensor.bytes().clone())
    }

    /// Adds a tensor of any type; `dims` are innermost first.
    pub fn raw_tensor(&mut self, name: &str, ggml_type: GgmlType, dims: &[u64], data: Bytes) -> &mut Self {
        self.tensors.push(Entry { name: name.into(), ggml_type, dims: dims.into(), data: Data::Given(data) });
        self
    }

    /// Adds a tensor of `len` bytes that `make` writes when the file is written, so that they need not lie in memory before.
    pub fn made_tensor(
        &mut self,
        name: &str,
        ggml_type: GgmlType,
        dims: &[u64],
        len: u64,
        make: impl Fn(&mut dyn Write) -> io::Result<()> + 'static,
    ) -> &mut Self {
        self.tensors.push(Entry { name: name.into(), ggml_type, dims: dims.into(), data: Data::made(len, make) });
        self
    }

    /// Writes the file, without holding it in memory. A tensor that makes another number of bytes than it said is an error.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_from(0, out, &mut |_, _| Ok(()))
    }

    /// Tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The name of tensor `index`.
    pub fn name(&self, index: usize) -> Option<&str> {
        self.tensors.get(index).map(|tensor| tensor.name.as_str())
    }

    /// Bytes of the file before the data of each tensor, and all of them at the end.
    pub fn offsets(&self) -> Vec<u64> {
        let alignment = self.alignment();
        let mut at = (self.header().len() as u64).next_multiple_of(alignment);
        let mut offsets = Vec::with_capacity(self.tensors.len() + 1);
        for tensor in &self.tensors {
            offsets.push(at);
            at += tensor.data.len().next_multiple_of(alignment);
        }
        offsets.push(at);
        offsets
    }

    /// Bytes of the file before the data of tensor `index`, or all of them past the last. [`GgufWriter::offsets`] has those of
    /// all at once.
    pub fn bytes_before(&self, index: usize) -> u64 {
        self.offsets()[index.min(self.tensors.len())]
    }

    /// As [`GgufWriter::write_to`], from tensor `first` on, where [`GgufWriter::bytes_before`] it are written already: none
    /// for 0. `done` hears of each tensor that is written, by its index.
    pub fn write_from<W: Write>(
        &self,
        first: usize,
        out: &mut W,
        done: &mut dyn FnMut(&mut W, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let alignment = self.alignment();
        if first == 0 {
            let header = self.header();
            out.write_all(&header)?;
            write_padding(out, header.len() as u64, alignment)?;
        }
        for (index, tensor) in self.tensors.iter().enumerate().skip(first) {
            tensor.data.write(&tensor.name, out)?;
            write_padding(out, tensor.data.len(), alignment)?;
            done(out, index)?;
        }
        Ok(())
    }

    fn alignment(&self) -> u64 {
        self.alignment.unwrap_or(DEFAULT_ALIGNMENT.into()).max(1)
    }

    /// Everything before the padding in front of the data.
    pub fn header(&self) -> Vec<u8> {
        let alignment = self.alignment();
        let mut header = Vec::new();
        header.extend(b"GGUF");
        header.extend(3u32.to_le_bytes());
        header.extend((self.tensors.len() as u64).to_le_bytes());
        header.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            write_string(&mut header, key);
            header.extend((value.value_type() as u32).to_le_bytes());
            write_value(&mut header, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            write_string(&mut header, &tensor.name);
            header.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| header.extend(dim.to_le_bytes()));
            header.extend(tensor.ggml_type.id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = (offset + tensor.data.len()).next_multiple_of(alignment);
        }
        header
    }

    /// The file in memory.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.write_to(&mut out).expect("writing to a Vec does not fail");
        out.into()
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => write_string(out, v),
        Value::Array(v) => v.write_to(out),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn write_padding(out: &mut impl Write, written: u64, alignment: u64) -> io::Result<()> {
    let padding = written.next_multiple_of(alignment) - written;
    io::copy(&mut io::Read::take(io::repeat(0), padding), out).map(|_| ())
}
