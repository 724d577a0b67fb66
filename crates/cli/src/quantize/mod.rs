//! `hotmetal quantize`: a GGUF file with its matrices in another format, from a GGUF file or from safetensors; or a folder of
//! safetensors, from one.
//!
//! Tensors are read from the mapped file, converted a piece at a time on all cores and written as they come, so that memory
//! does not grow with the model. The file appears under its name when it is complete; one that was interrupted is continued
//! by the same command. The same input gives the same bytes.

mod convert;
mod folder;
mod importance;
pub(crate) mod mix;
pub(crate) mod on_load;
mod source;
mod work;

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::thread;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use formats::gguf::{Value, nvfp4};
use formats::{PackedLayout, gguf_names};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tensor::quant::{PackedBlock, Packing, nvfp4 as blocks};
use tensor::{Tensor, WeightFormat};

use crate::eval::{self, Scores};
use crate::load::device::{CPU, DeviceSettings};
use crate::load::facts::parse_weight_format;
use crate::load::find;
use crate::load::plan::plan_of;
use crate::load::sizes::CacheSettings;
use crate::model::settings::ModelSettings;
use crate::{files, output, units};
pub(crate) use folder::weight_bytes;
use importance::{Importances, Scales};
use mix::{MIXES, Mix, Model};
use source::{Beside, Matrix, Source, ggml_type, stored};
use work::Work;

/// Weights of a piece: 32 MiB as f32.
const PIECE_WEIGHTS: usize = 4 << 20;
/// The embeddings in GGUF files.
const EMBEDDINGS: &str = "token_embd.weight";
/// The source is a folder that says nothing of its vocabulary.
const NO_TOKENIZER: &str = "the model has no tokenizer.json (nor tekken.json, vocab.json with merges.txt, or \
                            tokenizer.model), which what is written takes its vocabulary from: put the one that was \
                            published with it beside the weights";
/// The version of block layouts that ggml has had since 2023.
const QUANTIZATION_VERSION: u32 = 2;

/// Write a GGUF file, or a folder of safetensors, with its matrices in another format, such as four bits
///
/// Vectors stay as they are (those of safetensors become F32, as GGUF has them). Rows that are no whole number of blocks of 256
/// become what has blocks of 32 and about as many bits (Q5_0 for Q4_K), or F16. At less than eight bits, the output matrix, which
/// often is the embeddings, too, becomes Q6_K; q2_k, q4_k_m and others give more bits to some layers; all as llama.cpp does it:
/// --tensor chooses otherwise. A file that was interrupted is continued by the same command.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// What to read: a .gguf or .safetensors file, a directory, or a cached ORG/REPO or ORG/REPO:FILE
    #[arg(value_name = "SRC")]
    source: String,

    /// What matrices become: q8_0, q6_k, q5_k, q4_k, q4_0 (or any other format), f16, or a mixture such as q4_k_m,
    /// q5_k_m, q3_k_m; of safetensors int4_g128 (or _g64, _g32, with _asym zero points), awq, int8, fp8, fp8_block, mxfp4,
    /// nvfp4, fp4_g64 (or _g32, _g128, _g256), or f16, bf16, f32
    #[arg(long, short = 'F', value_name = "FORMAT")]
    format: Format,

    /// The file to write, or the folder
    #[arg(long, short = 'o', value_name = "DST")]
    output: PathBuf,

    /// What to write [default: safetensors if FORMAT is theirs alone or DST is or ends like a folder, else gguf]
    #[arg(long, value_enum, value_name = "CONTAINER")]
    to: Option<Container>,

    /// Safetensors: the most bytes of weights in a file, with MB, GB, MiB or GiB
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard_size: ByteSize,

    /// Matrices whose name, in GGUF files or in checkpoints, contains NAME become FORMAT: attn_v, layers.3.mlp, lm_head (the
    /// embeddings, where they are the head); the last that fits counts; may be given several times
    #[arg(long, value_name = "NAME=FORMAT")]
    tensor: Vec<Override>,

    /// Take the scale at which the largest weight of a block just fits, and do not search for the one that loses least:
    /// faster
    #[arg(long)]
    plain: bool,

    /// Weigh what weights lose by how much the features count that they are multiplied with, as this importance matrix of
    /// llama.cpp's says (a file of `llama-imatrix`, GGUF or the older .dat): better, most of all below five bits
    #[arg(long, value_name = "FILE", conflicts_with = "plain")]
    imatrix: Option<PathBuf>,

    /// As --imatrix, with the importance that SRC gives to features when it predicts this text, on the CPU
    #[arg(long, value_name = "FILE", conflicts_with_all = ["plain", "imatrix"])]
    imatrix_text: Option<PathBuf>,

    /// Keep the importance of --imatrix-text in this file, for --imatrix here or in llama.cpp
    #[arg(long, value_name = "FILE", requires = "imatrix_text")]
    imatrix_out: Option<PathBuf>,

    /// Tokens in a window of --imatrix-text [default: 512]
    #[arg(long, value_name = "N", requires = "imatrix_text")]
    imatrix_ctx_size: Option<usize>,

    /// Windows of --imatrix-text at most [default: all]
    #[arg(long, value_name = "N", requires = "imatrix_text")]
    imatrix_chunks: Option<usize>,

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

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Container {
    /// One file.
    Gguf,
    /// A folder, as Hugging Face has it.
    Safetensors,
}

