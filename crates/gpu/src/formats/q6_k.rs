//! Q6_K, 6.6 bits a weight: the lower four bits of codes as Q4_0 has them, and 84 bytes for each 256 with the upper two
//! bits and the scales (`WeightQ6_K` of `kernels/parts.h`).

use tensor::WeightFormat;
use tensor::quant::q6_k::{BLOCK_LEN, Block};

use super::facts::{Facts, Gemm, Scales, Streamed};
use super::q4_0;
use super::rows::lay_out;

/// Bytes of what 256 weights have beside the lower bits of their codes: `Q6_K_WORDS` of `kernels/parts.h`.
const REST_BYTES: usize = 84;

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::Q6_K,
    scales: Scales::of(BLOCK_LEN, REST_BYTES),
    pack_row: |row, to| lay_out(row.blocks().iter().map(planes), to),
    // Measured: more instructions a byte, and shorter stages.
    streamed: Some(Streamed {
        stage: 1024,
        scales_of_32: 21,
        scales_min: 336,
        effort: 1.6,
        rows_are_faster: false,
        ..Streamed::FOUR_BITS
    }),
    gemm: Some(Gemm { stage_times: [[900, 1000, 1200, 1500], [1000, 1100, 1300, 1600]], ..Gemm::FOUR_BITS }),
    ..q4_0::FACTS
};

/// 256 weights: the lower four bits of codes as Q4_0 has them, and the rest of the block as `WeightQ6_K` of
/// `kernels/parts.h` wants it.
fn planes(block: &Block) -> ([u8; 128], [u8; REST_BYTES]) {
    let (mut low, mut rest) = ([0; 128], [0; REST_BYTES]);
    let halves = block.codes.as_chunks::<64>().0.iter().zip(block.high.as_chunks::<32>().0).enumerate();
    for (half, (codes, high)) in halves {
        for quarter in 0..4 {
            let chunk = half * 4 + quarter;
            let (codes, shift) = (&codes[quarter % 2 * 32..][..32], quarter / 2 * 4);
            for (place, low) in low[chunk * 16..][..16].iter_mut().enumerate() {
                *low = codes[place] >> shift & 15 | (codes[place + 16] >> shift & 15) << 4;
            }
            // The upper two bits of four codes.
            let words = high.as_chunks::<4>().0;
            let upper = |i: usize| (u32::from_le_bytes(words[i]) >> (2 * quarter) & 0x0303_0303) ^ 0x0202_0202;
            for eight in 0..2 {
                // A byte has two codes of the lower half of the chunk and two of the upper, by turns, the first four
                // ahead.
                let first = 2 * eight;
                let bits = upper(first) | upper(first + 4) << 2 | upper(first + 1) << 4 | upper(first + 5) << 6;
                let word = (chunk % 2 * 2 + eight) * 4 + chunk / 2;
                rest[word * 4..][..4].copy_from_slice(&bits.to_le_bytes());
            }
        }
    }
    rest[64..80].copy_from_slice(bytemuck::cast_slice(&block.scales));
    rest[80..82].copy_from_slice(&block.scale.to_le_bytes());
    (low, rest)
}

#[cfg(test)]
mod tests {
    use half::f16;
    use testing::Rng;

    use super::*;

    /// Weight by weight, as `WeightQ6_K` of `kernels/parts.h` says it.
    #[test]
    fn planes_of_q6_k_have_every_bit_where_kernels_look() {
        let mut rng = Rng::new(1);
        for _ in 0..20 {
            let mut byte = || rng.next_u64() as u8;
            let block = Block {
                codes: std::array::from_fn(|_| byte()),
                high: std::array::from_fn(|_| byte()),
                scales: std::array::from_fn(|_| byte().cast_signed()),
                scale: f16::from_bits(0x1234),
            };
            let (mut low, mut rest) = ([0; 128], [0; REST_BYTES]);
            for (i, code) in block.codes_in_order().into_iter().enumerate() {
                let (chunk, upper, place) = (i / 32, i / 16 % 2, i % 16);
                low[chunk * 16 + place] |= (code & 15) << (upper * 4);
                // The word of this half of the chunk, its byte, and there the lower half of the codes' bytes first, the
                // first four ahead.
                let word = (chunk % 2 * 2 + place / 8) * 4 + chunk / 2;
                let shift = (place % 8 / 4 * 2 + upper) * 2;
                rest[word * 4 + place % 4] |= ((code >> 4) ^ 2) << shift;
            }
            rest[64..80].copy_from_slice(bytemuck::cast_slice(&block.scales));
            rest[80..82].copy_from_slice(&block.scale.to_le_bytes());
            assert_eq!(planes(&block), (low, rest));
        }
    }
}
