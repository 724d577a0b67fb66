//! The bounds that every reader keeps: checked ranges and a memory budget. One implementation of each rule.

use std::fmt::Display;

use bytes::Bytes;

use crate::FormatError;

/// The deepest nesting of JSON or GGUF arrays that is read.
pub const DEPTH_MAX: u32 = 64;
/// The most tensors in a checkpoint. The largest published ones (one tensor per expert) have about 200,000.
pub const TENSORS_MAX: u64 = 1 << 20;
/// The most keys in a GGUF file or entries in a safetensors `__metadata__`. Real files have fewer than a hundred.
pub const KEYS_MAX: u64 = 1 << 16;
/// The longest key or tensor name in bytes: the GGUF specification's limit for keys.
pub const NAME_BYTES_MAX: u64 = (1 << 16) - 1;
/// The most values in a JSON configuration file.
pub const JSON_VALUES_MAX: u64 = 1 << 16;

/// A range of bytes whose end does not overflow: the only way from outside numbers to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    start: u64,
    end: u64,
}

impl ByteRange {
    /// `len` bytes from `start`, or `None` when the end overflows.
    pub fn new(start: u64, len: u64) -> Option<Self> {
        Some(Self { start, end: start.checked_add(len)? })
    }

    /// From `start` to before `end`, or `None` when they are reversed.
    pub fn between(start: u64, end: u64) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// The same range, moved up by `offset`; `None` when it overflows.
    pub fn offset_by(self, offset: u64) -> Option<Self> {
        Some(Self { start: self.start.checked_add(offset)?, end: self.end.checked_add(offset)? })
    }

    /// The first byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The byte after the last.
    pub fn end(self) -> u64 {
        self.end
    }

    /// Bytes in the range.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether the range has no bytes.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The bytes of `data` in this range, shared; an error in the name of `what` when `data` ends before.
    pub fn slice(self, data: &Bytes, what: &dyn Display) -> Result<Bytes, FormatError> {
        self.get(data, what).map(|slice| data.slice_ref(slice))
    }

    /// As [`ByteRange::slice`], borrowed.
    pub fn get<'a>(self, data: &'a [u8], what: &dyn Display) -> Result<&'a [u8], FormatError> {
        let range = usize::try_from(self.start).ok().zip(usize::try_from(self.end).ok());
        range.and_then(|(start, end)| data.get(start..end)).ok_or_else(|| FormatError::Truncated {
            what: what.to_string(),
            end: self.end,
            file_len: data.len() as u64,
        })
    }
}

/// How much memory reading one file may take: in proportion to the file, so that a small file cannot ask for much.
///
/// Readers take from it before they allocate. Together with what the allocator rounds up, a reader stays below
/// 4 × file + 16 MiB, which a test measures.
#[derive(Debug)]
pub struct Budget {
    bytes_left: u64,
    file_len: u64,
}

impl Budget {
    /// The budget for a file of this many bytes.
    pub fn for_file(file_len: usize) -> Self {
        let file_len = file_len as u64;
        Self { bytes_left: file_len.saturating_mul(3).saturating_add(12 << 20), file_len }
    }

    /// The budget for names that are made of those in files of this many bytes, beside that for reading the files.
    pub fn for_names(file_len: u64) -> Self {
        Self { bytes_left: file_len.saturating_add(4 << 20), file_len }
    }

    /// Takes `bytes` for `what`, or says that there are not so many.
    pub fn take(&mut self, bytes: u64, what: &dyn Display) -> Result<(), FormatError> {
        self.take_items(1, bytes, what)
    }

    /// Takes `items` times `item_bytes` for `what`.
    pub fn take_items(&mut self, items: u64, item_bytes: u64, what: &dyn Display) -> Result<(), FormatError> {
        let left = items.checked_mul(item_bytes).and_then(|bytes| self.bytes_left.checked_sub(bytes));
        self.bytes_left =
            left.ok_or_else(|| FormatError::OverBudget { what: what.to_string(), file_len: self.file_len })?;
        Ok(())
    }
}

/// An error when `found` is above `limit`.
pub(crate) fn at_most(limit: u64, found: u64, what: &dyn Display) -> Result<u64, FormatError> {
    if found > limit { Err(FormatError::TooMany { what: what.to_string(), found, limit }) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_never_wrap_or_leave_the_data() {
        let data = Bytes::from_static(b"0123456789");
        assert_eq!(ByteRange::new(2, 3).unwrap().slice(&data, &"x").unwrap(), &b"234"[..]);
        assert_eq!(ByteRange::new(10, 0).unwrap().slice(&data, &"x").unwrap(), &b""[..]);
        assert!(ByteRange::new(u64::MAX, 1).is_none() && ByteRange::between(3, 2).is_none());
        assert!(ByteRange::new(1, 1).unwrap().offset_by(u64::MAX - 1).is_none());
        let error = ByteRange::new(9, 2).unwrap().slice(&data, &"the tail").unwrap_err().to_string();
        assert_eq!(error, "the tail ends at byte 11, but the file has 10: is the download complete?");
        assert!(ByteRange::new(u64::MAX - 1, 1).unwrap().get(&data, &"x").is_err());
    }

    #[test]
    fn a_budget_runs_out() {
        let mut budget = Budget::for_file(0);
        budget.take_items(12, 1 << 20, &"twelve").unwrap();
        assert!(budget.take(1, &"one more").is_err());
        assert!(Budget::for_file(0).take_items(u64::MAX, u64::MAX, &"too much").is_err());
    }
}