/// What `--format` names: a mixture of GGUF's types, a layout of safetensors, or both.
#[derive(Clone, Copy, Debug)]
struct Format {
    mix: Option<Mix>,
    layout: Option<PackedLayout>,
}

impl Format {
    fn name(self) -> &'static str {
        let of_layout = self.layout.map_or("", PackedLayout::name);
        self.mix.map_or(of_layout, Mix::name)
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (mix, layout) = (name.parse::<Mix>().ok(), PackedLayout::from_name(name));
        if mix.is_none() && layout.is_none() {
            let (mixes, layouts) =
                (MIXES.map(Mix::name).join(", "), PackedLayout::ALL.map(PackedLayout::name).join(", "));
            return Err(format!("expected one of {mixes}; or, for safetensors, {layouts}"));
        }
        Ok(Self { mix, layout })
    }
}

/// What matrices of safetensors become.
#[derive(Clone, Copy, Debug)]
enum Target {
    Plain(WeightFormat),
    Packed(PackedLayout),
}

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
struct ByteSize(u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("GB", 1_000_000_000), ("MB", 1_000_000)];
        let (number, unit) =
            units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit))).unwrap_or((text, 1));
        let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
        let bytes = bytes.filter(|&bytes| bytes > 0);
        bytes.map(Self).ok_or_else(|| "expected a size, for example 5GB or 500MiB".to_owned())
    }
}

impl QuantizeArgs {
    /// What safetensors are to hold; `None` for a GGUF file. Refuses formats that the container does not have.
    fn target(&self) -> Result<Option<Target>> {
        let Format { mix, layout } = self.format;
        let is_folder = self.output.is_dir() || self.output.to_string_lossy().ends_with(std::path::MAIN_SEPARATOR);
        let to = self.to.unwrap_or(match mix.is_none() || is_folder {
            true => Container::Safetensors,
            false => Container::Gguf,
        });
        let layouts = || PackedLayout::ALL.map(PackedLayout::name).join(", ");
        let plain = mix.map(|mix| mix.base).filter(|base| !base.is_quantized());
        match (to, mix, layout, plain) {
            (Container::Gguf, Some(_), ..) => Ok(None),
            (Container::Gguf, None, ..) => bail!(
                "`{}` is no type of GGUF (`int4_g32` is its q4_0, `int8_g32` its q8_0): choose one of {}, or --to safetensors",
                self.format.name(),
                MIXES.map(Mix::name).join(", "),
            ),
            (Container::Safetensors, _, Some(layout), _) => Ok(Some(Target::Packed(layout))),
            (Container::Safetensors, _, None, Some(base)) => Ok(Some(Target::Plain(base))),
            (Container::Safetensors, ..) => bail!(
                "`{}` has no published layout of safetensors: choose one of {}, f16, bf16 or f32, or write a GGUF file \
                 (-o NAME.gguf)",
                self.format.name(),
                layouts(),
            ),
        }
    }
}

