//! What the tests of this crate share: the test data's folder, and its GGUF vocabularies.

use std::path::PathBuf;

use tokenizer::{GgufVocabulary, Texts};

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

/// The vocabulary of a GGUF file that is known to be well-formed.
pub(crate) fn read_gguf_vocabulary(file: &std::path::Path) -> GgufVocabulary {
    let bytes = std::fs::read(file).expect("test data").into();
    let gguf = formats::gguf::Gguf::read_header(bytes).expect("well-formed");
    let read =
        formats::gguf::vocabulary::GgufVocabulary::read(gguf.metadata()).expect("well-formed").expect("a vocabulary");
    let texts = |strings: formats::gguf::Strings| {
        let (text, ends) = strings.into_parts();
        Texts::from_parts(text, ends).expect("whole strings")
    };
    GgufVocabulary {
        model: read.model,
        pre: read.pre.unwrap_or_default(),
        tokens: texts(read.tokens),
        scores: read.scores,
        token_types: read.token_types,
        merges: texts(read.merges),
        bos_id: read.bos_token_id,
        eos_id: read.eos_token_id,
        eot_id: read.eot_token_id,
        eom_id: read.eom_token_id,
        unk_id: read.unknown_token_id,
        pad_id: read.padding_token_id,
        add_bos: read.add_bos_token,
        add_eos: read.add_eos_token,
        add_space_prefix: read.add_space_prefix,
        fim: tokenizer::FimIds::default(),
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

/// A small vocabulary of SentencePiece's kind: `first`, the 256 bytes, then `last`, each a text, its score and its type.
pub(crate) fn sentence_piece_vocabulary(first: &[(&str, f32, i32)], last: &[(&str, f32, i32)]) -> GgufVocabulary {
    let mut vocabulary = GgufVocabulary {
        model: "llama".to_owned(),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        ..GgufVocabulary::default()
    };
    let bytes = (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6));
    let listed = |pieces: &[(&str, f32, i32)]| -> Vec<_> {
        pieces.iter().map(|&(text, score, kind)| (text.to_owned(), score, kind)).collect()
    };
    for (text, score, kind) in listed(first).into_iter().chain(bytes).chain(listed(last)) {
        vocabulary.tokens.push(&text);
        vocabulary.scores.push(score);
        vocabulary.token_types.push(kind);
    }
    vocabulary
}
