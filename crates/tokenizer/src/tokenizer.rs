//! [`Tokenizer`]: text to ids and back, however it was loaded.

use std::ops::Range;

use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, ModelWrapper, NormalizerWrapper, OffsetReferential, OffsetType,
    PreTokenizedString, Token,
};

use crate::bpe::Bpe;
use crate::error::{TokenizerError, guarded, shortened};
use crate::pre_tokenizer::PreTokenizer;
use crate::spm::Spm;
use crate::stream_decode::{DecodeRule, StreamDecoder};
use crate::vocabulary::{Kind, Vocabulary};

/// The most text encoded in one call, in bytes.
pub const TEXT_BYTES_MAX: usize = 256 << 20;

/// Whether the text of a special token, found in a text, becomes that token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseSpecial {
    /// It does: for text that the program made, such as a rendered chat template.
    Yes,
    /// It does not, and is encoded like any other text: for text from outside.
    No,
}

impl ParseSpecial {
    /// Yes if `asked`.
    #[must_use]
    pub fn where_asked(asked: bool) -> Self {
        if asked { Self::Yes } else { Self::No }
    }
}

/// A part of a prompt, with the trust that it deserves.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The text.
    pub text: &'a str,
    /// Whether special tokens in it are honoured.
    pub special: ParseSpecial,
}

/// Text to token ids and back. Immutable once loaded; share it behind an `Arc`.
///
/// Built by [`Tokenizer::from_json`] or [`Tokenizer::from_gguf`].
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) normalizer: Option<NormalizerWrapper>,
    pub(crate) pre_tokenizer: PreTokenizer,
    pub(crate) model: Model,
    pub(crate) added: AddedTokens,
    pub(crate) decode_rule: DecodeRule,
    pub(crate) roles: Roles,
}

/// Tokens with a role, as the files name them.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Vec<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) pad: Option<u32>,
    /// What the model expects before and after a text.
    pub(crate) prefix: Vec<u32>,
    pub(crate) suffix: Vec<u32>,
}

/// From a word to tokens.
#[derive(Debug)]
pub(crate) enum Model {
    Bpe(Bpe),
    Spm(Spm),
    Library(Box<ModelWrapper>),
}

impl Model {
    fn encode_word(&self, vocabulary: &Vocabulary, word: &str) -> tokenizers::Result<Vec<Token>> {
        let token = |id| Token::new(id, String::new(), (0, 0));
        match self {
            Self::Bpe(bpe) => Ok(bpe.encode(vocabulary, word)?.into_iter().map(token).collect()),
            Self::Spm(spm) => Ok(spm.encode(vocabulary, word)?.into_iter().map(token).collect()),
            Self::Library(model) => {
                let tokens = model.tokenize(word)?;
                // The library leaves out characters that a BPE vocabulary without unknown token lacks.
                let covered = tokens.last().map_or(0, |token| token.offsets.1);
                if matches!(**model, ModelWrapper::BPE(_)) && covered != word.len() {
                    return Err(Box::new(TokenizerError::NotInVocabulary { piece: shortened(word, 40) }));
                }
                Ok(tokens)
            }
        }
    }

    fn token_to_id(&self, vocabulary: &Vocabulary, token: &str) -> Option<u32> {
        match self {
            Self::Bpe(bpe) => bpe.token_to_id(vocabulary, token),
            Self::Spm(spm) => spm.token_to_id(vocabulary, token),
            Self::Library(model) => model.token_to_id(token),
        }
    }
}

/// Tokens that are found in the text before the model sees it, in views of the library's type.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    /// All of them.
    all: AddedVocabulary,
    /// Those that are not special.
    plain: AddedVocabulary,
    /// Those that are special, found in text as it is: for splitting segments.
    special: AddedVocabulary,
    /// The same, found wherever their text stands, whatever is beside it.
    bare: AddedVocabulary,
    /// The texts of those that are special, sorted.
    special_texts: Vec<String>,
}

