//! Importance matrices of llama.cpp: the mean squares of what each projection of a model is given, over a text.
//!
//! Layout    A GGUF file: `general.type` "imatrix", `imatrix.datasets`, `imatrix.chunk_count`, `imatrix.chunk_size` (tokens);
//!           for each matrix NAME the F32 tensors `NAME.in_sum2` (matrices, features), sums of squares, and `NAME.counts`
//!           (matrices, 1), of how many tokens. Matrices are the experts of a tensor, elsewhere one.
//!           Before July 2025 ("legacy", usually imatrix.dat): a count of entries; each the length of a name, the name, calls,
//!           values, and as many f32, means times calls; then, if the file goes on, chunks, and the length and name of the
//!           text. Integers are i32, everything is little-endian.
//! Meaning   the importance of a feature is sum / count, or value / calls where calls are not 0.
//! Source    llama.cpp's `tools/imatrix` and `tools/quantize`.

use std::collections::BTreeMap;

use bytes::Bytes;
use tensor::{Tensor, WeightFormat};

use crate::FormatError;
use crate::error::shown;
use crate::gguf::{Array, Gguf, GgufWriter, Reader, Strings, Value};
use crate::limits::{Budget, NAME_BYTES_MAX, TENSORS_MAX, at_most};

/// The type that a GGUF file of importance says it is.
const TYPE: &str = "imatrix";
const TYPE_KEY: &str = "general.type";
const DATASETS_KEY: &str = "imatrix.datasets";
const CHUNKS_KEY: &str = "imatrix.chunk_count";
const CHUNK_LEN_KEY: &str = "imatrix.chunk_size";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Length of the name, one byte of it, calls, values, one value.
const ENTRY_BYTES_MIN: u64 = 4 + 1 + 4 + 4 + 4;

/// What projections were given.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// The texts, by name.
    pub datasets: Vec<String>,
    /// Windows of the text that the model was given.
    pub chunks: u64,
    /// Tokens of a window; 0 where the file does not say.
    pub chunk_len: u64,
    /// By the name of the matrix in GGUF files.
    pub entries: BTreeMap<String, Importance>,
}

/// What one tensor was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    /// (matrices, features): sums of the squares of features.
    pub sums: Vec<f32>,
    /// (matrices,): tokens that were added up.
    pub counts: Vec<f32>,
}

impl Importance {
    /// (matrices, features): mean squares; of a matrix that no token went through, one for all features.
    pub fn means(&self) -> Vec<f32> {
        let features = (self.sums.len() / self.counts.len().max(1)).max(1);
        let mean = |(sums, &count): (&[f32], &f32)| -> Vec<f32> {
            if count > 0.0 { sums.iter().map(|sum| sum / count).collect() } else { vec![1.0; sums.len()] }
        };
        self.sums.chunks(features).zip(&self.counts).flat_map(mean).collect()
    }
}

impl Imatrix {
    /// Reads a file of either layout. Sums and counts are finite and not negative, and every matrix has as many of one as of
    /// the others.
    pub fn read(file: Bytes) -> Result<Self, FormatError> {
        let found = if file.starts_with(b"GGUF") { read_gguf(file)? } else { read_legacy(&file)? };
        for (name, Importance { sums, counts }) in &found.entries {
            if let Some(wrong) = sums.iter().chain(counts).find(|value| !value.is_finite() || **value < 0.0) {
                return Err(wrong_entry(name, format!("{wrong} is no sum of squares")));
            }
            if sums.is_empty() || counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
                return Err(wrong_entry(name, format!("{} sums are not of {} matrices", sums.len(), counts.len())));
            }
        }
        match found.entries.is_empty() {
            true => Err(wrong_entry("", "it has no entry".into())),
            false => Ok(found),
        }
    }

    /// The same as a GGUF file.
    pub fn to_gguf(&self) -> GgufWriter {
        let mut writer = GgufWriter::new();
        let number = |number: u64| Value::U32(u32::try_from(number).unwrap_or(u32::MAX));
        writer.metadata(TYPE_KEY, Value::String(TYPE.into()));
        let datasets = Array::of_strings(self.datasets.iter().map(String::as_str));
        writer.metadata(DATASETS_KEY, Value::Array(datasets));
        writer.metadata(CHUNKS_KEY, number(self.chunks));
        writer.metadata(CHUNK_LEN_KEY, number(self.chunk_len));
        for (name, Importance { sums, counts }) in &self.entries {
            let mut add = |end: &str, values: &[f32], width: usize| {
                let shape = vec![values.len() / width.max(1), width];
                let tensor = Tensor::from_f32(WeightFormat::F32, shape, values).expect("as many as the shape has");
                writer.tensor(&format!("{name}{end}"), &tensor);
            };
            add(SUMS, sums, sums.len() / counts.len().max(1));
            add(COUNTS, counts, 1);
        }
        writer
    }
}

