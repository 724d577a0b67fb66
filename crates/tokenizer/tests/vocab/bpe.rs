//! Byte-pair encoding against the `tokenizers` library: real vocabularies, and small ones made at random with every
//! option and every oddity that a file can have.

use std::fmt::Write as _;

use crate::common::{load, read_gguf_vocabulary, test_data};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizer::{GgufVocabulary, ParseSpecial, Texts, Tokenizer, TokenizerError};

fn library(json: &str) -> Result<tokenizers::Tokenizer, String> {
    tokenizers::Tokenizer::from_bytes(json).map_err(|error| error.to_string())
}

// --- Real vocabularies ----------------------------------------------------------------------------------------------

/// A vocabulary as three tokenizers: ours from GGUF, ours from JSON, and the library's from that JSON.
struct Real {
    from_gguf: Tokenizer,
    from_json: Tokenizer,
    library: tokenizers::Tokenizer,
}

fn real(name: &str, splits: Value) -> Option<Real> {
    let file = test_data(&format!("vocab/ggml-vocab-{name}.gguf"))?;
    let vocabulary = read_gguf_vocabulary(&file);
    // As in the GGUF file, control tokens are none that text merges into.
    let is_piece = |id: usize| vocabulary.token_types.get(id) != Some(&3);
    let vocab: serde_json::Map<String, Value> = vocabulary
        .tokens
        .iter()
        .enumerate()
        .filter(|&(id, _)| is_piece(id))
        .map(|(id, text)| (text.to_owned(), id.into()))
        .collect();
    let json = json!({
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
        "decoder": byte_level(),
        "model": {"type": "BPE", "vocab": vocab, "merges": vocabulary.merges.iter().collect::<Vec<_>>()},
    });
    let library = library(&json.to_string()).expect("the library reads it");
    let from_json = load(&json);
    Some(Real { from_gguf: Tokenizer::from_gguf(vocabulary).expect("real"), from_json, library })
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn gpt_2() -> Option<Real> {
    real("gpt-2", json!([byte_level()]))
}

fn starcoder() -> Option<Real> {
    real("starcoder", json!([{"type": "Digits", "individual_digits": true}, byte_level()]))
}

impl Real {
    fn agree_on(&self, text: &str) -> Result<(), TestCaseError> {
        let expected = self.library.encode(text, false).expect("encodes");
        for ours in [&self.from_gguf, &self.from_json] {
            match ours.encode(text, ParseSpecial::No) {
                Ok(ids) => {
                    prop_assert_eq!(&ids, expected.get_ids(), "{:?}", text);
                    prop_assert_eq!(&ours.decode(&ids, false), text);
                }
                // StarCoder has no tokens for bytes that begin rare planes; the library leaves them out.
                Err(TokenizerError::NotInVocabulary { .. }) => {
                    let left = self.library.decode(expected.get_ids(), false).expect("decodes");
                    prop_assert!(left != text, "{:?} is covered", text);
                }
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        Ok(())
    }
}

/// Text that these vocabularies have long tokens for, that they have none for, and all of Unicode.
fn text() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        " the",
        "ing",
        "ization",
        " International",
        "    ",
        "\n\n",
        "\t\t",
        "========",
        "--------",
        "'s",
        "123",
        "é",
        "中文",
        "日本語",
        "한국",
        "Привет",
        "😀",
        "👩\u{200d}💻",
        "\u{0}",
        "\u{ad}",
        "return",
        "self",
        "();",
    ]);
    let part = prop_oneof![
        3 => words.prop_map(str::to_owned),
        2 => any::<char>().prop_map(String::from),
        1 => (any::<char>(), 1..40usize).prop_map(|(c, n)| c.to_string().repeat(n)),
        1 => "[a-zA-Z]{1,30}",
    ];
    prop::collection::vec(part, 0..20).prop_map(|parts| parts.concat())
}

#[test]
fn real_vocabularies_give_the_librarys_ids_on_all_of_unicode() {
    for real in [gpt_2(), starcoder()].into_iter().flatten() {
        let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) };
        let mut runner = proptest::test_runner::TestRunner::new(config);
        runner.run(&text(), |text| real.agree_on(&text)).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn real_vocabularies_give_the_librarys_ids_on_hostile_text() {
    let mut texts: Vec<String> = Vec::new();
    // Every character of a byte or two, and one of each thousand after them, alone and all in one word.
    let chars = (0..0x800u32).chain((0x800..=0x10FFFF).step_by(997)).filter_map(char::from_u32);
    texts.extend(chars.clone().map(String::from));
    texts.push(chars.collect());
    texts.push(('\u{1}'..='\u{ff}').rev().collect());
    // Words that merge for long, and whose merges keep making each other stale.
    for unit in ["a", "ab", "aab", "abc", "er", "=", "-", " ", "\n", "\u{a0}", "中", "😀", "\u{ff}"] {
        texts.extend([2, 3, 7, 63, 64, 65, 1_000, 10_001].map(|n| unit.repeat(n)));
    }
    for real in [gpt_2(), starcoder()].into_iter().flatten() {
        for text in &texts {
            real.agree_on(text).unwrap_or_else(|error| panic!("{error}"));
        }
        // Each token's own text: every merge there is gets its turn.
        for id in 0..real.from_gguf.vocab_size() as u32 {
            let text = real.from_gguf.decode(&[id], false);
            if !real.from_gguf.is_special(id) && !text.contains('\u{FFFD}') {
                real.agree_on(&text).unwrap_or_else(|error| panic!("token {id}: {error}"));
            }
        }
    }
}

