//! What the fuzz targets hold the private readers of this crate to. `fuzz/README.md` says what each input is.

#[path = "../../../fuzz/oracles/grammar.rs"]
mod grammar;
#[path = "../../../fuzz/oracles/stream.rs"]
mod stream;

/// A model's text through the readers of replies and of stop strings.
///
/// # Panics
/// If what they make of it depends on how it was cut, or if something is lost.
pub fn stream(data: &[u8]) {
    stream::stream(data);
}

/// A schema, a regular expression, choices or a grammar through the compiler, and a text that keeps to it.
///
/// # Panics
/// If it takes more than its time, or if no text can go on.
pub fn grammar(data: &[u8]) {
    grammar::grammar(data);
}
