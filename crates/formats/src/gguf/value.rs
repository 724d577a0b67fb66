//! GGUF metadata: typed values under unique keys, in the file's order.

use std::convert::Infallible;

use bytes::Bytes;

use crate::{
    FormatError,
    error::shown,
    limits::{Budget, ByteRange, DEPTH_MAX},
};

use super::{Reader, strings::Strings};

/// The type of a metadata value; the discriminants are the ids in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the specification's and say it all")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    fn from_id(id: u32) -> Option<Self> {
        use ValueType::*;
        [U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64].into_iter().find(|t| *t as u32 == id)
    }

    /// Bytes of one value, for the types that have a fixed size.
    fn fixed_bytes(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// The fewest bytes one value takes in a file: an empty string is its length, an empty array its type and length.
    fn bytes_min(self) -> u64 {
        match self {
            Self::String => 8,
            Self::Array => 12,
            fixed => fixed.fixed_bytes().unwrap_or(1),
        }
    }

    /// For messages.
    fn described(self) -> &'static str {
        match self {
            Self::U8 | Self::I8 | Self::U16 | Self::I16 | Self::U32 | Self::I32 | Self::U64 | Self::I64 => "an integer",
            Self::F32 | Self::F64 => "a float",
            Self::Bool => "a boolean",
            Self::String => "a string",
            Self::Array => "an array",
        }
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names are the specification's and say it all")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// This value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::String(_) => ValueType::String,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// An integer of any width, if it is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// A float, if it is finite. A 32-bit float becomes the 64-bit one that prints the same (1e-5, not
    /// 9.999999747e-6), because that is what the checkpoint's `config.json` held before the conversion.
    pub fn as_f64(&self) -> Option<f64> {
        let value = match self {
            Self::F32(v) => v.to_string().parse().ok()?,
            Self::F64(v) => *v,
            _ => return None,
        };
        f64::is_finite(value).then_some(value)
    }

    /// The value in a few words, for messages and reports: an array by its type and length, a string cut to a line.
    pub fn summary(&self) -> String {
        match self {
            Self::U8(v) => v.to_string(),
            Self::I8(v) => v.to_string(),
            Self::U16(v) => v.to_string(),
            Self::I16(v) => v.to_string(),
            Self::U32(v) => v.to_string(),
            Self::I32(v) => v.to_string(),
            Self::F32(v) => v.to_string(),
            Self::Bool(v) => v.to_string(),
            Self::String(v) => format!("\"{}\"", shown(v)),
            Self::Array(v) => format!("{} × {:?}", v.len, v.element),
            Self::U64(v) => v.to_string(),
            Self::I64(v) => v.to_string(),
            Self::F64(v) => v.to_string(),
        }
    }
}

/// A metadata array. Its elements stay where they lie in the file and are decoded when asked for, so that a
/// vocabulary costs nothing until it is read. Reading the file has checked that all elements are there.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    element: ValueType,
    len: u64,
    bytes: Bytes,
}

impl Array {
    /// An array of strings.
    pub fn of_strings<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut array = Self { element: ValueType::String, len: 0, bytes: Bytes::new() };
        let mut bytes = Vec::new();
        for value in values {
            array.len += 1;
            bytes.extend((value.len() as u64).to_le_bytes());
            bytes.extend(value.as_bytes());
        }
        Self { bytes: bytes.into(), ..array }
    }

    /// An array of floats.
    pub fn of_f32(values: &[f32]) -> Self {
        Self::of_fixed(ValueType::F32, values.iter().map(|v| v.to_le_bytes()))
    }

    /// An array of signed integers.
    pub fn of_i32(values: &[i32]) -> Self {
        Self::of_fixed(ValueType::I32, values.iter().map(|v| v.to_le_bytes()))
    }

    /// An array of arrays.
    pub fn of_arrays<'a>(values: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut array = Self { element: ValueType::Array, len: 0, bytes: Bytes::new() };
        let mut bytes = Vec::new();
        for value in values {
            array.len += 1;
            value.write_to(&mut bytes);
        }
        Self { bytes: bytes.into(), ..array }
    }

    fn of_fixed<const N: usize>(element: ValueType, values: impl ExactSizeIterator<Item = [u8; N]>) -> Self {
        Self { element, len: values.len() as u64, bytes: values.flatten().collect::<Vec<u8>>().into() }
    }

    /// The type of every element.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// How many elements there are.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements, decoded one after the other. A string that is not UTF-8 is an error in the name of `what`.
    pub fn values<'a>(&'a self, what: &'a str) -> impl Iterator<Item = Result<Value, FormatError>> + 'a {
        let mut reader = Reader::new(&self.bytes);
        let mut budget = Budget::for_file(self.bytes.len());
        (0..self.len).map(move |i| {
            read_value(&mut reader, self.element, DEPTH_MAX, &mut budget, &format_args!("element {i} of key `{what}`"))
        })
    }

    /// Element type, length and elements, as they stand in a file.
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        out.extend((self.element as u32).to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend_from_slice(&self.bytes);
    }
}

