//! SentencePiece's `tokenizer.model`, against the same vocabulary in a GGUF file.

use serde_json::{Value, json};
use tokenizer::{GgufVocabulary, ParseSpecial, SideFiles, Tokenizer, TokenizerError};

use crate::common::{read_gguf_vocabulary, sentence_piece_vocabulary, test_data};

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn piece(text: &str, score: f32, kind: i32) -> Vec<u8> {
    let score = [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
    // Normal pieces say nothing of their type.
    let kind = if kind == 1 { Vec::new() } else { number(3, kind as u64) };
    bytes(1, &[bytes(1, text.as_bytes()), score, kind].concat())
}

/// The parts of a file: pieces, `trainer_spec`, `normalizer_spec`.
#[derive(Clone)]
struct Model {
    pieces: Vec<Vec<u8>>,
    trainer: Vec<u8>,
    normalizer: Vec<u8>,
}

impl Model {
    fn of(vocabulary: &GgufVocabulary) -> Self {
        let parts = vocabulary.tokens.iter().zip(&vocabulary.scores).zip(&vocabulary.token_types);
        Self {
            pieces: parts.map(|((text, score), kind)| piece(text, *score, *kind)).collect(),
            // BPE, byte_fallback, and no token for padding.
            trainer: [number(3, 2), number(35, 1), number(40, 0), number(43, u64::MAX)].concat(),
            normalizer: [bytes(1, b"identity"), bytes(2, b""), number(3, 1), number(4, 0), number(5, 1)].concat(),
        }
    }

    fn file(&self) -> Vec<u8> {
        [self.pieces.concat(), bytes(2, &self.trainer), bytes(3, &self.normalizer), bytes(4, b"skipped")].concat()
    }

    fn load(&self, config: &Value) -> Result<Tokenizer, TokenizerError> {
        let config = config.to_string();
        let beside = SideFiles { tokenizer_config: Some(config.as_bytes()), ..SideFiles::default() };
        Tokenizer::from_sentence_piece(&self.file(), beside)
    }
}

fn small() -> GgufVocabulary {
    let first = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁▁", 0.0, 4)];
    let last = [("▁a", -1.0, 1), ("ab", -2.0, 1), ("▁ab", -3.0, 1), ("▁", -4.0, 1), ("a", -5.0, 1), ("b", -6.0, 1)];
    sentence_piece_vocabulary(&first, &last)
}

#[test]
fn a_model_gives_the_tokens_of_its_gguf() {
    let found = Model::of(&small()).load(&json!({})).expect("a good model");
    let expected = Tokenizer::from_gguf(small()).expect("a good vocabulary");
    for text in ["ab a  b", "é\n</s>ab", "", " ab", "▁a"] {
        for special in [ParseSpecial::Yes, ParseSpecial::No] {
            let ids = found.encode(text, special).expect("covered");
            assert_eq!(ids, expected.encode(text, special).expect("covered"), "{text}");
            assert_eq!(found.decode(&ids, true), expected.decode(&ids, true), "{text}");
        }
    }
    assert_eq!((found.prefix_ids(), found.suffix_ids()), (&[1][..], &[][..]));
    assert_eq!((found.eos_ids(), found.unk_id(), found.pad_id()), (&[2][..], Some(0), None));
    let again = GgufVocabulary::from_sentence_piece(&Model::of(&small()).file(), SideFiles::default());
    let again = again.expect("a good model");
    assert_eq!((again.tokens, again.token_types), (small().tokens, small().token_types));
}

#[test]
fn tokens_are_added_and_roles_changed_by_the_files_beside() {
    let size = small().tokens.len();
    let config = json!({
        "add_bos_token": false, "add_eos_token": true, "eos_token": "<|end|>", "pad_token": "<nowhere>",
        "added_tokens_decoder": {
            "1": {"content": "<s>", "special": true},
            (size + 1).to_string(): {"content": "<|end|>", "special": true, "rstrip": true},
            (size + 2).to_string(): {"content": "two words", "special": false},
        },
    });
    let tokenizer = Model::of(&small()).load(&config).expect("a good model");
    let end = size as u32 + 1;
    assert_eq!(
        (tokenizer.prefix_ids(), tokenizer.suffix_ids(), tokenizer.eos_ids()),
        (&[][..], &[end][..], &[end][..])
    );
    let ids = tokenizer.encode("two words<|end|>\n", ParseSpecial::Yes).expect("covered");
    assert_eq!(ids, [end + 1, end]);
    assert_eq!(tokenizer.decode(&ids, false), "two words<|end|>");
    assert_eq!(tokenizer.vocab_size(), size + 3);
}

#[test]
fn a_space_goes_before_each_text_or_the_first_alone() {
    let load = |legacy: Value| Model::of(&small()).load(&json!({"legacy": legacy})).expect("a good model");
    let encode = |tokenizer: &Tokenizer, text| tokenizer.encode(text, ParseSpecial::Yes).expect("covered");
    let id = |text: &str| small().tokens.iter().position(|token| token == text).expect("a token") as u32;
    for tokenizer in [load(json!(null)), load(json!(true))] {
        assert_eq!(encode(&tokenizer, "ab</s>ab"), [id("▁ab"), 2, id("▁ab")]);
        assert_eq!(encode(&tokenizer, " ab"), [id("▁▁"), id("ab")]);
    }
    let tokenizer = load(json!(false));
    assert_eq!(encode(&tokenizer, "ab</s>ab a"), [id("▁ab"), 2, id("ab"), id("▁a")]);
    assert_eq!(encode(&tokenizer, " ab"), [id("▁ab")]);
    assert_eq!(encode(&tokenizer, "</s>ab"), [2, id("ab")]);
    assert_eq!(tokenizer.decode(&encode(&tokenizer, "ab a"), true), "ab a");
}

#[test]
fn llamas_real_vocabulary() {
    let Some(file) = test_data("vocab/ggml-vocab-llama-spm.gguf") else { return };
    let gguf = read_gguf_vocabulary(&file);
    let found = Model::of(&gguf).load(&json!({})).expect("Llama's model");
    let expected = Tokenizer::from_gguf(gguf).expect("a good vocabulary");
    let texts = std::fs::read_to_string(format!("{}.inp", file.display())).expect("test data");
    for text in texts.split("\n__ggml_vocab_test__\n") {
        let ids = found.encode(text, ParseSpecial::No).expect("covered");
        assert_eq!(ids, expected.encode(text, ParseSpecial::No).expect("covered"), "{text}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let good = Model::of(&small());
    let with = |change: &dyn Fn(&mut Model)| {
        let mut model = good.clone();
        change(&mut model);
        model
    };
    let size = good.pieces.len();
    let cases = [
        (with(&|m| m.trainer = Vec::new()), "`trainer_spec.model_type` is UNIGRAM"),
        (with(&|m| m.trainer = number(3, 4)), "`trainer_spec.model_type` is CHAR"),
        (with(&|m| m.trainer.extend(number(24, 1))), "`trainer_spec.treat_whitespace_as_suffix`"),
        (with(&|m| m.trainer.extend(number(41, 999))), "`trainer_spec.bos_id` is 999"),
        (with(&|m| m.normalizer.extend(bytes(2, b"map"))), "`normalizer_spec.name` is `identity`, with a map"),
        (with(&|m| m.normalizer = Vec::new()), "`normalizer_spec.remove_extra_whitespaces` is true"),
        (with(&|m| m.normalizer.extend(number(5, 0))), "`normalizer_spec.escape_whitespaces` is false"),
        (with(&|m| m.pieces.push(piece("x", f32::NAN, 1))), "].score` is not a number"),
        (with(&|m| m.pieces.push(piece("x", 0.0, 9))), "].type` is 9"),
        (with(&|m| m.pieces.push(bytes(1, &bytes(1, b"\xFF")))), "].piece` is not UTF-8"),
        (with(&|m| m.pieces.push(bytes(1, b""))), "].piece` is empty"),
        (with(&|m| m.pieces.push(bytes(1, b"\x0A\x05x"))), "`pieces` has a field that is malformed"),
        (with(&|m| m.pieces.clear()), "`pieces` has none"),
    ];
    for (model, expected) in cases {
        let error = model.load(&json!({})).expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("`tokenizer.model`"), "{expected}: {error}");
    }
    let added = |id: usize, text: &str| json!({"added_tokens_decoder": {id.to_string(): {"content": text}}});
    let configs = [
        (json!({"bos_token": "<no>"}), "`bos_token` names `<no>`"),
        (added(1, "<x>"), "`added_tokens_decoder.1` is `<x>`, but `tokenizer.model` has `<s>` there"),
        (added(size + 70_000, "<x>"), "is beyond the vocabulary"),
    ];
    for (config, expected) in configs {
        let error = good.load(&config).expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("`tokenizer_config.json`"), "{expected}: {error}");
    }
    let file = good.file();
    for end in 0..file.len() {
        // Cut between two fields, the rest says nothing of the kind of model.
        Tokenizer::from_sentence_piece(&file[..end], SideFiles::default()).err();
    }
    Tokenizer::from_sentence_piece(&file[..file.len() / 2], SideFiles::default()).expect_err("cut short");
}
