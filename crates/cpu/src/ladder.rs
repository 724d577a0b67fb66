//! The GEMV ladder: y = W · x from the textbook loop upwards, one idea a rung, for `bench kernels` to show what
//! each idea is worth. None of this is used to run models; the last rung there is the backend's own kernel.
//!
//! Shapes    W (n, k) row-major as the file has it; x (k,); y (n,). Any n and k; one thread.
//! Bytes     those of W, once; x and y stay in cache.
//! Accuracy  |error| <= k · ε · Σ|w·x| against the f64 reference; from [`Rung::Int8`] on, in Q8_0, what rounding x to eight
//!           bits costs as well: half a step of max|x| / 127 in each block.

use half::{bf16, f16};
use tensor::quant::q8_0::{self, BLOCK_LEN};
use tensor::{Tensor, WeightFormat};

use crate::Isa;
use crate::simd::{Kernel, LANES, Simd, Words};

/// One idea more than the rung before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rung {
    /// One dot product a row, one weight at a time, as a textbook writes it.
    Naive,
    /// Eight sums side by side: no addition waits for the one before.
    Unrolled,
    /// Sixteen weights at a time, in the vectors of the instruction set.
    Vectors,
    /// Q8_0: activations rounded to int8 once, and products of integers.
    Int8,
    /// Four rows a pass: four streams from memory, and each part of x is loaded once for all.
    Rows,
    /// Each of the four rows asked for ahead of use.
    Prefetch,
}

/// Sums of [`Rung::Unrolled`].
const UNROLL: usize = 8;
/// Rows of [`Rung::Rows`].
const ROWS: usize = 4;
/// How far ahead of use [`Rung::Prefetch`] asks, in each row; guessed.
const PREFETCH_BYTES: usize = 1024;

impl Rung {
    /// The rungs that there are for `format`, lowest first.
    pub fn of(format: WeightFormat) -> &'static [Self] {
        match format {
            WeightFormat::Q8_0 => &[Self::Naive, Self::Unrolled, Self::Vectors, Self::Int8, Self::Rows, Self::Prefetch],
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => {
                &[Self::Naive, Self::Unrolled, Self::Vectors, Self::Rows, Self::Prefetch]
            }
            // Q8_0 shows what blocks need; the others differ in how codes are unpacked.
            _ => &[],
        }
    }

    /// The name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Unrolled => "unrolled",
            Self::Vectors => "vectors",
            Self::Int8 => "int8",
            Self::Rows => "rows",
            Self::Prefetch => "prefetch",
        }
    }

    /// Whether the instruction set matters to it.
    pub fn uses_vectors(self) -> bool {
        !matches!(self, Self::Naive | Self::Unrolled)
    }
}

/// y = W · x as `rung` does it, on the calling thread, with the vectors of `isa`.
///
/// # Panics
/// When x or y has another length than W asks for, or `rung` is none of [`Rung::of`] W's format.
pub fn gemv(rung: Rung, isa: Isa, weight: &Tensor, x: &[f32], y: &mut [f32]) {
    let k = weight.row_len();
    assert_eq!((x.len(), y.len()), (k, weight.num_rows()), "lengths of x and y for a weight of {:?}", weight.shape());
    let isa = if rung.uses_vectors() { isa } else { Isa::scalar() };
    match weight.format() {
        WeightFormat::F32 => isa.run(Floats { rung, weights: weight.as_slice::<f32>(), x, y }),
        WeightFormat::F16 => isa.run(Floats { rung, weights: weight.as_slice::<f16>(), x, y }),
        WeightFormat::BF16 => isa.run(Floats { rung, weights: weight.as_slice::<bf16>(), x, y }),
        WeightFormat::Q8_0 => {
            isa.run(Blocks { rung, weights: weight.as_slice::<q8_0::Block>(), x, y });
        }
        format => panic!("the ladder has no rungs for {format}"),
    }
}

