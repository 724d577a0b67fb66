//! `hotmetal quantize`: a GGUF file with its matrices in another format, from a GGUF file or from safetensors.
//!
//! Tensors are read from the mapped file, converted a piece at a time on all cores and written as they come, so that memory
//! does not grow with the model. The file appears under its name when it is complete; one that was interrupted is continued
//! by the same command. The same input gives the same bytes.

mod convert;
pub(crate) mod mix;
pub(crate) mod on_load;
mod source;
mod work;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use formats::gguf::{GgmlType, Value};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tensor::quant::Packing;
use tensor::{Tensor, WeightFormat};

use crate::eval::{self, Scores};
use crate::load::{self, ModelArgs, parse_weight_format};
use crate::{output, units};
use mix::{Mix, Model};
use source::{Matrix, Source};
use work::Work;

/// Weights of a piece: 32 MiB as f32.
const PIECE_WEIGHTS: usize = 8 << 20;
/// The version of block layouts that ggml has had since 2023.
const QUANTIZATION_VERSION: u32 = 2;

/// Write a GGUF file with its matrices in another format, such as four bits
///
/// Vectors stay as they are (those of safetensors become F32, as GGUF has them). Rows that are no whole number of blocks
/// become Q8_0, or F16. At less than six bits, the embeddings and the output matrix become Q6_K (Q8_0 where that does not
/// divide); mixtures such as q4_k_m give more bits to some layers, as llama.cpp does: --tensor chooses otherwise. A file
/// that was interrupted is continued by the same command.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// What to read: a .gguf or .safetensors file, a directory, or a cached ORG/REPO or ORG/REPO:FILE
    #[arg(value_name = "SRC")]
    source: String,

    /// What matrices become: q8_0, q6_k, q5_k, q4_k, q4_0 (or any other format), f16, or a mixture such as q4_k_m,
    /// q5_k_m, q3_k_m
    #[arg(long, short = 'F', value_name = "FORMAT")]
    format: Mix,

    /// The file to write
    #[arg(long, short = 'o', value_name = "DST")]
    output: PathBuf,

    /// Tensors whose name contains NAME become FORMAT; the last that fits counts; may be given several times
    #[arg(long, value_name = "NAME=FORMAT")]
    tensor: Vec<Override>,

    /// Take the scale at which the largest weight of a block just fits, and do not search for the one that loses least:
    /// faster
    #[arg(long)]
    plain: bool,

    /// Write what every tensor lost to this file, as JSON; `inspect` shows it where it is DST.receipt.json
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,

    /// Have DST and SRC predict this text: perplexity, divergence and how often both have the same likeliest token are printed
    /// and in the receipt
    #[arg(long, value_name = "FILE")]
    eval_text: Option<PathBuf>,

    /// Tokens in a window of --eval-text [default: 512]
    #[arg(long, value_name = "N", requires = "eval_text")]
    eval_ctx_size: Option<usize>,

    /// Windows of --eval-text at most [default: all]
    #[arg(long, value_name = "N", requires = "eval_text")]
    eval_chunks: Option<usize>,

    /// Replace DST if it exists
    #[arg(long)]
    force: bool,
}

/// `--tensor NAME=FORMAT`.
#[derive(Clone, Debug)]
struct Override {
    name: String,
    format: WeightFormat,
}

impl FromStr for Override {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, format)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err("expected NAME=FORMAT, for example token_embd=q8_0".to_owned());
        };
        Ok(Self { name: name.to_owned(), format: parse_weight_format(format)? })
    }
}

/// What became of a tensor.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Loss {
    name: String,
    from: String,
    /// The name of a format.
    to: String,
    /// Σ w², and Σ of the squares of what was lost.
    squares: f64,
    lost: f64,
    largest: f32,
}

impl Loss {
    fn none(name: &str, from: &str, to: WeightFormat) -> Self {
        let to = to.name().to_owned();
        Self { name: name.to_owned(), from: from.to_owned(), to, squares: 0.0, lost: 0.0, largest: 0.0 }
    }

