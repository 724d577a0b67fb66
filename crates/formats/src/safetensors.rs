//! safetensors: a JSON table of tensors in front of their bytes; tensors are views of the file.
//!
//! Source    the safetensors format description (huggingface/safetensors, README).
//! Layout    header length u64, little-endian; header, a JSON object `name -> {dtype, shape, data_offsets}` with an
//!           optional `__metadata__` of strings; data. Offsets count from the end of the header.
//! Bounds    A header of at most 100 MB; tensors cover the data exactly, without holes or overlap; no name twice (the
//!           `safetensors` crate keeps the last, which is why the table is read here); no tensor without elements.

mod writer;

use std::fmt;

use bytes::Bytes;
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor},
};
use tensor::{Tensor, WeightFormat};

use crate::{
    Completeness, FormatError,
    error::shown,
    json::StringMap,
    limits::{Budget, ByteRange, KEYS_MAX, NAME_BYTES_MAX, TENSORS_MAX, at_most},
};

pub use writer::SafetensorsWriter;

/// The reference reader's limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const DIMENSIONS_MAX: usize = 16;
/// Every type of the format: its name and bits of one element.
const DTYPES: [(&str, u64); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];
/// The types that weights are computed from, as a message lists them.
const COVERED: &str = "F32, F16, BF16";
const METADATA_KEY: &str = "__metadata__";

/// An open safetensors file.
#[derive(Clone, Debug)]
pub struct Safetensors {
    metadata: Vec<(String, String)>,
    /// Sorted by name.
    tensors: Vec<SafetensorsTensor>,
    file: Bytes,
}

/// What the header says of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct SafetensorsTensor {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    /// In the file, not in the data.
    range: ByteRange,
}

impl Safetensors {
    /// Reads a whole file: the tensors must cover its data exactly.
    pub fn read(file: Bytes) -> Result<Self, FormatError> {
        Self::read_as(file, Completeness::Whole)
    }

    /// Reads the header of a file of which the data may be missing.
    pub fn read_header(file: Bytes) -> Result<Self, FormatError> {
        Self::read_as(file, Completeness::HeaderOnly)
    }

    pub(crate) fn read_as(file: Bytes, completeness: Completeness) -> Result<Self, FormatError> {
        let mut budget = Budget::for_file(file.len());
        let length_range = ByteRange::new(0, 8).expect("8 does not overflow");
        let length = length_range.get(&file, &"the header length")?;
        let header_len = u64::from_le_bytes(length.try_into().expect("the range has 8 bytes"));
        at_most(HEADER_BYTES_MAX, header_len, &"bytes in the header")?;
        let header_range = ByteRange::new(8, header_len).expect("100 MB and 8 do not overflow");
        let header = header_range.get(&file, &"the header")?;
        let mut json = serde_json::Deserializer::from_slice(header);
        let parsed = HeaderSeed { budget: &mut budget }.deserialize(&mut json);
        let parsed = parsed.and_then(|header| json.end().map(|()| header));
        let Header { metadata, entries } =
            parsed.map_err(|source| FormatError::Json { what: "the header".into(), source })?;
        let mut tensors = Vec::with_capacity(entries.len());
        for (name, entry) in entries {
            tensors.push(check_entry(name, entry)?);
        }
        let file_len = (completeness == Completeness::Whole).then_some(file.len() as u64);
        check_coverage(&mut tensors, header_range.end(), file_len)?;
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some([first, _]) = tensors.array_windows().find(|[a, b]| a.name == b.name) {
            return Err(FormatError::DuplicateTensor { tensor: shown(&first.name) });
        }
        Ok(Self { metadata, tensors, file })
    }

    /// The whole file.
    pub(crate) fn file(&self) -> &Bytes {
        &self.file
    }

    /// The header's `__metadata__`, in its order.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// The tensors, sorted by name.
    pub fn tensors(&self) -> &[SafetensorsTensor] {
        &self.tensors
    }

    /// What the header says of the tensor with this name.
    pub fn tensor_info(&self, name: &str) -> Option<&SafetensorsTensor> {
        let at = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        self.tensors.get(at)
    }

    /// The bytes of a tensor of any type, as they lie in the file.
    pub fn tensor_bytes(&self, info: &SafetensorsTensor) -> Result<Bytes, FormatError> {
        info.range.slice(&self.file, &format_args!("tensor `{}`", shown(&info.name)))
    }

