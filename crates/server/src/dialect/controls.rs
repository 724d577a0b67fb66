//! The tokens that a model with a given vocabulary writes calls and reasoning with.

use tokenizer::Tokenizer;

use super::marker::{ById, Marker};
use super::{Reasoning, ThoughtTags, ToolSyntax};

/// Tokens that count by their ids, of those that a model writes calls and reasoning with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Controls {
    /// With their texts.
    pub(crate) tokens: Vec<(u32, String)>,
    pub(crate) by_id: ById,
}

impl Controls {
    /// Of each kind none where the vocabulary lacks one of them, and text is all that can be looked at.
    pub(crate) fn of(
        reasoning: Reasoning,
        tags: &ThoughtTags,
        syntax: Option<ToolSyntax>,
        tokenizer: &Tokenizer,
    ) -> Self {
        let find = |markers: &[Marker]| {
            let found =
                markers.iter().map(|marker| Some((tokenizer.token_to_id(marker.text)?, marker.text.to_owned())));
            found.collect::<Option<Vec<_>>>().unwrap_or_default()
        };
        let calls = find(syntax.map_or(&[], |syntax| syntax.dialect().controls));
        let mut tokens = find(reasoning.controls(tags));
        let by_id = ById { calls: !calls.is_empty(), reasoning: !tokens.is_empty() };
        tokens.extend(calls);
        tokens.sort_unstable();
        tokens.dedup();
        Self { tokens, by_id }
    }
}
