//! Splitting text by a pattern in linear time, or refusing the pattern.
//!
//! Published pre-tokenizer patterns are all of one form: `X|\s+(?!\S)|\s+`, where `X` has neither
//! look-around nor backreferences. `X` and `\s+` then run side by side on an automaton, and the one
//! look-ahead is applied to the match: whitespace that a word follows gives up its last character.
//! A backtracking engine would do the same, but may reach its limit; the `tokenizers` library then
//! stops splitting without saying so, and the text gets other tokens. Hence patterns of any other
//! form are refused, or, if the caller insists, run on a backtracking engine whose error is passed on.

use std::ops::Range;

use regex_automata::{Input, meta};
use regex_syntax::ast::{self, AssertionKind, Ast, RepetitionKind, Visitor};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pattern::Pattern;

use crate::error::{TokenizerError, shortened};

/// The end of nearly every published pattern: trailing whitespace whole, other whitespace without
/// the last character, which belongs to the word after it.
const WHITESPACE_TAIL: &str = r"|\s+(?!\S)|\s+";

/// Compiled size allowed for a pattern, in bytes; published ones need under 1 MiB.
const AUTOMATON_BYTES_MAX: usize = 16 << 20;

/// Backtracking steps allowed to a pattern that was allowed explicitly.
const BACKTRACK_LIMIT: usize = 1_000_000;

/// Published patterns with possessive quantifiers, and their equal without: in each, what follows
/// the possessive part cannot match what that part gave back.
const WITHOUT_POSSESSIVE: &[(&str, &str)] = &[
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
];

/// Finds the matches of one pattern.
#[derive(Clone, Debug)]
pub(crate) enum Splitter {
    /// Linear time. With `whitespace_tail`, pattern 1 of `regex` is `\s+` under the rule above.
    Automaton { regex: meta::Regex, whitespace_tail: bool },
    /// May give up, with an error.
    Backtracking(Box<fancy_regex::Regex>),
}

/// Why a pattern is not linear.
pub(crate) type Refusal = &'static str;

impl Splitter {
    /// A splitter for `pattern`, if it is of a form that takes linear time.
    pub(crate) fn linear(pattern: &str) -> Result<Self, Refusal> {
        let pattern =
            WITHOUT_POSSESSIVE.iter().find(|(published, _)| *published == pattern).map_or(pattern, |(_, equal)| equal);
        match pattern.strip_suffix(WHITESPACE_TAIL) {
            // The part before must be a whole pattern by itself: only then is the tail's `|` at top level.
            Some(words) if !words.is_empty() => {
                check_linear(words)?;
                Self::automaton(&[words, r"\s+"], true)
            }
            _ => {
                check_linear(pattern)?;
                Self::automaton(&[pattern], false)
            }
        }
    }

    /// As [`Splitter::linear`], else on the backtracking engine.
    pub(crate) fn any(pattern: &str) -> Result<Self, Refusal> {
        Self::linear(pattern).or_else(|_| {
            fancy_regex::RegexBuilder::new(pattern)
                .backtrack_limit(BACKTRACK_LIMIT)
                .delegate_size_limit(AUTOMATON_BYTES_MAX)
                .build()
                .map(|regex| Self::Backtracking(Box::new(regex)))
                .map_err(|_| "is not a valid regular expression")
        })
    }

    /// A splitter for the text itself.
    pub(crate) fn literal(text: &str) -> Result<Self, Refusal> {
        Self::automaton(&[&regex_syntax::escape(text)], false)
    }

    fn automaton(patterns: &[&str], whitespace_tail: bool) -> Result<Self, Refusal> {
        let config = meta::Config::new().nfa_size_limit(Some(AUTOMATON_BYTES_MAX));
        let regex = meta::Builder::new()
            .configure(config)
            .build_many(patterns)
            .map_err(|_| "cannot be compiled within the size limit")?;
        Ok(Self::Automaton { regex, whitespace_tail })
    }