    /// The tensor with this name; see [`Safetensors::read_tensor`].
    pub fn tensor(&self, name: &str) -> Result<Tensor, FormatError> {
        let missing = || FormatError::MissingTensor { tensor: shown(name), found: self.tensors.len() };
        self.read_tensor(self.tensor_info(name).ok_or_else(missing)?)
    }

    /// A tensor of the header, as a view of the file. Types that are not computed with are refused by name.
    pub fn read_tensor(&self, info: &SafetensorsTensor) -> Result<Tensor, FormatError> {
        let tensor = shown(&info.name);
        let Some(format) = info.weight_format() else {
            return Err(FormatError::UnsupportedType { tensor, type_name: info.dtype.into(), covered: COVERED });
        };
        let overflow = || FormatError::Overflow { what: format!("tensor `{tensor}`") };
        let shape: Option<Vec<usize>> = info.shape.iter().map(|&d| usize::try_from(d).ok()).collect();
        Tensor::new(format, shape.ok_or_else(overflow)?, self.tensor_bytes(info)?).map_err(|_| overflow())
    }
}

impl SafetensorsTensor {
    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The published name of its type.
    pub fn dtype(&self) -> &'static str {
        self.dtype
    }

    /// Dimensions, outermost first; none for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Where its bytes lie in the file.
    pub fn range(&self) -> ByteRange {
        self.range
    }

    /// The format that weights of this type are computed from, if there is one yet.
    pub fn weight_format(&self) -> Option<WeightFormat> {
        [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16].into_iter().find(|f| f.name() == self.dtype)
    }
}

/// The file that holds these tensors, in the order of the reference writer: larger element types first, so that every
/// tensor is aligned, then by name.
pub fn write(tensors: &[(String, Tensor)], metadata: &[(String, String)]) -> Result<Bytes, FormatError> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let dtype = tensor.format().name();
        if !COVERED.split(", ").any(|covered| covered == dtype) {
            let (tensor, type_name) = (shown(name), dtype.into());
            return Err(FormatError::UnsupportedType { tensor, type_name, covered: COVERED });
        }
        let shape = tensor.shape().iter().map(|&d| d as u64).collect();
        views.push(View { name, dtype, shape, data: tensor.bytes() });
    }
    Ok(write_views(views, metadata))
}

/// The file that holds what `file` holds, in the writer's order.
pub fn rewrite(file: &Safetensors) -> Result<Bytes, FormatError> {
    let data: Vec<Bytes> = file.tensors.iter().map(|info| file.tensor_bytes(info)).collect::<Result<_, _>>()?;
    let views = file.tensors.iter().zip(&data);
    let views = views.map(|(info, data)| View { name: &info.name, dtype: info.dtype, shape: info.shape.clone(), data });
    Ok(write_views(views.collect(), &file.metadata))
}

struct View<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: Vec<u64>,
    data: &'a Bytes,
}

fn write_views(mut views: Vec<View<'_>>, metadata: &[(String, String)]) -> Bytes {
    views.sort_by_key(|view| (std::cmp::Reverse(dtype_bits(view.dtype)), view.name));
    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        let strings = metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
        header.insert(METADATA_KEY.into(), serde_json::Value::Object(strings));
    }
    let mut end = 0;
    for view in &views {
        let start = end;
        end += view.data.len();
        let entry = serde_json::json!({"dtype": view.dtype, "shape": view.shape, "data_offsets": [start, end]});
        header.insert(view.name.into(), entry);
    }
    let mut header = serde_json::Value::Object(header).to_string();
    let padded = header.len().next_multiple_of(8);
    header.extend(std::iter::repeat_n(' ', padded - header.len()));
    let mut out = Vec::with_capacity(8 + header.len() + end);
    out.extend((header.len() as u64).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    views.iter().for_each(|view| out.extend_from_slice(view.data));
    out.into()
}

fn dtype_bits(name: &str) -> Option<u64> {
    DTYPES.iter().find(|(dtype, _)| *dtype == name).map(|(_, bits)| *bits)
}

