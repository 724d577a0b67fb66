//! The random numbers of one token.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The random numbers of one token. All are always drawn, so that switching one step on does not change
/// what another one sees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    /// For the choice, 53 bits in units of 2^-64.
    pub(super) pick: u64,
    /// For XTC, in [0, 1).
    pub(super) xtc: f64,
}

/// The numbers for the `index`-th generated token of a completion: a function of its arguments only.
pub(super) fn draws(seed: u64, completion: usize, index: usize) -> Draws {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&(completion as u64).to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(index as u64);
    let mut bits = || rng.next_u64() >> 11;
    Draws { pick: bits() << 11, xtc: bits() as f64 * f64::from_bits(0x3ca0_0000_0000_0000) } // 53 bits · 2^-53
}
