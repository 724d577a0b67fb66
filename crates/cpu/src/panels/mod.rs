//! Weights in blocks, laid out as kernels stream them: a file a format.
//!
//! Sixteen rows of a weight are a *panel*, one row in each lane: no sum crosses lanes, several rows of activations share
//! what is loaded, and a projection reads one stream of memory instead of sixteen. Activations are quantised to blocks of
//! 32 signed bytes ([`crate::kernels::quantize`]), so that products are exact integers.
//!
//! Layout    panel p holds rows 16p to 16p + 16 and begins on a cache line: block after block, the codes of each and then its
//!           scales, so that there is one stream and no more: with all scales behind all codes AMD's Zen 4 reads half as fast.
//!           Rows beyond the last are blocks of zeros. About the same bytes as in the file, up to the last panel and the
//!           rounding to cache lines.
//!
//! A format is one type that implements [`PanelFormat`] (or [`one_scale::OneScale`], which is shorter), and a name in
//! [`with_panel_format`].

#![expect(clippy::needless_range_loop, reason = "tiles are indexed by row and column, as one writes matrices")]

mod fp8;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod one_scale;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod scales;
mod tiles;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

pub(crate) use fp8::FP8;
pub(crate) use iq4_nl::IQ4_NL;
pub(crate) use iq4_xs::IQ4_XS;
pub(crate) use mxfp4::MXFP4;
pub(crate) use nvfp4::NVFP4;
pub(crate) use q2_k::Q2_K;
pub(crate) use q3_k::Q3_K;
pub(crate) use q4_0::Q4_0;
pub(crate) use q4_1::Q4_1;
pub(crate) use q4_k::Q4_K;
pub(crate) use q5_0::Q5_0;
pub(crate) use q5_1::Q5_1;
pub(crate) use q5_k::Q5_K;
pub(crate) use q6_k::Q6_K;
pub(crate) use q8_0::Q8_0;
pub(crate) use tiles::{PIECE_BLOCKS, TileFormat, TilePanel};

use crate::kernels::quantize::QuantizedBlock;
use crate::memory::LINE;
use crate::simd::{Kernel, PANEL_ROWS, PanelCodes, Simd, Words};

/// Bytes of each row that packing asks for ahead of use.
const PREFETCH_BYTES: usize = 512;

/// How weights of a block format lie in panels, and what their products are.
pub(crate) trait PanelFormat: 'static + Sized {
    /// A block of the file.
    type Block: Pod;
    /// The codes of a block of each of sixteen rows, in whole cache lines.
    type Codes: Pod;
    /// Their scales.
    type Scales: Pod;

    /// Blocks of 32 activations that a block meets.
    const X_BLOCKS: usize;

    /// What many rows multiply.
    type Tile: TileFormat;

    /// Whether few rows pass over a panel by their exact number. Each number is code of its own at every level, which takes long
    /// to compile: formats that few files have do with three.
    const HAS_ALL_TILES: bool = false;

    /// Whether many rows, too, multiply panels where they lie, and not [`PanelFormat::Tile`]: where there is nothing to unpack.
    const HAS_TILES_IN_PLACE: bool = false;

    /// Whether [`PanelFormat::dot_16`] is there.
    const HAS_DIRECT: bool = false;

    /// Lays sixteen blocks side by side.
    fn pack<S: Simd>(s: S, lanes: [&Self::Block; PANEL_ROWS], codes: &mut Self::Codes, scales: &mut Self::Scales);

    /// sums + the products of a block of each of `NP` panels with the blocks of `MR` rows, [`PanelFormat::X_BLOCKS`] of each,
    /// in order. Asks for what is `ahead`: for all of it with one such block, else for a part with each.
    fn add<S: Simd, const MR: usize, const NP: usize>(
        s: S,
        panels: [(&Self::Codes, &Self::Scales); NP],
        x: [&[QuantizedBlock]; MR],
        ahead: Ahead,
        sums: [[S::F32; NP]; MR],
    ) -> [[S::F32; NP]; MR];

    /// 32 weights of a block, those of block `part` of its activations, as tiles have them.
    fn unpack<S: Simd>(
        s: S,
        codes: &Self::Codes,
        scales: &Self::Scales,
        part: usize,
        out: &mut TileCodes<Self>,
        out_scales: &mut TileScales<Self>,
    );

    /// One row of x with sixteen of the file, as [`PanelFormat::add`] has it from panels; with `PREFETCH` asks for what
    /// comes next.
    fn dot_16<S: Simd, const PREFETCH: bool>(
        _s: S,
        _rows: &[&[Self::Block]; PANEL_ROWS],
        _x: &[QuantizedBlock],
    ) -> S::F32 {
        unreachable!("formats without it are packed on the way")
    }
}

