//! A result of `hotmetal verify`: everything in one object, or the worst of everything and a verdict.

use std::fmt::Write;

use backend::DeviceInfo;
use backend::conformance::Part;
use serde::Serialize;
use tensor::WeightFormat;

use super::kernels::{KernelResult, shown_ops};
use super::models::{CheckpointRow, InPlaceRow, ModelResult};
use crate::units;

/// Faults that the text lists; the JSON has them all.
const MAX_LISTED: usize = 20;

/// What `verify -o json` prints.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    verdict: &'static str,
    summary: String,
    faults: Vec<String>,
    version: &'static str,
    device: String,
    description: String,
    variants: Vec<String>,
    kernels: Vec<KernelResult>,
    models: Vec<ModelResult>,
}

impl Report {
    pub(super) fn new(
        device: &DeviceInfo,
        variants: Vec<String>,
        kernels: Vec<KernelResult>,
        models: Vec<ModelResult>,
    ) -> Self {
        let of_kernels = kernels.iter().filter_map(|result| Some(format!("{result}: {}", result.fault.as_ref()?)));
        let of_model = |model: &ModelResult| {
            let ModelResult { model: name, format, device, against, faults, .. } = model;
            let in_model = format!("{name} in {format} on {device} against {against}");
            faults.iter().map(|fault| format!("{in_model}: {fault}")).collect::<Vec<_>>()
        };
        let faults: Vec<_> = of_kernels.chain(models.iter().flat_map(of_model)).collect();
        let mut report = Self {
            verdict: if faults.is_empty() { "pass" } else { "fail" },
            summary: String::new(),
            faults,
            version: env!("CARGO_PKG_VERSION"),
            device: device.name.clone(),
            description: device.description.clone(),
            variants,
            kernels,
            models,
        };
        report.summary = report.summarize();
        report
    }

    /// What is wrong first; `None` when nothing is.
    pub(super) fn verdict(&self) -> Option<String> {
        let first = self.faults.first()?;
        let others = match self.faults.len() {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        Some(format!("not verified: {first}{others}"))
    }

    pub(super) fn as_json(&self) -> String {
        format!("{:#}\n", serde_json::to_value(self).expect("strings, numbers and lists"))
    }

    pub(super) fn as_text(&self) -> String {
        let mut text = format!("{}: {}\n", self.device, self.description);
        if !self.kernels.is_empty() {
            self.write_kernels(&mut text);
        }
        if let [model] = self.models.as_slice()
            && !model.is_bit_for_bit()
        {
            write_layers(&mut text, model);
        }
        if !self.models.is_empty() {
            self.write_models(&mut text);
        }
        if !self.faults.is_empty() {
            text.push('\n');
        }
        for fault in self.faults.iter().take(MAX_LISTED) {
            let _ = writeln!(text, "✗ {fault}");
        }
        if self.faults.len() > MAX_LISTED {
            let _ = writeln!(text, "✗ and {} more: -o json has them all", self.faults.len() - MAX_LISTED);
        }
        if self.faults.is_empty() {
            let _ = writeln!(text, "\n✓ {}", self.summary);
        }
        text
    }

    /// `verified: 4,212 kernel results, 21 models op by op, 128 greedy tokens`.
    fn summarize(&self) -> String {
        let mut parts = Vec::new();
        if !self.kernels.is_empty() {
            let variants = if self.variants.len() == 1 { "way" } else { "ways" };
            let count = units::count(self.kernels.len() as u64);
            parts.push(format!("{count} kernel results in {} {variants} to compute", self.variants.len()));
        }
        if !self.models.is_empty() {
            let checkpoints: usize = self.models.iter().map(|model| model.checkpoints.len()).sum();
            let models = if self.models.len() == 1 { "comparison" } else { "comparisons" };
            let count = units::count(checkpoints as u64);
            parts.push(format!("{count} checkpoints of {} {models}", self.models.len()));
        }
        let parities = || self.models.iter().filter_map(|model| model.parity.as_ref());
        let (tokens, equal, ties) = parities().fold((0, 0, 0), |(tokens, equal, ties), parity| {
            (tokens + parity.token_ids.len(), equal + parity.equal, ties + parity.ties.len())
        });
        if tokens > 0 {
            let ties = match ties {
                0 => String::new(),
                1 => ", 1 tied within the noise".to_owned(),
                n => format!(", {n} tied within the noise"),
            };
            parts.push(format!("{equal} of {tokens} greedy tokens equal{ties}"));
        }
        let verdict = if self.faults.is_empty() { "verified" } else { "not verified" };
        format!("{verdict}: {}", parts.join(", "))
    }

    /// One row an op, one column a format: the worst error of all variants as a share of what it may be.
    fn write_kernels(&self, text: &mut String) {
        let _ = writeln!(text, "\nkernels on {}", self.variants.join("; "));
        let _ = writeln!(text, "the worst error as a share of what is allowed; – where there is nothing to run\n");
        let formats: Vec<_> = WeightFormat::ALL.iter().map(|format| format.name()).collect();
        let mut names: Vec<String> = Vec::new();
        let is_op = |result: &&KernelResult| result.part == Part::Ops.name();
        for result in self.kernels.iter().filter(is_op) {
            for op in shown_ops(&result.ops) {
                if !names.iter().any(|name| name == op) {
                    names.push(op.to_owned());
                }
            }
        }
        let parts = Part::ALL.map(Part::name).into_iter().skip(1);
        names.extend(parts.filter(|part| self.kernels.iter().any(|result| result.part == *part)).map(str::to_owned));
        let mut rows = vec![
            std::iter::once("op".to_owned())
                .chain(formats.iter().map(|format| (*format).to_owned()))
                .collect::<Vec<_>>(),
        ];
        for name in names {
            let mut row = vec![name.clone()];
            for format in &formats {
                let of_name = |result: &&KernelResult| match result.part == Part::Ops.name() {
                    true => shown_ops(&result.ops).contains(&name.as_str()),
                    false => result.part == name,
                };
                let results = || self.kernels.iter().filter(|result| result.format == *format).filter(of_name);
                let shares = results().filter_map(|result| result.share);
                row.push(match (results().count(), results().any(|result| result.fault.is_some())) {
                    (0, _) => "–".to_owned(),
                    (_, true) => "FAULT".to_owned(),
                    (_, false) => shares.max_by(f64::total_cmp).map_or("ok".to_owned(), |share| format!("{share:.3}")),
                });
            }
            rows.push(row);
        }
        write_table(text, &rows);
    }

    /// A table for each pair of devices; one line for those that are the same bit for bit, as they have to be.
    fn write_models(&self, text: &mut String) {
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for model in &self.models {
            if !pairs.contains(&(&model.device, &model.against)) {
                pairs.push((&model.device, &model.against));
            }
        }
        let of_pair = |(device, against): (&str, &str)| -> Vec<&ModelResult> {
            self.models.iter().filter(|model| (&*model.device, &*model.against) == (device, against)).collect()
        };
        let (same, other): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|&pair| of_pair(pair).into_iter().all(ModelResult::is_bit_for_bit));
        for pair in other {
            let _ = writeln!(text, "\nmodels on {} against {}, op by op", pair.0, pair.1);
            let _ = writeln!(text, "in place: the error of an op from its own operands, as a share of its bound\n");
            let mut rows = vec![
                ["model", "format", "worst NMSE", "allowed", "at", "in place", "at", "text"]
                    .map(str::to_owned)
                    .to_vec(),
            ];
            rows.extend(of_pair(pair).into_iter().map(model_row));
            write_table(text, &rows);
            let sum = |count: fn(&ModelResult) -> usize| of_pair(pair).into_iter().map(count).sum::<usize>();
            let (choices, flips) = (sum(|model| model.expert_choices), sum(|model| model.expert_flips));
            if choices > 0 {
                let _ = writeln!(
                    text,
                    "\n{flips} of {choices} choices of experts were others, between scores that rounding cannot tell apart"
                );
            }
        }
        if !same.is_empty() {
            text.push('\n');
        }
        for pair in same {
            let count = of_pair(pair).len();
            let models = if count == 1 { "model" } else { "models" };
            let _ = writeln!(text, "{}: the same bits as {} in every op of {count} {models}", pair.0, pair.1);
        }
    }
}

