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

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::AHashMap;
use thiserror::Error;

use crate::error::{TokenizerError, shortened};
use crate::texts::TokenTable;
use crate::vocabulary::Vocabulary;

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

/// A part of a word, linked to its neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// Bytes of the word that it stands for; none once it was merged into its left neighbour.
    len: u32,
    prev: Option<u32>,
    next: Option<u32>,
}

/// What may be merged next: (rank, position of the left symbol, id of what they make). Stale once either symbol was
/// merged elsewhere.
type Queue = BinaryHeap<Reverse<(u32, u32, u32)>>;

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
        let mut symbols = self.symbols(vocabulary, vocabulary.raw_text(id)).ok()?;
        let last = self.merge(vocabulary, &mut symbols)?;
        (symbols.first()?.id == id).then_some(last)
    }

    pub(crate) fn token_to_id(&self, vocabulary: &Vocabulary, token: &str) -> Option<u32> {
        self.tokens.get(vocabulary, token)
    }

    /// The ids of a word.
    ///
    /// # Errors
    /// A character that is no token, where there is no unknown token either.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, word: &str) -> Result<Vec<u32>, TokenizerError> {
        if self.options.ignore_merges
            && let Some(id) = self.tokens.get(vocabulary, word)
        {
            return Ok(vec![id]);
        }
        if u32::try_from(word.len()).is_err() {
            return Err(TokenizerError::TextTooLong { bytes: word.len(), limit: u32::MAX as usize });
        }
        let mut symbols = self.symbols(vocabulary, word)?;
        self.merge(vocabulary, &mut symbols);
        Ok(symbols.iter().filter(|symbol| symbol.len > 0).map(|symbol| symbol.id).collect())
    }

    /// The characters of a word, or what stands for those that are no tokens.
    fn symbols(&self, vocabulary: &Vocabulary, word: &str) -> Result<Vec<Symbol>, TokenizerError> {
        let mut symbols = Symbols(Vec::with_capacity(word.len()));
        // Bytes of the word whose unknown token is still to come. The library puts it after the byte tokens of a
        // character that follows, hence so does this.
        let mut unknown = 0;
        for (start, c) in word.char_indices() {
            let piece = &word[start..start + c.len_utf8()];
            let len = piece.len() as u32;
            if let Some(id) = self.tokens.get(vocabulary, piece) {
                symbols.push_unless_empty(self.options.unk_id, std::mem::take(&mut unknown));
                symbols.push_unless_empty(Some(id), len);
            } else if let Some(ids) = self.byte_tokens(piece) {
                ids.iter().for_each(|&id| symbols.push_unless_empty(Some(id), 1));
            } else if self.options.unk_id.is_some() {
                if !self.options.fuse_unk {
                    symbols.push_unless_empty(self.options.unk_id, std::mem::take(&mut unknown));
                }
                unknown += len;
            } else {
                return Err(TokenizerError::NotInVocabulary { piece: shortened(word, 40) });
            }
        }
        symbols.push_unless_empty(self.options.unk_id, unknown);
        Ok(symbols.0)
    }

    fn byte_tokens(&self, piece: &str) -> Option<Vec<u32>> {
        let byte_ids = self.options.byte_ids.as_ref()?;
        piece.bytes().map(|byte| byte_ids[usize::from(byte)]).collect()
    }

    /// Merges neighbours until none merge; returns the two that merged last.
    fn merge(&self, vocabulary: &Vocabulary, symbols: &mut [Symbol]) -> Option<(u32, u32)> {
        let mut last = None;
        let mut pairs = Pairs { bpe: self, vocabulary, joined: String::new() };
        let mut queue = Queue::with_capacity(symbols.len());
        for at in 0..symbols.len() {
            pairs.queue(symbols, Some(at as u32), &mut queue);
        }
        while let Some(Reverse((_, at, merged))) = queue.pop() {
            let left = symbols[at as usize];
            // The pair may have changed since it was queued, and what it makes with it.
            let now = pairs.merge_at(symbols, at).map(|(_, merged)| merged);
            let Some(next) = left.next.filter(|_| now == Some(merged)) else { continue };
            let right = symbols[next as usize];
            last = Some((left.id, right.id));
            symbols[at as usize] = Symbol { id: merged, len: left.len + right.len, next: right.next, ..left };
            symbols[next as usize].len = 0;
            if let Some(after) = right.next {
                symbols[after as usize].prev = Some(at);
            }
            pairs.queue(symbols, left.prev, &mut queue);
            pairs.queue(symbols, Some(at), &mut queue);
        }
        last
    }
}

/// Looks up pairs of neighbours, with the memory that it takes.
struct Pairs<'a> {
    bpe: &'a Bpe,
    vocabulary: &'a Vocabulary,
    joined: String,
}

impl Pairs<'_> {
    fn queue(&mut self, symbols: &[Symbol], at: Option<u32>, queue: &mut Queue) {
        if let Some(at) = at
            && let Some((rank, merged)) = self.merge_at(symbols, at)
        {
            queue.push(Reverse((rank, at, merged)));
        }
    }

    /// The rank of the merge of the symbol at `at` with its right neighbour and what they make, if they merge.
    fn merge_at(&mut self, symbols: &[Symbol], at: u32) -> Option<(u32, u32)> {
        let left = symbols[at as usize];
        let right = symbols[left.next.filter(|_| left.len > 0)? as usize];
        let (left, right) = (self.vocabulary.raw_text(left.id), self.vocabulary.raw_text(right.id));
        if left.len() + right.len() > self.bpe.token_bytes_max {
            return None;
        }
        self.joined.clear();
        self.joined.push_str(left);
        self.joined.push_str(right);
        let merged = self.bpe.tokens.get(self.vocabulary, &self.joined)?;
        let rank = self.bpe.merges.rank(merged, left.len() as u32)?;
        Some((rank, merged))
    }
}

/// Symbols under construction.
struct Symbols(Vec<Symbol>);

impl Symbols {
    /// Appends what stands for `len` bytes.
    fn push_unless_empty(&mut self, id: Option<u32>, len: u32) {
        let Some(id) = id.filter(|_| len > 0) else { return };
        let at = self.0.len() as u32;
        if let Some(last) = self.0.last_mut() {
            last.next = Some(at);
        }
        self.0.push(Symbol { id, len, prev: at.checked_sub(1), next: None });
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
