//! Checks that the memory of a loaded model's weights still holds what it held at first. A bit that flips there changes
//! every later text, and no step notices.

use std::collections::HashMap;
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3Default;

use crate::{BackendError, Executable};

/// One stretch of memory that holds a weight, or a part of it, for as long as the model is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResidentWeight {
    /// The weight's place in [`plan::Plan::weights`].
    pub weight: usize,
    /// Its name there.
    pub name: String,
    /// Which of the weight's stretches it is, in words for a message: `as the file has it`, `scales`.
    pub layout: &'static str,
    /// Its length.
    pub bytes: u64,
}

/// A weight whose memory no longer holds what it held.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the weight `{}` ({}) has changed in memory, at bytes {} to {} of {}: the memory is faulty, or another program has \
     written into the model's file",
    resident.name, resident.layout, bytes.start, bytes.end, resident.bytes
)]
pub struct ChangedWeight {
    /// The stretch.
    pub resident: ResidentWeight,
    /// Bytes of it of which at least one has changed.
    pub bytes: Range<u64>,
}

/// How a check can fail.
#[derive(Debug, thiserror::Error)]
pub enum WeightFault {
    /// The memory does not hold what it held.
    #[error(transparent)]
    Changed(#[from] ChangedWeight),
    /// The device did not show it.
    #[error(transparent)]
    Device(#[from] BackendError),
}

/// A check under way. It goes through all resident weights piece by piece, again and again: the first pass over a stretch
/// keeps a checksum of each piece, and every later pass compares.
#[derive(Debug, Default)]
pub struct WeightCheck {
    /// XXH3-64 of each piece, in order; of a stretch that the first pass has not ended, of its first pieces.
    checksums: HashMap<ResidentWeight, Vec<u64>>,
    /// What is left of this pass, the next one last.
    left: Vec<ResidentWeight>,
    /// Where the next piece of that one begins.
    start: u64,
    is_in_pass: bool,
}

impl WeightCheck {
    /// Bytes of a piece: read in about half a millisecond, so that a request that comes meanwhile does not wait.
    pub const PIECE_BYTES: u64 = 4 << 20;

    /// Reads the next piece. Returns whether a pass has ended with it. Not to be called while steps are under way.
    pub fn read_piece(&mut self, executable: &mut dyn Executable) -> Result<bool, WeightFault> {
        if !self.is_in_pass {
            self.left = executable.resident_weights();
            self.left.reverse();
            (self.start, self.is_in_pass) = (0, true);
        }
        let Some(resident) = self.left.last() else {
            self.is_in_pass = false;
            return Ok(true);
        };
        let piece = self.start..resident.bytes.min(self.start + Self::PIECE_BYTES);
        let mut hasher = Xxh3Default::new();
        executable.read_weight(resident, piece.clone(), &mut |bytes| hasher.update(bytes))?;
        let (found, index) = (hasher.digest(), (self.start / Self::PIECE_BYTES) as usize);
        let known = self.checksums.entry(resident.clone()).or_default();
        match known.get(index) {
            None => known.push(found),
            Some(&expected) if expected == found => {}
            Some(_) => {
                return Err(ChangedWeight { resident: resident.clone(), bytes: piece }.into());
            }
        }
        self.start = piece.end;
        if piece.end == resident.bytes {
            self.left.pop();
            self.start = 0;
        }
        self.is_in_pass = !self.left.is_empty();
        Ok(!self.is_in_pass)
    }
}

#[cfg(test)]
mod tests {
    use plan::{StepInput, StepShape};

    use super::*;

    /// Memory without a model.
    struct Weights(Vec<Vec<u8>>);

    impl Executable for Weights {
        fn compile(&mut self, _: StepShape) -> Result<(), BackendError> {
            Ok(())
        }

        fn replay(&mut self, _: &StepInput) -> Result<&[f32], BackendError> {
            Ok(&[])
        }

        fn resident_weights(&self) -> Vec<ResidentWeight> {
            let resident = |(weight, bytes): (usize, &Vec<u8>)| ResidentWeight {
                weight,
                name: format!("blk.{weight}.weight"),
                layout: "as the file has it",
                bytes: bytes.len() as u64,
            };
            self.0.iter().enumerate().map(resident).collect()
        }

        fn read_weight(
            &mut self,
            resident: &ResidentWeight,
            range: Range<u64>,
            read: &mut dyn FnMut(&[u8]),
        ) -> Result<(), BackendError> {
            read(&self.0[resident.weight][range.start as usize..range.end as usize]);
            Ok(())
        }
    }

    /// The pieces of a pass, or what has changed.
    fn pass(check: &mut WeightCheck, weights: &mut Weights) -> Result<usize, ChangedWeight> {
        for pieces in 1.. {
            match check.read_piece(weights) {
                Ok(false) => {}
                Ok(true) => return Ok(pieces),
                Err(WeightFault::Changed(changed)) => return Err(changed),
                Err(WeightFault::Device(error)) => panic!("{error}"),
            }
        }
        unreachable!("a pass ends")
    }

    #[test]
    fn a_bit_that_flips_anywhere_is_found_by_the_next_pass() {
        let piece = WeightCheck::PIECE_BYTES as usize;
        let mut weights = Weights(vec![vec![7; 100], vec![], vec![9; 2 * piece], vec![1; piece + 1]]);
        let mut check = WeightCheck::default();
        for _ in 0..3 {
            assert_eq!(pass(&mut check, &mut weights), Ok(1 + 1 + 2 + 2));
        }
        for (weight, at, bytes) in
            [(0, 0, 0..100), (2, piece, piece..2 * piece), (3, piece, piece..piece + 1), (2, 5, 0..piece)]
        {
            weights.0[weight][at] ^= 0x10;
            // A check that is new knows nothing of what was before.
            assert_eq!(pass(&mut WeightCheck::default(), &mut weights), Ok(6));
            let changed = pass(&mut check, &mut weights).unwrap_err();
            assert_eq!(changed.bytes, bytes.start as u64..bytes.end as u64);
            let message = changed.to_string();
            assert!(message.contains(&format!("`blk.{weight}.weight` (as the file has it)")), "{message}");
            // As it was again, the pass goes on there.
            weights.0[weight][at] ^= 0x10;
            pass(&mut check, &mut weights).unwrap();
        }
    }

    #[test]
    fn what_is_laid_out_anew_between_passes_is_read_as_new() {
        let mut weights = Weights(vec![vec![7; 100]]);
        let mut check = WeightCheck::default();
        assert_eq!(pass(&mut check, &mut weights), Ok(1));
        weights.0[0] = vec![8; 90];
        weights.0.push(vec![1; 5]);
        assert_eq!(pass(&mut check, &mut weights), Ok(2));
        weights.0[0][89] = 9;
        assert!(pass(&mut check, &mut weights).is_err());
        assert_eq!(pass(&mut WeightCheck::default(), &mut Weights(vec![])), Ok(1));
    }
}