    /// Calls `found` with the byte range of each match, from left to right, until it fails.
    pub(crate) fn for_each_match(
        &self,
        text: &str,
        mut found: impl FnMut(usize, usize) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        match self {
            Self::Automaton { regex, whitespace_tail } => {
                let mut at = 0;
                while at <= text.len() {
                    let Some(hit) = regex.search(&Input::new(text).range(at..)) else {
                        break;
                    };
                    let (start, mut end) = (hit.start(), hit.end());
                    if *whitespace_tail && hit.pattern().as_usize() == 1 && end < text.len() {
                        // `\s+` took the whole run, so a word follows.
                        let last = text[start..end].chars().next_back().map_or(0, char::len_utf8);
                        if start < end - last {
                            end -= last;
                        }
                    }
                    found(start, end)?;
                    // An empty match would be found again at the same place.
                    at = match text[end..].chars().next() {
                        Some(next) if end == start => end + next.len_utf8(),
                        None if end == start => break,
                        _ => end,
                    };
                }
                Ok(())
            }
            Self::Backtracking(regex) => {
                for hit in regex.find_iter(text) {
                    let hit = hit.map_err(|error| TokenizerError::PatternGaveUp {
                        pattern: shortened(regex.as_str(), 200),
                        message: error.to_string(),
                    })?;
                    found(hit.start(), hit.end())?;
                }
                Ok(())
            }
        }
    }
}

impl Splitter {
    /// Calls `found` with all of `text` in pieces, each with whether it is a match.
    fn for_each_piece(
        &self,
        text: &str,
        mut found: impl FnMut(Range<usize>, bool) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let mut covered = 0;
        self.for_each_match(text, |start, end| {
            if covered < start {
                found(covered..start, false)?;
            }
            covered = end;
            found(start..end, true)
        })?;
        if covered < text.len() { found(covered..text.len(), false) } else { Ok(()) }
    }

    /// Calls `found` with the parts into which `behavior` puts the pieces of `text`, as the library does it; with `invert`,
    /// matches are what lies between. An empty part may be among them.
    pub(crate) fn split(
        &self,
        text: &str,
        behavior: SplitDelimiterBehavior,
        invert: bool,
        found: impl FnMut(Range<usize>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        let mut parts = Parts { behavior, pending: None, found };
        self.for_each_piece(text, |piece, is_match| parts.push(piece, is_match != invert))?;
        parts.finish()
    }
}

/// Puts pieces of a text together. One piece at most waits for the next, so that no list of all is needed.
pub(crate) struct Parts<F> {
    behavior: SplitDelimiterBehavior,
    pending: Option<(Range<usize>, bool)>,
    found: F,
}

impl<F: FnMut(Range<usize>) -> Result<(), TokenizerError>> Parts<F> {
    pub(crate) fn new(behavior: SplitDelimiterBehavior, found: F) -> Self {
        Self { behavior, pending: None, found }
    }

    pub(crate) fn push(&mut self, piece: Range<usize>, is_match: bool) -> Result<(), TokenizerError> {
        use SplitDelimiterBehavior::{Contiguous, Isolated, MergedWithNext, MergedWithPrevious, Removed};
        let joins = |before: bool| match self.behavior {
            Isolated | Removed => false,
            Contiguous => before == is_match,
            MergedWithPrevious => !before && is_match,
            MergedWithNext => before && !is_match,
        };
        match &mut self.pending {
            _ if self.behavior == Removed && is_match => Ok(()),
            Some((pending, before)) if joins(*before) => {
                pending.end = piece.end;
                // What a match was merged into takes no other.
                *before = is_match;
                Ok(())
            }
            pending => match pending.replace((piece, is_match)) {
                Some((whole, _)) => (self.found)(whole),
                None => Ok(()),
            },
        }
    }

    pub(crate) fn finish(mut self) -> Result<(), TokenizerError> {
        self.pending.take().map_or(Ok(()), |(last, _)| (self.found)(last))
    }
}

impl Pattern for &Splitter {
    /// All of `inside` in pieces, each with whether it is a match.
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<((usize, usize), bool)>> {
        if inside.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut pieces = Vec::new();
        self.for_each_piece(inside, |piece, is_match| {
            pieces.push(((piece.start, piece.end), is_match));
            Ok(())
        })?;
        Ok(pieces)
    }
}

/// Whether `pattern` has a form that an automaton runs, and that means the same to the engine it
/// was published for (Oniguruma, Ruby syntax) as to ours.
fn check_linear(pattern: &str) -> Result<(), Refusal> {
    // DeepSeek's, run on lines: there `$` means the end of the text to either engine.
    if pattern == r"\s+$" {
        return Ok(());
    }
    let parsed = ast::parse::Parser::new()
        .parse(pattern)
        .map_err(|_| "needs look-around or backreferences, or is not a valid regular expression")?;
    ast::visit(&parsed, SameMeaning)
}

/// Refuses what the two syntaxes read differently.
struct SameMeaning;

impl Visitor for SameMeaning {
    type Output = ();
    type Err = Refusal;

