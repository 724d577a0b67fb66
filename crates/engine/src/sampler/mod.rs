//! The sampler: logits of one row → one token, in a chain of steps that each sequence chooses for itself.
//!
//! What a grammar rules out is gone from the start. The logit bias comes first; then the steps in the order of
//! [`SamplingParams::order`], which is llama.cpp's unless the request says otherwise: penalties, DRY, top-n-sigma, top-k,
//! typical, top-p, min-p, XTC, temperature. A step whose parameter is neutral does nothing. Mirostat stands in the place
//! of all that leave candidates out, and comes last. Then one token is drawn from the softmax of what is left; at
//! temperature 0 the likeliest is taken instead, the lowest id of equals. Where only the likeliest few can be chosen, the
//! others are never made candidates; and where all can, but few ever are, bounds on what the others weigh decide which
//! (`bounds.rs`).
//!
//! The random numbers of a token depend on the seed, the completion's number and the token's index only (ChaCha8, one
//! stream a token), so a text is the same in any batch, after preemption, and on every run. Candidates stay in the
//! order of their ids throughout, so the draw does not depend on how a filter was computed; the vocabulary is never
//! sorted.

mod bounds;
mod candidates;
mod filters;
mod grammar;
mod logprobs;
mod mirostat;
mod params;
mod peaks;
mod penalties;
mod rng;

pub use grammar::{Grammar, GrammarState, TokenSet};
pub use logprobs::{TokenLogprob, TokenLogprobs};
pub use params::{Dry, Dynatemp, Mirostat, SamplerStep, SamplingParams, Xtc};

pub(crate) use params::check_top_logprobs;

use backend::Choice;
use candidates::Candidate;
use filters::Ranked;
use params::WholeVocabulary;
use peaks::Peaks;
use plan::sampling::share;
use rng::Draws;

use crate::Failure;

/// A token that was chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SampledToken {
    /// Its id.
    pub id: u32,
    /// Its log-probability and the likeliest alternatives, if the request wants them.
    pub logprobs: Option<TokenLogprobs>,
    /// Mirostat's bound on the surprise of the next token, in bits, with mirostat.
    pub mirostat_bound: Option<f64>,
}

/// The logits of a row, (vocab_size,), with what is known of them already.
#[derive(Clone, Copy, Debug)]
pub struct LogitsRow<'a> {
    /// The logits.
    pub logits: &'a [f32],
    /// The [`backend::peak`] of each group of them, if the device has found these.
    pub peaks: Option<&'a [f32]>,
}

impl<'a, T: AsRef<[f32]> + ?Sized> From<&'a T> for LogitsRow<'a> {
    fn from(logits: &'a T) -> Self {
        Self { logits: logits.as_ref(), peaks: None }
    }
}

/// What a sequence holds so far: the penalties look back on it.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// Prompt and generated tokens.
    pub tokens: &'a [u32],
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Mirostat's bound as the last token left it ([`SampledToken::mirostat_bound`]); none before the first.
    pub mirostat_bound: Option<f64>,
}

impl<'a> History<'a> {
    /// That of a sequence of which no token was chosen under mirostat.
    pub fn new(tokens: &'a [u32], prompt_len: usize) -> Self {
        Self { tokens, prompt_len, mirostat_bound: None }
    }

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
}

