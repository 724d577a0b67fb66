//! [`Tokenizer`]: text to ids and back, however it was loaded.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{
    AddedToken, AddedVocabulary, Model as _, ModelWrapper, NormalizedString, NormalizerWrapper, OffsetType,
    PreTokenizedString, Token,
};

use crate::bounds::Bounds;
use crate::bpe::Bpe;
use crate::error::{TokenizerError, guarded, shortened};
use crate::fim::FimMarkers;
use crate::merging::{Symbols, reserve};
use crate::pre_tokenizer::PreTokenizer;
use crate::slices::{Part, Search, Slices, for_each_token};
use crate::spm::Spm;
use crate::stream_decode::{DecodeRule, StreamDecoder};
use crate::vocabulary::{Kind, Vocabulary};

/// The most text encoded in one call, in bytes.
pub const TEXT_BYTES_MAX: usize = 256 << 20;

const ENCODING: &str = "encoding text";

/// Bytes of text after which it is asked again whether anybody still waits.
const ASK_BYTES: usize = 16 << 10;

/// Bytes of a word beyond which it is long.
const LONG_WORD_BYTES: usize = 4096;

/// What goes around a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Around {
    /// Nothing.
    Nothing,
    /// The tokens that the model expects before a text that it goes on with.
    Prefix,
    /// Those, and the tokens that it expects behind a text that is whole.
    Both,
}

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
    pub(crate) way: OnceLock<Way>,
    pub(crate) fim: Option<FimMarkers>,
}

/// How text goes to its ids, found out when the first one does.
#[derive(Debug)]
pub(crate) struct Way {
    /// On slices of the text; nothing where the library has to do it.
    slices: Option<Slices>,
    /// The most bytes of a word, after splitting, that one token stands for; nothing where there is no such number.
    word_bytes_max: Option<usize>,
    /// The most bytes of a text that one token stands for; nothing where there is no such number.
    text_bytes_max: Option<usize>,
    /// Whether added tokens take the whitespace beside them, however much there is.
    takes_whitespace: bool,
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
    /// Appends the ids of a word. `symbols` is scratch.
    fn encode_word(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        bounds: &Bounds<'_>,
        symbols: &mut Symbols,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        match self {
            Self::Bpe(bpe) => bpe.encode(vocabulary, word, bounds, symbols, ids),
            Self::Spm(spm) => spm.encode(vocabulary, word, bounds, symbols, ids),
            Self::Library(model) => {
                let tokens = model.tokenize(word).map_err(|error| TokenizerError::library(ENCODING, error))?;
                // The library leaves out characters that a BPE vocabulary without unknown token lacks.
                let covered = tokens.last().map_or(0, |token| token.offsets.1);
                if matches!(**model, ModelWrapper::BPE(_)) && covered != word.len() {
                    return Err(TokenizerError::NotInVocabulary { piece: shortened(word, 40) });
                }
                ids.extend(tokens.iter().map(|token| token.id));
                Ok(())
            }
        }
    }

    /// Whether one token may stand for text of any length.
    fn has_endless_token(&self) -> bool {
        match self {
            Self::Bpe(bpe) => bpe.has_endless_token(),
            Self::Spm(spm) => spm.has_endless_token(),
            Self::Library(_) => true,
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
    special_search: Search,
    /// The texts of those that are special, sorted.
    special_texts: Vec<String>,
    /// Bytes of the longest of them.
    special_bytes_max: usize,
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
        let mut special = AddedVocabulary::new();
        let special_tokens = tokens.into_iter().filter(|(_, token)| token.special);
        special.add_tokens(
            special_tokens.map(|(_, token)| token.normalized(false)),
            &ids,
            None::<&NormalizerWrapper>,
        )?;
        let texts = || special.get_added_tokens_decoder().iter().map(|(&id, token)| (token.content.clone(), id));
        let special_search = Search::new(texts().collect())?;
        let mut special_texts: Vec<String> = texts().map(|(text, _)| text).collect();
        special_texts.sort_unstable();
        let special_bytes_max = special_texts.iter().map(String::len).max().unwrap_or(0);
        Ok(Self { all, plain, special, special_search, special_texts, special_bytes_max })
    }

    /// Calls `found` with the special tokens in `text` and the ranges between them.
    fn for_each_special(
        &self,
        text: &str,
        bounds: &Bounds<'_>,
        found: impl FnMut(Range<usize>, Option<u32>) -> Result<(), TokenizerError>,
    ) -> Result<(), TokenizerError> {
        for_each_token(&self.special_search, &self.special, text, true, bounds, found)
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
        self.encode_within(text, special, Around::Nothing, &Bounds::NONE)
    }

    /// [`Tokenizer::encode`] after the tokens that the model expects before a text (such as BOS): for a text that the model
    /// goes on with.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_after_prefix(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        self.encode_within(text, special, Around::Prefix, &Bounds::NONE)
    }

