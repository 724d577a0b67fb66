//! Weights become another format: a tensor is packed piece by piece on all cores, and written as it is packed.

use std::io::{self, Write};
use std::num::NonZero;
use std::ops::Range;
use std::thread;

use bytes::Bytes;
use formats::gguf::nvfp4;
use tensor::quant::{PackedBlock, Packing, nvfp4 as blocks};
use tensor::{Tensor, WeightFormat};

use super::loss::{Loss, exact};
use super::scales::Scales;

/// Weights of a piece: 32 MiB as f32.
const PIECE_WEIGHTS: usize = 4 << 20;

/// An error of the source, not of what is written: trying again does not help.
pub(super) fn damaged(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// What all scales of a matrix are multiplied by in NVFP4: its own, if it is that already.
pub(super) fn matrix_scale(tensor: &Tensor) -> io::Result<f32> {
    match tensor.format() {
        // Of one matrix, all blocks have the same.
        WeightFormat::NVFP4 => Ok(tensor.as_slice::<blocks::Block>().first().map_or(1.0, |block| block.scale)),
        _ => largest(tensor).map(blocks::matrix_scale),
    }
}

/// Writes `tensor` as a GGUF file has `format`, piece by piece, and adds up what is lost; `done` is told the number of
/// rows of each piece. `unit` is what all scales are multiplied by in NVFP4: [`matrix_scale`].
pub(super) fn convert(
    tensor: &Tensor,
    format: WeightFormat,
    unit: f32,
    scales: &Scales,
    out: &mut dyn Write,
    loss: &mut Loss,
    done: &mut dyn FnMut(usize),
) -> io::Result<()> {
    let row_len = tensor.row_len();
    let pack = |rows: Range<usize>, packing: Packing<'_>| {
        let values = values(tensor, rows.clone())?;
        if format == WeightFormat::NVFP4 {
            let in_row = row_len / blocks::BLOCK_LEN;
            let of_rows = rows.start * in_row..rows.end * in_row;
            return Ok(match tensor.format() {
                WeightFormat::NVFP4 => (in_file(&tensor.as_slice()[of_rows]), exact(&values)),
                _ => pack_nvfp4(&values, row_len, unit, packing),
            });
        }
        let packed = Tensor::packed(format, vec![rows.len(), row_len], &values, packing).map_err(damaged)?;
        let (mut lost, mut back) = (Loss::none("", "", ""), vec![0f32; row_len]);
        for (row, values) in values.chunks_exact(row_len.max(1)).enumerate() {
            packed.row_to_f32(row, &mut back);
            lost.add(values, &back);
        }
        Ok((packed.bytes().clone(), lost))
    };
    in_pieces(tensor, scales, 1, pack, &mut |(packed, lost), rows| {
        out.write_all(&packed)?;
        loss.merge(&lost);
        done(rows);
        Ok(())
    })
}

/// Blocks of NVFP4 as a GGUF file has them.
fn in_file(blocks: &[blocks::Block]) -> Bytes {
    blocks.iter().flat_map(nvfp4::to_file).collect::<Vec<u8>>().into()
}

/// Rows in NVFP4 with this scale, as a GGUF file has them, and what they lost.
fn pack_nvfp4(values: &[f32], row_len: usize, unit: f32, packing: Packing<'_>) -> (Bytes, Loss) {
    let (mut packed, mut lost) = (Vec::new(), Loss::none("", "", ""));
    let mut back = [0f32; blocks::BLOCK_LEN];
    for row in values.chunks_exact(row_len.max(1)) {
        for (start, weights) in (0..).step_by(blocks::BLOCK_LEN).zip(row.chunks_exact(blocks::BLOCK_LEN)) {
            let packing = match packing {
                Packing::Weighted(importance) => Packing::Weighted(&importance[start..start + blocks::BLOCK_LEN]),
                other => other,
            };
            let block = blocks::pack(weights, unit, packing);
            block.unpack(&mut back);
            lost.add(weights, &back);
            packed.push(block);
        }
    }
    (in_file(&packed), lost)
}

