//! Experts of a mixture that a file has in one tensor, a stack: here each matrix and each bias is a tensor of its own.
//!
//! Layout    of weights (experts, out, in), of biases (experts, out), the outermost dimension first. Where one stack has the
//!           gate and the up projection of each expert, `out` is both: those of gate first, then those of up (GGUF's
//!           `ffn_gate_up_exps`; `gate_up_proj` of transformers), or by turns, gate first (gpt-oss). gpt-oss has
//!           (experts, in, out) where it is not quantised.
//! Memory    an expert is a view of the file, but for gpt-oss: there, rows that alternate and what is transposed are copied,
//!           one expert at a time.
//! Source    llama.cpp's `gguf-py` and its loader; the modelling code of transformers for `qwen3_moe`, `gpt_oss` and others.

use std::num::NonZero;
use std::thread;

use bytes::Bytes;
use tensor::{Tensor, WeightFormat};

use crate::error::shown;
use crate::limits::ByteRange;
use crate::{FormatError, gguf_names};

/// Rows and columns that are transposed together: both fit the nearest cache.
const TILE: usize = 32;
/// Weights that are worth a thread.
const THREAD_WEIGHTS: usize = 1 << 19;

/// Which of the outputs of an expert in a stack are those of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    All,
    FirstHalf,
    SecondHalf,
    /// Every second one, from the first.
    Even,
    /// Every second one, from the second.
    Odd,
}

impl Take {
    /// The first of `outputs`, and how many there are to the next, and in all. Half of an odd number is rounded down.
    pub(crate) fn of(self, outputs: usize) -> (usize, usize, usize) {
        let half = outputs / 2;
        match self {
            Self::All => (0, 1, outputs),
            Self::FirstHalf => (0, 1, half),
            Self::SecondHalf => (half, 1, half),
            Self::Even => (0, 2, half),
            Self::Odd => (1, 2, half),
        }
    }
}

/// What the experts of a stack are called, all of which have one matrix or bias there.
#[derive(Clone, Debug)]
pub(crate) struct ExpertNames {
    /// Before and after the number.
    pub(crate) before: String,
    pub(crate) after: String,
    pub(crate) take: Take,
    pub(crate) is_bias: bool,
    /// Whether they are the heads of latent attention, which a stack has as it has experts.
    pub(crate) are_heads: bool,
}

impl ExpertNames {
    /// The checkpoint's name of expert `index`.
    pub(crate) fn of(&self, index: u64) -> String {
        format!("{}{index}{}", self.before, self.after)
    }
}

/// One matrix, or one bias, of each of the experts in a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    pub(crate) source: Source,
    pub(crate) take: Take,
    /// Whether it has (experts, in, out).
    pub(crate) is_transposed: bool,
}

/// The tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// In the table of a file.
    File { file: u32, index: u32 },
    /// In the list of quantised weights.
    Quantized(u32),
}

impl Stack {
    /// How many experts a stack of this shape has; an error where its matrices or biases cannot be those of `names`, or are
    /// not of as many experts as the model has, if that is known.
    pub(crate) fn experts(
        &self,
        names: &ExpertNames,
        tensor: &str,
        shape: &[u64],
        of_model: Option<u64>,
    ) -> Result<u64, FormatError> {
        let outer = if names.are_heads { "heads" } else { "experts" };
        let outer = of_model.map_or(outer.into(), |count| count.to_string());
        let dims = match (names.is_bias, self.is_transposed) {
            (true, _) => "out",
            (false, false) => "out, in",
            (false, true) => "in, out",
        };
        let is_halved = self.take != Take::All;
        let expected = format!("[{outer}, {dims}]{}", if is_halved { " with an even `out`" } else { "" });
        let wrong = || FormatError::Experts { tensor: shown(tensor), shape: shape.to_vec(), expected };
        let outputs = match *shape {
            [experts, outputs] if names.is_bias => Some((experts, outputs)),
            [experts, _, outputs] if !names.is_bias && self.is_transposed => Some((experts, outputs)),
            [experts, outputs, _] if !names.is_bias && !self.is_transposed => Some((experts, outputs)),
            _ => None,
        };
        let fits = |&(experts, outputs): &(u64, u64)| {
            of_model.is_none_or(|of_model| of_model == experts) && !(is_halved && outputs % 2 == 1)
        };
        outputs.filter(fits).map(|(experts, _)| experts).ok_or_else(wrong)
    }

    /// The shape of one expert's tensor, of a stack of this shape.
    pub(crate) fn shape(&self, stack: &[u64]) -> Vec<u64> {
        let mut shape: Vec<u64> = stack.iter().skip(1).copied().collect();
        if self.is_transposed {
            shape.reverse();
        }
        if let (Some(outputs), true) = (shape.first_mut(), self.take != Take::All) {
            *outputs /= 2;
        }
        shape
    }

    /// What of the bytes of a stack of this shape is one expert's.
    pub(crate) fn bytes(&self, stack: &[u64], bytes: u64) -> u64 {
        let of_expert = bytes / stack.first().copied().unwrap_or(1).max(1);
        if self.take == Take::All { of_expert } else { of_expert / 2 }
    }

