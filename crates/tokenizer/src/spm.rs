//! SentencePiece's BPE: the pair whose merged piece has the best score is merged first.
//!
//! The `tokenizers` library orders merges by a rank that is unique per pair, and merges tokens only.
//! SentencePiece orders them by the score of the merged piece, equal scores by position, and merges
//! characters that are no pieces themselves. With `ab` and `ba` of equal score it splits `aba` into
//! `ab` `a` and `bab` into `ba` `b`; no list of ranked pairs does both. Hence this module.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::error::{TokenizerError, shortened};
use crate::texts::TokenTable;
use crate::vocabulary::Vocabulary;

/// Pieces with their scores, and the byte tokens for text that no piece covers. The texts of the pieces are in the
/// [`Vocabulary`] that every call is given.
#[derive(Debug)]
pub(crate) struct Spm {
    pieces: TokenTable,
    /// By id.
    scores: Vec<f32>,
    /// Bytes of the longest piece: longer pairs need no look-up.
    piece_bytes_max: usize,
    /// `byte_ids[b]` is the token of byte `b`, where the vocabulary has one.
    byte_ids: Box<[Option<u32>; 256]>,
    unk_id: Option<u32>,
}

/// A part of the text that is, so far, one piece; linked to its neighbours.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    prev: Option<usize>,
    next: Option<usize>,
}

/// Two neighbouring symbols whose text is a piece. Stale once either was merged elsewhere.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    /// Where the merged text would end; tells a stale entry.
    end: usize,
}

impl Ord for Merge {
    /// The best score first, then the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}
impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Merge {}

impl Spm {
    /// A model of these pieces, the first counting of several with one text; a score for each id of the vocabulary.
    pub(crate) fn new(
        vocabulary: &Vocabulary,
        ids: impl Iterator<Item = u32>,
        scores: Vec<f32>,
        byte_ids: Box<[Option<u32>; 256]>,
        unk_id: Option<u32>,
    ) -> Self {
        let mut pieces = TokenTable::new(vocabulary);
        let mut piece_bytes_max = 0;
        for id in ids {
            pieces.insert(vocabulary, id);
            piece_bytes_max = piece_bytes_max.max(vocabulary.raw_text(id).len());
        }
        Self { pieces, scores, piece_bytes_max, byte_ids, unk_id }
    }

    pub(crate) fn token_to_id(&self, vocabulary: &Vocabulary, piece: &str) -> Option<u32> {
        self.pieces.get(vocabulary, piece)
    }

    /// The ids of `text`, whose spaces are already `▁`. O(n log n) in its bytes.
    pub(crate) fn encode(&self, vocabulary: &Vocabulary, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                end: start + c.len_utf8(),
                prev: index.checked_sub(1),
                next: Some(index + 1),
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = None;
        }

        let mut queue = BinaryHeap::new();
        for left in 0..symbols.len() {
            queue.extend(self.merge_at(vocabulary, text, &symbols, Some(left)));
        }
        while let Some(Merge { left, right, end, .. }) = queue.pop() {
            let merged_away = symbols[left].start == symbols[left].end;
            if merged_away || symbols[left].next != Some(right) || symbols[right].end != end {
                continue;
            }
            symbols[left].end = end;
            symbols[left].next = symbols[right].next;
            // An empty symbol is one that was merged away.
            symbols[right].start = end;
            if let Some(next) = symbols[left].next {
                symbols[next].prev = Some(left);
            }
            queue.extend(self.merge_at(vocabulary, text, &symbols, symbols[left].prev));
            queue.extend(self.merge_at(vocabulary, text, &symbols, Some(left)));
        }

        let mut ids = Vec::with_capacity(symbols.len() / 2);
        let mut unknown_before = false;
        for symbol in symbols.iter().filter(|symbol| symbol.start < symbol.end) {
            let piece = &text[symbol.start..symbol.end];
            if let Some(id) = self.token_to_id(vocabulary, piece) {
                ids.push(id);
                unknown_before = false;
            } else if let Some(bytes) = self.byte_tokens(piece) {
                ids.extend(bytes);
                unknown_before = false;
            } else if let Some(unk_id) = self.unk_id {
                // A run of unknown characters is one unknown token, as in SentencePiece.
                if !unknown_before {
                    ids.push(unk_id);
                }
                unknown_before = true;
            } else {
                return Err(TokenizerError::NotInVocabulary { piece: shortened(piece, 40) });
            }
        }
        Ok(ids)
    }

    /// The merge of `left` with its right neighbour, if their text is a piece.
    fn merge_at(&self, vocabulary: &Vocabulary, text: &str, symbols: &[Symbol], left: Option<usize>) -> Option<Merge> {
        let left = left?;
        let right = symbols[left].next?;
        let (start, end) = (symbols[left].start, symbols[right].end);
        if end - start > self.piece_bytes_max {
            return None;
        }
        let id = self.pieces.get(vocabulary, &text[start..end])?;
        let score = *self.scores.get(id as usize)?;
        Some(Merge { score, left, right, end })
    }

    fn byte_tokens(&self, piece: &str) -> Option<Vec<u32>> {
        piece.bytes().map(|byte| self.byte_ids[usize::from(byte)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::TokenBytes;

    /// The ids of `text` by these pieces.
    fn encode(pieces: &[(&str, f32)], text: &str) -> Result<Vec<u32>, TokenizerError> {
        let (texts, scores): (Vec<&str>, Vec<f32>) = pieces.iter().copied().unzip();
        let ids = 0..pieces.len() as u32;
        let vocabulary = Vocabulary::new("pieces", texts.into_iter().collect(), ids.clone(), TokenBytes::ByteLevel);
        let vocabulary = vocabulary.expect("few ids");
        Spm::new(&vocabulary, ids, scores, Box::new([None; 256]), None).encode(&vocabulary, text)
    }

    #[test]
    fn equal_scores_merge_from_the_left() {
        let pieces = [("a", -9.0), ("b", -9.0), ("ab", -1.0), ("ba", -1.0)];
        assert_eq!(encode(&pieces, "aba").expect("covered"), [2, 0]);
        assert_eq!(encode(&pieces, "bab").expect("covered"), [3, 1]);
    }

    #[test]
    fn better_scores_merge_first_and_unlock_longer_pieces() {
        let pieces = [("a", -9.0), ("aa", -1.0), ("aaa", -2.0), ("b", -9.0)];
        // aa aa, and the piece of three never gets its turn; then aa aa a, with one pair left.
        assert_eq!(encode(&pieces, "aaaa").expect("covered"), [1, 1]);
        assert_eq!(encode(&pieces, "aaaaa").expect("covered"), [1, 2]);
    }

    #[test]
    fn characters_need_not_be_pieces_to_be_merged() {
        assert_eq!(encode(&[("€a", -1.0)], "€a").expect("covered"), [0]);
    }

    #[test]
    fn uncovered_text_is_an_error_and_not_left_out() {
        let error = encode(&[("a", 0.0)], "a€").expect_err("no bytes, no unk");
        assert!(error.to_string().contains('€'), "{error}");
    }
}
