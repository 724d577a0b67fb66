//! A GGUF model in several files, as `llama-gguf-split` writes it.
//!
//! Names     `STEM-00001-of-00003.gguf` and so on, in one folder.
//! Layout    each part is a GGUF file with the keys `split.no` (from 0), `split.count` and `split.tensors.count` (of all
//!           parts). All other keys are in the first part; tensors are in any.

use bytes::Bytes;

use crate::gguf::{Gguf, GgufTensor, Metadata};
use crate::{Completeness, FormatError};

/// The parts of a GGUF model, in order: the file's name, and what is in it. A model in one file is one part.
#[derive(Debug)]
pub struct Parts(Vec<(String, Gguf)>);

/// The name of a part: `m-00002-of-00003.gguf` is (`m`, 2, 3).
pub fn name_parts(file: &str) -> Option<(&str, u64, u64)> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.parse().ok().filter(|_| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()));
    let (number, count): (u64, u64) = (digits(number)?, digits(count)?);
    (1..=count).contains(&number).then_some((stem, number, count))
}

impl Parts {
    /// Reads the file `name`, and the other parts if it is one; `sibling` gives a file of the same folder, if it is there.
    ///
    /// # Errors
    /// A file that is malformed; a part that is missing or another's, by name; a part whose name does not lead to the
    /// others.
    pub fn read(
        name: &str,
        bytes: Bytes,
        completeness: Completeness,
        sibling: &dyn Fn(&str) -> Result<Option<Bytes>, FormatError>,
    ) -> Result<Self, FormatError> {
        let read = |name: &str, bytes| Gguf::read_as(bytes, completeness).map_err(|error| error.in_file(name));
        let given = read(name, bytes)?;
        let (no, count) = place(&given).map_err(|error| error.in_file(name))?;
        if count <= 1 {
            return Ok(Self(vec![(name.into(), given)]));
        }
        let number = no.saturating_add(1);
        let Some((stem, _, _)) = name_parts(name).filter(|&(_, n, of)| (n, of) == (number, count)) else {
            return Err(FormatError::SplitGguf { part: number, parts: count }.in_file(name));
        };
        let mut given = Some(given);
        let mut parts = Vec::new();
        for n in 1..=count {
            let file = format!("{stem}-{n:05}-of-{count:05}.gguf");
            let part = match given.take_if(|_| n == number) {
                Some(part) => part,
                None => {
                    let why = || format!(" (the model is in {count} parts): fetch it");
                    let bytes = sibling(&file)?;
                    read(&file, bytes.ok_or_else(|| FormatError::MissingFile { file: file.clone(), why: why() })?)?
                }
            };
            if place(&part).map_err(|error| error.in_file(&file))? != (n - 1, count) {
                let wrong = FormatError::WrongValue {
                    key: "split.no".into(),
                    expected: format!("{} of {count}, as the name says", n - 1),
                    found: "another part's".into(),
                };
                return Err(wrong.in_file(&file));
            }
            parts.push((file, part));
        }
        let parts = Self(parts);
        let found: u64 = parts.0.iter().map(|(_, part)| part.tensors().len() as u64).sum();
        match parts.metadata().u64("split.tensors.count").map_err(|error| error.in_file(parts.first()))? {
            Some(expected) if expected != found => {
                let (expected, found) = (format!("{found}, as many as the parts hold"), expected.to_string());
                let wrong = FormatError::WrongValue { key: "split.tensors.count".into(), expected, found };
                Err(wrong.in_file(parts.first()))
            }
            _ => Ok(parts),
        }
    }

    /// A file by itself, whatever it says of others.
    pub(crate) fn one(gguf: Gguf) -> Self {
        Self(vec![(String::new(), gguf)])
    }

    /// The name of the file with the metadata.
    pub(crate) fn first(&self) -> &str {
        self.0.first().map_or("", |(name, _)| name)
    }

    /// The keys of the whole model.
    pub fn metadata(&self) -> &Metadata {
        let (_, first) = self.0.first().expect("one part at least is read");
        first.metadata()
    }

    /// The header of a tensor, and the part that it is in.
    pub fn tensor_info(&self, name: &str) -> Option<(&Gguf, &GgufTensor)> {
        self.0.iter().find_map(|(_, part)| Some((part, part.tensor_info(name)?)))
    }

    /// The parts in order.
    pub fn iter(&self) -> impl Iterator<Item = &Gguf> {
        self.0.iter().map(|(_, part)| part)
    }
}

impl IntoIterator for Parts {
    type Item = (String, Gguf);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Which part this is, from 0, of how many.
fn place(gguf: &Gguf) -> Result<(u64, u64), FormatError> {
    let metadata = gguf.metadata();
    Ok((metadata.u64("split.no")?.unwrap_or(0), metadata.u64("split.count")?.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::name_parts;

    #[test]
    fn names_of_parts_have_five_digits() {
        assert_eq!(name_parts("a-b-00002-of-00003.gguf"), Some(("a-b", 2, 3)));
        for other in
            ["m.gguf", "m-2-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-+0001-of-00003.gguf"]
        {
            assert_eq!(name_parts(other), None, "{other}");
        }
    }
}
