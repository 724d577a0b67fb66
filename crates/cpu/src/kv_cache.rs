//! The paged key/value cache: one allocation for all layers, zeroed by the system page by page as it is first used.
//!
//! A block of one layer holds, for each kv head, its keys as (head_dim, block_len) and its values as (block_len,
//! head_dim), so that one head of one block is contiguous. Keys are transposed so that scores of sixteen positions are
//! computed lane by lane, without a sum across lanes; both inner dimensions are padded to sixteen with zeros.
//!
//! A block of a latent layer holds the rows of its positions, (block_len, latent numbers, then turned ones), each part
//! padded to sixteen with zeros. Scores and sums read the same rows, so they are not transposed.

use half::f16;
use plan::{BlockCopy, CacheLayer, KvFormat, KvLayer, KvLayout, LatentLayer};

use crate::kernels::linear::Widen;
use crate::numa;
use crate::shared::{AlignedBuffer, SharedSlice};
use crate::simd::LANES;

/// A number that the cache is made of.
pub(crate) trait KvElement: Widen + Send + Sync {
    /// Rounded to nearest even.
    fn from_f32(value: f32) -> Self;
}

impl KvElement for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl KvElement for f16 {
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
}

/// Where what one layer keeps lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePlace {
    Heads(LayerPlace),
    Latent(LatentPlace),
}

impl CachePlace {
    /// Keys and values of heads.
    ///
    /// # Panics
    /// When it is a latent layer: the verifier checks that no op takes one for the other.
    pub(crate) fn heads(&self) -> &LayerPlace {
        match self {
            Self::Heads(place) => place,
            Self::Latent(_) => unreachable!("the verifier checks that the layer has heads"),
        }
    }

    /// Rows of a latent layer.
    ///
    /// # Panics
    /// When it has heads.
    pub(crate) fn latent(&self) -> &LatentPlace {
        match self {
            Self::Latent(place) => place,
            Self::Heads(_) => unreachable!("the verifier checks that the layer is latent"),
        }
    }

    /// Parts of a block that are contiguous and copied apart: one for each head.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Self::Heads(place) => place.kv_heads,
            Self::Latent(_) => 1,
        }
    }

    /// Where a block lies, in elements.
    pub(crate) fn block(&self, block: u32) -> std::ops::Range<usize> {
        self.part(block, 0).start..self.part(block, self.parts() - 1).end
    }

    /// Where a part of a block lies.
    fn part(&self, block: u32, part: usize) -> std::ops::Range<usize> {
        match self {
            Self::Heads(place) => place.keys(block, part).start..place.values(block, part).end,
            Self::Latent(place) => place.row(block, 0).start..place.row(block + 1, 0).start,
        }
    }
}

/// Where the rows of a latent layer lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatentPlace {
    /// Where its first block begins, in elements.
    start: usize,
    /// Latent numbers of a row, and turned ones.
    pub(crate) dim: usize,
    pub(crate) rope: usize,
    pub(crate) block_len: usize,
}

impl LatentPlace {
    /// Elements before the turned numbers: the latent ones, padded.
    pub(crate) fn rope_start(&self) -> usize {
        self.dim.next_multiple_of(LANES)
    }

    /// Elements of a row: both parts, padded.
    pub(crate) fn row_len(&self) -> usize {
        self.rope_start() + self.rope.next_multiple_of(LANES)
    }

    /// Where the row at `place` of a block lies.
    pub(crate) fn row(&self, block: u32, place: usize) -> std::ops::Range<usize> {
        let start = self.start + (block as usize * self.block_len + place) * self.row_len();
        start..start + self.row_len()
    }
}

/// Where one layer's keys and values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerPlace {
    /// Where its first block begins, in elements.
    start: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_len: usize,
}

impl LayerPlace {
    /// Positions in a row of transposed keys: the block's, padded.
    pub(crate) fn key_stride(&self) -> usize {
        self.block_len.next_multiple_of(LANES)
    }

    /// Features in a row of values: the head's, padded.
    pub(crate) fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn head_keys(&self) -> usize {
        self.head_dim * self.key_stride()
    }

    fn head_values(&self) -> usize {
        self.block_len * self.value_stride()
    }

    /// Elements in one block of this layer.
    fn block_size(&self) -> usize {
        self.kv_heads * (self.head_keys() + self.head_values())
    }

    /// Where the keys of a head begin, (head_dim, [`Self::key_stride`]).
    pub(crate) fn keys(&self, block: u32, kv_head: usize) -> std::ops::Range<usize> {
        let start = self.start + block as usize * self.block_size() + kv_head * (self.head_keys() + self.head_values());
        start..start + self.head_keys()
    }

    /// Where the values of a head begin, (block_len, [`Self::value_stride`]).
    pub(crate) fn values(&self, block: u32, kv_head: usize) -> std::ops::Range<usize> {
        let start = self.keys(block, kv_head).end;
        start..start + self.head_values()
    }
}

