//! GGUF versions 2 and 3: header, metadata, tensor table; tensors are views of the file.
//!
//! Source    the GGUF specification in ggml's `docs/gguf.md`.
//! Layout    "GGUF", version u32, tensor count u64, key count u64; keys (string, type u32, value); tensors (name,
//!           dimension count u32, dimensions u64 innermost first, type u32, offset u64); padding to
//!           `general.alignment` (32 unless set); data. Strings are a u64 length and UTF-8. All little-endian.
//! Bounds    Every count is compared with the bytes that are left before anything is allocated; tensors may not
//!           overlap, leave the file or lie unaligned. Holes between tensors are accepted.
//!
//! What the names and keys mean for a model is in `gguf_names`, not here.

pub mod nvfp4;
mod strings;
mod types;
mod value;
pub mod vocabulary;
mod write;

use std::fmt::Display;

use bytes::Bytes;
use tensor::Tensor;

pub use strings::Strings;
pub use types::GgmlType;
pub use value::{Array, Metadata, Value, ValueType};
pub use write::GgufWriter;

use crate::{
    Completeness, FormatError,
    error::shown,
    limits::{Budget, ByteRange, DEPTH_MAX, KEYS_MAX, NAME_BYTES_MAX, TENSORS_MAX, at_most},
};

pub(crate) use types::COVERED;

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u32 = 32;
const ALIGNMENT_MAX: u64 = 1 << 16;
/// ggml has four dimensions.
const DIMENSIONS_MAX: usize = 4;
/// Key length, one byte of key, type, value; and name length, one dimension, type, offset: fewer bytes are no entry.
const KEY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
const TENSOR_BYTES_MIN: u64 = 8 + 4 + 8 + 4 + 8;

/// An open GGUF file.
#[derive(Clone, Debug)]
pub struct Gguf {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<GgufTensor>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
    file: Bytes,
}

/// What the tensor table says of one tensor.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    name: String,
    ggml_type: GgmlType,
    dims: [u64; DIMENSIONS_MAX],
    num_dims: usize,
    /// In the file, not in the data section.
    range: ByteRange,
}

impl Gguf {
    /// Reads a whole file: every tensor must lie inside it.
    pub fn read(file: Bytes) -> Result<Self, FormatError> {
        Self::read_as(file, Completeness::Whole)
    }

    /// Reads the header of a file of which the data may be missing, as in a download that was stopped.
    pub fn read_header(file: Bytes) -> Result<Self, FormatError> {
        Self::read_as(file, Completeness::HeaderOnly)
    }

    pub(crate) fn read_as(file: Bytes, completeness: Completeness) -> Result<Self, FormatError> {
        let mut budget = Budget::for_file(file.len());
        let mut reader = Reader::new(&file);
        let version = read_version(&mut reader)?;
        let tensor_count = reader.count(TENSORS_MAX, TENSOR_BYTES_MIN, "tensors")?;
        let key_count = reader.count(KEYS_MAX, KEY_BYTES_MIN, "metadata keys")?;
        let metadata = read_metadata(&mut reader, key_count, &mut budget)?;
        let alignment = read_alignment(&metadata)?;
        let mut tensors = read_tensors(&mut reader, tensor_count, alignment, &mut budget)?;
        let data_start = reader.at().next_multiple_of(alignment);
        for tensor in &mut tensors {
            let range = tensor.range.offset_by(data_start);
            tensor.range = range.ok_or_else(|| FormatError::Overflow { what: tensor.described() })?;
            if completeness == Completeness::Whole {
                tensor.range.get(&file, &format_args!("tensor `{}`", shown(&tensor.name)))?;
            }
        }
        check_overlap(&tensors)?;
        let by_name = index_by_name(&tensors)?;
        Ok(Self { version, alignment, metadata, tensors, by_name, file })
    }

    /// The format version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The alignment of tensors in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The whole file.
    pub(crate) fn file(&self) -> &Bytes {
        &self.file
    }

    /// Keys and values.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor table, in the file's order.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The entry of the tensor table with this name.
    pub fn tensor_info(&self, name: &str) -> Option<&GgufTensor> {
        let at = self.by_name.binary_search_by(|&i| self.tensors[i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[at] as usize])
    }

