//! `tekken.json`: ids by rank, special tokens of all versions, and what is refused.

use proptest::prelude::*;
use serde_json::{Value, json};
use time::PrimitiveDateTime;
use tokenizer::chat_template::{ChatTemplate, RenderInput};
use tokenizer::{GgufVocabulary, LoadOptions, ParseSpecial, Prompt, Tokenizer, TokenizerError, tekken_chat_template};

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

#[derive(serde::Deserialize)]
struct Conversations {
    pattern: String,
    words: Vec<String>,
    num_specials: usize,
    conversations: Vec<Conversation>,
    versions: std::collections::BTreeMap<String, Version>,
}

#[derive(serde::Deserialize)]
struct Conversation {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
}

#[derive(serde::Deserialize)]
struct Version {
    specials: Vec<String>,
    ids: Vec<Vec<u32>>,
}

/// `tools/goldens/mistral_conversations.py` says what made it.
fn conversations() -> Conversations {
    serde_json::from_str(include_str!("../golden/mistral_conversations.json")).expect("a golden")
}

/// The file that the golden's ids were made with.
fn versioned(golden: &Conversations, version: &str) -> Value {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokens = bytes.iter().map(|byte| &byte[..]).chain(golden.words.iter().map(String::as_bytes));
    let vocab: Vec<Value> = tokens
        .enumerate()
        .map(|(rank, bytes)| json!({"rank": rank, "token_bytes": base64(bytes), "token_str": null}))
        .collect();
    let specials = golden.versions[version].specials.iter().enumerate();
    let specials: Vec<Value> =
        specials.map(|(rank, text)| json!({"rank": rank, "token_str": text, "is_control": true})).collect();
    json!({
        "config": {
            "pattern": golden.pattern,
            "default_vocab_size": golden.num_specials + vocab.len(),
            "default_num_special_tokens": golden.num_specials,
            "version": format!("v{version}"),
        },
        "vocab": vocab,
        "special_tokens": specials,
    })
}

#[test]
fn a_conversation_without_a_chat_template_is_mistrals_own() {
    let golden = conversations();
    assert_eq!(golden.versions.len(), 3);
    for (version, Version { ids, .. }) in &golden.versions {
        let file = versioned(&golden, version);
        let tokenizer = good(&file);
        let source = tekken_chat_template(file.to_string().as_bytes()).expect("a good file").expect("a known version");
        let template = ChatTemplate::new(&source).expect("a good template");
        let shown = template.capabilities();
        assert!(shown.system && shown.tools && shown.tool_calls && shown.parallel_tool_calls && shown.tool_results);
        assert_eq!(ids.len(), golden.conversations.len());
        for (conversation, expected) in golden.conversations.iter().zip(ids) {
            let input = RenderInput {
                tools: conversation.tools.as_deref(),
                bos_token: Some("<s>"),
                eos_token: Some("</s>"),
                ..RenderInput::new(&conversation.messages, PrimitiveDateTime::MIN)
            };
            let prompt = Prompt::render(&template, &input, &tokenizer, ParseSpecial::No).expect("a conversation");
            let found = prompt.encode(&tokenizer).expect("covered");
            let text = tokenizer.decode(&found, false);
            assert_eq!(&found, expected, "v{version}: {text}\nfor\n{}", tokenizer.decode(expected, false));
        }
    }
}

#[test]
fn a_version_whose_format_is_not_known_has_no_template() {
    let golden = conversations();
    let template = |change: fn(&mut Value)| {
        let mut file = versioned(&golden, "13");
        change(&mut file);
        tekken_chat_template(file.to_string().as_bytes()).expect("a good file")
    };
    assert!(template(|_| {}).is_some());
    // The vocabulary is megabytes, and no template depends on it.
    assert!(template(|file| file["vocab"] = "skipped".into()).is_some());
    assert_eq!(template(|file| file["config"]["version"] = "v3".into()), None);
    assert_eq!(template(|file| file["config"]["version"] = "v15".into()), None);
    assert_eq!(template(|file| drop(file["config"].as_object_mut().expect("an object").remove("version"))), None);
    // A base model's file may lack the tokens of conversations.
    assert_eq!(template(|file| file["special_tokens"].as_array_mut().expect("a list").truncate(12)), None);
    assert!(tekken_chat_template(b"{").is_err());
}

#[test]
fn ids_of_calls_that_mistral_would_refuse_are_refused_up_to_version_11() {
    let golden = conversations();
    for (version, refused) in [("7", true), ("11", true), ("13", false)] {
        let source = tekken_chat_template(versioned(&golden, version).to_string().as_bytes());
        let template = ChatTemplate::new(&source.expect("a good file").expect("known")).expect("a good template");
        let function = json!({"name": "f", "arguments": {}});
        let messages = [
            json!({"role": "user", "content": "x"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "call_0", "type": "function", "function": function}]}),
        ];
        let input = RenderInput {
            bos_token: Some("<s>"),
            eos_token: Some("</s>"),
            ..RenderInput::new(&messages, PrimitiveDateTime::MIN)
        };
        assert_eq!(template.render(&input).is_err(), refused, "v{version}");
    }
}
