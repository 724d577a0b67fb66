//! GGUF vocabularies: roles, tokens found in text, long runs, and what is refused.

use std::time::Duration;

use crate::common::{read_gguf_vocabulary, sentence_piece_vocabulary, test_data, to_byte_level};
use crate::cpu_time;
use tokenizer::{GgufVocabulary, ParseSpecial, Texts, Tokenizer, known_pre_tokenizers};

/// Bytes, `he`, `hel`, and a chat format's control tokens.
fn byte_level(pre: &str) -> GgufVocabulary {
    let mut tokens: Vec<String> = (0..=255u8)
        .map(|byte| match byte {
            0..0x80 => to_byte_level(&char::from(byte).to_string()),
            // The second byte of U+0080 to U+00BF is 0x80 to 0xBF; leading bytes come from themselves.
            0x80..0xC0 => to_byte_level(&char::from(byte).to_string()).chars().skip(1).collect(),
            _ => char::from(byte).to_string(),
        })
        .collect();
    tokens.extend(["he", "hel", "<|im_start|>", "<|im_end|>", "<think>"].map(String::from));
    let mut token_types = vec![1; 258];
    token_types.extend([3, 3, 4]);
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        tokens: tokens.into_iter().collect(),
        token_types,
        merges: ["h e", "he l"].into_iter().collect(),
        bos_id: Some(258),
        eos_id: Some(258),
        ..GgufVocabulary::default()
    }
}

/// `▁`, `a`, `▁a`, a run of spaces that is user-defined, and all bytes.
fn sentence_piece() -> GgufVocabulary {
    let pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁", -3.0, 1), ("a", -2.0, 1)];
    let more = [("▁a", -1.0, 1), ("▁▁▁▁", 0.0, 4)];
    sentence_piece_vocabulary(&[&pieces[..], &more].concat(), &[])
}

#[test]
fn every_named_pre_tokenizer_loads_and_round_trips() {
    let text = "he said: héllo, 12345 wörld's  \n\n\t中文 かな 한국 😀 x = y;  ";
    for name in known_pre_tokenizers() {
        let marked = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"].contains(&name);
        let vocabulary = if marked { marked_text(name) } else { byte_level(name) };
        let tokenizer = Tokenizer::from_gguf(vocabulary).expect(name);
        let ids = tokenizer.encode(text, ParseSpecial::No).expect(name);
        assert_eq!(tokenizer.decode(&ids, false), text, "{name}");
    }
}

#[derive(serde::Deserialize)]
struct Merged {
    tokens: Vec<String>,
    merges: Vec<String>,
    ids: Vec<Vec<u32>>,
}

/// The texts of a golden, and a vocabulary of merges over all of a text with what it makes of them.
/// `tools/goldens/pre_tokenizers.py` says what made it.
fn merged() -> (Vec<String>, Merged) {
    let mut golden: serde_json::Value =
        serde_json::from_str(include_str!("../golden/pre_tokenizers.json")).expect("a golden");
    let mut part = |name: &str| golden[name].take();
    let (texts, merged) = (part("texts"), part("merged"));
    (serde_json::from_value(texts).expect("texts"), serde_json::from_value(merged).expect("a vocabulary"))
}

/// The golden's vocabulary, with BOS behind.
fn marked_text(pre: &str) -> GgufVocabulary {
    let (_, Merged { mut tokens, merges, .. }) = merged();
    let mut token_types = vec![2];
    token_types.resize(257, 6);
    token_types.resize(tokens.len(), 1);
    tokens.push("<bos>".to_owned());
    token_types.push(3);
    GgufVocabulary {
        model: "gpt2".to_owned(),
        pre: pre.to_owned(),
        bos_id: Some(tokens.len() as u32 - 1),
        tokens: tokens.into_iter().collect(),
        token_types,
        merges: merges.iter().map(String::as_str).collect(),
        unk_id: Some(0),
        ..GgufVocabulary::default()
    }
}

#[test]
fn merges_over_all_of_a_text_are_those_of_the_published_tokenizer() {
    let (texts, Merged { ids, .. }) = merged();
    for pre in ["gemma4", "granite-embed-multi-311m", "sarvam-moe"] {
        let tokenizer = Tokenizer::from_gguf(marked_text(pre)).expect(pre);
        assert_eq!(tokenizer.add_bos(), pre != "sarvam-moe");
        for (text, expected) in texts.iter().zip(&ids) {
            let found = tokenizer.encode(text, ParseSpecial::No).expect("covered");
            assert_eq!(&found, expected, "{pre} on {text:?}");
            assert_eq!(&tokenizer.decode(&found, false), text, "{pre}");
        }
    }
    let gemma = GgufVocabulary { model: "gemma4".to_owned(), ..marked_text("") };
    let gemma = Tokenizer::from_gguf(gemma).expect("the model names the pre-tokenizer");
    assert_eq!(gemma.encode(&texts[1], ParseSpecial::No).expect("covered"), ids[1]);
}