/// What was written.
struct Written {
    bytes_in: u64,
    bytes_out: u64,
    losses: Vec<Loss>,
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

impl Override {
    /// Whether it means the matrix with this GGUF name, by that or by the checkpoint's. A model without a head of its own has
    /// one matrix for both, which is meant by the names of either.
    fn is_of(&self, gguf_name: &str, is_tied: bool) -> bool {
        let means = |name: &str| name.contains(&self.name);
        let is_head = is_tied && gguf_name == EMBEDDINGS;
        means(gguf_name) || means(&gguf_names::checkpoint_name(gguf_name)) || is_head && means("lm_head.weight")
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
    /// Whether scales were chosen by importance.
    #[serde(default)]
    weighted: bool,
}

impl Loss {
    fn none(name: &str, from: &str, to: &str) -> Self {
        let (name, from, to) = (name.to_owned(), from.to_owned(), to.to_owned());
        Self { name, from, to, squares: 0.0, lost: 0.0, largest: 0.0, weighted: false }
    }

    /// Adds what became of some weights.
    fn add(&mut self, values: &[f32], back: &[f32]) {
        for (value, back) in values.iter().zip(back) {
            let error = value - back;
            self.squares += f64::from(*value) * f64::from(*value);
            self.lost += f64::from(error) * f64::from(error);
            self.largest = self.largest.max(error.abs());
        }
    }

    /// Adds what `part` lost.
    fn merge(&mut self, part: &Self) {
        (self.squares, self.lost) = (self.squares + part.squares, self.lost + part.lost);
        self.largest = self.largest.max(part.largest);
    }

    /// The root of the mean square that was lost, relative to that of the weights.
    fn relative(&self) -> f64 {
        if self.squares > 0.0 { (self.lost / self.squares).sqrt() } else { 0.0 }
    }
}

/// Runs `hotmetal quantize`.
pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    let target = args.target()?;
    if args.output.exists() && !args.force {
        bail!("`{}` exists; --force replaces it", args.output.display());
    }
    let same = fs::canonicalize(&args.source).ok().zip(fs::canonicalize(&args.output).ok());
    if same.is_some_and(|(source, output)| source == output) {
        bail!("`{}` cannot be read and replaced at a time: choose another -o", args.source);
    }
    let eval_text = args.eval_text.as_deref().map(|file| eval_text(file, &args.source)).transpose()?;
    let mut importance = Importances::of(args)?;
    let written = match (target, args.format.mix) {
        (Some(target), _) => folder::write(args, target, &mut importance)?,
        (None, Some(mix)) => write_gguf(args, mix, &mut importance)?,
        (None, None) => bail!("`{}` is no type of GGUF", args.format.name()),
    };
    let scores = eval_text.as_deref().map(|text| evaluate(args, text)).transpose()?;
    if let Some(path) = &args.receipt {
        let receipt = receipt(args, &written, &importance, scores.as_ref());
        files::write(path, receipt.as_bytes())?;
    }
    output::stdout(&summary(args, &written)?)?;
    if let Some(scores) = scores {
        output::stdout(&scores.as_text()?)?;
    }
    Ok(())
}

fn progress_bar(bytes: u64) -> ProgressBar {
    ProgressBar::new(bytes).with_style(
        ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes}, {eta} left, {msg}").expect("a valid template"),
    )
}

