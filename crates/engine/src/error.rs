//! Why the engine refuses a request or a configuration. What happens to a request that was accepted is a
//! [`crate::FinishReason`].

/// Why a request or a configuration was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A request without a token to continue from.
    #[error("the prompt has no tokens, and the model needs at least one; send text, or the model's start token")]
    EmptyPrompt,
    /// A prompt that leaves no room for what was asked for.
    #[error(
        "a prompt of {prompt} tokens and {max_tokens} more to generate make {}, which does not fit the context of \
         {context}; shorten the prompt, ask for fewer tokens, or use a larger --ctx-size",
        prompt + max_tokens
    )]
    ContextExceeded {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for (at least 1).
        max_tokens: usize,
        /// Tokens that a sequence may have.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("{what}: token id {id} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// Where the id stands: `prompt`, `logit_bias`.
        what: &'static str,
        /// The id.
        id: u32,
        /// Ids of the model.
        vocab_size: usize,
    },
    /// A parameter out of its range.
    #[error("{name} is {found}, but must be {expected}")]
    Parameter {
        /// The parameter, as the request names it.
        name: &'static str,
        /// Its value.
        found: String,
        /// Its range.
        expected: String,
    },
    /// More requests than may wait.
    #[error("the queue is full: {waiting} {unit} wait and at most {limit} may; try again when some have finished")]
    QueueFull {
        /// What waits, in `unit`, with this request.
        waiting: usize,
        /// The most that may.
        limit: usize,
        /// `sequences` or `tokens`.
        unit: &'static str,
    },
    /// A configuration that cannot work.
    #[error("engine configuration: {name} is {found}, but must be {expected}")]
    Config {
        /// The field.
        name: &'static str,
        /// Its value.
        found: usize,
        /// Its range.
        expected: String,
    },
    /// The backend could not compile a program.
    #[error("{0}")]
    Backend(String),
}

impl EngineError {
    /// A parameter out of its range.
    pub(crate) fn parameter(name: &'static str, found: impl ToString, expected: impl ToString) -> Self {
        Self::Parameter { name, found: found.to_string(), expected: expected.to_string() }
    }
}
