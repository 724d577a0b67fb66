//! `tokenizer.model`: SentencePiece's own file, a protocol buffer with pieces, their scores and types.
//!
//! Its numbers of fields are those of sentencepiece_model.proto; what is not needed is skipped. Models of BPE alone are
//! read: those of Llama, Mistral and Gemma.

use tokenizers::AddedToken;

use crate::error::{TokenizerError, guarded, shortened};
use crate::gguf_vocab::{GgufVocabulary, sentence_piece};
use crate::pre_tokenizer::PreTokenizer;
use crate::side_files::{Beside, CONFIG_FILE, SideFiles};
use crate::tokenizer::{AddedTokens, Tokenizer};

const FILE: &str = "tokenizer.model";
const LOADING: &str = "loading tokenizer.model";

/// The largest file that is read; Gemma's has 5 MiB.
const MODEL_BYTES_MAX: usize = 64 << 20;
/// The most ids without a token below those of added tokens.
const GAPS_MAX: usize = 1 << 16;

/// Types of pieces, which GGUF has taken over.
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

impl Tokenizer {
    /// Loads SentencePiece's `tokenizer.model`, with the files beside it.
    ///
    /// A space goes before every text between special tokens, as SentencePiece does it; where `tokenizer_config.json`
    /// has `legacy` as false, before the first one alone, unless that starts with a space.
    ///
    /// # Errors
    /// Files that are malformed or too large; kinds of models and of normalization that are not covered, by name.
    pub fn from_sentence_piece(model: &[u8], beside: SideFiles<'_>) -> Result<Self, TokenizerError> {
        guarded(LOADING, || {
            let beside = beside.read()?;
            let vocabulary = read(model, &beside)?;
            let mut types = vocabulary.checked_types()?;
            let fim = vocabulary.fim(&mut types);
            let (prefix, suffix) = (vocabulary.add_bos == Some(true), vocabulary.add_eos == Some(true));
            let (bos, eos) = (vocabulary.bos_id, vocabulary.eos_id);
            let added = added_tokens(&vocabulary, &beside);
            let marks_first_alone = beside.flag("legacy") == Some(false) && vocabulary.add_space_prefix == Some(true);
            let mut tokenizer = sentence_piece(vocabulary, &types)?;
            if marks_first_alone {
                tokenizer.normalizer = None;
                tokenizer.pre_tokenizer = PreTokenizer::marks_first_text();
            }
            tokenizer.added = AddedTokens::new(added, None).map_err(|error| TokenizerError::library(LOADING, error))?;
            tokenizer.roles.eos = eos.into_iter().collect();
            tokenizer.roles.prefix = bos.filter(|_| prefix).into_iter().collect();
            tokenizer.roles.suffix = eos.filter(|_| suffix).into_iter().collect();
            tokenizer.set_fim(fim);
            Ok(tokenizer)
        })
    }
}

impl GgufVocabulary {
    /// The vocabulary of `tokenizer.model` as a GGUF file has it.
    ///
    /// # Errors
    /// As [`Tokenizer::from_sentence_piece`].
    pub fn from_sentence_piece(model: &[u8], beside: SideFiles<'_>) -> Result<Self, TokenizerError> {
        read(model, &beside.read()?)
    }
}

/// The file, and what is added to it.
fn read(model: &[u8], beside: &Beside) -> Result<GgufVocabulary, TokenizerError> {
    let mut vocabulary = read_model(model)?;
    add_tokens(&mut vocabulary, beside)?;
    let id_of = |text: &str| vocabulary.tokens.iter().position(|token| token == text).map(|at| at as u32);
    let named = |key: &str, default: Option<u32>| match beside.token(key) {
        None => Ok(default),
        Some(text) => id_of(text).map(Some).ok_or_else(|| {
            let message = format!("names `{}`, which `{FILE}` does not have", shortened(text, 40));
            TokenizerError::field(CONFIG_FILE, key, message)
        }),
    };
    let (bos, eos) = (named("bos_token", vocabulary.bos_id)?, named("eos_token", vocabulary.eos_id)?);
    let unk = named("unk_token", vocabulary.unk_id)?;
    // A token for padding is of no use to inference, and some configurations name one that is nowhere.
    let pad = beside.token("pad_token").map_or(vocabulary.pad_id, id_of);
    vocabulary.bos_id = bos;
    vocabulary.eos_id = eos;
    vocabulary.unk_id = unk;
    vocabulary.pad_id = pad;
    vocabulary.add_bos = Some(beside.flag("add_bos_token").unwrap_or(true));
    vocabulary.add_eos = Some(beside.flag("add_eos_token").unwrap_or(false));
    if let Some(prefix) = beside.flag("add_prefix_space") {
        vocabulary.add_space_prefix = Some(prefix);
    }
    Ok(vocabulary)
}