/// Writes a GGUF file.
fn write_gguf(args: &QuantizeArgs, mix: Mix, importance: &mut Importances) -> Result<Written> {
    let source = Source::open(&args.source, mix.base)?;
    let matrices = source.matrices()?;
    let bytes_in: u64 = matrices.iter().map(|matrix| matrix.bytes).sum();
    let progress = progress_bar(bytes_in);
    let mut writer = source.metadata(&args.source)?;
    writer.set_metadata("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
    writer.set_metadata("general.file_type", Value::U32(mix.file_type));
    importance.write_metadata(args, &mut writer);
    let losses = Rc::new(RefCell::new(Vec::new()));
    let mut used = vec![false; args.tensor.len()];
    let rows = |matrix: &Matrix| (matrix.name.clone(), matrix.shape.first().copied().unwrap_or(0));
    let model = Model::of(matrices.iter().map(rows), importance.is_given());
    for matrix in matrices {
        let is_vector = matrix.shape.len() < 2;
        let to = match is_vector {
            true => source.vector_format(),
            false => target(&matrix, mix, model, &args.tensor, &mut used)?,
        };
        let dims: Vec<u64> = matrix.shape.iter().rev().copied().collect();
        let (progress, source, losses) = (progress.clone(), source.clone(), losses.clone());
        let name = matrix.name.clone();
        let Some(to) = to.filter(|&format| !source.has(&matrix, format)) else {
            // As it is.
            let (ggml_type, len) = matrix.kept()?;
            let beside = source.beside(&matrix)?;
            let make = move |out: &mut dyn Write| {
                write_and_release(&source.bytes(&matrix).map_err(damaged)?, out)?;
                progress.inc(matrix.bytes);
                Ok(())
            };
            writer.made_tensor(&name, ggml_type, &dims, len, make);
            for Beside { name, ggml_type, dims, bytes } in beside {
                writer.raw_tensor(&name, ggml_type, &dims, bytes);
            }
            continue;
        };
        // Refused now, and not when half of the file is written.
        let (ggml_type, len) = stored(to, &matrix.name, &matrix.shape)?;
        if matrix.format.is_none() {
            source.tensor(&matrix)?;
        }
        // Q8_0 has nothing to choose.
        let chooses = to.is_quantized() && to != WeightFormat::Q8_0;
        let weighted = if is_vector { None } else { importance.scales(&matrix, chooses)? };
        let scales = weighted.unwrap_or(if args.plain { Scales::Plain } else { Scales::Searched });
        // Read when its turn comes: some are decoded then, and one tensor at a time is enough.
        let scale = Rc::new(MatrixScale::default());
        if to == WeightFormat::NVFP4 {
            // Before the matrix: it is needed there, and is a number.
            let (source, matrix, scale) = (source.clone(), matrix.clone(), scale.clone());
            let make = move |out: &mut dyn Write| {
                let found = scale.of(|| source.tensor(&matrix).map_err(damaged))?;
                out.write_all(&found.to_le_bytes())
            };
            writer.made_tensor(&nvfp4::scale_name(&name), source::ggml_type(WeightFormat::F32)?, &[1], 4, make);
        }
        let make = move |out: &mut dyn Write| {
            progress.set_message(matrix.name.clone());
            let tensor = source.tensor(&matrix).map_err(damaged)?;
            let mut loss = Loss::none(&matrix.name, matrix.type_name, to.name());
            loss.weighted = matches!(scales, Scales::Weighted { .. }) && to.is_quantized();
            let num_rows = tensor.num_rows();
            let unit = if to == WeightFormat::NVFP4 { scale.of(|| Ok(tensor.clone()))? } else { 1.0 };
            convert(&tensor, to, unit, &scales, out, &mut loss, &mut |rows| {
                progress.inc(matrix.bytes * rows as u64 / num_rows.max(1) as u64);
            })?;
            if !is_vector {
                losses.borrow_mut().push(loss);
            }
            Ok(())
        };
        writer.made_tensor(&name, ggml_type, &dims, len, make);
    }
    if let Some(unused) = args.tensor.iter().zip(&used).find(|(_, used)| !**used) {
        bail!("--tensor {}: no matrix of `{}` has that in its name", unused.0.name, args.source);
    }
    importance.check(&args.source)?;
    let identity = source.identity(&importance.identity(args))?;
    let work = Work { path: &args.output, writer: &writer, losses: &losses, identity, is_part: false };
    let checked = |path: &Path| source.check(path);
    work.write(&progress, checked).with_context(|| format!("cannot write `{}`", args.output.display()))?;
    progress.finish_and_clear();
    let bytes_out = fs::metadata(&args.output)?.len();
    let losses = losses.borrow().clone();
    Ok(Written { bytes_in, bytes_out, losses })
}

/// The text of `--eval-text`. Refuses a source that could not predict it before anything is written.
fn eval_text(file: &Path, source: &str) -> Result<String> {
    let text = files::read_text(file, "", files::TEXT_BYTES_MAX)?;
    let (checkpoint, name) = find::open(Some(source), true)?;
    plan_of(&checkpoint).with_context(|| format!("--eval-text: `{name}` cannot be computed"))?;
    Ok(text)
}

/// What was written and its source on a text, on the CPU.
fn evaluate(args: &QuantizeArgs, text: &str) -> Result<Scores> {
    let cache = CacheSettings { ctx_size: args.eval_ctx_size, format: None };
    let settings = ModelSettings { cache, ..ModelSettings::on(DeviceSettings::on(CPU)) };
    let output = args.output.to_str().context("--eval-text: the path of DST is not in UTF-8")?;
    eval::Task { text, chunks: args.eval_chunks, settings: &settings }
        .score(Some(output), Some(&args.source))
        .with_context(|| format!("`{output}` is written, but --eval-text could not be scored"))
}

/// Where `inspect` looks for the receipt of a file or folder.
pub(crate) fn receipt_of(model: &Path) -> PathBuf {
    // Without the slash that may end a folder's name.
    let mut path = model.components().collect::<PathBuf>().into_os_string();
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
    let chosen = overrides.iter().zip(used).filter(|(chosen, _)| chosen.is_of(&matrix.name, model.is_tied()));
    let chosen = chosen.map(|(chosen, used)| {
        *used = true;
        chosen.format
    });
    if let Some(chosen) = chosen.last() {
        ggml_type(chosen).context("--tensor")?;
        if chosen == WeightFormat::NVFP4 && !may_be_nvfp4(matrix) {
            bail!(
                "--tensor: llama.cpp knows no scale of `{}`, which NVFP4 has beside a matrix: choose mxfp4 or q4_k",
                matrix.name
            );
        }
        if !divides(chosen) {
            bail!("--tensor: rows of `{}` have {row_len} weights, which do not divide into {chosen}", matrix.name);
        }
        return Ok(Some(chosen));
    }
    let format = mix.format_of_rows(&matrix.name, model, usize::try_from(row_len)?);
    Ok(format.map(|format| match format {
        WeightFormat::NVFP4 if !may_be_nvfp4(matrix) => WeightFormat::Q8_0,
        other => other,
    }))
}

/// Whether llama.cpp looks for a scale beside this matrix: one of a projection; embeddings are looked up without, and experts
/// have one each, which are not written.
fn may_be_nvfp4(matrix: &Matrix) -> bool {
    let is_known = gguf_names::checkpoint_name(&matrix.name) != matrix.name;
    is_known && matrix.name != EMBEDDINGS && matrix.shape.len() == 2
}

/// The scale of a matrix in NVFP4, which two tensors need.
#[derive(Default)]
struct MatrixScale(Cell<Option<f32>>);

impl MatrixScale {
    /// It, found by reading the matrix once more where it is not known.
    fn of(&self, tensor: impl FnOnce() -> io::Result<Tensor>) -> io::Result<f32> {
        if let Some(found) = self.0.get() {
            return Ok(found);
        }
        let found = matrix_scale(&tensor()?)?;
        self.0.set(Some(found));
        Ok(found)
    }
}

/// What all scales of a matrix are multiplied by in NVFP4: its own, if it is that already.
fn matrix_scale(tensor: &Tensor) -> io::Result<f32> {
    match tensor.format() {
        // Of one matrix, all blocks have the same.
        WeightFormat::NVFP4 => Ok(tensor.as_slice::<blocks::Block>().first().map_or(1.0, |block| block.scale)),
        _ => largest(tensor).map(blocks::matrix_scale),
    }
}

/// Writes `tensor` as a GGUF file has `format`, piece by piece, and adds up what is lost; `done` hears of each so many rows. `unit`
/// is what all scales are multiplied by in NVFP4: [`matrix_scale`].
fn convert(
    tensor: &Tensor,
    format: WeightFormat,
    unit: f32,
    scales: &Scales,
    out: &mut dyn Write,
    loss: &mut Loss,
    done: &mut dyn FnMut(usize),
) -> io::Result<()> {
    let row_len = tensor.row_len();
    let pack = |rows: Range<usize>, packing: Packing<'_>| {
        let values = values(tensor, rows.clone())?;
        if format == WeightFormat::NVFP4 {
            let in_row = row_len / blocks::BLOCK_LEN;
            let of_rows = rows.start * in_row..rows.end * in_row;
            return Ok(match tensor.format() {
                WeightFormat::NVFP4 => (in_file(&tensor.as_slice()[of_rows]), exact(&values)),
                _ => pack_nvfp4(&values, row_len, unit, packing),
            });
        }
        let packed = Tensor::packed(format, vec![rows.len(), row_len], &values, packing).map_err(damaged)?;
        let (mut lost, mut back) = (Loss::none("", "", ""), vec![0f32; row_len]);
        for (row, values) in values.chunks_exact(row_len.max(1)).enumerate() {
            packed.row_to_f32(row, &mut back);
            lost.add(values, &back);
        }
        Ok((packed.bytes().clone(), lost))
    };
    in_pieces(tensor, scales, 1, pack, &mut |(packed, lost), rows| {
        out.write_all(&packed)?;
        loss.merge(&lost);
        done(rows);
        Ok(())
    })
}