/// A weight that is a number by itself.
trait Float: bytemuck::Pod {
    fn value(self) -> f32;
    fn load<S: Simd>(simd: S, weights: &[Self; LANES]) -> S::F32;
}

impl Float for f32 {
    #[inline(always)]
    fn value(self) -> f32 {
        self
    }
    #[inline(always)]
    fn load<S: Simd>(simd: S, weights: &[Self; LANES]) -> S::F32 {
        simd.load(weights)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<S: Simd>(simd: S, weights: &[Self; LANES]) -> S::F32 {
        simd.load_f16(weights)
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn value(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<S: Simd>(simd: S, weights: &[Self; LANES]) -> S::F32 {
        simd.load_bf16(weights)
    }
}

/// The ladder for F32, F16 and BF16.
struct Floats<'a, W> {
    rung: Rung,
    weights: &'a [W],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<W: Float> Kernel for Floats<'_, W> {
    type Output = ();
    const WORDS: Words = Words::Floats;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rung, weights, x, y } = self;
        let rows = weights.chunks_exact(x.len());
        match rung {
            Rung::Naive => y.iter_mut().zip(rows).for_each(|(y, row)| *y = naive(row, x)),
            Rung::Unrolled => y.iter_mut().zip(rows).for_each(|(y, row)| *y = unrolled(row, x)),
            // There are no integers to multiply here.
            Rung::Vectors | Rung::Int8 => {
                y.iter_mut().zip(rows).for_each(|(y, row)| [*y] = float_rows::<S, W, 1, false>(simd, row, x));
            }
            Rung::Rows => by_rows(
                weights,
                x.len(),
                y,
                |rows| float_rows::<S, W, ROWS, false>(simd, rows, x),
                |row| float_rows::<S, W, 1, false>(simd, row, x),
            ),
            Rung::Prefetch => by_rows(
                weights,
                x.len(),
                y,
                |rows| float_rows::<S, W, ROWS, true>(simd, rows, x),
                |row| float_rows::<S, W, 1, true>(simd, row, x),
            ),
        }
    }
}

#[inline(always)]
fn naive<W: Float>(row: &[W], x: &[f32]) -> f32 {
    let mut sum = 0.0;
    for (weight, x) in row.iter().zip(x) {
        sum += weight.value() * x;
    }
    sum
}

#[inline(always)]
fn unrolled<W: Float>(row: &[W], x: &[f32]) -> f32 {
    let mut sums = [0.0; UNROLL];
    let (groups, rest) = row.as_chunks::<UNROLL>();
    let (x_groups, x_rest) = x.as_chunks::<UNROLL>();
    for (weights, x) in groups.iter().zip(x_groups) {
        for ((sum, weight), x) in sums.iter_mut().zip(weights).zip(x) {
            *sum += weight.value() * x;
        }
    }
    sums.into_iter().sum::<f32>() + naive(rest, x_rest)
}

/// The dot products of `N` consecutive rows with x.
#[inline(always)]
fn float_rows<S: Simd, W: Float, const N: usize, const PREFETCH: bool>(simd: S, rows: &[W], x: &[f32]) -> [f32; N] {
    let k = x.len();
    let mut sums = [simd.splat(0.0); N];
    let (vectors, x_rest) = x.as_chunks::<LANES>();
    for (at, x) in vectors.iter().enumerate() {
        let x = simd.load(x);
        for (index, sum) in sums.iter_mut().enumerate() {
            let row = &rows[index * k..(index + 1) * k];
            let weights = &row.as_chunks::<LANES>().0[at];
            if PREFETCH {
                simd.prefetch(weights.as_ptr().cast::<u8>().wrapping_add(PREFETCH_BYTES));
            }
            *sum = simd.mul_add(W::load(simd, weights), x, *sum);
        }
    }
    let tail = k - x_rest.len();
    std::array::from_fn(|index| simd.sum(sums[index]) + naive(&rows[index * k + tail..(index + 1) * k], x_rest))
}

/// A block of activations as int8, in the plainest way; the backend's own is `kernels/quantize.rs`.
struct Codes {
    codes: [i8; BLOCK_LEN],
    scale: f32,
}

impl Codes {
    #[inline(always)]
    fn of(x: &[f32]) -> Vec<Self> {
        let block = |x: &[f32; BLOCK_LEN]| {
            let scale = x.iter().fold(0.0f32, |max, x| max.max(x.abs())) / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            Self { codes: x.map(|x| (x * inverse).round_ties_even() as i8), scale }
        };
        x.as_chunks::<BLOCK_LEN>().0.iter().map(block).collect()
    }
}

/// The ladder for Q8_0.
struct Blocks<'a> {
    rung: Rung,
    weights: &'a [q8_0::Block],
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Blocks<'_> {
    type Output = ();
    const WORDS: Words = Words::Bytes;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { rung, weights, x, y } = self;
        let k = x.len() / BLOCK_LEN;
        let rows = weights.chunks_exact(k);
        let codes = &match rung {
            Rung::Naive | Rung::Unrolled | Rung::Vectors => vec![],
            Rung::Int8 | Rung::Rows | Rung::Prefetch => Codes::of(x),
        }[..];
        match rung {
            Rung::Naive => y.iter_mut().zip(rows).for_each(|(y, row)| *y = naive_blocks(row, x)),
            Rung::Unrolled => y.iter_mut().zip(rows).for_each(|(y, row)| *y = unrolled_blocks(row, x)),
            Rung::Vectors => y.iter_mut().zip(rows).for_each(|(y, row)| *y = vector_blocks(simd, row, x)),
            Rung::Int8 => {
                y.iter_mut().zip(rows).for_each(|(y, row)| [*y] = int8_rows::<S, 1, false>(simd, row, codes));
            }
            Rung::Rows => by_rows(
                weights,
                k,
                y,
                |rows| int8_rows::<S, ROWS, false>(simd, rows, codes),
                |row| int8_rows::<S, 1, false>(simd, row, codes),
            ),
            Rung::Prefetch => by_rows(
                weights,
                k,
                y,
                |rows| int8_rows::<S, ROWS, true>(simd, rows, codes),
                |row| int8_rows::<S, 1, true>(simd, row, codes),
            ),
        }
    }
}

