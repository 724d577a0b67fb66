//! `linear` with W in BF16, multiplied in tiles: activations are rounded to bfloat16, sums are f32.
//!
//! Shapes    x (m, k) in bfloat16, each row filled up with zeros to a multiple of 32; W (n, k); y (m, n) f32. Any k, n and m.
//! Layout    W in panels of sixteen rows, pairs of features side by side ([`PairBlock`]): one stream of memory for decoding,
//!           and tiles as they are for prompts. Where a weight is not in panels (yet), they are made on the way.
//! Bytes     n·k·2 for W: once for up to [`Simd::TILE_ROWS`] rows, from cache for more.
//! Roofline  m <= 32: bound by memory. Above: bound by loads of tiles; on a Sapphire Rapids server, out of the second-level
//!           cache, they hold products to two thirds of 3.7 TFLOP/s a thread.
//! Accuracy  [`Simd::tile_products`] has the order: |error| <= (k / 32 + 18) · ε · Σ|w·x| from exact arithmetic on the rounded
//!           activations; rounding them adds up to 2⁻⁹ · Σ|w·x|. The same bits for a row alone and among others.
//! Versions  [`crate::IsaLevel::Avx512Amx`]; [`crate::IsaLevel::NeonBf16`], which rounds sums within a block to odd, and
//!           [`crate::IsaLevel::Avx512Bf16`], which adds pairs of products in chains of 128 features
//!           (130 + k / 128 units in the bound), and so have bits of their own; plain loops elsewhere, as its meaning, for tests.

use std::ops::Range;

use half::bf16;

use super::linear::Output;
use crate::packed::{PackPairs, Packed, panel_rows};
use crate::simd::{Kernel, LANES, MOST_TILE_ROWS, PANEL_ROWS, PairBlock, Simd, TILE_FEATURES, Words};

/// Panels that rows pass over together: their sums wait in 16 to 24 KiB until a row's are written side by side.
const GROUP_PANELS: usize = 8;

/// f32 of sums that a group needs.
pub(crate) const SUMS_LEN: usize = MOST_TILE_ROWS * GROUP_PANELS * LANES;

/// Features of a row of x and its zeros.
pub(crate) fn padded(k: usize) -> usize {
    k.next_multiple_of(TILE_FEATURES)
}

/// Bytes of the panels that are made on the way for one group.
pub(crate) fn group_bytes(k: usize) -> usize {
    GROUP_PANELS * padded(k) / TILE_FEATURES * size_of::<PairBlock>()
}

/// Where a weight is.
pub(crate) enum Weights<'a> {
    /// As the file has it, (n, k).
    File {
        values: &'a [bf16],
        /// [`group_bytes`].
        panels: &'a mut [u8],
    },
    /// In panels.
    Packed(&'a Packed),
}

/// Some columns of a projection with BF16 weights, for all rows.
pub(crate) struct LinearTiles<'a> {
    pub(crate) weights: Weights<'a>,
    /// (m, [`padded`] k).
    pub(crate) x: &'a [bf16],
    /// Rows of x.
    pub(crate) rows: usize,
    /// Features of a row of W.
    pub(crate) k: usize,
    /// Which rows of W; begins at a multiple of sixteen.
    pub(crate) columns: Range<usize>,
    pub(crate) output: Output<'a>,
    /// [`SUMS_LEN`].
    pub(crate) sums: &'a mut [f32],
}