/// What is wrong with an entry; of the whole file with an empty name.
fn wrong_entry(name: &str, what: String) -> FormatError {
    let entry = if name.is_empty() { "the importance matrix".to_owned() } else { format!("`{}`", shown(name)) };
    FormatError::Imatrix { entry, what }
}

fn read_gguf(file: Bytes) -> Result<Imatrix, FormatError> {
    let gguf = Gguf::read(file)?;
    let metadata = gguf.metadata();
    let found = metadata.str(TYPE_KEY)?.unwrap_or("missing");
    if found != TYPE {
        let expected = format!("`{TYPE}`, as in the files of `llama-imatrix`");
        return Err(FormatError::WrongValue { key: TYPE_KEY.into(), expected, found: shown(found) });
    }
    let mut entries = BTreeMap::new();
    let values = |name: &str| -> Result<Option<Vec<f32>>, FormatError> {
        let Some(info) = gguf.tensor_info(name) else { return Ok(None) };
        let tensor = gguf.read_tensor(info)?;
        if tensor.format() != WeightFormat::F32 {
            return Err(wrong_entry(name, format!("it is {}, not F32", tensor.format())));
        }
        Ok(Some(tensor.to_f32()))
    };
    for info in gguf.tensors() {
        let Some(name) = info.name().strip_suffix(SUMS) else { continue };
        let sums = values(info.name())?.unwrap_or_default();
        let counts = values(&format!("{name}{COUNTS}"))?;
        let counts = counts.ok_or_else(|| wrong_entry(name, format!("there is no `{}{COUNTS}`", shown(name))))?;
        entries.insert(name.to_owned(), Importance { sums, counts });
    }
    let datasets = metadata.strings(DATASETS_KEY)?;
    let datasets = datasets.iter().flat_map(Strings::iter).map(str::to_owned).collect();
    Ok(Imatrix {
        datasets,
        chunks: metadata.u64(CHUNKS_KEY)?.unwrap_or(0),
        chunk_len: metadata.u64(CHUNK_LEN_KEY)?.unwrap_or(0),
        entries,
    })
}

fn read_legacy(file: &Bytes) -> Result<Imatrix, FormatError> {
    let mut reader = Reader::new(file);
    let mut budget = Budget::for_file(file.len());
    let not_one = || wrong_entry("", "it begins with neither GGUF nor a count of entries".into());
    let count = i32::from_le_bytes(reader.array(&"the number of entries")?);
    let count = u64::try_from(count).ok().filter(|count| (1..=TENSORS_MAX).contains(count)).ok_or_else(not_one)?;
    let left = file.len() as u64 - reader.at();
    if count > left / ENTRY_BYTES_MIN {
        return Err(FormatError::TooManyForFile { what: "entries of importance".into(), found: count, left });
    }
    let mut entries = BTreeMap::new();
    for index in 0..count {
        let name = text(&mut reader, &format!("the name of entry {index}"))?;
        let what = format!("the importance of `{}`", shown(&name));
        let calls = i32::from_le_bytes(reader.array(&what)?);
        let len = i32::from_le_bytes(reader.array(&what)?);
        let len = u64::try_from(len).map_err(|_| wrong_entry(&name, format!("it has {len} values")))?;
        let bytes = reader.take(len.saturating_mul(4), &what)?;
        budget.take(bytes.len() as u64 + name.len() as u64, &what)?;
        let sums = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        // Nothing to divide by where there was no call.
        let counts = vec![if calls > 0 { calls as f32 } else { 1.0 }];
        if entries.insert(name.clone(), Importance { sums, counts }).is_some() {
            return Err(wrong_entry(&name, "it is there twice".into()));
        }
    }
    let mut found = Imatrix { entries, ..Imatrix::default() };
    if reader.at() < file.len() as u64 {
        let chunks = i32::from_le_bytes(reader.array(&"the number of chunks")?);
        found.chunks = u64::try_from(chunks).unwrap_or(0);
        if reader.at() < file.len() as u64 {
            found.datasets.push(text(&mut reader, "the name of the text")?);
        }
    }
    Ok(found)
}

