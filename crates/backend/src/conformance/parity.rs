//! Two devices token by token: the likeliest next token of each, at every position of one text.

use plan::StepInput;

use super::checkpoints::{Side, Work, nmse_max};
use crate::BackendError;

/// Two logits may change places when they are nearer than this many deviations of what the devices differ by: six, for
/// the difference of two.
const TIE_DEVIATIONS: f64 = 6.0 * std::f64::consts::SQRT_2;

/// How two devices agree on a text.
#[derive(Clone, Debug, Default)]
pub struct Parity {
    /// What the device chose.
    pub token_ids: Vec<u32>,
    /// Positions where the other chose the same.
    pub equal: usize,
    /// Positions where it did not, but where both tokens were as likely as the other within the devices' noise.
    pub ties: Vec<Parting>,
    /// The other positions where it did not.
    pub mismatches: Vec<Parting>,
    /// The largest normalised mean square error of the logits of a position, and that position.
    pub worst_nmse: (f64, usize),
    /// What that may be; 0 where the bits have to be the same.
    pub nmse_max: f64,
    /// The first position whose logits are not what they should be.
    pub first_beyond: Option<usize>,
    /// The first position where a logit of either device is not finite.
    pub first_not_finite: Option<usize>,
}

impl Parity {
    /// Whether the devices agree.
    pub fn holds(&self) -> bool {
        self.mismatches.is_empty() && self.first_beyond.is_none() && self.first_not_finite.is_none()
    }
}

/// A position where two devices prefer different tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Parting {
    /// Tokens generated before it.
    pub position: usize,
    /// What the device chose.
    pub found: u32,
    /// What the other chose.
    pub expected: u32,
    /// How much likelier each finds its own choice than the other's, in logits, both together.
    pub margin: f64,
    /// Up to where that is noise.
    pub noise: f64,
}

/// Generates `num_tokens` greedily on `device` after `prompt`, and asks `other` at every position what it would have
/// chosen there; `on_token` hears of each. The text is the device's, so one parting does not make all that follows
/// incomparable.
///
/// # Errors
/// A device cannot load or run the model.
///
/// # Panics
/// When the cache of `work` has no room for prompt and text, or the prompt is empty.
pub fn greedy(
    device: &Side<'_>,
    other: &Side<'_>,
    work: &Work,
    prompt: &[u32],
    num_tokens: usize,
    on_token: &mut dyn FnMut(),
) -> Result<Parity, BackendError> {
    let kv = work.kv;
    let table: Vec<u32> = (0..kv.num_blocks as u32).collect();
    assert!(!prompt.is_empty() && kv.num_blocks * kv.block_len >= prompt.len() + num_tokens, "room for the text");
    let load = |side: &Side<'_>| side.backend.load(side.plan.clone(), work.weights.clone(), kv);
    let (mut on_device, mut on_other) = (load(device)?, load(other)?);
    let nmse_max = nmse_max(&device.backend.claims(), &other.backend.claims(), &device.plan, work);
    let mut parity = Parity { nmse_max, ..Parity::default() };
    let mut next = prompt.to_vec();
    let mut done = 0;
    for position in 0..num_tokens {
        let mut input = StepInput::default();
        let last = input.push_sequence(&next, done, &table) + next.len() - 1;
        input.output_rows.push(last as u32);
        done += next.len();
        let found = on_device.replay(&input)?;
        let expected = on_other.replay(&input)?;
        let token = parity.compare(position, found, expected);
        next = vec![token];
        on_token();
    }
    Ok(parity)
}

impl Parity {
    /// Holds one position's logits together. Returns what the device chose.
    fn compare(&mut self, position: usize, found: &[f32], expected: &[f32]) -> u32 {
        let wide = |logits: &[f32], index: usize| f64::from(logits[index]);
        let (mut error, mut square) = (0.0, 0.0);
        for index in 0..found.len() {
            error += (wide(found, index) - wide(expected, index)).powi(2);
            square += wide(expected, index).powi(2);
        }
        let nmse = if error == 0.0 { 0.0 } else { error / square.max(f64::MIN_POSITIVE) };
        if position == 0 || nmse.is_nan() || nmse > self.worst_nmse.0 {
            self.worst_nmse = (nmse, position);
        }
        let same_bits = || found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
        // Written so that NaN is beyond.
        let within = if self.nmse_max == 0.0 { same_bits() } else { nmse <= self.nmse_max };
        if !within {
            self.first_beyond.get_or_insert(position);
        }
        if found.iter().chain(expected).any(|logit| !logit.is_finite()) {
            self.first_not_finite.get_or_insert(position);
        }
        let (ours, theirs) = (likeliest(found), likeliest(expected));
        self.token_ids.push(ours as u32);
        if ours == theirs {
            self.equal += 1;
            return ours as u32;
        }
        let lead = |logits: &[f32], over: usize, under: usize| wide(logits, over) - wide(logits, under);
        let parting = Parting {
            position,
            found: ours as u32,
            expected: theirs as u32,
            margin: lead(found, ours, theirs) + lead(expected, theirs, ours),
            noise: TIE_DEVIATIONS * (error / found.len() as f64).sqrt(),
        };
        let is_tie = within && parting.margin <= parting.noise;
        if is_tie {
            self.ties.push(parting)
        } else {
            self.mismatches.push(parting)
        }
        ours as u32
    }
}

/// The first of the largest.
fn likeliest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(noise: f32) -> Vec<f32> {
        (0..100).map(|index| (index % 7) as f32 + noise * if index % 2 == 0 { 1.0 } else { -1.0 }).collect()
    }

    #[test]
    fn a_tie_is_not_a_mismatch_and_a_mismatch_is_not_a_tie() {
        let mut parity = Parity { nmse_max: 1e-3, ..Parity::default() };
        assert_eq!(parity.compare(0, &logits(0.01), &logits(0.0)), 6);
        let (mut found, expected) = (logits(0.01), logits(0.0));
        // The same noise, but another token: nearer than the noise, and further.
        found[13] = 6.02;
        assert_eq!(parity.compare(1, &found, &expected), 13);
        found[13] = 6.5;
        assert_eq!(parity.compare(2, &found, &expected), 13);
        assert_eq!(parity.equal, 1);
        assert_eq!(parity.ties.iter().map(|parting| parting.position).collect::<Vec<_>>(), [1]);
        assert_eq!(parity.mismatches.iter().map(|parting| parting.position).collect::<Vec<_>>(), [2]);
        assert!(!parity.holds());
    }

    #[test]
    fn where_bits_have_to_be_the_same_one_bit_is_too_much() {
        let mut parity = Parity::default();
        let (mut found, expected) = (logits(0.0), logits(0.0));
        parity.compare(0, &found, &expected);
        assert!(parity.holds());
        found[3] = found[3].next_up();
        parity.compare(1, &found, &expected);
        assert_eq!(parity.first_beyond, Some(1));
    }

    #[test]
    fn what_is_not_finite_is_found() {
        let mut parity = Parity { nmse_max: 1.0, ..Parity::default() };
        let mut found = logits(0.0);
        found[3] = f32::NAN;
        parity.compare(0, &found, &logits(0.0));
        assert_eq!(parity.first_not_finite, Some(0));
        assert!(!parity.holds());
    }
}
