//! Ids and what they stand for: the token's text, the bytes that it adds to a decoded text, and flags.

use crate::error::TokenizerError;

/// Tables over all ids, flat: a vocabulary of 150,000 tokens is five allocations.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    texts: Flat,
    bytes: Flat,
    kinds: Vec<Kind>,
}

/// What an id is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A hole: the files give this id to no token.
    #[default]
    Absent,
    /// Made from text by the model, or an added token that is not special.
    Plain,
    /// Control: left out of decoded text on request, made from trusted text only.
    Special,
}

/// Byte strings one after the other; string `i` ends at `ends[i]`.
#[derive(Debug, Default)]
struct Flat {
    data: Vec<u8>,
    ends: Vec<usize>,
}

impl Flat {
    fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.ends.push(self.data.len());
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.data.get(start..end)
    }
}

/// How a token's text becomes bytes, as the Hugging Face decoder of the same name does it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// Each character stands for a byte (GPT-2's alphabet); a token with any other character is itself.
    ByteLevel,
    /// Texts are replaced in the token, in order; with `byte_fallback`, `<0x0A>` is that byte.
    Text { replace: Vec<(String, String)>, byte_fallback: bool },
}

impl TokenBytes {
    fn of(&self, text: &str, alphabet: &Alphabet, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::ByteLevel => {
                for c in text.chars() {
                    match alphabet.byte(c) {
                        Some(byte) => out.push(byte),
                        None => {
                            out.clear();
                            out.extend_from_slice(text.as_bytes());
                            return;
                        }
                    }
                }
            }
            Self::Text { replace, byte_fallback } => {
                if let Some(byte) = byte_fallback.then(|| fallback_byte(text)).flatten() {
                    out.push(byte);
                    return;
                }
                let mut text = std::borrow::Cow::Borrowed(text);
                for (from, to) in replace {
                    if text.contains(from) {
                        text = text.replace(from, to).into();
                    }
                }
                out.extend_from_slice(text.as_bytes());
            }
        }
    }
}

/// The byte that SentencePiece's `<0x0A>` stands for.
pub(crate) fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || digits.starts_with('+') {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// GPT-2's bytes as printable characters: those that print stand for themselves, the others are
/// numbered from U+0100 on.
pub(crate) struct Alphabet {
    byte_of: [Option<u8>; 0x144],
}

impl Alphabet {
    pub(crate) fn new() -> Self {
        let mut byte_of = [None; 0x144];
        let mut unprintable = 0x100;
        for byte in 0..=u8::MAX {
            let prints = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
            let code = if prints {
                usize::from(byte)
            } else {
                unprintable += 1;
                unprintable - 1
            };
            byte_of[code] = Some(byte);
        }
        Self { byte_of }
    }

    fn byte(&self, c: char) -> Option<u8> {
        *self.byte_of.get(u32::from(c) as usize)?
    }
}

impl Vocabulary {
    /// Builds the tables from (id, text) pairs in any order, a later pair replacing an earlier one.
    ///
    /// # Errors
    /// Ids so far above the number of tokens that the tables would be mostly holes.
    pub(crate) fn new<'t>(
        file: &'static str,
        tokens: impl Iterator<Item = (u32, &'t str)> + Clone,
        is_special: impl Fn(u32) -> bool,
        rule: &TokenBytes,
    ) -> Result<Self, TokenizerError> {
        let count = tokens.clone().count();
        let ids = tokens.clone().map(|(id, _)| id as usize + 1).max().unwrap_or(0);
        let ids_max = count.saturating_mul(4).saturating_add(65_536);
        if ids > ids_max {
            return Err(TokenizerError::field(
                file,
                "vocab",
                format!("gives the id {} in a vocabulary of {count} tokens; ids must be below {ids_max}", ids - 1),
            ));
        }
        let mut texts = vec![None; ids];
        for (id, text) in tokens {
            texts[id as usize] = Some(text);
        }
        let alphabet = Alphabet::new();
        let mut vocabulary = Self::default();
        let mut bytes = Vec::new();
        for (id, text) in (0u32..).zip(texts) {
            bytes.clear();
            let kind = match text {
                None => Kind::Absent,
                Some(text) => {
                    rule.of(text, &alphabet, &mut bytes);
                    if is_special(id) { Kind::Special } else { Kind::Plain }
                }
            };
            vocabulary.texts.push(text.unwrap_or("").as_bytes());
            vocabulary.bytes.push(&bytes);
            vocabulary.kinds.push(kind);
        }
        Ok(vocabulary)
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or_default()
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        match self.kind(id) {
            Kind::Absent => None,
            _ => std::str::from_utf8(self.texts.get(id as usize)?).ok(),
        }
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        match self.kind(id) {
            Kind::Absent => None,
            _ => self.bytes.get(id as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_gpt2s() {
        let alphabet = Alphabet::new();
        for (c, byte) in [('!', b'!'), ('Ġ', b' '), ('Ċ', b'\n'), ('ÿ', 0xFF), ('Ń', 0xAD)] {
            assert_eq!(alphabet.byte(c), Some(byte), "{c}");
        }
        assert_eq!(alphabet.byte(' '), None);
        assert_eq!(alphabet.byte('\u{144}'), None);
        let bytes: std::collections::BTreeSet<u8> = alphabet.byte_of.iter().flatten().copied().collect();
        assert_eq!(bytes.len(), 256);
    }

    #[test]
    fn far_ids_are_refused() {
        let rule = TokenBytes::ByteLevel;
        let tokens = [(u32::MAX, "a")];
        let error = Vocabulary::new("tokenizer.json", tokens.into_iter(), |_| false, &rule)
            .expect_err("a table of 4 billion holes");
        assert!(error.to_string().contains("4294967295"), "{error}");
    }

    #[test]
    fn fallback_bytes_have_two_digits() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        for text in ["<0x+A>", "<0xA>", "<0x0A", "0x0A>", "<0xGG>"] {
            assert_eq!(fallback_byte(text), None, "{text}");
        }
    }
}