/// Room for codes and scales of [`Panel::unpack`].
pub(crate) type TileRoom<'a, F> = (&'a mut [TileCodes<F>], &'a mut [TileScales<F>]);
/// [`TileFormat::Codes`] of a panel's tile.
pub(crate) type TileCodes<F> = <<F as PanelFormat>::Tile as TileFormat>::Codes;
/// [`TileFormat::Scales`] of a panel's tile.
pub(crate) type TileScales<F> = <<F as PanelFormat>::Tile as TileFormat>::Scales;

/// Evaluates `$body` with `$F` as the [`PanelFormat`] of a [`tensor::WeightFormat`], or `$none` for formats without panels.
macro_rules! with_panel_format {
    ($format:expr, $F:ident => $body:expr, else $none:expr) => {
        $crate::panels::with_panel_format!(
            @ Q8_0 Q4_0 Q4_K Q6_K Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q5_K IQ4_NL IQ4_XS MXFP4 FP8 NVFP4,
            $format, $F => $body, else $none
        )
    };
    (@ $($name:ident)*, $format:expr, $F:ident => $body:expr, else $none:expr) => {
        match $format {
            $(tensor::WeightFormat::$name => {
                type $F = $crate::panels::$name;
                $body
            })*
            tensor::WeightFormat::F32 | tensor::WeightFormat::F16 | tensor::WeightFormat::BF16 => $none,
        }
    };
}
pub(crate) use with_panel_format;

/// A block of each of sixteen rows.
#[repr(C)]
pub(crate) struct PanelBlock<F: PanelFormat> {
    pub(crate) codes: F::Codes,
    pub(crate) scales: F::Scales,
}

impl<F: PanelFormat> PanelBlock<F> {
    const IS_WITHOUT_PADDING: () = assert!(size_of::<Self>() == size_of::<F::Codes>() + size_of::<F::Scales>());
}

impl<F: PanelFormat> Clone for PanelBlock<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: PanelFormat> Copy for PanelBlock<F> {}

// SAFETY: both fields can be all zeros, and there is nothing else.
unsafe impl<F: PanelFormat> Zeroable for PanelBlock<F> {}
// SAFETY: both fields are plain data, and there is no padding: `IS_WITHOUT_PADDING`, which `Panel::bytes` has the compiler
// check for every format.
unsafe impl<F: PanelFormat> Pod for PanelBlock<F> {}

/// What comes some way behind a block, for [`PanelFormat::add`] to ask for while it computes: asked for at once, the lines of a
/// block of 256 weights are more than a core can wait for, and it stands still.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// `None` where the processor is left to itself.
    at: Option<*const u8>,
}

impl Ahead {
    /// Nothing is asked for.
    pub(crate) const NOTHING: Self = Self { at: None };

    /// As far behind `block` as `bytes`, where there need not be anything.
    #[inline(always)]
    pub(crate) fn of<F: PanelFormat>(block: &PanelBlock<F>, bytes: usize) -> Self {
        Self { at: Some(std::ptr::from_ref(block).cast::<u8>().wrapping_add(bytes)) }
    }

    /// Asks for part `part` of [`PanelFormat::X_BLOCKS`].
    #[inline(always)]
    fn ask<S: Simd, F: PanelFormat>(self, s: S, part: usize) {
        let Some(at) = self.at else { return };
        let lines = size_of::<PanelBlock<F>>().div_ceil(LINE * F::X_BLOCKS);
        for line in 0..lines {
            s.prefetch(at.wrapping_add((part * lines + line) * LINE));
        }
    }
}

/// Sixteen rows of a weight, side by side.
pub(crate) struct Panel<'a, F: PanelFormat> {
    /// (blocks,).
    pub(crate) blocks: &'a [PanelBlock<F>],
}

impl<F: PanelFormat> Clone for Panel<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F: PanelFormat> Copy for Panel<'_, F> {}