#[test]
fn a_run_of_newlines_that_is_a_token_is_one_without_merges() {
    let mut vocabulary = marked_text("gemma4");
    let run = vocabulary.tokens.iter().position(|token| token == "\n\n\n").expect("in the golden") as u32;
    vocabulary.merges = vocabulary.merges.iter().filter(|merge| !merge.contains('\n')).collect();
    let encode = |pre: &str| {
        let tokenizer = Tokenizer::from_gguf(GgufVocabulary { pre: pre.to_owned(), ..vocabulary.clone() });
        tokenizer.expect(pre).encode("\n\n\n", ParseSpecial::No).expect("covered")
    };
    assert_eq!(encode("gemma4"), [run]);
    assert_eq!(encode("sarvam-moe").len(), 3);
}

#[test]
fn roberta_puts_a_text_between_bos_and_eos_unless_the_file_says_otherwise() {
    for pre in ["roberta-bpe", "jina-v1-en", "jina-v2-code"] {
        let vocabulary = GgufVocabulary { bos_id: Some(258), eos_id: Some(259), ..byte_level(pre) };
        let encode = |vocabulary: GgufVocabulary| {
            let tokenizer = Tokenizer::from_gguf(vocabulary).expect("good");
            tokenizer.encode_with_special_tokens("hel", ParseSpecial::No).expect("covered")
        };
        assert_eq!(encode(vocabulary.clone()), [258, 257, 259], "{pre}");
        assert_eq!(encode(GgufVocabulary { add_bos: Some(false), add_eos: Some(false), ..vocabulary }), [257], "{pre}");
    }
}

#[test]
fn control_tokens_end_turns_and_never_come_from_text() {
    let tokenizer = Tokenizer::from_gguf(byte_level("qwen2")).expect("good");
    assert_eq!(tokenizer.eos_ids(), [258, 259]);
    assert_eq!((tokenizer.bos_id(), tokenizer.add_bos()), (Some(258), false));
    let text = "<|im_start|>hel<think><|im_end|>";
    assert_eq!(tokenizer.encode(text, ParseSpecial::Yes).expect("covered"), [258, 257, 260, 259]);
    let plain = tokenizer.encode(text, ParseSpecial::No).expect("covered");
    assert!(plain.contains(&260) && !plain.contains(&258) && !plain.contains(&259));
    assert_eq!(tokenizer.decode(&plain, true), text);
    assert_eq!(tokenizer.decode(&[258, 257, 259], true), "hel");
}

#[test]
fn llama_bpe_starts_with_bos_and_takes_whole_words_first() {
    let tokenizer = Tokenizer::from_gguf(byte_level("llama-bpe")).expect("good");
    assert!(tokenizer.add_bos());
    assert_eq!(tokenizer.encode_with_special_tokens("hel", ParseSpecial::No).expect("covered"), [258, 257]);
    let without = GgufVocabulary { add_bos: Some(false), ..byte_level("llama-bpe") };
    assert!(!Tokenizer::from_gguf(without).expect("good").add_bos());
}

#[test]
fn qwen_composes_characters_as_its_published_tokenizer_does() {
    let tokenizer = Tokenizer::from_gguf(byte_level("qwen2")).expect("good");
    let encode = |text| tokenizer.encode(text, ParseSpecial::No).expect("covered");
    assert_eq!(encode("e\u{301}"), encode("é"));
}

#[test]
fn sentence_piece_has_spaces_bytes_and_user_defined_tokens() {
    let tokenizer = Tokenizer::from_gguf(sentence_piece()).expect("good");
    let encode = |text| tokenizer.encode(text, ParseSpecial::Yes).expect("covered");
    assert!(tokenizer.add_bos());
    assert_eq!(encode("a a"), [5, 5]);
    assert_eq!(encode("<s>a"), [1, 5]);
    assert_eq!(encode("a    a"), [5, 6, 5]);
    let newline = 7 + u32::from(b'\n');
    assert_eq!(encode("a\n"), [5, newline]);
    assert_eq!(tokenizer.token_bytes(newline).as_deref(), Some(&b"\n"[..]));
    assert_eq!(tokenizer.token_bytes(5).as_deref(), Some(&b" a"[..]));
    assert_eq!(tokenizer.decode(&encode("a\n é"), false), "a\n é");
    let plain = tokenizer.encode("<s>", ParseSpecial::No).expect("covered");
    assert!(!plain.contains(&1));
    assert_eq!(tokenizer.decode(&plain, true), "<s>");

    let bare = GgufVocabulary { add_space_prefix: Some(false), ..sentence_piece() };
    let bare = Tokenizer::from_gguf(bare).expect("good");
    assert_eq!(bare.encode("a a", ParseSpecial::No).expect("covered"), [4, 5]);
    assert_eq!(bare.decode(&[5], false), " a");
}

