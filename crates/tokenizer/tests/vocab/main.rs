//! Tokenizers through the public interface.

#![expect(clippy::print_stdout, reason = "tests say what they skip and what they measured")]

mod bpe;
mod common;
mod cpu_time;
mod fim;
mod gguf;
mod json;
mod prompt;
mod real;
mod sentence_piece;
mod slices;
mod tekken;
mod vocab_merges;