/// Reads a value of a known type. `depth_left` bounds arrays in arrays.
pub(super) fn read_value(
    reader: &mut Reader<'_>,
    value_type: ValueType,
    depth_left: u32,
    budget: &mut Budget,
    what: &dyn std::fmt::Display,
) -> Result<Value, FormatError> {
    Ok(match value_type {
        ValueType::U8 => Value::U8(u8::from_le_bytes(reader.array(what)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(reader.array(what)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(reader.array(what)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(reader.array(what)?)),
        ValueType::U32 => Value::U32(u32::from_le_bytes(reader.array(what)?)),
        ValueType::I32 => Value::I32(i32::from_le_bytes(reader.array(what)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(reader.array(what)?)),
        ValueType::U64 => Value::U64(u64::from_le_bytes(reader.array(what)?)),
        ValueType::I64 => Value::I64(i64::from_le_bytes(reader.array(what)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(reader.array(what)?)),
        ValueType::Bool => match u8::from_le_bytes(reader.array(what)?) {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            found => return Err(FormatError::NotBoolean { what: what.to_string(), found }),
        },
        ValueType::String => Value::String(reader.string(u64::MAX, budget, what)?),
        ValueType::Array => Value::Array(read_array(reader, depth_left, what)?),
    })
}

pub(super) fn read_type(reader: &mut Reader<'_>, what: &dyn std::fmt::Display) -> Result<ValueType, FormatError> {
    let id = u32::from_le_bytes(reader.array(what)?);
    ValueType::from_id(id).ok_or_else(|| FormatError::ValueType { what: what.to_string(), id })
}

/// Checks an array and steps over it; allocates nothing.
fn read_array(reader: &mut Reader<'_>, depth_left: u32, what: &dyn std::fmt::Display) -> Result<Array, FormatError> {
    let too_deep = || FormatError::TooDeep { what: what.to_string(), limit: DEPTH_MAX };
    let depth_left = depth_left.checked_sub(1).ok_or_else(too_deep)?;
    let element = read_type(reader, what)?;
    let len = u64::from_le_bytes(reader.array(what)?);
    let start = reader.at();
    // Whole before it is walked: a huge count fails here, not after as many steps.
    let bytes_min = len.checked_mul(element.bytes_min()).and_then(|bytes| ByteRange::new(start, bytes));
    let bytes_min = bytes_min.ok_or_else(|| FormatError::Overflow { what: what.to_string() })?;
    bytes_min.get(reader.data(), what)?;
    match element {
        ValueType::String => {
            for _ in 0..len {
                reader.string_bytes(what)?;
            }
        }
        ValueType::Array => {
            for _ in 0..len {
                read_array(reader, depth_left, what)?;
            }
        }
        _ => reader.skip(bytes_min.len(), what)?,
    }
    let range = ByteRange::between(start, reader.at()).expect("a reader only moves forward");
    Ok(Array { element, len, bytes: range.slice(reader.data(), what)? })
}

/// The keys and values of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Indices into `entries`, sorted by key.
    by_key: Vec<u32>,
}

impl Metadata {
    pub(super) fn new(entries: Vec<(String, Value)>) -> Result<Self, FormatError> {
        let mut by_key: Vec<u32> = (0..entries.len() as u32).collect();
        let key = |i: &u32| entries[*i as usize].0.as_str();
        by_key.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        if let Some(twice) = by_key.windows(2).find(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(FormatError::DuplicateKey { key: shown(key(&twice[0])) });
        }
        Ok(Self { entries, by_key })
    }

    /// Keys and values, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let at = self.by_key.binary_search_by(|&i| self.entries[i as usize].0.as_str().cmp(key)).ok()?;
        Some(&self.entries[self.by_key[at] as usize].1)
    }

    /// The non-negative integer under `key`, if there is one.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, FormatError> {
        self.typed(key, "a non-negative integer", Value::as_u64)
    }

    /// The finite float under `key`, if there is one.
    pub fn f64(&self, key: &str) -> Result<Option<f64>, FormatError> {
        self.typed(key, "a finite float", Value::as_f64)
    }

    /// The boolean under `key`, if there is one.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.typed(key, "a boolean", |value| if let Value::Bool(v) = value { Some(*v) } else { None })
    }

    /// The string under `key`, if there is one.
    pub fn str(&self, key: &str) -> Result<Option<&str>, FormatError> {
        self.typed(key, "a string", |value| if let Value::String(v) = value { Some(v.as_str()) } else { None })
    }

    /// The array of strings under `key`, if there is one.
    pub fn strings(&self, key: &str) -> Result<Option<Strings>, FormatError> {
        match self.get(key) {
            Some(Value::Array(array)) if array.element == ValueType::String => {
                Strings::read(&mut Reader::new(&array.bytes), array.len, key).map(Some)
            }
            _ => {
                let none = self.array(key, "an array of strings", Err::<Infallible, _>)?;
                Ok(none.map(|_| Strings::default()))
            }
        }
    }

    /// The array of floats under `key`, if there is one and none of them is NaN.
    pub fn f32s(&self, key: &str) -> Result<Option<Vec<f32>>, FormatError> {
        if let Some(values) = self.words(key, ValueType::F32, f32::from_le_bytes)
            && !values.iter().any(|v| v.is_nan())
        {
            return Ok(Some(values));
        }
        self.array(key, "an array of floats without NaN", |value| match value {
            Value::F32(v) if !v.is_nan() => Ok(v),
            other => Err(other),
        })
    }

    /// The array of integers under `key`, if there is one and all of them fit.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, FormatError> {
        if let Some(values) = self.words(key, ValueType::I32, i32::from_le_bytes) {
            return Ok(Some(values));
        }
        self.array(key, "an array of 32-bit integers", |value| match value {
            Value::I32(v) => Ok(v),
            other => other.as_u64().and_then(|v| v.try_into().ok()).ok_or(other),
        })
    }

    /// The array under `key` if its elements are of this type of 4 bytes: without a [`Value`] for each.
    fn words<T>(&self, key: &str, element: ValueType, from_bytes: fn([u8; 4]) -> T) -> Option<Vec<T>> {
        let Some(Value::Array(array)) = self.get(key) else { return None };
        let (words, _) = array.bytes.as_chunks::<4>();
        (array.element == element).then(|| words.iter().map(|word| from_bytes(*word)).collect())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| wrong(key, expected, value))
    }

    fn array<T>(
        &self,
        key: &str,
        expected: &str,
        convert: impl Fn(Value) -> Result<T, Value>,
    ) -> Result<Option<Vec<T>>, FormatError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(array) = value else { return Err(wrong(key, expected, value)) };
        let len = usize::try_from(array.len).map_err(|_| wrong(key, expected, value))?;
        Budget::for_file(array.bytes.len()).take_items(
            array.len,
            size_of::<T>() as u64,
            &format_args!("key `{key}`"),
        )?;
        let mut values = Vec::with_capacity(len);
        for value in array.values(key) {
            values.push(convert(value?).map_err(|value| {
                let found = format!("{} at element {}", described(&value), values.len());
                FormatError::WrongValue { key: key.into(), expected: expected.into(), found }
            })?);
        }
        Ok(Some(values))
    }
}

fn wrong(key: &str, expected: &str, value: &Value) -> FormatError {
    FormatError::WrongValue { key: key.into(), expected: expected.into(), found: described(value) }
}

fn described(value: &Value) -> String {
    format!("{} ({})", value.value_type().described(), value.summary())
}
