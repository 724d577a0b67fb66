//! `tekken.json`: ids by rank, special tokens of all versions, and what is refused.

use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizer::{GgufVocabulary, LoadOptions, ParseSpecial, Tokenizer, TokenizerError};

const PATTERN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Tokens after the 256 bytes, some of which can be made in two ways.
const WORDS: [&[u8]; 12] =
    [b"ab", b"bc", b"abc", b"aa", b"aaa", b"bca", b" a", b"caa", b"\xC3\xA9", b"a\xC3", b"abcab", b"cab"];
/// Special tokens of the files of these tests.
const SPECIALS: u32 = 24;

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// A file with these tokens after the bytes, and one more that `default_vocab_size` leaves out.
fn file(words: &[&[u8]]) -> Value {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokens = bytes.iter().map(|byte| &byte[..]).chain(words.iter().copied()).chain([&b"left out"[..]]);
    let vocab: Vec<Value> = tokens
        .enumerate()
        .map(|(rank, bytes)| json!({"rank": rank, "token_bytes": base64(bytes), "token_str": null}))
        .collect();
    json!({
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": vocab.len(),
            "default_vocab_size": SPECIALS as usize + vocab.len() - 1,
            "default_num_special_tokens": SPECIALS,
            "version": "v3",
        },
        "vocab": vocab,
    })
}

fn load(file: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_tekken(file.to_string().as_bytes(), &LoadOptions::default())
}

fn good(file: &Value) -> Tokenizer {
    load(file).expect("a good file")
}

/// Ids of one word: as long as two neighbours make a token, the one of the lowest rank, the leftmost of several.
fn lowest_rank_first(words: &[&[u8]], word: &[u8]) -> Vec<u32> {
    let rank = |bytes: &[u8]| match bytes {
        [byte] => Some(u32::from(*byte)),
        _ => words.iter().position(|word| *word == bytes).map(|at| 256 + at as u32),
    };
    let id = |bytes: &[u8]| rank(bytes).map(|rank| rank + SPECIALS);
    if let Some(whole) = id(word) {
        return vec![whole];
    }
    let mut parts: Vec<Vec<u8>> = word.iter().map(|&byte| vec![byte]).collect();
    loop {
        let joined = |at: usize| rank(&[&parts[at][..], &parts[at + 1]].concat()).map(|rank| (rank, at));
        let Some((_, at)) = (0..parts.len().saturating_sub(1)).filter_map(joined).min() else { break };
        let right = parts.remove(at + 1);
        parts[at].extend(right);
    }
    parts.iter().map(|part| id(part).expect("a token")).collect()
}

proptest! {
    #[test]
    fn words_merge_by_the_lowest_rank(
        word in "[abcé]{1,20}",
        order in Just(WORDS.to_vec()).prop_shuffle(),
    ) {
        // Any order of ranks, not only one that training would give.
        let file = file(&order);
        let expected = lowest_rank_first(&order, word.as_bytes());
        let tokenizer = good(&file);
        prop_assert_eq!(&tokenizer.encode(&word, ParseSpecial::No).expect("covered"), &expected);
        prop_assert_eq!(tokenizer.decode(&expected, false), word.clone());
        let gguf = GgufVocabulary::from_tekken(file.to_string().as_bytes()).expect("a good file");
        let gguf = Tokenizer::from_gguf(gguf).expect("a good vocabulary");
        prop_assert_eq!(gguf.encode(&word, ParseSpecial::No).expect("covered"), expected);
    }
}

#[test]
fn ids_come_after_the_special_tokens() {
    let tokenizer = good(&file(&WORDS));
    assert_eq!(tokenizer.vocab_size(), SPECIALS as usize + 256 + WORDS.len());
    let encode = |text, special| tokenizer.encode(text, special).expect("covered");
    assert_eq!(encode("abc a", ParseSpecial::No), [SPECIALS + 258, SPECIALS + 262]);
    assert_eq!(encode("[INST]abc</s><SPECIAL_23>", ParseSpecial::Yes), [3, SPECIALS + 258, 2, 23]);
    assert!(encode("[INST]</s>", ParseSpecial::No).iter().all(|&id| id >= SPECIALS));
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids(), tokenizer.pad_id()), (Some(1), &[2][..], Some(11)));
    assert_eq!((tokenizer.unk_id(), tokenizer.prefix_ids(), tokenizer.suffix_ids()), (Some(0), &[1][..], &[][..]));
    assert_eq!(tokenizer.decode(&[1, SPECIALS + 258, 2], true), "abc");
    assert_eq!(tokenizer.decode(&[3, SPECIALS + 258, 9], false), "[INST]abc[TOOL_CALLS]");
}

