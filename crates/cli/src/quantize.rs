//! `hotmetal quantize`: a GGUF file with its matrices in another format.
//!
//! Tensors are read from the mapped file, converted a piece at a time on all cores and written as they come, so that memory does not
//! grow with the model. The file appears under its name when it is complete. The same input gives the same bytes.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::thread;

use anyhow::{Context, Result, bail};
use clap::Args;
use formats::gguf::{GgmlType, Gguf, GgufTensor, GgufWriter, Value};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use tensor::{Tensor, WeightFormat};

use crate::load::parse_weight_format;
use crate::{output, units};

/// Weights of a piece: 32 MiB as f32.
const PIECE_WEIGHTS: usize = 8 << 20;
/// The version of block layouts that ggml has had since 2023.
const QUANTIZATION_VERSION: u32 = 2;

/// Write a GGUF file with its matrices in another format, such as four bits
///
/// Vectors stay as they are. Rows that are no whole number of blocks become Q8_0, or F16. At less than six bits, the embeddings and
/// the output matrix become Q6_K (Q8_0 where that does not divide): --tensor chooses otherwise.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// The .gguf file to read
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// What matrices become: q8_0, q6_k, q4_k, q4_0, f16, bf16 or f32
    #[arg(long, short = 'F', value_name = "FORMAT", value_parser = parse_weight_format)]
    format: WeightFormat,

    /// The file to write
    #[arg(long, short = 'o', value_name = "DST")]
    output: PathBuf,

    /// Tensors whose name contains NAME become FORMAT; the last that fits counts; may be given several times
    #[arg(long, value_name = "NAME=FORMAT")]
    tensor: Vec<Override>,

    /// Write what every tensor lost to this file, as JSON
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,

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
#[derive(Clone, Debug)]
struct Loss {
    name: String,
    from: &'static str,
    to: WeightFormat,
    /// Σ w², and Σ of the squares of what was lost.
    squares: f64,
    lost: f64,
    largest: f32,
}

impl Loss {
    /// The root of the mean square that was lost, relative to that of the weights.
    fn relative(&self) -> f64 {
        if self.squares > 0.0 { (self.lost / self.squares).sqrt() } else { 0.0 }
    }
}

/// Runs `hotmetal quantize`.
pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    let source = &args.source;
    if source.is_dir() || source.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors")) {
        bail!("`{}` is no GGUF file, and only those can be read here so far", source.display());
    }
    if args.output.exists() && !args.force {
        bail!("`{}` exists; --force replaces it", args.output.display());
    }
    let same = fs::canonicalize(source).ok().zip(fs::canonicalize(&args.output).ok());
    if same.is_some_and(|(source, output)| source == output) {
        bail!("`{}` cannot be read and replaced at a time: choose another -o", source.display());
    }
    let read = || format!("cannot read `{}`", source.display());
    let gguf = Rc::new(Gguf::read(mapped::map(source).with_context(read)?).with_context(read)?);
    let bytes_in: u64 = gguf.tensors().iter().map(|info| info.range().len()).sum();
    let progress = ProgressBar::new(bytes_in).with_style(
        ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {eta} left, {msg}").expect("a valid template"),
    );
    let losses = Rc::new(RefCell::new(Vec::new()));
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        writer.metadata(key, value.clone());
    }
    writer.set_metadata("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    if let Some(file_type) = file_type(args.format) {
        writer.set_metadata("general.file_type", Value::U32(file_type));
    }
    let mut used = vec![false; args.tensor.len()];
    for info in gguf.tensors() {
        let to = target(info, args.format, &args.tensor, &mut used)?;
        let (progress, len_in) = (progress.clone(), info.range().len());
        if to.is_none_or(|format| format.name() == info.ggml_type().name()) {
            let bytes = gguf.tensor_bytes(info)?;
            let make = move |out: &mut dyn Write| {
                out.write_all(&bytes)?;
                progress.inc(len_in);
                Ok(())
            };
            writer.made_tensor(info.name(), info.ggml_type(), info.dims(), len_in, make);
            continue;
        }
        let Some(to) = to else { continue };
        // Refused now, and not when half of the file is written.
        let shape = info.shape().into_iter().map(usize::try_from).collect::<Result<Vec<_>, _>>()?;
        let len = Tensor::byte_len(to, &shape)? as u64;
        if info.ggml_type().weight_format().is_none() {
            gguf.read_tensor(info)?;
        }
        // Read when its turn comes: some types are expanded then, and one tensor at a time is enough.
        let gguf = gguf.clone();
        let (losses, name, from) = (losses.clone(), info.name().to_owned(), info.ggml_type().name());
        let make = move |out: &mut dyn Write| {
            progress.set_message(name.clone());
            let tensor = gguf.tensor(&name).map_err(io::Error::other)?;
            let mut loss = Loss { name: name.clone(), from, to, squares: 0.0, lost: 0.0, largest: 0.0 };
            let num_rows = tensor.num_rows();
            convert(&tensor, to, out, &mut loss, &mut |rows| {
                progress.inc(len_in * rows as u64 / num_rows.max(1) as u64);
            })?;
            losses.borrow_mut().push(loss);
            Ok(())
        };
        writer.made_tensor(info.name(), GgmlType::of(to), info.dims(), len, make);
    }
    if let Some(unused) = args.tensor.iter().zip(&used).find(|(_, used)| !**used) {
        bail!("--tensor {}: no matrix of `{}` has that in its name", unused.0.name, source.display());
    }
    write_file(&args.output, &writer).with_context(|| format!("cannot write `{}`", args.output.display()))?;
    progress.finish_and_clear();
    let bytes_out = fs::metadata(&args.output)?.len();
    let losses = losses.borrow();
    if let Some(path) = &args.receipt {
        let receipt = receipt(args, bytes_in, bytes_out, &losses);
        fs::write(path, receipt).with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    output::stdout(&summary(args, bytes_in, bytes_out, &losses)?)?;
    Ok(())
}

