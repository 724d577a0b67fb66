//! Stop strings on streamed text: what may be shown now, what must wait, and when to end.

use crate::EngineError;

/// Most stop strings, and most bytes of one.
const STOP_STRINGS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;

/// Watches a text that comes in pieces for strings that end it.
///
/// The text ends at the stop string that is complete first (of several complete at once, the longest). Text before it
/// is given out exactly, however it is cut into pieces; what might be the beginning of a stop string is held back until
/// it is known. Time is linear in the text for each stop string.
#[derive(Clone, Debug)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// What was given out with the last piece, then what is held back.
    buffer: String,
    /// Bytes of `buffer` that were given out.
    given_out: usize,
    stopped: Option<usize>,
}

/// Text that may be shown, and whether it is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopText<'a> {
    /// New text to show.
    pub text: &'a str,
    /// The index of the stop string that ended the text.
    pub stopped: Option<usize>,
}

/// A stop string, with how much of it the text ends with (Knuth, Morris, Pratt).
#[derive(Clone, Debug)]
struct Pattern {
    bytes: Vec<u8>,
    /// `borders[n]`: of the first n + 1 bytes, how many of the last are also the first (but not all).
    borders: Vec<usize>,
    matched: usize,
}

impl StopStrings {
    /// Watches for any of `strings`: up to 16, of 1 to 256 bytes.
    pub fn new<S: AsRef<str>>(strings: &[S]) -> Result<Self, EngineError> {
        if strings.len() > STOP_STRINGS_MAX {
            let found = format!("a list of {}", strings.len());
            return Err(EngineError::parameter("stop", found, format!("at most {STOP_STRINGS_MAX} strings")));
        }
        for string in strings.iter().map(AsRef::as_ref) {
            if string.is_empty() || string.len() > STOP_BYTES_MAX {
                let found = format!("a string of {} bytes", string.len());
                return Err(EngineError::parameter("stop", found, format!("of 1 to {STOP_BYTES_MAX} bytes each")));
            }
        }
        Ok(Self {
            patterns: strings.iter().map(|string| Pattern::new(string.as_ref())).collect(),
            buffer: String::new(),
            given_out: 0,
            stopped: None,
        })
    }

    /// Takes the next piece of text; returns what may be shown now. After a stop, nothing more is.
    pub fn push(&mut self, piece: &str) -> StopText<'_> {
        self.buffer.drain(..self.given_out);
        self.given_out = 0;
        if self.stopped.is_some() {
            return StopText { text: "", stopped: self.stopped };
        }
        let start = self.buffer.len();
        self.buffer.push_str(piece);
        for (end, byte) in (start + 1..).zip(piece.bytes()) {
            let complete = self.patterns.iter_mut().map(|pattern| pattern.push(byte)).enumerate();
            // Of several that end here, the longest; of equals, the first.
            let longest = complete.filter(|(_, length)| *length > 0).max_by_key(|&(i, length)| (length, !i));
            if let Some((index, length)) = longest {
                self.stopped = Some(index);
                self.buffer.truncate(end - length);
                self.given_out = self.buffer.len();
                return StopText { text: &self.buffer, stopped: self.stopped };
            }
        }
        // A pattern begins with a whole character, so what it holds back begins with one.
        let held_back = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        self.given_out = self.buffer.len() - held_back;
        StopText { text: &self.buffer[..self.given_out], stopped: None }
    }

    /// The text has ended by itself: returns what was held back.
    pub fn finish(&mut self) -> &str {
        self.buffer.drain(..self.given_out);
        self.given_out = self.buffer.len();
        for pattern in &mut self.patterns {
            pattern.matched = 0;
        }
        &self.buffer
    }
}