/// The places of all layers, and the elements that they take together; `None` when that overflows.
pub(crate) fn place_layers(layers: &[CacheLayer], layout: KvLayout) -> Option<(Vec<CachePlace>, usize)> {
    let KvLayout { block_len, num_blocks, .. } = layout;
    let mut start = 0usize;
    let mut places = Vec::with_capacity(layers.len());
    for &layer in layers {
        let (place, block) = match layer {
            CacheLayer::Heads(KvLayer { kv_heads, head_dim }) => {
                let keys = head_dim.checked_mul(block_len.checked_next_multiple_of(LANES)?)?;
                let values = head_dim.checked_next_multiple_of(LANES)?.checked_mul(block_len)?;
                let block = keys.checked_add(values)?.checked_mul(kv_heads)?;
                (CachePlace::Heads(LayerPlace { start, kv_heads, head_dim, block_len }), block)
            }
            CacheLayer::Latent(LatentLayer { dim, rope }) => {
                let parts = [dim, rope].map(|part| part.checked_next_multiple_of(LANES));
                let row = parts[0]?.checked_add(parts[1]?)?;
                let place = LatentPlace { start, dim, rope, block_len };
                (CachePlace::Latent(place), row.checked_mul(block_len)?)
            }
        };
        start = start.checked_add(block.checked_mul(num_blocks)?)?;
        places.push(place);
    }
    Some((places, start))
}

/// The cache's memory.
pub(crate) enum KvCache {
    F32(AlignedBuffer<f32>),
    F16(AlignedBuffer<f16>),
}

impl KvCache {
    /// Room for `len` elements on all nodes of memory, or `None` when the system does not give it.
    pub(crate) fn zeroed(format: KvFormat, len: usize) -> Option<Self> {
        let mut cache = match format {
            KvFormat::F32 => Self::F32(AlignedBuffer::zeroed(len)?),
            KvFormat::F16 => Self::F16(AlignedBuffer::zeroed(len)?),
        };
        match &mut cache {
            Self::F32(buffer) => numa::interleave(buffer),
            Self::F16(buffer) => numa::interleave(buffer),
        }
        Some(cache)
    }

    /// These elements as they lie in memory.
    pub(crate) fn bytes_mut(&mut self, elements: std::ops::Range<usize>) -> &mut [u8] {
        match self {
            Self::F32(buffer) => bytemuck::cast_slice_mut(&mut buffer[elements]),
            Self::F16(buffer) => bytemuck::cast_slice_mut(&mut buffer[elements]),
        }
    }

    /// The cache as all workers of a step see it.
    pub(crate) fn share(&mut self) -> SharedKv<'_> {
        match self {
            Self::F32(buffer) => SharedKv::F32(SharedSlice::new(buffer)),
            Self::F16(buffer) => SharedKv::F16(SharedSlice::new(buffer)),
        }
    }
}

/// The cache during a step.
pub(crate) enum SharedKv<'a> {
    F32(SharedSlice<'a, f32>),
    F16(SharedSlice<'a, f16>),
}

/// Runs `$body` with `$cache` bound to the shared slice, whatever its elements.
macro_rules! with_elements {
    ($kv:expr, $cache:ident => $body:expr) => {
        match $kv {
            $crate::kv_cache::SharedKv::F32($cache) => $body,
            $crate::kv_cache::SharedKv::F16($cache) => $body,
        }
    };
}
pub(crate) use with_elements;

/// Writes one token's key and value of one head at `place` in `block`.
///
/// # Safety
///
/// No other worker touches this token's place in this head until the next barrier.
pub(crate) unsafe fn write_token<E: KvElement>(
    cache: &SharedSlice<'_, E>,
    layer: &LayerPlace,
    kv_head: usize,
    (block, place): (u32, usize),
    (k, v): (&[f32], &[f32]),
) {
    let keys = layer.keys(block, kv_head);
    for (feature, &k) in k.iter().enumerate() {
        let index = keys.start + feature * layer.key_stride() + place;
        // SAFETY: one element of this token's place; the caller owes that nobody else is there.
        unsafe { cache.set(index, E::from_f32(k)) };
    }
    let start = layer.values(block, kv_head).start + place * layer.value_stride();
    // SAFETY: this token's row of values; the caller owes that nobody else is there.
    let row = unsafe { cache.write(start..start + v.len()) };
    for (out, &v) in row.iter_mut().zip(v) {
        *out = E::from_f32(v);
    }
}

/// Writes one token's row at `place` in `block` of a latent layer. What pads the row is never written: it stays zero.
///
/// # Safety
///
/// No other worker touches this token's row until the next barrier.
pub(crate) unsafe fn write_row<E: KvElement>(
    cache: &SharedSlice<'_, E>,
    layer: &LatentPlace,
    (block, place): (u32, usize),
    (latent, rope): (&[f32], &[f32]),
) {
    // SAFETY: this token's row; the caller owes that nobody else is there.
    let row = unsafe { cache.write(layer.row(block, place)) };
    let (latent_out, rope_out) = row.split_at_mut(layer.rope_start());
    for (out, x) in [(latent_out, latent), (rope_out, rope)] {
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = E::from_f32(x));
    }
}

/// Makes all copies, in order, for one part of one layer's blocks.
///
/// # Safety
///
/// No other worker touches this part of this layer until the next barrier.
pub(crate) unsafe fn copy_blocks<E: KvElement>(
    cache: &SharedSlice<'_, E>,
    layer: &CachePlace,
    part: usize,
    copies: &[BlockCopy],
) {
    for copy in copies.iter().filter(|copy| copy.from != copy.to) {
        let (from, to) = (layer.part(copy.from, part), layer.part(copy.to, part));
        // SAFETY: blocks differ, so the ranges do not overlap; the caller owes that nobody else is there.
        unsafe { cache.write(to).copy_from_slice(cache.read(from)) }
    }
}
