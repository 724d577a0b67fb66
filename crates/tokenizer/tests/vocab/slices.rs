//! Every step that text goes through on slices of it, against the library, which goes through them on its own strings.

use std::sync::{LazyLock, Mutex};

use crate::common::{added, byte_level_json, load};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokenizer::{ParseSpecial, Tokenizer};

/// Tokenizers that differ in their normalizer and in how they split text.
fn files() -> Vec<Value> {
    let split = |pattern: Value, behavior: &str, invert: bool| {
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let split = json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert});
        json!({"type": "Sequence", "pretokenizers": [split, byte_level]})
    };
    let then_bytes = |steps: &[Value]| {
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false});
        let steps = [steps, &[byte_level]].concat();
        json!({"type": "Sequence", "pretokenizers": steps})
    };
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "l", "prepend_scheme": scheme, "split": split});
    let mut ways: Vec<(Value, Value)> = Vec::new();
    for behavior in ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"] {
        for invert in [false, true] {
            ways.push((Value::Null, split(json!({"String": "l"}), behavior, invert)));
            ways.push((Value::Null, split(json!({"Regex": " ?[a-z]+|x*"}), behavior, invert)));
        }
    }
    for scheme in ["always", "first", "never"] {
        for split in [false, true] {
            ways.push((Value::Null, then_bytes(&[metaspace(scheme, split)])));
            // What marks the first text alone knows where its text came from, so the library does all of it.
            ways.push((json!({"type": "Prepend", "prepend": "he"}), then_bytes(&[metaspace(scheme, split)])));
        }
    }
    for individual in [false, true] {
        ways.push((Value::Null, then_bytes(&[json!({"type": "Digits", "individual_digits": individual})])));
    }
    for form in ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"] {
        ways.push((json!({"type": form}), then_bytes(&[json!({"type": "Punctuation", "behavior": "Isolated"})])));
    }
    let steps = json!([
        {"type": "Prepend", "prepend": "wo"},
        {"type": "Replace", "pattern": {"String": "ll"}, "content": "l"},
        {"type": "Replace", "pattern": {"String": "é"}, "content": ""},
    ]);
    ways.push((json!({"type": "Sequence", "normalizers": steps}), then_bytes(&[json!({"type": "WhitespaceSplit"})])));
    ways.into_iter().map(|(normalizer, pre_tokenizer)| file(normalizer, pre_tokenizer)).collect()
}

fn file(normalizer: Value, pre_tokenizer: Value) -> Value {
    let mut json = byte_level_json(&["hello", " world", "ll", "  "], json!({}));
    json["normalizer"] = normalizer;
    json["pre_tokenizer"] = pre_tokenizer;
    let next = json["model"]["vocab"].as_object().expect("a vocabulary").len() as u32;
    json["added_tokens"] = json!([
        added(next, "<s>", json!({})),
        added(next + 1, "<e>", json!({"lstrip": true})),
        added(next + 2, "<e><s>", json!({"rstrip": true, "special": false})),
        added(next + 3, "Hello", json!({"normalized": true, "special": false})),
        added(next + 4, "é1", json!({"normalized": true, "single_word": true, "special": false})),
        added(next + 5, "wor", json!({"normalized": true, "lstrip": true, "rstrip": true})),
    ]);
    json
}

type Both = (Tokenizer, Mutex<tokenizers::Tokenizer>, Value);

static ALL: LazyLock<Vec<Both>> = LazyLock::new(|| {
    let both = |json: Value| {
        let theirs = tokenizers::Tokenizer::from_bytes(serde_json::to_vec(&json).expect("a value")).expect("loads");
        (load(&json), Mutex::new(theirs), json)
    };
    files().into_iter().map(both).collect()
});

fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec![
            " ", "  ", "\n", "l", "ll", "hello", "Hello", "world", "wor", "x", "A", "1", "23", "é", "e\u{301}", "!", "ﬁ",
        ]).prop_map(str::to_owned),
        2 => prop::sample::select(vec!["<s>", "<e>", "<e><s>", "<e", "é1", "中", "각"]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(part, 0..16).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn slices_give_the_librarys_ids(text in text()) {
        for (ours, theirs, json) in &*ALL {
            let mut theirs = theirs.lock().expect("no panic");
            for special in [ParseSpecial::Yes, ParseSpecial::No] {
                theirs.set_encode_special_tokens(special == ParseSpecial::No);
                let expected = theirs.encode(text.as_str(), false).expect("encodes");
                let found = ours.encode(&text, special).expect("covered");
                prop_assert_eq!(&found, expected.get_ids(), "{} {}", json["normalizer"], json["pre_tokenizer"]);
                prop_assert!(ours.tokens_at_least(&text) <= found.len());
            }
        }
    }
}