impl<'a, F: PanelFormat> Panel<'a, F> {
    /// Bytes of a panel of `blocks` blocks a row.
    pub(crate) fn bytes(blocks: usize) -> usize {
        let () = PanelBlock::<F>::IS_WITHOUT_PADDING;
        (blocks * size_of::<PanelBlock<F>>()).next_multiple_of(LINE)
    }

    /// A panel in memory of [`Panel::bytes`].
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8], blocks: usize) -> Self {
        Self { blocks: bytemuck::cast_slice(&bytes[..blocks * size_of::<PanelBlock<F>>()]) }
    }

    /// Some blocks as tiles have them, in `room`, which has as many blocks of 32.
    #[inline(always)]
    pub(crate) fn unpack<'b, S: Simd>(
        self,
        s: S,
        blocks: Range<usize>,
        room: TileRoom<'b, F>,
    ) -> TilePanel<'b, F::Tile> {
        let (codes, scales) = room;
        for (block, place) in self.blocks[blocks].iter().zip((0..).step_by(F::X_BLOCKS)) {
            for part in 0..F::X_BLOCKS {
                F::unpack(s, &block.codes, &block.scales, part, &mut codes[place + part], &mut scales[place + part]);
            }
        }
        TilePanel { codes, scales }
    }
}

/// Copies sixteen rows into a panel; `None` is a row of zeros.
pub(crate) struct PackPanel<'a, F: PanelFormat> {
    pub(crate) rows: [Option<&'a [F::Block]>; PANEL_ROWS],
    /// [`Panel::bytes`] of the rows' blocks.
    pub(crate) out: &'a mut [u8],
}

impl<F: PanelFormat> Kernel for PackPanel<'_, F> {
    type Output = ();
    const WORDS: Words = Words::Bytes;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // A scale of zero: the codes do not matter.
        let zero: F::Block = Zeroable::zeroed();
        let blocks = self.rows.iter().flatten().map(|row| row.len()).next().unwrap_or(0);
        let full = self.rows.iter().all(|row| row.is_some_and(|row| row.len() == blocks));
        let out = &mut self.out[..blocks * size_of::<PanelBlock<F>>()];
        let rows = self.rows.map(Option::unwrap_or_default);
        for (block, out) in bytemuck::cast_slice_mut::<_, PanelBlock<F>>(out).iter_mut().enumerate() {
            let mut lanes = [&zero; PANEL_ROWS];
            for (lane, row) in lanes.iter_mut().zip(&rows) {
                if full {
                    s.prefetch(row.as_ptr().wrapping_add(block).cast::<u8>().wrapping_add(PREFETCH_BYTES));
                    *lane = &row[block];
                } else if let Some(found) = row.get(block) {
                    *lane = found;
                }
            }
            F::pack(s, lanes, &mut out.codes, &mut out.scales);
        }
    }
}

/// Block `index` of each row of x. No `map`: of an array as long as a tile it is a call, and all sums go through memory.
#[inline(always)]
fn blocks_at<const MR: usize>(x: [&[QuantizedBlock]; MR], index: usize) -> [&QuantizedBlock; MR] {
    let mut blocks = [&x[0][index]; MR];
    for m in 1..MR {
        blocks[m] = &x[m][index];
    }
    blocks
}

/// What `$part` says of each lane. No `map`, as in [`blocks_at`].
macro_rules! of_each {
    ($lanes:expr, |$lane:ident| $part:expr) => {{
        let lanes = $lanes;
        let mut parts = {
            let $lane = lanes[0];
            [$part; PANEL_ROWS]
        };
        for row in 1..PANEL_ROWS {
            let $lane = lanes[row];
            parts[row] = $part;
        }
        parts
    }};
}
use of_each;

/// The codes of 32 weights of each of sixteen rows, four bits each: entry g holds those of 4g..4g + 4 in the lower and those of
/// 16 + 4g.. in the upper halves of bytes 4r..4r + 4.
type Nibbles = [[u8; 64]; 4];

/// Lays the four-bit codes of 32 weights of a row side by side with those of other rows; `bytes` have weights j and j + 16.
#[inline(always)]
fn pack_nibbles(bytes: &[u8; 16], row: usize, codes: &mut Nibbles) {
    for (group, four) in bytes.as_chunks::<4>().0.iter().enumerate() {
        codes[group][4 * row..4 * row + 4].copy_from_slice(four);
    }
}

