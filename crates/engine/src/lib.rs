//! The engine: requests in, tokens out. A scheduler with continuous batching and chunked prefill, a paged KV cache with
//! prefix reuse and copy-on-write, and a sampler.
//!
//! Deals in token ids. Opens no file, prints nothing, reads no clock, and knows no device beyond
//! [`backend::Executable`]: the scheduler, the block pool and the prefix index are plain data, so they are tested by
//! the thousand on [`null::NullExecutable`].
//!
//! One step, in [`Engine::step`]: the scheduler picks sequences and reserves their blocks ([`EngineConfig`] bounds
//! both), the batch is written down as a [`plan::StepInput`], the executable replays, the sampler picks a token for
//! every row of logits, and the scheduler appends, finishes and frees.
//!
//! A sequence's tokens depend on its own prompt, parameters and seed only: not on what else is in the batch, how its
//! prompt was chunked, whether its prefix was cached, or whether it was preempted (as far as the backend's logits do
//! not).

#![forbid(unsafe_code)]

mod batch;
mod config;
mod error;
mod kv_cache;
pub mod null;
mod pooling;
mod prefix;
mod request;
mod sampler;
mod scheduler;
mod sequence;
mod step;
mod stop;

pub use backend::{BlockLayout, WeightFault};
pub use config::EngineConfig;
pub use error::EngineError;
pub use pooling::Pooling;
pub use prefix::PrefixId;
pub use request::{CacheDomain, Failure, FinishReason, Output, Request, RequestId, Usage};
pub use sampler::{
    Dry, Dynatemp, Grammar, GrammarState, History, LogitsRow, Mirostat, SampledToken, Sampler, SamplerStep,
    SamplingParams, TokenLogprob, TokenLogprobs, TokenSet, Xtc,
};
pub use step::{Engine, EngineStats, StepWatch};
pub use stop::{StopStrings, StopText};
