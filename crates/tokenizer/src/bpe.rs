//! Byte-pair encoding as the `tokenizers` library does it, on tables that are built at once.
//!
//! The library's tables hold a `String` for every token and two entries for every merge, and take half the time in
//! which a small model starts. Here the one hash table is that of the tokens: two tokens merge if their joined text is
//! a token that is made of these two, which each token knows. The ids are the library's for every word, which the tests
//! hold it to; what is rare (an affix on the tokens inside a word, ids that two tokens share) stays with the library.
//!
//! Source    Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016): of all
//!           pairs of neighbours that may merge, the one of the lowest rank does, the leftmost of several.
//! Time      O(n log n) in the characters of a word.

use ahash::AHashMap;
use thiserror::Error;

use crate::bounds::Bounds;
use crate::error::{TokenizerError, shortened};
use crate::merging::Symbols;
use crate::texts::TokenTable;
use crate::vocabulary::Vocabulary;

/// Bytes of a word that is short.
const SHORT_BYTES: usize = 4096;

/// A byte-pair encoding model. The texts of its tokens are in the [`Vocabulary`] that every call is given.
#[derive(Debug)]
pub(crate) struct Bpe {
    tokens: TokenTable,
    merges: Merges,
    /// Bytes of the longest token: no longer text is looked up.
    token_bytes_max: usize,
    options: BpeOptions,
}

/// How text that is no token is encoded, and when merges do not count.
#[derive(Debug, Default)]
pub(crate) struct BpeOptions {
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// A word of newlines alone that is a token is that token, whatever the merges say.
    pub(crate) whole_newlines: bool,
    /// The token of byte `b` is `byte_ids[b]`, for characters that are no tokens.
    pub(crate) byte_ids: Option<Box<[Option<u32>; 256]>>,
    /// Stands for a character that the vocabulary does not cover.
    pub(crate) unk_id: Option<u32>,
    /// A run of such characters is one unknown token.
    pub(crate) fuse_unk: bool,
}

/// A merge that is none.
#[derive(Debug, Error)]
pub(crate) enum BadMerge {
    #[error("has `{0}`, which is not two tokens with one space between")]
    NotTwo(String),
    #[error("is not usable: token `{0}` of a merge is out of vocabulary")]
    NoToken(String),
}