#[test]
fn without_byte_tokens_a_run_of_unknown_characters_is_one_token() {
    let mut vocabulary = sentence_piece();
    let no_byte = |(text, kind): (&str, &mut i32)| match kind {
        6 => {
            *kind = 5;
            format!("?{text}")
        }
        _ => text.to_owned(),
    };
    vocabulary.tokens = vocabulary.tokens.iter().zip(&mut vocabulary.token_types).map(no_byte).collect();
    let tokenizer = Tokenizer::from_gguf(vocabulary).expect("good");
    assert_eq!(tokenizer.encode("aéé中a", ParseSpecial::No).expect("unk"), [5, 0, 4]);
}

#[test]
fn types_may_be_missing() {
    let vocabulary = GgufVocabulary { token_types: Vec::new(), ..sentence_piece() };
    let tokenizer = Tokenizer::from_gguf(vocabulary).expect("good");
    assert!(tokenizer.is_special(0) && tokenizer.is_special(1) && tokenizer.is_special(2));
    assert_eq!(tokenizer.encode("a\n", ParseSpecial::No).expect("covered"), [5, 17]);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let with = |change: fn(&mut GgufVocabulary)| {
        let mut vocabulary = byte_level("gpt-2");
        change(&mut vocabulary);
        Tokenizer::from_gguf(vocabulary).expect_err("refused").to_string()
    };
    for (error, expected) in [
        (with(|v| v.pre = "qwen9".into()), "`qwen9` (`tokenizer.ggml.pre`) is unknown; known are: default, gpt-2"),
        (with(|v| v.pre = "whitespace".into()), "`whitespace` (`tokenizer.ggml.pre`) stands for different splits"),
        (with(|v| v.model = "t5".into()), "`t5` (`tokenizer.ggml.model`)"),
        (with(|v| v.tokens = Texts::default()), "`tokenizer.ggml.tokens` has 0 tokens"),
        (with(|v| v.token_types.truncate(3)), "`tokenizer.ggml.token_type` has 3 values for 261 tokens"),
        (with(|v| v.merges.push("ab")), "has `ab`, which is not two tokens"),
        (with(|v| v.merges.push("a b c")), "has `a b c`, which is not two tokens"),
        (with(|v| v.merges.push("h <|im_end|>")), "out of vocabulary"),
        (with(|v| v.eos_id = Some(261)), "`tokenizer.ggml.eos_token_id` is 261, but the vocabulary has 261 tokens"),
        (with(|v| v.model = "llama".into()), "`tokenizer.ggml.scores` has 0 values for 261 tokens"),
    ] {
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// Whole encoding, on real vocabularies: no error, the text comes back, and time stays in proportion.
#[test]
fn long_runs_encode_in_linear_time() {
    for name in ["gpt-2", "llama-spm"] {
        let Some(file) = test_data(&format!("vocab/ggml-vocab-{name}.gguf")) else {
            return;
        };
        let tokenizer = Tokenizer::from_gguf(read_gguf_vocabulary(&file)).expect("real");
        for family in ["a", " ", "a ", "1", "😀", "\n", " \n", "'s", "中", "A!", "\t \u{a0}", "é́"] {
            let time = |bytes: usize| {
                let text = family.repeat(bytes / family.len());
                cpu_time::shortest(1, || {
                    let ids = tokenizer.encode(&text, ParseSpecial::No).expect("covered");
                    assert!(tokenizer.decode(&ids, false) == text, "{name} on {family:?}");
                })
            };
            // 2.6 for each doubling, the bound for all parsers here, is 17.6 for eight times the text.
            let (short, long) = (time(64 << 10), time(512 << 10));
            let bound = short.max(Duration::from_millis(20)).mul_f64(17.6);
            assert!(long <= bound, "{name} on {family:?}: {short:?}, then {long:?}");
        }
    }
}
