//! Line breaks between words, for answers that come piece by piece to a terminal.
//!
//! A word is held back until it is whole, so that it stands on one line. Code between fences and the rows of tables stay as
//! they are, because a break changes what they mean. What continues an item of a list stands below the item's text.

use console::measure_text_width;

/// What begins and ends code, at least so many times.
const FENCES: [char; 2] = ['`', '~'];
const FENCE_LEN: usize = 3;
/// What no line begins with in Chinese and Japanese.
const CLOSING: &str = "。、，．！？：；）」』】》〉…ー";
/// What a tab may take.
const TAB_COLUMNS: usize = 8;

/// Breaks the lines of one answer.
#[derive(Debug, Default)]
pub(crate) struct WordWrap {
    line: Line,
    /// The word that is not whole yet, and the blanks before it.
    word: String,
    blanks: String,
    /// Columns of the line that are written.
    column: usize,
    /// Columns that the next line begins with, if this one goes on there.
    indent: usize,
    /// What ends the code that the text is in: this, so many times or more.
    fence: (char, usize),
    /// The line of code so far, because only a whole line says whether it ends the code.
    code: String,
}

/// What the line that is being written is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Line {
    /// It has no word yet, which would say so.
    #[default]
    Blank,
    /// It is broken between words.
    Words,
    /// A row of a table.
    Row,
    /// It begins code.
    Fence,
    Code,
}

impl Line {
    fn is_broken(self) -> bool {
        matches!(self, Self::Blank | Self::Words)
    }
}

impl WordWrap {
    /// What is to be written after the next piece of the text, on a terminal of so many columns.
    pub(crate) fn push(&mut self, text: &str, columns: usize) -> String {
        let mut out = String::with_capacity(text.len() + 2);
        for c in text.chars() {
            if c == '\n' {
                self.place_word(columns, &mut out);
                self.end_line();
                out.push(c);
                continue;
            }
            let is_blank = c == ' ' || c == '\t';
            if is_blank || self.word.chars().next_back().is_some_and(|last| may_break(last, c)) {
                self.place_word(columns, &mut out);
            }
            match (self.line.is_broken(), is_blank) {
                (true, true) => self.blanks.push(c),
                (true, false) => self.word.push(c),
                (false, _) => {
                    self.code.push(c);
                    out.push(c);
                }
            }
        }
        out
    }

    /// What is still held back at the end of the text.
    pub(crate) fn finish(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.place_word(columns, &mut out);
        out
    }

    /// Writes the word that is held back, on the next line if this one has no room for it.
    fn place_word(&mut self, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let (word, blanks) = (std::mem::take(&mut self.word), std::mem::take(&mut self.blanks));
        let width = measure_text_width(&word);
        let blank_width = blanks.chars().map(|c| if c == '\t' { TAB_COLUMNS } else { 1 }).sum::<usize>();
        if self.line == Line::Blank {
            self.begin_line(&word, blank_width, columns);
        }
        let is_full = self.column + blank_width + width > columns;
        if self.line == Line::Words && is_full && self.column > self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', self.indent));
            self.column = self.indent;
        } else {
            out.push_str(&blanks);
            self.column += blank_width;
        }
        out.push_str(&word);
        self.column += width;
        if self.column > columns {
            // The terminal breaks a word that is longer than a line.
            self.column %= columns.max(1);
        }
    }

    /// Looks at the first word of a line, which has so many columns of blanks before it.
    fn begin_line(&mut self, word: &str, blank_width: usize, columns: usize) {
        let first = word.chars().next().unwrap_or_default();
        let count = word.chars().take_while(|c| *c == first).count();
        if FENCES.contains(&first) && count >= FENCE_LEN {
            self.fence = (first, count);
            self.line = Line::Fence;
        } else if first == '|' {
            self.line = Line::Row;
        } else {
            self.line = Line::Words;
            let number = word.strip_suffix(['.', ')']).unwrap_or_default();
            let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            let is_item = is_number || ["-", "*", "+", "•"].contains(&word);
            let indent = blank_width + if is_item { measure_text_width(word) + 1 } else { 0 };
            self.indent = if indent * 2 <= columns { indent } else { 0 };
        }
    }

    fn end_line(&mut self) {
        let code = std::mem::take(&mut self.code);
        let (fence, count) = self.fence;
        let ends_code = || {
            let code = code.trim();
            code.chars().all(|c| c == fence) && code.chars().count() >= count
        };
        self.line = match self.line {
            Line::Fence => Line::Code,
            Line::Code if !ends_code() => Line::Code,
            _ => Line::Blank,
        };
        // Nobody sees the blanks that a line ends with.
        self.blanks.clear();
        self.column = 0;
        self.indent = 0;
    }
}