/// Blocks of NVFP4 as a GGUF file has them.
fn in_file(blocks: &[blocks::Block]) -> Bytes {
    blocks.iter().flat_map(nvfp4::to_file).collect::<Vec<u8>>().into()
}

/// What is lost where everything stays what it is.
fn exact(values: &[f32]) -> Loss {
    let mut lost = Loss::none("", "", "");
    lost.add(values, values);
    lost
}

/// Rows in NVFP4 with this scale, as a GGUF file has them, and what they lost.
fn pack_nvfp4(values: &[f32], row_len: usize, unit: f32, packing: Packing<'_>) -> (Bytes, Loss) {
    let (mut packed, mut lost) = (Vec::new(), Loss::none("", "", ""));
    let mut back = [0f32; blocks::BLOCK_LEN];
    for row in values.chunks_exact(row_len.max(1)) {
        for (start, weights) in (0..).step_by(blocks::BLOCK_LEN).zip(row.chunks_exact(blocks::BLOCK_LEN)) {
            let packing = match packing {
                Packing::Weighted(importance) => Packing::Weighted(&importance[start..start + blocks::BLOCK_LEN]),
                other => other,
            };
            let block = blocks::pack(weights, unit, packing);
            block.unpack(&mut back);
            lost.add(weights, &back);
            packed.push(block);
        }
    }
    (in_file(&packed), lost)
}

