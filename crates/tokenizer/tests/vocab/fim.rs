//! Fill in the middle: which tokens mark a gap in each family's vocabulary, and the ids of the prompt that asks for it.

use serde_json::json;
use tokenizer::{Bounds, FimIds, FimMarkers, FimTexts, ParseSpecial, Tokenizer};

use crate::common::{added, byte_level_json, load, read_gguf_vocabulary, sentence_piece_vocabulary, test_data};

/// The id of the first token behind the letters and bytes of [`from_gguf`].
const FIRST: u32 = 3 + 256 + 2;

/// A GGUF vocabulary with these tokens, of this type, behind its letters.
fn from_gguf(tokens: &[&str], kind: i32, fim: FimIds) -> Tokenizer {
    let first = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)];
    let marks = tokens.iter().map(|&token| (token, 0.0, kind));
    let last: Vec<_> = [("▁", -1.0, 1), ("a", -2.0, 1)].into_iter().chain(marks).collect();
    let mut vocabulary = sentence_piece_vocabulary(&first, &last);
    vocabulary.fim = fim;
    Tokenizer::from_gguf(vocabulary).expect("a good vocabulary")
}

fn by_text(tokens: &[&str]) -> Option<FimMarkers> {
    from_gguf(tokens, 4, FimIds::default()).fim().copied()
}

/// The ids of `text`'s marks and of the letters p, s and m: where the texts around the gap and its beginning stand.
fn prompt(markers: &FimMarkers) -> Vec<u32> {
    let texts = FimTexts { context: &[70], prefix: &[80, 80], suffix: &[90], begun: &[100] };
    markers.prompt(&[1], &texts)
}

#[test]
fn each_family_is_found_by_its_names_and_asked_in_its_order() {
    let (first, second, third) = (FIRST, FIRST + 1, FIRST + 2);
    for marks in [
        ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
        ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
        ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ] {
        let found = by_text(&marks).unwrap_or_else(|| panic!("{marks:?}"));
        assert_eq!(prompt(&found), [1, 70, first, 80, 80, second, 90, third, 100], "{marks:?}");
        assert_eq!(found.num_marks(), 3);
        // One of them alone, or two, ask for nothing.
        for missing in 0..3 {
            let mut two = marks.to_vec();
            two.remove(missing);
            assert_eq!(by_text(&two), None, "{two:?}");
        }
    }
    let seed = by_text(&["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"]).expect("marks");
    assert_eq!(prompt(&seed), [1, 70, second, 90, first, 80, 80, third, 100]);
    // Codestral's middle is not marked, though its vocabulary has a token of that name.
    let mistral = by_text(&["[PREFIX]", "[SUFFIX]", "[MIDDLE]"]).expect("marks");
    assert_eq!(prompt(&mistral), [1, 70, second, 90, first, 80, 80, 100]);
    assert_eq!((mistral.middle, mistral.num_marks()), (None, 2));
    // Parts of two families are none of either.
    assert_eq!(by_text(&["<|fim_prefix|>", "<fim_suffix>", "<|fim_middle|>"]), None);
}

#[test]
fn padding_and_the_marks_of_other_files_end_every_text() {
    let qwen = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];
    let tokenizer = from_gguf(&qwen, 4, FimIds::default());
    assert_eq!(tokenizer.eos_ids(), [2, FIRST + 3, FIRST + 4, FIRST + 5]);
    let markers = tokenizer.fim().expect("marks");
    assert_eq!((markers.pad, markers.repo, markers.file_sep), (Some(FIRST + 3), Some(FIRST + 4), Some(FIRST + 5)));
    assert_eq!(markers.ids().collect::<Vec<_>>(), (FIRST..FIRST + 6).collect::<Vec<_>>());
    let llama = from_gguf(&["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"], 4, FimIds::default());
    assert_eq!(llama.eos_ids(), [2, FIRST + 3]);
    // SmolLM2 has the marks of files, and none of a gap: there they end nothing.
    let smol = from_gguf(&["<repo_name>", "<file_sep>", "<filename>"], 3, FimIds::default());
    assert_eq!((smol.fim(), smol.eos_ids()), (None, &[2][..]));
}

#[test]
fn ids_in_the_metadata_count_before_names() {
    let all = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<before>", "<behind>", "<between>", "<pad!>"];
    let id = |at: u32| Some(FIRST + at);
    let named = FimIds { prefix: id(3), suffix: id(4), middle: id(5), pad: id(6), ..FimIds::default() };
    let tokenizer = from_gguf(&all, 1, named);
    let found = tokenizer.fim().expect("marks");
    assert_eq!(prompt(found), [1, 70, FIRST + 3, 80, 80, FIRST + 4, 90, FIRST + 5, 100]);
    assert_eq!(tokenizer.eos_ids(), [2, FIRST + 6]);
    assert!((3..7).all(|at| tokenizer.is_special(FIRST + at)) && !tokenizer.is_special(FIRST));
    // Where one is missing, or is none of the vocabulary, the names count.
    for named in [FimIds { middle: None, ..named }, FimIds { prefix: Some(FIRST + 7), ..named }] {
        let found = *from_gguf(&all, 1, named).fim().expect("marks");
        assert_eq!((found.prefix, found.suffix, found.middle), (FIRST, FIRST + 1, Some(FIRST + 2)));
    }
    // The order is that of the family that has these marks.
    let seed = ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"];
    let named = FimIds { prefix: id(0), suffix: id(1), middle: id(2), ..FimIds::default() };
    assert!(from_gguf(&seed, 1, named).fim().expect("marks").suffix_first);
}