/// Codes 4 · `group` to 4 · `group` + 4 of each row.
#[inline(always)]
fn nibbles_of<S: Simd>(s: S, codes: &Nibbles, group: usize) -> S::Bytes {
    let both = s.load_bytes(&codes[group % 4]);
    if group < 4 { s.and_bytes(both, 15) } else { s.shift_bytes_right::<4>(both) }
}

/// [`Nibbles`] as signed bytes: entry i of `table` for a code i, for [`TileFormat`].
#[inline(always)]
fn unpack_nibbles<S: Simd>(s: S, codes: &Nibbles, table: &[i8; 16], out: &mut PanelCodes) {
    let table = table.map(|code| code.cast_unsigned() ^ S::PANEL_XOR);
    for (group, out) in out.iter_mut().enumerate() {
        s.store_bytes(s.lookup(&table, nibbles_of(s, codes, group)), out);
    }
}

/// Codes below 128 as signed bytes, for [`TileFormat`].
#[inline(always)]
fn store_codes<S: Simd>(s: S, codes: S::Bytes, out: &mut [u8; 64]) {
    s.store_bytes(s.or_bytes(codes, s.splat_bytes(S::PANEL_XOR)), out);
}

/// What four-bit codes stand for, plus `by`, which makes all of them 0 or more.
const fn shifted(table: &[i8; 16], by: i16) -> [u8; 16] {
    let (mut shifted, mut code) = ([0; 16], 0);
    while code < 16 {
        shifted[code] = (table[code] as i16 + by) as u8;
        code += 1;
    }
    shifted
}

/// Four-bit codes less 8.
const LESS_8: [i8; 16] = [-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7];

/// The fifth bits of the codes of 32 weights of each of sixteen rows: of weight 4g + i of row r bit g of byte 4r + i.
type FifthBits = [u8; 64];

/// Puts the fifth bits of a row in place; weight j has bit j of `high`.
#[inline(always)]
fn pack_fifth_bits(high: [u8; 4], row: usize, bits: &mut FifthBits) {
    let high = u32::from_le_bytes(high);
    for i in 0..4 {
        bits[4 * row + i] = (0..8).fold(0, |byte, group| byte | ((high >> (4 * group + i) & 1) as u8) << group);
    }
}

/// As [`nibbles_of`], with the fifth bits.
#[inline(always)]
fn five_bits_of<S: Simd>(s: S, codes: &Nibbles, high: &FifthBits, group: usize) -> S::Bytes {
    let high = s.and_bytes(s.shift_bytes_right_by(s.load_bytes(high), group as u32), 1);
    s.or_bytes(nibbles_of(s, codes, group), s.shift_bytes_left::<4>(high))
}

/// `$body` for each of some numbers, which are constants in it, so that shifts by them are, too. A loop of bodies as long as those
/// here the compiler leaves one, with jumps to the shift of each turn.
macro_rules! unrolled {
    ($number:ident in [$($value:literal)*] $body:block) => {
        $({
            const $number: usize = $value;
            $body
        })*
    };
}
use unrolled;

/// Products with unsigned codes: for each row of x and panel, what `$start` says of the row and Σ codes · x over some groups of
/// four codes, as `$codes` unpacks them. A macro, because a closure is not compiled for the level.
macro_rules! dots {
    ($s:ident, $x:expr, $groups:expr, |$row:ident| $start:expr, |$p:ident, $group:ident| $codes:expr) => {
        dots!(@add_byte_products, $s, $x, $groups, |$row| $start, |$p, $group| $codes)
    };
    // Codes of up to 255.
    (wide $s:ident, $x:expr, $groups:expr, |$row:ident| $start:expr, |$p:ident, $group:ident| $codes:expr) => {
        dots!(@add_wide_byte_products, $s, $x, $groups, |$row| $start, |$p, $group| $codes)
    };
    (@$add:ident, $s:ident, $x:expr, $groups:expr, |$row:ident| $start:expr, |$p:ident, $group:ident| $codes:expr) => {{
        let x: [&QuantizedBlock; MR] = $x;
        let mut sums = [[$s.splat_i32(0); NP]; MR];
        for m in 0..MR {
            let $row = x[m];
            sums[m] = [$s.splat_i32($start); NP];
        }
        for $group in $groups {
            let mut w = [$s.splat_bytes(0); NP];
            for $p in 0..NP {
                w[$p] = $codes;
            }
            for m in 0..MR {
                let four = x[m].four($group);
                for p in 0..NP {
                    sums[m][p] = $s.$add(sums[m][p], w[p], four);
                }
            }
        }
        sums
    }};
}
use dots;

