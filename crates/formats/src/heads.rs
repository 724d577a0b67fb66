//! Heads of latent attention (MLA): the matrices that bring the queries of a head into the latent space, and its
//! results out of it. Checkpoints have them in one tensor, `kv_b_proj`; here each is a tensor of its own.
//!
//! Layout    (heads · (keys + values), rank): of each head the rows that make its keys, then those that make its
//!           values. `v_b_proj.H` is the latter, (values, rank). `k_b_proj.H` is the former transposed, (rank, keys).
//! Memory    `v_b_proj.H` is a view of the file in the file's format, unless the file has it in several tensors.
//!           `k_b_proj.H` is copied. Blocks lie along rows, so what is quantised becomes F16 or BF16, whichever is
//!           nearer (F16 from GGUF files, whose scales are F16).
//! Apart     GGUF files that were converted since 2025 have both halves in stacks, as of experts (`attn_k_b`, which is
//!           transposed already, and `attn_v_b`): see `experts`.
//! Source    DeepSeek-AI, 2024 (DeepSeek-V2, section 2.1); the modelling code of transformers for `deepseek_v2` and
//!           `deepseek_v3`.

use serde_json::Value as Json;
use tensor::{Tensor, WeightFormat};

use crate::FormatError;
use crate::error::shown;
use crate::experts::Source;

/// What of each head it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Keys,
    Values,
}

/// One half of each of the heads in a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadHalves {
    pub(crate) source: Source,
    pub(crate) half: Half,
    heads: usize,
    /// Rows of a head that make keys, and values.
    keys: usize,
    values: usize,
    rank: usize,
    /// What keys become; that of the source, where it has rows that can be transposed.
    pub(crate) keys_format: Option<WeightFormat>,
}

impl HeadHalves {
    /// Both halves of the tensor `name`, (heads · (keys + values), rank), of a model with this `config.json`.
    pub(crate) fn both(
        source: Source,
        name: &str,
        shape: &[u64],
        keys_format: Option<WeightFormat>,
        config: &Json,
    ) -> Result<[Self; 2], FormatError> {
        let number = |field: &str| config.get(field).and_then(Json::as_u64).and_then(|n| usize::try_from(n).ok());
        let (heads, values) = (number("num_attention_heads"), number("v_head_dim"));
        let sizes = || {
            let (heads, values) = (heads?, values?);
            let &[rows, rank] = shape else { return None };
            let (rows, rank) = (usize::try_from(rows).ok()?, usize::try_from(rank).ok()?);
            let keys = rows.checked_div(heads)?.checked_sub(values).filter(|&keys| keys > 0)?;
            (keys.checked_add(values)?.checked_mul(heads)? == rows).then_some((heads, keys, values, rank))
        };
        let (heads, keys, values, rank) = sizes().ok_or_else(|| FormatError::Experts {
            tensor: shown(name),
            shape: shape.to_vec(),
            expected: format!(
                "[`num_attention_heads` ({}) times more rows than `v_head_dim` ({}), `kv_lora_rank`]",
                heads.map_or("missing".into(), |heads| heads.to_string()),
                values.map_or("missing".into(), |values| values.to_string()),
            ),
        })?;
        let of = |half| Self { source, half, heads, keys, values, rank, keys_format };
        Ok([of(Half::Keys), of(Half::Values)])
    }

    /// Heads that there are.
    pub(crate) fn count(&self) -> usize {
        self.heads
    }

    /// The first row of a head, and how many there are.
    pub(crate) fn rows(&self, head: usize) -> (usize, usize) {
        let first = head * (self.keys + self.values);
        match self.half {
            Half::Keys => (first, self.keys),
            Half::Values => (first + self.keys, self.values),
        }
    }

    /// The shape of a head's tensor.
    pub(crate) fn shape(&self) -> Vec<u64> {
        match self.half {
            Half::Keys => vec![self.rank as u64, self.keys as u64],
            Half::Values => vec![self.values as u64, self.rank as u64],
        }
    }

