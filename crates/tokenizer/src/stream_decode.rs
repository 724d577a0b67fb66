//! Ids to text as they come: never half a character, and the same text however the ids are split.

use std::borrow::Borrow;

use crate::tokenizer::Tokenizer;

/// What of Hugging Face's decoder concerns the text as a whole; the rest is in the tokens' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DecodeRule {
    pub(crate) leading: Leading,
    pub(crate) invalid: Invalid,
}

/// What is dropped at the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leading {
    /// At most `count` times `byte` (Llama's one space, which encoding put there).
    Strip { byte: u8, count: usize },
    /// This character, wherever it stands in the first token (the `Metaspace` decoder).
    InFirstToken(char),
}

/// How many U+FFFD stand for bytes that are no UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    /// One for each maximal part of a character (byte-level decoders).
    OnePerPart,
    /// One for each byte (byte fallback).
    OnePerByte,
}

/// Turns ids into text one by one.
///
/// Text is handed out as soon as it is certain: of a character whose bytes are spread over tokens, up
/// to 3 bytes are held back, and never a replacement character that a later token could make whole.
/// What [`StreamDecoder::push`] and [`StreamDecoder::finish`] return, joined, is
/// [`Tokenizer::decode`] of the ids, which costs time linear in their bytes.
///
/// For valid UTF-8 that is Hugging Face's `decode`, without `clean_up_tokenization_spaces`, which
/// rewrites text (` ,` to `,`) and is no part of the model's output. For invalid bytes it is the same with
/// byte-level decoders; with byte fallback, Hugging Face gives up a whole run of byte tokens for one
/// bad byte, where this keeps the characters that are whole.
#[derive(Clone, Debug)]
pub struct StreamDecoder<T> {
    tokenizer: T,
    skip_special: bool,
    /// No token has come yet; skipped ones do not count.
    first: bool,
    /// How much more may be dropped at the start.
    strip: usize,
    /// The bytes, at most 3, of a character that is not whole yet.
    pending: Vec<u8>,
}

impl<T: Borrow<Tokenizer>> StreamDecoder<T> {
    /// A decoder at the start of a text; `tokenizer` is a reference or an `Arc`.
    pub fn new(tokenizer: T, skip_special: bool) -> Self {
        let strip = match tokenizer.borrow().decode_rule.leading {
            Leading::Strip { count, .. } => count,
            Leading::InFirstToken(_) => 0,
        };
        Self { tokenizer, skip_special, first: true, strip, pending: Vec::new() }
    }

    /// Adds a token and returns the text that is complete by it, often empty.
    #[must_use = "the text is handed out once"]
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_onto(id, &mut text);
        text
    }

    /// [`StreamDecoder::push`], onto a text that is there already.
    pub fn push_onto(&mut self, id: u32, text: &mut String) {
        let Self { tokenizer, skip_special, first, strip, pending } = self;
        let tokenizer: &Tokenizer = (*tokenizer).borrow();
        if *skip_special && tokenizer.is_special(id) {
            return;
        }
        let held = pending.len();
        if !tokenizer.vocabulary.push_bytes(id, pending) {
            return;
        }
        let is_first = std::mem::replace(first, false);
        let rule = &tokenizer.decode_rule;
        match rule.leading {
            Leading::Strip { byte, .. } => {
                while *strip > 0 && pending.len() > held {
                    if pending[held] == byte {
                        pending.remove(held);
                        *strip -= 1;
                    } else {
                        *strip = 0;
                    }
                }
            }
            Leading::InFirstToken(dropped) if is_first => {
                let token = tokenizer.id_to_token(id).unwrap_or_default();
                pending.truncate(held);
                pending.extend_from_slice(token.replace(dropped, "").as_bytes());
            }
            Leading::InFirstToken(_) => {}
        }
        let whole = take_whole(pending, rule.invalid, text);
        pending.drain(..whole);
    }

    /// Ends the text: what was held back can no longer become a character.
    #[must_use = "the text is handed out once"]
    pub fn finish(self) -> String {
        let per_byte = match self.tokenizer.borrow().decode_rule.invalid {
            Invalid::OnePerPart => self.pending.len().min(1),
            Invalid::OnePerByte => self.pending.len(),
        };
        "\u{FFFD}".repeat(per_byte)
    }
}

/// Appends all whole characters of `bytes` to `text`, and replaces what can never be whole; returns how many bytes that
/// took. The others are the start of a character.
fn take_whole(bytes: &[u8], invalid: Invalid, text: &mut String) -> usize {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let error = match std::str::from_utf8(rest) {
            Ok(whole) => {
                text.push_str(whole);
                return bytes.len();
            }
            Err(error) => error,
        };
        let (whole, _) = rest.split_at(error.valid_up_to());
        text.push_str(std::str::from_utf8(whole).expect("valid up to here"));
        at += whole.len();
        let Some(bad) = error.error_len() else {
            return at;
        };
        let replacements = match invalid {
            Invalid::OnePerPart => 1,
            Invalid::OnePerByte => bad,
        };
        text.extend(std::iter::repeat_n('\u{FFFD}', replacements));
        at += bad;
    }
}