impl Kernel for LinearTiles<'_> {
    type Output = ();
    const WORDS: Words = Words::Bfloats;

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        debug_assert!(self.columns.start.is_multiple_of(PANEL_ROWS));
        let (k, x_stride) = (self.k, padded(self.k));
        let blocks = x_stride / TILE_FEATURES;
        for start in self.columns.clone().step_by(GROUP_PANELS * PANEL_ROWS) {
            let columns = start..(start + GROUP_PANELS * PANEL_ROWS).min(self.columns.end);
            let group = start / PANEL_ROWS..columns.end.div_ceil(PANEL_ROWS);
            let panels: &[PairBlock] = match &mut self.weights {
                Weights::Packed(packed) => packed.pairs(group.clone()),
                Weights::File { values, panels } => {
                    let panels: &mut [PairBlock] = bytemuck::cast_slice_mut(panels);
                    let panels = &mut panels[..group.len() * blocks];
                    for (index, out) in group.clone().zip(panels.chunks_exact_mut(blocks)) {
                        PackPairs { rows: panel_rows(values, k, index), out }.run(s);
                    }
                    panels
                }
            };
            let width = group.len() * LANES;
            for (index, x) in self.x[..self.rows * x_stride].chunks(S::TILE_ROWS * x_stride).enumerate() {
                let sums = &mut self.sums[..x.len() / x_stride * width];
                s.tile_products(x, blocks, panels, sums);
                for (row, sums) in sums.chunks_exact(width).enumerate() {
                    self.output.put_row(index * S::TILE_ROWS + row, columns.start, &sums[..columns.len()]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tensor::{Tensor, WeightFormat};
    use testing::random::Rng;

    use super::*;
    use crate::packed::pack_panel;
    use crate::shared::SharedSlice;
    use crate::simd::CHAIN_BLOCKS;
    use crate::simd::scalar::{tile_products_in_chains, tile_products_to_odd};
    use crate::{Isa, IsaLevel};

    /// y of rows that are padded already.
    fn linear(isa: Isa, tensor: &Tensor, x: &[bf16], packed: Option<&Packed>) -> Vec<f32> {
        let (n, k) = (tensor.num_rows(), tensor.row_len());
        let rows = x.len() / padded(k);
        let mut y = vec![f32::INFINITY; rows * n];
        let values = &SharedSlice::new(&mut y);
        let output = Output { values, start: 0, stride: n, first_column: 0, bias: None, residual: None, rows: None };
        let mut room = crate::shared::AlignedBuffer::zeroed(group_bytes(k)).unwrap();
        let weights = match packed {
            Some(packed) => Weights::Packed(packed),
            None => Weights::File { values: tensor.as_slice(), panels: &mut room },
        };
        let sums = &mut vec![f32::NAN; SUMS_LEN];
        isa.run(LinearTiles { weights, x, rows, k, columns: 0..n, output, sums });
        y
    }

    #[test]
    fn every_shape_version_and_level_gives_the_same_bits_within_the_bound() {
        let mut rng = Rng::new(6);
        for (rows, n, k) in [
            (1, 1, 1),
            (1, 40, 33),
            (2, 16, 32),
            (16, 17, 64),
            (17, 33, 100),
            (32, 150, 31),
            (33, 48, 96),
            (70, 20, 65),
            (3, 16, 40),
            (5, 31, 500),
            (15, 17, 1000),
            (9, 130, 257),
            (51, 180, 700),
        ] {
            let values: Vec<f32> = (0..n * k).map(|_| rng.normal()).collect();
            let tensor = Tensor::from_f32(WeightFormat::BF16, vec![n, k], &values).unwrap();
            let weights: &[bf16] = tensor.as_slice();
            let stride = padded(k);
            let mut x = vec![bf16::ZERO; rows * stride];
            x.chunks_exact_mut(stride).for_each(|row| row[..k].fill_with(|| bf16::from_f32(rng.normal())));
            let packed_at = |isa| {
                let mut packed = Packed::reserve(&tensor).unwrap();
                for panel in 0..n.div_ceil(PANEL_ROWS) {
                    // SAFETY: one thread.
                    unsafe { pack_panel(isa, &tensor, &packed.share(), panel) };
                }
                packed
            };
            let to_even = linear(Isa::scalar(), &tensor, &x, None);
            let columns = n.next_multiple_of(PANEL_ROWS);
            let packed = packed_at(Isa::scalar());
            let [to_odd, in_chains] = [tile_products_to_odd, tile_products_in_chains].map(|products| {
                let mut y = vec![f32::NAN; rows * columns];
                products(&x, stride / TILE_FEATURES, packed.pairs(0..columns / PANEL_ROWS), &mut y);
                y.chunks_exact(columns).flat_map(|row| &row[..n]).copied().collect::<Vec<f32>>()
            });
            for isa in Isa::available() {
                let expected = match isa.level() {
                    IsaLevel::NeonBf16 => &to_odd,
                    IsaLevel::Avx512Bf16 => &in_chains,
                    _ => &to_even,
                };
                let packed = packed_at(isa);
                for packed in [None, Some(&packed)] {
                    assert_eq!(&linear(isa, &tensor, &x, packed), expected, "{isa} ({rows}, {n}, {k})");
                    let last = &x[(rows - 1) * stride..];
                    assert_eq!(
                        linear(isa, &tensor, last, packed),
                        expected[(rows - 1) * n..],
                        "{isa} ({n}, {k}) alone"
                    );
                }
            }
            // Additions one after the other: of even and odd products in a block and then of blocks, or in a chain and of chains.
            let of_blocks = k / TILE_FEATURES + 18;
            let of_chains = CHAIN_BLOCKS * TILE_FEATURES + k / (CHAIN_BLOCKS * TILE_FEATURES) + 2;
            let all = [(&to_even, of_blocks), (&to_odd, of_blocks), (&in_chains, of_chains)];
            for (at, &y, additions) in
                all.into_iter().flat_map(|(y, additions)| y.iter().enumerate().map(move |(at, y)| (at, y, additions)))
            {
                let products = (0..k).map(|i| f64::from(x[at / n * stride + i]) * f64::from(weights[at % n * k + i]));
                let (sum, absolute) = products.fold((0.0, 0.0), |(sum, abs), p| (sum + p, abs + p.abs()));
                let bound = additions as f64 * f64::from(f32::EPSILON) * absolute;
                assert!((f64::from(y) - sum).abs() <= bound, "({rows}, {n}, {k}) at {at}: {y} for {sum}");
            }
        }
    }

    #[test]
    fn nan_stays_in_its_row_and_its_column() {
        let (rows, n, k) = (34, 18, 33);
        let mut values = vec![1f32; n * k];
        values[17 * k + 32] = f32::NAN;
        let tensor = Tensor::from_f32(WeightFormat::BF16, vec![n, k], &values).unwrap();
        let mut x = vec![bf16::ZERO; rows * padded(k)];
        x.chunks_exact_mut(padded(k)).for_each(|row| row[..k].fill(bf16::ONE));
        x[33 * padded(k) + 3] = bf16::NAN;
        for isa in Isa::available() {
            for (at, y) in linear(isa, &tensor, &x, None).iter().enumerate() {
                assert_eq!(y.is_nan(), at / n == 33 || at % n == 17, "{isa} at {at}");
                assert!(y.is_nan() || *y == k as f32);
            }
        }
    }
}
