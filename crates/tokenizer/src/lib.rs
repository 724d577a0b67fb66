//! Text to token ids and back.
//!
//! Loads `tokenizer.json` ([`Tokenizer::from_json`]), Mistral's `tekken.json` ([`Tokenizer::from_tekken`]),
//! `vocab.json` with `merges.txt` ([`Tokenizer::from_vocab_merges`]), SentencePiece's `tokenizer.model`
//! ([`Tokenizer::from_sentence_piece`]) and the vocabularies inside GGUF files ([`Tokenizer::from_gguf`]), encodes as the
//! `tokenizers` library does, and decodes token by token ([`StreamDecoder`]).
//!
//! Whatever the bytes of a tokenizer or of a text, the answer is a value or an error: no panic, no
//! time that grows faster than the text (times its logarithm), no silent other tokens.
//!
//! It deliberately does not know files, GGUF's container format, models or devices: its callers hand
//! it bytes and plain data. It numbers no token itself: ids are those in the files.

#![forbid(unsafe_code)]

mod bounds;
mod bpe;
pub mod chat_template;
#[cfg(test)]
#[path = "../tests/vocab/cpu_time.rs"]
mod cpu_time;
mod error;
mod fim;
mod gguf_vocab;
mod load;
mod merging;
mod pre_tokenizer;
mod prompt;
mod sentence_piece;
mod side_files;
mod slices;
mod splitter;
mod spm;
mod stream_decode;
mod tekken;
mod texts;
mod tokenizer;
mod vocab_merges;
mod vocabulary;

pub use bounds::Bounds;
pub use error::TokenizerError;
pub use fim::{FimIds, FimMarkers, FimTexts};
pub use gguf_vocab::GgufVocabulary;
pub use load::{JSON_BYTES_MAX, LoadOptions};
pub use pre_tokenizer::known_pre_tokenizers;
pub use prompt::Prompt;
pub use side_files::SideFiles;
pub use stream_decode::StreamDecoder;
pub use tekken::tekken_chat_template;
pub use texts::Texts;
pub use tokenizer::{Around, ParseSpecial, Segment, TEXT_BYTES_MAX, Tokenizer};
pub use vocab_merges::EquivalentJson;