/// The largest magnitude of a tensor.
pub(super) fn largest(tensor: &Tensor) -> io::Result<f32> {
    let mut most = 0f32;
    let of_rows = |rows: Range<usize>, _: Packing<'_>| {
        Ok(values(tensor, rows)?.into_iter().fold(0f32, |most, value| most.max(value.abs())))
    };
    in_pieces(tensor, &Scales::Plain, 1, of_rows, &mut |of_rows, _| {
        most = most.max(of_rows);
        Ok(())
    })?;
    Ok(most)
}

/// Has all cores pack a tensor, some rows each at a time, whole multiples of `together` but for the last; `write` is
/// given what they made, in order, with the number of rows.
pub(super) fn in_pieces<T: Send>(
    tensor: &Tensor,
    scales: &Scales,
    together: usize,
    pack: impl Fn(Range<usize>, Packing<'_>) -> io::Result<T> + Sync,
    write: &mut dyn FnMut(T, usize) -> io::Result<()>,
) -> io::Result<()> {
    let (rows_in_all, row_len) = (tensor.num_rows(), tensor.row_len());
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    // Fewer of them where the rows that belong together are many weights: memory is for a piece, not for as many as
    // there are cores.
    let threads = threads.min(PIECE_WEIGHTS / (together * row_len).max(1)).max(1);
    // A piece has one importance: where a tensor has several matrices, it ends with each.
    let alike = scales.rows_alike(rows_in_all);
    // No more than a share of them: an expert is smaller than a piece.
    let share = alike.div_ceil(threads).next_multiple_of(together);
    let of_thread = (PIECE_WEIGHTS / threads / row_len.max(1) / together * together).min(share).max(together);
    let pieces = (0..rows_in_all).step_by(alike).flat_map(|start| {
        let end = (start + alike).min(rows_in_all);
        (start..end).step_by(of_thread * threads).map(move |first| (first, (first + of_thread * threads).min(end)))
    });
    let pack = &pack;
    thread::scope(|scope| {
        let start = |first: usize, last: usize| {
            let start = |first: usize| {
                let rows = first..(first + of_thread).min(last);
                let (len, packing) = (rows.len(), scales.packing(first, rows_in_all, row_len));
                (scope.spawn(move || pack(rows, packing)), len)
            };
            (first..last).step_by(of_thread).map(start).collect::<Vec<_>>()
        };
        // One piece is written while the next is packed.
        let mut packed = None;
        for piece in pieces.map(Some).chain([None]) {
            let next = piece.map(|(first, last)| (start(first, last), first..last));
            if let Some((parts, of)) = std::mem::replace(&mut packed, next) {
                for (part, len) in parts {
                    write(part.join().map_err(|_| io::Error::other("a thread ended early"))??, len)?;
                }
                // Pages of the source that were read are not needed again.
                mapped::release(&tensor.bytes()[of.start * tensor.row_bytes()..of.end * tensor.row_bytes()]);
            }
        }
        Ok(())
    })
}

/// Writes bytes of a source, and lets go of them on the way.
pub(super) fn write_and_release(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for piece in bytes.chunks(PIECE_WEIGHTS) {
        out.write_all(piece)?;
        mapped::release(piece);
    }
    Ok(())
}

/// Some rows as f32. Refuses weights that are no numbers.
pub(super) fn values(tensor: &Tensor, rows: Range<usize>) -> io::Result<Vec<f32>> {
    let row_len = tensor.row_len();
    let mut values = vec![0f32; rows.len() * row_len];
    for (row, values) in rows.clone().zip(values.chunks_exact_mut(row_len.max(1))) {
        tensor.row_to_f32(row, values);
    }
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (value, at) = (values[at], rows.start * row_len + at);
        return Err(damaged(format!("weight {at} is {value}: the file is damaged")));
    }
    Ok(values)
}
