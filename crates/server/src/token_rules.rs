//! vLLM's rules about single tokens: how many there are at least, which words never come, which tokens may come at all.
//! To the engine they are a grammar, around the one that the text is held to besides.

use std::fmt::{Debug, Formatter};
use std::sync::Arc;
use std::time::Instant;

use engine::{Grammar, GrammarState, TokenSet};
use tokenizer::ParseSpecial;

use crate::app::Serving;
use crate::error::ApiError;
use crate::fields::{Field, Fields, applied, wrong};

/// Fields of the routes that take these rules.
pub(crate) const FIELDS: &[Field] = &[applied("min_tokens"), applied("bad_words"), applied("allowed_token_ids")];

/// Words of one request, and tokens of each: every step compares all of them with the end of the text.
const WORDS_MAX: usize = 256;
const WORD_TOKENS_MAX: usize = 64;

/// The rules of one request.
#[derive(Clone, Default)]
pub(crate) struct TokenRules {
    min_tokens: usize,
    /// The tokens of words that never come whole.
    bad: Vec<Vec<u32>>,
    /// Tokens that may come, a bit each; all may without it.
    allowed: Option<Vec<u32>>,
    /// The model's tokens that end a text.
    eos: Vec<u32>,
    vocab_size: usize,
}

impl TokenRules {
    /// Takes the fields that say them.
    pub(crate) fn take(fields: &mut Fields, serving: &Serving) -> Result<Self, ApiError> {
        let vocab_size = serving.engine.config().vocab_size;
        let words = fields.strings("bad_words")?.unwrap_or_default();
        if words.len() > WORDS_MAX {
            let message = format!("`bad_words` is a list of {}, at most {WORDS_MAX} are taken", words.len());
            return Err(ApiError::invalid("bad_words", message));
        }
        let mut bad: Vec<Vec<u32>> = Vec::new();
        for (index, word) in words.iter().enumerate() {
            // A word is other tokens where a space stands before it.
            for text in [word.trim_start().to_owned(), format!(" {}", word.trim_start())] {
                let ids = serving.tokenizer.encode(&text, ParseSpecial::No)?;
                if ids.is_empty() || word.trim().is_empty() || ids.len() > WORD_TOKENS_MAX {
                    let message = format!("`bad_words[{index}]` has to be a word of 1 to {WORD_TOKENS_MAX} tokens");
                    return Err(ApiError::invalid(format!("bad_words[{index}]"), message));
                }
                if !bad.contains(&ids) {
                    bad.push(ids);
                }
            }
        }
        let allowed = fields.token_ids("allowed_token_ids")?.map(|ids| {
            let mut words = vec![0_u32; vocab_size.div_ceil(32)];
            if ids.is_empty() || ids.iter().any(|&id| id as usize >= vocab_size) {
                let expected = format!("a list of at least one token id below {vocab_size}");
                return Err(wrong("allowed_token_ids", &serde_json::json!(ids), expected));
            }
            ids.iter().for_each(|&id| words[id as usize / 32] |= 1 << (id % 32));
            Ok(words)
        });
        Ok(Self {
            min_tokens: fields.count("min_tokens")?.unwrap_or(0),
            bad,
            allowed: allowed.transpose()?,
            eos: serving.tokenizer.eos_ids().to_vec(),
            vocab_size,
        })
    }

    /// Tokens that a text has at least.
    pub(crate) fn min_tokens(&self) -> usize {
        self.min_tokens
    }

    /// What the engine holds a text to that keeps to `inner` besides, and may end at `ends`.
    pub(crate) fn over(&self, inner: Option<Arc<dyn Grammar>>, ends: &[u32]) -> Option<Arc<dyn Grammar>> {
        if self.min_tokens == 0 && self.bad.is_empty() && self.allowed.is_none() {
            return inner;
        }
        let mut rules = self.clone();
        rules.eos.extend(ends);
        Some(Arc::new(RuledText { rules: Arc::new(rules), inner }))
    }

