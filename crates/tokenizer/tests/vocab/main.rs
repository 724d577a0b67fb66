//! Tokenizers through the public interface.

mod common;
mod cpu_time;
mod gguf;
mod json;
mod real;