#[inline(always)]
fn naive_blocks(row: &[q8_0::Block], x: &[f32]) -> f32 {
    let mut sum = 0.0;
    for (block, x) in row.iter().zip(x.as_chunks::<BLOCK_LEN>().0) {
        for (code, x) in block.codes.iter().zip(x) {
            sum += block.scale.to_f32() * f32::from(*code) * x;
        }
    }
    sum
}

#[inline(always)]
fn unrolled_blocks(row: &[q8_0::Block], x: &[f32]) -> f32 {
    let mut sum = 0.0;
    for (block, x) in row.iter().zip(x.as_chunks::<BLOCK_LEN>().0) {
        let mut sums = [0.0; UNROLL];
        for (codes, x) in block.codes.as_chunks::<UNROLL>().0.iter().zip(x.as_chunks::<UNROLL>().0) {
            for ((sum, code), x) in sums.iter_mut().zip(codes).zip(x) {
                *sum += f32::from(*code) * x;
            }
        }
        sum += block.scale.to_f32() * sums.into_iter().sum::<f32>();
    }
    sum
}

#[inline(always)]
fn vector_blocks<S: Simd>(simd: S, row: &[q8_0::Block], x: &[f32]) -> f32 {
    let mut sum = simd.splat(0.0);
    for (block, x) in row.iter().zip(x.as_chunks::<BLOCK_LEN>().0) {
        let mut dots = simd.splat(0.0);
        for (codes, x) in block.codes.as_chunks::<LANES>().0.iter().zip(x.as_chunks::<LANES>().0) {
            let mut weights = [0.0; LANES];
            for (weight, code) in weights.iter_mut().zip(codes) {
                *weight = f32::from(*code);
            }
            dots = simd.mul_add(simd.load(&weights), simd.load(x), dots);
        }
        sum = simd.mul_add(dots, simd.splat(block.scale.to_f32()), sum);
    }
    simd.sum(sum)
}

