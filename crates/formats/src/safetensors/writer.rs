//! Writing safetensors tensor by tensor, without holding the file in memory.

use std::io::{self, Write};

use bytes::Bytes;

use super::{METADATA_KEY, dtype_bits};
use crate::made::Data;

/// What goes into a safetensors file, in order. Nothing is checked here that [`super::Safetensors::read`] does not check again.
#[derive(Clone, Debug, Default)]
pub struct SafetensorsWriter {
    metadata: Vec<(String, String)>,
    tensors: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    data: Data,
}

impl SafetensorsWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a string to the header.
    pub fn metadata(&mut self, key: &str, value: &str) -> &mut Self {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Adds a tensor.
    pub fn tensor(&mut self, name: &str, dtype: &'static str, shape: &[u64], data: Bytes) -> &mut Self {
        self.tensors.push(Entry { name: name.into(), dtype, shape: shape.into(), data: Data::Given(data) });
        self
    }

    /// Adds a tensor of `len` bytes that `make` writes when the file is written, so that they need not lie in memory before.
    pub fn made_tensor(
        &mut self,
        name: &str,
        dtype: &'static str,
        shape: &[u64],
        len: u64,
        make: impl Fn(&mut dyn Write) -> io::Result<()> + 'static,
    ) -> &mut Self {
        self.tensors.push(Entry { name: name.into(), dtype, shape: shape.into(), data: Data::made(len, make) });
        self
    }

    /// Adds all tensors of `other`.
    pub fn append(&mut self, other: Self) -> &mut Self {
        self.tensors.extend(other.tensors);
        self
    }

    /// Bytes of all tensors.
    pub fn data_len(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.data.len()).sum()
    }

    /// Brings tensors into an order in which each is aligned for its type, which readers may expect although tensors lie one
    /// after another without padding: those of a multiple of eight bytes stay in front, the others follow, the widest type first.
    pub fn align(&mut self) -> &mut Self {
        let narrowness = |tensor: &Entry| match tensor.data.len() % 8 {
            0 => 0,
            _ => 64u64.saturating_sub(dtype_bits(tensor.dtype).unwrap_or(8)),
        };
        self.tensors.sort_by_key(narrowness);
        self
    }

    /// The name of tensor `index`.
    pub fn name(&self, index: usize) -> Option<&str> {
        self.tensors.get(index).map(|tensor| tensor.name.as_str())
    }

    /// Tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Bytes of the file before the data of each tensor, and all of them at the end.
    pub fn offsets(&self) -> Vec<u64> {
        let mut at = self.header().len() as u64;
        let mut offsets = Vec::with_capacity(self.tensors.len() + 1);
        for tensor in &self.tensors {
            offsets.push(at);
            at += tensor.data.len();
        }
        offsets.push(at);
        offsets
    }

    /// Bytes of the file before the data of tensor `index`, or all of them past the last. [`SafetensorsWriter::offsets`] has
    /// those of all at once.
    pub fn bytes_before(&self, index: usize) -> u64 {
        self.offsets()[index.min(self.tensors.len())]
    }

    /// Everything before the data: the length of the table, and the table with spaces up to a multiple of eight bytes.
    pub fn header(&self) -> Vec<u8> {
        let mut table = serde_json::Map::new();
        if !self.metadata.is_empty() {
            let strings = self.metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
            table.insert(METADATA_KEY.into(), serde_json::Value::Object(strings));
        }
        let mut end = 0;
        for tensor in &self.tensors {
            let start = end;
            end += tensor.data.len();
            let entry = serde_json::json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]});
            table.insert(tensor.name.clone(), entry);
        }
        let mut table = serde_json::Value::Object(table).to_string();
        let padded = table.len().next_multiple_of(8);
        table.extend(std::iter::repeat_n(' ', padded - table.len()));
        [&(table.len() as u64).to_le_bytes(), table.as_bytes()].concat()
    }

    /// Writes the file from tensor `first` on, where [`SafetensorsWriter::bytes_before`] it are written already: none for 0.
    /// `done` hears of each tensor that is written, by its index. A tensor that makes another number of bytes than it said is an
    /// error.
    pub fn write_from<W: Write>(
        &self,
        first: usize,
        out: &mut W,
        done: &mut dyn FnMut(&mut W, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        if first == 0 {
            out.write_all(&self.header())?;
        }
        for (index, tensor) in self.tensors.iter().enumerate().skip(first) {
            tensor.data.write(&tensor.name, out)?;
            done(out, index)?;
        }
        Ok(())
    }

    /// The file in memory.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.write_from(0, &mut out, &mut |_, _| Ok(())).expect("writing to a Vec does not fail");
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::Safetensors;

    #[test]
    fn every_tensor_is_aligned_whatever_their_sizes() {
        let mut writer = SafetensorsWriter::new();
        let sizes = [
            ("U8", 1u64, 3u64),
            ("I32", 4, 5),
            ("F16", 2, 3),
            ("I64", 8, 2),
            ("F16", 2, 4),
            ("I32", 4, 2),
            ("F32", 4, 1),
        ];
        for (i, (dtype, size, len)) in sizes.into_iter().enumerate() {
            writer.tensor(&i.to_string(), dtype, &[len], vec![0; (size * len) as usize].into());
        }
        writer.align();
        let order: String = (0..sizes.len()).filter_map(|index| writer.name(index)).collect();
        assert_eq!(order, "3451620");
        let file = Safetensors::read(writer.to_bytes()).unwrap();
        for info in file.tensors() {
            let size = sizes.iter().find(|(dtype, ..)| *dtype == info.dtype()).unwrap().1;
            assert!(info.range().start().is_multiple_of(size), "{info:?}");
        }
    }

    #[test]
    fn a_file_is_read_back_and_continued_where_it_was_left() {
        let mut writer = SafetensorsWriter::new();
        writer.metadata("format", "pt");
        writer.tensor("b", "I32", &[2, 2], Bytes::from_static(&[1; 16]));
        writer.made_tensor("a", "F16", &[3], 6, |out| out.write_all(&[2; 6]));
        let whole = writer.to_bytes();
        let file = Safetensors::read(whole.clone()).unwrap();
        assert_eq!(file.metadata(), [("format".to_owned(), "pt".to_owned())]);
        let info = file.tensor_info("a").unwrap();
        assert_eq!((info.dtype(), info.shape(), &file.tensor_bytes(info).unwrap()[..]), ("F16", &[3][..], &[2; 6][..]));
        assert_eq!((writer.len(), writer.name(1), writer.bytes_before(2)), (2, Some("a"), whole.len() as u64));
        assert_eq!((whole.len() - 22) % 8, 0);
        let mut rest = whole[..writer.bytes_before(1) as usize].to_vec();
        let mut heard = Vec::new();
        let done = &mut |_: &mut Vec<u8>, index| {
            heard.push(index);
            Ok(())
        };
        writer.write_from(1, &mut rest, done).unwrap();
        assert_eq!((rest, heard), (whole.to_vec(), vec![1]));
        writer.made_tensor("c", "U8", &[3], 3, |out| out.write_all(&[2; 2]));
        let error = writer.write_from(0, &mut Vec::new(), &mut |_, _| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "tensor `c`: 2 bytes were made, not 3");
    }
}
