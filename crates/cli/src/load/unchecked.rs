//! Weights that nobody has looked at since they were loaded. Vectors are checked then; matrices are most of a model, and
//! to read them for a NaN or an infinity would make each start wait. A server looks while it has nothing else to do.

use std::ops::Range;

use bytes::Bytes;
use tensor::Tensor;

/// Matrices, the one that is looked at next last.
#[derive(Debug, Default)]
pub(crate) struct Unchecked {
    left: Vec<(String, Tensor)>,
    /// The row of that one where its next piece begins.
    row: usize,
}

/// A weight that is no number.
#[derive(Debug, PartialEq)]
pub(crate) struct NoNumber {
    /// The tensor.
    pub(crate) name: String,
    /// Its first such element; in a format of blocks, the first of the block.
    pub(crate) index: usize,
    pub(crate) value: f32,
}

impl Unchecked {
    /// Bytes of a piece, as far as a row is not longer: looked at in some milliseconds, so that a request that comes
    /// meanwhile does not wait.
    const PIECE_BYTES: usize = 4 << 20;

    /// Those of `weights` that cost no memory to keep: on a device with memory of its own, all but those that were decoded to
    /// another format than the file's.
    pub(crate) fn of<'a>(weights: impl Iterator<Item = (&'a str, &'a Tensor)>, is_host: bool) -> Self {
        let is_free = |tensor: &Tensor| is_host || mapped::identity(tensor.bytes()).is_some();
        let matrices = weights.filter(|(_, tensor)| tensor.shape().len() > 1 && is_free(tensor));
        let mut left: Vec<_> = matrices.map(|(name, tensor)| (name.to_owned(), tensor.clone())).collect();
        left.reverse();
        Self { left, row: 0 }
    }

    /// Looks at the next piece; `None` where all has been looked at. A tensor with a fault is not looked at further.
    pub(crate) fn check_piece(&mut self) -> Option<Result<(), NoNumber>> {
        let (name, tensor) = self.left.last()?;
        let rows = (Self::PIECE_BYTES / tensor.row_bytes().max(1)).max(1);
        let piece = self.row..tensor.num_rows().min(self.row + rows);
        let fault = first_not_finite(tensor, piece.clone());
        let fault = fault.map(|(index, value)| NoNumber { name: name.clone(), index, value });
        self.row = piece.end;
        if fault.is_some() || piece.end >= tensor.num_rows() {
            self.left.pop();
            self.row = 0;
        }
        Some(fault.map_or(Ok(()), Err))
    }
}

/// The first element of these rows that is NaN or infinite.
fn first_not_finite(tensor: &Tensor, rows: Range<usize>) -> Option<(usize, f32)> {
    let (row_bytes, row_len) = (tensor.row_bytes(), tensor.row_len());
    let bytes: Bytes = tensor.bytes().slice(rows.start * row_bytes..rows.end * row_bytes);
    let piece = Tensor::new(tensor.format(), vec![rows.len(), row_len], bytes).ok()?;
    piece.first_not_finite().map(|(index, value)| (rows.start * row_len + index, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::WeightFormat;

    #[test]
    fn each_matrix_is_looked_at_once_and_its_first_fault_is_told() {
        let (rows, row_len) = (3000, 1024);
        for format in [WeightFormat::F32, WeightFormat::BF16, WeightFormat::Q8_0, WeightFormat::Q4_K] {
            let whole = Tensor::from_f32(format, vec![rows, row_len], &vec![0.5; rows * row_len]).unwrap();
            let faulty = |row: usize| {
                let mut bytes = whole.bytes().to_vec();
                // All ones is a NaN in each of these, and in the scales that begin each block.
                bytes[row * whole.row_bytes()..][..4].fill(0xff);
                Tensor::new(format, vec![rows, row_len], bytes.into()).unwrap()
            };
            let vector = Tensor::from_f32(WeightFormat::F32, vec![2], &[f32::NAN, 0.0]).unwrap();
            for row in [0, 1, 1023, 1024, 2999] {
                let tensors = [("a", whole.clone()), ("b", faulty(row)), ("v", vector.clone()), ("c", whole.clone())];
                let mut unchecked = Unchecked::of(tensors.iter().map(|(name, tensor)| (*name, tensor)), true);
                let found: Vec<_> = std::iter::from_fn(|| unchecked.check_piece()).collect();
                let faults: Vec<_> = found.iter().filter_map(|piece| piece.as_ref().err()).collect();
                assert!(
                    matches!(&faults[..], [fault] if fault.name == "b" && fault.index == row * row_len),
                    "{faults:?}"
                );
                assert!(found.len() >= 3 && unchecked.check_piece().is_none(), "{format}");
            }
        }
        // Memory of this process, behind a device that has its own.
        let tensors = [("a", Tensor::from_f32(WeightFormat::F32, vec![1, 1], &[f32::NAN]).unwrap())];
        let mut unchecked = Unchecked::of(tensors.iter().map(|(name, tensor)| (*name, tensor)), false);
        assert!(unchecked.check_piece().is_none());
    }
}