/// As [`dots`], of each half of 32 codes that are those of the weights plus `$shift`.
macro_rules! half_dots {
    ($s:ident, $x:expr, $shift:literal, |$p:ident, $group:ident| $codes:expr) => {{
        let x = $x;
        [
            dots!($s, x, 0..4, |x| -$shift * i32::from(x.half_sums[0]), |$p, $group| $codes),
            dots!($s, x, 4..8, |x| -$shift * i32::from(x.half_sums[1]), |$p, $group| $codes),
        ]
    }};
}
use half_dots;

/// sums + scale of w · scale of x · Σ over the halves of 32 weights of scale of 16 · Σ codes · codes of x, from what [`half_dots`]
/// gives, for panel `p`.
#[inline(always)]
fn add_halves<S: Simd, const MR: usize, const NP: usize>(
    s: S,
    [first, second]: [[[S::I32; NP]; MR]; 2],
    p: usize,
    (scale, scales): (S::F32, [S::F32; 2]),
    x: [&QuantizedBlock; MR],
    sums: &mut [[S::F32; NP]; MR],
) {
    for m in 0..MR {
        let dot = s.mul(s.to_f32(first[m][p]), scales[0]);
        let dot = s.mul_add(s.to_f32(second[m][p]), scales[1], dot);
        sums[m][p] = s.mul_add(dot, s.mul(scale, s.splat(x[m].scale)), sums[m][p]);
    }
}

#[cfg(test)]
mod tests {
    use tensor::{Tensor, WeightFormat};
    use testing::random::Rng;

    use super::*;
    use crate::Isa;
    use crate::simd::LANES;

    /// The products of sixteen rows of one block with one row of x, and sums before them.
    struct OneBlock<'a, F: PanelFormat> {
        rows: [Option<&'a [F::Block]>; PANEL_ROWS],
        x: &'a [QuantizedBlock],
    }

    impl<F: PanelFormat> Kernel for OneBlock<'_, F> {
        type Output = [f32; LANES];
        const WORDS: Words = Words::Bytes;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; LANES] {
            let mut bytes = crate::shared::AlignedBuffer::zeroed(Panel::<F>::bytes(1)).expect("memory");
            PackPanel::<F> { rows: self.rows, out: &mut bytes }.run(s);
            let panel = Panel::<F>::new(&bytes, 1);
            let [[sums]] = F::add(
                s,
                [(&panel.blocks[0].codes, &panel.blocks[0].scales)],
                [self.x],
                Ahead::NOTHING,
                [[s.splat(0.0)]],
            );
            let mut lanes = [0.0; LANES];
            s.store(sums, &mut lanes);
            lanes
        }
    }

    /// Each weight alone: what a panel makes of it is what the format says, so every code and scale is in its place.
    #[test]
    fn every_weight_is_in_its_lane_with_its_scale() {
        let mut rng = Rng::new(3);
        for format in WeightFormat::ALL.into_iter().filter(|format| format.is_quantized()) {
            let len = format.block_len();
            let values: Vec<f32> = (0..13 * len).map(|_| rng.normal()).collect();
            let tensor = Tensor::from_f32(format, vec![13, len], &values).expect("whole blocks");
            let weights = tensor.to_f32();
            for isa in Isa::available() {
                for k in (0..len).step_by(if isa == Isa::scalar() { 1 } else { 7 }) {
                    let mut x = vec![QuantizedBlock::zeroed(); len / 32];
                    let mut codes = [0; 32];
                    codes[k % 32] = 1;
                    x[k / 32] = QuantizedBlock::new(codes, 1.0);
                    let found = with_panel_format!(format, F => {
                        let blocks: &[<F as PanelFormat>::Block] = tensor.as_slice();
                        let rows = std::array::from_fn(|row| blocks.get(row..row + 1));
                        isa.run(OneBlock::<F> { rows, x: &x })
                    }, else unreachable!());
                    for (row, found) in found.into_iter().enumerate() {
                        let expected = if row < 13 { weights[row * len + k] } else { 0.0 };
                        // A minimum is subtracted after the product was rounded.
                        assert!(
                            (found - expected).abs() <= 1e-6 * 8.0,
                            "{format} {isa} row {row} weight {k}: {found} for {expected}"
                        );
                    }
                }
            }
        }
    }
}