    /// The root of the mean square that was lost, relative to that of the weights.
    fn relative(&self) -> f64 {
        if self.squares > 0.0 { (self.lost / self.squares).sqrt() } else { 0.0 }
    }
}

/// Runs `hotmetal quantize`.
pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    if args.output.exists() && !args.force {
        bail!("`{}` exists; --force replaces it", args.output.display());
    }
    let same = fs::canonicalize(&args.source).ok().zip(fs::canonicalize(&args.output).ok());
    if same.is_some_and(|(source, output)| source == output) {
        bail!("`{}` cannot be read and replaced at a time: choose another -o", args.source);
    }
    let source = Source::open(&args.source)?;
    let eval_text = args.eval_text.as_deref().map(|file| eval_text(file, &args.source)).transpose()?;
    let packing = if args.plain { Packing::Plain } else { Packing::Searched };
    let matrices = source.matrices()?;
    let bytes_in: u64 = matrices.iter().map(|matrix| matrix.bytes).sum();
    let progress = ProgressBar::new(bytes_in).with_style(
        ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {eta} left, {msg}").expect("a valid template"),
    );
    let mut writer = source.metadata(&args.source)?;
    writer.set_metadata("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    writer.set_metadata("general.file_type", Value::U32(args.format.file_type));
    let losses = Rc::new(RefCell::new(Vec::new()));
    let mut used = vec![false; args.tensor.len()];
    let of_layer = |name: &str| name.strip_prefix("blk.")?.split_once('.')?.0.parse::<usize>().ok();
    let model = Model {
        layers: matrices.iter().filter_map(|matrix| of_layer(&matrix.name)).max().map_or(0, |last| last + 1),
        tied: matrices.iter().all(|matrix| matrix.name != "output.weight"),
    };
    for matrix in matrices {
        let is_vector = matrix.shape.len() < 2;
        let to = match is_vector {
            true => source.vector_format(),
            false => target(&matrix, args.format, model, &args.tensor, &mut used)?,
        };
        let dims: Vec<u64> = matrix.shape.iter().rev().copied().collect();
        let (progress, source, losses) = (progress.clone(), source.clone(), losses.clone());
        let name = matrix.name.clone();
        let Some(to) = to.filter(|&format| Some(format) != matrix.format) else {
            // As it is.
            let (ggml_type, len) = matrix.kept()?;
            let make = move |out: &mut dyn Write| {
                out.write_all(&source.bytes(&matrix).map_err(damaged)?)?;
                progress.inc(matrix.bytes);
                Ok(())
            };
            writer.made_tensor(&name, ggml_type, &dims, len, make);
            continue;
        };
        // Refused now, and not when half of the file is written.
        let shape = matrix.shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<Vec<_>, _>>()?;
        let len = Tensor::byte_len(to, &shape)? as u64;
        if matrix.format.is_none() {
            source.tensor(&matrix)?;
        }
        // Read when its turn comes: some are decoded then, and one tensor at a time is enough.
        let make = move |out: &mut dyn Write| {
            progress.set_message(matrix.name.clone());
            let tensor = source.tensor(&matrix).map_err(damaged)?;
            let mut loss = Loss::none(&matrix.name, matrix.type_name, to);
            let num_rows = tensor.num_rows();
            convert(&tensor, to, packing, out, &mut loss, &mut |rows| {
                progress.inc(matrix.bytes * rows as u64 / num_rows.max(1) as u64);
            })?;
            if !is_vector {
                losses.borrow_mut().push(loss);
            }
            Ok(())
        };
        writer.made_tensor(&name, GgmlType::of(to), &dims, len, make);
    }
    if let Some(unused) = args.tensor.iter().zip(&used).find(|(_, used)| !**used) {
        bail!("--tensor {}: no matrix of `{}` has that in its name", unused.0.name, args.source);
    }
    let work = Work { path: &args.output, writer: &writer, losses: &losses, identity: source.identity(packing)? };
    let checked = |path: &Path| source.check(path);
    work.write(&progress, checked).with_context(|| format!("cannot write `{}`", args.output.display()))?;
    progress.finish_and_clear();
    let bytes_out = fs::metadata(&args.output)?.len();
    let losses = losses.borrow();
    let scores = eval_text.as_deref().map(|text| evaluate(args, text)).transpose()?;
    if let Some(path) = &args.receipt {
        let receipt = receipt(args, bytes_in, bytes_out, &losses, scores.as_ref());
        fs::write(path, receipt).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    output::stdout(&summary(args, bytes_in, bytes_out, &losses)?)?;
    if let Some(scores) = scores {
        output::stdout(&scores.as_text()?)?;
    }
    Ok(())
}

/// The text of `--eval-text`. Refuses a source that could not predict it before anything is written.
fn eval_text(file: &Path, source: &str) -> Result<String> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read `{}`", file.display()))?;
    let (checkpoint, name) = load::open(Some(source), true)?;
    load::plan_of(&checkpoint).with_context(|| format!("--eval-text: `{name}` cannot be computed"))?;
    Ok(text)
}