impl AddedTokens {
    /// Tokens keep the ids given here.
    pub(crate) fn new(
        tokens: Vec<(u32, AddedToken)>,
        normalizer: Option<&NormalizerWrapper>,
    ) -> tokenizers::Result<Self> {
        let ids = GivenIds(tokens.iter().map(|(id, token)| (token.content.clone(), *id)).collect());
        let mut all = AddedVocabulary::new();
        all.add_tokens(tokens.iter().map(|(_, token)| token.clone()), &ids, normalizer)?;
        let mut plain = all.clone();
        plain.set_encode_special_tokens(true);
        let special_tokens = || {
            let special = tokens.iter().filter(|(_, token)| token.special);
            special.map(|(_, token)| token.clone().normalized(false))
        };
        let mut special = AddedVocabulary::new();
        special.add_tokens(special_tokens(), &ids, None::<&NormalizerWrapper>)?;
        let mut bare = AddedVocabulary::new();
        let alone = |token: AddedToken| token.single_word(false).lstrip(false).rstrip(false);
        bare.add_tokens(special_tokens().map(alone), &ids, None::<&NormalizerWrapper>)?;
        let mut special_texts: Vec<String> =
            special_tokens().map(|token| token.content).filter(|text| !text.is_empty()).collect();
        special_texts.sort_unstable();
        Ok(Self { all, plain, special, bare, special_texts })
    }

    /// (id, text as decoding sees it) of all added tokens.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        let ids = self.all.get_added_tokens_decoder().keys();
        ids.filter_map(|&id| Some((id, self.all.simple_id_to_token(id)?)))
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        let token = self.all.get_added_tokens_decoder().get(&id);
        token.is_some_and(|token| token.special)
    }

    pub(crate) fn token_to_id(&self, token: &str) -> Option<u32> {
        self.all.get_vocab().get(token).copied()
    }

    /// (text as the files have it, id) of all added tokens.
    pub(crate) fn ids(&self) -> impl Iterator<Item = (&str, u32)> {
        self.all.get_vocab().iter().map(|(text, &id)| (text.as_str(), id))
    }
}

/// The ids of added tokens, in the form in which the library asks for them: without it, the library
/// would number them itself.
struct GivenIds(std::collections::HashMap<String, u32>);

impl tokenizers::Model for GivenIds {
    type Trainer = BpeTrainer;

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.get(token).copied()
    }
    fn get_vocab(&self) -> std::collections::HashMap<String, u32> {
        self.0.clone()
    }
    fn get_vocab_size(&self) -> usize {
        self.0.len()
    }
    fn id_to_token(&self, id: u32) -> Option<String> {
        let found = self.0.iter().find(|&(_, &other)| other == id);
        found.map(|(token, _)| token.clone())
    }
    fn tokenize(&self, _: &str) -> tokenizers::Result<Vec<Token>> {
        Err("added tokens split no text".into())
    }
    fn save(&self, _: &std::path::Path, _: Option<&str>) -> tokenizers::Result<Vec<std::path::PathBuf>> {
        Err("added tokens are not saved alone".into())
    }
    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

impl Tokenizer {
    /// The ids of `text`, with nothing put before or after it.
    ///
    /// Added tokens that are not special are found either way, as in Hugging Face's tokenizers.
    ///
    /// # Errors
    /// Text over [`TEXT_BYTES_MAX`] bytes or outside the vocabulary; with [`ParseSpecial::No`], text
    /// that a degenerate vocabulary would turn into a special token; failures of the library.
    pub fn encode(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        match special {
            ParseSpecial::Yes => self.encode_with(&self.added.all, text, true),
            ParseSpecial::No => self.encode_plain(text, true),
        }
    }

