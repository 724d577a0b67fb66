//! What a caller asks for, and what it gets back.

use std::sync::Arc;

use crate::sampler::check_top_logprobs;
use crate::sampler::{Grammar, SampledToken, SamplingParams, TokenLogprobs};
use crate::{EngineConfig, EngineError, Pooling};

/// A request: continue `prompt` as `sampling` says, until one of the limits.
#[derive(Clone, Debug)]
pub struct Request {
    /// Token ids, at least one.
    pub prompt: Vec<u32>,
    /// How each next token is chosen.
    pub sampling: SamplingParams,
    /// Tokens to generate; none = until the context is full. At least one, or 0 where the prompt's log-probabilities are
    /// all that is wanted. A prompt and `max_tokens` that do not fit the context together are refused, never cut.
    pub max_tokens: Option<usize>,
    /// Return log-probabilities of the prompt's own tokens, and of so many alternatives to each, up to 20. The prompt is
    /// then computed in full, whatever the prefix cache holds.
    pub prompt_logprobs: Option<usize>,
    /// Say after each step how much of the prompt is computed, as long as it is not all: [`Output::prompt_read`].
    pub reports_prompt: bool,
    /// Return an embedding of the prompt instead of a text: its tokens' states after the final norm, pooled so. Goes with
    /// `max_tokens` of 0, one completion, and neither grammar nor log-probabilities. See [`Request::embedding`].
    pub pooling: Option<Pooling>,
    /// What the text must be: only tokens that it allows are chosen.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Tokens that end the text, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Go on after the model's end-of-text tokens (not after `stop_token_ids`).
    pub ignore_eos: bool,
    /// Texts to generate from the one prompt, each with random choices of its own.
    pub num_completions: usize,
    /// Higher goes first; waiting makes up for it, so nobody starves.
    pub priority: i8,
    /// Who asks, where several take turns: each caller's next request stands behind as many of every other, and each has
    /// a queue of its own. Without one, who came first goes first, in one queue.
    pub caller: Option<u64>,
    /// Whose cached prefixes may be used: only requests of one domain share blocks.
    pub cache_domain: CacheDomain,
}

impl Request {
    /// One completion of `prompt` with these sampling parameters, until the end token or a full context.
    pub fn new(prompt: Vec<u32>, sampling: SamplingParams) -> Self {
        Self {
            prompt,
            sampling,
            max_tokens: None,
            prompt_logprobs: None,
            reports_prompt: false,
            pooling: None,
            grammar: None,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            num_completions: 1,
            priority: 0,
            caller: None,
            cache_domain: CacheDomain::default(),
        }
    }

    /// The embedding of `prompt`.
    pub fn embedding(prompt: Vec<u32>, pooling: Pooling) -> Self {
        Self { max_tokens: Some(0), pooling: Some(pooling), ..Self::new(prompt, SamplingParams::default()) }
    }

    /// Everything about the request itself; whether there is room for it is the scheduler's question.
    pub(crate) fn check(&self, config: &EngineConfig) -> Result<(), EngineError> {
        let EngineConfig { context_len, vocab_size, max_sequences, .. } = *config;
        if self.prompt.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if let Some(pooling) = self.pooling {
            let text = self.prompt_logprobs.is_some() || self.grammar.is_some() || self.num_completions != 1;
            if text || self.max_tokens != Some(0) {
                return Err(EngineError::parameter("pooling", pooling.name(), "none where text is asked for"));
            }
        } else if self.max_tokens == Some(0) && self.prompt_logprobs.is_none() {
            return Err(EngineError::parameter("max_tokens", 0, "at least 1"));
        }
        check_top_logprobs("prompt_logprobs", self.prompt_logprobs)?;
        let (prompt, max_tokens) = (self.prompt.len(), self.max_tokens.unwrap_or(1));
        if prompt.checked_add(max_tokens).is_none_or(|total| total > context_len) {
            // A count that overflows is as wrong as one that does not fit; the message adds the two.
            let max_tokens = max_tokens.min(usize::MAX - prompt);
            return Err(EngineError::ContextExceeded { prompt, max_tokens, context: context_len });
        }
        if self.num_completions == 0 || self.num_completions > max_sequences {
            let expected = format!("1 to {max_sequences}, the sequences that run at a time");
            return Err(EngineError::parameter("n", self.num_completions, expected));
        }
        for (what, ids) in [("prompt", &self.prompt), ("stop_token_ids", &self.stop_token_ids)] {
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab_size) {
                return Err(EngineError::UnknownToken { what, id, vocab_size });
            }
        }
        self.sampling.check(vocab_size)
    }
}

/// Names a request for as long as the engine lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(crate) u64);

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A group of requests that may see each other's cached prefixes: one per API key, for example. The caller gives each
/// group a number of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheDomain(pub u64);

