//! A quantised matrix over the bytes of its tensors: what each weight is, and the same in a [`WeightFormat`].

use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use half::{bf16, f16};
use tensor::WeightFormat;
use tensor::quant::fp8::{self, e4m3};
use tensor::quant::{mxfp4, nvfp4, q4_0, q5_0, q8_0};

/// Features that are decoded at a time: whole blocks of every format.
const LEN: usize = 64;
/// Rows that are decoded together: those of a column-major matrix share cache lines.
const TILE_ROWS: usize = 16;
/// Weights that are worth a thread.
const THREAD_WEIGHTS: usize = 1 << 19;
/// Scales that are looked at to choose between two formats that both round.
const SCALES_MAX: usize = 4096;

/// (rows, cols): `weight = scale · (code - zero)`, or `scale · number` where codes are floating-point numbers.
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) codes: Codes,
    pub(super) scales: Grid,
    pub(super) zeros: Zeros,
    pub(super) features: Features,
    /// Features that share a scale.
    pub(super) col_step: usize,
}

/// Some rows of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowSet {
    pub(super) first: usize,
    /// From each to the next, at least 1.
    pub(super) step: usize,
    pub(super) count: usize,
}

/// How codes lie.
pub(super) enum Codes {
    /// (rows, row_words) words of 32 bits, codes along them from the lowest bit on.
    Rows { words: Bytes, bits: u32, row_words: usize },
    /// (words of a column, rows), codes along a column.
    Columns { words: Bytes, bits: u32 },
    /// (cols, rows / 8) words; [`AWQ_SHIFT`] says where each of eight rows is.
    Awq(Bytes),
    /// (rows, cols) signed bytes.
    Signed(Bytes),
    /// (rows, cols).
    E4m3(Bytes),
    /// (rows, cols / 2), the first of two in the lower half.
    E2m1(Bytes),
}

/// The bit at which the code of row 8i + j begins in its word.
pub(super) const AWQ_SHIFT: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];

/// Types of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dtype {
    F16,
    BF16,
    F32,
    E4m3,
    E8m0,
}

impl Dtype {
    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::E4m3 | Self::E8m0 => 1,
        }
    }
}

/// The scales.
pub(super) struct Grid {
    pub(super) bytes: Bytes,
    pub(super) dtype: Dtype,
    /// Rows that share one.
    pub(super) row_step: usize,
    pub(super) row_stride: usize,
    pub(super) group_stride: usize,
    /// What all are multiplied with, or with `true` divided by.
    pub(super) global: Option<(f32, bool)>,
}

