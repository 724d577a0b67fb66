//! The largest logit of each group of a row, and from these whether all are numbers, and where the large ones are: the
//! likeliest few are found without a look at most of the others. A device may have found them already; with a vocabulary of
//! 150,000 tokens a pass over the row is most of what a choice costs.

use backend::{PEAK_GROUP, peak};

use super::LogitsRow;
use super::bounds::Bounds;
use super::candidates::Candidate;
use super::filters::{Ranked, keep_likeliest};

/// Logits of a group where those of [`PEAK_GROUP`] are too few to tell the likeliest by. A line of the cache.
const SHORT_GROUP: usize = 16;
/// Groups for each token that is looked for: with fewer, a look at all logits in short groups is less than one at each of the
/// groups that hold the likeliest.
const GROUPS_PER_TOKEN: usize = 4;

/// The largest logit of each group of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Peaks {
    /// (groups,): of logits g · PEAK_GROUP to (g + 1) · PEAK_GROUP, the last may be shorter.
    pub(super) groups: Vec<f32>,
    /// The same of short groups, where they were wanted.
    short: Vec<f32>,
    /// Either of them, to be put in order.
    ordered: Vec<f32>,
    /// The largest of all.
    max: f32,
    /// What the tokens of each group weigh, for those who ask.
    pub(super) bounds: Vec<Bounds>,
}

impl Peaks {
    /// Goes over the logits of `row`, or takes what the device found there. Whether all are finite; of others
    /// nothing else is known.
    pub(super) fn find(&mut self, row: LogitsRow<'_>) -> bool {
        self.groups.clear();
        match row.peaks {
            Some(peaks) => self.groups.extend_from_slice(peaks),
            None => self.groups.extend(row.logits.chunks(PEAK_GROUP).map(peak)),
        }
        self.max = peak(&self.groups);
        !self.max.is_nan()
    }

    /// The largest, -inf of none.
    pub(super) fn max(&self) -> f32 {
        self.max
    }

    /// The index of the largest of `logits`, which were gone over; the first of equals, none of none.
    pub(super) fn likeliest(&self, logits: &[f32]) -> Option<usize> {
        let start = self.groups.iter().position(|&peak| peak == self.max)? * PEAK_GROUP;
        let inside = logits.get(start..)?.iter().position(|&logit| logit == self.max)?;
        Some(start + inside)
    }

    /// The tokens of `logits`, which were gone over, whose logit is at least `bound`, ascending: groups whose largest is less are
    /// not looked at.
    pub(super) fn reaching(&self, logits: &[f32], bound: f32) -> impl Iterator<Item = (u32, f32)> {
        reaching(&self.groups, PEAK_GROUP, logits, bound)
    }

    /// Leaves the `k` likeliest of `logits`, which were gone over, in `ranked`, all if there are fewer, in no order.
    pub(super) fn rank_likeliest(&mut self, logits: &[f32], k: usize, ranked: &mut Vec<Ranked>) {
        ranked.clear();
        if k == 0 {
            return;
        }
        let Self { groups, short, ordered, .. } = self;
        let (peaks, group_len) = if groups.len() / GROUPS_PER_TOKEN >= k {
            (groups, PEAK_GROUP)
        } else {
            short.clear();
            short.extend(logits.chunks(SHORT_GROUP).map(peak));
            (short, SHORT_GROUP)
        };
        // k groups have a largest logit at or above the k-th largest of these: so have the k likeliest of all.
        let mut bound = f32::NEG_INFINITY;
        if k < peaks.len() {
            ordered.clone_from(peaks);
            let descending = |a: &f32, b: &f32| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal);
            bound = *ordered.select_nth_unstable_by(k - 1, descending).1;
        }
        ranked.extend(reaching(peaks, group_len, logits, bound).map(|(id, logit)| Ranked::likely(id, logit)));
        keep_likeliest(ranked, k);
    }

    /// Makes `candidates` of the `k` likeliest of `logits`, which were gone over, and of the tokens `others`.
    pub(super) fn fill(
        &mut self,
        candidates: &mut Vec<Candidate>,
        logits: &[f32],
        k: usize,
        others: impl Iterator<Item = u32>,
        ranked: &mut Vec<Ranked>,
    ) {
        self.rank_likeliest(logits, k, ranked);
        candidates.clear();
        let ids = ranked.iter().map(|ranked| ranked.id).chain(others);
        candidates.extend(ids.filter_map(|id| Some(Candidate { id, logit: *logits.get(id as usize)? })));
        candidates.sort_unstable_by_key(|candidate| candidate.id);
        candidates.dedup_by_key(|candidate| candidate.id);
    }
}

/// The tokens of `logits` whose logit is at least `bound`, ascending. Groups of `group_len` whose largest, in `peaks`, is less are not
/// looked at.
fn reaching(peaks: &[f32], group_len: usize, logits: &[f32], bound: f32) -> impl Iterator<Item = (u32, f32)> {
    let groups = logits.chunks(group_len).zip(peaks).zip((0..).step_by(group_len));
    let reach = groups.filter(move |&((_, &peak), _)| peak >= bound);
    let tokens = reach.flat_map(|((group, _), start)| (start..).zip(group.iter().copied()));
    tokens.filter(move |&(_, logit)| logit >= bound)
}