/// What was written and its source on a text, on the CPU.
fn evaluate(args: &QuantizeArgs, text: &str) -> Result<Scores> {
    let model_args = ModelArgs { ctx_size: args.eval_ctx_size, ..ModelArgs::on(load::CPU) };
    let output = args.output.to_str().context("--eval-text: the path of DST is not in UTF-8")?;
    eval::Task { text, chunks: args.eval_chunks, model_args: &model_args }
        .score(Some(output), Some(&args.source))
        .with_context(|| format!("`{output}` is written, but --eval-text could not be scored"))
}

/// Where `inspect` looks for the receipt of a file.
pub(crate) fn receipt_of(model: &Path) -> PathBuf {
    let mut path = model.as_os_str().to_owned();
    path.push(".receipt.json");
    path.into()
}

/// An error of the source, not of what is written: trying again does not help.
fn damaged(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// What a matrix becomes.
fn target(
    matrix: &Matrix,
    mix: Mix,
    model: Model,
    overrides: &[Override],
    used: &mut [bool],
) -> Result<Option<WeightFormat>> {
    let row_len = matrix.shape.last().copied().unwrap_or(0);
    let divides = |format: WeightFormat| row_len.is_multiple_of(format.block_len() as u64);
    let chosen = overrides.iter().zip(used).filter(|(chosen, _)| matrix.name.contains(&chosen.name));
    let chosen = chosen.map(|(chosen, used)| {
        *used = true;
        chosen.format
    });
    if let Some(chosen) = chosen.last() {
        if !divides(chosen) {
            bail!("--tensor: rows of `{}` have {row_len} weights, which do not divide into {chosen}", matrix.name);
        }
        return Ok(Some(chosen));
    }
    let format = mix.format_of(&matrix.name, model);
    Ok([format, WeightFormat::Q8_0, WeightFormat::F16].into_iter().find(|&format| divides(format)))
}

/// Writes `tensor` in `format`, piece by piece, and adds up what is lost; `done` hears of each so many rows.
fn convert(
    tensor: &Tensor,
    format: WeightFormat,
    packing: Packing,
    out: &mut dyn Write,
    loss: &mut Loss,
    done: &mut dyn FnMut(usize),
) -> io::Result<()> {
    let (rows, row_len) = (tensor.num_rows(), tensor.row_len());
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let of_thread = (PIECE_WEIGHTS / threads / row_len.max(1)).max(1);
    for first in (0..rows).step_by(of_thread * threads) {
        let last = (first + of_thread * threads).min(rows);
        let parts = thread::scope(|scope| {
            let start = |first: usize| {
                let rows = first..(first + of_thread).min(last);
                scope.spawn(move || convert_rows(tensor, format, packing, rows))
            };
            let parts: Vec<_> = (first..last).step_by(of_thread).map(start).collect();
            parts.into_iter().map(|part| part.join().map_err(|_| io::Error::other("a thread ended early"))?).collect()
        });
        let parts: io::Result<Vec<(Tensor, f64, f64, f32)>> = parts;
        for (packed, squares, lost, largest) in parts? {
            out.write_all(packed.bytes())?;
            (loss.squares, loss.lost) = (loss.squares + squares, loss.lost + lost);
            loss.largest = loss.largest.max(largest);
        }
        done(last - first);
    }
    Ok(())
}

/// Writes all of `tensor` in `format`.
fn convert_all(
    tensor: &Tensor,
    format: WeightFormat,
    packing: Packing,
    out: &mut dyn Write,
    loss: &mut Loss,
) -> io::Result<()> {
    convert(tensor, format, packing, out, loss, &mut |_| ())
}

/// Some rows in `format`, with Σ w², Σ of the squares of what is lost, and the most that one weight lost.
fn convert_rows(
    tensor: &Tensor,
    format: WeightFormat,
    packing: Packing,
    rows: std::ops::Range<usize>,
) -> io::Result<(Tensor, f64, f64, f32)> {
    let row_len = tensor.row_len();
    let mut values = vec![0f32; rows.len() * row_len];
    for (row, values) in rows.clone().zip(values.chunks_exact_mut(row_len.max(1))) {
        tensor.row_to_f32(row, values);
    }
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let at = rows.start * row_len + at;
        let value = values[at - rows.start * row_len];
        return Err(damaged(format!("weight {at} is {value}: the file is damaged")));
    }
    let packed = Tensor::packed(format, vec![rows.len(), row_len], &values, packing).map_err(damaged)?;
    let (mut squares, mut lost, mut largest) = (0.0, 0.0, 0f32);
    let mut back = vec![0f32; row_len];
    for (row, values) in values.chunks_exact(row_len.max(1)).enumerate() {
        packed.row_to_f32(row, &mut back);
        for (value, back) in values.iter().zip(&back) {
            let error = value - back;
            squares += f64::from(*value) * f64::from(*value);
            lost += f64::from(error) * f64::from(error);
            largest = largest.max(error.abs());
        }
    }
    Ok((packed, squares, lost, largest))
}

