//! The logits of a step, and the largest of each group of them: with a vocabulary of 150,000 tokens a pass over a row that
//! another processor has written costs more than all else that the host does in a step.

/// Logits of a row for which there is one peak: enough that peaks are few, few enough that a group is quickly looked
/// through.
pub const PEAK_GROUP: usize = 128;

/// Values that are compared at a time: what processors without wide vectors keep in registers, too.
const LANES: usize = 16;

/// What a step makes for its output rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logits<'a> {
    /// (outputs, vocab_size) row-major.
    pub values: &'a [f32],
    /// (outputs, [`num_peaks`] of vocab_size) row-major: the [`peak`] of each group. `None` where the device did not look.
    pub peaks: Option<&'a [f32]>,
}

/// Groups of [`PEAK_GROUP`] logits in a row, the last of which may be shorter.
pub const fn num_peaks(vocab_size: usize) -> usize {
    vocab_size.div_ceil(PEAK_GROUP)
}

/// The largest of `logits`, -inf of none; not a number where one of them is not finite. Which of two zeros is open.
#[inline]
pub fn peak(logits: &[f32]) -> f32 {
    let (chunks, rest) = logits.as_chunks::<LANES>();
    let mut largest = [f32::NEG_INFINITY; LANES];
    // Zero for as long as all are finite, and not a number from then on.
    let mut zeros = [0.0; LANES];
    for chunk in chunks {
        for ((largest, zero), &logit) in largest.iter_mut().zip(&mut zeros).zip(chunk) {
            *largest = if logit > *largest { logit } else { *largest };
            *zero += logit * 0.0;
        }
    }
    let are_finite = zeros.iter().all(|&zero| zero == 0.0) && rest.iter().all(|logit| logit.is_finite());
    if are_finite { largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max) } else { f32::NAN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_the_largest_or_no_number() {
        assert_eq!(peak(&[]), f32::NEG_INFINITY);
        for len in [1, 15, 16, 17, 127, 128] {
            for at in 0..len {
                let mut logits: Vec<f32> = (0..len).map(|index| -1.0 - (index * 7 % 13) as f32).collect();
                logits[at] = -0.5;
                assert_eq!(peak(&logits), -0.5, "at {at} of {len}");
                for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    logits[at] = fault;
                    assert!(peak(&logits).is_nan(), "{fault} at {at} of {len}");
                }
            }
        }
        assert_eq!([num_peaks(0), num_peaks(1), num_peaks(128), num_peaks(129)], [0, 1, 1, 2]);
    }
}
