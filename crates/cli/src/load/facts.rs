//! What several steps and commands ask of a plan and its weights: formats, bytes, windows of text.

use anyhow::{Result, bail};
use plan::{KvFormat, Op, Plan, StepInput, WeightId};
use tensor::{Tensor, WeightFormat};
use tokenizer::{ParseSpecial, Tokenizer};

/// Tokens in a block of the KV cache.
pub(crate) const KV_BLOCK_LEN: usize = 32;
// What is measured has the layout of what runs.
const _: () = assert!(KV_BLOCK_LEN == lab::KV_BLOCK_LEN);
/// Tokens in a window of text that a model predicts, where no flag says how many.
pub(crate) const WINDOW: usize = 512;

/// The format of the KV cache: `asked`, or exact where all `weights` are, and half precision otherwise.
pub(crate) fn kv_format(asked: Option<KvFormat>, mut weights: impl Iterator<Item = Option<WeightFormat>>) -> KvFormat {
    let all_f32 = weights.all(|format| format == Some(WeightFormat::F32));
    asked.unwrap_or(if all_f32 { KvFormat::F32 } else { KvFormat::F16 })
}

/// As [`kv_format`], of loaded weights.
pub(crate) fn kv_format_of(asked: Option<KvFormat>, weights: &[Tensor]) -> KvFormat {
    kv_format(asked, weights.iter().map(|weight| Some(weight.format())))
}

/// The format that most of the matrices' bytes are in.
pub(crate) fn main_format(weights: &[Tensor]) -> WeightFormat {
    let bytes_in = |format: &WeightFormat| -> usize {
        let matrices = weights.iter().filter(|weight| weight.shape().len() > 1 && weight.format() == *format);
        matrices.map(|weight| weight.bytes().len()).sum()
    };
    WeightFormat::ALL.into_iter().max_by_key(bytes_in).unwrap_or(WeightFormat::F32)
}

/// Bytes of all weights of `plan`, and of those that a decode step of one row reads: not the rest of an embedding table of
/// which it looks up a row, and not the experts that its token does not take. `bytes_of` knows the size of a weight by
/// its index.
pub(crate) fn weight_bytes(plan: &Plan, bytes_of: impl Fn(usize) -> u64) -> (u64, u64) {
    let mut one_row = StepInput::default();
    one_row.push_sequence(&[0], 0, &[]);
    one_row.output_rows.push(0);
    let bytes_of_weight = |weight: WeightId| bytes_of(weight.index());
    // The cache is no weight, and a row of the table is next to nothing.
    let reads = plan.ops.iter().filter(|op| op.cache_layer().is_none() && !matches!(op, Op::Embed { .. }));
    let active = reads.map(|op| op.cost(plan, &bytes_of_weight, KvFormat::F16).of(&one_row).bytes).sum();
    ((0..plan.weights.len()).map(&bytes_of).sum(), active)
}

/// The text's tokens in windows that all have the same length.
pub(crate) fn text_windows(
    tokenizer: &Tokenizer,
    text: &str,
    window: usize,
    most: Option<usize>,
) -> Result<Vec<Vec<u32>>> {
    let prefix = tokenizer.prefix_ids();
    let ids = tokenizer.encode(text, ParseSpecial::No)?;
    let each = window.saturating_sub(prefix.len()).max(1);
    if ids.len() < each {
        bail!(
            "the text has {} tokens, and a window takes {each}: use a longer text or a smaller --ctx-size",
            ids.len()
        );
    }
    let windows = ids.chunks_exact(each).map(|ids| [prefix, ids].concat());
    Ok(windows.take(most.unwrap_or(usize::MAX)).collect())
}

/// The weight format of that name, in any case.
pub(crate) fn parse_weight_format(name: &str) -> Result<WeightFormat, String> {
    let known = WeightFormat::ALL;
    let format = known.into_iter().find(|format| format.name().eq_ignore_ascii_case(name));
    format
        .ok_or_else(|| format!("expected one of {}", known.map(|format| format.name().to_ascii_lowercase()).join(", ")))
}