/// Source code that mentions a mark is text, also where the files list the mark as an ordinary token (Qwen's do).
#[test]
fn no_text_becomes_a_mark() {
    let marks = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    let text = "a<|fim_middle|>a";
    for kind in [1, 3, 4] {
        let tokenizer = from_gguf(&marks, kind, FimIds::default());
        let plain = tokenizer.encode(text, ParseSpecial::No).expect("bytes cover it");
        assert!(plain.iter().all(|&id| id < FIRST), "{kind}: {plain:?}");
        assert_eq!(tokenizer.decode(&plain, true), text, "{kind}");
        assert!(tokenizer.encode(text, ParseSpecial::Yes).expect("covered").contains(&(FIRST + 2)), "{kind}");
    }
    for special in [true, false] {
        let mut json = byte_level_json(&[], json!({}));
        let listed = (256..).zip(marks).map(|(id, mark)| added(id, mark, json!({"special": special})));
        json["added_tokens"] = listed.collect();
        let tokenizer = load(&json);
        let found = tokenizer.fim().expect("marks");
        assert_eq!((found.prefix, found.suffix, found.middle), (256, 257, Some(258)));
        let plain = tokenizer.encode(text, ParseSpecial::No).expect("bytes cover it");
        assert!(plain.iter().all(|&id| id < 256), "{special}: {plain:?}");
        assert_eq!(tokenizer.decode(&[256, plain[0], 258], true), "a");
    }
}

/// SentencePiece's space before a text is before the first text only: what stands behind a gap goes on from one.
#[test]
fn what_goes_on_has_no_space_of_its_own() {
    let (space, letter) = (FIRST - 2, FIRST - 1);
    let pieces = from_gguf(&[], 1, FimIds::default());
    let whole = pieces.encode("a a", ParseSpecial::No).expect("covered");
    let inside = pieces.encode_inside("a a", ParseSpecial::No, &Bounds::NONE).expect("covered");
    assert_eq!(whole, [space, letter, space, letter]);
    assert_eq!(inside, whole[1..]);
    assert_eq!(pieces.encode_inside(" a", ParseSpecial::No, &Bounds::NONE).expect("covered"), [space, letter]);
    assert!(pieces.encode_inside("", ParseSpecial::No, &Bounds::NONE).expect("covered").is_empty());
    let marked = from_gguf(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], 3, FimIds::default());
    let parsed = marked.encode_inside("<|fim_suffix|>a", ParseSpecial::Yes, &Bounds::NONE).expect("covered");
    assert_eq!((parsed[0], parsed.last()), (FIRST + 1, Some(&letter)));
    // Byte-level vocabularies add none.
    let bytes = load(&byte_level_json(&["☺a"], json!({})));
    for text in ["a", " a", "a\n    b)", ""] {
        let whole = bytes.encode(text, ParseSpecial::No).expect("covered");
        let inside = bytes.encode_inside(text, ParseSpecial::No, &Bounds::NONE).expect("covered");
        assert_eq!(inside, whole, "{text}");
    }
    let Some(path) = test_data("vocab/ggml-vocab-llama-spm.gguf") else { return };
    let llama = Tokenizer::from_gguf(read_gguf_vocabulary(&path)).expect("published");
    let text = "def add(a, b):\n    return a + b";
    let inside = llama.encode_inside(text, ParseSpecial::No, &Bounds::NONE).expect("covered");
    assert_eq!(llama.id_to_token(inside[0]), Some("def"));
    let whole = llama.encode(text, ParseSpecial::No).expect("covered");
    assert_eq!((llama.id_to_token(whole[0]), &whole[1..]), (Some("▁def"), &inside[1..]));
}

#[test]
fn starcoders_published_vocabulary_marks_gaps_and_others_do_not() {
    for (file, found) in [("starcoder", Some((1, 3, Some(2)))), ("gpt-2", None), ("llama-spm", None), ("phi-3", None)] {
        let Some(path) = test_data(&format!("vocab/ggml-vocab-{file}.gguf")) else { continue };
        let tokenizer = Tokenizer::from_gguf(read_gguf_vocabulary(&path)).expect("published");
        assert_eq!(tokenizer.fim().map(|fim| (fim.prefix, fim.suffix, fim.middle)), found, "{file}");
        let ends = tokenizer.eos_ids();
        assert_eq!(ends.ends_with(&[4, 5, 6]), found.is_some(), "{file}: {ends:?}");
    }
}
