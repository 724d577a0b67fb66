//! Random weights in the exact shapes of published models: what is timed depends on shapes and formats, not on values.

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use plan::{AnyShape, Plan};
use serde_json::{Map, Value};
use tensor::{Tensor, WeightFormat};

use crate::units;

/// `config.json` of each model, as published, without what does not change the computation.
const SHAPES: &str = include_str!("shapes.json");
/// What the values follow from, together with format and shape.
pub(crate) const SEED: u64 = 0x686f_746d_6574_616c;
/// Bytes of the random pattern that weights are cut from.
const PATTERN_BYTES: usize = 1 << 20;
/// Weights begin where a mapped file's would at best: at a cache line.
const ALIGN: usize = 64;
/// About 2e-4 in binary16: the scale of each Q8_0 block, so that weights have a deviation of 0.015.
const Q8_0_SCALE: [u8; 2] = 0x0a8e_u16.to_le_bytes();

/// The `config.json` of the model that `name` stands for.
pub(super) fn config_of(name: &str) -> Result<Value> {
    let mut shapes: Map<String, Value> = serde_json::from_str(SHAPES).context("the table of shapes is malformed")?;
    let Some(config) = shapes.remove(name) else {
        let known: Vec<_> = shapes.keys().map(String::as_str).collect();
        bail!("there is no shape `{name}`; this build has: {}", known.join(", "));
    };
    Ok(config)
}

/// The textbook plan of that model.
pub(super) fn plan_of(name: &str) -> Result<Plan> {
    Ok(models::build_plan(&config_of(name)?, &AnyShape)?)
}

/// The format of that name, in any case.
pub(super) fn format_of(name: &str) -> Result<WeightFormat> {
    let known = WeightFormat::ALL;
    known.into_iter().find(|format| format.name().eq_ignore_ascii_case(name)).ok_or_else(|| {
        let names = known.map(|format| format.name().to_ascii_lowercase()).join(", ");
        anyhow!("there is no weight format `{name}`; this build has: {names}")
    })
}

/// Weights for `plan`, in its order: matrices in `format`, vectors in F32. Fails when they are larger than `memory_bytes`.
pub(super) fn random_weights(plan: &Plan, format: WeightFormat, memory_bytes: u64) -> Result<Vec<Tensor>> {
    let format_of = |shape: &[usize]| if shape.len() > 1 { format } else { WeightFormat::F32 };
    let mut total = 0u64;
    for weight in &plan.weights {
        total += Tensor::byte_len(format_of(&weight.shape), &weight.shape)? as u64;
    }
    if total > memory_bytes {
        let (needed, found) = (units::bytes(total), units::bytes(memory_bytes));
        bail!("the weights take {needed} in {format}, but this machine has {found} of memory; use a smaller --format");
    }
    let pattern = Pattern::new(format);
    let mut random = Random(SEED);
    let mut weights = Vec::with_capacity(plan.weights.len());
    for weight in &plan.weights {
        weights.push(match weight.shape.as_slice() {
            &[len] => {
                // Norms and biases near 1: what a norm multiplies with keeps the activations where they are.
                let values: Vec<f32> = (0..len).map(|_| 1.0 + (random.next() % 100) as f32 * 1e-3).collect();
                Tensor::from_f32(WeightFormat::F32, vec![len], &values)?
            }
            shape => {
                Tensor::new(format, shape.to_vec(), pattern.cut(Tensor::byte_len(format, shape)?, random.next())?)?
            }
        });
    }
    Ok(weights)
}

/// Whole blocks of one format with random contents; cutting from it is as fast as copying memory.
pub(super) struct Pattern {
    block_bytes: usize,
    bytes: Vec<u8>,
}

impl Pattern {
    pub(super) fn new(format: WeightFormat) -> Self {
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

    /// `len` bytes, whole blocks, from a block that `start` chooses.
    pub(super) fn cut(&self, len: usize, start: u64) -> Result<Bytes> {
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
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parameters as the published checkpoints have them: a wrong shape would show here.
    #[test]
    fn each_shape_has_the_parameters_of_its_model() {
        let published = [
            ("qwen2.5-0.5b", 494_032_768),
            ("qwen3-0.6b", 596_049_920),
            ("llama-3.2-1b", 1_235_814_400),
            ("llama-3.1-8b", 8_030_261_248),
            ("devstral-small", 23_572_403_200_usize),
        ];
        let shapes: Map<String, Value> = serde_json::from_str(SHAPES).unwrap();
        assert_eq!(shapes.len(), published.len());
        for (name, expected) in published {
            let plan = plan_of(name).unwrap();
            let found: usize = plan.weights.iter().map(|weight| weight.shape.iter().product::<usize>()).sum();
            assert_eq!(found, expected, "{name}");
        }
    }

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

    #[test]
    fn weights_beyond_the_memory_are_refused_before_they_are_made() {
        let plan = plan_of("devstral-small").unwrap();
        let error = random_weights(&plan, WeightFormat::F32, 1 << 30).unwrap_err().to_string();
        assert!(error.contains("GiB in F32, but this machine has 1.00 GiB"), "{error}");
    }
}
