//! An array of strings in two pieces of memory, however many there are.

use super::Reader;
use crate::{FormatError, limits::at_most};

/// Strings one after the other: a vocabulary of 150,000 is two allocations, not 150,000.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strings {
    text: String,
    /// `ends[i]` is where string `i` ends; it starts where the one before ends.
    ends: Vec<u32>,
}

impl Strings {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// String `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.text.get(start as usize..end as usize)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i).expect("ends are made from whole strings"))
    }

    /// The text of all of them joined, and where in it each ends.
    pub fn into_parts(self) -> (String, Vec<u32>) {
        (self.text, self.ends)
    }

    /// The `len` strings under `key` that `reader` is at the start of. Takes no more memory than the file has bytes.
    pub(super) fn read(reader: &mut Reader<'_>, len: u64, key: &str) -> Result<Self, FormatError> {
        let too_many = || FormatError::Overflow { what: format!("key `{key}`") };
        let lengths = len.checked_mul(size_of::<u64>() as u64).ok_or_else(too_many)?;
        let text_bytes = (reader.data().len() as u64).checked_sub(lengths).ok_or_else(too_many)?;
        at_most(u32::MAX.into(), text_bytes, &format_args!("bytes in key `{key}`"))?;
        let mut text = String::with_capacity(text_bytes as usize);
        let mut ends = Vec::with_capacity(usize::try_from(len).map_err(|_| too_many())?);
        for i in 0..len {
            let what = format_args!("element {i} of key `{key}`");
            let bytes = u64::from_le_bytes(reader.array(&what)?);
            let bytes = reader.take(bytes, &what)?;
            text.push_str(str::from_utf8(bytes).map_err(|_| FormatError::NotUtf8 { what: what.to_string() })?);
            ends.push(u32::try_from(text.len()).map_err(|_| too_many())?);
        }
        Ok(Self { text, ends })
    }
}