fn summary(args: &QuantizeArgs, bytes_in: u64, bytes_out: u64, losses: &[Loss]) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "{}: {} from {}", args.output.display(), units::bytes(bytes_out), units::bytes(bytes_in))?;
    for format in WeightFormat::ALL {
        let of_format: Vec<_> = losses.iter().filter(|loss| loss.to == format.name()).collect();
        let Some(worst) = of_format.iter().max_by(|a, b| a.relative().total_cmp(&b.relative())) else { continue };
        let (lost, squares) = of_format.iter().fold((0.0, 0.0), |(l, s), loss| (l + loss.lost, s + loss.squares));
        let all = if squares > 0.0 { f64::sqrt(lost / squares) } else { 0.0 };
        writeln!(
            out,
            "  {:<5} {} tensors, off by {:.3} % of their size, most in {} ({:.3} %)",
            format.name(),
            of_format.len(),
            100.0 * all,
            worst.name,
            100.0 * worst.relative()
        )?;
    }
    let already: std::collections::BTreeSet<_> =
        losses.iter().map(|loss| loss.from.as_str()).filter(|from| !["F32", "F16", "BF16"].contains(from)).collect();
    if !already.is_empty() {
        let already = already.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(out, "  the source has {already} already: what was lost then is not in these figures")?;
    }
    Ok(out)
}

fn receipt(args: &QuantizeArgs, bytes_in: u64, bytes_out: u64, losses: &[Loss], scores: Option<&Scores>) -> String {
    let tensors = losses.iter().map(|loss| {
        json!({
            "name": loss.name, "from": loss.from, "to": loss.to,
            "relative_rms_error": loss.relative(), "largest_error": loss.largest,
        })
    });
    let receipt = json!({
        "source": args.source, "output": args.output, "format": args.format.name(),
        "scales": if args.plain { "plain" } else { "searched" }, "bytes_in": bytes_in, "bytes_out": bytes_out,
        "evaluation": scores.map(Scores::as_json), "tensors": tensors.collect::<Vec<_>>(),
    });
    format!("{receipt:#}\n")
}