impl Bpe {
    /// A model of these tokens and these merges, best first: two tokens each, or what was found in their place. Of two
    /// merges of one pair the later counts.
    pub(crate) fn new<'t>(
        vocabulary: &Vocabulary,
        tokens: TokenTable,
        merges: impl ExactSizeIterator<Item = Result<(&'t str, &'t str), &'t str>>,
        options: BpeOptions,
    ) -> Result<Self, BadMerge> {
        let mut table = MergeTable { of_token: vec![Split::NONE; vocabulary.len()], others: AHashMap::new() };
        let mut joined = String::new();
        let mut token_bytes_max = 0;
        // Merges mostly stand in the order of the tokens that they make.
        let mut next = 0;
        let id = |text: &str| tokens.get(vocabulary, text).ok_or_else(|| BadMerge::NoToken(text.to_owned()));
        for (rank, merge) in (0u32..).zip(merges) {
            let (left, right) = merge.map_err(|found| BadMerge::NotTwo(found.to_owned()))?;
            id(left)?;
            id(right)?;
            let is_next = tokens.contains(next) && vocabulary.raw_text(next).strip_prefix(left) == Some(right);
            let merged = if is_next {
                next
            } else {
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                id(&joined)?
            };
            table.insert(merged, Split { left_len: left.len() as u32, rank });
            token_bytes_max = token_bytes_max.max(left.len() + right.len());
            next = merged.wrapping_add(1);
        }
        Ok(Self { tokens, merges: Merges::Listed(table), token_bytes_max, options })
    }

    /// A model that merges whatever two neighbours make a token, the token of the lowest id first: as tiktoken does it.
    pub(crate) fn by_rank(vocabulary: &Vocabulary, tokens: TokenTable, options: BpeOptions) -> Self {
        let ids = (0u32..).take(vocabulary.len()).filter(|&id| tokens.contains(id));
        let token_bytes_max = ids.map(|id| vocabulary.raw_text(id).len()).max().unwrap_or(0);
        Self { tokens, merges: Merges::ByRank, token_bytes_max, options }
    }

    /// The two tokens of which merging makes the token `id` last; `None` for one that merges never make.
    ///
    /// What is merged inside a token does not depend on what stands around it, so a model with these merges alone, in
    /// the order of ranks, gives the ids that merging by rank gives.
    pub(crate) fn split_of(&self, vocabulary: &Vocabulary, id: u32) -> Option<(u32, u32)> {
        let mut symbols = Symbols::default();
        self.cut(vocabulary, vocabulary.raw_text(id), &mut symbols).ok()?;
        let last = self.merge(vocabulary, &mut symbols, &Bounds::NONE).ok()??;
        (symbols.values().next()? == id).then_some(last)
    }

    /// Whether one token may stand for text of any length: for a run of unknown characters.
    pub(crate) fn has_endless_token(&self) -> bool {
        let covers_all = self.options.byte_ids.as_ref().is_some_and(|ids| ids.iter().all(Option::is_some));
        self.options.unk_id.is_some() && self.options.fuse_unk && !covers_all
    }

    pub(crate) fn token_to_id(&self, vocabulary: &Vocabulary, token: &str) -> Option<u32> {
        self.tokens.get(vocabulary, token)
    }

    /// Appends the ids of a word. `symbols` is scratch.
    ///
    /// # Errors
    /// A character that is no token, where there is no unknown token either; nobody who waits.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        bounds: &Bounds<'_>,
        symbols: &mut Symbols,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        let is_whole = || self.options.whole_newlines && word.bytes().all(|byte| byte == b'\n');
        if (self.options.ignore_merges || is_whole())
            && let Some(id) = self.tokens.get(vocabulary, word)
        {
            ids.push(id);
            return Ok(());
        }
        if u32::try_from(word.len()).is_err() {
            return Err(TokenizerError::TextTooLong { bytes: word.len(), limit: u32::MAX as usize });
        }
        self.cut(vocabulary, word, symbols)?;
        self.merge(vocabulary, symbols, bounds)?;
        symbols.append_to(ids);
        Ok(())
    }

    /// The characters of a word, or what stands for those that are no tokens.
    fn cut(&self, vocabulary: &Vocabulary, word: &str, symbols: &mut Symbols) -> Result<(), TokenizerError> {
        // A short word may be given more room than it needs; a long one is looked at twice.
        let mut count = word.len();
        if word.len() > SHORT_BYTES {
            count = 0;
            self.for_each_symbol(vocabulary, word, |_| count += 1)?;
        }
        symbols.restart(count);
        self.for_each_symbol(vocabulary, word, |id| symbols.push(id))
    }

    fn for_each_symbol(
        &self,
        vocabulary: &Vocabulary,
        word: &str,
        mut found: impl FnMut(u32),
    ) -> Result<(), TokenizerError> {
        // Whether an unknown token is still to come. The library puts it after the byte tokens of a character that
        // follows, hence so does this.
        let mut unknown = None;
        for (start, c) in word.char_indices() {
            let piece = &word[start..start + c.len_utf8()];
            if let Some(id) = self.tokens.get(vocabulary, piece) {
                unknown.take().into_iter().for_each(&mut found);
                found(id);
            } else if self.has_byte_tokens(piece) {
                let byte_ids = self.options.byte_ids.as_ref();
                let ids = piece.bytes().filter_map(|byte| byte_ids?[usize::from(byte)]);
                ids.for_each(&mut found);
            } else if self.options.unk_id.is_some() {
                if !self.options.fuse_unk {
                    unknown.take().into_iter().for_each(&mut found);
                }
                unknown = self.options.unk_id;
            } else {
                return Err(TokenizerError::NotInVocabulary { piece: shortened(word, 40) });
            }
        }
        unknown.into_iter().for_each(found);
        Ok(())
    }

    /// Whether there is a token for each byte of the piece.
    fn has_byte_tokens(&self, piece: &str) -> bool {
        let byte_ids = self.options.byte_ids.as_ref();
        byte_ids.is_some_and(|ids| piece.bytes().all(|byte| ids[usize::from(byte)].is_some()))
    }

    /// Merges neighbours until none merge; returns the two that merged last.
    fn merge(
        &self,
        vocabulary: &Vocabulary,
        symbols: &mut Symbols,
        bounds: &Bounds<'_>,
    ) -> Result<Option<(u32, u32)>, TokenizerError> {
        let mut joined = String::new();
        symbols.merge(bounds, |ids, [left, right, _]| {
            let (left, right) = (vocabulary.raw_text(ids[left]), vocabulary.raw_text(ids[right]));
            if left.len() + right.len() > self.token_bytes_max {
                return None;
            }
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            let merged = self.tokens.get(vocabulary, &joined)?;
            let rank = self.merges.rank(merged, left.len() as u32)?;
            Some((rank, merged))
        })
    }
}

/// Of which two tokens a token is made: its first `left_len` bytes and the others.
#[derive(Clone, Copy, Debug)]
struct Split {
    left_len: u32,
    rank: u32,
}

impl Split {
    const NONE: Self = Self { left_len: u32::MAX, rank: u32::MAX };
}

/// Which neighbours merge, and in which order.
#[derive(Debug)]
enum Merges {
    /// Those that the file lists.
    Listed(MergeTable),
    /// All that make a token, in the order of ids.
    ByRank,
}

impl Merges {
    fn rank(&self, merged: u32, left_len: u32) -> Option<u32> {
        match self {
            Self::Listed(table) => table.rank(merged, left_len),
            Self::ByRank => Some(merged),
        }
    }
}

/// The merges, by what they make. One token for each text, so token and length say which two are merged.
#[derive(Debug)]
struct MergeTable {
    /// By id: the first merge that makes the token. Trained vocabularies have no other.
    of_token: Vec<Split>,
    /// (id, `left_len`) to rank.
    others: AHashMap<(u32, u32), u32>,
}

impl MergeTable {
    fn insert(&mut self, merged: u32, split: Split) {
        let first = &mut self.of_token[merged as usize];
        if first.left_len == Split::NONE.left_len || first.left_len == split.left_len {
            *first = split;
        } else {
            self.others.insert((merged, split.left_len), split.rank);
        }
    }

    fn rank(&self, merged: u32, left_len: u32) -> Option<u32> {
        let first = self.of_token[merged as usize];
        if first.left_len == left_len {
            return Some(first.rank);
        }
        self.others.get(&(merged, left_len)).copied()
    }
}