/// The dot products of `N` consecutive rows with x, a sum of two products a lane: what compilers make multiply-and-add
/// instructions of.
#[inline(always)]
fn int8_rows<S: Simd, const N: usize, const PREFETCH: bool>(simd: S, rows: &[q8_0::Block], x: &[Codes]) -> [f32; N] {
    let k = x.len();
    let mut sums = [simd.splat(0.0); N];
    for (at, x) in x.iter().enumerate() {
        for (index, sum) in sums.iter_mut().enumerate() {
            let block = &rows[index * k + at];
            if PREFETCH {
                simd.prefetch((&raw const *block).cast::<u8>().wrapping_add(PREFETCH_BYTES));
            }
            // Loops over arrays, not `map`: only these become vector instructions.
            let mut dots = [0.0; LANES];
            let pairs = block.codes.as_chunks::<2>().0.iter().zip(x.codes.as_chunks::<2>().0);
            for (dot, (w, x)) in dots.iter_mut().zip(pairs) {
                let product = i32::from(w[0]) * i32::from(x[0]) + i32::from(w[1]) * i32::from(x[1]);
                *dot = product as f32;
            }
            let scale = simd.splat(block.scale.to_f32() * x.scale);
            *sum = simd.mul_add(simd.load(&dots), scale, *sum);
        }
    }
    sums.map(|sum| simd.sum(sum))
}

/// [`ROWS`] rows of `k` items at a time through `four`, what is left through `one`.
#[inline(always)]
fn by_rows<W>(
    weights: &[W],
    k: usize,
    y: &mut [f32],
    four: impl Fn(&[W]) -> [f32; ROWS],
    one: impl Fn(&[W]) -> [f32; 1],
) {
    let (groups, rest) = y.as_chunks_mut::<ROWS>();
    let (weights, rest_weights) = weights.split_at(groups.len() * ROWS * k);
    groups.iter_mut().zip(weights.chunks_exact(ROWS * k)).for_each(|(y, rows)| *y = four(rows));
    rest.iter_mut().zip(rest_weights.chunks_exact(k)).for_each(|(y, row)| [*y] = one(row));
}

#[cfg(test)]
mod tests {
    use testing::Rng;

    use super::*;

    #[test]
    fn every_rung_at_every_level_is_right() {
        let mut rng = Rng::new(5);
        for format in WeightFormat::ALL {
            // Rows left over from groups of four, lanes left over from vectors where the format allows.
            let (n, k) = if format.is_quantized() { (11, 256) } else { (11, 231) };
            let weight = rng.tensor(format, &[n, k], 0.0, 1.0);
            let x: Vec<f32> = (0..k).map(|_| rng.normal()).collect();
            let weights = weight.to_f32();
            for &rung in Rung::of(format) {
                for isa in Isa::available() {
                    let mut y = vec![f32::NAN; n];
                    gemv(rung, isa, &weight, &x, &mut y);
                    for (y, row) in y.iter().zip(weights.chunks_exact(k)) {
                        let products = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                        let (expected, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                        let of_codes = rung.uses_vectors() && rung != Rung::Vectors && format == WeightFormat::Q8_0;
                        // Half a step of x, which no block here has larger than 4 / 127.
                        let rounding: f64 = row.iter().map(|w| f64::from(w.abs())).sum::<f64>() * 2.1 / 127.0;
                        let bound = size * k as f64 * f64::from(f32::EPSILON) + if of_codes { rounding } else { 0.0 };
                        let error = (f64::from(*y) - expected).abs();
                        assert!(error <= bound, "{format} {} {isa}: {error} > {bound}", rung.name());
                    }
                }
            }
        }
    }
}