    /// Expert `expert` of the stack `name`, which has this shape and these bytes in the file.
    pub(crate) fn tensor(
        &self,
        name: &str,
        format: WeightFormat,
        stack: &[u64],
        bytes: &Bytes,
        expert: u32,
    ) -> Result<Tensor, FormatError> {
        let wrong = || FormatError::Overflow { what: format!("tensor `{}`", shown(name)) };
        let shape: Option<Vec<usize>> = self.shape(stack).into_iter().map(|dim| usize::try_from(dim).ok()).collect();
        let shape = shape.ok_or_else(wrong)?;
        let data = self.data(format, stack, bytes, expert).ok_or_else(wrong)?;
        Tensor::new(format, shape, data).map_err(|_| wrong())
    }

    /// The bytes of one expert's tensor; `None` where the stack does not have them.
    pub(crate) fn data(&self, format: WeightFormat, stack: &[u64], bytes: &Bytes, expert: u32) -> Option<Bytes> {
        let (experts, inner) = stack.split_first()?;
        let len = (bytes.len() as u64).checked_div(*experts)?;
        let bytes = slice(bytes, u64::from(expert).checked_mul(len)?, len)?;
        let dim = |index: usize| inner.get(index).map_or(Some(1), |&dim| usize::try_from(dim).ok());
        if self.is_transposed {
            let (rows, cols) = (dim(0)?, dim(1)?);
            return match (format.block_len(), format.block_bytes()) {
                (1, 2) => transposed::<2>(&bytes, rows, cols, self.take),
                (1, 4) => transposed::<4>(&bytes, rows, cols, self.take),
                _ => None,
            };
        }
        let outputs = dim(0)?;
        let (first, step, count) = self.take.of(outputs);
        let row_bytes = bytes.len().checked_div(outputs)?;
        if step == 1 {
            // From halves, because of a bias in blocks an output has no bytes of its own.
            let part = if self.take == Take::All { len } else { len / 2 };
            return slice(&bytes, if first == 0 { 0 } else { part }, part);
        }
        let mut picked = Vec::with_capacity(count.checked_mul(row_bytes)?);
        for row in bytes.chunks_exact(row_bytes.max(1)).skip(first).step_by(step).take(count) {
            picked.extend_from_slice(row);
        }
        Some(picked.into())
    }
}

fn slice(bytes: &Bytes, start: u64, len: u64) -> Option<Bytes> {
    ByteRange::new(start, len)?.slice(bytes, &"an expert").ok()
}

/// (taken columns, rows) of a matrix of (rows, cols) elements of `SIZE` bytes.
fn transposed<const SIZE: usize>(bytes: &[u8], rows: usize, cols: usize, take: Take) -> Option<Bytes> {
    let (elements, rest) = bytes.as_chunks::<SIZE>();
    if !rest.is_empty() || Some(elements.len()) != rows.checked_mul(cols) {
        return None;
    }
    let (first, step, count) = take.of(cols);
    let mut out = vec![[0u8; SIZE]; count.checked_mul(rows)?];
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.min(out.len().div_ceil(THREAD_WEIGHTS)).max(1);
    let share = count.div_ceil(threads).next_multiple_of(TILE);
    thread::scope(|scope| {
        let mut parts = (0..).step_by(share).zip(out.chunks_mut((share * rows).max(1)));
        // The first is for this thread: most matrices are small.
        let own = parts.next();
        for (at, out) in parts {
            scope.spawn(move || transpose(elements, rows, cols, (first + at * step, step), out));
        }
        if let Some((at, out)) = own {
            transpose(elements, rows, cols, (first + at * step, step), out);
        }
    });
    Some(out.into_flattened().into())
}

/// As many columns of a matrix of (rows, cols) as `out` has room for, from `first` on and from each to the next by `step`.
fn transpose<T: Copy>(elements: &[T], rows: usize, cols: usize, (first, step): (usize, usize), out: &mut [T]) {
    let count = out.len().checked_div(rows).unwrap_or(0);
    for first_row in (0..rows).step_by(TILE) {
        for first_out in (0..count).step_by(TILE) {
            for out_row in first_out..(first_out + TILE).min(count) {
                let col = first + out_row * step;
                let last_row = (first_row + TILE).min(rows);
                let out = &mut out[out_row * rows + first_row..out_row * rows + last_row];
                out.iter_mut().zip(first_row..).for_each(|(out, row)| *out = elements[row * cols + col]);
            }
        }
    }
}

/// A tensor of a GGUF file as the checkpoint has it: a vector that is one row there.
pub(crate) fn as_in_checkpoint(gguf_name: &str, tensor: Tensor) -> Result<Tensor, FormatError> {
    match *tensor.shape() {
        [len] if gguf_names::is_row(gguf_name) => {
            let wrong = |_| FormatError::Overflow { what: format!("tensor `{}`", shown(gguf_name)) };
            Tensor::new(tensor.format(), vec![1, len], tensor.bytes().clone()).map_err(wrong)
        }
        _ => Ok(tensor),
    }
}
