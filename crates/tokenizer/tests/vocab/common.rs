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

/// GPT-2's bytes as characters.
pub(crate) fn to_byte_level(text: &str) -> String {
    use tokenizers::{NormalizedString, Normalizer as _, normalizers::byte_level::ByteLevel};
    let mut text = NormalizedString::from(text);
    ByteLevel::new().normalize(&mut text).expect("any text");
    text.get().to_owned()
}

/// A `tokenizer.json` with byte-level BPE that makes each of `words` one token, its ids after the 256
/// bytes; `rest` replaces or adds fields.
pub(crate) fn byte_level_json(words: &[&str], rest: serde_json::Value) -> serde_json::Value {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut vocab: Vec<String> = alphabet.into_iter().map(String::from).collect();
    let mut merges = Vec::new();
    for word in words {
        let mut token = String::new();
        for c in to_byte_level(word).chars() {
            let longer = format!("{token}{c}");
            if !token.is_empty() && !vocab.contains(&longer) {
                merges.push(format!("{token} {c}"));
                vocab.push(longer.clone());
            }
            token = longer;
        }
    }
    let vocab: serde_json::Map<String, serde_json::Value> =
        vocab.into_iter().zip((0..).map(serde_json::Value::from)).collect();
    let mut json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    });
    for (field, value) in rest.as_object().into_iter().flatten() {
        json[field] = value.clone();
    }
    json
}

/// An entry of `added_tokens`; `flags` replaces or adds fields.
pub(crate) fn added(id: u32, content: &str, flags: serde_json::Value) -> serde_json::Value {
    let mut token = serde_json::json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    for (field, value) in flags.as_object().into_iter().flatten() {
        token[field] = value.clone();
    }
    token
}

/// Loads what is expected to load.
pub(crate) fn load(json: &serde_json::Value) -> tokenizer::Tokenizer {
    let bytes = serde_json::to_vec(json).expect("a value");
    tokenizer::Tokenizer::from_json(&bytes, None, &Default::default()).expect("a good tokenizer.json")
}
