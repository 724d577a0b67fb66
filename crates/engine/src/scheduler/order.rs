//! The order in which sequences are served.

use std::collections::HashMap;

use crate::request::RequestId;
use crate::sequence::Sequence;

/// Where a sequence stands in the order in which sequences are served. The smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServiceOrder {
    /// The step in which the request arrived, or its caller's turn, less `aging_steps` for each level of priority. The rank
    /// never changes, so a request of any priority that arrives late enough stands behind, and no request waits for ever.
    pub(crate) rank: i64,
    /// Between equal ranks, the request that came first.
    pub(crate) request: RequestId,
    /// Within a request, the completion with the smallest number.
    pub(crate) completion: usize,
}

/// The turns of callers that share an engine (start-time fair queueing). A turn is as long as one level of priority:
/// `aging_steps`.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When each caller's next turn begins.
    next: HashMap<u64, i64>,
    /// The latest turn that began. A caller that had no request waiting takes its first turn here.
    pub(super) now: i64,
}

impl Turns {
    /// Gives `caller` its next turn, which is `len` long. Returns when the turn begins.
    pub(super) fn next(&mut self, caller: u64, len: i64) -> i64 {
        let next = self.next.entry(caller).or_default();
        let turn = self.now.max(*next);
        *next = turn.saturating_add(len);
        turn
    }
}

/// Inserts a sequence into a list that is sorted by [`ServiceOrder`].
pub(super) fn insert_in_order(sequences: &mut Vec<Sequence>, sequence: Sequence) {
    let index = sequences.partition_point(|other| other.order < sequence.order);
    sequences.insert(index, sequence);
}