/// Puts the tokens of the files beside into the vocabulary.
fn add_tokens(vocabulary: &mut GgufVocabulary, beside: &Beside) -> Result<(), TokenizerError> {
    let ids_max = vocabulary.tokens.len() + beside.added.len() + GAPS_MAX;
    for (id, token) in &beside.added {
        let text = as_piece(token);
        let len = vocabulary.tokens.len() as u32;
        let wrong =
            |message: String| Err(TokenizerError::field(CONFIG_FILE, format!("added_tokens_decoder.{id}"), message));
        if *id < len {
            let at = *id as usize;
            let piece = vocabulary.tokens.get(at).unwrap_or_default();
            if piece != text && piece != token.content {
                let (text, piece) = (shortened(&text, 40), shortened(piece, 40));
                return wrong(format!("is `{text}`, but `{FILE}` has `{piece}` there"));
            }
            let kind = &mut vocabulary.token_types[at];
            *kind = match (*kind, token.special) {
                (UNKNOWN, _) => UNKNOWN,
                (_, true) => CONTROL,
                (_, false) => USER_DEFINED,
            };
            continue;
        }
        if *id as usize >= ids_max {
            return wrong(format!("is beyond the vocabulary: ids must be below {ids_max}"));
        }
        for hole in len..*id {
            push(vocabulary, &format!("[PAD{hole}]"), 0.0, UNUSED);
        }
        push(vocabulary, &text, 0.0, if token.special { CONTROL } else { USER_DEFINED });
    }
    Ok(())
}

/// The text of an added token as a piece: a plain one has marks for spaces.
fn as_piece(token: &AddedToken) -> String {
    if token.special { token.content.clone() } else { token.content.replace(' ', "▁") }
}

fn push(vocabulary: &mut GgufVocabulary, text: &str, score: f32, kind: i32) {
    vocabulary.tokens.push(text);
    vocabulary.scores.push(score);
    vocabulary.token_types.push(kind);
}

/// Tokens that are found in the text before the model sees it: those of the files beside, and the other ones that the
/// model says are control or user-defined.
fn added_tokens(vocabulary: &GgufVocabulary, beside: &Beside) -> Vec<(u32, AddedToken)> {
    let listed = beside.added.iter().map(|(id, token)| (*id, token.clone().normalized(false)));
    let mut added: Vec<(u32, AddedToken)> = listed.collect();
    let types = vocabulary.tokens.iter().zip(&vocabulary.token_types);
    for (id, (text, kind)) in (0u32..).zip(types) {
        let is_listed = beside.added.binary_search_by_key(&id, |(id, _)| *id).is_ok();
        let token = match *kind {
            UNKNOWN | CONTROL => AddedToken::from(text, true),
            USER_DEFINED => AddedToken::from(text.replace('▁', " "), false),
            _ => continue,
        };
        if !is_listed && !text.is_empty() {
            added.push((id, token.normalized(false)));
        }
    }
    added
}

