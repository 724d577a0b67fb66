//! Merging neighbours, the best pair first: what byte-pair encoding and SentencePiece have in common.
//!
//! Memory    Ten bytes for each symbol of a long word: its value (4), its length (4), and a queue of at most a quarter as
//!           many pairs (8 bytes each). A queue of all pairs would take twice that alone.
//! Time      O(n log n) in the symbols of a word. A queue that is full forgets its worse half; a scan of the word finds
//!           those pairs again once the better ones are merged, and there are a few scans at most in each word because
//!           each of them merges a fixed share of its symbols.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::bounds::Bounds;
use crate::error::TokenizerError;

/// The value of a place whose symbol was merged into an earlier one.
const MERGED: u32 = u32::MAX;

/// A word of more symbols is long.
const SHORT_SYMBOLS: usize = 4096;

/// How often it is asked whether anybody still waits, in pairs looked at.
const ASK_PAIRS: usize = 1 << 14;

/// The symbols of a word, and the memory that merging them takes; kept from one word to the next.
///
/// A symbol has a place for each of the symbols that it was made of. Its first place has its value; its first and its
/// last have the count of its places, so that both of its neighbours are found.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    values: Vec<u32>,
    spans: Vec<u32>,
    queue: Queue,
}

impl Symbols {
    /// Forgets all symbols, and makes room for `count`.
    pub(crate) fn restart(&mut self, count: usize) {
        self.values.clear();
        self.spans.clear();
        self.values.reserve_exact(count);
        self.spans.reserve_exact(count);
    }

    /// Appends a symbol. The value may be any but `u32::MAX`.
    pub(crate) fn push(&mut self, value: u32) {
        self.values.push(value);
        self.spans.push(1);
    }

    /// Each symbol's value, in order.
    pub(crate) fn values(&self) -> impl Iterator<Item = u32> + Clone {
        self.values.iter().copied().filter(|&value| value != MERGED)
    }

    /// Appends all values to `ids`, once all is merged.
    pub(crate) fn append_to(&mut self, ids: &mut Vec<u32>) {
        self.drop_queue_of_long_word();
        let count = self.values().count();
        reserve(ids, count);
        ids.extend(self.values());
    }

    /// Each symbol's value with that of the symbol behind it, if there is one.
    pub(crate) fn values_with_next(&self) -> impl Iterator<Item = (u32, Option<u32>)> {
        let nexts = self.values().skip(1).map(Some).chain([None]);
        self.values().zip(nexts)
    }

    /// Gives back what a long word's merging took, because its ids come next.
    pub(crate) fn drop_queue_of_long_word(&mut self) {
        if self.values.len() > SHORT_SYMBOLS {
            self.queue = Queue::default();
        }
    }

    /// Merges neighbours until none merge; returns the values of the two that merged last.
    ///
    /// `pair` gives the rank of two neighbours, the lowest to be merged first and the leftmost of several, and the value
    /// of what they make; nothing if they do not merge. It is given the values by place, and the places where the two
    /// symbols and the one behind them begin. While a pair at a place keeps its rank, it is the same pair.
    pub(crate) fn merge(
        &mut self,
        bounds: &Bounds<'_>,
        pair: impl FnMut(&[u32], [usize; 3]) -> Option<(u32, u32)>,
    ) -> Result<Option<(u32, u32)>, TokenizerError> {
        // Short words have a queue of all their pairs: it is small, and spares the scans.
        let symbols = self.values.len();
        let room = if symbols <= SHORT_SYMBOLS { usize::MAX } else { symbols / 4 };
        self.merge_with_room(room, bounds, pair)
    }

    /// [`Symbols::merge`] with a queue of at most `room` pairs, and at least two.
    fn merge_with_room(
        &mut self,
        room: usize,
        bounds: &Bounds<'_>,
        mut pair: impl FnMut(&[u32], [usize; 3]) -> Option<(u32, u32)>,
    ) -> Result<Option<(u32, u32)>, TokenizerError> {
        let Self { values, spans, queue } = self;
        let len = values.len();
        let mut last = None;
        let mut looks = 0_usize;
        let look = |looks: &mut usize| {
            *looks += 1;
            if looks.is_multiple_of(ASK_PAIRS) { bounds.check_wanted() } else { Ok(()) }
        };
        loop {
            queue.restart(room);
            let mut at = 0;
            while at < len {
                look(&mut looks)?;
                let right = at + spans[at] as usize;
                if right < len
                    && let Some((rank, _)) = pair(values, [at, right, right + spans[right] as usize])
                {
                    queue.push(rank, at);
                }
                at = right;
            }
            while let Some((rank, at)) = queue.pop() {
                look(&mut looks)?;
                // The pair may have changed since it was queued.
                let right = at + spans[at] as usize;
                if values[at] == MERGED || right >= len {
                    continue;
                }
                let end = right + spans[right] as usize;
                let Some((_, merged)) = pair(values, [at, right, end]).filter(|(now, _)| *now == rank) else {
                    continue;
                };
                last = Some((values[at], values[right]));
                values[right] = MERGED;
                values[at] = merged;
                let span = (end - at) as u32;
                spans[at] = span;
                spans[end - 1] = span;
                if at > 0 {
                    let left = at - spans[at - 1] as usize;
                    if let Some((rank, _)) = pair(values, [left, at, end]) {
                        queue.push(rank, left);
                    }
                }
                if end < len
                    && let Some((rank, _)) = pair(values, [at, end, end + spans[end] as usize])
                {
                    queue.push(rank, at);
                }
            }
            if !queue.has_forgotten {
                return Ok(last);
            }
        }
    }
}