    /// The bytes of a tensor of any type, as they lie in the file.
    pub fn tensor_bytes(&self, info: &GgufTensor) -> Result<Bytes, FormatError> {
        info.range.slice(&self.file, &info.described())
    }

    /// The tensor with this name; see [`Gguf::read_tensor`].
    pub fn tensor(&self, name: &str) -> Result<Tensor, FormatError> {
        let missing = || FormatError::MissingTensor { tensor: shown(name), found: self.tensors.len() };
        self.read_tensor(self.tensor_info(name).ok_or_else(missing)?)
    }

    /// A tensor of the table. Its shape is outermost first. It is a view of the file, but for NVFP4, whose blocks are made with
    /// the scale of the matrix in them ([`nvfp4`]). Types that are not computed with are refused by name.
    pub fn read_tensor(&self, info: &GgufTensor) -> Result<Tensor, FormatError> {
        let Some(format) = info.ggml_type.weight_format() else {
            let type_name = format!("{} ({})", info.ggml_type.id(), info.ggml_type.name());
            return Err(FormatError::UnsupportedType { tensor: shown(&info.name), type_name, covered: COVERED });
        };
        let overflow = || FormatError::Overflow { what: info.described() };
        let shape: Option<Vec<usize>> = info.shape().into_iter().map(|d| usize::try_from(d).ok()).collect();
        let bytes = self.tensor_bytes(info)?;
        if info.ggml_type.is_nvfp4() {
            return nvfp4::tensor(&info.name, shape.ok_or_else(overflow)?, nvfp4::scale(self, info)?, &bytes);
        }
        Tensor::new(format, shape.ok_or_else(overflow)?, bytes).map_err(|_| overflow())
    }

    /// The matrix `index` of a tensor of several, such as those of experts: without the outermost dimension. A view of
    /// the file, but for NVFP4.
    ///
    /// # Errors
    /// As [`Gguf::read_tensor`]; and where there is no such matrix.
    pub fn read_matrix(&self, info: &GgufTensor, index: u64) -> Result<Tensor, FormatError> {
        let overflow = || FormatError::Overflow { what: info.described() };
        let shape = info.shape();
        let (Some(format), Some((&count, inner))) = (info.ggml_type.weight_format(), shape.split_first()) else {
            return self.read_tensor(info);
        };
        let bytes = self.tensor_bytes(info)?;
        let len = bytes.len() as u64 / count.max(1);
        let range = index.checked_mul(len).filter(|_| index < count).and_then(|start| ByteRange::new(start, len));
        let bytes = range.ok_or_else(overflow)?.slice(&bytes, &info.described())?;
        let dims: Option<Vec<usize>> = inner.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        let dims = dims.ok_or_else(overflow)?;
        if info.ggml_type.is_nvfp4() {
            return nvfp4::tensor(&info.name, dims, nvfp4::scale_of(self, info, index, count)?, &bytes);
        }
        Tensor::new(format, dims, bytes).map_err(|_| overflow())
    }
}

impl GgufTensor {
    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its elements are stored.
    pub fn ggml_type(&self) -> GgmlType {
        self.ggml_type
    }

    /// Dimensions as the file has them: innermost first.
    pub fn dims(&self) -> &[u64] {
        self.dims.get(..self.num_dims).expect("`num_dims` was checked when the table was read")
    }

    /// Dimensions outermost first, as everywhere else here.
    pub fn shape(&self) -> Vec<u64> {
        self.dims().iter().rev().copied().collect()
    }

