//! The steps that change single logits: bias, repetition, presence and frequency penalties, DRY.

use super::History;
use super::candidates::Candidate;
use super::params::{Dry, SamplingParams};

/// Memory of the penalties, reused from token to token.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    /// A number for each token of the vocabulary, zero between calls.
    by_token: Vec<u32>,
    /// For DRY: the window, last token first.
    reversed: Vec<u32>,
    /// For DRY: lengths of matches.
    matches: Vec<usize>,
}

/// Adds the biases; a bias of -inf takes the token out.
pub(super) fn logit_bias(candidates: &mut Vec<Candidate>, bias: &[(u32, f32)]) {
    if bias.is_empty() {
        return;
    }
    for &(id, bias) in bias {
        if let Some(logit) = logit_of(candidates, id) {
            *logit += bias;
        }
    }
    candidates.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
}

/// The repetition penalty (arXiv 1909.05858) on tokens of prompt and text; presence and frequency penalties (OpenAI's)
/// on tokens of the text.
pub(super) fn repetition(
    candidates: &mut [Candidate],
    params: &SamplingParams,
    history: History<'_>,
    scratch: &mut Scratch,
) {
    if params.repetition_penalty != 1.0 {
        for_each_count(history.window(params.repeat_last_n), &mut scratch.by_token, |id, _| {
            let penalty = params.repetition_penalty;
            change(candidates, id, |logit| if logit > 0.0 { logit / penalty } else { logit * penalty });
        });
    }
    if params.presence_penalty != 0.0 || params.frequency_penalty != 0.0 {
        for_each_count(history.generated_window(params.repeat_last_n), &mut scratch.by_token, |id, count| {
            let penalty = params.presence_penalty + count as f32 * params.frequency_penalty;
            change(candidates, id, |logit| logit - penalty);
        });
    }
}

/// DRY: if the window ends with n tokens that stand earlier in it too, followed there by token t, then t would lengthen
/// a repetition of n. The longest such n of each t decides. Linear in the window.
pub(super) fn dry(candidates: &mut [Candidate], dry: &Dry, history: History<'_>, scratch: &mut Scratch) {
    if dry.multiplier == 0.0 {
        return;
    }
    let window = history.window(dry.last_n);
    let match_len_max = tokens_since_breaker(window, &dry.sequence_breakers);
    if match_len_max < dry.allowed_length {
        return;
    }
    let Scratch { by_token, reversed, matches } = scratch;
    reversed.clear();
    reversed.extend(window.iter().rev());
    common_prefixes(reversed, matches);
    // The window's end and the piece that ends `start` tokens before it agree in matches[start] tokens, and
    // reversed[start - 1] is what followed that piece.
    let repetition = |start: usize, matches: &[usize]| (reversed[start - 1], matches[start].min(match_len_max));
    for start in 1..reversed.len() {
        let (next, length) = repetition(start, matches);
        let longest = at(by_token, next);
        *longest = (*longest).max(u32::try_from(length).unwrap_or(u32::MAX));
    }
    for start in 1..reversed.len() {
        let (next, _) = repetition(start, matches);
        let length = std::mem::take(at(by_token, next)) as usize;
        if length >= dry.allowed_length {
            let excess = i32::try_from(length - dry.allowed_length).unwrap_or(i32::MAX);
            // A long repetition takes the power to infinity: the largest number is as final.
            let penalty = (dry.multiplier * dry.base.powi(excess)).min(f32::MAX);
            change(candidates, next, |logit| logit - penalty);
        }
    }
}

/// The tokens after the last one that ends a breaker.
fn tokens_since_breaker(window: &[u32], breakers: &[Vec<u32>]) -> usize {
    let end = (1..=window.len()).rev().find(|&end| breakers.iter().any(|breaker| window[..end].ends_with(breaker)));
    window.len() - end.unwrap_or(0)
}

/// The Z function: `lengths[i]` tokens at `i` agree with the beginning of `tokens`.
fn common_prefixes(tokens: &[u32], lengths: &mut Vec<usize>) {
    lengths.clear();
    lengths.resize(tokens.len(), 0);
    // tokens[left..right] agrees with the beginning, and right is as far as any such piece reaches.
    let (mut left, mut right) = (0, 0);
    for i in 1..tokens.len() {
        let mut length = if i < right { lengths[i - left].min(right - i) } else { 0 };
        while i + length < tokens.len() && tokens[length] == tokens[i + length] {
            length += 1;
        }
        lengths[i] = length;
        if i + length > right {
            (left, right) = (i, i + length);
        }
    }
}

/// Calls `act` with each different token of `window` and how often it is there.
fn for_each_count(window: &[u32], by_token: &mut Vec<u32>, mut act: impl FnMut(u32, u32)) {
    for &id in window {
        *at(by_token, id) += 1;
    }
    for &id in window {
        let count = std::mem::take(at(by_token, id));
        if count > 0 {
            act(id, count);
        }
    }
}

/// The number of token `id`.
fn at(by_token: &mut Vec<u32>, id: u32) -> &mut u32 {
    let index = id as usize;
    if index >= by_token.len() {
        by_token.resize(index + 1, 0);
    }
    &mut by_token[index]
}

/// Changes the logit of `id`, if it is still a candidate. It stays finite: a penalty rules nothing out.
fn change(candidates: &mut [Candidate], id: u32, new: impl FnOnce(f32) -> f32) {
    if let Some(logit) = logit_of(candidates, id) {
        *logit = new(*logit).clamp(f32::MIN, f32::MAX);
    }
}

fn logit_of(candidates: &mut [Candidate], id: u32) -> Option<&mut f32> {
    let index = candidates.binary_search_by_key(&id, |candidate| candidate.id).ok()?;
    Some(&mut candidates[index].logit)
}
