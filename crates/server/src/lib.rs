//! The HTTP server: OpenAI's interface, Anthropic's messages and Ollama's interface, over the engine, for many clients at a time.
//!
//! Of each model, one thread owns the engine and steps it ([`App::ready`] starts it); everything else (reading requests,
//! tokenising, templates, detokenising, writing streams) runs beside it and talks to it by messages. A client that goes away
//! takes its request with it: the handle of a request cancels it when it is dropped, before the next step.
//!
//! Never silent: a route lists its fields (`fields.rs`), each is applied or refused with its name, and an answer says under
//! `x_hotmetal` what was really used. One layer outside the router (`security.rs`) checks host, origin and key.
//!
//! Knows no device and no file format, reads no argument and no environment: its caller loads a [`ServedModel`] and
//! hands it over. [`App::router`] is the whole interface without a socket; [`serve`] puts it on one.

#![forbid(unsafe_code)]

mod abandoned;
mod anthropic;
mod app;
mod blocking;
mod body;
mod chat;
mod choice;
mod clock;
mod completions;
mod context_shift;
mod dialect;
mod embeddings;
mod engine_thread;
mod error;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gbnf;
mod generation;
mod generic_tools;
mod grammar;
mod held_response;
mod histogram;
mod ids;
mod infill;
mod info;
mod lark;
mod listen;
mod llama_cpp;
mod loading;
mod logprobs;
mod mask_watch;
mod masks;
mod memory;
mod messages;
mod metrics;
mod ollama;
mod on_demand;
mod openapi;
mod options;
mod page;
mod places;
mod prometheus;
mod prompts;
mod quoting;
mod regex_weight;
mod reply;
mod responses;
mod router;
mod sampling;
mod schema;
mod schema_check;
mod schema_keywords;
mod score;
mod security;
mod slot_texts;
mod sse;
mod step_clock;
mod stream_io;
mod template_profile;
#[cfg(test)]
mod tests;
mod token_rules;
mod tokens;
mod tools;
mod turn;

pub use app::{App, ModelFiles, ReadyError, ServedModel};
pub use engine_thread::IdleWork;
pub use listen::{Ended, Shutdown, serve};
pub use loading::{LoadStage, Loading};
pub use on_demand::{LoadFailure, ModelLoader, OnDemand};
pub use options::{ApiKey, Keep, Options, OptionsError, Origin};
pub use sampling::{describe as describe_sampling, random_seed};
