//! One text in the making.

use std::ops::Range;
use std::sync::Arc;

use plan::sampling::RowSampling;

use crate::kv_cache::BlockTable;
use crate::pooling::Pooled;
use crate::request::{Output, Request, Usage};
use crate::sampler::{GrammarState, History, SampledToken};
use crate::scheduler::ServiceOrder;
use crate::{EngineConfig, FinishReason, Pooling};

/// What the step under way computes of a sequence. It is set only while the step after that one is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    /// Tokens that the step computes.
    pub(crate) num_tokens: usize,
    /// The step's output that is the sequence's next token, if these are all the tokens that it has.
    pub(crate) output: Option<u32>,
    /// Whether that token is the last, whatever it is.
    pub(crate) ends: bool,
}

/// One completion of a request: tokens, how many of them are computed, and the blocks that hold their keys and values.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) order: ServiceOrder,
    /// The request, but for its prompt, which is at the beginning of `tokens`.
    pub(crate) request: Arc<Request>,
    /// Prompt and generated tokens.
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompt_len: usize,
    /// Tokens whose keys and values are in the cache.
    pub(crate) num_computed: usize,
    pub(crate) under_way: UnderWay,
    pub(crate) table: BlockTable,
    /// Completions that branch off when the prompt is computed.
    pub(crate) num_forks: usize,
    /// Tokens found in the prefix cache at the first start; none before it.
    pub(crate) cached_tokens: Option<usize>,
    /// Positions of the prompt whose next token's log-probability was given out.
    pub(crate) num_scored: usize,
    /// States of the tokens that are computed, where an embedding is asked for.
    pub(crate) pooled: Pooled,
    /// Where its text is in the request's grammar.
    pub(crate) grammar: Option<Box<dyn GrammarState>>,
    /// Mirostat's bound as the last token left it.
    pub(crate) mirostat_bound: Option<f64>,
    /// Whether the grammar was late: the last token's logits were there, and nobody knew which tokens may come next. That
    /// token is computed again once it is known.
    pub(crate) is_late: bool,
    pub(crate) finished: bool,
}

impl Sequence {
    pub(crate) fn new(order: ServiceOrder, mut request: Request) -> Self {
        let tokens = std::mem::take(&mut request.prompt);
        Self {
            order,
            prompt_len: tokens.len(),
            tokens,
            num_computed: 0,
            under_way: UnderWay::default(),
            table: BlockTable::new(request.cache_domain),
            num_forks: request.num_completions - 1,
            grammar: request.grammar.as_ref().map(|grammar| grammar.start()),
            mirostat_bound: None,
            is_late: false,
            request: Arc::new(request),
            cached_tokens: None,
            num_scored: 0,
            pooled: Pooled::default(),
            finished: false,
        }
    }

    /// Another completion of the same prompt, with `table` for the same blocks. It begins where the grammar does.
    pub(crate) fn fork(&self, completion: usize, table: BlockTable) -> Self {
        Self {
            order: ServiceOrder { completion, ..self.order },
            request: Arc::clone(&self.request),
            tokens: self.tokens.clone(),
            prompt_len: self.prompt_len,
            num_computed: self.num_computed,
            under_way: UnderWay::default(),
            table,
            num_forks: 0,
            cached_tokens: self.cached_tokens,
            num_scored: self.num_scored,
            pooled: Pooled::default(),
            grammar: self.request.grammar.as_ref().map(|grammar| grammar.start()),
            mirostat_bound: None,
            is_late: false,
            finished: false,
        }
    }

    /// The position of the first token that is neither computed nor under way.
    pub(crate) fn next_position(&self) -> usize {
        self.num_computed + self.under_way.num_tokens
    }

    /// Tokens that are neither computed nor under way, the one that the step under way makes included; the logits after
    /// the last of them give the next.
    pub(crate) fn num_pending(&self) -> usize {
        match self.under_way {
            UnderWay { ends: true, .. } => 0,
            UnderWay { output: Some(_), .. } => 1,
            _ => self.tokens.len() - self.next_position(),
        }
    }

    /// The grammar that steps do not wait for any more, where this sequence has such a one.
    pub(crate) fn late_grammar(&self) -> Option<&dyn GrammarState> {
        self.grammar.as_deref().filter(|grammar| self.is_late && !grammar.is_ready())
    }