    fn finish(self) -> Result<(), Refusal> {
        Ok(())
    }

    fn visit_pre(&mut self, node: &Ast) -> Result<(), Refusal> {
        match node {
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::StartLine | AssertionKind::EndLine => {
                    Err("has `^` or `$`, which mean lines to one engine and the text to another")
                }
                _ => Err("looks around (a word boundary or an anchor)"),
            },
            Ast::Repetition(repetition) => match (&*repetition.ast, &repetition.op.kind) {
                (Ast::Repetition(_), _) => Err("has a possessive quantifier"),
                (_, RepetitionKind::Range(_)) if !repetition.greedy => {
                    Err("has a counted lazy quantifier, which engines read differently")
                }
                _ => Ok(()),
            },
            Ast::Flags(set) => only_ignore_case(&set.flags),
            Ast::Group(group) => match &group.kind {
                ast::GroupKind::NonCapturing(flags) => only_ignore_case(flags),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn only_ignore_case(flags: &ast::Flags) -> Result<(), Refusal> {
    let plain = flags.items.iter().all(|item| {
        matches!(item.kind, ast::FlagsItemKind::Negation | ast::FlagsItemKind::Flag(ast::Flag::CaseInsensitive))
    });
    if plain { Ok(()) } else { Err("sets flags other than `i`, which engines read differently") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(pattern: &str) -> Refusal {
        Splitter::linear(pattern).expect_err(pattern)
    }

    #[test]
    fn forms_that_are_not_linear_are_refused() {
        for pattern in [
            r"(?:(?=a)a+)+$",
            r"(a+)+$",
            r"(a)\1",
            r"a(?<!b)",
            r"\bword",
            r"a++",
            r"a{1,2}+",
            r"a{2}?",
            r"(?x)a b|\s+(?!\S)|\s+",
            r"(a|\s+(?!\S)|\s+",
            r"[a|\s+(?!\S)|\s+",
            r"a\|\s+(?!\S)|\s+",
            r"|\s+(?!\S)|\s+",
            r"\p{L}{1000}{1000}",
            r"(?:\p{L}{1000}){1000}",
            "(",
        ] {
            refusal(pattern);
        }
    }

    #[test]
    fn an_allowed_pattern_that_gives_up_is_an_error() {
        let splitter = Splitter::any(r"(?:(?=a)a+)+$").expect("valid");
        let text = format!("{}b", "a".repeat(64));
        let error = (&splitter).find_matches(&text).expect_err("exponential");
        assert!(matches!(TokenizerError::library("splitting", error), TokenizerError::PatternGaveUp { .. }));
    }

    #[test]
    fn whitespace_leaves_its_last_character_to_the_word() {
        let splitter = Splitter::linear(r" ?\p{L}+|\s+(?!\S)|\s+").expect("linear");
        let pieces = |text: &str| {
            (&splitter)
                .find_matches(text)
                .expect("linear")
                .into_iter()
                .map(|((start, end), _)| text[start..end].to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(pieces("a   b"), ["a", "  ", " b"]);
        assert_eq!(pieces("a \nb"), ["a", " ", "\n", "b"]);
        assert_eq!(pieces("a   "), ["a", "   "]);
        assert_eq!(pieces("\u{3000}b"), ["\u{3000}", "b"]);
        assert_eq!(pieces(" 1"), [" ", "1"]);
    }

    #[test]
    fn empty_matches_end() {
        let splitter = Splitter::linear("a*").expect("linear");
        let pieces = (&splitter).find_matches("baé").expect("linear");
        assert_eq!(pieces.last().map(|&((_, end), _)| end), Some(4));
    }
}
