//! SentencePiece's BPE: the pair whose merged piece has the best score is merged first.
//!
//! The `tokenizers` library orders merges by a rank that is unique per pair, and merges tokens only.
//! SentencePiece orders them by the score of the merged piece, equal scores by position, and merges
//! characters that are no pieces themselves. With `ab` and `ba` of equal score it splits `aba` into
//! `ab` `a` and `bab` into `ba` `b`; no list of ranked pairs does both. Hence this module.

use crate::bounds::Bounds;
use crate::error::{TokenizerError, shortened};
use crate::merging::{Symbols, reserve};
use crate::texts::TokenTable;
use crate::vocabulary::Vocabulary;

/// Bytes of a text beyond which it is long.
const LONG_BYTES: usize = 4096;

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

    /// Whether one token may stand for text of any length: for a run of unknown characters.
    pub(crate) fn has_endless_token(&self) -> bool {
        self.unk_id.is_some() && self.byte_ids.iter().any(Option::is_none)
    }

    /// Appends the ids of `text`, whose spaces are already `▁`. O(n log n) in its bytes. `symbols` is scratch.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        bounds: &Bounds<'_>,
        symbols: &mut Symbols,
        ids: &mut Vec<u32>,
    ) -> Result<(), TokenizerError> {
        if u32::try_from(text.len()).is_err() {
            return Err(TokenizerError::TextTooLong { bytes: text.len(), limit: u32::MAX as usize });
        }
        // A symbol's value is where its text begins; the text ends where that of the next one begins.
        symbols.restart(text.chars().count());
        text.char_indices().for_each(|(start, _)| symbols.push(start as u32));
        let place = |starts: &[u32], at: usize| starts.get(at).map_or(text.len(), |&start| start as usize);
        symbols.merge(bounds, |starts, [left, _, end]| {
            let (start, end) = (place(starts, left), place(starts, end));
            if end - start > self.piece_bytes_max {
                return None;
            }
            let id = self.pieces.get(vocabulary, &text[start..end])?;
            let score = *self.scores.get(id as usize)?;
            Some((rank(score), start as u32))
        })?;

        symbols.drop_queue_of_long_word();
        let pieces = || {
            let piece = |(start, next): (u32, Option<u32>)| {
                &text[start as usize..next.map_or(text.len(), |next| next as usize)]
            };
            symbols.values_with_next().map(piece)
        };
        // Of a long text all pieces are looked up twice, because a vector that grows by itself takes twice the memory.
        if text.len() > LONG_BYTES {
            let count = |piece| if self.token_to_id(vocabulary, piece).is_some() { 1 } else { piece.len() };
            reserve(ids, pieces().map(count).sum());
        }
        let mut unknown_before = false;
        for piece in pieces() {
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
        Ok(())
    }

    fn byte_tokens(&self, piece: &str) -> Option<Vec<u32>> {
        piece.bytes().map(|byte| self.byte_ids[usize::from(byte)]).collect()
    }
}

/// The best score first, as the lowest number; two scores have one number if they are one number.
fn rank(score: f32) -> u32 {
    let bits = score.to_bits();
    // Ascending with the score, as `f32::total_cmp` has it: negative numbers have their bits the other way round.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
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
        let spm = Spm::new(&vocabulary, ids, scores, Box::new([None; 256]), None);
        let mut ids = Vec::new();
        spm.encode(&vocabulary, text, &Bounds::NONE, &mut Symbols::default(), &mut ids)?;
        Ok(ids)
    }

    #[test]
    fn ranks_are_in_the_order_of_scores() {
        let scores = [f32::INFINITY, 1e30, 2.0, 1.5, f32::MIN_POSITIVE, 0.0, -0.0, -1.0, -1.000_001, f32::NEG_INFINITY];
        assert!(scores.map(rank).is_sorted_by(|a, b| a < b), "{:?}", scores.map(rank));
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
