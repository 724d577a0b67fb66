//! `--explain-dispatch`: which kernel computes each op of a model on a device, by the rows of a step.

use std::sync::Arc;

use anyhow::{Context, Result};
use backend::profile::OpInfo;
use backend::{Backend, Executable};
use formats::Checkpoint;
use plan::{KvFormat, KvLayout, Plan, StepShape};
use tensor::Tensor;

use crate::load::facts::{KV_BLOCK_LEN, kv_format_of};
use crate::model::load_weights;
use crate::model::settings::ModelSettings;
use crate::output::stdout;

/// Rows of the steps that are asked for: as many sequences in decode, then a prompt.
const DECODES: [usize; 4] = [1, 4, 16, 64];
const PROMPT: usize = 512;
/// Tokens that the cache has room for: attention may be computed in other ways for longer texts.
const CONTEXT: usize = 8192;

/// Where tokens are chosen.
const CHOSEN_ON_DEVICE: &str = "The device chooses tokens: the likeliest, or one drawn by temperature, top-k, top-p and min-p in their \
     default order. A step with penalties, DRY, top-n-sigma, typical sampling, XTC, dynamic temperature, mirostat, \
     a bias, a grammar, log-probabilities or another order of samplers gives its logits to the host.\n";
const CHOSEN_ON_HOST: &str = "The host chooses tokens.\n";

/// The same op in every layer: what is dispatched on, and the variant for each number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    op: &'static str,
    format: String,
    features: (usize, usize),
    /// Rows, and which kernels.
    variants: Vec<(String, String)>,
}

/// Prints the table for a checkpoint on the device of `settings`.
pub(crate) fn of_checkpoint(checkpoint: &mut Checkpoint, name: &str, settings: &ModelSettings) -> Result<()> {
    let (plan, backend, weights) = load_weights(checkpoint, settings)?;
    let kv_format = kv_format_of(settings.cache.format, &weights);
    Ok(stdout(&dispatch(name, Arc::new(plan), &*backend, weights, kv_format)?)?)
}

/// The table for a model on `backend`.
pub(crate) fn dispatch(
    name: &str,
    plan: Arc<Plan>,
    backend: &dyn Backend,
    weights: Vec<Tensor>,
    format: KvFormat,
) -> Result<String> {
    let num_blocks = plan.context_len.min(CONTEXT).div_ceil(KV_BLOCK_LEN);
    let kv = KvLayout { format, block_len: KV_BLOCK_LEN, num_blocks };
    let device = backend.device().clone();
    let mut executable = backend.load(plan, weights, kv).with_context(|| format!("cannot run `{name}`"))?;
    executable.settle()?;
    let lines = lines(&mut *executable)?;
    Ok(format!(
        "{name} on {} ({}), KV cache in {}, up to {CONTEXT} tokens of context\n\n{}\n{}",
        device.name,
        device.description,
        format!("{format:?}").to_ascii_lowercase(),
        table(&lines, &device.name),
        if executable.can_queue() { CHOSEN_ON_DEVICE } else { CHOSEN_ON_HOST },
    ))
}

fn lines(executable: &mut dyn Executable) -> Result<Vec<Line>> {
    let decodes = DECODES.map(|rows| (rows.to_string(), StepShape { tokens: rows, sequences: rows, outputs: rows }));
    let prompt = (format!("{PROMPT} (a prompt)"), StepShape { tokens: PROMPT, sequences: 1, outputs: 1 });
    let mut lines = Vec::new();
    for (rows, shape) in decodes.into_iter().chain([prompt]) {
        for info in executable.variants(shape.bucket())? {
            add(&mut lines, &rows, &info);
        }
    }
    Ok(lines)
}

/// Takes in what computes an op at `rows`; the same in another layer is no news.
fn add(lines: &mut Vec<Line>, rows: &str, info: &OpInfo) {
    let (op, format, features) = (info.name, info.format(), (info.in_features, info.out_features));
    let is_it = |line: &Line| (line.op, &line.format, line.features) == (op, &format, features);
    let index = lines.iter().position(is_it).unwrap_or_else(|| {
        lines.push(Line { op, format: format.clone(), features, variants: Vec::new() });
        lines.len() - 1
    });
    let found = (rows.to_owned(), info.variant.clone());
    if !lines[index].variants.contains(&found) {
        lines[index].variants.push(found);
    }
}

/// Consecutive rows with the same kernels are one line.
fn table(lines: &[Line], device: &str) -> String {
    let mut out =
        String::from("| op | format | features | rows | device | variant |\n| --- | --- | --- | --- | --- | --- |\n");
    for Line { op, format, features, variants } in lines {
        for same in variants.chunk_by(|a, b| a.1 == b.1) {
            let rows: Vec<_> = same.iter().map(|(rows, _)| rows.as_str()).collect();
            let features = match *features {
                (0, 0) => "–".to_owned(),
                (into, out) => format!("{into} → {out}"),
            };
            let format = if format.is_empty() { "–" } else { format };
            out.push_str(&format!(
                "| {op} | {format} | {features} | {} | {device} | {} |\n",
                rows.join(", "),
                same[0].1
            ));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use plan::Rows;

    use super::*;

    #[test]
    fn layers_are_one_line_and_equal_variants_one_row() {
        let info = |variant: &str, layer| OpInfo {
            name: "linear",
            layer: Some(layer),
            rows: Rows::Tokens,
            in_features: 8,
            out_features: 16,
            formats: vec![tensor::WeightFormat::F16],
            variant: variant.to_owned(),
            launches: None,
        };
        let mut lines = Vec::new();
        for (rows, variant) in [("1", "m1"), ("4", "m4"), ("16", "m4")] {
            for layer in 0..3 {
                add(&mut lines, rows, &info(variant, layer));
            }
        }
        let table = table(&lines, "cuda");
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            ["| linear | f16 | 8 → 16 | 1 | cuda | m1 |", "| linear | f16 | 8 → 16 | 4, 16 | cuda | m4 |",]
        );
    }
}
