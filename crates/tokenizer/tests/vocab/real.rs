//! Real vocabularies from GGUF files, against the ids that their makers' tokenizers give.

use crate::common::{read_gguf_vocabulary, test_data};
use tokenizer::{ParseSpecial, Tokenizer};

/// Loads `ggml-vocab-<name>.gguf` and compares every string of its `.inp` with its `.out`.
fn matches_expected_ids(name: &str) {
    let Some(file) = test_data(&format!("vocab/ggml-vocab-{name}.gguf")) else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(read_gguf_vocabulary(&file)).expect("a real vocabulary");
    let beside =
        |extension: &str| std::fs::read_to_string(format!("{}.{extension}", file.display())).expect("test data");
    let (inputs, outputs) = (beside("inp"), beside("out"));
    // A separator follows each string, the last one too.
    let mut inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
    assert_eq!(inputs.pop(), Some(""));
    let outputs: Vec<&str> = outputs.lines().collect();
    assert_eq!(inputs.len(), outputs.len(), "{name}");
    assert!(inputs.len() > 40, "{name} has few strings: is the separator right?");
    let mut wrong = Vec::new();
    for (text, expected) in inputs.iter().zip(outputs) {
        let expected: Vec<u32> = expected.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        let ids = tokenizer.encode(text, ParseSpecial::No).expect("covered");
        if ids != expected {
            wrong.push(format!("{text:?}\n  expected {expected:?}\n  found    {ids:?}"));
        }
        // All of these vocabularies cover all bytes, so the text comes back.
        let decoded = tokenizer.decode(&ids, false);
        if decoded != *text {
            wrong.push(format!("{text:?}\n  decoded to {decoded:?}"));
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

#[test]
fn llama_spm() {
    matches_expected_ids("llama-spm");
}

#[test]
fn phi_3() {
    matches_expected_ids("phi-3");
}

#[test]
fn gpt_2() {
    matches_expected_ids("gpt-2");
}

#[test]
fn starcoder() {
    matches_expected_ids("starcoder");
}