    /// [`Tokenizer::encode`] between the tokens that the model expects around a text (such as BOS and EOS): for a text that
    /// is whole.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_special_tokens(&self, text: &str, special: ParseSpecial) -> Result<Vec<u32>, TokenizerError> {
        self.encode_within(text, special, Around::Both, &Bounds::NONE)
    }

    /// The ids of `text` with what goes around it, unless that goes beyond the bounds.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]; [`TokenizerError::TooManyTokens`] and [`TokenizerError::Abandoned`] by the bounds.
    pub fn encode_within(
        &self,
        text: &str,
        special: ParseSpecial,
        around: Around,
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let (prefix, suffix): (&[u32], &[u32]) = match around {
            Around::Nothing => (&[], &[]),
            Around::Prefix => (&self.roles.prefix, &[]),
            Around::Both => (&self.roles.prefix, &self.roles.suffix),
        };
        let of_text = Bounds { tokens_max: bounds.tokens_max.saturating_sub(suffix.len()), ..*bounds };
        let too_many = |error| match error {
            TokenizerError::TooManyTokens { at_least, .. } => {
                TokenizerError::TooManyTokens { at_least: at_least + suffix.len(), limit: bounds.tokens_max }
            }
            other => other,
        };
        let mut ids = prefix.to_vec();
        match special {
            ParseSpecial::Yes => self.encode_onto(&mut ids, text, true, true, &of_text),
            ParseSpecial::No => self.encode_plain_onto(&mut ids, text, true, &of_text),
        }
        .map_err(too_many)?;
        bounds.check_tokens(ids.len() + suffix.len())?;
        ids.extend(suffix);
        Ok(ids)
    }

    /// How many tokens a text of this tokenizer certainly has, without what goes around it; 0 where nothing is certain.
    ///
    /// A token stands for no more bytes than the longest one has, unless it is one of those that stand for text of any
    /// length: a run of unknown characters, or whitespace beside an added token.
    #[must_use]
    pub fn tokens_at_least(&self, text: &str) -> usize {
        let way = self.way();
        let Some(bytes_max) = way.text_bytes_max else { return 0 };
        let bytes = match way.takes_whitespace {
            true => text.chars().filter(|c| !c.is_whitespace()).map(char::len_utf8).sum(),
            false => text.len(),
        };
        bytes.div_ceil(bytes_max)
    }

    /// The most memory that encoding takes for each byte of text, the ids included. For those who decide how much text is
    /// encoded at a time.
    #[must_use]
    pub fn memory_per_byte(&self) -> usize {
        let is_ours = self.way().slices.is_some() && self.pre_tokenizer.is_ours();
        if is_ours && !matches!(self.model, Model::Library(_)) { 16 } else { 160 }
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
        self.encode_segments_within(segments, &Bounds::NONE)
    }

    /// [`Tokenizer::encode_segments`], unless that goes beyond the bounds.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn encode_segments_within(
        &self,
        segments: &[Segment<'_>],
        bounds: &Bounds<'_>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        // What lies between two special tokens, and whether anything came before it.
        let (mut between, mut is_first) = (String::new(), true);
        let mut left: usize = segments.iter().map(|segment| segment.text.len()).sum();
        for run in segments.chunk_by(|a, b| a.special == b.special) {
            let text: Cow<'_, str> = match run {
                [one] => one.text.into(),
                several => several.iter().map(|segment| segment.text).collect(),
            };
            check_length(&text)?;
            let mut push = |between: &mut String, part: &str| {
                // A text that grows by itself takes twice the memory.
                between.reserve_exact(left.max(part.len()));
                between.push_str(part);
                left = left.saturating_sub(part.len());
            };
            if run.first().is_none_or(|segment| segment.special == ParseSpecial::No) {
                push(&mut between, &text);
                continue;
            }
            self.added.for_each_special(&text, bounds, |range, token| {
                let Some(id) = token else {
                    push(&mut between, &text[range]);
                    return Ok(());
                };
                if !between.is_empty() {
                    self.encode_plain_onto(&mut ids, &between, is_first, bounds)?;
                    between.clear();
                }
                is_first = false;
                ids.push(id);
                bounds.check_tokens(ids.len())
            })?;
        }
        if !between.is_empty() {
            self.encode_plain_onto(&mut ids, &between, is_first, bounds)?;
        }
        Ok(ids)
    }

    /// Where `text` has the text of a special token, whatever stands beside it, from left to right: bytes.
    pub(crate) fn special_in(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.added.special_search.places(text)
    }

    /// Where the end of `text` may be the beginning of a special token's text, of which more would have to follow: the
    /// first such byte.
    pub(crate) fn special_begun_in(&self, text: &str) -> Option<usize> {
        let (texts, longest) = (&self.added.special_texts, self.added.special_bytes_max);
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
    pub(crate) fn special_begins(&self) -> impl Iterator<Item = char> + '_ {
        let mut before = None;
        let firsts = self.added.special_texts.iter().filter_map(|text| text.chars().next());
        firsts.filter(move |&first| before.replace(first) != Some(first))
    }

    fn encode_plain_onto(
        &self,
        ids: &mut Vec<u32>,
        text: &str,
        at_start: bool,
        bounds: &Bounds<'_>,
    ) -> Result<(), TokenizerError> {
        let before = ids.len();
        self.encode_onto(ids, text, false, at_start, bounds)?;
        let special = |id: u32| self.is_special(id) && self.roles.unk != Some(id);
        match ids[before..].iter().find(|&&id| special(id)) {
            Some(&id) => {
                Err(TokenizerError::SpecialFromText { token: self.id_to_token(id).unwrap_or_default().to_owned() })
            }
            None => Ok(()),
        }
    }

    /// Appends the ids of `text`; special tokens are found in it if `honours_special`.
    fn encode_onto(
        &self,
        ids: &mut Vec<u32>,
        text: &str,
        honours_special: bool,
        at_start: bool,
        bounds: &Bounds<'_>,
    ) -> Result<(), TokenizerError> {
        check_length(text)?;
        if bounds.tokens_max < usize::MAX {
            bounds.check_tokens(ids.len() + self.tokens_at_least(text))?;
        }
        guarded(ENCODING, || match &self.way().slices {
            Some(slices) => self.encode_slices(slices, ids, text, honours_special, at_start, bounds),
            None => {
                bounds.check_wanted()?;
                ids.extend(self.encode_by_library(text, honours_special, at_start)?);
                bounds.check_tokens(ids.len())
            }
        })
    }

    fn encode_slices(
        &self,
        slices: &Slices,
        ids: &mut Vec<u32>,
        text: &str,
        honours_special: bool,
        at_start: bool,
        bounds: &Bounds<'_>,
    ) -> Result<(), TokenizerError> {
        let word_bytes_max = self.way().word_bytes_max.unwrap_or(usize::MAX);
        let (mut symbols, mut since_asked) = (Symbols::default(), ASK_BYTES);
        slices.for_each_part(&self.added.all, text, honours_special, bounds, |part| match part {
            Part::Token(id) => {
                ids.push(id);
                bounds.check_tokens(ids.len())
            }
            Part::Text { is_start, text } => self.pre_tokenizer.for_each_word(text, at_start, is_start, &mut |word| {
                since_asked += word.len();
                if since_asked >= ASK_BYTES {
                    since_asked = 0;
                    bounds.check_wanted()?;
                }
                bounds.check_tokens(ids.len().saturating_add(word.len().div_ceil(word_bytes_max)))?;
                // A long word makes room for its own ids, and its symbols make room for what follows.
                if word.len() > LONG_WORD_BYTES {
                    let mut symbols = Symbols::default();
                    return self.model.encode_word(&self.vocabulary, word, bounds, &mut symbols, ids);
                }
                reserve(ids, word.len());
                self.model.encode_word(&self.vocabulary, word, bounds, &mut symbols, ids)
            }),
        })?;
        bounds.check_tokens(ids.len())
    }

    fn encode_by_library(&self, text: &str, honours_special: bool, at_start: bool) -> Result<Vec<u32>, TokenizerError> {
        let added = if honours_special { &self.added.all } else { &self.added.plain };
        let failed = |error| TokenizerError::library(ENCODING, error);
        let mut parts: PreTokenizedString = added.extract_and_normalize(self.normalizer.as_ref(), text);
        self.pre_tokenizer.pre_tokenize(&mut parts, at_start).map_err(failed)?;
        let tokens = |word: &NormalizedString| {
            let (mut symbols, mut ids) = (Symbols::default(), Vec::new());
            self.model.encode_word(&self.vocabulary, word.get(), &Bounds::NONE, &mut symbols, &mut ids)?;
            Ok(ids.into_iter().map(|id| Token::new(id, String::new(), (0, 0))).collect())
        };
        parts.tokenize(tokens).map_err(failed)?;
        let encoding = parts.into_encoding(None, 0, OffsetType::None).map_err(failed)?;
        Ok(encoding.get_ids().to_vec())
    }

    fn way(&self) -> &Way {
        self.way.get_or_init(|| {
            let runs_on_slices = self.pre_tokenizer.runs_on_slices(self.normalizer.is_some());
            let slices = Slices::new(&self.added.all, self.normalizer.as_ref()).filter(|_| runs_on_slices);
            let added = self.added.all.get_added_tokens_decoder();
            let takes_whitespace = added.values().any(|token| token.lstrip || token.rstrip);
            let len = |text: &str| if self.pre_tokenizer.ends_in_bytes() { text.chars().count() } else { text.len() };
            let texts = || (0u32..).take(self.vocabulary.len()).map(|id| self.vocabulary.raw_text(id));
            // An unknown token stands for a character at least, which has four bytes at most.
            let longest = |len: &dyn Fn(&str) -> usize| texts().map(len).max().unwrap_or(0).max(4);
            let is_bounded = !self.model.has_endless_token();
            let added_max = added.values().map(|token| token.content.len()).max().unwrap_or(0);
            let normalized_max =
                added.keys().filter_map(|&id| self.added.all.simple_id_to_token(id)).map(|text| text.len());
            let token_max = longest(&len).max(added_max).max(normalized_max.max().unwrap_or(0));
            let shrinks_by = slices.as_ref().and_then(Slices::shrinks_by).filter(|_| self.pre_tokenizer.keeps_all());
            Way {
                slices,
                // Words are what the vocabulary's texts are made of.
                word_bytes_max: is_bounded.then(|| longest(&str::len)),
                text_bytes_max: shrinks_by.filter(|_| is_bounded).map(|shrinks_by| token_max * shrinks_by),
                takes_whitespace,
            }
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

fn check_length(text: &str) -> Result<(), TokenizerError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: TEXT_BYTES_MAX });
    }
    Ok(())
}