/// Makes room for `count` ids, and no more where these are many. Where they are few, ids grow by a half: a vector that grows
/// by itself doubles, and has both of its blocks meanwhile.
pub(crate) fn reserve(ids: &mut Vec<u32>, count: usize) {
    if ids.capacity() - ids.len() < count {
        let more = if count > SHORT_SYMBOLS { count } else { count.max(ids.len() / 2) };
        ids.reserve_exact(more);
    }
}

/// The best pairs: all of a key up to `limit`, where the key is the rank and then the place.
#[derive(Debug)]
struct Queue {
    keys: BinaryHeap<Reverse<u64>>,
    room: usize,
    limit: u64,
    /// Whether some pair was left out.
    has_forgotten: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self { keys: BinaryHeap::new(), room: 0, limit: u64::MAX, has_forgotten: false }
    }
}

impl Queue {
    fn restart(&mut self, room: usize) {
        self.keys.clear();
        self.limit = u64::MAX;
        self.has_forgotten = false;
        self.room = room;
        if room < usize::MAX {
            self.keys.reserve_exact(room);
        }
    }

    fn push(&mut self, rank: u32, at: usize) {
        let key = u64::from(rank) << 32 | at as u64;
        if key <= self.limit && self.keys.len() >= self.room {
            self.forget_half();
        }
        if key <= self.limit {
            self.keys.push(Reverse(key));
        } else {
            self.has_forgotten = true;
        }
    }

    fn pop(&mut self) -> Option<(u32, usize)> {
        let Reverse(key) = self.keys.pop()?;
        Some(((key >> 32) as u32, key as u32 as usize))
    }

    fn forget_half(&mut self) {
        let mut keys = std::mem::take(&mut self.keys).into_vec();
        let last = (keys.len() - 1) / 2;
        let (_, &mut Reverse(limit), _) = keys.select_nth_unstable_by_key(last, |&Reverse(key)| key);
        keys.truncate(last + 1);
        self.keys = keys.into();
        self.limit = limit;
        self.has_forgotten = true;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    type Table = HashMap<(u32, u32), (u32, u32)>;

    type Merged = (Vec<u32>, Option<(u32, u32)>);

    /// The plain way: all pairs are looked at for each merge.
    fn plainly_merged(word: &[u32], table: &Table) -> Merged {
        let mut values = word.to_vec();
        let mut last = None;
        loop {
            let pairs = values.array_windows().enumerate();
            let found = pairs.filter_map(|(at, [a, b])| Some((table.get(&(*a, *b))?.0, at))).min();
            let Some((_, at)) = found else { return (values, last) };
            last = Some((values[at], values[at + 1]));
            values[at] = table[&(values[at], values[at + 1])].1;
            values.remove(at + 1);
        }
    }

    fn merged(word: &[u32], table: &Table, room: usize) -> Merged {
        let mut symbols = Symbols::default();
        symbols.restart(word.len());
        word.iter().for_each(|&value| symbols.push(value));
        let pair = |values: &[u32], [left, right, _]: [usize; 3]| table.get(&(values[left], values[right])).copied();
        let last = symbols.merge_with_room(room, &Bounds::NONE, pair).expect("no bounds");
        (symbols.values().collect(), last)
    }

    /// Pairs of the first few symbols make the next ones, each of its own rank.
    fn table() -> impl Strategy<Value = Table> {
        prop::collection::vec((0u32..12, 0u32..12), 0..12).prop_flat_map(|pairs| {
            let ranks: Vec<u32> = (0..pairs.len() as u32).collect();
            (Just(pairs), Just(ranks).prop_shuffle()).prop_map(|(pairs, ranks)| {
                pairs.into_iter().zip(ranks).zip(4..).map(|((pair, rank), made)| (pair, (rank, made))).collect()
            })
        })
    }

    proptest! {
        #[test]
        fn any_room_merges_as_looking_at_all_pairs_does(
            table in table(),
            part in prop::collection::vec(0u32..4, 1..40),
            len in 0usize..200,
            room in 2usize..100,
        ) {
            let word: Vec<u32> = part.iter().copied().cycle().take(len).collect();
            let expected = plainly_merged(&word, &table);
            prop_assert_eq!(&merged(&word, &table, room), &expected);
            prop_assert_eq!(&merged(&word, &table, usize::MAX), &expected);
        }
    }

    #[test]
    fn merging_ends_when_nobody_waits() {
        let mut symbols = Symbols::default();
        symbols.restart(1 << 16);
        (0..1 << 16).for_each(|_| symbols.push(7));
        let bounds = Bounds { is_abandoned: &|| true, ..Bounds::NONE };
        let ended = symbols.merge(&bounds, |_, _| Some((0, 7)));
        assert!(matches!(ended, Err(TokenizerError::Abandoned)), "{ended:?}");
    }
}
