//! The sampler: logits of one row → one token, in a chain of steps that each sequence chooses for itself.
//!
//! What a grammar rules out is gone from the start. The logit bias comes first; then the steps in the order of [`SamplingParams::order`], which is llama.cpp's unless
//! the request says otherwise: penalties, DRY, top-k, typical, top-p, min-p, XTC, temperature. A step whose parameter
//! is neutral does nothing. At last one token is drawn from the softmax of what is left; at temperature 0 the likeliest
//! is taken instead, the lowest id of equals. Where only the likeliest few can be chosen, the others are never made candidates.
//!
//! The random numbers of a token depend on the seed, the completion's number and the token's index only (ChaCha8, one
//! stream a token), so a text is the same in any batch, after preemption, and on every run. Candidates stay in the
//! order of their ids throughout, so the draw does not depend on how a filter was computed; the vocabulary is never
//! sorted.

mod candidates;
mod filters;
mod grammar;
mod logprobs;
mod params;
mod peaks;
mod penalties;
mod rng;

pub use grammar::{Grammar, GrammarState, TokenSet};
pub use logprobs::{TokenLogprob, TokenLogprobs};
pub use params::{Dry, SamplerStep, SamplingParams, Xtc};

pub(crate) use params::check_top_logprobs;

use backend::Choice;
use candidates::Candidate;
use filters::Ranked;
use peaks::Peaks;

use crate::Failure;

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// Its log-probability and the likeliest alternatives, if the request wants them.
    pub logprobs: Option<TokenLogprobs>,
}

/// What a sequence holds so far: the penalties look back on it.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and generated tokens.
    pub tokens: &'a [u32],
    /// Tokens of the prompt.
    pub prompt_len: usize,
}

impl<'a> History<'a> {
    /// The last `last_n` tokens, all without a bound.
    fn window(&self, last_n: Option<usize>) -> &'a [u32] {
        &self.tokens[self.tokens.len() - last_n.map_or(self.tokens.len(), |n| n.min(self.tokens.len()))..]
    }

    /// The generated ones of the last `last_n` tokens.
    fn generated_window(&self, last_n: Option<usize>) -> &'a [u32] {
        let generated = self.tokens.len() - self.prompt_len;
        self.window(Some(last_n.map_or(generated, |n| n.min(generated))))
    }
}

/// Chooses tokens. Holds memory that is reused from token to token, and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    peaks: Peaks,
    candidates: Vec<Candidate>,
    ranked: Vec<Ranked>,
    penalties: penalties::Scratch,
    allowed: TokenSet,
}

impl Sampler {
    /// Chooses the token after `history` from `logits` (vocab_size,). `completion` tells the completions of one request
    /// apart, so that each has random numbers of its own.
    pub fn sample(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
    ) -> Result<SampledToken, Failure> {
        self.look_over(logits, history)?;
        let id = if params.is_plain_greedy() {
            self.peaks.likeliest(logits).ok_or(Failure::NoTokenLeft)? as u32
        } else {
            self.run_chain(logits, params, history, completion, false)?
        };
        Ok(self.sampled(logits, id, params))
    }

    /// As [`Sampler::sample`], from the tokens that `grammar` allows, which is then told of the choice.
    pub fn sample_within(
        &mut self,
        grammar: &mut dyn GrammarState,
        logits: &[f32],
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
    ) -> Result<SampledToken, Failure> {
        self.look_over(logits, history)?;
        self.allowed.clear(logits.len());
        grammar.allow(&mut self.allowed).map_err(Failure::Grammar)?;
        let id = self.run_chain(logits, params, history, completion, true)?;
        grammar.accept(id).map_err(Failure::Grammar)?;
        Ok(self.sampled(logits, id, params))
    }

    /// Log-probabilities of `token` after `history`, and of `count` alternatives.
    pub(crate) fn score(
        &mut self,
        logits: &[f32],
        token: u32,
        count: usize,
        history: History<'_>,
    ) -> Result<TokenLogprobs, Failure> {
        self.look_over(logits, history)?;
        Ok(logprobs::logprobs(logits, &mut self.peaks, token, count, &mut self.ranked))
    }

    /// Goes over the logits, once. One that is not a number is a fault of this sequence's computation, found before anything
    /// is chosen from it.
    fn look_over(&mut self, logits: &[f32], history: History<'_>) -> Result<(), Failure> {
        if self.peaks.find(logits) {
            return Ok(());
        }
        let faulty = logits.iter().position(|logit| !logit.is_finite()).unwrap_or_default();
        Err(numeric_fault(logits.get(faulty).copied().unwrap_or(f32::NAN), faulty as u32, history))
    }

    fn sampled(&mut self, logits: &[f32], id: u32, params: &SamplingParams) -> SampledToken {
        let Self { peaks, ranked, .. } = self;
        let logprobs = params.logprobs.map(|count| logprobs::logprobs(logits, peaks, id, count, ranked));
        SampledToken { id, logprobs }
    }

    fn run_chain(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
        only_allowed: bool,
    ) -> Result<u32, Failure> {
        let Self { peaks, candidates, ranked, penalties: scratch, allowed } = self;
        let draws = rng::draws(params.seed, completion, history.tokens.len() - history.prompt_len);
        let head = params.head(history).filter(|head| !only_allowed && head.len() < logits.len() / 8);
        match head {
            Some(head) => peaks.fill(candidates, logits, head.len(), head.changed(), ranked),
            None => candidates::fill(candidates, logits),
        }
        if only_allowed {
            candidates.retain(|candidate| allowed.contains(candidate.id));
        }
        penalties::logit_bias(candidates, &params.logit_bias);
        for step in &params.order {
            match step {
                SamplerStep::Penalties => penalties::repetition(candidates, params, history, scratch),
                SamplerStep::Dry => penalties::dry(candidates, &params.dry, history, scratch),
                SamplerStep::TopK => filters::top_k(candidates, params.top_k, ranked),
                SamplerStep::Typical => filters::typical(candidates, params.typical_p, ranked),
                SamplerStep::TopP => filters::top_p(candidates, params.top_p, ranked),
                SamplerStep::MinP => filters::min_p(candidates, params.min_p),
                SamplerStep::Xtc => filters::xtc(candidates, &params.xtc, draws.xtc),
                SamplerStep::Temperature => candidates::temperature(candidates, params.temperature),
            }
        }
        let chosen = if params.temperature == 0.0 {
            filters::top_k(candidates, 1, ranked);
            (!candidates.is_empty()).then_some(0)
        } else {
            candidates::draw(candidates, draws.pick)
        };
        chosen.map(|index| candidates[index].id).ok_or(Failure::NoTokenLeft)
    }
}

/// What [`Sampler::sample`] gives where the likeliest token is wanted and the device has found it.
pub(crate) fn take_choice(choice: &Choice, history: History<'_>) -> Result<SampledToken, Failure> {
    match choice.fault {
        Some((token_id, logit)) => Err(numeric_fault(logit, token_id, history)),
        None => Ok(SampledToken { id: choice.token_id, logprobs: None }),
    }
}

fn numeric_fault(logit: f32, token_id: u32, history: History<'_>) -> Failure {
    let value = match logit {
        logit if logit.is_nan() => "NaN",
        logit if logit < 0.0 => "-inf",
        _ => "inf",
    };
    Failure::Numeric { position: history.tokens.len(), token_id, value }
}

#[cfg(test)]
mod tests;