/// What `tokenizer.model` says by itself.
fn read_model(bytes: &[u8]) -> Result<GgufVocabulary, TokenizerError> {
    if bytes.len() > MODEL_BYTES_MAX {
        return Err(TokenizerError::TooLarge { file: FILE, bytes: bytes.len(), limit: MODEL_BYTES_MAX });
    }
    let mut vocabulary = GgufVocabulary {
        model: "llama".to_owned(),
        bos_id: Some(1),
        eos_id: Some(2),
        unk_id: Some(0),
        add_space_prefix: Some(true),
        ..GgufVocabulary::default()
    };
    let mut kind = 1;
    let mut normalizer = Normalizer { remove_extra_whitespaces: true, ..Normalizer::default() };
    for field in Fields::of(bytes, "ModelProto") {
        match field? {
            (1, Wire::Bytes(piece)) => read_piece(piece, &mut vocabulary)?,
            (2, Wire::Bytes(trainer)) => kind = read_trainer(trainer, &mut vocabulary)?,
            (3, Wire::Bytes(spec)) => normalizer.read(spec, &mut vocabulary)?,
            _ => {}
        }
    }
    if vocabulary.tokens.is_empty() {
        return Err(TokenizerError::field(FILE, "pieces", "has none: is it a SentencePiece model?"));
    }
    if kind != 2 {
        let name = match kind {
            1 => "UNIGRAM".to_owned(),
            3 => "WORD".to_owned(),
            4 => "CHAR".to_owned(),
            other => format!("{other}"),
        };
        let message = format!("is {name}; BPE alone is covered: put the model's tokenizer.json beside it");
        return Err(TokenizerError::field(FILE, "trainer_spec.model_type", message));
    }
    normalizer.check()?;
    let len = vocabulary.tokens.len();
    let roles = [&mut vocabulary.unk_id, &mut vocabulary.bos_id, &mut vocabulary.eos_id, &mut vocabulary.pad_id];
    for (role, name) in roles.into_iter().zip(["unk_id", "bos_id", "eos_id", "pad_id"]) {
        if let Some(id) = role.filter(|&id| id as usize >= len) {
            let message = format!("is {id}, but the model has {len} pieces");
            return Err(TokenizerError::field(FILE, format!("trainer_spec.{name}"), message));
        }
    }
    Ok(vocabulary)
}

fn read_piece(bytes: &[u8], vocabulary: &mut GgufVocabulary) -> Result<(), TokenizerError> {
    let (mut text, mut score, mut kind) = (&b""[..], 0.0, 1);
    for field in Fields::of(bytes, "pieces") {
        match field? {
            (1, Wire::Bytes(piece)) => text = piece,
            (2, Wire::Four(bits)) => score = f32::from_bits(bits),
            (3, Wire::Number(number)) => kind = i32::try_from(number).unwrap_or(0),
            _ => {}
        }
    }
    let at = vocabulary.tokens.len();
    let wrong = |field: &str, message: &str| TokenizerError::field(FILE, format!("pieces[{at}].{field}"), message);
    let text = std::str::from_utf8(text).map_err(|_| wrong("piece", "is not UTF-8"))?;
    if !(1..=6).contains(&kind) {
        return Err(wrong("type", &format!("is {kind}; types are 1 to 6")));
    }
    if score.is_nan() {
        return Err(wrong("score", "is not a number"));
    }
    if text.is_empty() {
        return Err(wrong("piece", "is empty"));
    }
    push(vocabulary, text, score, kind);
    Ok(())
}

/// Reads `trainer_spec`, and returns the kind of model.
fn read_trainer(bytes: &[u8], vocabulary: &mut GgufVocabulary) -> Result<u64, TokenizerError> {
    let mut kind = 1;
    // Negative numbers, which stand for no token, have 64 bits.
    let id = |number: u64| u32::try_from(number).ok().filter(|&id| id <= i32::MAX as u32);
    for field in Fields::of(bytes, "trainer_spec") {
        match field? {
            (3, Wire::Number(number)) => kind = number,
            (24, Wire::Number(1..)) => {
                let message = "is true: spaces after words are not covered";
                return Err(TokenizerError::field(FILE, "trainer_spec.treat_whitespace_as_suffix", message));
            }
            (40, Wire::Number(number)) => vocabulary.unk_id = id(number),
            (41, Wire::Number(number)) => vocabulary.bos_id = id(number),
            (42, Wire::Number(number)) => vocabulary.eos_id = id(number),
            (43, Wire::Number(number)) => vocabulary.pad_id = id(number),
            _ => {}
        }
    }
    Ok(kind)
}