/// The largest magnitude of a tensor.
fn largest(tensor: &Tensor) -> io::Result<f32> {
    let mut most = 0f32;
    let of_rows = |rows: Range<usize>, _: Packing<'_>| {
        Ok(values(tensor, rows)?.into_iter().fold(0f32, |most, value| most.max(value.abs())))
    };
    in_pieces(tensor, &Scales::Plain, 1, of_rows, &mut |of_rows, _| {
        most = most.max(of_rows);
        Ok(())
    })?;
    Ok(most)
}

/// Has all cores pack a tensor, some rows each at a time, whole multiples of `together` but for the last; `write` is given what
/// they made, in order, with the number of rows.
fn in_pieces<T: Send>(
    tensor: &Tensor,
    scales: &Scales,
    together: usize,
    pack: impl Fn(Range<usize>, Packing<'_>) -> io::Result<T> + Sync,
    write: &mut dyn FnMut(T, usize) -> io::Result<()>,
) -> io::Result<()> {
    let (rows_in_all, row_len) = (tensor.num_rows(), tensor.row_len());
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    // Fewer of them where the rows that belong together are many weights: memory is for a piece, not for as many as there are cores.
    let threads = threads.min(PIECE_WEIGHTS / (together * row_len).max(1)).max(1);
    let of_thread = (PIECE_WEIGHTS / threads / row_len.max(1) / together * together).max(together);
    // A piece has one importance: where a tensor has several matrices, it ends with each.
    let alike = scales.rows_alike(rows_in_all);
    let pieces = (0..rows_in_all).step_by(alike).flat_map(|start| {
        let end = (start + alike).min(rows_in_all);
        (start..end).step_by(of_thread * threads).map(move |first| (first, (first + of_thread * threads).min(end)))
    });
    let pack = &pack;
    thread::scope(|scope| {
        let start = |first: usize, last: usize| {
            let start = |first: usize| {
                let rows = first..(first + of_thread).min(last);
                let (len, packing) = (rows.len(), scales.packing(first, rows_in_all, row_len));
                (scope.spawn(move || pack(rows, packing)), len)
            };
            (first..last).step_by(of_thread).map(start).collect::<Vec<_>>()
        };
        // One piece is written while the next is packed.
        let mut packed = None;
        for piece in pieces.map(Some).chain([None]) {
            let next = piece.map(|(first, last)| (start(first, last), first..last));
            if let Some((parts, of)) = std::mem::replace(&mut packed, next) {
                for (part, len) in parts {
                    write(part.join().map_err(|_| io::Error::other("a thread ended early"))??, len)?;
                }
                // Pages of the source that were read are not needed again.
                mapped::release(&tensor.bytes()[of.start * tensor.row_bytes()..of.end * tensor.row_bytes()]);
            }
        }
        Ok(())
    })
}

/// Writes bytes of a source, and lets go of them on the way.
fn write_and_release(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for piece in bytes.chunks(PIECE_WEIGHTS) {
        out.write_all(piece)?;
        mapped::release(piece);
    }
    Ok(())
}

/// Some rows as f32. Refuses weights that are no numbers.
fn values(tensor: &Tensor, rows: Range<usize>) -> io::Result<Vec<f32>> {
    let row_len = tensor.row_len();
    let mut values = vec![0f32; rows.len() * row_len];
    for (row, values) in rows.clone().zip(values.chunks_exact_mut(row_len.max(1))) {
        tensor.row_to_f32(row, values);
    }
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (value, at) = (values[at], rows.start * row_len + at);
        return Err(damaged(format!("weight {at} is {value}: the file is damaged")));
    }
    Ok(values)
}