/// Whether a line may end between two characters of which none is a blank: beside those that take two columns, as
/// Chinese and Japanese are written without blanks.
fn may_break(last: char, next: char) -> bool {
    let is_wide = |c: char| measure_text_width(c.encode_utf8(&mut [0; 4])) == 2;
    (is_wide(last) || is_wide(next)) && !CLOSING.contains(next) && !next.is_ascii_punctuation() && is_visible(next)
}

/// Whether a character has a column of its own; those that change the one before (an accent, a joiner) have none.
fn is_visible(c: char) -> bool {
    measure_text_width(c.encode_utf8(&mut [0; 4])) > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as it is written on so many columns; the same, however it comes in pieces.
    fn wrapped(text: &str, columns: usize) -> String {
        let of_pieces = |len: usize| {
            let chars: Vec<char> = text.chars().collect();
            let mut wrap = WordWrap::default();
            let pieces = chars.chunks(len).map(|piece| piece.iter().collect::<String>());
            let mut out: String = pieces.map(|piece| wrap.push(&piece, columns)).collect();
            out.push_str(&wrap.finish(columns));
            out
        };
        let whole = of_pieces(text.chars().count().max(1));
        for len in 1..5 {
            assert_eq!(of_pieces(len), whole, "pieces of {len}");
        }
        whole
    }

    #[test]
    fn a_line_is_broken_between_words() {
        assert_eq!(wrapped("one two three four", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("one two", 7), "one two");
        assert_eq!(wrapped("one  two \nthree", 20), "one  two\nthree");
        assert_eq!(wrapped("a\n\nb", 1), "a\n\nb");
        assert_eq!(wrapped("", 10), "");
        assert_eq!(wrapped("ends in\n", 80), "ends in\n");
    }

    #[test]
    fn a_word_longer_than_a_line_is_left_to_the_terminal() {
        assert_eq!(wrapped("see https://example.org/a/b/c ok", 10), "see\nhttps://example.org/a/b/c ok");
        // So is everything where nobody knows how wide it is.
        assert_eq!(wrapped("abcdefghij k", 0), "abcdefghij k");
    }

    #[test]
    fn what_continues_an_item_stands_below_its_text() {
        assert_eq!(wrapped("- one two three", 9), "- one two\n  three");
        assert_eq!(wrapped("10. one two", 8), "10. one\n    two");
        assert_eq!(wrapped("  * one two", 8), "  * one\n    two");
        assert_eq!(wrapped("  one two", 6), "  one\n  two");
        // An indentation of more than half a line leaves no room.
        assert_eq!(wrapped("      one two three", 10), "      one\ntwo three");
    }

    #[test]
    fn code_and_tables_stay_as_they_are() {
        let code = "```rust\nfn main() { a_long_line(); }\n  ``\n```\n";
        assert_eq!(wrapped(code, 8), code);
        assert_eq!(wrapped("~~~~\na b c d e f\n~~~\n  ~~~~\none two", 5), "~~~~\na b c d e f\n~~~\n  ~~~~\none\ntwo");
        let table = "| a | b |\n|---|---|\n| 1 2 3 | 4 |\n";
        assert_eq!(wrapped(table, 6), table);
        assert_eq!(wrapped("a ``` b c d", 5), "a ```\nb c d");
        assert_eq!(wrapped("``` one two three", 5), "``` one two three");
    }

    #[test]
    fn text_without_blanks_is_broken_between_its_characters() {
        assert_eq!(wrapped("天地玄黃宇宙洪荒", 8), "天地玄黃\n宇宙洪荒");
        // A full stop goes to the next line with what it ends.
        assert_eq!(wrapped("天地玄黃。宇宙", 8), "天地玄\n黃。宇宙");
        assert_eq!(wrapped("用Rust写的", 6), "用Rust\n写的");
        assert_eq!(wrapped("e\u{301}e\u{301} e\u{301}", 4), "e\u{301}e\u{301} e\u{301}");
    }
}
