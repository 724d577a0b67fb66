//! Splitting text by a pattern in linear time, or refusing the pattern.
//!
//! Published pre-tokenizer patterns are all of one form: `X|\s+(?!\S)|\s+`, where `X` has neither
//! look-around nor backreferences. `X` and `\s+` then run side by side on an automaton, and the one
//! look-ahead is applied to the match: whitespace that a word follows gives up its last character.
//! A backtracking engine would do the same, but may reach its limit; the `tokenizers` library then
//! stops splitting without saying so, and the text gets other tokens. Three published patterns look
//! further ahead, over a run of digits or of whitespace; what they match follows from the length of
//! the run, so they are counted out here. Patterns of any other form are refused, or, if the caller
//! insists, run on a backtracking engine whose error is passed on.

use std::ops::Range;

use regex_automata::{Input, meta};
use regex_syntax::ast::{self, AssertionKind, Ast, RepetitionKind, Visitor};
use tokenizers::SplitDelimiterBehavior;
use tokenizers::pattern::Pattern;

use crate::error::{TokenizerError, shortened};

/// The end of nearly every published pattern: trailing whitespace whole, other whitespace without
/// the last character, which belongs to the word after it.
const WHITESPACE_TAIL: &str = r"|\s+(?!\S)|\s+";

/// Jais 2's pattern: whitespace in parts of a power of two, of which the last leaves one character to the word.
pub(crate) const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// The part of [`JAIS2`] before its first `\s{512}`.
const JAIS2_WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+";

/// Cohere's groups of digits: of three, counted from the end of a number that no word character follows.
pub(crate) const DIGIT_GROUPS: &str = r"\d{1,3}(?=(?:\d{3})*\b)";

/// SuperBPE's cuts between digits: before each three, counted from the end of a number.
pub(crate) const DIGIT_CUTS: &str = r"(?=(\d{3})+(?!\d))";

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
    /// Linear time. With a tail, pattern 1 of `regex` is `\s+`, and the tail says how much of the run is a match.
    Automaton { regex: meta::Regex, tail: Option<Tail> },
    /// [`DIGIT_GROUPS`]; finds runs of digits.
    DigitGroups(meta::Regex),
    /// [`DIGIT_CUTS`]; finds runs of digits.
    DigitCuts(meta::Regex),
    /// May give up, with an error.
    Backtracking(Box<fancy_regex::Regex>),
}

/// How a pattern takes whitespace that nothing else in it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// [`WHITESPACE_TAIL`].
    Run,
    /// That of [`JAIS2`].
    PowersOfTwo,
}

/// Why a pattern is not linear.
pub(crate) type Refusal = &'static str;

