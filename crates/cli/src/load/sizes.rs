//! How much a model does at a time: what is asked of its cache and steps, and the part of a device's memory that it
//! gets.

use engine::EngineConfig;
use plan::{KvFormat, KvLayout, StepShape};

use super::device::{self, CPU, REFERENCE};
use super::fits::smaller_context;
use super::neighbours::{ALONE, Neighbours};
use super::watch::{Unwatched, Watch};

/// Tokens that a step computes at most.
pub(super) const BATCH_TOKENS: usize = 512;
/// The same on an NVIDIA GPU, which with so many rows multiplies at its full speed (`docs/performance/gpu.md`). Not on
/// others: a step of a laptop's would take seconds, and a client that goes away is seen between steps.
const BATCH_TOKENS_ON_CUDA: usize = 2048;

/// Tokens of a step of a GPU in which texts go on too, and wait for its end: those of prompts and of as many texts as
/// may run together. One row more than products have tiles of rows for takes as long as a whole tile.
const MIXED_STEP_TOKENS: usize = 1024;
/// Tokens of prompts in such a step of a CPU: they then take about as long as the decodes beside them.
const MIXED_TOKENS_ON_CPU: usize = 64;

/// What is asked of the KV cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheSettings {
    /// Tokens that prompt and text may have together; what the model was made for, if memory allows, if nothing is
    /// said.
    pub(crate) ctx_size: Option<usize>,
    /// Element type; exact where the weights are, and half precision otherwise, if nothing is said.
    pub(crate) format: Option<KvFormat>,
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
}

/// How much an engine does at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineSizes<'a> {
    /// Sequences that run at a time.
    pub(crate) max_sequences: usize,
    /// Tokens computed in one step; what suits the device and its memory if nothing is said.
    pub(crate) max_batch_tokens: Option<usize>,
    /// Of these, tokens of prompts in a step in which texts go on too; what suits the device if nothing is said.
    pub(crate) max_mixed_tokens: Option<usize>,
    /// Sequences that may wait.
    pub(crate) max_waiting: usize,
    /// Tokens of all sequences that the KV cache holds.
    pub(crate) kv_tokens: KvTokens,
    /// The other models of the process, which have memory of the device too.
    pub(crate) neighbours: &'a Neighbours,
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
        max_sequences: 16,
        max_batch_tokens: None,
        max_mixed_tokens: None,
        max_waiting: 256,
        kv_tokens: KvTokens::OneContext,
        neighbours: &ALONE,
        watch: &Unwatched,
    };
}

impl EngineSizes<'_> {
    /// Rows of logits in a step: one for each sequence, and some for prompts that are scored.
    fn max_batch_outputs(&self) -> usize {
        self.max_sequences.saturating_add(48)
    }

    /// The largest step, of up to `tokens` tokens.
    pub(super) fn largest_step(&self, tokens: usize) -> StepShape {
        StepShape { tokens, sequences: self.max_sequences, outputs: self.max_batch_outputs() }
    }

    /// The configuration of an engine on a device of this name, in its part of the memory.
    pub(crate) fn config(&self, device: &str, region: DeviceRegion, vocab_size: usize) -> EngineConfig {
        // A GPU computes some hundred tokens in little more time than one, a CPU does not.
        let mixed = match device {
            CPU | REFERENCE => MIXED_TOKENS_ON_CPU,
            _ => MIXED_STEP_TOKENS.saturating_sub(self.max_sequences).max(MIXED_TOKENS_ON_CPU),
        };
        let DeviceRegion { kv, context_len, batch_tokens, bytes: _ } = region;
        EngineConfig {
            max_sequences: self.max_sequences,
            max_batch_tokens: batch_tokens,
            max_mixed_tokens: self.max_mixed_tokens.unwrap_or(mixed),
            max_batch_outputs: self.max_batch_outputs(),
            max_waiting: self.max_waiting,
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