    /// Whether a single token is to be computed. Until then it is in prefill, and has blocks for all its tokens.
    pub(crate) fn is_decode(&self) -> bool {
        self.num_pending() == 1
    }

    /// Whether log-probabilities of the prompt are still owed.
    pub(crate) fn is_scored(&self) -> bool {
        self.request.prompt_logprobs.is_some() && self.num_scored + 1 < self.prompt_len
    }

    /// Whether an embedding is asked for, and no text: it takes part in steps that give hidden states.
    pub(crate) fn is_embedding(&self) -> bool {
        self.request.pooling.is_some()
    }

    /// Whether every token of the prompt has to be computed, whatever the prefix cache holds.
    pub(crate) fn needs_all_rows(&self) -> bool {
        self.is_scored() || self.request.pooling == Some(Pooling::Mean)
    }

    /// Of the next `num_tokens` to be computed, the positions before the last whose rows are wanted: their logits say how
    /// likely the prompt's next token was, or their states are pooled.
    pub(crate) fn rows_to_score(&self, num_tokens: usize) -> Range<usize> {
        let first = self.num_computed.max(self.num_scored);
        let end = (self.num_computed + num_tokens).min(self.prompt_len - 1);
        if self.needs_all_rows() { first..end.max(first) } else { 0..0 }
    }

    /// Sequences that it counts as: itself, and those that will branch off.
    pub(crate) fn width(&self) -> usize {
        1 + self.num_forks
    }

    pub(crate) fn history(&self) -> History<'_> {
        History { tokens: &self.tokens, prompt_len: self.prompt_len, mirostat_bound: self.mirostat_bound }
    }

    /// How a device chooses the next token, or the one after it.
    pub(crate) fn row_sampling(&self, after_next: bool) -> RowSampling {
        self.request.sampling.of_device(self.order.completion, self.num_generated() + usize::from(after_next))
    }

    /// Whether the next token is the last, whatever it is.
    pub(crate) fn ends_with_next(&self, config: &EngineConfig) -> bool {
        match self.request.max_tokens {
            Some(max_tokens) => self.num_generated() + 1 >= max_tokens,
            None => self.tokens.len() + 1 >= config.context_len,
        }
    }

    /// Appends a token; says whether it is the last, and why.
    pub(crate) fn append(&mut self, token_id: u32, config: &EngineConfig) -> Option<FinishReason> {
        self.tokens.push(token_id);
        let is_eos = !self.request.ignore_eos && config.eos_token_ids.contains(&token_id);
        if is_eos || self.request.stop_token_ids.contains(&token_id) {
            return Some(FinishReason::Stop { token_id });
        }
        match self.request.max_tokens {
            Some(max_tokens) if self.num_generated() >= max_tokens => Some(FinishReason::Length),
            None if self.tokens.len() >= config.context_len => Some(FinishReason::Context),
            _ => None,
        }
    }

    pub(crate) fn output(&self, token: Option<SampledToken>, finish: Option<FinishReason>) -> Output {
        let usage = Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens.unwrap_or(0),
            generated_tokens: self.num_generated(),
        };
        let ServiceOrder { request, completion, .. } = self.order;
        let (prompt_logprobs, prompt_read, embedding) = (Vec::new(), None, None);
        Output { request, completion, prompt_logprobs, prompt_read, embedding, token, finish, usage }
    }

    /// The last output of this sequence and of those that would have branched off.
    pub(crate) fn end(&self, reason: &FinishReason, outputs: &mut Vec<Output>) {
        for completion in self.order.completion..self.order.completion + self.width() {
            outputs.push(Output { completion, ..self.output(None, Some(reason.clone())) });
        }
    }

    /// Tokens of the prompt that are computed, if the request wants to know. `None` once a token was generated: a sequence
    /// that lost its blocks computes its prompt again, and the request has heard of that prompt already.
    pub(crate) fn prompt_read(&self) -> Option<usize> {
        let is_first = self.num_generated() == 0 && self.num_computed < self.prompt_len;
        (self.request.reports_prompt && is_first).then_some(self.num_computed)
    }

    fn num_generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }
}
