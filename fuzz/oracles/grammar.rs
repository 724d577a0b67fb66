//! The oracle of `grammar`. The server includes this file, because its compiler of grammars is private.

use std::sync::{Arc, LazyLock, Once};
use std::time::{Duration, Instant};

use engine::{Grammar, TokenSet};
use serde_json::{Value, json};
use tokenizer::{LoadOptions, Tokenizer};

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::grammar::{Asked, COMPILE_TIME_MAX, FIELDS, Grammars};
use crate::mask_watch;

const VOCAB_SIZE: usize = 4096;
/// Tokens of a text that is held to the grammar.
const TOKENS_MAX: usize = 24;
/// Time after which a text has been followed far enough: each token may take its own.
const FOLLOW_TIME: Duration = Duration::from_millis(300);
/// What a busy machine may add to a time.
const SLACK: Duration = Duration::from_secs(10);

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let config = include_bytes!("../../crates/cli/builtin/tokenizer_config.json");
    let json = include_bytes!("../../crates/cli/builtin/tokenizer.json");
    let mut tokenizer = Tokenizer::from_json(json, Some(config), &LoadOptions::default()).expect("the built-in one");
    tokenizer.add_eos_ids(&[2, 0]);
    tokenizer
});

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| {
    let grammars = Grammars::default();
    // What a process does once belongs to no input.
    let asked = asked("regex", &json!("a")).expect("a regular expression");
    compile(&grammars, asked).expect("a grammar");
    grammars
});

/// A JSON schema, a regular expression, a list of choices or a grammar in Lark's notation or GBNF as a client sends
/// them. It is refused with the name of its field or compiled, both in the time for that; and each step of a text that
/// keeps to it takes its time at most, and leaves a way to go on. A text that may end is JSON where a schema asks for
/// that.
///
/// The input is a letter (`s`, `r`, `c` with a choice a line, or `l` for both notations) and the text.
pub(super) fn grammar(data: &[u8]) {
    let Some((kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    expect_panics_of_the_library();
    let (name, value) = match kind {
        b's' => match serde_json::from_str(text) {
            Ok(schema) => ("json", schema),
            Err(_) => return,
        },
        b'r' => ("regex", json!(text)),
        b'c' => ("choice", text.split('\n').collect()),
        _ => ("grammar", json!(text)),
    };
    let grammars = &*GRAMMARS;
    let begun = Instant::now();
    let compiled = asked(name, &value).and_then(|asked| compile(grammars, asked));
    let took = begun.elapsed();
    assert!(took < COMPILE_TIME_MAX + SLACK, "{took:?} to compile or to refuse");
    match compiled {
        Ok(compiled) => follow(&*compiled, text, name == "json"),
        Err(error) => check_refusal(&error),
    }
}

/// What the compiler's library panics with ends one request; the fuzzer's hook would end the process.
fn expect_panics_of_the_library() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !matches!(std::thread::current().name(), Some("grammar" | "masks")) {
                hook(panic);
            }
        }));
    });
}

fn asked(name: &str, value: &Value) -> Result<Asked, ApiError> {
    let read = || {
        let mut fields = Fields::new(json!({"structured_outputs": {name: value}}), &[FIELDS])?;
        Asked::take(&mut fields)
    };
    let (asked, _) = fields::reading(false, read);
    Ok(asked?.expect("a field that is there asks for a grammar"))
}

fn compile(grammars: &Grammars, asked: Asked) -> Result<Arc<dyn Grammar>, ApiError> {
    grammars.compile(asked.name, asked.grammar(), &TOKENIZER, VOCAB_SIZE)
}

fn check_refusal(error: &ApiError) {
    // All else says that the server is at fault, or busy with compilations that do not end.
    assert_eq!(error.status.as_u16(), 400, "{}", error.to_json());
    let param = error.param().unwrap_or_default();
    assert!(param.starts_with("structured_outputs"), "`{param}` is not the field, {}", error.to_json());
}

/// Writes a text that keeps to the grammar; `text` decides which.
fn follow(grammar: &dyn Grammar, text: &str, is_json: bool) {
    let mut state = grammar.start();
    let mut allowed = TokenSet::default();
    let (mut ids, mut random) =
        (Vec::new(), text.bytes().fold(1u32, |hash, byte| hash.wrapping_mul(31) + u32::from(byte)));
    let begun_text = Instant::now();
    for _ in 0..TOKENS_MAX {
        if begun_text.elapsed() > FOLLOW_TIME {
            return;
        }
        allowed.clear(VOCAB_SIZE);
        let begun = Instant::now();
        let made = state.allow(&mut allowed, None);
        let took = begun.elapsed();
        assert!(took < mask_watch::TIME_MAX + SLACK, "{took:?} to find out what may come behind {ids:?}");
        // A grammar that is too ambiguous ends its own text, and says so.
        let Ok(is_known) = made else { return };
        assert!(is_known, "it was to wait until it is known");
        let may_come: Vec<u32> = (0..VOCAB_SIZE as u32).filter(|&id| allowed.contains(id)).collect();
        assert!(!may_come.is_empty(), "nothing may come behind {ids:?}");
        if is_json && TOKENIZER.eos_ids().iter().any(|&id| allowed.contains(id)) {
            let written = TOKENIZER.decode(&ids, true);
            // By its syntax: a number may be larger than any that a value holds.
            let parsed = serde_json::from_str::<serde::de::IgnoredAny>(&written);
            assert!(parsed.is_ok(), "a text that may end is no JSON: {written:?}");
        }
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let id = may_come[(random >> 8) as usize % may_come.len()];
        if TOKENIZER.eos_ids().contains(&id) {
            return;
        }
        state.accept(id);
        ids.push(id);
    }
}