fn model_row(model: &ModelResult) -> Vec<String> {
    let worst = model.checkpoints.iter().max_by(|a, b| a.nmse.total_cmp(&b.nmse));
    let nearest = model.in_place.iter().max_by(|a, b| a.share.total_cmp(&b.share));
    let of_worst = |cell: fn(&CheckpointRow) -> String| worst.map_or("–".to_owned(), cell);
    let of_nearest = |cell: fn(&InPlaceRow) -> String| nearest.map_or("–".to_owned(), cell);
    let text = model.parity.as_ref().map_or("–".to_owned(), |parity| match parity.ties.len() {
        0 => format!("{} of {}", parity.equal, parity.token_ids.len()),
        ties => format!("{} of {}, {ties} tied", parity.equal, parity.token_ids.len()),
    });
    vec![
        model.model.clone(),
        model.format.clone(),
        of_worst(|worst| format!("{:.1e}", worst.nmse)),
        of_worst(|worst| format!("{:.1e}", worst.nmse_max)),
        of_worst(|worst| worst.place.name.clone()),
        of_nearest(|nearest| format!("{:.3}", nearest.share)),
        of_nearest(|nearest| nearest.place.name.clone()),
        text,
    ]
}

/// Of each layer, the result that is furthest off.
fn write_layers(text: &mut String, model: &ModelResult) {
    let _ = writeln!(text, "\nthe worst result of each layer\n");
    let mut rows = vec![["layer", "op", "L∞", "row, column", "cosine", "NMSE", "allowed"].map(str::to_owned).to_vec()];
    let mut rest = model.checkpoints.as_slice();
    while let Some(first) = rest.first() {
        let len = rest.iter().take_while(|checkpoint| checkpoint.place.layer == first.place.layer).count();
        let (layer, after) = rest.split_at(len);
        rest = after;
        let Some(worst) = layer.iter().max_by(|a, b| a.nmse.total_cmp(&b.nmse)) else { break };
        let CheckpointRow { place, max_abs, row, column, cosine, nmse, nmse_max, .. } = worst;
        let name = place.result.as_ref().map_or(place.op.to_owned(), |result| format!("{} ({result})", place.op));
        rows.push(vec![
            place.layer.map_or("–".to_owned(), |layer| layer.to_string()),
            name,
            format!("{max_abs:.1e}"),
            format!("{row}, {column}"),
            format!("{cosine:.9}"),
            format!("{nmse:.1e}"),
            format!("{nmse_max:.1e}"),
        ]);
    }
    write_table(text, &rows);
}

/// Columns as wide as they must be, two spaces apart.
fn write_table(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
