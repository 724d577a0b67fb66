//! Deterministic random numbers and tensors: the same seed gives the same bits on every machine.

use tensor::{Tensor, WeightFormat};

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator of the sequence that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    /// One of `items`, which are not none.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal with mean 0 and deviation 1: the sum of twelve uniforms (Irwin and Hall), so within ±6 and the same
    /// on every machine, which no library's logarithm promises.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// `len` random token ids below `vocab_size`.
    pub fn tokens(&mut self, len: usize, vocab_size: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab_size) as u32).collect()
    }

    /// A tensor of normal weights around `mean`, packed into `format`.
    ///
    /// # Panics
    /// When the rows are not whole blocks of `format`.
    pub fn tensor(&mut self, format: WeightFormat, shape: &[usize], mean: f32, deviation: f32) -> Tensor {
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| mean + deviation * self.normal()).collect();
        Tensor::from_f32(format, shape.to_vec(), &values).expect("rows of whole blocks")
    }
}
