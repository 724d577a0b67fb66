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
        let mut text = Vec::with_capacity(text_bytes as usize);
        let mut ends = Vec::with_capacity(usize::try_from(len).map_err(|_| too_many())?);
        for i in 0..len {
            let what = format_args!("element {i} of key `{key}`");
            text.extend_from_slice(reader.string_bytes(&what)?);
            ends.push(u32::try_from(text.len()).map_err(|_| too_many())?);
        }
        // All of it at once, and no character across an end: a third of the time of one string after the other.
        let bytes = match String::from_utf8(text) {
            Ok(text) if ends.iter().all(|&end| text.is_char_boundary(end as usize)) => return Ok(Self { text, ends }),
            Ok(text) => text.into_bytes(),
            Err(error) => error.into_bytes(),
        };
        let mut start = 0;
        let is_bad = |&end: &u32| {
            let string = bytes.get(start..end as usize);
            start = end as usize;
            string.is_none_or(|string| str::from_utf8(string).is_err())
        };
        let i = ends.iter().position(is_bad).unwrap_or_default();
        Err(FormatError::NotUtf8 { what: format!("element {i} of key `{key}`") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(strings: &[&[u8]]) -> Result<Strings, FormatError> {
        let mut bytes = Vec::new();
        for string in strings {
            bytes.extend((string.len() as u64).to_le_bytes());
            bytes.extend(*string);
        }
        Strings::read(&mut Reader::new(&bytes.into()), strings.len() as u64, "key")
    }

    #[test]
    fn strings_are_read_whole() {
        let strings = read(&[b"", b"ab", "é".as_bytes(), b""]).unwrap();
        assert_eq!(strings.iter().collect::<Vec<_>>(), ["", "ab", "é", ""]);
        assert_eq!((strings.len(), strings.get(4)), (4, None));
        assert!(read(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_character_across_two_strings_is_none() {
        for (strings, bad) in [
            (&[&b""[..], b"a", b"\xc3", b"\xa9"][..], 2),
            (&[b"", b"\xff", b"a"], 1),
            (&[b"\xc3\xa9", b"\xc3", b"\xa9", b"\xff"], 1),
            (&[b"a", b"b\xe2\x82"], 1),
        ] {
            let error = read(strings).unwrap_err().to_string();
            assert!(error.starts_with(&format!("element {bad} of key `key`")), "{error}");
        }
    }
}