fn check_entry(name: String, entry: Entry) -> Result<SafetensorsTensor, FormatError> {
    let tensor = shown(&name);
    let shape = entry.shape.0;
    let Some(&(dtype, bits)) = DTYPES.iter().find(|(dtype, _)| *dtype == entry.dtype) else {
        return Err(FormatError::UnknownType { tensor, type_name: shown(&entry.dtype) });
    };
    if shape.contains(&0) {
        return Err(FormatError::NoElements { tensor, shape });
    }
    let Offsets(start, end) = entry.data_offsets;
    let range = ByteRange::between(start, end).ok_or_else(|| FormatError::WrongValue {
        key: "data_offsets".into(),
        expected: format!("a start and an end not before it in tensor `{tensor}`"),
        found: format!("[{start}, {end}]"),
    })?;
    let bits = shape.iter().try_fold(bits, |bits, &dim| bits.checked_mul(dim));
    let bits = bits.ok_or_else(|| FormatError::Overflow { what: format!("tensor `{tensor}`") })?;
    let type_name = dtype.into();
    if !bits.is_multiple_of(8) {
        return Err(FormatError::PartialByte { tensor, type_name, shape });
    }
    let (found, expected) = (range.len(), bits / 8);
    if found != expected {
        return Err(FormatError::DataLength { tensor, type_name, shape, found, expected });
    }
    Ok(SafetensorsTensor { name, dtype, shape, range })
}

/// Puts ranges where they are in the file, and checks that they lie end to end from the start of the data to the end
/// of the file, in any order. Leaves them sorted by offset.
fn check_coverage(
    tensors: &mut [SafetensorsTensor],
    data_start: u64,
    file_len: Option<u64>,
) -> Result<(), FormatError> {
    tensors.sort_unstable_by_key(|tensor| tensor.range.start());
    let mut end = data_start;
    let mut previous = "";
    for tensor in tensors {
        let what = || format!("the data of tensor `{}`", shown(&tensor.name));
        let range = tensor.range.offset_by(data_start).ok_or_else(|| FormatError::Overflow { what: what() })?;
        if range.start() < end {
            return Err(FormatError::Overlap { first: shown(previous), second: shown(&tensor.name) });
        }
        if let Some(file_len) = file_len
            && range.end() > file_len
        {
            return Err(FormatError::Truncated { what: what(), end: range.end(), file_len });
        }
        if range.start() > end {
            return Err(FormatError::Hole { start: end, end: range.start() });
        }
        end = range.end();
        tensor.range = range;
        previous = &tensor.name;
    }
    match file_len {
        Some(file_len) if end < file_len => Err(FormatError::Hole { start: end, end: file_len }),
        _ => Ok(()),
    }
}

/// The header as it is parsed, before anything is checked.
#[derive(Default)]
struct Header {
    metadata: Vec<(String, String)>,
    entries: Vec<(String, Entry)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with `dtype`, `shape` and `data_offsets`")]
struct Entry {
    dtype: String,
    shape: Shape,
    data_offsets: Offsets,
}

struct HeaderSeed<'a> {
    budget: &'a mut Budget,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = Header;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Header, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        // Twice: a vector that grows holds its old and new half for a moment.
        let entry_bytes = 2 * (size_of::<(String, Entry)>() + size_of::<SafetensorsTensor>()) as u64;
        let mut header = Header::default();
        let mut has_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                if std::mem::replace(&mut has_metadata, true) {
                    return Err(A::Error::custom("`__metadata__` occurs twice"));
                }
                let seed = StringMap { what: "metadata keys", limit: KEYS_MAX, budget: self.budget };
                header.metadata = map.next_value_seed(seed)?;
                continue;
            }
            at_most(NAME_BYTES_MAX, name.len() as u64, &"bytes in a tensor's name").map_err(A::Error::custom)?;
            at_most(TENSORS_MAX, header.entries.len() as u64 + 1, &"tensors").map_err(A::Error::custom)?;
            self.budget.take(entry_bytes + 2 * name.len() as u64, &"the header").map_err(A::Error::custom)?;
            let entry = map.next_value::<Entry>();
            let entry = entry.map_err(|error| A::Error::custom(format_args!("tensor `{}`: {error}", shown(&name))))?;
            header.entries.push((name, entry));
        }
        Ok(header)
    }
}

/// Dimensions, of which there are few.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ShapeVisitor;
        impl<'de> Visitor<'de> for ShapeVisitor {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of up to {DIMENSIONS_MAX} dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dim) = list.next_element()? {
                    if shape.len() == DIMENSIONS_MAX {
                        return Err(A::Error::invalid_length(DIMENSIONS_MAX + 1, &self));
                    }
                    shape.push(dim);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

/// First byte and the byte after the last, counted from the start of the data.
#[derive(Deserialize)]
#[serde(expecting = "a list of two offsets")]
struct Offsets(u64, u64);
