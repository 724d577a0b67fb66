//! Ids and what they stand for: the token's text, the bytes that it adds to a decoded text, and flags.

use crate::error::TokenizerError;
use crate::texts::Texts;

/// Tables over all ids, flat: a vocabulary of 150,000 tokens is three allocations.
#[derive(Debug, Default)]
pub(crate) struct Vocabulary {
    /// All texts; `spans[id]` says where that of `id` lies.
    text: String,
    spans: Vec<(u32, u32)>,
    kinds: Vec<Kind>,
    rule: TokenBytes,
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

/// How a token's text becomes bytes, as the Hugging Face decoder of the same name does it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TokenBytes {
    /// Each character stands for a byte (GPT-2's alphabet); a token with any other character is itself.
    #[default]
    ByteLevel,
    /// Texts are replaced in the token, in order; with `byte_fallback`, `<0x0A>` is that byte.
    Text { replace: Vec<(String, String)>, byte_fallback: bool },
}

impl TokenBytes {
    /// Appends the bytes of a token.
    fn push_bytes(&self, text: &str, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => {
                let start = out.len();
                for c in text.chars() {
                    match ALPHABET.byte(c) {
                        Some(byte) => out.push(byte),
                        None => {
                            out.truncate(start);
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
struct Alphabet {
    byte_of: [Option<u8>; 0x144],
}

const ALPHABET: &Alphabet = &Alphabet::new();

impl Alphabet {
    const fn new() -> Self {
        let mut byte_of = [None; 0x144];
        let mut unprintable = 0x100;
        let mut code = 0;
        while code < 0x100 {
            let byte = code as u8;
            if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
                byte_of[code] = Some(byte);
            } else {
                byte_of[unprintable] = Some(byte);
                unprintable += 1;
            }
            code += 1;
        }
        Self { byte_of }
    }

    fn byte(&self, c: char) -> Option<u8> {
        *self.byte_of.get(u32::from(c) as usize)?
    }
}

/// The character of GPT-2's alphabet that stands for each byte.
pub(crate) fn alphabet() -> &'static [char; 256] {
    const CHARS: &[char; 256] = &{
        let mut chars = ['\0'; 256];
        let mut code = 0;
        while code < ALPHABET.byte_of.len() {
            if let (Some(byte), Some(c)) = (ALPHABET.byte_of[code], char::from_u32(code as u32)) {
                chars[byte as usize] = c;
            }
            code += 1;
        }
        chars
    };
    CHARS
}

impl Vocabulary {
    /// Builds the tables: `texts[i]` is the token `ids[i]`, and a later token of an id replaces an earlier one.
    ///
    /// # Errors
    /// Ids so far above the number of tokens that the tables would be mostly holes.
    pub(crate) fn new(
        file: &'static str,
        texts: Texts,
        ids: impl Iterator<Item = u32> + Clone,
        rule: TokenBytes,
    ) -> Result<Self, TokenizerError> {
        let count = texts.len();
        let len = ids.clone().max().map_or(0, |id| id as usize + 1);
        let ids_max = count.saturating_mul(4).saturating_add(65_536);
        if len > ids_max {
            return Err(TokenizerError::field(
                file,
                "vocab",
                format!("gives the id {} in a vocabulary of {count} tokens; ids must be below {ids_max}", len - 1),
            ));
        }
        let (text, ends) = texts.into_parts();
        let mut spans = vec![(0, 0); len];
        let mut kinds = vec![Kind::Absent; len];
        let mut start = 0;
        for (id, end) in ids.zip(ends) {
            spans[id as usize] = (start, end);
            kinds[id as usize] = Kind::Plain;
            start = end;
        }
        Ok(Self { text, spans, kinds, rule })
    }

    /// Makes tokens special.
    pub(crate) fn mark_special(&mut self, ids: impl Iterator<Item = u32>) {
        for id in ids {
            if let Some(kind) = self.kinds.get_mut(id as usize) {
                *kind = Kind::Special;
            }
        }
    }

    /// One more than the largest id.
    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or_default()
    }

    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        (self.kind(id) != Kind::Absent).then(|| self.raw_text(id))
    }

    /// The text of an id, empty for those of no token.
    pub(crate) fn raw_text(&self, id: u32) -> &str {
        let &(start, end) = self.spans.get(id as usize).unwrap_or(&(0, 0));
        self.text.get(start as usize..end as usize).expect("spans are of whole texts")
    }

    /// Appends what `id` adds to a decoded text; false for an id of no token.
    pub(crate) fn push_bytes(&self, id: u32, out: &mut Vec<u8>) -> bool {
        let text = self.text(id);
        if let Some(text) = text {
            self.rule.push_bytes(text, out);
        }
        text.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_gpt2s() {
        let alphabet = ALPHABET;
        for (c, byte) in [('!', b'!'), ('Ġ', b' '), ('Ċ', b'\n'), ('ÿ', 0xFF), ('Ń', 0xAD)] {
            assert_eq!(alphabet.byte(c), Some(byte), "{c}");
        }
        assert_eq!(alphabet.byte(' '), None);
        assert_eq!(alphabet.byte('\u{144}'), None);
        let bytes: std::collections::BTreeSet<u8> = alphabet.byte_of.iter().flatten().copied().collect();
        assert_eq!(bytes.len(), 256);
        for (byte, &c) in (0u8..=255).zip(super::alphabet()) {
            assert_eq!(alphabet.byte(c), Some(byte), "{c}");
        }
    }

    #[test]
    fn far_ids_are_refused() {
        let texts = ["a"].into_iter().collect();
        let error = Vocabulary::new("tokenizer.json", texts, [u32::MAX].into_iter(), TokenBytes::ByteLevel)
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
