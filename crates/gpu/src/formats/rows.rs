//! What the packers of formats share: rows of a file, and how values and scales are laid out.

use std::num::NonZero;
use std::thread;

use bytemuck::Pod;
use tensor::Tensor;

/// Bytes whose scales are worth a thread to look at.
const THREAD_BYTES: usize = 4 << 20;

/// A row of a tensor as the file has it.
#[derive(Clone, Copy)]
pub(crate) struct FileRow<'a> {
    pub(crate) tensor: &'a Tensor,
    pub(crate) index: usize,
}

impl<'a> FileRow<'a> {
    pub(super) fn bytes(self) -> &'a [u8] {
        let bytes = self.tensor.row_bytes();
        &self.tensor.bytes()[self.index * bytes..(self.index + 1) * bytes]
    }

    /// The row as blocks of the tensor's format, or as groups of such blocks.
    pub(super) fn blocks<B: Pod>(self) -> &'a [B] {
        bytemuck::cast_slice(self.bytes())
    }
}

/// Values and scales of blocks, each one after another, and zeros behind them.
pub(super) fn lay_out(
    blocks: impl Iterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>,
    [values, scales]: [&mut [u8]; 2],
) {
    let [mut values_at, mut scales_at] = [0; 2];
    let place = |to: &mut [u8], at: &mut usize, bytes: &[u8]| {
        to[*at..][..bytes.len()].copy_from_slice(bytes);
        *at += bytes.len();
    };
    for (of_values, of_scales) in blocks {
        place(values, &mut values_at, of_values.as_ref());
        place(scales, &mut scales_at, of_scales.as_ref());
    }
    values[values_at..].fill(0);
    scales[scales_at..].fill(0);
}

/// Whether all blocks of a tensor pass `holds`, which gets whole pieces of `piece_bytes`. The first row is checked first, because
/// most tensors fail there.
pub(super) fn every_piece(tensor: &Tensor, piece_bytes: usize, holds: impl Fn(&[u8]) -> bool + Sync) -> bool {
    let bytes = tensor.bytes();
    if !holds(&bytes[..tensor.row_bytes().min(bytes.len())]) {
        return false;
    }
    let threads =
        thread::available_parallelism().map_or(1, NonZero::get).min(bytes.len().div_ceil(THREAD_BYTES)).max(1);
    let share = bytes.len().div_ceil(threads).next_multiple_of(piece_bytes).max(piece_bytes);
    thread::scope(|scope| {
        let holds = &holds;
        let parts: Vec<_> = bytes.chunks(share).map(|part| scope.spawn(move || holds(part))).collect();
        parts.into_iter().all(|part| part.join().unwrap_or(false))
    })
}