impl Grid {
    fn len(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    fn get(&self, index: usize) -> f32 {
        let at = index * self.dtype.size();
        let bytes = &self.bytes[at..at + self.dtype.size()];
        let scale = match (self.dtype, bytes) {
            (Dtype::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
            (Dtype::BF16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
            (Dtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Dtype::E4m3, &[code]) => e4m3(code),
            (_, &[code]) => e8m0(code),
            _ => f32::NAN,
        };
        match self.global {
            None => scale,
            Some((global, true)) => scale / global,
            Some((global, false)) => scale * global,
        }
    }

    fn index(&self, row: usize, group: usize) -> usize {
        row / self.row_step * self.row_stride + group * self.group_stride
    }

    fn at(&self, row: usize, group: usize) -> f32 {
        self.get(self.index(row, group))
    }
}

/// The zero points.
pub(super) enum Zeros {
    /// There are none: the middle of the codes.
    Middle,
    /// (groups, row_words): along a row of words, less `added`.
    Gptq { words: Bytes, bits: u32, row_words: usize, added: u16 },
    /// (groups, row_words), in AutoAWQ's order.
    Awq { words: Bytes, row_words: usize },
    /// (words of a column, groups): along a column of words.
    Packed { words: Bytes, bits: u32, groups: usize },
    /// As scales lie.
    Signed { bytes: Bytes, row_step: usize, row_stride: usize },
}

/// The group of each feature.
pub(super) enum Features {
    /// Consecutive ones share a group.
    InOrder,
    /// Each has its own: weights were quantised in order of importance.
    Listed(Vec<u32>),
    /// As [`Features::InOrder`], in an order of their own: feature i of the matrix is this one of the tensors.
    Sorted(Arc<[u32]>),
}

/// The features in the order of their groups, those of one as they were; `None` where groups are not of `size` features each.
pub(super) fn sorted(of_feature: &[u32], size: usize) -> Option<Vec<u32>> {
    let mut order: Vec<u32> = (0..u32::try_from(of_feature.len()).ok()?).collect();
    order.sort_by_key(|&feature| of_feature[feature as usize]);
    let is_whole = |(at, &feature): (usize, &u32)| of_feature[feature as usize] as usize == at / size;
    order.iter().enumerate().all(is_whole).then_some(order)
}

fn word(words: &[u8], index: usize) -> u32 {
    words.as_chunks().0.get(index).map_or(0, |&bytes| u32::from_le_bytes(bytes))
}

/// Code `index` of a stream of codes in words, of which word i is at `at(i)`.
fn code(words: &[u8], bits: u32, index: usize, at: impl Fn(usize) -> usize) -> u16 {
    let bit = index * bits as usize;
    let (first, shift) = (bit / 32, (bit % 32) as u32);
    let mut value = u64::from(word(words, at(first)));
    if shift + bits > 32 {
        value |= u64::from(word(words, at(first + 1))) << 32;
    }
    (value >> shift) as u16 & ((1 << bits) - 1)
}

/// The power of two that a code of E8M0 stands for.
fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(0x0040_0000),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// The codes of a block, as its format has them.
fn array<T: Copy + Default, const N: usize>(codes: &[i16], convert: impl Fn(i16) -> T) -> [T; N] {
    let mut converted = [T::default(); N];
    converted.iter_mut().zip(codes).for_each(|(converted, &code)| *converted = convert(code));
    converted
}

/// F16 or BF16, whichever is nearer to these weights, and the sum of the squares that it is off by.
pub(crate) fn nearest_float(weights: impl Iterator<Item = f32>) -> (WeightFormat, f64) {
    let (mut half, mut brain) = (0f64, 0f64);
    for weight in weights {
        let error = |rounded: f32| (f64::from(rounded) - f64::from(weight)).powi(2);
        half += error(f16::from_f32(weight).to_f32());
        brain += error(bf16::from_f32(weight).to_f32());
    }
    if half <= brain { (WeightFormat::F16, half) } else { (WeightFormat::BF16, brain) }
}

impl Matrix {
    /// What it becomes, and whether that is exactly what it means.
    pub(super) fn format(&self) -> (WeightFormat, bool) {
        const BLOCK_LEN: usize = q8_0::BLOCK_LEN;
        let in_blocks = self.cols.is_multiple_of(BLOCK_LEN)
            && (self.col_step.is_multiple_of(BLOCK_LEN) || self.col_step >= self.cols)
            && !matches!(self.features, Features::Listed(_));
        let bits = match &self.codes {
            Codes::Rows { bits, .. } | Codes::Columns { bits, .. } => Some(*bits),
            Codes::Awq(_) => Some(4),
            Codes::Signed(_) => Some(8),
            Codes::E4m3(_) | Codes::E2m1(_) => None,
        };
        if let (true, Some(bits)) = (in_blocks, bits)
            && self.scales_are_f16()
        {
            match (bits, self.is_symmetric()) {
                (..=4, true) => return (WeightFormat::Q4_0, true),
                // Less their zero points, codes of four bits lie between -15 and 15.
                (..=4, false) => return (WeightFormat::Q5_0, true),
                (8, true) => return (WeightFormat::Q8_0, true),
                _ => {}
            }
        }
        if in_blocks && matches!(self.codes, Codes::E2m1(_)) && self.scales.dtype == Dtype::E8m0 {
            return (WeightFormat::MXFP4, true);
        }
        if in_blocks && matches!(self.codes, Codes::E2m1(_)) && self.halves_are_f16() {
            // Twice a number is a whole one, from -12 to 12.
            return (WeightFormat::Q5_0, true);
        }
        if let (true, Codes::E4m3(_), Some(exact)) = (in_blocks, &self.codes, self.scales_are_fp8()) {
            return (WeightFormat::FP8, exact);
        }
        if let (Codes::E2m1(_), Some((_, exact))) = (&self.codes, self.nvfp4_scale()) {
            return (WeightFormat::NVFP4, exact);
        }
        self.nearest_float()
    }

    /// What NVFP4 multiplies scales of E4M3 with, and whether that is what the file means where it says to divide; `None` where
    /// scales are not those of NVFP4.
    fn nvfp4_scale(&self) -> Option<(f32, bool)> {
        let (global, divides) = self.scales.global?;
        let in_blocks = self.cols.is_multiple_of(nvfp4::BLOCK_LEN) && self.col_step == nvfp4::GROUP_LEN;
        let scale = if divides { 1.0 / global } else { global };
        let is_exact = |code| {
            let of_group = e4m3(code);
            of_group.is_nan() || !divides || of_group * scale == of_group / global
        };
        let fits = in_blocks && self.scales.dtype == Dtype::E4m3 && scale.is_normal();
        fits.then(|| (scale, (0..=255).all(is_exact)))
    }

    /// Whether f16 has every scale.
    fn scales_are_f16(&self) -> bool {
        let fits = |scale: f32| f16::from_f32(scale).to_f32() == scale;
        self.scales.dtype == Dtype::F16 && self.scales.global.is_none()
            || (0..self.scales.len()).all(|index| fits(self.scales.get(index)))
    }

    /// Whether scales are numbers of their own, and f16 has half of each.
    fn halves_are_f16(&self) -> bool {
        let fits = |scale: f32| 2.0 * f16::from_f32(scale * 0.5).to_f32() == scale;
        matches!(self.scales.dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32)
            && (0..self.scales.len()).all(|index| fits(self.scales.get(index)))
    }

    /// Whether FP8 has every scale exactly; `None` where it has one to fewer bits than f16 has.
    fn scales_are_fp8(&self) -> Option<bool> {
        let normal = f16::MIN_POSITIVE.to_f32()..=f16::MAX.to_f32();
        let fits = |scale: f32| {
            let scale = scale / fp8::UNIT;
            let is_exact = f16::from_f32(scale).to_f32() == scale && scale.is_finite();
            (is_exact || normal.contains(&scale.abs())).then_some(is_exact)
        };
        (0..self.scales.len()).try_fold(true, |exact, index| Some(fits(self.scales.get(index))? && exact))
    }

    /// Whether every zero point is the middle of the codes.
    fn is_symmetric(&self) -> bool {
        match &self.zeros {
            Zeros::Middle => true,
            _ => {
                let groups = self.cols.div_ceil(self.col_step).max(1);
                (0..groups).all(|group| (0..self.rows).all(|row| self.zero(row, group) == self.middle()))
            }
        }
    }

    fn middle(&self) -> i16 {
        match self.codes {
            Codes::Rows { bits, .. } | Codes::Columns { bits, .. } => 1 << (bits - 1),
            Codes::Awq(_) => 8,
            Codes::Signed(_) | Codes::E4m3(_) | Codes::E2m1(_) => 0,
        }
    }

    fn zero(&self, row: usize, group: usize) -> i16 {
        match &self.zeros {
            Zeros::Middle => self.middle(),
            Zeros::Gptq { words, bits, row_words, added } => {
                let stored = code(words, *bits, row, |word| group * row_words + word);
                ((stored + added) & ((1 << bits) - 1)).cast_signed()
            }
            Zeros::Awq { words, row_words } => {
                (word(words, group * row_words + row / 8) >> AWQ_SHIFT[row % 8] & 15) as i16
            }
            Zeros::Packed { words, bits, groups } => {
                code(words, *bits, row, |word| word * groups + group).cast_signed()
            }
            Zeros::Signed { bytes, row_step, row_stride } => {
                bytes.get(row / row_step * row_stride + group).map_or(0, |&zero| i16::from(zero.cast_signed()))
            }
        }
    }

    /// F16 or BF16, whichever is nearer to all codes with the scales, or some of them; `true` where it has each exactly.
    pub(super) fn nearest_float(&self) -> (WeightFormat, bool) {
        let numbers: Vec<f32> = match &self.codes {
            Codes::E4m3(_) => (0..=255).map(e4m3).filter(|number| number.is_finite()).collect(),
            Codes::E2m1(_) => mxfp4::DOUBLED.map(|doubled| f32::from(doubled) / 2.0).to_vec(),
            codes => {
                let bits = match codes {
                    Codes::Rows { bits, .. } | Codes::Columns { bits, .. } => *bits,
                    Codes::Awq(_) => 4,
                    _ => 8,
                };
                let least = if matches!(self.zeros, Zeros::Middle) { 1i16 << (bits - 1) } else { (1 << bits) - 1 };
                (-least..least).map(f32::from).collect()
            }
        };
        let stride = self.scales.len().div_ceil(SCALES_MAX).max(1);
        let scales = (0..self.scales.len()).step_by(stride).map(|index| self.scales.get(index));
        let scales = scales.filter(|scale| scale.is_finite());
        let (format, error) = nearest_float(scales.flat_map(|scale| numbers.iter().map(move |number| number * scale)));
        (format, stride == 1 && error == 0.0)
    }

    /// These rows in `format`, which [`Matrix::format`] or [`Matrix::nearest_float`] chose; `None` where there are not so
    /// many, or memory cannot hold them.
    pub(super) fn decode(&self, format: WeightFormat, rows: RowSet) -> Option<Bytes> {
        let RowSet { first, step, count } = rows;
        let last = count.checked_sub(1).and_then(|last| last.checked_mul(step)?.checked_add(first));
        if last.is_some_and(|last| last >= self.rows) {
            return None;
        }
        let row_bytes = format.row_bytes(self.cols)?;
        let len = row_bytes.checked_mul(count)?;
        let mut out = Vec::new();
        out.try_reserve_exact(len).ok()?;
        out.resize(len, 0u8);
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = threads.min((count * self.cols).div_ceil(THREAD_WEIGHTS)).max(1);
        let share = count.div_ceil(threads).next_multiple_of(TILE_ROWS);
        thread::scope(|scope| {
            for (part, out) in out.chunks_mut((share * row_bytes).max(1)).enumerate() {
                scope.spawn(move || self.decode_rows(format, first + part * share * step, step, out));
            }
        });
        Some(out.into())
    }

    /// Every `step`-th row from `first` on, as many as `out` has room for.
    fn decode_rows(&self, format: WeightFormat, first: usize, step: usize, out: &mut [u8]) {
        let row_bytes = format.row_bytes(self.cols).unwrap_or(0).max(1);
        for (tile, out) in out.chunks_mut(TILE_ROWS * row_bytes).enumerate() {
            let first = first + tile * TILE_ROWS * step;
            for start in (0..self.cols).step_by(LEN) {
                for (row, out) in (first..).step_by(step).zip(out.chunks_mut(row_bytes)) {
                    let len = LEN.min(self.cols - start);
                    let piece = format.row_bytes(start).unwrap_or(0)..format.row_bytes(start + len).unwrap_or(0);
                    self.decode_piece(format, row, start, &mut out[piece]);
                }
            }
        }
    }

    /// Up to [`LEN`] features of a row from `start` on.
    fn decode_piece(&self, format: WeightFormat, row: usize, start: usize, out: &mut [u8]) {
        let mut codes = [0i16; LEN];
        self.read_codes(row, start, &mut codes);
        let blocks = codes.chunks(format.block_len()).zip(out.chunks_exact_mut(format.block_bytes()));
        for (start, (codes, out)) in (start..).step_by(format.block_len()).zip(blocks) {
            self.decode_block(format, row, start, codes, out);
        }
    }

    /// A block of a row, the first feature of which is `start`.
    fn decode_block(&self, format: WeightFormat, row: usize, start: usize, codes: &[i16], out: &mut [u8]) {
        let group = start / self.col_step;
        match format {
            WeightFormat::MXFP4 => {
                let exponent = self.scales.bytes[self.scales.index(row, group)];
                out.copy_from_slice(bytemuck::bytes_of(&mxfp4::from_codes(exponent, &array(codes, |code| code as u8))));
            }
            WeightFormat::NVFP4 => {
                let (scale, _) = self.nvfp4_scale().unwrap_or((f32::NAN, false));
                let scales = std::array::from_fn(|i| self.scales.bytes[self.scales.index(row, group + i)]);
                let block = nvfp4::from_codes(scale, scales, &array(codes, |code| code as u8));
                out.copy_from_slice(bytemuck::bytes_of(&block));
            }
            WeightFormat::FP8 => {
                let scale = f16::from_f32(self.scales.at(row, group) / fp8::UNIT);
                let block = fp8::Block { scale, codes: array(codes, |code| code as u8) };
                out.copy_from_slice(bytemuck::bytes_of(&block));
            }
            WeightFormat::Q4_0 | WeightFormat::Q5_0 | WeightFormat::Q8_0 => {
                let (scale, zero) = (self.scales.at(row, group), self.zero(row, group));
                let (scale, codes) = match self.codes {
                    Codes::E2m1(_) => (scale * 0.5, array(codes, |code| mxfp4::DOUBLED[usize::from(code as u8 & 15)])),
                    _ => (scale, array(codes, |code| (code - zero) as i8)),
                };
                let scale = f16::from_f32(scale);
                match format {
                    WeightFormat::Q4_0 => out.copy_from_slice(bytemuck::bytes_of(&q4_0::from_codes(scale, &codes))),
                    WeightFormat::Q5_0 => out.copy_from_slice(bytemuck::bytes_of(&q5_0::from_codes(scale, &codes))),
                    _ => out.copy_from_slice(bytemuck::bytes_of(&q8_0::Block { scale, codes })),
                }
            }
            _ => {
                let weight = self.weight(row, start, codes[0]);
                match format {
                    WeightFormat::F16 => out.copy_from_slice(&f16::from_f32(weight).to_le_bytes()),
                    WeightFormat::BF16 => out.copy_from_slice(&bf16::from_f32(weight).to_le_bytes()),
                    _ => out.copy_from_slice(&weight.to_le_bytes()),
                }
            }
        }
    }

    /// What a code means, rounded to f32 as the published decoders do.
    fn weight(&self, row: usize, col: usize, code: i16) -> f32 {
        let group = match &self.features {
            Features::InOrder | Features::Sorted(_) => col / self.col_step,
            Features::Listed(groups) => groups[col] as usize,
        };
        let number = match self.codes {
            Codes::E4m3(_) => e4m3(code as u8),
            Codes::E2m1(_) => f32::from(mxfp4::DOUBLED[usize::from(code.cast_unsigned() & 15)]) * 0.5,
            _ => f32::from(code - self.zero(row, group)),
        };
        number * self.scales.at(row, group)
    }

    /// The codes of a row from feature `start` on, as they are stored; zeros beyond the last.
    fn read_codes(&self, row: usize, start: usize, out: &mut [i16; LEN]) {
        let len = LEN.min(self.cols - start);
        let out = &mut out[..len];
        // Where a feature lies in the tensors. Layouts that list no groups have their features in order.
        let order = if let Features::Sorted(order) = &self.features { Some(&order[..]) } else { None };
        let place = |col: usize| order.map_or(col, |order| order[col] as usize);
        match &self.codes {
            Codes::Rows { words, bits, row_words } => {
                for (col, out) in (start..).zip(out) {
                    *out = code(words, *bits, place(col), |word| row * row_words + word).cast_signed();
                }
            }
            Codes::Columns { words, bits } if 32 % bits == 0 && order.is_none() => {
                // Words of whole codes: each is loaded once.
                let each = (32 / bits) as usize;
                for (index, out) in (start / each..).zip(out.chunks_mut(each)) {
                    let word = word(words, index * self.rows + row);
                    for (shift, out) in (0..).step_by(*bits as usize).zip(out) {
                        *out = (word >> shift & ((1 << bits) - 1)) as i16;
                    }
                }
            }
            Codes::Columns { words, bits } => {
                for (col, out) in (start..).zip(out) {
                    *out = code(words, *bits, place(col), |word| word * self.rows + row).cast_signed();
                }
            }
            Codes::Awq(words) => {
                let (row_words, shift) = (self.rows / 8, AWQ_SHIFT[row % 8]);
                for (col, out) in (start..).zip(out) {
                    *out = (word(words, col * row_words + row / 8) >> shift & 15) as i16;
                }
            }
            Codes::Signed(bytes) => {
                let bytes = &bytes[row * self.cols + start..][..len];
                out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = i16::from(byte.cast_signed()));
            }
            Codes::E4m3(bytes) => {
                let bytes = &bytes[row * self.cols + start..][..len];
                out.iter_mut().zip(bytes).for_each(|(out, &byte)| *out = i16::from(byte));
            }
            Codes::E2m1(bytes) => {
                let bytes = &bytes[(row * self.cols + start) / 2..];
                for (j, out) in out.iter_mut().enumerate() {
                    *out = i16::from(bytes[j / 2] >> (j % 2 * 4) & 15);
                }
            }
        }
    }
}