#[test]
fn special_tokens_are_those_listed_with_fillers_between() {
    let mut file = file(&WORDS);
    file["config"]["version"] = "v13".into();
    assert!(load(&file).expect_err("v13 lists them").to_string().contains("`special_tokens` is missing"));
    file["special_tokens"] = json!([
        {"rank": 1, "token_str": "<s>", "is_control": true},
        {"rank": 2, "token_str": "</s>", "is_control": true},
        {"rank": 0, "token_str": "<unk>", "is_control": true},
        {"rank": 5, "token_str": "[THINK]", "is_control": true},
    ]);
    let tokenizer = good(&file);
    let ids = tokenizer.encode("[THINK]a<SPECIAL_3>", ParseSpecial::Yes).expect("covered");
    assert_eq!(ids, [5, SPECIALS + u32::from(b'a'), 3]);
    assert!(tokenizer.is_special(5) && tokenizer.is_special(4) && !tokenizer.is_special(SPECIALS));
    assert_eq!(tokenizer.pad_id(), None);
}

#[test]
fn what_is_wrong_is_named() {
    let change = |path: &str, value: Value| {
        let mut file = file(&WORDS);
        *file.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        file
    };
    let special = |tokens: Value| {
        let mut file = file(&WORDS);
        file["special_tokens"] = tokens;
        file
    };
    let mut no_pattern = file(&WORDS);
    no_pattern["config"].as_object_mut().expect("an object").remove("pattern");
    let unit = |rank: u32, text: &str| json!({"rank": rank, "token_str": text, "is_control": true});
    let cases = [
        (change("/vocab/260/token_bytes", "YWI".into()), "`vocab[260].token_bytes` is `YWI`, which is not base64"),
        (change("/vocab/260/token_bytes", "".into()), "`vocab[260].token_bytes`"),
        (change("/vocab/65/token_bytes", "YWI=".into()), "the first 256 tokens are the bytes"),
        (change("/vocab/260/token_bytes", "YWI=".into()), "`vocab[260].token_bytes` is that of vocab[256], too"),
        (change("/vocab/260/rank", 259.into()), "`vocab[260].rank` is 259"),
        (change("/vocab/260/rank", (-1).into()), "tekken.json"),
        (change("/config/default_vocab_size", 100_000.into()), "`config.default_vocab_size` is 100000"),
        (change("/config/default_vocab_size", 30.into()), "must be between 280 and 293"),
        (change("/config/default_num_special_tokens", u32::MAX.into()), "`config.default_num_special_tokens`"),
        (change("/config/pattern", "".into()), "`config.pattern` is empty"),
        (change("/config/pattern", "a".repeat(20_000).into()), "`config.pattern` has 20000 bytes"),
        (change("/config/pattern", r"(a)\1".into()), "`config.pattern`"),
        (no_pattern, "missing field `pattern`"),
        (special(json!([unit(0, "<s>"), unit(24, "</s>")])), "`special_tokens[1].rank` is 24"),
        (special(json!([unit(0, "<s>"), unit(0, "</s>")])), "`special_tokens[1].rank` is 0, which `<s>` has"),
        (special(json!([unit(0, "<s>"), unit(1, "<s>")])), "`special_tokens` has `<s>` twice"),
        (special(json!([unit(0, "<s>"), unit(1, "")])), "`special_tokens[1].token_str` has 0 bytes"),
        (special(json!([unit(0, "<s>")])), "`special_tokens` has no `</s>`"),
    ];
    for (file, expected) in cases {
        let error = load(&file).expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("`tekken.json`"), "{expected}: {error}");
    }
    let json = file(&WORDS).to_string();
    for end in (0..json.len()).step_by(97) {
        load_bytes(&json.as_bytes()[..end]).expect_err("cut short");
    }
}

fn load_bytes(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_tekken(bytes, &LoadOptions::default())
}
