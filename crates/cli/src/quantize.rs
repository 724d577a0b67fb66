//! `hotmetal quantize`: a GGUF file with its matrices in another format, from a GGUF file or from safetensors; or a
//! folder of safetensors, from one. The work is done in `packing`.
//!
//! The file appears under its name when it is complete; one that was interrupted is continued by the same command.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use formats::PackedLayout;

use crate::eval::{self, Scores};
use crate::load::device::{CPU, DeviceSettings};
use crate::load::find;
use crate::load::plan::plan_of;
use crate::load::sizes::CacheSettings;
use crate::model::settings::ModelSettings;
use crate::packing::importance::{ImportanceSettings, ImportanceSource, Importances};
use crate::packing::job::{FormatOverride, PackingJob, SafetensorsTarget};
use crate::packing::mix::{MIXES, Mix};
use crate::packing::receipt::{receipt, summary};
use crate::packing::{folder, gguf};
use crate::{files, output};

/// Write a GGUF file, or a folder of safetensors, with its matrices in another format, such as four bits
///
/// Vectors stay as they are (those of safetensors become F32, as GGUF has them). Rows that are no whole number of
/// blocks of 256 become what has blocks of 32 and about as many bits (Q5_0 for Q4_K), or F16. At less than eight bits,
/// the output matrix, which often is the embeddings, too, becomes Q6_K; q2_k, q4_k_m and others give more bits to some
/// layers, and others to attention beside eight experts; all as llama.cpp does it: --tensor chooses otherwise. What
/// chooses experts becomes F32, and experts are read and written one after another. A file that was interrupted is
/// continued by the same command.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// What to read: a .gguf or .safetensors file, a directory, or a cached ORG/REPO or ORG/REPO:FILE
    #[arg(value_name = "SRC")]
    source: String,

    /// What matrices become: q8_0, q6_k, q5_k, q4_k, q4_0 (or any other format), f16, or a mixture such as q4_k_m,
    /// q5_k_m, q3_k_m; of safetensors int4_g128 (or _g64, _g32, with _asym zero points), awq, int8, fp8, fp8_block,
    /// mxfp4, nvfp4, fp4_g64 (or _g32, _g128, _g256), or f16, bf16, f32
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

    /// Matrices whose name, in GGUF files or in checkpoints, contains NAME become FORMAT: attn_v, layers.3.mlp, lm_head
    /// (the embeddings, where they are the head), experts; the last that fits counts; may be given several times
    #[arg(long, value_name = "NAME=FORMAT")]
    tensor: Vec<FormatOverride>,

    /// Take the scale at which the largest weight of a block just fits, and do not search for the one that loses least:
    /// faster
    #[arg(long)]
    plain: bool,

    /// Weigh what weights lose by how much the features count that they are multiplied with, as this importance matrix
    /// of llama.cpp's says (a file of `llama-imatrix`, GGUF or the older .dat): better, most of all below five bits
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

    /// Have DST and SRC predict this text: perplexity, divergence and how often both have the same likeliest token are
    /// printed and in the receipt
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
    /// What is to be packed.
    fn job(&self) -> PackingJob {
        let source = match (&self.imatrix, &self.imatrix_text) {
            (Some(file), _) => Some(ImportanceSource::Imatrix(file.clone())),
            (None, Some(file)) => Some(ImportanceSource::Text(file.clone())),
            (None, None) => None,
        };
        PackingJob {
            source: self.source.clone(),
            output: self.output.clone(),
            overrides: self.tensor.clone(),
            plain: self.plain,
            importance: ImportanceSettings {
                source,
                keep_in: self.imatrix_out.clone(),
                replaces: self.force,
                window: self.imatrix_ctx_size,
                windows_max: self.imatrix_chunks,
            },
            shard_bytes_max: self.max_shard_size.0,
        }
    }

    /// What safetensors are to hold; `None` for a GGUF file. Refuses formats that the container does not have.
    fn target(&self) -> Result<Option<SafetensorsTarget>> {
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
            (Container::Safetensors, _, Some(layout), _) => Ok(Some(SafetensorsTarget::Packed(layout))),
            (Container::Safetensors, _, None, Some(base)) => Ok(Some(SafetensorsTarget::Plain(base))),
            (Container::Safetensors, ..) => bail!(
                "`{}` has no published layout of safetensors: choose one of {}, f16, bf16 or f32, or write a GGUF file \
                 (-o NAME.gguf)",
                self.format.name(),
                layouts(),
            ),
        }
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
    let job = args.job();
    let mut importance = Importances::of(&job.source, &job.importance)?;
    let written = match (target, args.format.mix) {
        (Some(target), _) => folder::write(&job, target, &mut importance)?,
        (None, Some(mix)) => gguf::write(&job, mix, &mut importance)?,
        (None, None) => bail!("`{}` is no type of GGUF", args.format.name()),
    };
    let scores = eval_text.as_deref().map(|text| evaluate(args, text)).transpose()?;
    if let Some(path) = &args.receipt {
        let evaluation = scores.as_ref().map(Scores::as_json);
        let receipt = receipt(&job, args.format.name(), &written, &importance, evaluation);
        files::write(path, receipt.as_bytes())?;
    }
    output::stdout(&summary(&job.output, &written)?)?;
    if let Some(scores) = scores {
        output::stdout(&scores.as_text()?)?;
    }
    Ok(())
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