fn summary(args: &QuantizeArgs, written: &Written) -> Result<String> {
    let Written { bytes_in, bytes_out, losses } = written;
    let mut out = String::new();
    writeln!(out, "{}: {} from {}", args.output.display(), units::bytes(*bytes_out), units::bytes(*bytes_in))?;
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
    let already: std::collections::BTreeSet<_> =
        losses.iter().map(|loss| loss.from.as_str()).filter(|from| !["F32", "F16", "BF16"].contains(from)).collect();
    if !already.is_empty() {
        let already = already.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(out, "  the source has {already} already: what was lost then is not in these figures")?;
    }
    Ok(out)
}

fn receipt(args: &QuantizeArgs, written: &Written, importance: &Importances, scores: Option<&Scores>) -> String {
    let Written { bytes_in, bytes_out, losses } = written;
    let tensors = losses.iter().map(|loss| {
        json!({
            "name": loss.name, "from": loss.from, "to": loss.to,
            "relative_rms_error": loss.relative(), "largest_error": loss.largest,
            "weighted": loss.weighted,
        })
    });
    let receipt = json!({
        "source": args.source, "output": args.output, "format": args.format.name(),
        "scales": if args.plain { "plain" } else { "searched" }, "importance": importance.about(),
        "bytes_in": bytes_in, "bytes_out": bytes_out,
        "evaluation": scores.map(Scores::as_json), "tensors": tensors.collect::<Vec<_>>(),
    });
    format!("{receipt:#}\n")
}