/// A length of 32 bits and so many bytes.
fn text(reader: &mut Reader<'_>, what: &str) -> Result<String, FormatError> {
    let len = i32::from_le_bytes(reader.array(&what)?);
    let len = u64::try_from(len).map_err(|_| wrong_entry("", format!("{what} has {len} bytes")))?;
    at_most(NAME_BYTES_MAX, len, &format_args!("bytes in {what}"))?;
    let bytes = reader.take(len, &what)?;
    let text = std::str::from_utf8(bytes).map_err(|_| FormatError::NotUtf8 { what: what.into() })?;
    Ok(text.trim_end_matches('\0').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Imatrix {
        let entry = |sums: &[f32], counts: &[f32]| Importance { sums: sums.into(), counts: counts.into() };
        Imatrix {
            datasets: vec!["stories.txt".into()],
            chunks: 3,
            chunk_len: 512,
            entries: [
                ("blk.0.attn_q.weight".to_owned(), entry(&[2.0, 0.0, 8.0, 1.0], &[4.0])),
                ("blk.0.ffn_up_exps.weight".to_owned(), entry(&[1.0, 2.0, 3.0, 4.0], &[2.0, 0.0])),
            ]
            .into(),
        }
    }

    /// As the old `llama-imatrix` wrote it: means times calls.
    fn legacy() -> Vec<u8> {
        let integer = |number: i32| number.to_le_bytes().to_vec();
        let name = b"blk.0.attn_q.weight";
        let values = [6.0f32, 0.0, 24.0, 3.0];
        let text = b"wiki.train.raw";
        [
            integer(1),
            integer(name.len() as i32),
            name.to_vec(),
            integer(3),
            integer(4),
            values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            integer(7),
            integer(text.len() as i32),
            text.to_vec(),
        ]
        .concat()
    }

    #[test]
    fn both_layouts_are_read_and_what_is_written_comes_back() {
        let written = example().to_gguf().to_bytes();
        let read = Imatrix::read(written).unwrap();
        assert_eq!(read, example());
        assert_eq!(read.entries["blk.0.attn_q.weight"].means(), [0.5, 0.0, 2.0, 0.25]);
        // No token went through the second expert.
        assert_eq!(read.entries["blk.0.ffn_up_exps.weight"].means(), [0.5, 1.0, 1.0, 1.0]);
        let read = Imatrix::read(legacy().into()).unwrap();
        assert_eq!((read.chunks, &read.datasets[..]), (7, &["wiki.train.raw".to_owned()][..]));
        assert_eq!(read.entries["blk.0.attn_q.weight"].means(), [2.0, 0.0, 8.0, 1.0]);
        // The oldest end with the last entry.
        let oldest = legacy();
        let read = Imatrix::read(Bytes::copy_from_slice(&oldest[..oldest.len() - 22])).unwrap();
        assert_eq!((read.chunks, read.datasets.len(), read.entries.len()), (0, 0, 1));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_read_or_refused() {
        for (whole, least) in [(legacy(), 40), (example().to_gguf().to_bytes().to_vec(), 200)] {
            let mut refused = 0;
            for at in 0..whole.len() {
                refused += usize::from(Imatrix::read(Bytes::copy_from_slice(&whole[..at])).is_err());
                for mask in [0x01, 0x10, 0x40, 0x80, 0xff] {
                    let mut changed = whole.clone();
                    changed[at] ^= mask;
                    refused += usize::from(Imatrix::read(changed.into()).is_err());
                }
            }
            assert!(refused > least, "{refused}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_the_tensor_and_the_remedy() {
        let refuse = |bytes: Vec<u8>| Imatrix::read(bytes.into()).unwrap_err().to_string();
        let whole = legacy();
        let cut = refuse(whole[..45].to_vec());
        assert!(cut.contains("`blk.0.attn_q.weight`") && cut.contains("is the download complete"), "{cut}");
        assert!(refuse(b"not an imatrix".to_vec()).contains("neither GGUF nor"));
        let mut negative = whole.clone();
        negative[35..39].copy_from_slice(&(-1f32).to_le_bytes());
        let negative = refuse(negative);
        assert!(negative.contains("`blk.0.attn_q.weight`: -1 is no sum of squares"), "{negative}");
        assert!(negative.contains("llama-imatrix"), "{negative}");
        let mut other = example();
        other.entries.get_mut("blk.0.attn_q.weight").unwrap().counts = vec![1.0; 3];
        let other = refuse(other.to_gguf().to_bytes().to_vec());
        assert!(other.contains("`blk.0.attn_q.weight`") && other.contains("3 matrices"), "{other}");
        let mut model = GgufWriter::new();
        model.metadata("general.type", Value::String("model".into()));
        assert!(refuse(model.to_bytes().to_vec()).contains("`general.type` must be `imatrix`"));
        let mut lone = GgufWriter::new();
        lone.metadata("general.type", Value::String("imatrix".into()));
        let tensor = Tensor::from_f32(WeightFormat::F32, vec![1, 4], &[1.0; 4]).unwrap();
        lone.tensor("output.weight.in_sum2", &tensor);
        assert!(refuse(lone.to_bytes().to_vec()).contains("there is no `output.weight.counts`"));
    }
}
