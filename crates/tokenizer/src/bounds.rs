//! What ends an encoding before its text does.

use crate::error::TokenizerError;

/// What ends an encoding before its text does: a bound on its tokens, and a caller who no longer wants them.
#[derive(Clone, Copy)]
pub struct Bounds<'a> {
    /// The most tokens that are of use, those around the text included. A text that certainly has more is refused with
    /// [`TokenizerError::TooManyTokens`], mostly before any of it is encoded.
    pub tokens_max: usize,
    /// Asked every few KiB of text; once it says yes, the encoding ends with [`TokenizerError::Abandoned`].
    pub is_abandoned: &'a dyn Fn() -> bool,
}

impl std::fmt::Debug for Bounds<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bounds").field("tokens_max", &self.tokens_max).finish_non_exhaustive()
    }
}

impl Bounds<'static> {
    /// No bounds: any count of tokens, and a caller who waits.
    pub const NONE: Self = Self { tokens_max: usize::MAX, is_abandoned: &never };
}

fn never() -> bool {
    false
}

impl Bounds<'_> {
    /// An error if nobody wants the result any more.
    pub(crate) fn check_wanted(&self) -> Result<(), TokenizerError> {
        if (self.is_abandoned)() { Err(TokenizerError::Abandoned) } else { Ok(()) }
    }

    /// An error if a text of which `at_least` tokens are certain has too many.
    pub(crate) fn check_tokens(&self, at_least: usize) -> Result<(), TokenizerError> {
        if at_least > self.tokens_max {
            return Err(TokenizerError::TooManyTokens { at_least, limit: self.tokens_max });
        }
        Ok(())
    }
}