/// What of `normalizer_spec` has to be as Llama's is.
#[derive(Default)]
struct Normalizer {
    name: String,
    has_map: bool,
    remove_extra_whitespaces: bool,
    keeps_spaces: bool,
}

impl Normalizer {
    fn read(&mut self, bytes: &[u8], vocabulary: &mut GgufVocabulary) -> Result<(), TokenizerError> {
        for field in Fields::of(bytes, "normalizer_spec") {
            match field? {
                (1, Wire::Bytes(name)) => self.name = String::from_utf8_lossy(name).into_owned(),
                (2, Wire::Bytes(map)) => self.has_map = !map.is_empty(),
                (3, Wire::Number(number)) => vocabulary.add_space_prefix = Some(number != 0),
                (4, Wire::Number(number)) => self.remove_extra_whitespaces = number != 0,
                (5, Wire::Number(number)) => self.keeps_spaces = number == 0,
                _ => {}
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TokenizerError> {
        let refused = |field: &str, message: String| {
            let message = format!("{message}: put the model's tokenizer.json beside it");
            Err(TokenizerError::field(FILE, format!("normalizer_spec.{field}"), message))
        };
        if self.has_map {
            let name = shortened(&self.name, 40);
            return refused("name", format!("is `{name}`, with a map of characters; `identity` alone is covered"));
        }
        if self.remove_extra_whitespaces {
            return refused("remove_extra_whitespaces", "is true, which is not covered".to_owned());
        }
        if self.keeps_spaces {
            return refused("escape_whitespaces", "is false, which is not covered".to_owned());
        }
        Ok(())
    }
}

/// The value of a field of a protocol buffer.
#[derive(Debug, PartialEq)]
enum Wire<'a> {
    Number(u64),
    Eight,
    Bytes(&'a [u8]),
    Four(u32),
}

/// The fields of a message, in order. Ends after the first that is malformed.
struct Fields<'a> {
    left: &'a [u8],
    message: &'static str,
}

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8], message: &'static str) -> Self {
        Self { left: bytes, message }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for (shift, &byte) in (0..).step_by(7).zip(self.left.iter().take(10)) {
            let bits = u64::from(byte & 0x7F);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                self.left = &self.left[shift / 7 + 1..];
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.split_at_checked(len)?;
        self.left = left;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Number(self.varint()?),
            1 => self.take(8).map(|_| Wire::Eight)?,
            2 => {
                let len = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(len)?)
            }
            5 => Wire::Four(u32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            _ => return None,
        };
        Some((key >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), TokenizerError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left.is_empty() {
            return None;
        }
        let left = self.left.len();
        Some(self.field().ok_or_else(|| {
            self.left = &[];
            let message = format!(
                "has a field that is malformed or cut short, {left} bytes before its end: is it a SentencePiece model, \
                 and the download complete?"
            );
            TokenizerError::field(FILE, self.message, message)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(bytes: &[u8]) -> Option<Vec<(u64, Wire<'_>)>> {
        Fields::of(bytes, "message").collect::<Result<_, _>>().ok()
    }

    #[test]
    fn all_wire_types_are_read() {
        let bytes = [0x08, 0x96, 0x01, 0x12, 2, b'a', b'b', 0x1D, 1, 0, 0, 0, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let expected = [(1, Wire::Number(150)), (2, Wire::Bytes(b"ab")), (3, Wire::Four(1)), (4, Wire::Eight)];
        assert_eq!(fields(&bytes).expect("good"), expected);
        let minus_one = [&[0x08][..], &[0xFF; 9], &[1]].concat();
        assert_eq!(fields(&minus_one).expect("good"), [(1, Wire::Number(u64::MAX))]);
    }

    #[test]
    fn malformed_messages_are_refused() {
        let too_long = [&[0x08][..], &[0xFF; 10], &[1]].concat();
        let too_large = [&[0x08][..], &[0xFF; 9], &[2]].concat();
        let huge = [&[0x0A][..], &[0xFF; 9], &[1]].concat();
        for bytes in [&[0x08][..], &[0x0A, 3, 1, 2], &[0x0B], &[0x0F], &[0x0D, 1], &too_long, &too_large, &huge] {
            assert_eq!(fields(bytes), None, "{bytes:?}");
        }
    }
}
