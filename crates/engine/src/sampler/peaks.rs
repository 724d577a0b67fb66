//! One pass over a row of logits that says whether all are numbers, and where the large ones are: the likeliest few are then
//! found without a look at most of the others. With a vocabulary of 150,000 tokens a pass is most of what a choice costs.

use super::candidates::Candidate;
use super::filters::{Ranked, keep_likeliest};

/// Logits in a group: enough that their largest are few, and few enough that a group is quickly looked through.
const GROUP: usize = 128;
/// Values that are compared at a time: what processors without wide vectors keep in registers, too.
const LANES: usize = 16;

/// The largest logit of each group of a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Peaks {
    /// (groups,): of logits g · GROUP to (g + 1) · GROUP, the last may be shorter.
    groups: Vec<f32>,
    /// The same, to be put in order.
    ordered: Vec<f32>,
}

impl Peaks {
    /// Goes over `logits`. Whether all are finite; of others nothing else is known.
    pub(super) fn find(&mut self, logits: &[f32]) -> bool {
        self.groups.clear();
        let mut are_finite = true;
        self.groups.extend(logits.chunks(GROUP).map(|group| {
            let (chunks, rest) = group.as_chunks::<LANES>();
            let mut peaks = [f32::NEG_INFINITY; LANES];
            // Zero for as long as all are finite, and not a number from then on.
            let mut zeros = [0.0; LANES];
            for chunk in chunks {
                for ((peak, zero), &logit) in peaks.iter_mut().zip(&mut zeros).zip(chunk) {
                    *peak = if logit > *peak { logit } else { *peak };
                    *zero += logit * 0.0;
                }
            }
            are_finite &= zeros.iter().all(|&zero| zero == 0.0) && rest.iter().all(|logit| logit.is_finite());
            peaks.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
        }));
        are_finite
    }

    /// The largest, -inf of none.
    pub(super) fn max(&self) -> f32 {
        self.groups.iter().copied().fold(f32::NEG_INFINITY, f32::max)
    }

    /// The index of the largest of `logits`, which were gone over; the first of equals, none of none.
    pub(super) fn likeliest(&self, logits: &[f32]) -> Option<usize> {
        let max = self.max();
        let start = self.groups.iter().position(|&peak| peak == max)? * GROUP;
        let inside = logits.get(start..)?.iter().position(|&logit| logit == max)?;
        Some(start + inside)
    }

    /// Leaves the `k` likeliest of `logits`, which were gone over, in `ranked`, all if there are fewer, in no order.
    pub(super) fn rank_likeliest(&mut self, logits: &[f32], k: usize, ranked: &mut Vec<Ranked>) {
        ranked.clear();
        if k == 0 {
            return;
        }
        // k groups have a largest logit at or above the k-th largest of these: so have the k likeliest of all.
        let mut bound = f32::NEG_INFINITY;
        if k < self.groups.len() {
            self.ordered.clone_from(&self.groups);
            let descending = |a: &f32, b: &f32| b.partial_cmp(a).unwrap_or(std::cmp::Ordering::Equal);
            bound = *self.ordered.select_nth_unstable_by(k - 1, descending).1;
        }
        for ((group, &peak), start) in logits.chunks(GROUP).zip(&self.groups).zip((0..).step_by(GROUP)) {
            if peak >= bound {
                let reaches = (start..).zip(group).filter(|&(_, &logit)| logit >= bound);
                ranked.extend(reaches.map(|(id, &logit)| Ranked::likely(id, logit)));
            }
        }
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