/// What a tensor becomes; `None` keeps it.
fn target(
    info: &GgufTensor,
    format: WeightFormat,
    overrides: &[Override],
    used: &mut [bool],
) -> Result<Option<WeightFormat>> {
    let shape = info.shape();
    if shape.len() < 2 {
        return Ok(None);
    }
    let row_len = shape.last().copied().unwrap_or(0);
    let divides = |format: WeightFormat| row_len.is_multiple_of(format.block_len() as u64);
    let chosen = overrides.iter().zip(used).filter(|(chosen, _)| info.name().contains(&chosen.name));
    let chosen = chosen.map(|(chosen, used)| {
        *used = true;
        chosen.format
    });
    if let Some(chosen) = chosen.last() {
        if !divides(chosen) {
            bail!("--tensor: rows of `{}` have {row_len} weights, which do not divide into {chosen}", info.name());
        }
        return Ok(Some(chosen));
    }
    // As in llama.cpp: what every token passes through keeps more.
    let is_end = ["token_embd.weight", "output.weight"].contains(&info.name());
    let format = match format {
        WeightFormat::Q4_0 | WeightFormat::Q4_K if is_end => WeightFormat::Q6_K,
        format => format,
    };
    Ok([format, WeightFormat::Q8_0, WeightFormat::F16].into_iter().find(|&format| divides(format)))
}

/// The number that llama.cpp gives a file of mostly this format.
fn file_type(format: WeightFormat) -> Option<u32> {
    match format {
        WeightFormat::F32 => Some(0),
        WeightFormat::F16 => Some(1),
        WeightFormat::Q4_0 => Some(2),
        WeightFormat::Q8_0 => Some(7),
        // Q4_K_S: of one mixture.
        WeightFormat::Q4_K => Some(14),
        WeightFormat::Q6_K => Some(18),
        WeightFormat::BF16 => Some(32),
        _ => None,
    }
}

/// Writes `tensor` in `format`, piece by piece, and adds up what is lost; `done` hears of each so many rows.
fn convert(
    tensor: &Tensor,
    format: WeightFormat,
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
                scope.spawn(move || convert_rows(tensor, format, rows))
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

/// Some rows in `format`, with Σ w², Σ of the squares of what is lost, and the most that one weight lost.
fn convert_rows(
    tensor: &Tensor,
    format: WeightFormat,
    rows: std::ops::Range<usize>,
) -> io::Result<(Tensor, f64, f64, f32)> {
    let row_len = tensor.row_len();
    let mut values = vec![0f32; rows.len() * row_len];
    for (row, values) in rows.clone().zip(values.chunks_exact_mut(row_len.max(1))) {
        tensor.row_to_f32(row, values);
    }
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let at = rows.start * row_len + at;
        return Err(io::Error::other(format!(
            "weight {at} is {}: the file is damaged",
            values[at - rows.start * row_len]
        )));
    }
    let packed = Tensor::from_f32(format, vec![rows.len(), row_len], &values).map_err(io::Error::other)?;
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

/// Writes beside `path` first: a file that is cut off never has its name.
fn write_file(path: &Path, writer: &GgufWriter) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).context("it has no file name")?;
    let partial = folder.join(format!(".{name}.partial"));
    let written = (|| -> Result<()> {
        let mut out = BufWriter::with_capacity(1 << 20, fs::File::create(&partial)?);
        writer.write_to(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&partial, path)?;
        Ok(())
    })();
    if written.is_err() {
        // Best effort: the error that matters is the one above.
        let _ = fs::remove_file(&partial);
    }
    written
}

fn summary(args: &QuantizeArgs, bytes_in: u64, bytes_out: u64, losses: &[Loss]) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "{}: {} from {}", args.output.display(), units::bytes(bytes_out), units::bytes(bytes_in))?;
    for format in WeightFormat::ALL {
        let of_format: Vec<_> = losses.iter().filter(|loss| loss.to == format).collect();
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
        losses.iter().map(|loss| loss.from).filter(|from| !["F32", "F16", "BF16"].contains(from)).collect();
    if !already.is_empty() {
        let already = already.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(out, "  the source has {already} already: what was lost then is not in these figures")?;
    }
    Ok(out)
}

fn receipt(args: &QuantizeArgs, bytes_in: u64, bytes_out: u64, losses: &[Loss]) -> String {
    let tensors = losses.iter().map(|loss| {
        json!({
            "name": loss.name, "from": loss.from, "to": loss.to.name(),
            "relative_rms_error": loss.relative(), "largest_error": loss.largest,
        })
    });
    let receipt = json!({
        "source": args.source, "output": args.output, "format": args.format.name(), "bytes_in": bytes_in, "bytes_out": bytes_out,
        "tensors": tensors.collect::<Vec<_>>(),
    });
    format!("{receipt:#}\n")
}