    /// Where its bytes lie in the file.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    fn described(&self) -> String {
        format!("tensor `{}`", shown(&self.name))
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, FormatError> {
    let magic: [u8; 4] = reader.array(&"the magic number").map_err(|_| not_gguf(reader.data()))?;
    if magic != MAGIC {
        return Err(not_gguf(reader.data()));
    }
    let version = u32::from_le_bytes(reader.array(&"the version")?);
    match version {
        2 | 3 => Ok(version),
        1 => Err(FormatError::GgufVersion { version, remedy: "convert the model again with a current converter" }),
        // A big-endian file has the same magic, byte by byte; its small version number ends up in the high byte.
        _ if (1..=0xffff).contains(&version.swap_bytes()) => {
            Err(FormatError::BigEndian { version: version.swap_bytes() })
        }
        _ => Err(FormatError::GgufVersion { version, remedy: "it is newer than this program, or damaged" }),
    }
}

fn not_gguf(file: &[u8]) -> FormatError {
    let start: Vec<u8> = file.iter().copied().take(4).collect();
    FormatError::NotGguf { found: format!("\"{}\"", start.escape_ascii()) }
}

fn read_metadata(reader: &mut Reader<'_>, count: usize, budget: &mut Budget) -> Result<Metadata, FormatError> {
    // The sorted index of `Metadata` is counted with the entries.
    let entry_bytes = (size_of::<(String, Value)>() + size_of::<u32>()) as u64;
    budget.take_items(count as u64, entry_bytes, &"the metadata")?;
    let mut entries = Vec::with_capacity(count);
    for i in 0..count {
        let key = reader.string(NAME_BYTES_MAX, budget, &format_args!("metadata key {i}"))?;
        let shown_key = shown(&key);
        let what = format_args!("key `{shown_key}`");
        let value_type = value::read_type(reader, &what)?;
        let value = value::read_value(reader, value_type, DEPTH_MAX, budget, &what)?;
        entries.push((key, value));
    }
    Metadata::new(entries)
}

fn read_alignment(metadata: &Metadata) -> Result<u64, FormatError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.u64(KEY)?.unwrap_or(DEFAULT_ALIGNMENT.into());
    if alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX {
        return Ok(alignment);
    }
    let expected = format!("a power of two up to {ALIGNMENT_MAX}");
    Err(FormatError::WrongValue { key: KEY.into(), expected, found: alignment.to_string() })
}

/// The tensor table; ranges are still counted from the start of the data section.
fn read_tensors(
    reader: &mut Reader<'_>,
    count: usize,
    alignment: u64,
    budget: &mut Budget,
) -> Result<Vec<GgufTensor>, FormatError> {
    // The sorted indices by name and by offset are counted with the entries.
    let entry_bytes = (size_of::<GgufTensor>() + 2 * size_of::<u32>()) as u64;
    budget.take_items(count as u64, entry_bytes, &"the tensor table")?;
    let mut tensors = Vec::with_capacity(count);
    for i in 0..count {
        tensors.push(read_tensor(reader, i, alignment, budget)?);
    }
    Ok(tensors)
}

fn read_tensor(
    reader: &mut Reader<'_>,
    index: usize,
    alignment: u64,
    budget: &mut Budget,
) -> Result<GgufTensor, FormatError> {
    let name = reader.string(NAME_BYTES_MAX, budget, &format_args!("the name of tensor {index}"))?;
    let tensor = shown(&name);
    let what = format_args!("the table entry of tensor `{tensor}`");
    let num_dims = u32::from_le_bytes(reader.array(&what)?);
    if num_dims == 0 || num_dims as usize > DIMENSIONS_MAX {
        return Err(FormatError::Dimensions { tensor, found: num_dims.into(), limit: DIMENSIONS_MAX as u64 });
    }
    let num_dims = num_dims as usize;
    let mut dims = [1; DIMENSIONS_MAX];
    for dim in dims.iter_mut().take(num_dims) {
        *dim = u64::from_le_bytes(reader.array(&what)?);
    }
    let shape = || dims.iter().take(num_dims).rev().copied().collect();
    if dims.contains(&0) {
        return Err(FormatError::NoElements { tensor, shape: shape() });
    }
    let id = u32::from_le_bytes(reader.array(&what)?);
    let ggml_type = match (GgmlType::from_id(id), GgmlType::removed_name(id)) {
        (Some(ggml_type), _) => ggml_type,
        (None, Some(name)) => return Err(FormatError::RemovedType { tensor, type_name: format!("{id} ({name})") }),
        (None, None) => return Err(FormatError::UnknownType { tensor, type_name: id.to_string() }),
    };
    let [row_len, rows @ ..] = dims;
    if !row_len.is_multiple_of(ggml_type.block_len()) {
        let (type_name, block_len) = (ggml_type.name().into(), ggml_type.block_len());
        return Err(FormatError::PartialBlock { tensor, row_len, type_name, block_len });
    }
    let offset = u64::from_le_bytes(reader.array(&what)?);
    if !offset.is_multiple_of(alignment) {
        return Err(FormatError::Misaligned { tensor, offset, alignment });
    }
    let row_bytes = (row_len / ggml_type.block_len()).checked_mul(ggml_type.block_bytes());
    let bytes = rows.iter().try_fold(row_bytes, |bytes, &rows| Some(bytes?.checked_mul(rows))).flatten();
    let range = bytes.and_then(|bytes| ByteRange::new(offset, bytes));
    let range = range.ok_or_else(|| FormatError::Overflow { what: format!("tensor `{tensor}`") })?;
    Ok(GgufTensor { name, ggml_type, dims, num_dims, range })
}