/// What a step did to one completion of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// The request.
    pub request: RequestId,
    /// Which of its completions, from 0.
    pub completion: usize,
    /// Log-probabilities of the prompt's next tokens, where the request wants them: of the second token in the first of
    /// these lists, for nothing predicts the first. They come once, before or with the first token of any completion.
    pub prompt_logprobs: Vec<TokenLogprobs>,
    /// Tokens of the prompt that are computed, those of the prefix cache among them, where the request wants to know and
    /// more are to come.
    pub prompt_read: Option<usize>,
    /// The prompt's embedding, (hidden_size,), not normalised: with the last output of a request that asks for one.
    pub embedding: Option<Vec<f32>>,
    /// The new token; none when it ended without one. The token that ended a text is here too, for the caller to hide.
    pub token: Option<SampledToken>,
    /// Why it ended, if it did; nothing more comes after.
    pub finish: Option<FinishReason>,
    /// Its counts so far.
    pub usage: Usage,
}

/// Why a completion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model wrote this end-of-text or stop token.
    Stop {
        /// The token.
        token_id: u32,
    },
    /// `max_tokens` were generated, which may be none.
    Length,
    /// The context is full (only without `max_tokens`).
    Context,
    /// The caller ended it.
    Cancelled,
    /// Something failed, for this completion only.
    Error(Failure),
}

/// What ended a completion that nobody asked to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The model's logits are not numbers.
    #[error("numeric fault: the logits after {position} tokens hold {value} for token id {token_id}")]
    Numeric {
        /// Tokens before the faulty prediction.
        position: usize,
        /// The first faulty one.
        token_id: u32,
        /// `NaN`, `inf` or `-inf`.
        value: &'static str,
    },
    /// The model's hidden states are not numbers.
    #[error("numeric fault: the hidden state of token {position} holds {value}")]
    NumericState {
        /// The token's position in the prompt.
        position: usize,
        /// What it holds.
        value: &'static str,
    },
    /// Every token was ruled out.
    #[error("no token is left to choose: logit_bias, or the grammar, rules out all of them")]
    NoTokenLeft,
    /// The grammar could not go on.
    #[error("the grammar failed: {0}")]
    Grammar(String),
    /// The backend failed in a step that this sequence was part of.
    #[error("the step failed: {0}")]
    Backend(String),
}

/// Tokens counted for one completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that were in the prefix cache when the request was first started.
    pub cached_tokens: usize,
    /// Tokens generated, the one that ended the text included.
    pub generated_tokens: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EngineConfig {
        let kv = plan::KvLayout { format: plan::KvFormat::F32, block_len: 16, num_blocks: 256 };
        EngineConfig::new(kv, 4096, 100, vec![])
    }

    fn refusal(change: impl FnOnce(&mut Request)) -> String {
        let mut request = Request::new(vec![1, 2, 3], SamplingParams::default());
        change(&mut request);
        request.check(&config()).unwrap_err().to_string()
    }

    #[test]
    fn a_request_that_does_not_fit_is_refused_with_both_numbers() {
        assert_eq!(
            refusal(|r| (r.prompt, r.max_tokens) = (vec![0; 5000], Some(100))),
            "a prompt of 5000 tokens and 100 more to generate make 5100, which does not fit the context of 4096; \
             shorten the prompt, ask for fewer tokens, or use a larger --ctx-size"
        );
        assert!(refusal(|r| r.prompt = vec![0; 4096]).starts_with("a prompt of 4096 tokens and 1 more"));
        assert!(refusal(|r| r.max_tokens = Some(usize::MAX)).contains("context of 4096"));
        let mut fits = Request::new(vec![0; 4000], SamplingParams::default());
        fits.max_tokens = Some(96);
        fits.check(&config()).unwrap();
    }

    #[test]
    fn each_wrong_field_is_named() {
        assert!(refusal(|r| r.prompt.clear()).starts_with("the prompt has no tokens"));
        assert_eq!(refusal(|r| r.max_tokens = Some(0)), "max_tokens is 0, but must be at least 1");
        assert_eq!(refusal(|r| r.prompt[1] = 100), "prompt: token id 100 is outside the vocabulary of 100");
        assert_eq!(
            refusal(|r| r.stop_token_ids = vec![7, 999]),
            "stop_token_ids: token id 999 is outside the vocabulary of 100"
        );
        assert_eq!(
            refusal(|r| r.num_completions = 17),
            "n is 17, but must be 1 to 16, the sequences that run at a time"
        );
        assert_eq!(refusal(|r| r.sampling.temperature = -1.0), "temperature is -1, but must be from 0 to 100");
    }
}