    /// Takes the tokens out of a set that may not come after these.
    fn restrict(&self, allowed: &mut TokenSet, before: &[u32], num_tokens: usize) {
        if let Some(words) = &self.allowed {
            allowed.keep_words(words);
        }
        for word in &self.bad {
            if let Some((&last, first)) = word.split_last()
                && before.ends_with(first)
            {
                allowed.remove(last);
            }
        }
        if num_tokens < self.min_tokens {
            let mut longer = allowed.clone();
            self.eos.iter().for_each(|&id| longer.remove(id));
            // Where a grammar has ended, the text can only end.
            if !longer.is_empty() {
                *allowed = longer;
            }
        }
    }
}

/// The rules, as a grammar.
struct RuledText {
    rules: Arc<TokenRules>,
    inner: Option<Arc<dyn Grammar>>,
}

impl Debug for RuledText {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuledText").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Grammar for RuledText {
    fn start(&self) -> Box<dyn GrammarState> {
        let inner = self.inner.as_ref().map(|inner| inner.start());
        Box::new(RuledState { rules: Arc::clone(&self.rules), inner, before: Vec::new(), num_tokens: 0 })
    }
}

/// How far a text has come.
struct RuledState {
    rules: Arc<TokenRules>,
    inner: Option<Box<dyn GrammarState>>,
    /// Its last tokens, as many as the longest word has but one.
    before: Vec<u32>,
    num_tokens: usize,
}

impl Debug for RuledState {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuledState").field("num_tokens", &self.num_tokens).finish_non_exhaustive()
    }
}

impl GrammarState for RuledState {
    fn allow(&mut self, allowed: &mut TokenSet, until: Option<Instant>) -> Result<bool, String> {
        match &mut self.inner {
            Some(inner) => {
                if !inner.allow(allowed, until)? {
                    return Ok(false);
                }
            }
            None => allowed.insert_words(&vec![u32::MAX; self.rules.vocab_size.div_ceil(32)]),
        }
        self.rules.restrict(allowed, &self.before, self.num_tokens);
        Ok(true)
    }

    fn accept(&mut self, token_id: u32) {
        if let Some(inner) = &mut self.inner {
            inner.accept(token_id);
        }
        self.num_tokens += 1;
        if self.before.len() == WORD_TOKENS_MAX {
            self.before.remove(0);
        }
        self.before.push(token_id);
    }

    fn is_ready(&self) -> bool {
        self.inner.as_ref().is_none_or(|inner| inner.is_ready())
    }

    fn wait(&self, until: Option<Instant>) {
        if let Some(inner) = &self.inner {
            inner.wait(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(rules: &TokenRules, before: &[u32], num_tokens: usize) -> Vec<u32> {
        let mut set = TokenSet::default();
        set.clear(8);
        set.insert_words(&[u32::MAX]);
        rules.restrict(&mut set, before, num_tokens);
        (0..8).filter(|&id| set.contains(id)).collect()
    }

    #[test]
    fn rules_take_tokens_out() {
        let rules = TokenRules {
            min_tokens: 2,
            bad: vec![vec![3], vec![4, 5], vec![4, 5, 6]],
            allowed: Some(vec![0b0111_1110]),
            eos: vec![1],
            vocab_size: 8,
        };
        assert_eq!(left(&rules, &[], 0), [2, 4, 5, 6]);
        assert_eq!(left(&rules, &[7, 4], 2), [1, 2, 4, 6]);
        assert_eq!(left(&rules, &[4, 5], 2), [1, 2, 4, 5]);
        assert_eq!(left(&rules, &[5], 1), [2, 4, 5, 6]);
        // What can only end ends.
        let ends = TokenRules { allowed: Some(vec![0b10]), bad: Vec::new(), ..rules };
        assert_eq!(left(&ends, &[], 0), [1]);
    }
}
