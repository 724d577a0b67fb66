//! How much a model does at a time: what is asked of its cache and steps, and the part of a device's memory that it
//! gets.

use std::time::Duration;

use engine::EngineConfig;
use plan::{KvFormat, KvLayout, StepShape};

use super::device::{self, CPU, REFERENCE};
use super::fits::smaller_context;
use super::neighbours::{ALONE, Neighbours};
use super::watch::{Unwatched, Watch};
use crate::output::note;

/// Tokens that a step computes at most.
pub(super) const BATCH_TOKENS: usize = 512;
/// The same on an NVIDIA GPU, which with so many rows multiplies at its full speed
/// (`docs/performance/prefill-on-gpus.md`). Not on others: a step of a laptop's would take seconds, and a client that
/// goes away is seen between steps.
const BATCH_TOKENS_ON_CUDA: usize = 2048;

/// Tokens of prompts in a step of a CPU in which texts go on too: they then take about as long as the decodes beside
/// them.
const MIXED_TOKENS_ON_CPU: usize = 64;
/// How long such a step of a GPU takes: the largest one of an H200 with 8B weights, which reads prompts fastest, and
/// yet eighteen tokens a second of each text.
const STEP_TARGET_ON_GPU: Duration = Duration::from_millis(55);

/// Texts that run at a time where nothing is said, on devices on which more would not pay: on a CPU each more takes its
/// time for itself.
pub(super) const SEQUENCES: usize = 16;
/// The same on an NVIDIA GPU, if the cache has room for them, and what is tried if it has not. From 256 rows on,
/// products are bound by arithmetic: more texts would only wait longer for their tokens
/// (`docs/adr/0017-steps-by-their-time.md`).
pub(super) const SEQUENCES_ON_CUDA: [usize; 4] = [256, 128, 64, 32];
/// Tokens of a text for which a cache has room if as many run at a time.
pub(super) const TEXT_TOKENS: usize = 512;
/// Texts that may wait if nothing is said.
const WAITING: usize = 256;

/// What is asked of the KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheSettings {
    /// Tokens that prompt and text may have together; what the model was made for, if memory allows, if nothing is
    /// said.
    pub(crate) ctx_size: Option<usize>,
    /// Element type; exact where the weights are, and half precision otherwise, if nothing is said.
    pub(crate) format: Option<KvFormat>,
}

impl CacheSettings {
    /// The same, with a context of at most `trained` tokens, as llama-server takes it; says so where more was asked for.
    pub(crate) fn within(self, trained: usize) -> Self {
        let Some(asked) = self.ctx_size.filter(|&asked| asked > trained) else { return self };
        note(&format!(
            "the context has {trained} tokens, which the model was made for, and not the {asked} of --ctx-size ({})",
            stretched(asked, trained)
        ));
        Self { ctx_size: Some(trained), ..self }
    }
}

/// How a context of `asked` tokens is had of a model that was made for `trained`.
pub(super) fn stretched(asked: usize, trained: usize) -> String {
    let scale = asked.div_ceil(trained.max(1));
    format!("--rope-scaling yarn --rope-scale {scale} stretches its positions so far, at some cost in quality")
}

/// The part of a device's memory that a model gets, and what it may do in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceRegion {
    pub(crate) kv: KvLayout,
    /// Bytes of all that the model takes of the device: weights, cache and activations; of a CPU, which reads weights
    /// where the file is mapped, the cache alone.
    pub(crate) bytes: u64,
    /// Tokens that a sequence may have.
    pub(crate) context_len: usize,
    /// Tokens that a step may compute.
    pub(crate) batch_tokens: usize,
    /// Sequences that may run at a time, and why so many.
    pub(crate) max_sequences: usize,
    pub(crate) sequences_why: &'static str,
}

