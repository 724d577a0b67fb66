//! What can go wrong between bytes of a tokenizer and token ids.

use thiserror::Error;

/// An error of this crate: the file or field, what was found, and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file is larger than this crate reads.
    #[error("`{file}` has {bytes} bytes, more than the limit of {limit}: is it the right file?")]
    TooLarge {
        /// Name of the file, as the Hugging Face layout calls it.
        file: &'static str,
        /// Its size.
        bytes: usize,
        /// The largest size that is read.
        limit: usize,
    },
    /// A file is not the JSON that it should be.
    #[error("`{file}` cannot be read: {message}; download it again, or save it again with its library")]
    Json {
        /// Name of the file.
        file: &'static str,
        /// What the JSON reader said, with line and column.
        message: String,
    },
    /// One field has a value that cannot be used.
    #[error("`{file}`: field `{field}` {message}")]
    Field {
        /// Name of the file, or `GGUF metadata`.
        file: &'static str,
        /// Path of the field, dots between the levels.
        field: String,
        /// What was found, what was expected and the remedy.
        message: String,
    },
    /// A pattern whose matching time or outcome cannot be vouched for.
    #[error(
        "`{file}`: field `{field}` has the pattern `{pattern}`, which {reason}; \
         such a pattern may take unbounded time: allow unknown patterns explicitly if you trust the file"
    )]
    UnknownPattern {
        /// Name of the file.
        file: &'static str,
        /// Path of the field.
        field: String,
        /// The pattern, cut after 200 characters.
        pattern: String,
        /// What in it is the trouble.
        reason: &'static str,
    },
    /// A GGUF vocabulary names a pre-tokenizer that is not in the table.
    #[error("pre-tokenizer `{name}` (`tokenizer.ggml.pre`) is unknown; known are: {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// All known names.
        known: String,
    },
    /// A GGUF vocabulary names a pre-tokenizer whose published definitions contradict each other.
    #[error(
        "pre-tokenizer `{name}` (`tokenizer.ggml.pre`) stands for different splits in different programs, and wrong \
         splits would give other tokens: use the model's folder with its tokenizer.json, which says how text is cut"
    )]
    PreTokenizerWithoutDefinition {
        /// The name in the file.
        name: &'static str,
    },
    /// A GGUF vocabulary of a kind that is not covered.
    #[error(
        "tokenizer model `{model}` (`tokenizer.ggml.model`) is not covered; covered are `gpt2` (byte-level BPE), `llama` (SentencePiece BPE) and `gemma4`"
    )]
    UnknownModel {
        /// The name in the file.
        model: String,
    },
    /// More text than is encoded at once.
    #[error("the text has {bytes} bytes, more than the limit of {limit}: encode it in parts")]
    TextTooLong {
        /// Size of the text.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },
    /// The vocabulary has no token for a part of the text, not even byte by byte.
    #[error(
        "the vocabulary has no token for a character of `{piece}`, and no unknown token: the tokenizer's files do not cover this text"
    )]
    NotInVocabulary {
        /// The word in question, cut after 40 characters.
        piece: String,
    },
    /// Plain text came out as a special token; it was refused instead.
    #[error("plain text would become the special token `{token}`: the tokenizer's vocabulary cannot tell them apart")]
    SpecialFromText {
        /// The special token's text.
        token: String,
    },
    /// A pattern that was allowed explicitly gave up on this text.
    #[error("the pattern `{pattern}` gave up on this text: {message}")]
    PatternGaveUp {
        /// The pattern, cut after 200 characters.
        pattern: String,
        /// What the regex engine said.
        message: String,
    },
    /// A text that has more tokens than are of use.
    #[error("the text has at least {at_least} tokens, and {limit} are taken")]
    TooManyTokens {
        /// How many are certain: the text was not encoded to its end.
        at_least: usize,
        /// The most that are taken.
        limit: usize,
    },
    /// The caller no longer wants the tokens.
    #[error("nobody waits for the tokens any more")]
    Abandoned,
    /// The `tokenizers` library returned an error.
    #[error("the tokenizers library refused while {during}: {message}")]
    Library {
        /// What was being done.
        during: &'static str,
        /// The library's message.
        message: String,
    },
    /// The `tokenizers` library panicked; the panic was caught here.
    #[error("the tokenizers library panicked while {during}: the tokenizer's files are likely malformed")]
    Panicked {
        /// What was being done.
        during: &'static str,
    },
}

impl TokenizerError {
    /// A [`TokenizerError::Field`].
    pub(crate) fn field(file: &'static str, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field { file, field: field.into(), message: message.into() }
    }

    /// Wraps what the library says, keeping an error of ours that travelled through it.
    pub(crate) fn library(during: &'static str, source: Box<dyn std::error::Error + Send + Sync>) -> Self {
        match source.downcast::<Self>() {
            Ok(ours) => *ours,
            Err(theirs) => Self::Library { during, message: theirs.to_string() },
        }
    }
}

/// The first `max` characters of `text`, for a message.
pub(crate) fn shortened(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Runs `work`, turning a panic of the library into an error.
///
/// The library indexes and unwraps on what files hold. It keeps no state across a panic that this
/// crate would see again: a tokenizer under construction is dropped, and a built one is immutable.
pub(crate) fn guarded<T>(
    during: &'static str,
    work: impl FnOnce() -> Result<T, TokenizerError>,
) -> Result<T, TokenizerError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(Err(TokenizerError::Panicked { during }))
}
