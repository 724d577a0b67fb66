//! The sizes and limits that an engine is made with.

use std::time::Duration;

use plan::KvLayout;

use crate::EngineError;

/// The sizes and limits of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The paged cache that the executable was loaded with.
    pub kv: KvLayout,
    /// Tokens that a sequence may have, prompt and generated. At most the model's, and at most the cache's.
    pub context_len: usize,
    /// Ids that the model has logits for.
    pub vocab_size: usize,
    /// Tokens that end a text unless the request says `ignore_eos`.
    pub eos_token_ids: Vec<u32>,
    /// Tokens computed in one step, over all sequences: at least `max_sequences`, so that decodes always fit.
    pub max_batch_tokens: usize,
    /// Of these, tokens of prompts in a step in which texts go on too, at least 1: the fewer, the shorter a text waits for its
    /// next token, and the longer a prompt for its first.
    pub max_mixed_tokens: usize,
    /// How long a step may take in which prompts are read and texts go on, because that is the time between two tokens
    /// of these texts. The engine chooses the tokens of prompts by the times that [`crate::StepWatch::now`] shows, from
    /// `min_mixed_tokens` to `max_mixed_tokens`. `None`: always `max_mixed_tokens`.
    pub step_target: Option<Duration>,
    /// Tokens of prompts that such a step has at least, however long it then takes, so that prompts are read on slow
    /// devices too.
    pub min_mixed_tokens: usize,
    /// Rows of logits made in one step: more than `max_sequences`. The rest is for log-probabilities of prompts.
    pub max_batch_outputs: usize,
    /// Sequences that run at a time (a request with n completions counts n).
    pub max_sequences: usize,
    /// Sequences of one caller that may wait, preempted ones included; more are refused.
    pub max_waiting: usize,
    /// Tokens of one caller's sequences that may wait, preempted ones included; more are refused.
    pub max_waiting_tokens: usize,
    /// Whether finished prompts and texts are kept for reuse while blocks are free.
    pub prefix_cache: bool,
    /// Steps of waiting that make up for one level of priority.
    pub aging_steps: u32,
    /// Whether a step is submitted before the tokens of the one before are read, where the device chooses them.
    pub run_ahead: bool,
    /// Whether the device draws tokens of sampled requests too, where it can, so that these run ahead.
    pub draws_on_device: bool,
}

impl EngineConfig {
    /// A configuration with the default limits: 16 sequences, 512 tokens and 64 outputs a step, whether or not texts go on in
    /// it, 256 waiting.
    pub fn new(kv: KvLayout, context_len: usize, vocab_size: usize, eos_token_ids: Vec<u32>) -> Self {
        Self {
            kv,
            context_len,
            vocab_size,
            eos_token_ids,
            max_batch_tokens: 512,
            max_mixed_tokens: 512,
            step_target: None,
            min_mixed_tokens: 32,
            max_batch_outputs: 64,
            max_sequences: 16,
            max_waiting: 256,
            max_waiting_tokens: kv.num_blocks.saturating_mul(kv.block_len).saturating_mul(4),
            prefix_cache: true,
            aging_steps: 64,
            run_ahead: true,
            draws_on_device: true,
        }
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let at_least = |name, found: usize, least: usize, why: &str| {
            if found >= least {
                return Ok(());
            }
            Err(EngineError::Config { name, found, expected: format!("at least {least}{why}") })
        };
        at_least("kv.block_len", self.kv.block_len, 1, "")?;
        at_least("kv.num_blocks", self.kv.num_blocks, 1, "")?;
        at_least("vocab_size", self.vocab_size, 1, "")?;
        at_least("context_len", self.context_len, 2, ": one token of prompt and one to generate")?;
        at_least("max_sequences", self.max_sequences, 1, "")?;
        at_least("max_batch_tokens", self.max_batch_tokens, self.max_sequences, ", the max_sequences")?;
        at_least("max_mixed_tokens", self.max_mixed_tokens, 1, "")?;
        at_least("min_mixed_tokens", self.min_mixed_tokens, 1, "")?;
        at_least("max_batch_outputs", self.max_batch_outputs, self.max_sequences + 1, ", one over the max_sequences")?;
        // What can never wait would be told for ever to try again.
        at_least("max_waiting", self.max_waiting, self.max_sequences, ", the max_sequences")?;
        at_least("max_waiting_tokens", self.max_waiting_tokens, self.context_len, ", the context_len")?;
        let most = self.kv.num_blocks.saturating_mul(self.kv.block_len);
        if self.context_len > most {
            let expected = format!("at most {most}, the tokens that the KV cache holds");
            return Err(EngineError::Config { name: "context_len", found: self.context_len, expected });
        }
        if self.kv.num_blocks >= u32::MAX as usize {
            let expected = format!("below {}", u32::MAX);
            return Err(EngineError::Config { name: "kv.num_blocks", found: self.kv.num_blocks, expected });
        }
        Ok(())
    }
}