// --- Vocabularies made at random ------------------------------------------------------------------------------------

/// A small model over few characters, so that merges meet often.
#[derive(Clone, Debug)]
struct Small {
    /// (text, id), in the order of the file; texts and ids may occur twice.
    vocab: Vec<(String, u32)>,
    merges: Vec<(String, String)>,
    options: serde_json::Map<String, Value>,
    /// Merges as `"a b"`, and fields in another order than the library writes them.
    old: bool,
}

impl Small {
    /// By hand: a map of `serde_json` has each key once.
    fn json(&self) -> String {
        let mut vocab = String::new();
        for (text, id) in &self.vocab {
            let comma = if vocab.is_empty() { "" } else { "," };
            write!(vocab, "{comma}{}:{id}", json!(text)).expect("a string");
        }
        let merges: Vec<Value> =
            self.merges.iter().map(|(a, b)| if self.old { json!(format!("{a} {b}")) } else { json!([a, b]) }).collect();
        let mut options = String::new();
        for (name, value) in &self.options {
            write!(options, ",{}:{value}", json!(name)).expect("a string");
        }
        let merges = Value::from(merges);
        let model = match self.old {
            true => format!(r#"{{"merges":{merges},"vocab":{{{vocab}}}{options}}}"#),
            false => format!(r#"{{"type":"BPE"{options},"vocab":{{{vocab}}},"merges":{merges}}}"#),
        };
        format!(
            r#"{{"version":"1.0","added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":{{"type":"Fuse"}},"model":{model}}}"#
        )
    }

    /// The library reads only what says its type.
    fn json_for_library(&self) -> String {
        Self { old: false, ..self.clone() }.json()
    }
}

const CHARS: [&str; 7] = ["a", "b", "c", "é", "中", "😀", "u"];

prop_compose! {
    fn small()(
        present in prop::collection::vec(prop::bool::weighted(0.8), CHARS.len()),
        pairs in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..14),
        splits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
        bytes in prop::collection::vec(prop::bool::weighted(0.9), 256),
        has_bytes in any::<bool>(),
        odd in prop::collection::vec((0..5u32, any::<prop::sample::Index>()), 0..3),
        shuffle in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        options in prop::collection::vec((0..8usize, any::<bool>()), 0..6),
        old in any::<bool>(),
    ) -> Small {
        let mut texts: Vec<String> = vec!["<unk>".into()];
        texts.extend(CHARS.iter().zip(&present).filter(|&(_, &there)| there).map(|(c, _)| (*c).to_owned()));
        if has_bytes {
            texts.extend((0..256).filter(|&byte| bytes[byte]).map(|byte| format!("<0x{byte:02X}>")));
        }
        let singles = texts.len();
        let mut merges = Vec::new();
        for (at, (a, b)) in pairs.into_iter().enumerate() {
            // `<unk>` and bytes may merge too, but mostly characters do and what was merged of them.
            let of = if at % 3 == 0 { 0..texts.len() } else { 1..texts.len().min(4) };
            let (mut a, b) = (a.get(&texts[of.clone()]).clone(), b.get(&texts[of]).clone());
            if at % 2 == 0 && texts.len() > singles {
                a = texts[singles + at % (texts.len() - singles)].clone();
            }
            if a.len() + b.len() > 24 {
                continue;
            }
            if !texts.contains(&format!("{a}{b}")) {
                texts.push(format!("{a}{b}"));
            }
            merges.push((a, b));
        }
        // Other ways to make what is made already, before or after it.
        for (text, at) in splits {
            let text = text.get(&texts).clone();
            let ways: Vec<(String, String)> = (1..text.len())
                .filter_map(|at| text.split_at_checked(at))
                .filter(|(a, b)| texts.iter().any(|text| text == a) && texts.iter().any(|text| text == b))
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .collect();
            if !ways.is_empty() {
                merges.insert(at.index(merges.len() + 1), at.get(&ways).clone());
            }
        }
        let mut vocab: Vec<(String, u32)> = texts.into_iter().zip(0..).collect();
        for (what, at) in odd {
            let one = at.get(&vocab).clone();
            match what {
                0 => vocab.push((one.0, vocab.len() as u32)),
                1 => vocab.push((format!("{}x", one.0), one.1)),
                2 if !merges.is_empty() => merges.push(at.get(&merges).clone()),
                3 => vocab.push((String::new(), vocab.len() as u32)),
                _ => vocab.push((format!("z{}", one.0), 2 * vocab.len() as u32)),
            }
        }
        for (to, from) in shuffle.iter().enumerate() {
            let from = from.index(vocab.len());
            vocab.swap(to % singles, from);
        }
        let mut fields = serde_json::Map::new();
        for (option, value) in options {
            let (name, value) = match option {
                0 | 1 => ("unk_token", json!("<unk>")),
                2 => ("fuse_unk", json!(value)),
                3 | 4 => ("byte_fallback", json!(value)),
                5 => ("ignore_merges", json!(value)),
                6 => ("end_of_word_suffix", if value { json!("b") } else { json!("") }),
                _ => ("continuing_subword_prefix", json!("")),
            };
            fields.insert(name.into(), value);
        }
        Small { vocab, merges, options: fields, old }
    }
}

/// A word: characters that are tokens, characters that are not, and what tokens are spelled with.
fn word() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(CHARS.to_vec()).prop_map(str::to_owned),
        8 => prop::sample::select(CHARS[..3].to_vec()).prop_map(str::to_owned),
        1 => prop::sample::select(vec!["ab", "bc", "x", "ü", "<unk>", "<0x61>", "\u{10FFFF}"]).prop_map(str::to_owned),
        1 => (prop::sample::select(CHARS.to_vec()), 1..30usize).prop_map(|(c, n)| c.repeat(n)),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn any_small_model_gives_the_librarys_ids(small in small(), words in prop::collection::vec(word(), 1..8)) {
        let theirs = library(&small.json_for_library()).expect("the library reads it");
        let ours = Tokenizer::from_json(small.json().as_bytes(), None, &Default::default());
        let ours = ours.map_err(|error| TestCaseError::fail(format!("{error}\n{}", small.json())))?;
        for word in &words {
            // Byte tokens report their offsets one by one, which in a character of several bytes are none of text.
            let expected = theirs.get_model().clone();
            let tokens = tokenizers::Model::tokenize(&expected, word).expect("encodes");
            let covered = tokens.last().map_or(0, |token| token.offsets.1);
            let found = ours.encode(word, ParseSpecial::Yes);
            if covered == word.len() {
                let expected: Vec<u32> = tokens.iter().map(|token| token.id).collect();
                prop_assert_eq!(found.expect("covered"), expected, "{:?} by {}", word, small.json());
            } else {
                let refused = matches!(found, Err(TokenizerError::NotInVocabulary { .. }));
                prop_assert!(refused, "{:?} by {}: {:?}", word, small.json(), found);
            }
        }
    }
}