fn check_overlap(tensors: &[GgufTensor]) -> Result<(), FormatError> {
    let mut by_offset: Vec<&GgufTensor> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.range.start());
    for pair in by_offset.windows(2) {
        if let [first, second] = pair
            && first.range.end() > second.range.start()
        {
            return Err(FormatError::Overlap { first: shown(&first.name), second: shown(&second.name) });
        }
    }
    Ok(())
}

fn index_by_name(tensors: &[GgufTensor]) -> Result<Vec<u32>, FormatError> {
    let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
    let name = |i: &u32| tensors[*i as usize].name.as_str();
    by_name.sort_unstable_by(|a, b| name(a).cmp(name(b)));
    match by_name.windows(2).find(|pair| name(&pair[0]) == name(&pair[1])) {
        Some(twice) => Err(FormatError::DuplicateTensor { tensor: shown(name(&twice[0])) }),
        None => Ok(by_name),
    }
}

/// Walks over the bytes of a file from front to back.
pub(crate) struct Reader<'a> {
    data: &'a Bytes,
    at: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(data: &'a Bytes) -> Self {
        Self { data, at: 0 }
    }

    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    fn data(&self) -> &'a Bytes {
        self.data
    }

    pub(crate) fn take(&mut self, len: u64, what: &dyn Display) -> Result<&'a [u8], FormatError> {
        let range = ByteRange::new(self.at, len);
        let range = range.ok_or_else(|| FormatError::Overflow { what: what.to_string() })?;
        let bytes = range.get(self.data, what)?;
        self.at = range.end();
        Ok(bytes)
    }

    fn skip(&mut self, len: u64, what: &dyn Display) -> Result<(), FormatError> {
        self.take(len, what).map(|_| ())
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &dyn Display) -> Result<[u8; N], FormatError> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("`take` returns as many bytes as it was asked for"))
    }

    /// The bytes of a string.
    fn string_bytes(&mut self, what: &dyn Display) -> Result<&'a [u8], FormatError> {
        // What is there, at once: a vocabulary has hundreds of thousands.
        let rest = usize::try_from(self.at).ok().and_then(|at| self.data.get(at..));
        if let Some((len, rest)) = rest.and_then(<[u8]>::split_first_chunk::<8>)
            && let Some(bytes) = usize::try_from(u64::from_le_bytes(*len)).ok().and_then(|len| rest.get(..len))
        {
            self.at += (len.len() + bytes.len()) as u64;
            return Ok(bytes);
        }
        let len = u64::from_le_bytes(self.array(what)?);
        self.take(len, what)
    }

    /// A count of entries that take at least `bytes_min` each, compared with the bytes that are left.
    fn count(&mut self, limit: u64, bytes_min: u64, what: &str) -> Result<usize, FormatError> {
        let count = u64::from_le_bytes(self.array(&format_args!("the number of {what}"))?);
        let left = (self.data.len() as u64).saturating_sub(self.at);
        at_most(limit, count, &what)?;
        if count > left / bytes_min {
            return Err(FormatError::TooManyForFile { what: what.into(), found: count, left });
        }
        usize::try_from(count).map_err(|_| FormatError::Overflow { what: what.into() })
    }

    fn string(&mut self, limit: u64, budget: &mut Budget, what: &dyn Display) -> Result<String, FormatError> {
        let len = u64::from_le_bytes(self.array(what)?);
        at_most(limit, len, &format_args!("bytes in {what}"))?;
        let bytes = self.take(len, what)?;
        budget.take(len, what)?;
        let text = std::str::from_utf8(bytes).map_err(|_| FormatError::NotUtf8 { what: what.to_string() })?;
        Ok(text.into())
    }
}