impl Splitter {
    /// A splitter for `pattern`, if it is of a form that takes linear time.
    pub(crate) fn linear(pattern: &str) -> Result<Self, Refusal> {
        let pattern =
            WITHOUT_POSSESSIVE.iter().find(|(published, _)| *published == pattern).map_or(pattern, |(_, equal)| equal);
        match pattern {
            JAIS2 => return Self::automaton(&[JAIS2_WORDS, r"\s+"], Some(Tail::PowersOfTwo)),
            DIGIT_GROUPS => return compiled(&[r"\d+"]).map(Self::DigitGroups),
            DIGIT_CUTS => return compiled(&[r"\d+"]).map(Self::DigitCuts),
            _ => {}
        }
        match pattern.strip_suffix(WHITESPACE_TAIL) {
            // The part before must be a whole pattern by itself: only then is the tail's `|` at top level.
            Some(words) if !words.is_empty() => {
                check_linear(words)?;
                Self::automaton(&[words, r"\s+"], Some(Tail::Run))
            }
            _ => {
                check_linear(pattern)?;
                Self::automaton(&[pattern], None)
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
        Self::automaton(&[&regex_syntax::escape(text)], None)
    }

    fn automaton(patterns: &[&str], tail: Option<Tail>) -> Result<Self, Refusal> {
        Ok(Self::Automaton { regex: compiled(patterns)?, tail })
    }

    /// Calls `found` with the byte range of each match, from left to right, until it fails.
    pub(crate) fn for_each_match(
        &self,
        text: &str,
        mut found: impl FnMut(usize, usize) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        match self {
            Self::Automaton { regex, tail } => {
                let mut at = 0;
                while at <= text.len() {
                    let Some(hit) = regex.search(&Input::new(text).range(at..)) else {
                        break;
                    };
                    let (start, mut end) = (hit.start(), hit.end());
                    match tail {
                        Some(Tail::Run) if hit.pattern().as_usize() == 1 && end < text.len() => {
                            // `\s+` took the whole run, so a word follows.
                            let last = text[start..end].chars().next_back().map_or(0, char::len_utf8);
                            if start < end - last {
                                end -= last;
                            }
                        }
                        Some(Tail::PowersOfTwo) if hit.pattern().as_usize() == 1 => {
                            at = powers_of_two(&text[start..end], end == text.len(), |part| {
                                found(start + part.start, start + part.end)
                            })?;
                            at += start;
                            continue;
                        }
                        _ => {}
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
            Self::DigitGroups(runs) => {
                for run in runs.find_iter(text) {
                    // `\b` must hold somewhere behind a group, and inside a run it does not.
                    if text[run.end()..].chars().next().is_some_and(is_onigurumas_word) {
                        continue;
                    }
                    let mut start = run.start();
                    for end in thirds(text, run.range()).skip_while(|&cut| cut == run.start()).chain([run.end()]) {
                        found(start, end)?;
                        start = end;
                    }
                }
                Ok(())
            }
            Self::DigitCuts(runs) => {
                for run in runs.find_iter(text) {
                    thirds(text, run.range()).try_for_each(|cut| found(cut, cut))?;
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

fn compiled(patterns: &[&str]) -> Result<meta::Regex, Refusal> {
    let config = meta::Config::new().nfa_size_limit(Some(AUTOMATON_BYTES_MAX));
    meta::Builder::new().configure(config).build_many(patterns).map_err(|_| "cannot be compiled within the size limit")
}

/// Calls `found` with the parts that the end of [`JAIS2`] makes of a run of whitespace, and returns where they end: before
/// the run's last character, unless the text ends there or the run has no other.
///
/// The parts follow from the run's length alone. What else in the pattern begins with whitespace takes a single character
/// of it, or a run with an end of line, which it would have taken from the start.
fn powers_of_two(
    run: &str,
    ends_text: bool,
    mut found: impl FnMut(Range<usize>) -> Result<(), TokenizerError>,
) -> Result<usize, TokenizerError> {
    let mut left = run.chars().count();
    let mut bounds = run.char_indices().map(|(at, _)| at).skip(1).chain([run.len()]);
    let mut start = 0;
    loop {
        // `\s{n}(?!\S)`: whitespace or the end of the text follows the part.
        let fits = |part: &usize| *part < left || *part == left && ends_text;
        let part = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(fits).unwrap_or(1);
        let end = bounds.nth(part - 1).unwrap_or(run.len());
        found(start..end)?;
        (start, left) = (end, left - part);
        if left == 0 || left == 1 && !ends_text {
            return Ok(start);
        }
    }
}

/// The places in a run of digits that have a multiple of three of them behind, the end left out.
fn thirds(text: &str, run: Range<usize>) -> impl Iterator<Item = usize> {
    let count = text[run.clone()].chars().count();
    let places = text[run.clone()].char_indices().enumerate();
    places.filter(move |(index, _)| (count - index).is_multiple_of(3)).map(move |(_, (at, _))| run.start + at)
}

/// Whether Oniguruma, which published patterns are run on, takes a character for a part of a word (`\w`, and so for `\b`).
/// It counts six more of Latin-1 than `regex` does, and no joiners.
fn is_onigurumas_word(c: char) -> bool {
    let regex_does = regex_syntax::try_is_word_character(c).unwrap_or_else(|_| c.is_alphanumeric());
    matches!(c, '²' | '³' | '¹' | '¼' | '½' | '¾') || regex_does && !matches!(c, '\u{200c}' | '\u{200d}')
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
