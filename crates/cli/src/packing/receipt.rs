//! What is told of a packed model: a summary for people, and a receipt beside it as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use formats::PackedLayout;
use serde_json::{Value, json};
use tensor::WeightFormat;

use super::importance::Importances;
use super::job::{PackedModel, PackingJob};
use crate::units;

/// Where `inspect` looks for the receipt of a file or folder.
pub(crate) fn receipt_of(model: &Path) -> PathBuf {
    // Without the slash that may end a folder's name.
    let mut path = model.components().collect::<PathBuf>().into_os_string();
    path.push(".receipt.json");
    path.into()
}

/// What was lost, format by format.
pub(crate) fn summary(output: &Path, written: &PackedModel) -> Result<String> {
    let PackedModel { bytes_in, bytes_out, losses } = written;
    let mut out = String::new();
    writeln!(out, "{}: {} from {}", output.display(), units::bytes(*bytes_out), units::bytes(*bytes_in))?;
    let formats =
        WeightFormat::ALL.map(WeightFormat::name).into_iter().chain(PackedLayout::ALL.map(PackedLayout::name));
    for format in formats {
        let of_format: Vec<_> = losses.iter().filter(|loss| loss.to == format).collect();
        let Some(worst) = of_format.iter().max_by(|a, b| a.relative().total_cmp(&b.relative())) else { continue };
        let (lost, squares) = of_format.iter().fold((0.0, 0.0), |(l, s), loss| (l + loss.lost, s + loss.squares));
        let all = if squares > 0.0 { f64::sqrt(lost / squares) } else { 0.0 };
        writeln!(
            out,
            "  {format:<5} {} tensors, off by {:.3} % of their size, most in {} ({:.3} %)",
            of_format.len(),
            100.0 * all,
            worst.name,
            100.0 * worst.relative()
        )?;
    }
    let already: BTreeSet<_> =
        losses.iter().map(|loss| loss.from.as_str()).filter(|from| !["F32", "F16", "BF16"].contains(from)).collect();
    if !already.is_empty() {
        let already = already.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(out, "  the source has {already} already: what was lost then is not in these figures")?;
    }
    Ok(out)
}

/// The receipt of a model in the format named `format`; `evaluation` is how well it predicts a text.
pub(crate) fn receipt(
    job: &PackingJob,
    format: &str,
    written: &PackedModel,
    importance: &Importances,
    evaluation: Option<Value>,
) -> String {
    let PackedModel { bytes_in, bytes_out, losses } = written;
    let tensors = losses.iter().map(|loss| {
        json!({
            "name": loss.name, "from": loss.from, "to": loss.to,
            "relative_rms_error": loss.relative(), "largest_error": loss.largest,
            "weighted": loss.weighted,
        })
    });
    let receipt = json!({
        "source": job.source, "output": job.output, "format": format,
        "scales": if job.plain { "plain" } else { "searched" }, "importance": importance.about(),
        "bytes_in": bytes_in, "bytes_out": bytes_out,
        "evaluation": evaluation, "tensors": tensors.collect::<Vec<_>>(),
    });
    format!("{receipt:#}\n")
}
