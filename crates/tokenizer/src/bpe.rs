//! Byte-pair encoding as the `tokenizers` library does it, on tables that are built at once.
//!
//! The library's tables hold a `String` for every token and merge, and take half the time in which a small model
//! starts. Here a token is its id, a merge its rank, and both tables are flat. The ids are the library's for every
//! word, which the tests hold it to; what is rare (an affix on the tokens inside a word, ids that two tokens share)
//! stays with the library.
//!
//! Source    Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units" (2016): of all
//!           pairs of neighbours that may merge, the one of the lowest rank does, the leftmost of several.
//! Time      O(n log n) in the characters of a word.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ahash::RandomState;
use hashbrown::HashTable;
use thiserror::Error;

use crate::error::{TokenizerError, shortened};
use crate::texts::TokenTable;
use crate::vocabulary::Vocabulary;

/// A byte-pair encoding model. The texts of its tokens are in the [`Vocabulary`] that every call is given.
#[derive(Debug)]
pub(crate) struct Bpe {
    tokens: TokenTable,
    merges: Merges,
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

/// What may be merged next: (rank, position of the left symbol). Stale once either symbol was merged elsewhere.
type Queue = BinaryHeap<Reverse<(u32, u32)>>;

impl Bpe {
    /// A model of these tokens and these merges, best first: two tokens each, or what was found in their place. Of two
    /// merges of one pair the later counts.
    pub(crate) fn new<'t>(
        vocabulary: &Vocabulary,
        tokens: TokenTable,
        merges: impl ExactSizeIterator<Item = Result<(&'t str, &'t str), &'t str>>,
        options: BpeOptions,
    ) -> Result<Self, BadMerge> {
        let mut table = Merges::with_capacity(merges.len());
        let mut joined = String::new();
        // Merges mostly stand in the order of the tokens that they make.
        let mut next = 0;
        let id = |text: &str| tokens.get(vocabulary, text).ok_or_else(|| BadMerge::NoToken(text.to_owned()));
        for merge in merges {
            let (left, right) = merge.map_err(|found| BadMerge::NotTwo(found.to_owned()))?;
            let (left_id, right_id) = (id(left)?, id(right)?);
            let is_next = tokens.contains(next) && vocabulary.raw_text(next).strip_prefix(left) == Some(right);
            let merged = if is_next {
                next
            } else {
                joined.clear();
                joined.push_str(left);
                joined.push_str(right);
                id(&joined)?
            };
            table.push(Merge { left: left_id, right: right_id, merged });
            next = merged.wrapping_add(1);
        }
        Ok(Self { tokens, merges: table, options })
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
        self.merge(&mut symbols);
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

    fn merge(&self, symbols: &mut [Symbol]) {
        let mut queue = Queue::with_capacity(symbols.len());
        for at in 0..symbols.len() {
            self.queue_at(symbols, Some(at as u32), &mut queue);
        }
        while let Some(Reverse((rank, at))) = queue.pop() {
            let merged = self.merges.by_rank[rank as usize].merged;
            let left = symbols[at as usize];
            // The pair may have changed since it was queued, and its merge with it.
            let (Some(_), Some(next)) =
                (self.rank_at(symbols, at).filter(|&now| self.merged(now) == merged), left.next)
            else {
                continue;
            };
            let right = symbols[next as usize];
            symbols[at as usize] = Symbol { id: merged, len: left.len + right.len, next: right.next, ..left };
            symbols[next as usize].len = 0;
            if let Some(after) = right.next {
                symbols[after as usize].prev = Some(at);
            }
            self.queue_at(symbols, left.prev, &mut queue);
            self.queue_at(symbols, Some(at), &mut queue);
        }
    }

    fn queue_at(&self, symbols: &[Symbol], at: Option<u32>, queue: &mut Queue) {
        if let Some(at) = at
            && let Some(rank) = self.rank_at(symbols, at)
        {
            queue.push(Reverse((rank, at)));
        }
    }

    /// The rank of the merge of the symbol at `at` with its right neighbour, if there is one.
    fn rank_at(&self, symbols: &[Symbol], at: u32) -> Option<u32> {
        let left = symbols[at as usize];
        let right = symbols[left.next.filter(|_| left.len > 0)? as usize];
        self.merges.rank(left.id, right.id)
    }

    fn merged(&self, rank: u32) -> u32 {
        self.merges.by_rank[rank as usize].merged
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

/// Two tokens that become one.
#[derive(Clone, Copy, Debug)]
struct Merge {
    left: u32,
    right: u32,
    merged: u32,
}

impl Merge {
    fn pair(self) -> u64 {
        pair(self.left, self.right)
    }
}

/// Merges in the order of their ranks, and ranks by pair.
#[derive(Debug)]
struct Merges {
    by_rank: Vec<Merge>,
    ranks: HashTable<u32>,
    hasher: RandomState,
}

impl Merges {
    fn with_capacity(merges: usize) -> Self {
        Self {
            by_rank: Vec::with_capacity(merges),
            ranks: HashTable::with_capacity(merges),
            hasher: RandomState::new(),
        }
    }

    fn push(&mut self, merge: Merge) {
        let rank = self.by_rank.len() as u32;
        let Self { by_rank, ranks, hasher } = self;
        by_rank.push(merge);
        let hash = hasher.hash_one(merge.pair());
        match ranks.find_mut(hash, |&other| by_rank[other as usize].pair() == merge.pair()) {
            Some(before) => *before = rank,
            None => {
                ranks.insert_unique(hash, rank, |&other| hasher.hash_one(by_rank[other as usize].pair()));
            }
        }
    }

    fn rank(&self, left: u32, right: u32) -> Option<u32> {
        let pair = pair(left, right);
        let hash = self.hasher.hash_one(pair);
        self.ranks.find(hash, |&rank| self.by_rank[rank as usize].pair() == pair).copied()
    }
}

/// Two ids as one number.
fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}