impl Sampler {
    /// Chooses the token after `history` from the logits of `row`. `completion` tells the completions of one request
    /// apart, so that each has random numbers of its own.
    pub fn sample<'a>(
        &mut self,
        row: impl Into<LogitsRow<'a>>,
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
    ) -> Result<SampledToken, Failure> {
        let logits = self.look_over(row.into(), history)?;
        let chosen = if params.is_plain_greedy() {
            let id = self.peaks.likeliest(logits).ok_or(Failure::NoTokenLeft)? as u32;
            // All that the steps would leave.
            candidates::fill_with(&mut self.candidates, logits, std::iter::once(id));
            Chosen { id, mirostat_bound: None }
        } else {
            self.run_chain(logits, params, history, completion, None)?
        };
        Ok(self.sampled(logits, chosen, params))
    }

    /// As [`Sampler::sample`], from the tokens of `allowed`.
    pub fn sample_within<'a>(
        &mut self,
        allowed: &TokenSet,
        row: impl Into<LogitsRow<'a>>,
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
    ) -> Result<SampledToken, Failure> {
        let logits = self.look_over(row.into(), history)?;
        let chosen = self.run_chain(logits, params, history, completion, Some(allowed))?;
        Ok(self.sampled(logits, chosen, params))
    }

    /// Log-probabilities of `token` after `history`, and of `count` alternatives.
    pub(crate) fn score(
        &mut self,
        row: LogitsRow<'_>,
        token: u32,
        count: usize,
        history: History<'_>,
    ) -> Result<TokenLogprobs, Failure> {
        let logits = self.look_over(row, history)?;
        Ok(logprobs::logprobs(logits, &mut self.peaks, token, count, &mut self.ranked))
    }

    /// Goes over the logits, once, if the device has not; returns them. One that is not a number is a fault of this
    /// sequence's computation, found before anything is chosen from it.
    fn look_over<'a>(&mut self, row: LogitsRow<'a>, history: History<'_>) -> Result<&'a [f32], Failure> {
        let LogitsRow { logits, .. } = row;
        if self.peaks.find(row) {
            return Ok(logits);
        }
        let faulty = logits.iter().position(|logit| !logit.is_finite()).unwrap_or_default();
        Err(numeric_fault(logits.get(faulty).copied().unwrap_or(f32::NAN), faulty as u32, history))
    }

    fn sampled(&mut self, logits: &[f32], chosen: Chosen, params: &SamplingParams) -> SampledToken {
        let Self { peaks, candidates, ranked, .. } = self;
        let Chosen { id, mirostat_bound } = chosen;
        let logprobs = params.logprobs.map(|count| match params.logprobs_after_steps {
            true => logprobs::after_steps(candidates, id, count, ranked),
            false => logprobs::logprobs(logits, peaks, id, count, ranked),
        });
        SampledToken { id, logprobs, mirostat_bound }
    }

    fn run_chain(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
        allowed: Option<&TokenSet>,
    ) -> Result<Chosen, Failure> {
        let draws = rng::draws(params.seed, completion, history.tokens.len() - history.prompt_len);
        let Self { peaks, candidates, ranked, .. } = self;
        let head = params.head(history).filter(|head| allowed.is_none() && head.len() < logits.len() / 8);
        // What a bound decides on is no list of candidates whose probabilities could be told.
        let tells_candidates = params.logprobs.is_some() && params.logprobs_after_steps;
        let whole = params
            .whole_vocabulary()
            .filter(|whole| allowed.is_none() && !(tells_candidates && matches!(whole, WholeVocabulary::Draw)));
        let mut order = params.order.as_slice();
        match (head, whole) {
            (Some(head), _) => peaks.fill(candidates, logits, head.len(), head.changed(), ranked),
            (None, Some(WholeVocabulary::Draw)) => {
                let id = bounds::draw(peaks, logits, params.temperature, draws.pick).ok_or(Failure::NoTokenLeft)?;
                return Ok(Chosen { id, mirostat_bound: None });
            }
            (None, Some(WholeVocabulary::TopP(left)))
                if bounds::top_p(peaks, logits, share(params.top_p), candidates, ranked) =>
            {
                order = left;
            }
            (None, Some(WholeVocabulary::MinP(left))) => {
                bounds::min_p(peaks, logits, params.min_p, candidates);
                order = left;
            }
            _ => match allowed {
                Some(allowed) => candidates::fill_with(candidates, logits, allowed.ids()),
                None => candidates::fill(candidates, logits),
            },
        }
        self.choose(params, order, history, draws, logits.len())
    }

    /// Runs the steps of `order` on the candidates, of a vocabulary of `vocab_size`, and chooses one of those that are left.
    fn choose(
        &mut self,
        params: &SamplingParams,
        order: &[SamplerStep],
        history: History<'_>,
        draws: Draws,
        vocab_size: usize,
    ) -> Result<Chosen, Failure> {
        let Self { candidates, ranked, penalties: scratch, .. } = self;
        penalties::logit_bias(candidates, &params.logit_bias);
        for step in order.iter().filter(|&&step| params.runs(step)) {
            match step {
                SamplerStep::Penalties => penalties::repetition(candidates, params, history, scratch),
                SamplerStep::Dry => penalties::dry(candidates, &params.dry, history, scratch),
                SamplerStep::TopNSigma => filters::top_n_sigma(candidates, params.top_n_sigma),
                SamplerStep::TopK => filters::top_k(candidates, params.top_k, ranked),
                SamplerStep::Typical => filters::typical(candidates, params.typical_p, ranked),
                SamplerStep::TopP => filters::top_p(candidates, params.top_p, ranked),
                SamplerStep::MinP => filters::min_p(candidates, params.min_p),
                SamplerStep::Xtc => filters::xtc(candidates, &params.xtc, draws.xtc),
                SamplerStep::Temperature if params.has_dynatemp() => {
                    match candidates::dynamic_temperature(candidates, params.temperature, &params.dynatemp) {
                        // Nothing but the likeliest has a chance.
                        0.0 => filters::top_k(candidates, 1, ranked),
                        temperature => candidates::temperature(candidates, temperature),
                    }
                }
                SamplerStep::Temperature => candidates::temperature(candidates, params.temperature),
            }
        }
        if params.takes_likeliest() {
            filters::top_k(candidates, 1, ranked);
            let id = candidates.first().ok_or(Failure::NoTokenLeft)?.id;
            return Ok(Chosen { id, mirostat_bound: None });
        }
        if params.has_mirostat() {
            mirostat::leave_out(candidates, &params.mirostat, history.mirostat_bound, vocab_size, ranked);
        }
        let chosen = &candidates[candidates::draw(candidates, draws.pick).ok_or(Failure::NoTokenLeft)?];
        let next_bound = || mirostat::next_bound(candidates, chosen, &params.mirostat, history.mirostat_bound);
        Ok(Chosen { id: chosen.id, mirostat_bound: params.has_mirostat().then(next_bound) })
    }

    /// As [`Sampler::sample`], with every token a candidate: what all shorter ways must give.
    #[cfg(test)]
    fn sample_plainly(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        history: History<'_>,
        completion: usize,
    ) -> Result<u32, Failure> {
        if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
            return Err(numeric_fault(logits[at], at as u32, history));
        }
        let draws = rng::draws(params.seed, completion, history.tokens.len() - history.prompt_len);
        candidates::fill(&mut self.candidates, logits);
        self.choose(params, &params.order, history, draws, logits.len()).map(|chosen| chosen.id)
    }
}

/// What a chain has chosen.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    id: u32,
    mirostat_bound: Option<f64>,
}

/// What [`Sampler::sample`] gives where the likeliest token is wanted and the device has found it.
pub(crate) fn take_choice(choice: &Choice, history: History<'_>) -> Result<SampledToken, Failure> {
    match choice.fault {
        Some((token_id, logit)) => Err(numeric_fault(logit, token_id, history)),
        None => Ok(SampledToken { id: choice.token_id, logprobs: None, mirostat_bound: None }),
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
