//! Numbers at random that are the same each time, and blocks of them in every weight format: what is timed depends on
//! shapes and formats, not on values.

use anyhow::{Context, Result};
use bytes::Bytes;
use tensor::quant::q5_0;
use tensor::{Tensor, WeightFormat};

/// What the values follow from, together with format and shape.
pub const SEED: u64 = 0x686f_746d_6574_616c;
/// Bytes of the random pattern that weights are cut from.
const PATTERN_BYTES: usize = 1 << 20;
/// Weights begin where a mapped file's would at best: at a cache line.
const ALIGN: usize = 64;
/// About 2e-4 in binary16: the scale of each Q8_0 block, so that weights have a deviation of 0.015.
const Q8_0_SCALE: [u8; 2] = 0x0a8e_u16.to_le_bytes();

/// Whole blocks of one format with random contents; cutting from it is as fast as copying memory.
#[derive(Debug)]
pub struct Pattern {
    block_bytes: usize,
    bytes: Vec<u8>,
}

impl Pattern {
    /// Of values in `format` as ordinary weights have them: finite, and below 0.04.
    pub fn new(format: WeightFormat) -> Self {
        let block_bytes = format.block_bytes();
        // An odd number of blocks, so that no row of a matrix is like the next.
        let num_bytes = ((PATTERN_BYTES / block_bytes) | 1) * block_bytes;
        let mut random = Random(SEED);
        if format.is_quantized() && format != WeightFormat::Q8_0 {
            return Self { block_bytes, bytes: packed_noise(format, num_bytes / block_bytes, &mut random) };
        }
        // Sign and mantissa are random, the exponent is that of 1/64: no infinities, no subnormal numbers.
        let mut word = || match format {
            WeightFormat::F32 => random.next() & 0x807f_ffff_807f_ffff | 0x3c80_0000_3c80_0000,
            WeightFormat::F16 => random.next() & 0x83ff_83ff_83ff_83ff | 0x2400_2400_2400_2400,
            WeightFormat::BF16 => random.next() & 0x807f_807f_807f_807f | 0x3c80_3c80_3c80_3c80,
            _ => random.next(),
        };
        let mut bytes: Vec<u8> = (0..num_bytes.div_ceil(8)).flat_map(|_| word().to_le_bytes()).collect();
        bytes.truncate(num_bytes);
        if format == WeightFormat::Q8_0 {
            for block in bytes.chunks_exact_mut(block_bytes) {
                let (scale, quants) = block.split_at_mut(Q8_0_SCALE.len());
                scale.copy_from_slice(&Q8_0_SCALE);
                // Quantisers are symmetric: they never write -128.
                quants.iter_mut().filter(|quant| **quant == 0x80).for_each(|quant| *quant = 0x81);
            }
        }
        Self { block_bytes, bytes }
    }

    /// Gives each `group` blocks, which begin with a scale in binary16, that of the first; they are cut together.
    #[must_use]
    pub fn with_shared_scales(self, group: usize) -> Self {
        let Self { block_bytes, mut bytes } = self;
        let group_bytes = group * block_bytes;
        bytes.truncate(((bytes.len() / group_bytes - 1) | 1) * group_bytes);
        for blocks in bytes.chunks_exact_mut(group_bytes) {
            let scale = [blocks[0], blocks[1]];
            blocks.chunks_exact_mut(block_bytes).for_each(|block| block[..2].copy_from_slice(&scale));
        }
        Self { block_bytes: group_bytes, bytes }
    }

    /// Of Q5_0: gives each `group` blocks the scale of the first and a zero point; they are cut together.
    #[must_use]
    pub fn with_zero_points(self, group: usize) -> Self {
        let Self { block_bytes, mut bytes } = self.with_shared_scales(group);
        for (index, blocks) in bytes.chunks_exact_mut(block_bytes).enumerate() {
            let each = blocks.chunks_exact(size_of::<q5_0::Block>());
            let mut of_group: Vec<q5_0::Block> = each.map(bytemuck::pod_read_unaligned).collect();
            q5_0::share_zero_point(&mut of_group, 6 + (index % 5) as i8);
            blocks.copy_from_slice(bytemuck::cast_slice(&of_group));
        }
        Self { block_bytes, bytes }
    }

    /// `len` bytes, whole blocks, from a block that `start` chooses.
    ///
    /// # Errors
    /// There is no memory for so many bytes.
    pub fn cut(&self, len: usize, start: u64) -> Result<Bytes> {
        let mut out: Vec<u8> = Vec::new();
        out.try_reserve_exact(len + ALIGN).with_context(|| format!("no memory for a weight of {len} bytes"))?;
        out.resize(out.as_ptr().align_offset(ALIGN).min(ALIGN), 0);
        let first = out.len();
        let num_blocks = (self.bytes.len() / self.block_bytes) as u64;
        let mut rest = &self.bytes[(start % num_blocks) as usize * self.block_bytes..];
        while out.len() < first + len {
            out.extend_from_slice(&rest[..rest.len().min(first + len - out.len())]);
            rest = &self.bytes;
        }
        Ok(Bytes::from(out).slice(first..))
    }
}

/// Blocks of numbers around zero with a deviation of 0.015, as their format packs them.
fn packed_noise(format: WeightFormat, num_blocks: usize, random: &mut Random) -> Vec<u8> {
    let len = num_blocks * format.block_len();
    let values: Vec<f32> = (0..len).map(|_| ((random.next() >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.052).collect();
    Tensor::from_f32(format, vec![len], &values).map_or_else(|_| Vec::new(), |tensor| tensor.bytes().to_vec())
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From 0 to below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.share() * count as f64) as usize).min(count.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_of_ordinary_size_in_every_format_and_the_same_each_time() {
        for format in WeightFormat::ALL {
            let pattern = Pattern::new(format);
            let len = 3 * pattern.bytes.len();
            let tensor = |start| {
                let shape = vec![len / format.block_bytes(), format.block_len()];
                Tensor::new(format, shape, pattern.cut(len, start).unwrap()).unwrap()
            };
            let values = tensor(7).to_f32();
            assert!(values.iter().all(|value| value.is_finite() && value.abs() < 0.04), "{format}");
            assert!(values.iter().filter(|value| value.is_subnormal()).count() == 0, "{format}");
            let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / values.len() as f64;
            assert!(mean.abs() < 1e-3, "{format}: mean {mean}");
            assert_eq!(values, tensor(7).to_f32());
            assert_ne!(values, tensor(8).to_f32());
            assert_eq!(tensor(1).bytes().as_ptr().align_offset(ALIGN), 0);
        }
    }
}