    /// [`Tokenizer::encode`] after the tokens that the model expects before a text (such as BOS): for a text that the model
    /// goes on with.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_after_prefix(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.roles.prefix.clone();
        ids.extend(self.encode(text, special)?);
        Ok(ids)
    }

    /// [`Tokenizer::encode`] between the tokens that the model expects around a text (such as BOS and EOS): for a text that
    /// is whole.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_special_tokens(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode_after_prefix(text, special)?;
        ids.extend(&self.roles.suffix);
        Ok(ids)
    }

    /// The ids of a text in segments of which only some may contain special tokens.
    ///
    /// What lies between two special tokens is encoded as one text, whatever segments it spans: the
    /// ids are those of the whole text, except that a special token's text in an untrusted segment,
    /// or across the edge of one, stays text, and that a token which strips the whitespace beside it
    /// (`lstrip`, `rstrip`) does so within its own trusted text only.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_segments(&self, segments: &[Segment<'_>]) -> Result<Vec<u32>, TokenizerError> {
        let mut pieces: Vec<Piece> = Vec::new();
        for run in segments.chunk_by(|a, b| a.special == b.special) {
            let text: String = run.iter().map(|segment| segment.text).collect();
            check_length(&text)?;
            match run.first().map(|segment| segment.special) {
                Some(ParseSpecial::Yes) => self.split_at_special(&text, &mut pieces)?,
                _ => push_text(&mut pieces, &text),
            }
        }
        let mut ids = Vec::new();
        for (index, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Token(id) => ids.push(*id),
                Piece::Text(text) => ids.extend(self.encode_plain(text, index == 0)?),
            }
        }
        Ok(ids)
    }

    /// Where `text` has the text of a special token, from left to right: bytes.
    ///
    /// # Errors
    /// Failures of the library.
    pub fn special_in(&self, text: &str) -> Result<Vec<Range<usize>>, TokenizerError> {
        // Most texts have none, and this is a hundred times faster.
        if !self.special_begins().any(|first| text.contains(first)) {
            return Ok(Vec::new());
        }
        guarded("looking for special tokens", || {
            let found = self.added.bare.extract_and_normalize(None::<&NormalizerWrapper>, text);
            let splits = found.get_splits(OffsetReferential::Original, OffsetType::Byte);
            let tokens = splits.into_iter().filter(|(_, _, tokens)| tokens.is_some());
            Ok(tokens.map(|(_, (start, end), _)| start..end).collect())
        })
    }

    /// Where the end of `text` may be the beginning of a special token's text, of which more would have to follow: the
    /// first such byte.
    #[must_use]
    pub fn special_begun_in(&self, text: &str) -> Option<usize> {
        let texts = &self.added.special_texts;
        let longest = texts.iter().map(String::len).max().unwrap_or(0);
        let ends = text.char_indices().rev().take_while(|(at, _)| text.len() - at < longest);
        let begins = ends.map(|(at, _)| at).filter(|&at| {
            let end = &text[at..];
            // Texts are sorted, so those that begin with it follow it.
            let next = texts.partition_point(|special| special.as_str() <= end);
            texts.get(next).is_some_and(|special| special.starts_with(end))
        });
        begins.last()
    }

    /// The characters that special tokens begin with, each once or several times.
    pub fn special_begins(&self) -> impl Iterator<Item = char> + '_ {
        let mut before = None;
        let firsts = self.added.special_texts.iter().filter_map(|text| text.chars().next());
        firsts.filter(move |&first| before.replace(first) != Some(first))
    }

    fn split_at_special(&self, text: &str, pieces: &mut Vec<Piece>) -> Result<(), TokenizerError> {
        guarded("looking for special tokens", || {
            let found = self.added.special.extract_and_normalize(None::<&NormalizerWrapper>, text);
            for (part, _, tokens) in found.get_splits(OffsetReferential::Original, OffsetType::Byte) {
                match tokens {
                    Some(tokens) => pieces.extend(tokens.iter().map(|token| Piece::Token(token.id))),
                    None => push_text(pieces, part),
                }
            }
            Ok(())
        })
    }

    fn encode_plain(&self, text: &str, at_start: bool) -> Result<Vec<u32>, TokenizerError> {
        let ids = self.encode_with(&self.added.plain, text, at_start)?;
        let special = |id: u32| self.is_special(id) && self.roles.unk != Some(id);
        match ids.iter().find(|&&id| special(id)) {
            Some(&id) => {
                Err(TokenizerError::SpecialFromText { token: self.id_to_token(id).unwrap_or_default().to_owned() })
            }
            None => Ok(ids),
        }
    }

    fn encode_with(&self, added: &AddedVocabulary, text: &str, at_start: bool) -> Result<Vec<u32>, TokenizerError> {
        check_length(text)?;
        guarded("encoding text", || {
            let failed = |error| TokenizerError::library("encoding text", error);
            let mut parts: PreTokenizedString = added.extract_and_normalize(self.normalizer.as_ref(), text);
            self.pre_tokenizer.pre_tokenize(&mut parts, at_start).map_err(failed)?;
            parts.tokenize(|word| self.model.encode_word(&self.vocabulary, word.get())).map_err(failed)?;
            let encoding = parts.into_encoding(None, 0, OffsetType::None).map_err(failed)?;
            Ok(encoding.get_ids().to_vec())
        })
    }

    /// The text of `ids`; with `skip_special`, without special tokens. Ids of no token add nothing.
    ///
    /// Bytes that are no UTF-8 become U+FFFD; see [`StreamDecoder`], which this is in one call.
    #[must_use]
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut text = String::new();
        let mut decoder = StreamDecoder::new(self, skip_special);
        for &id in ids {
            decoder.push_onto(id, &mut text);
        }
        text.push_str(&decoder.finish());
        text
    }

    /// The bytes that `id` stands for in a decoded text, or `None` for an id of no token.
    ///
    /// They may be part of a character. A leading space that [`Tokenizer::decode`] drops from the
    /// start of a text is in them.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.vocabulary.push_bytes(id, &mut bytes).then_some(bytes)
    }

    /// The token of `id` as it stands in the vocabulary (`Ġthe`, `▁the`).
    #[must_use]
    pub fn id_to_token(&self, id: u32) -> Option<&str> {
        self.vocabulary.text(id)
    }

    /// The id of a token as it stands in the vocabulary; special and added tokens included.
    #[must_use]
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.added.token_to_id(token);
        added.or_else(|| self.model.token_to_id(&self.vocabulary, token))
    }

    /// One more than the largest id. A model's embedding may have more rows, for alignment.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether `id` is a special (control) token.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.vocabulary.kind(id) == Kind::Special
    }

    /// The token at the beginning of a sequence, where the model has one.
    #[must_use]
    pub fn bos_id(&self) -> Option<u32> {
        self.roles.bos
    }

    /// Tokens that end a generation, the main one first. `generation_config.json` may name more:
    /// [`Tokenizer::add_eos_ids`].
    #[must_use]
    pub fn eos_ids(&self) -> &[u32] {
        &self.roles.eos
    }

    /// Adds tokens that end a generation; those known already and those of no token are left out.
    pub fn add_eos_ids(&mut self, ids: &[u32]) {
        for &id in ids {
            if self.vocabulary.kind(id) != Kind::Absent && !self.roles.eos.contains(&id) {
                self.roles.eos.push(id);
            }
        }
    }

    /// The token for text that the vocabulary does not cover, where there is one.
    #[must_use]
    pub fn unk_id(&self) -> Option<u32> {
        self.roles.unk
    }

    /// The token for padding, where the files name one.
    #[must_use]
    pub fn pad_id(&self) -> Option<u32> {
        self.roles.pad
    }

    /// Whether the model expects BOS before a text (a chat template writes its own).
    #[must_use]
    pub fn add_bos(&self) -> bool {
        self.roles.bos.is_some_and(|bos| self.roles.prefix.contains(&bos))
    }

    /// What [`Tokenizer::encode_with_special_tokens`] puts before a text.
    #[must_use]
    pub fn prefix_ids(&self) -> &[u32] {
        &self.roles.prefix
    }

    /// What [`Tokenizer::encode_with_special_tokens`] puts after a text.
    #[must_use]
    pub fn suffix_ids(&self) -> &[u32] {
        &self.roles.suffix
    }
}

/// A part of a segmented text.
enum Piece {
    Token(u32),
    Text(String),
}

fn push_text(pieces: &mut Vec<Piece>, text: &str) {
    match pieces.last_mut() {
        Some(Piece::Text(before)) => before.push_str(text),
        _ if text.is_empty() => {}
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
}

fn check_length(text: &str) -> Result<(), TokenizerError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: TEXT_BYTES_MAX });
    }
    Ok(())
}
