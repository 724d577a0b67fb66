//! What several steps and commands ask of a plan and its weights: formats, bytes, windows of text.

use anyhow::{Result, bail};
use plan::{KvFormat, Plan};
use tensor::{Tensor, WeightFormat};
use tokenizer::{ParseSpecial, Tokenizer};

/// Tokens in a block of the KV cache.
pub(crate) const KV_BLOCK_LEN: usize = 32;
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

/// Bytes of all weights of `plan`, and of those that each decode step reads whole: all but an embedding table of which
/// it only looks up a row. `bytes_of` knows the size of a weight by its index.
pub(crate) fn weight_bytes(plan: &Plan, bytes_of: impl Fn(usize) -> u64) -> (u64, u64) {
    let is_looked_up = |index: usize| {
        let mut reads = plan.ops.iter().filter(|op| op.weights().iter().any(|weight| weight.index() == index));
        reads.all(|op| matches!(op, plan::Op::Embed { .. }))
    };
    let total = (0..plan.weights.len()).map(&bytes_of).sum();
    let looked_up: u64 = (0..plan.weights.len()).filter(|&index| is_looked_up(index)).map(&bytes_of).sum();
    (total, total - looked_up)
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
