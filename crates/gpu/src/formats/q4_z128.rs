//! Codes of four bits with one scale and one zero point for each 128 weights, 4.25 bits a weight: codes as of Q4_0, and
//! a word for each 128 (`WeightQ4Z128` of `kernels/parts.h`). Q5_0 is stored so where all of its blocks allow it: files
//! of INT4 with zero points in such groups (AWQ, most of GPTQ) are read as Q5_0.

use half::f16;
use tensor::quant::q5_0::{BLOCK_LEN, Block};
use tensor::{Tensor, WeightFormat};

use super::facts::{Facts, Scales, Stored, Streamed};
use super::q4_0;
use super::q4_g128::{GROUP_BLOCKS, GROUP_LEN};
use super::rows::{every_piece, lay_out};

pub(super) const FACTS: Facts = Facts {
    weight_format: WeightFormat::Q5_0,
    stored: Stored::Where(has_zero_points_of_128),
    scales: Scales::of(GROUP_LEN, 2 * size_of::<f16>()),
    pack_row: |row, to| lay_out(row.blocks().iter().map(planes), to),
    streamed: Some(Streamed { scales_of_32: 2, scales_min: 128, ..Streamed::FOUR_BITS }),
    ..q4_0::FACTS
};

/// Whether a matrix in Q5_0 has the same scale for each 128 weights, and codes of each 128 that differ by 15 at most:
/// then four bits and a zero point are all of them. Most matrices that were quantised as Q5_0 say no in their first
/// row.
fn has_zero_points_of_128(tensor: &Tensor) -> bool {
    const GROUP_BYTES: usize = GROUP_BLOCKS * size_of::<Block>();
    if !tensor.row_len().is_multiple_of(GROUP_LEN) {
        return false;
    }
    every_piece(tensor, GROUP_BYTES, |bytes| {
        bytemuck::cast_slice::<_, [Block; GROUP_BLOCKS]>(bytes).iter().all(|group| {
            let (least, most) = least_and_most(&group.map(|block| block.codes()));
            most - least <= 15 && group.iter().all(|block| block.scale.to_bits() == group[0].scale.to_bits())
        })
    })
}

/// The least of the codes of a group, and the most.
fn least_and_most(codes: &[[i8; BLOCK_LEN]; GROUP_BLOCKS]) -> (i8, i8) {
    codes.as_flattened().iter().fold((i8::MAX, i8::MIN), |(least, most), &code| (least.min(code), most.max(code)))
}

/// The codes of 128 weights in four bits, and their scale and zero point, as `WeightQ4Z128` of `kernels/parts.h` has
/// them. The zero point is what the least code lacks to zero, and none where all codes are above zero.
fn planes(group: &[Block; GROUP_BLOCKS]) -> ([u8; GROUP_LEN / 2], [u8; 4]) {
    let codes = group.map(|block| block.codes());
    let zero = -least_and_most(&codes).0.min(0);
    let in_four_bits = codes.map(|codes| {
        let code = |i: usize| (codes[i] + zero).cast_unsigned();
        std::array::from_fn::<u8, 16, _>(|i| code(i) | code(i + 16) << 4)
    });
    let (scale, zero) = (group[0].scale.to_le_bytes(), f16::from(zero).to_le_bytes());
    (bytemuck::cast(in_four_bits), [scale[0], scale[1], zero[0], zero[1]])
}

#[cfg(test)]
mod tests {
    use tensor::quant::q5_0::from_codes;
    use testing::Rng;

    use super::*;
    use crate::formats::{DeviceFormat, formats};

    /// Weight by weight, as `WeightQ4Z128` of `kernels/parts.h` says it: zero points of 0 to 16, and codes that are all
    /// above zero. Where the codes of a group differ by more, or scales of its blocks differ, no matrix is in this
    /// format.
    #[test]
    fn q5_0_with_zero_points_has_four_bits_on_the_device() {
        let mut rng = Rng::new(1);
        let mut blocks = vec![];
        for least in -16..=16 {
            let scale = f16::from_f32(0.01 + rng.normal().abs());
            for _ in 0..GROUP_BLOCKS {
                let most = (least + 15).min(15);
                let codes = std::array::from_fn(|_| rng.pick(&[least.min(15), most, (least + 3).min(most)]));
                blocks.push(from_codes(scale, &codes));
            }
        }
        let tensor = |blocks: &[Block]| {
            let shape = vec![blocks.len() / GROUP_BLOCKS, GROUP_LEN];
            Tensor::new(WeightFormat::Q5_0, shape, bytemuck::cast_slice(blocks).to_vec().into()).unwrap()
        };
        let expected = tensor(&blocks);
        assert_eq!(formats(std::slice::from_ref(&expected)), [DeviceFormat::Q4_Z128]);
        for (group, expected) in blocks.as_chunks().0.iter().zip(expected.to_f32().as_chunks::<128>().0) {
            let (codes, [scale_low, scale_high, zero_low, zero_high]) = planes(group);
            let scale = f16::from_le_bytes([scale_low, scale_high]).to_f32();
            let zero = f16::from_le_bytes([zero_low, zero_high]).to_f32();
            assert!((0.0..=16.0).contains(&zero), "{zero}");
            for (i, &expected) in expected.iter().enumerate() {
                let code = codes[i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
                assert_eq!(scale * (f32::from(code) - zero), expected, "weight {i}, zero point {zero}");
            }
        }
        let mut too_far_apart = blocks.clone();
        too_far_apart[5] = from_codes(blocks[5].scale, &std::array::from_fn(|i| if i == 9 { 1 } else { -15 }));
        let mut of_two_scales = blocks.clone();
        of_two_scales[6].scale = f16::ONE;
        for others in [too_far_apart, of_two_scales] {
            assert_eq!(formats(&[tensor(&others), expected.clone()]), [DeviceFormat::Q8_0; 2]);
        }
    }
}
