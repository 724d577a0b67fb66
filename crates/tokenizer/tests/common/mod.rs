//! What the tests of this crate share: the test data's folder, and its GGUF vocabularies.

use std::path::PathBuf;

use tokenizer::GgufVocabulary;

/// A file of the test data, or `None`, said aloud, where the data is not at hand.
pub(crate) fn test_data(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("HOTMETAL_TEST_DATA")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"), PathBuf::from);
    let file = folder.join(path);
    if file.exists() {
        return Some(file);
    }
    println!("skipped: {} is not here; set HOTMETAL_TEST_DATA", file.display());
    None
}

/// Reads the `tokenizer.ggml.*` values of a GGUF file that is known to be well-formed.
pub(crate) fn read_gguf_vocabulary(file: &std::path::Path) -> GgufVocabulary {
    let bytes = std::fs::read(file).expect("test data");
    let mut reader = Reader { rest: &bytes };
    assert_eq!(reader.take(4), b"GGUF");
    reader.take(4 + 8);
    let mut vocabulary = GgufVocabulary::default();
    for _ in 0..reader.u64() {
        let key = reader.string();
        let kind = reader.u32();
        let value = reader.value(kind);
        let id = || Some(value.ints[0] as u32);
        match key.strip_prefix("tokenizer.ggml.").unwrap_or("") {
            "model" => vocabulary.model = value.texts[0].clone(),
            "pre" => vocabulary.pre = value.texts[0].clone(),
            "tokens" => vocabulary.tokens = value.texts,
            "merges" => vocabulary.merges = value.texts,
            "scores" => vocabulary.scores = value.floats,
            "token_type" => vocabulary.token_types = value.ints.iter().map(|&i| i as i32).collect(),
            "bos_token_id" => vocabulary.bos_id = id(),
            "eos_token_id" => vocabulary.eos_id = id(),
            "unknown_token_id" => vocabulary.unk_id = id(),
            "padding_token_id" => vocabulary.pad_id = id(),
            "add_bos_token" => vocabulary.add_bos = Some(value.ints[0] != 0),
            "add_eos_token" => vocabulary.add_eos = Some(value.ints[0] != 0),
            "add_space_prefix" => vocabulary.add_space_prefix = Some(value.ints[0] != 0),
            _ => {}
        }
    }
    vocabulary
}

struct Reader<'a> {
    rest: &'a [u8],
}

/// A value, in the list of its type.
#[derive(Default)]
struct Value {
    ints: Vec<i64>,
    floats: Vec<f32>,
    texts: Vec<String>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().expect("4 bytes"))
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().expect("8 bytes"))
    }

    fn string(&mut self) -> String {
        let bytes = self.u64() as usize;
        String::from_utf8(self.take(bytes).to_vec()).expect("UTF-8")
    }

    fn value(&mut self, kind: u32) -> Value {
        let mut value = Value::default();
        if kind == 9 {
            let kind = self.u32();
            for _ in 0..self.u64() {
                self.scalar(kind, &mut value);
            }
        } else {
            self.scalar(kind, &mut value);
        }
        value
    }

    fn scalar(&mut self, kind: u32, value: &mut Value) {
        match kind {
            0 | 1 | 7 => value.ints.push(i64::from(self.take(1)[0])),
            2 | 3 => {
                let bytes = self.take(2).try_into().expect("2 bytes");
                value.ints.push(i64::from(u16::from_le_bytes(bytes)));
            }
            4 | 5 => value.ints.push(i64::from(self.u32())),
            6 => value.floats.push(f32::from_bits(self.u32())),
            8 => value.texts.push(self.string()),
            _ => value.ints.push(self.u64() as i64),
        }
    }
}