impl Pattern {
    fn new(string: &str) -> Self {
        let bytes = string.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for end in 1..bytes.len() {
            while border > 0 && bytes[end] != bytes[border] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[end] == bytes[border]);
            borders[end] = border;
        }
        Self { bytes, borders, matched: 0 }
    }

    /// Takes the next byte; returns the pattern's length if it is complete, else 0.
    fn push(&mut self, byte: u8) -> usize {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        if self.matched < self.bytes.len() {
            return 0;
        }
        self.matched = 0; // the text ends here
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// All text shown, and the stop: with the text cut at `cuts`.
    fn streamed(stops: &[String], pieces: &[&str]) -> (String, Option<usize>) {
        let mut watch = StopStrings::new(stops).unwrap();
        let mut shown = String::new();
        for piece in pieces {
            let StopText { text, stopped } = watch.push(piece);
            shown.push_str(text);
            if stopped.is_some() {
                return (shown, stopped);
            }
        }
        shown.push_str(watch.finish());
        (shown, None)
    }

    /// The meaning: the shortest beginning of the text that ends with a stop string, without the longest such.
    fn reference(stops: &[String], text: &str) -> (String, Option<usize>) {
        for end in (1..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = (0..stops.len()).filter(|&i| text[..end].ends_with(&stops[i]));
            if let Some(i) = ending.max_by_key(|&i| (stops[i].len(), std::cmp::Reverse(i))) {
                return (text[..end - stops[i].len()].to_owned(), Some(i));
            }
        }
        (text.to_owned(), None)
    }

    #[test]
    fn only_what_may_begin_a_stop_string_is_held_back() {
        let mut watch = StopStrings::new(&["\n\nUser:", "</s>"]).unwrap();
        assert_eq!(watch.push("Hi.\n"), StopText { text: "Hi.", stopped: None });
        assert_eq!(watch.push("\n"), StopText { text: "", stopped: None });
        assert_eq!(watch.push("\nU"), StopText { text: "\n", stopped: None });
        assert_eq!(watch.push("ser: x"), StopText { text: "", stopped: Some(0) });
        assert_eq!(watch.push("more"), StopText { text: "", stopped: Some(0) });
        assert_eq!(watch.finish(), "");
    }

    #[test]
    fn held_back_text_comes_at_the_end() {
        let mut watch = StopStrings::new(&["abc"]).unwrap();
        assert_eq!(watch.push("xab").text, "x");
        assert_eq!(watch.finish(), "ab");
        assert_eq!(watch.finish(), "");
    }

    #[test]
    fn wrong_stop_strings_are_refused() {
        let error = |strings: &[String]| StopStrings::new(strings).unwrap_err().to_string();
        assert_eq!(error(&[String::new()]), "stop is a string of 0 bytes, but must be of 1 to 256 bytes each");
        assert_eq!(error(&["x".repeat(257)]), "stop is a string of 257 bytes, but must be of 1 to 256 bytes each");
        assert_eq!(error(&vec!["x".to_owned(); 17]), "stop is a list of 17, but must be at most 16 strings");
        StopStrings::new(&vec!["x".repeat(256); 16]).unwrap();
    }

    /// Steps of the matcher are bounded by twice the text, on the text that makes it go back most.
    #[test]
    fn a_text_of_near_misses_takes_linear_time() {
        let mut pattern = Pattern::new(&("a".repeat(255) + "b"));
        let mut backtracks = 0;
        for i in 0..1_000_000 {
            let byte = if i % 300 == 299 { b'c' } else { b'a' };
            let before = pattern.matched;
            assert_eq!(pattern.push(byte), 0);
            backtracks += before.saturating_sub(pattern.matched);
        }
        assert!(backtracks <= 1_000_000, "{backtracks}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn any_cut_of_the_text_gives_what_the_whole_gives(
            stops in prop::collection::vec("[abé]{1,5}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(streamed(&stops, &pieces), reference(&stops, &pieces.concat()));
        }

        #[test]
        fn no_more_is_held_back_than_must_be(stop in "[ab]{1,6}", text in "[ab]{0,12}") {
            let mut watch = StopStrings::new(std::slice::from_ref(&stop)).unwrap();
            let StopText { text: shown, stopped } = watch.push(&text);
            if stopped.is_none() {
                let held = (0..=text.len()).map(|start| &text[start..]).find(|end| stop.starts_with(end)).unwrap();
                prop_assert_eq!(shown, &text[..text.len() - held.len()]);
            }
        }
    }
}
