//! What a regular expression takes to compile, counted before the library builds it.

use crate::error::ApiError;

/// Bytes of one regular expression with all that it names.
const EXPANDED_MAX: usize = 256 << 10;
/// Marks of one regular expression (`?`, `*`, `{`, `|`, `[`) with all that it names, because the first step through
/// many parts that may be missing takes the square of their number.
const MARKS_MAX: usize = 5_000;
/// Intersections and complements of one terminal with all that it names: each multiplies the states.
const MEETS_MAX: usize = 8;
/// Refuses a regular expression that takes too long to compile.
pub(crate) fn check_pattern(at: &str, pattern: &str) -> Result<(), ApiError> {
    if Weight::of(pattern).is_heavy() { Err(too_complex(at, "a regular expression")) } else { Ok(()) }
}

/// Refuses what has too many parts at this path of a request.
pub(crate) fn too_complex(at: &str, what: &str) -> ApiError {
    let message = format!("`{at}` has {what} with too many parts; ask for a simpler one");
    ApiError::refused_field(at, "grammar_too_complex", message)
}

/// What a regular expression takes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weight {
    pub(crate) bytes: usize,
    /// `?`, `*`, `{`, `|`, `[`.
    pub(crate) marks: usize,
    /// Intersections and complements.
    pub(crate) meets: usize,
}

impl Weight {
    /// Of a regular expression alone.
    pub(crate) fn of(pattern: &str) -> Self {
        let marks = pattern.bytes().filter(|byte| matches!(byte, b'?' | b'*' | b'{' | b'|')).count();
        Self { bytes: pattern.len(), marks, meets: 0 }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.marks = self.marks.saturating_add(other.marks);
        self.meets = self.meets.saturating_add(other.meets);
    }

    /// Whether compiling it takes too long.
    pub(crate) fn is_heavy(self) -> bool {
        self.bytes > EXPANDED_MAX || self.marks > MARKS_MAX || self.meets > MEETS_MAX
    }
}