    /// What of the bytes of the tensor is one head's.
    pub(crate) fn bytes(&self, bytes: u64) -> u64 {
        let (_, rows) = self.rows(0);
        let all = (self.heads * (self.keys + self.values)) as u64;
        (u128::from(bytes) * rows as u128 / u128::from(all.max(1))) as u64
    }

    /// The tensor of `head`, of the whole.
    pub(crate) fn of_whole(&self, name: &str, whole: &Tensor, head: usize) -> Result<Tensor, FormatError> {
        let wrong = || FormatError::Overflow { what: format!("tensor `{}`", shown(name)) };
        let (first, rows) = self.rows(head);
        let row_bytes = whole.row_bytes();
        let (start, end) = (first.checked_mul(row_bytes), (first + rows).checked_mul(row_bytes));
        let place = start.zip(end).filter(|&(_, end)| end <= whole.bytes().len()).ok_or_else(wrong)?;
        let bytes = whole.bytes().slice(place.0..place.1);
        let part = Tensor::new(whole.format(), vec![rows, self.rank], bytes).map_err(|_| wrong())?;
        self.finished(name, part)
    }

    /// The tensor of a head, of its rows.
    pub(crate) fn finished(&self, name: &str, rows: Tensor) -> Result<Tensor, FormatError> {
        if self.half == Half::Values {
            return Ok(rows);
        }
        let wrong = || FormatError::Overflow { what: format!("tensor `{}`", shown(name)) };
        let (keys, rank) = (self.keys, self.rank);
        let numbers = rows.to_f32();
        let turned: Vec<f32> =
            (0..rank).flat_map(|column| numbers.iter().skip(column).step_by(rank)).copied().collect();
        let format = self.keys_format.ok_or_else(wrong)?;
        Tensor::from_f32(format, vec![rank, keys], &turned).map_err(|_| wrong())
    }
}

/// What keys in this format become.
pub(crate) fn keys_format(format: WeightFormat) -> WeightFormat {
    match format {
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 => format,
        _ => WeightFormat::F16,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn halves(shape: &[u64], config: &Json) -> Result<[HeadHalves; 2], FormatError> {
        let source = Source::File { file: 0, index: 0 };
        HeadHalves::both(source, "kv_b_proj", shape, Some(WeightFormat::F32), config)
    }

    #[test]
    fn a_head_has_rows_of_values_and_rows_of_keys_that_are_transposed() {
        let config = json!({ "num_attention_heads": 2, "v_head_dim": 1 });
        let [keys, values] = halves(&[6, 3], &config).unwrap();
        let numbers: Vec<f32> = (0..18u8).map(f32::from).collect();
        let whole = Tensor::from_f32(WeightFormat::F32, vec![6, 3], &numbers).unwrap();
        let head = |half: HeadHalves, head| {
            let tensor = half.of_whole("kv_b_proj", &whole, head).unwrap();
            let shape: Vec<u64> = tensor.shape().iter().map(|&dim| dim as u64).collect();
            assert_eq!(shape, half.shape());
            tensor.to_f32()
        };
        assert_eq!(head(keys, 0), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(head(values, 0), [6.0, 7.0, 8.0]);
        assert_eq!(head(keys, 1), [9.0, 12.0, 10.0, 13.0, 11.0, 14.0]);
        assert_eq!(head(values, 1), [15.0, 16.0, 17.0]);
        assert_eq!((keys.bytes(72), values.bytes(72)), (24, 12));
    }

    #[test]
    fn shapes_that_are_not_of_the_heads_are_refused() {
        let config = json!({ "num_attention_heads": 2, "v_head_dim": 3 });
        for shape in [&[6, 3][..], &[7, 3], &[8], &[8, 3, 1], &[0, 3]] {
            let error = halves(shape, &config).unwrap_err().to_string();
            assert!(error.contains("`num_attention_heads` (2)"), "{error}");
        }
        let error = halves(&[8, 3], &json!({})).unwrap_err().to_string();
        assert!(error.contains("`v_head_dim` (missing)"), "{error}");
    }
}