/// How much an engine does at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineSizes<'a> {
    /// Sequences that run at a time; what suits the device and its memory if nothing is said.
    pub(crate) max_sequences: Option<usize>,
    /// Tokens computed in one step; what suits the device and its memory if nothing is said.
    pub(crate) max_batch_tokens: Option<usize>,
    /// Of these, tokens of prompts in a step in which texts go on too; what suits the device if nothing is said.
    pub(crate) max_mixed_tokens: Option<usize>,
    /// How long such a step may take, zero for no such bound; what suits the device if nothing is said.
    pub(crate) step_target: Option<Duration>,
    /// Sequences that may wait; as many as may run if nothing is said, and at least 256.
    pub(crate) max_waiting: Option<usize>,
    /// Tokens of all sequences that the KV cache holds.
    pub(crate) kv_tokens: KvTokens,
    /// The other models of the process, which have memory of the device too.
    pub(crate) neighbours: &'a Neighbours,
    /// Whether somebody asks what tells the model from others. It takes a look at each weight.
    pub(crate) identifies: bool,
    /// Is told how far the load is.
    pub(crate) watch: &'a dyn Watch,
}

/// Tokens of all sequences that a KV cache holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KvTokens {
    /// Those of one context.
    OneContext,
    /// A context for each sequence, as far as a share of the memory holds them.
    AsMemoryAllows,
    /// So many, or one context if that is more.
    AtLeast(usize),
}

impl EngineSizes<'static> {
    /// For one text at a time.
    pub(crate) const SINGLE: Self = Self {
        max_sequences: Some(SEQUENCES),
        max_batch_tokens: None,
        max_mixed_tokens: None,
        step_target: None,
        max_waiting: None,
        kv_tokens: KvTokens::OneContext,
        neighbours: &ALONE,
        identifies: false,
        watch: &Unwatched,
    };
}

/// Rows of logits in a step: one for each sequence, and some for prompts that are scored.
fn max_batch_outputs(sequences: usize) -> usize {
    sequences.saturating_add(48)
}

/// The largest step, of up to `tokens` tokens of so many sequences.
pub(super) fn largest_step(tokens: usize, sequences: usize) -> StepShape {
    StepShape { tokens, sequences, outputs: max_batch_outputs(sequences) }
}

impl EngineSizes<'_> {
    /// The configuration of an engine on a device of this name, in its part of the memory.
    pub(crate) fn config(&self, device: &str, region: DeviceRegion, vocab_size: usize) -> EngineConfig {
        let is_processor = matches!(device, CPU | REFERENCE);
        let DeviceRegion { kv, context_len, batch_tokens, max_sequences, bytes: _, sequences_why: _ } = region;
        // A user who gives a number of tokens gets that number, so no default target may lower it.
        let by_default = (!is_processor && self.max_mixed_tokens.is_none()).then_some(STEP_TARGET_ON_GPU);
        let step_target = self.step_target.or(by_default).filter(|target| !target.is_zero());
        let mixed = if is_processor && step_target.is_none() { MIXED_TOKENS_ON_CPU } else { batch_tokens };
        EngineConfig {
            max_sequences,
            max_batch_tokens: batch_tokens,
            max_mixed_tokens: self.max_mixed_tokens.unwrap_or(mixed),
            step_target,
            max_batch_outputs: max_batch_outputs(max_sequences),
            max_waiting: self.max_waiting.unwrap_or(WAITING.max(max_sequences)),
            ..EngineConfig::new(kv, context_len, vocab_size, Vec::new())
        }
    }

    /// The flags that ask for too much, with what would fit; sequences may have `context_len` tokens.
    pub(super) fn remedy(&self, context_len: usize, fits: usize) -> String {
        let kv_tokens = match self.kv_tokens {
            KvTokens::AtLeast(tokens) if tokens > fits && fits > 0 => Some(format!("--kv-tokens {fits}")),
            _ => None,
        };
        match kv_tokens {
            None if fits == 0 && self.max_batch_tokens.is_some() => {
                format!("{}, or a smaller --batch-tokens", smaller_context(0))
            }
            None => smaller_context(fits),
            Some(flag) if context_len > fits => format!("--ctx-size {fits} with {flag} would fit"),
            Some(flag) => format!("{flag} would fit"),
        }
    }
}

/// Tokens that a step computes at most on a device of this name, if nothing is said.
pub(crate) fn batch_tokens(device: &str) -> usize {
    if device::is_cuda(device) { BATCH_TOKENS_ON_CUDA } else { BATCH_TOKENS }
}
