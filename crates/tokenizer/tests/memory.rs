//! What encoding takes besides the text: memory in proportion to it, on the worst texts we know of, and no more work than
//! its result is worth.

#![expect(clippy::print_stdout, reason = "tests say what they skip and what they measured")]

#[path = "vocab/common.rs"]
#[expect(dead_code, reason = "each test binary uses a part of it")]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use common::{byte_level_json, load, read_gguf_vocabulary, test_data};
use serde_json::json;
use tokenizer::{Around, Bounds, LoadOptions, ParseSpecial, Segment, Tokenizer, TokenizerError};

/// Counts what the current thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending has no counter any more, and no test either.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

// SAFETY: every method passes its arguments on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // A large block grows by its page table where the system's allocator has `mremap`: its old and its new memory are
        // one. Where it has not, they exist together for a moment, and the ids may take ten bytes a byte then instead of six.
        count(new_size as isize - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` held at a time, with what it made.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = HELD.get();
    PEAK.set(before);
    let made = work();
    ((PEAK.get() - before) as usize, made)
}

/// Each kind of tokenizer at hand: byte-level BPE and SentencePiece from GGUF files, BPE with a fallback to bytes and BPE
/// after a normal form from `tokenizer.json`.
fn tokenizers() -> Vec<(String, Tokenizer)> {
    let mut all = Vec::new();
    for name in ["gpt-2", "starcoder", "llama-spm", "phi-3"] {
        if let Some(file) = test_data(&format!("vocab/ggml-vocab-{name}.gguf")) {
            let tokenizer = Tokenizer::from_gguf(read_gguf_vocabulary(&file)).expect("a real vocabulary");
            all.push((name.to_owned(), tokenizer));
        }
    }
    if let Some(file) = test_data("models/stories260K-hf/tokenizer.json") {
        let json = std::fs::read(file).expect("test data");
        let tokenizer = Tokenizer::from_json(&json, None, &LoadOptions::default()).expect("a real tokenizer");
        all.push(("stories260K".to_owned(), tokenizer));
    }
    let composing = byte_level_json(&["hello", " world"], json!({"normalizer": {"type": "NFC"}}));
    all.push(("NFC".to_owned(), load(&composing)));
    // As a file of a version between has it: marks of the first text alone, and no normalizer.
    let marks =
        json!({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}});
    let mut marks = byte_level_json(&["hello", "world"], marks);
    marks["model"]["unk_token"] = "!".into();
    all.push(("marks".to_owned(), load(&marks)));
    all
}

/// The longest words that there are, and text in which nothing merges.
fn texts(bytes: usize) -> Vec<(&'static str, String)> {
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    let letters: String = (0..bytes).map(|_| char::from(b'a' + (random() % 26) as u8)).collect();
    let ascii: String = (0..bytes).map(|_| char::from((random() % 128) as u8)).collect();
    let mut latin = String::new();
    while latin.len() < bytes {
        latin.push(char::from((random() % 256) as u8));
    }
    let mut any = String::new();
    while any.len() < bytes {
        // StarCoder's vocabulary lacks bytes that only characters beyond these have.
        any.extend(char::from_u32(random() % 0x1_0000));
    }
    let prose = "It was the best of times, it was the worst of times; 1775, and so on.\n";
    let repeat = |part: &str| part.repeat(bytes / part.len());
    vec![
        ("one word", letters),
        ("spaces", repeat(" ")),
        ("newlines", repeat("\n")),
        ("one character", repeat("a")),
        ("digits", repeat("7")),
        ("single letters", repeat("a ")),
        ("random bytes", ascii),
        ("random Latin-1", latin),
        ("random characters", any),
        ("Han", repeat("中")),
        ("marks", repeat("▁")),
        ("prose", repeat(prose)),
    ]
}

#[test]
fn encoding_takes_at_most_16_bytes_for_each_byte_of_text() {
    let len = 128 << 10;
    for (name, tokenizer) in tokenizers() {
        assert_eq!(tokenizer.memory_per_byte(), 16, "{name}");
        for (kind, text) in texts(len) {
            // What is found out once about a tokenizer is not the text's, nor are the caches that the automata of patterns
            // fill once and keep: a few MiB, whatever the length of the text.
            tokenizer.encode(&text, ParseSpecial::Yes).expect("covered");
            let (bytes, ids) = peak(|| tokenizer.encode(&text, ParseSpecial::Yes).expect("covered"));
            let fixed = 128 << 10;
            println!("{name}, {kind}: {} ids, {:.1} bytes a byte", ids.len(), bytes as f64 / len as f64);
            assert!(bytes <= 16 * len + fixed, "{name}, {kind}: {bytes} bytes for {len}");
            let segments = [
                Segment { text: &text, special: ParseSpecial::Yes },
                Segment { text: "<|im_end|>", special: ParseSpecial::No },
            ];
            drop(ids);
            let (bytes, _) = peak(|| tokenizer.encode_segments(&segments).expect("covered"));
            assert!(bytes <= 16 * len + fixed, "{name}, {kind} in segments: {bytes} bytes for {len}");
        }
    }
}

/// Whatever a text is, no fewer tokens come of it than is said; and for many of them something is said.
#[test]
fn as_many_tokens_as_are_certain_come_of_a_text() {
    for (name, tokenizer) in tokenizers() {
        for (kind, text) in texts(100_000) {
            let ids = tokenizer.encode(&text, ParseSpecial::Yes).expect("covered");
            let certain = tokenizer.tokens_at_least(&text);
            assert!(certain <= ids.len(), "{name}, {kind}: {certain} are certain, {} are made", ids.len());
            if kind == "one word" && name != "marks" {
                assert!(certain > 100_000 / 4096, "{name}: {certain}");
            }
        }
        // The longest tokens, one after the other, are what a bound may be wrong about.
        let mut longest: Vec<(usize, u32)> = (0..tokenizer.vocab_size() as u32)
            .filter(|&id| !tokenizer.is_special(id))
            .map(|id| (tokenizer.token_bytes(id).map_or(0, |bytes| bytes.len()), id))
            .collect();
        longest.sort_unstable();
        for &(_, id) in longest.iter().rev().take(50) {
            let text = tokenizer.decode(&[id], false).repeat(200);
            let ids = tokenizer.encode(&text, ParseSpecial::Yes).expect("covered");
            assert!(tokenizer.tokens_at_least(&text) <= ids.len(), "{name}: token {id}");
        }
    }
}

#[test]
fn a_bound_refuses_what_has_more_tokens_and_nothing_else() {
    for (name, tokenizer) in tokenizers() {
        for (kind, text) in texts(3_000) {
            for around in [Around::Nothing, Around::Prefix, Around::Both] {
                let within = |tokens_max| {
                    tokenizer.encode_within(&text, ParseSpecial::Yes, around, &Bounds { tokens_max, ..Bounds::NONE })
                };
                let ids = within(usize::MAX).expect("covered");
                assert_eq!(within(ids.len()).expect("as many as are taken"), ids, "{name}, {kind}");
                for tokens_max in [0, 1, ids.len() / 2, ids.len() - 1] {
                    match within(tokens_max) {
                        Err(TokenizerError::TooManyTokens { at_least, limit }) => {
                            assert_eq!(limit, tokens_max);
                            assert!(at_least > tokens_max && at_least <= ids.len(), "{name}, {kind}: {at_least}");
                        }
                        other => panic!("{name}, {kind}, {tokens_max}: {other:?}"),
                    }
                }
            }
        }
    }
}

/// The text that is refused takes no memory to speak of, hence no time: nothing of it was encoded.
#[test]
fn a_text_that_cannot_fit_is_refused_before_it_is_encoded() {
    for (name, tokenizer) in tokenizers().into_iter().filter(|(name, _)| name != "marks") {
        tokenizer.encode("a", ParseSpecial::Yes).expect("covered");
        for (kind, text) in texts(1 << 20).into_iter().filter(|(kind, _)| *kind != "spaces" && *kind != "newlines") {
            let bounds = Bounds { tokens_max: 64, ..Bounds::NONE };
            let encode = || tokenizer.encode_within(&text, ParseSpecial::Yes, Around::Prefix, &bounds);
            let (bytes, refused) = peak(encode);
            assert!(matches!(refused, Err(TokenizerError::TooManyTokens { .. })), "{name}, {kind}: {refused:?}");
            assert!(bytes < 64 << 10, "{name}, {kind}: {bytes} bytes");
        }
    }
}

/// Wherever in the text the caller leaves, the encoding ends within a second of it; alone it ends within milliseconds.
#[test]
fn an_encoding_ends_when_nobody_waits_for_it() {
    for (name, tokenizer) in tokenizers() {
        for (kind, text) in texts(4 << 20) {
            if !matches!(kind, "one word" | "spaces" | "prose") {
                continue;
            }
            for wait in [0, 40] {
                let end = Instant::now() + Duration::from_millis(wait);
                let bounds = Bounds { is_abandoned: &|| Instant::now() >= end, ..Bounds::NONE };
                let ended = tokenizer.encode_within(&text, ParseSpecial::Yes, Around::Nothing, &bounds);
                let late = Instant::now().saturating_duration_since(end);
                match ended {
                    Err(TokenizerError::Abandoned) => {
                        assert!(late < Duration::from_secs(1), "{name}, {kind}: {late:?}")
                    }
                    // It was faster than the caller.
                    Ok(_) if wait > 0 => {}
                    other => panic!("{name}, {kind}: {:?}", other.map(|ids| ids.len())),
                }
            }
        }
    }
}