#[test]
fn an_unknown_token_that_is_none_is_an_error_when_it_is_needed() {
    let tokenizer = load(&json!({
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"a": 0}, "merges": []},
    }));
    assert_eq!(tokenizer.encode("aa", ParseSpecial::No).expect("covered"), [0, 0]);
    let error = tokenizer.encode("ab", ParseSpecial::No).expect_err("no unknown token").to_string();
    assert!(error.contains("`<unk>`"), "{error}");
}

#[test]
fn a_merge_of_no_token_is_refused_by_name() {
    for (merge, named) in [("x b", "x"), ("a x", "x"), ("b a", "ba")] {
        let json = json!({
            "decoder": {"type": "Fuse"},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b", merge]},
        });
        let bytes = serde_json::to_vec(&json).expect("a value");
        let error = Tokenizer::from_json(&bytes, None, &Default::default()).expect_err("refused").to_string();
        assert_eq!(
            error,
            format!(
                "`tokenizer.json`: field `model.merges` is not usable: token `{named}` of a merge is out of vocabulary"
            )
        );
    }
}

#[test]
fn of_tokens_with_one_text_the_first_is_made_from_it() {
    let vocabulary = GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: "gpt-2".to_owned(),
        tokens: ["a", "b", "a", "ab", "ab"].into_iter().collect(),
        merges: Texts::from_iter(["a b"]),
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(vocabulary).expect("good");
    assert_eq!(tokenizer.encode("aab", ParseSpecial::No).expect("covered"), [0, 3]);
    assert_eq!(tokenizer.decode(&[2, 4], false), "aab");
    assert_eq!(tokenizer.token_to_id("ab"), Some(3));
}
